"""ff.record_steps and ff.list_steps: the journal of what handlers have done."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from support.database import home
from support.factories import TTL, Engine, Step, new_id, refused

HOUR = timedelta(hours=1)


async def test_a_step_is_recorded_with_its_value_and_who_recorded_it(engine, make, clock):
    await clock.freeze()
    execution = await make.execution("leased")
    answer = await engine.record(
        execution.lease, name="load", position=3, value=b"[1]", encoding="json"
    )
    now = await clock.now()
    assert (answer.word, answer.recorded_at, answer.attempt_index) == ("recorded", now, 0)
    (step,) = await engine.steps(execution.id)
    assert dict(step) == {
        "execution_id": execution.id,
        "name": "load",
        "occurrence": 0,
        "position": 3,
        "is_sequential": True,
        "kind": "step",
        "value": b"[1]",
        "encoding": "json",
        "recorded_at": now,
        "until_at": None,
        "attempt_index": 0,
        "ready_at": None,
        "taken_as": None,
    }


async def test_recording_is_no_transition(engine, make):
    execution = await make.execution("leased")
    before = await engine.row(execution.id)
    await engine.record(execution.lease, value=b"1")
    assert await engine.row(execution.id) == before
    assert await engine.kinds(execution.id) == ["submitted", "claimed"]


async def test_the_first_writer_wins_and_a_repeat_gets_its_value(engine, make, clock):
    execution = await make.execution("leased")
    first = await engine.record(execution.lease, value=b"first", encoding="json")
    await clock.advance(seconds=5)
    again = await engine.record(execution.lease, value=b"first", encoding="json")
    other = await engine.record(execution.lease, value=b"second", encoding="text", position=9)
    for answer in (again, other):
        assert (answer.word, answer.value, answer.encoding) == ("exists", b"first", "json")
        assert answer.recorded_at == first.recorded_at
    (step,) = await engine.steps(execution.id)
    assert (step["value"], step["position"]) == (b"first", 0)


async def test_a_step_without_a_value_exists_without_one(engine, make):
    execution = await make.execution("leased")
    assert (await engine.record(execution.lease)).word == "recorded"
    again = await engine.record(execution.lease, value=b"late")
    assert (again.word, again.value, again.encoding) == ("exists", None, None)


async def test_the_next_holder_finds_the_steps_of_the_last(engine, make):
    execution = await make.execution("leased", lane="w")
    await engine.record(execution.lease, value=b"1")
    await engine.release(execution.lease)
    lease = await engine.take(execution.id, lanes=["w"])
    again = await engine.record(lease, value=b"2")
    assert (again.word, again.value, again.attempt_index) == ("exists", b"1", 0)


async def test_a_new_attempt_keeps_the_journal_and_writes_its_own_number(engine, make):
    execution = await make.execution("leased", lane="w", policy={"retry_policy": {}})
    await engine.record(execution.lease, name="a")
    retry = await engine.fail(execution.lease, "transient")
    assert retry.word == "retry_scheduled"
    await engine.retry(execution.id)
    lease = await engine.take(execution.id, lanes=["w"])
    assert (await engine.record(lease, name="b", position=1)).attempt_index == 1
    assert [(s["name"], s["attempt_index"]) for s in await engine.steps(execution.id)] == [
        ("a", 0),
        ("b", 1),
    ]


async def test_several_steps_of_several_executions_go_in_one_call(engine, make):
    one, two = await make.execution("leased"), await make.execution("leased")
    answers = await engine.record_many(
        [
            (two.lease, Step(name="a", value=b"2a")),
            (one.lease, Step(name="a", value=b"1a")),
            (two.lease, Step(name="b", position=1, value=b"2b")),
            (two.lease, Step(name="a", occurrence=1, position=2, value=b"2a1")),
        ]
    )
    assert [answer.word for answer in answers] == ["recorded"] * 4
    assert [s["value"] for s in await engine.steps(two.id)] == [b"2a", b"2b", b"2a1"]
    assert [s["value"] for s in await engine.steps(one.id)] == [b"1a"]


async def test_of_two_equal_steps_in_one_call_the_first_wins(engine, make):
    execution = await make.execution("leased")
    answers = await engine.record_many(
        [
            (execution.lease, Step(value=b"first", encoding="json")),
            (execution.lease, Step(value=b"second", position=1)),
        ]
    )
    assert [(a.word, a.value, a.encoding) for a in answers] == [
        ("recorded", None, None),
        ("exists", b"first", "json"),
    ]
    assert answers[0].recorded_at == answers[1].recorded_at
    assert len(await engine.steps(execution.id)) == 1


async def test_an_invalid_step_does_not_stand_in_the_way_of_its_twin(engine, make):
    execution = await make.execution("leased")
    answers = await engine.record_many(
        [(execution.lease, Step(kind="nap")), (execution.lease, Step(value=b"good"))]
    )
    assert [answer.word for answer in answers] == ["invalid", "recorded"]


async def test_now_is_the_time_of_the_database(engine, make, clock):
    await clock.freeze()
    execution = await make.execution("leased")
    answer = await engine.record(execution.lease, name="now", kind="now")
    assert answer.recorded_at == await clock.now()
    await clock.advance(seconds=20)
    again = await engine.record(execution.lease, name="now", kind="now")
    assert (again.word, again.recorded_at) == ("exists", answer.recorded_at)


async def test_a_sleep_ends_by_the_clock_of_the_database(engine, make, clock):
    await clock.freeze()
    execution = await make.execution("leased")
    answer = await engine.record(execution.lease, name="nap", kind="sleep", delay=HOUR)
    assert answer.until_at == await clock.now() + HOUR
    await clock.advance(seconds=20)
    again = await engine.record(execution.lease, name="nap", kind="sleep", delay=HOUR)
    assert (again.word, again.until_at) == ("exists", answer.until_at)


async def test_a_sleep_may_end_at_a_moment(engine, make):
    execution = await make.execution("leased")
    noon = datetime(2050, 1, 1, 12, tzinfo=UTC)
    answer = await engine.record(execution.lease, kind="sleep", until=noon)
    assert answer.until_at == noon


async def test_a_failure_is_recorded_as_such(engine, make):
    execution = await make.execution("leased")
    assert (await engine.record(execution.lease, kind="failure", value=b"{}")).word == "recorded"
    (step,) = await engine.steps(execution.id)
    assert (step["kind"], step["value"]) == ("failure", b"{}")


# The fence


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"lease_id": uuid4()}, "stale_lease"),
        ({"epoch": 7}, "stale_lease"),
        ({"attempt_id": uuid4()}, "stale_lease"),
        ({"execution_id": uuid4()}, "not_found"),
        ({"lease_id": None}, "invalid"),
        ({"epoch": None}, "invalid"),
        ({"attempt_id": None}, "invalid"),
        ({"execution_id": None}, "invalid"),
    ],
)
async def test_a_fence_that_is_not_good_records_nothing(engine, make, change, word):
    execution = await make.execution("leased")
    before = await engine.snapshot()
    answer = await engine.record(replace(execution.lease, **change))
    assert answer.word == word
    assert answer.recorded_at is None
    assert await engine.snapshot() == before


async def test_who_lost_its_lease_records_nothing_and_marks_it(engine, make, clock):
    execution = await make.execution("leased")
    await clock.advance(TTL)
    assert (await engine.record(execution.lease)).word == "lease_expired"
    assert (await engine.row(execution.id))["ownership"] == "lease_expired_reclaimable"
    assert await engine.steps(execution.id) == []


async def test_a_zombie_is_told_off_by_whatever_became_of_its_execution(engine, make):
    for state, word in (
        ("reclaimed", "stale_lease"),
        ("revoked", "lease_revoked"),
        ("completed", "not_active"),
        ("cancelled", "not_active"),
        ("asleep", "not_active"),
        ("awaiting", "not_active"),
        ("held", "not_active"),
    ):
        execution = await make.execution(state)
        lease = execution.last_lease
        if state == "reclaimed":
            lease = replace(lease, lease_id=uuid4(), epoch=1)
        answer = await engine.record(lease, name="late", value=b"x")
        assert answer.word == word, state
        assert [s["name"] for s in await engine.steps(execution.id)] in ([], ["nap"])


async def test_a_step_that_exists_is_not_shown_to_a_zombie(engine, make):
    execution = await make.execution("leased", lane="w")
    await engine.record(execution.lease, value=b"secret")
    await engine.release(execution.lease)
    await engine.take(execution.id, lanes=["w"])
    answer = await engine.record(execution.lease)
    assert (answer.word, answer.value) == ("stale_lease", None)


async def test_two_fences_for_one_execution_do_not_share_a_verdict(engine, make):
    execution = await make.execution("leased")
    stale = replace(execution.lease, epoch=9)
    answers = await engine.record_many(
        [
            (execution.lease, Step(name="good")),
            (stale, Step(name="bad", position=1)),
            (replace(execution.lease, lease_id=uuid4()), Step(name="worse", position=2)),
        ]
    )
    assert [answer.word for answer in answers] == ["recorded", "busy", "busy"]
    assert (await engine.record(stale, name="bad", position=1)).word == "stale_lease"
    assert [s["name"] for s in await engine.steps(execution.id)] == ["good"]


async def test_a_foreign_namespace_finds_nothing(engine, make):
    execution = await make.execution("leased")
    await engine.record(execution.lease, value=b"1")
    other = engine.within("other")
    assert (await other.record(execution.lease, name="x")).word == "not_found"
    assert await other.steps(execution.id) == []
    assert len(await engine.within(None).steps(execution.id)) == 1


async def test_an_unknown_execution_has_no_steps(engine):
    assert await engine.steps(new_id()) == []


async def test_a_row_that_is_locked_is_busy_and_the_rest_is_recorded(db, engine, make):
    one, two = await make.execution("leased"), await make.execution("leased")
    other = await db.connect()
    async with other.transaction():
        await other.execute(
            "select from ff.execution where execution_id = $1 for no key update", one.id
        )
        answers = await engine.record_many([(one.lease, Step()), (two.lease, Step())])
        assert [answer.word for answer in answers] == ["busy", "recorded"]
        waiting = asyncio.create_task(engine.record_many([(one.lease, Step())], wait=True))
        await db.until_waiting(waiting)
    assert [answer.word for answer in await waiting] == ["recorded"]


async def test_a_zombie_that_waits_for_the_row_is_judged_after_the_wait(db, engine, make):
    execution = await make.execution("leased")
    other = Engine(await db.connect())
    transaction = other.connection.transaction()
    await transaction.start()
    assert (await other.revoke(execution.id)).word == "revoked"
    late = asyncio.create_task(
        engine.record_many([(execution.last_lease, Step(value=b"x"))], wait=True)
    )
    await db.until_waiting(late)
    await transaction.commit()
    assert [answer.word for answer in await late] == ["lease_revoked"]
    assert await engine.steps(execution.id) == []


# Bad input


@pytest.mark.parametrize(
    ("step", "field"),
    [
        ({"name": None}, "name"),
        ({"name": ""}, "name"),
        ({"name": "x" * 257}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"occurrence": None}, "occurrence"),
        ({"occurrence": -1}, "occurrence"),
        ({"position": None}, "position"),
        ({"position": -1}, "position"),
        ({"sequential": None}, "is_sequential"),
        ({"kind": None}, "kind"),
        ({"kind": "stp"}, "kind"),
        ({"value": b"x" * 1_048_577}, "value"),
        ({"kind": "now", "value": b"x"}, "value"),
        ({"kind": "sleep", "delay": HOUR, "value": b"x"}, "value"),
        ({"encoding": "x" * 65}, "encoding"),
        ({"kind": "sleep"}, "delay"),
        ({"kind": "sleep", "delay": HOUR, "until": datetime(2050, 1, 1, tzinfo=UTC)}, "delay"),
        ({"delay": HOUR}, "delay"),
        ({"kind": "sleep", "delay": timedelta(days=40_000)}, "delay"),
        ({"kind": "sleep", "until": datetime(9999, 6, 1, tzinfo=UTC)}, "until_at"),
    ],
)
async def test_a_bad_step_is_refused_and_the_field_is_named(engine, make, step, field):
    execution = await make.execution("leased")
    before = await engine.snapshot()
    answer = await engine.record(execution.lease, **step)
    assert (answer.word, answer.detail["field"]) == ("invalid", field)
    assert await engine.snapshot() == before


async def test_the_largest_step_is_taken(engine, make):
    execution = await make.execution("leased")
    answer = await engine.record(execution.lease, name="x" * 256, value=b"x" * 1_048_576)
    assert answer.word == "recorded"


async def test_arrays_of_different_lengths_are_refused(engine, make, conn):
    execution = await make.execution("leased")
    lease = execution.lease
    with refused("WF001", field="execution_ids"):
        await conn.fetch(
            f"select * from ff.record_steps('{home()}', $1, array[$2::uuid], array[$3::uuid], "
            "array[$4::bigint], array[$5::uuid], array['a', 'b'], array[0], array[0], "
            "array[true], array['step'], null)",
            engine.namespace,
            lease.execution_id,
            lease.lease_id,
            lease.epoch,
            lease.attempt_id,
        )


async def test_only_a_single_step_may_wait(engine, make):
    execution = await make.execution("leased")
    with refused("WF001", field="wait"):
        await engine.record_many(
            [(execution.lease, Step()), (execution.lease, Step(name="b"))], wait=True
        )


async def test_the_journal_is_in_the_order_of_its_positions(engine, make):
    execution = await make.execution("leased")
    await engine.record_many(
        [
            (execution.lease, Step(name="c", position=1, sequential=False)),
            (execution.lease, Step(name="b", position=1, sequential=False, occurrence=1)),
            (execution.lease, Step(name="b", position=1, sequential=False)),
            (execution.lease, Step(name="z", position=0)),
        ]
    )
    assert [(s["name"], s["occurrence"]) for s in await engine.steps(execution.id)] == [
        ("z", 0),
        ("b", 0),
        ("b", 1),
        ("c", 0),
    ]


# Life of the journal


async def test_retry_ends_the_sleep_as_well(engine, make, clock):
    execution = await make.execution("asleep")
    assert (await engine.retry(execution.id)).word == "promoted"
    (nap,) = await engine.steps(execution.id)
    assert nap["until_at"] <= await clock.now()


async def test_retry_of_a_back_off_leaves_sleeps_alone(engine, make, clock):
    execution = await make.execution("leased", policy={"retry_policy": {}})
    nap = await engine.record(execution.lease, kind="sleep", delay=HOUR)
    await engine.fail(execution.lease, "transient")
    assert (await engine.retry(execution.id)).word == "promoted"
    (step,) = await engine.steps(execution.id)
    assert step["until_at"] == nap.until_at


async def test_retry_leaves_sleeps_that_are_over_as_they_were(engine, make, clock):
    execution = await make.execution("leased", lane="w")
    first = await engine.record(execution.lease, name="a", kind="sleep", delay=timedelta(0))
    second = await engine.record(execution.lease, name="b", position=1, kind="sleep", delay=HOUR)
    await engine.delay(execution.lease, None, until=second.until_at)
    await clock.advance(minutes=5)
    await engine.retry(execution.id)
    steps = await engine.steps(execution.id)
    assert steps[0]["until_at"] == first.until_at
    assert steps[1]["until_at"] < second.until_at


async def test_trimming_takes_the_journal_along(engine, make, clock, db):
    execution = await make.execution("leased", policy={"retention_ms": 1000})
    other = await make.execution("leased")
    await engine.record(execution.lease)
    await engine.record(other.lease)
    await engine.complete(execution.lease)
    await clock.advance(minutes=1)
    assert await db.fetchval(f"select handled from ff.trim_retention('{home()}')") == 1
    assert await db.fetchval("select count(*) from ff.step") == 1
