"""ff.fail_executions: whether, and when, an execution is tried again."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from support.database import home
from support.factories import TTL, Item, new_id, refused
from support.hints import hints

RETRY = {"retry_policy": {"max_retries": 3}}


def exponential(**backoff):
    return {"retry_policy": {"max_retries": 1000000, "backoff": {"type": "exponential"} | backoff}}


def fixed(**backoff):
    return {"retry_policy": {"max_retries": 1000000, "backoff": {"type": "fixed"} | backoff}}


async def backoff(db, stored, retry_count, chance=1.0):
    """What ff._backoff_delay makes of it, in milliseconds."""
    wait = await db.fetchval(
        "select ff._backoff_delay($1::jsonb, $2, $3)", json.dumps(stored), retry_count, chance
    )
    return wait / timedelta(milliseconds=1)


# T13, T14


async def test_a_failure_with_retries_left_waits_for_the_next_attempt(clock, engine, make):
    execution = await make.execution("leased", policy=RETRY)
    lease = execution.last_lease
    await clock.advance(seconds=1)
    now = await clock.freeze()
    answer = await engine.fail(lease, "transient", "it broke", category="io", detail=b"trace")
    assert answer.word == "retry_scheduled"
    assert answer.delayed_until == now + timedelta(seconds=1)
    assert answer.next_attempt_index == 1

    row = await engine.row(execution.id)
    assert (row["phase"], row["ownership"], row["eligibility"]) == (
        "runnable",
        "unowned",
        "not_eligible_until_time",
    )
    assert (row["blocking_reason"], row["outcome"], row["attempt_state"], row["cause"]) == (
        "waiting_for_retry_backoff",
        "none",
        "pending_retry_attempt",
        "schedule_retry",
    )
    assert row["public_state"] == "delayed"
    assert row["retry_count"] == 1
    assert row["delayed_until"] == row["due_at"] == answer.delayed_until
    assert (row["attempt_ended_as"], row["attempt_ended_at"]) == ("ended_failure", now)
    assert (row["failure_class"], row["failure_category"]) == ("transient", "io")
    assert (row["failure_reason"], row["failure_detail"]) == ("it broke", b"trace")
    assert (row["last_lease_id"], row["last_lease_end"]) == (lease.lease_id, "fail")
    assert row["last_lease_retry_at"] == answer.delayed_until
    assert row["lease_id"] is row["worker_id"] is row["terminal_at"] is None
    # the epoch is kept; the next claim raises it
    assert row["epoch"] == lease.epoch

    event = (await engine.events(execution.id))[-1]
    assert (event["kind"], event["outcome"]) == ("retry_scheduled", None)
    assert (event["lease_id"], event["epoch"]) == (lease.lease_id, lease.epoch)
    detail = json.loads(event["detail"])
    assert (detail["class"], detail["category"]) == ("transient", "io")
    assert detail["delayed_until"]


NO_SUCH_CATEGORY = {"retry_policy": {"max_retries": 3, "retryable_categories": ["io"]}}
NEVER = {"retry_policy": {"max_retries": 0}}


@pytest.mark.parametrize(
    ("policy", "class_", "asked", "seconds"),
    [
        (RETRY, "transient", {"retry_delay": timedelta(seconds=90)}, 90),
        (RETRY, "transient", {"retry_delay": timedelta(0)}, 0),
        (RETRY, "transient", {"retry_at": timedelta(hours=2)}, 7200),
        # a time in the past means now
        (RETRY, "transient", {"retry_at": timedelta(hours=-2)}, 0),
        # without a policy, and whatever the category
        (None, "transient", {"retry_delay": timedelta(seconds=90)}, 90),
        (NO_SUCH_CATEGORY, "transient", {"retry_delay": timedelta(seconds=90)}, 90),
        # no retry is left, or none helps
        (NEVER, "transient", {"retry_delay": timedelta(seconds=90)}, None),
        (RETRY, "permanent", {"retry_delay": timedelta(seconds=90)}, None),
    ],
)
async def test_a_retry_waits_as_long_as_the_handler_asked(
    clock, engine, make, policy, class_, asked, seconds
):
    execution = await make.execution("leased", policy=policy)
    now = await clock.freeze()
    if "retry_at" in asked:
        asked = {"retry_at": now + asked["retry_at"]}

    answer = await engine.fail(execution.last_lease, class_, **asked)

    if seconds is None:
        assert (answer.word, answer.delayed_until) == ("failed", None)
    else:
        assert answer.word == "retry_scheduled"
        assert answer.delayed_until == now + timedelta(seconds=seconds)


async def test_a_task_without_a_policy_that_asks_again_has_three_retries(clock, engine, make):
    execution = await make.execution("leased")
    lease, words = execution.last_lease, []
    for _ in range(4):
        answer = await engine.fail(lease, retry_delay=timedelta(seconds=1))
        words.append(answer.word)
        if answer.word == "retry_scheduled":
            await clock.advance(seconds=2)
            await engine.promote()
            (lease,) = await engine.claim()
    assert words == ["retry_scheduled"] * 3 + ["failed"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("retry_delay", timedelta(seconds=-1)),
        ("retry_delay", timedelta(days=36_526)),
        ("retry_at", datetime.max.replace(tzinfo=UTC)),
    ],
)
async def test_a_wait_that_leaves_the_calendar_is_refused(engine, make, field, value):
    execution = await make.execution("leased", policy=RETRY)
    answer = await engine.fail(execution.last_lease, **{field: value})
    assert answer.word == "invalid"
    assert answer.detail["field"] == field
    assert (await engine.row(execution.id))["public_state"] == "active"


async def test_a_failure_without_retries_left_is_the_end(clock, engine, make):
    execution = await make.execution("leased")
    lease = execution.last_lease
    now = await clock.freeze()
    answer = await engine.fail(lease, "transient", "it broke")
    assert (answer.word, answer.delayed_until, answer.next_attempt_index) == ("failed", None, None)
    row = await engine.row(execution.id)
    assert (row["phase"], row["ownership"], row["eligibility"]) == (
        "terminal",
        "unowned",
        "not_applicable",
    )
    assert (row["blocking_reason"], row["outcome"], row["attempt_state"], row["cause"]) == (
        "none",
        "failed",
        "attempt_terminal",
        "fail",
    )
    assert (row["public_state"], row["terminal_at"], row["retry_count"]) == ("failed", now, 0)
    assert row["due_at"] is row["delayed_until"] is row["last_lease_retry_at"] is None
    event = (await engine.events(execution.id))[-1]
    assert (event["kind"], event["outcome"]) == ("failed", "failed")
    assert (event["lease_id"], event["epoch"], event["attempt_index"]) == (lease.lease_id, 1, 0)


async def test_a_failed_execution_can_be_tried_until_its_retries_are_used_up(clock, engine):
    (created,) = await engine.submit_many([Item(policy={"retry_policy": {"max_retries": 2}})])
    words = []
    for n in range(3):
        lease = await engine.take(created.id)
        assert lease.attempt_index == lease.retry_count == n
        words.append((await engine.fail(lease)).word)
        await clock.advance(minutes=5)
        await engine.promote()
    assert words == ["retry_scheduled", "retry_scheduled", "failed"]
    assert await engine.claim() == []
    assert [a["failure_reason"] for a in await engine.attempts(created.id)] == ["it broke"] * 2


@pytest.mark.parametrize(
    ("policy", "retried"),
    [
        (None, 0),
        ({}, 0),
        ({"max_reclaim_count": 5}, 0),
        ({"retry_policy": {}}, 3),
        ({"retry_policy": {"max_retries": 0}}, 0),
        ({"retry_policy": {"max_retries": 1}}, 1),
        ('{"retry_policy": {"max_retries": 2.0}}', 2),
    ],
)
async def test_the_stored_policy_decides_how_often(clock, engine, policy, retried):
    await engine.submit(policy=policy)
    count = 0
    while (await engine.fail(await engine.take())).word == "retry_scheduled":
        count += 1
        await clock.advance(minutes=5)
        await engine.promote()
    assert count == retried


@pytest.mark.parametrize(
    ("class_", "word"),
    [
        ("transient", "retry_scheduled"),
        ("infra_crash", "retry_scheduled"),
        ("timeout", "retry_scheduled"),
        ("permanent", "failed"),
        ("cancelled", "failed"),
    ],
)
async def test_the_class_says_whether_trying_again_is_pointless(engine, make, class_, word):
    execution = await make.execution("leased", policy=RETRY)
    assert (await engine.fail(execution.last_lease, class_)).word == word
    assert (await engine.row(execution.id))["failure_class"] == class_


@pytest.mark.parametrize(
    ("categories", "category", "word"),
    [
        ([], "anything", "retry_scheduled"),
        (["io"], "io", "retry_scheduled"),
        (["db", "io"], "io", "retry_scheduled"),
        (["io"], "IO", "failed"),
        (["io"], "cpu", "failed"),
        # without a category its class stands for it
        (["transient"], None, "retry_scheduled"),
        (["timeout"], None, "failed"),
    ],
)
async def test_the_policy_may_name_what_is_worth_a_retry(engine, make, categories, category, word):
    policy = {"retry_policy": {"max_retries": 3, "retryable_categories": categories}}
    execution = await make.execution("leased", policy=policy)
    assert (await engine.fail(execution.last_lease, category=category)).word == word


async def test_without_a_category_the_class_stands_for_it(engine, make):
    policy = {"retry_policy": {"retryable_categories": ["timeout"]}}
    for class_, word in (("timeout", "retry_scheduled"), ("infra_crash", "failed")):
        execution = await make.execution("leased", policy=policy)
        assert (await engine.fail(execution.last_lease, class_)).word == word


async def test_a_category_does_not_make_a_permanent_failure_worth_a_retry(engine, make):
    policy = {"retry_policy": {"retryable_categories": ["io"]}}
    execution = await make.execution("leased", policy=policy)
    assert (await engine.fail(execution.last_lease, "permanent", category="io")).word == "failed"


async def test_a_release_or_a_reclaim_costs_no_retry(clock, engine, make):
    execution = await make.execution("reclaimed", policy={"retry_policy": {"max_retries": 1}})
    lease = execution.last_lease
    await engine.release(lease)
    lease = await engine.take(execution.id)
    assert (await engine.fail(lease)).word == "retry_scheduled"


async def test_a_retry_does_not_disturb_the_deadline(engine, make, clock):
    now = await clock.freeze()
    execution = await make.execution("retried", deadline_at=now + timedelta(hours=1), policy=RETRY)
    assert (await engine.row(execution.id))["deadline_at"] == now + timedelta(hours=1)


# Backoff


async def test_the_wait_grows_as_the_policy_says(db):
    cases = [
        ({"type": "fixed", "delay_ms": 250}, [250, 250, 250]),
        ({"type": "fixed", "delay_ms": 0}, [0, 0, 0]),
        ({"type": "fixed"}, [1000, 1000, 1000]),
        ({"type": "exponential"}, [1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000]),
        (None, [1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000]),
        ({}, [1000, 2000, 4000]),
        ({"initial_delay_ms": 10, "multiplier": 10, "max_delay_ms": 5000}, [10, 100, 1000, 5000]),
        ({"initial_delay_ms": 500, "multiplier": 1}, [500, 500, 500]),
        ({"initial_delay_ms": 1000, "multiplier": 1.5}, [1000, 1500, 2250, 3375]),
        ({"initial_delay_ms": 0}, [0, 0, 0]),
        ({"initial_delay_ms": 5000, "max_delay_ms": 1000}, [1000, 1000]),
        ({"initial_delay_ms": 5000, "max_delay_ms": 0}, [0, 0]),
        ({"initial_delay_ms": 0.5, "max_delay_ms": 0.25}, [0.25, 0.25]),
    ]
    for stored, waits in cases:
        found = [await backoff(db, stored, n) for n in range(len(waits))]
        assert found == pytest.approx(waits, abs=0.002), stored


async def test_huge_numbers_of_retries_stay_at_the_maximum(db):
    longest = 3153600000000
    for multiplier in (1, 1.0000001, 2, 1000):
        stored = {"initial_delay_ms": 1, "multiplier": multiplier, "max_delay_ms": longest}
        for retry_count in (100, 1100, 10_000, 1_000_000):
            wait = await backoff(db, stored, retry_count)
            assert 0 < wait <= longest
            if multiplier >= 2:
                assert wait == longest


@pytest.mark.parametrize("stored", [{"type": "fixed", "delay_ms": 1000}, {"max_delay_ms": 1000}])
async def test_jitter_takes_up_to_half_of_the_wait(db, stored):
    stored = stored | {"jitter": True}
    assert [await backoff(db, stored, 5, chance) for chance in (0.0, 0.5, 1.0)] == [500, 750, 1000]
    assert await backoff(db, stored | {"jitter": False}, 5, 0.0) == 1000


async def test_a_stored_jitter_is_applied_and_differs(clock, engine):
    policy = fixed(delay_ms=10_000, jitter=True)
    await engine.submit_many([Item(policy=policy)] * 40)
    now = await clock.freeze()
    leases = await engine.claim()
    answers = await engine.fail_many(leases, ["transient"] * 40, ["x"] * 40)
    waits = {(answer.delayed_until - now) / timedelta(seconds=1) for answer in answers}
    assert all(5 <= wait <= 10 for wait in waits)
    assert len(waits) > 30


async def test_the_wait_counts_the_retries_so_far(clock, engine):
    await engine.submit(policy=exponential(initial_delay_ms=1000, multiplier=3))
    waits = []
    for _ in range(4):
        lease = await engine.take()
        now = await clock.freeze()
        answer = await engine.fail(lease)
        waits.append((answer.delayed_until - now) / timedelta(seconds=1))
        await clock.set(answer.delayed_until)
        assert await engine.promote() == (1, None)
    assert waits == [1, 3, 9, 27]


async def test_a_retry_without_a_wait_is_due_at_once(clock, engine):
    await engine.submit(policy=fixed(delay_ms=0))
    now = await clock.freeze()
    answer = await engine.fail(await engine.take())
    assert answer.delayed_until == now
    await engine.promote()
    assert (await engine.take()).attempt_index == 1


# Refusals


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("class", {"class_": "odd"}),
        ("class", {"class_": None}),
        ("class", {"class_": ""}),
        ("reason", {"reason": None}),
        ("reason", {"reason": "x" * 257}),
        ("reason", {"reason": "é" * 129}),
        ("reason", {"reason": "two\nlines"}),
        ("reason", {"reason": "del\x7f"}),
        ("category", {"category": "x" * 257}),
        ("detail", {"detail": b"x" * 65537}),
    ],
)
async def test_what_cannot_be_stored_is_refused_and_the_lease_stays(engine, make, field, arguments):
    execution = await make.execution("leased", policy=RETRY)
    before = await engine.snapshot()
    answer = await engine.fail(execution.last_lease, **arguments)
    assert answer.word == "invalid"
    assert answer.detail["field"] == field
    assert answer.detail["problem"]
    assert await engine.snapshot() == before
    assert (await engine.fail(execution.last_lease)).word == "retry_scheduled"


async def test_what_is_just_within_the_limits_is_stored(engine, make):
    execution = await make.execution("leased")
    answer = await engine.fail(
        execution.last_lease, reason="x" * 256, category="é" * 128, detail=b"\x00" * 65536
    )
    assert answer.word == "failed"
    assert (await engine.row(execution.id))["failure_detail"] == b"\x00" * 65536


async def test_a_late_failure_is_refused_and_marks_the_lease_expired(clock, engine, make):
    execution = await make.execution("leased", policy=RETRY)
    await clock.advance(TTL)
    assert (await engine.fail(execution.last_lease)).word == "lease_expired"
    row = await engine.row(execution.id)
    assert (row["ownership"], row["retry_count"]) == ("lease_expired_reclaimable", 0)
    assert row["failure_class"] is None
    assert await engine.kinds(execution.id) == ["submitted", "claimed", "lease_expired"]


@pytest.mark.parametrize(
    ("forgery", "word"),
    [
        ({"lease_id": uuid4()}, "stale_lease"),
        ({"epoch": 2}, "stale_lease"),
        ({"attempt_id": uuid4()}, "stale_lease"),
        ({"execution_id": new_id()}, "not_found"),
        ({"lease_id": None}, "invalid"),
        ({"epoch": None}, "invalid"),
        ({"attempt_id": None}, "invalid"),
        ({"execution_id": None}, "invalid"),
    ],
)
async def test_a_forged_fence_writes_nothing(engine, make, forgery, word):
    execution = await make.execution("leased", policy=RETRY)
    before = await engine.snapshot()
    answer = await engine.fail(replace(execution.last_lease, **forgery))
    assert (answer.word, answer.delayed_until, answer.next_attempt_index) == (word, None, None)
    assert await engine.snapshot() == before


async def test_an_execution_of_another_namespace_is_not_found(engine, make):
    execution = await make.execution("leased")
    assert (await engine.within("other").fail(execution.last_lease)).word == "not_found"
    assert (await engine.within(None).fail(execution.last_lease)).word == "failed"


async def test_not_active_tells_how_the_execution_ended(engine, make):
    execution = await make.execution("completed")
    answer = await engine.fail(execution.last_lease)
    assert answer.word == "not_active"
    assert (answer.detail["phase"], answer.detail["outcome"]) == ("terminal", "success")


async def test_a_locked_row_is_busy_and_may_be_waited_for_alone(db, engine):
    await engine.submit_many([Item()] * 3)
    leases = await engine.claim()
    other = await db.connect()
    async with other.transaction():
        await other.execute(
            "select from ff.execution where execution_id = $1 for no key update",
            leases[1].execution_id,
        )
        answers = await engine.fail_many(leases, ["timeout"] * 3, ["x"] * 3)
        assert [answer.word for answer in answers] == ["failed", "busy", "failed"]
    assert (await engine.fail(leases[1], wait=True)).word == "failed"
    with refused("WF001", field="wait"):
        await engine.fail_many(leases, ["timeout"] * 3, ["x"] * 3, wait=True)


async def test_a_mixed_batch_gets_an_answer_for_each_item(clock, engine, make):
    done = (await make.execution("completed")).last_lease
    late = (await make.execution("leased", ttl=timedelta(seconds=1))).last_lease
    await clock.advance(seconds=2)
    await engine.submit_many([Item(policy=RETRY), Item(), Item()])
    good = await engine.claim()
    batch = [good[0], done, good[1], late, good[1], good[2]]
    classes = ["transient", "transient", "odd", "timeout", "timeout", "timeout"]
    answers = await engine.fail_many(batch, classes, [f"reason {n}" for n in range(6)])
    assert [answer.word for answer in answers] == [
        "retry_scheduled",
        "not_active",
        "invalid",
        "lease_expired",
        "duplicate",
        "failed",
    ]
    assert (await engine.row(good[2].execution_id))["failure_reason"] == "reason 5"
    assert (await engine.row(good[1].execution_id))["public_state"] == "active"


@pytest.mark.parametrize("size", [0, 1001])
async def test_a_batch_has_one_to_a_thousand_items(engine, make, size):
    lease = (await make.execution("leased")).last_lease
    with refused("WF001", field="execution_ids"):
        await engine.fail_many([lease] * size, ["timeout"] * size, ["x"] * size)


async def test_arrays_of_different_length_are_refused(engine, make):
    lease = (await make.execution("leased")).last_lease
    with refused("WF001", field="execution_ids"):
        await engine.fail_many([lease], ["timeout"], ["x"], ["a", "b"])


# Replay


async def test_the_lease_that_failed_gets_its_first_answer_again(clock, engine, make):
    execution = await make.execution("leased", policy=RETRY)
    first = await engine.fail(execution.last_lease)
    before = await engine.snapshot()
    await clock.advance(seconds=0.5)
    assert await engine.fail(execution.last_lease, "permanent", "another") == first
    assert await engine.fail(execution.last_lease, wait=True) == first
    assert await engine.snapshot() == before


async def test_the_first_answer_is_given_even_after_later_attempts(clock, engine, make):
    execution = await make.execution("leased", policy=RETRY)
    leases, answers = [execution.last_lease], []
    for _ in range(3):
        answers.append(await engine.fail(leases[-1]))
        await clock.set(answers[-1].delayed_until)
        await engine.promote()
        leases.append(await engine.take(execution.id))
    await engine.complete(leases[-1])
    before = await engine.snapshot()
    assert [await engine.fail(lease) for lease in leases[:-1]] == answers
    assert [answer.next_attempt_index for answer in answers] == [1, 2, 3]
    assert (await engine.fail(leases[-1])).word == "not_active"
    assert await engine.snapshot() == before


async def test_the_lease_that_failed_for_good_is_told_so_again(engine, make):
    execution = await make.execution("failed")
    before = await engine.snapshot()
    assert (await engine.fail(execution.last_lease)).word == "failed"
    assert await engine.snapshot() == before


# Hints


async def test_a_failure_hints_that_something_ended(db, engine):
    await engine.submit_many([Item()] * 4)
    leases = await engine.claim()

    def fail(leases, **options):
        size = len(leases)
        return lambda: engine.fail_many(leases, ["timeout"] * size, ["x"] * size, **options)

    assert await hints(db, "ff_ended", fail(leases[:2])) == [f"{home()}"]
    assert await hints(db, "ff_ended", fail(leases[:2])) == []
    assert await hints(db, "ff_ended", fail(leases[2:], hint=False)) == []
