"""ff.suspend_execution, ff.expire_suspensions, ff.resume_execution and ff.list_suspended."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from support.database import home
from support.factories import new_id, refused

HOUR = timedelta(hours=1)


async def open_waits(engine, lease, *names, **given):
    for position, name in enumerate(names):
        assert (await engine.ask(lease, name, position=position, **given)).word == "open"


async def test_a_suspended_execution_gives_its_lease_back(engine, make, clock):
    await clock.freeze()
    execution = await make.execution("leased")
    before = await engine.row(execution.id)
    await open_waits(engine, execution.lease, "approve", timeout=HOUR)
    answer = await engine.suspend(execution.lease, "approve")
    now = await clock.now()
    assert (answer.word, answer.timeout_at) == ("suspended", now + HOUR)
    row = await engine.row(execution.id)
    assert (row["phase"], row["ownership"], row["eligibility"]) == (
        "suspended",
        "unowned",
        "not_applicable",
    )
    assert (row["blocking_reason"], row["attempt_state"], row["public_state"]) == (
        "waiting_for_signal",
        "attempt_interrupted",
        "suspended",
    )
    assert (row["lease_id"], row["epoch"], row["due_at"]) == (None, before["epoch"], None)
    assert await engine.kinds(execution.id) == ["submitted", "claimed", "suspended"]
    assert (await engine.complete(execution.lease)).word == "not_active"


async def test_a_repeat_gets_the_first_answer_also_after_it_was_woken(engine, make):
    execution = await make.execution("leased", lane="w")
    id = new_id()
    await open_waits(engine, execution.lease, "a", timeout=HOUR)
    first = await engine.suspend(execution.lease, "a", suspension_id=id)
    assert await engine.suspend(execution.lease, "a", suspension_id=id) == first
    await engine.signal(execution.id, "a")
    assert await engine.suspend(execution.lease, "a", suspension_id=id) == first
    await engine.take(execution.id, lanes=["w"])
    assert await engine.suspend(execution.lease, "a", suspension_id=id) == first
    assert len(await engine.suspensions(execution.id)) == 1


async def test_a_suspended_execution_is_not_suspended_again(engine, make):
    """The same lease gets its first answer, whatever it asks; any other lease is refused."""
    execution = await make.execution("suspended")
    assert (await engine.suspend(execution.lease, "approve")).word == "suspended"
    assert len(await engine.suspensions(execution.id)) == 1
    other = replace(execution.lease, lease_id=new_id())
    assert (await engine.suspend(other, "approve")).word == "not_active"


async def test_a_suspension_id_is_used_once(engine, make):
    one, two = await make.execution("leased"), await make.execution("leased")
    id = new_id()
    for execution in (one, two):
        await open_waits(engine, execution.lease, "a")
    await engine.suspend(one.lease, "a", suspension_id=id)
    answer = await engine.suspend(two.lease, "a", suspension_id=id)
    assert (answer.word, answer.detail["field"]) == ("invalid", "suspension_id")
    assert (await engine.row(two.id))["public_state"] == "active"


async def test_a_signal_that_is_there_already_keeps_the_lease(engine, make):
    execution = await make.execution("leased")
    await open_waits(engine, execution.lease, "a", "b")
    await engine.signal(execution.id, "b")
    answer = await engine.suspend(execution.lease, "a", "b")
    assert (answer.word, answer.detail["wait"]) == ("already_satisfied", "b")
    assert (await engine.row(execution.id))["public_state"] == "active"
    assert (await engine.complete(execution.lease)).word == "completed"


async def test_a_signal_stored_without_a_lock_before_the_suspension_is_seen(engine, make):
    execution = await make.execution("leased")
    await open_waits(engine, execution.lease, "a")
    await engine.signal(execution.id, "a", join=True)
    assert (await engine.suspend(execution.lease, "a")).word == "already_satisfied"


async def test_a_signal_that_commits_during_the_suspension_wakes_it_later(engine, make, db):
    """The sender stores while the suspending call holds the row: nobody misses the other."""
    execution = await make.execution("leased")
    await open_waits(engine, execution.lease, "a")
    holder = await db.connect()
    async with holder.transaction():
        assert (await engine.on(holder).suspend(execution.lease, "a")).word == "suspended"
        assert (await engine.signal(execution.id, "a")).effect == "stored"
    assert (await engine.row(execution.id))["public_state"] == "suspended"
    assert (await engine.notice())[0] == 1
    assert (await engine.row(execution.id))["public_state"] == "waiting"


async def test_either_of_two_waits_wakes_and_the_other_stays_open(engine, make):
    execution = await make.execution("leased", lane="w")
    await open_waits(engine, execution.lease, "a", "b")
    await engine.suspend(execution.lease, "a", "b")
    assert (await engine.signal(execution.id, "b", b"1")).effect == "woken"
    lease = await engine.take(execution.id, lanes=["w"])
    assert (await engine.ask(lease, "a")).word == "open"
    assert (await engine.ask(lease, "b", position=1, take=True)).value == b"1"
    assert (await engine.suspend(lease, "a")).word == "suspended"
    assert (await engine.signal(execution.id, "a", b"2")).effect == "woken"


async def test_the_last_of_many_waits_wakes(engine, make):
    execution = await make.execution("leased")
    names = [f"s{n}" for n in range(100)]
    for n, name in enumerate(names):
        await engine.ask(execution.lease, name, position=n)
    assert (await engine.suspend(execution.lease, *names)).word == "suspended"
    assert (await engine.signal(execution.id, names[-1])).effect == "woken"


async def test_a_wait_that_the_suspension_does_not_name_does_not_wake(engine, make):
    execution = await make.execution("leased")
    await open_waits(engine, execution.lease, "a", "b")
    await engine.suspend(execution.lease, "a")
    assert (await engine.signal(execution.id, "b")).effect == "buffered"


async def test_runs_signals_and_a_time_compose_in_one_suspension(engine, make, clock):
    execution = await make.execution("leased", lane="w")
    target = await make.execution("leased")
    await open_waits(engine, execution.lease, "stop")
    until = await clock.now() + HOUR
    answer = await engine.suspend(execution.lease, "stop", targets=[target.id], k=1, until_at=until)
    assert (answer.word, answer.timeout_at) == ("suspended", until)
    await engine.complete(target.lease)
    assert (await engine.kinds(execution.id))[-1] == "woken"
    assert (await engine.row(execution.id))["eligibility"] == "eligible_now"
    assert await engine.waits(execution.id) == []


async def test_the_kth_run_wakes_and_earlier_ones_count(engine, make):
    execution = await make.execution("leased", lane="w")
    targets = [await make.execution("leased") for _ in range(3)]
    await engine.complete(targets[0].lease)
    await engine.suspend(execution.lease, targets=[one.id for one in targets], k=2)
    assert (await engine.row(execution.id))["wait_left"] == 1
    await engine.complete(targets[1].lease)
    assert (await engine.row(execution.id))["public_state"] == "waiting"


async def test_runs_that_have_ended_keep_the_lease(engine, make):
    execution = await make.execution("leased")
    target = await make.execution("completed")
    answer = await engine.suspend(execution.lease, targets=[target.id])
    assert (answer.word, answer.detail) == ("already_satisfied", {"by": "runs"})


@pytest.mark.parametrize("what", ["until_at", "timeout"])
async def test_a_time_that_has_come_keeps_the_lease(engine, make, clock, what):
    execution = await make.execution("leased")
    await open_waits(engine, execution.lease, "a", timeout=HOUR if what == "until_at" else None)
    given = {}
    if what == "until_at":
        given = {"until_at": await clock.now() - HOUR}
    else:
        await engine.ask(execution.lease, "b", position=1, timeout=timedelta(0))
    names = ["a"] if what == "until_at" else ["a", "b"]
    answer = await engine.suspend(execution.lease, *names, **given)
    assert (answer.word, answer.detail["by"]) == ("already_satisfied", "timeout")
    assert (await engine.row(execution.id))["public_state"] == "active"


async def test_a_signal_first_drops_the_wait_for_runs(engine, make):
    execution = await make.execution("leased", lane="w")
    target = await make.execution("leased")
    await open_waits(engine, execution.lease, "stop")
    await engine.suspend(execution.lease, "stop", targets=[target.id])
    await engine.signal(execution.id, "stop")
    assert await engine.waits(execution.id) == []
    await engine.complete(target.lease)
    assert (await engine.kinds(execution.id)).count("woken") == 1


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"suspension_id": None}, "suspension_id"),
        ({"wait_names": None}, "wait_names"),
        ({"wait_names": ["a"], "wait_occurrences": []}, "wait_occurrences"),
        ({"wait_names": ["a", "a"], "wait_occurrences": [0, 0]}, "wait_names"),
        ({"wait_names": ["a"] * 1001, "wait_occurrences": list(range(1001))}, "wait_names"),
        ({"wait_names": [], "wait_occurrences": []}, "wait_names"),
        ({"k": 1}, "k"),
        ({"reason_code": "tired"}, "reason_code"),
        ({"on_timeout": "explode"}, "on_timeout"),
        ({"resume_delay": timedelta(seconds=-1)}, "resume_delay"),
        ({"continuation": "x" * 4097}, "continuation"),
    ],
)
async def test_bad_input_names_the_field_and_changes_nothing(engine, make, given, field):
    execution = await make.execution("leased")
    await open_waits(engine, execution.lease, "a")
    with refused("WF001", field=field):
        await engine.suspend(execution.lease, "a", **given)
    assert (await engine.row(execution.id))["public_state"] == "active"


async def test_a_wait_that_was_never_opened_is_refused(engine, make):
    execution = await make.execution("leased")
    answer = await engine.suspend(execution.lease, "never")
    assert (answer.word, answer.detail["field"]) == ("invalid", "wait_names")


async def test_an_expired_or_stale_lease_cannot_suspend(engine, make, clock):
    execution = await make.execution("leased")
    await open_waits(engine, execution.lease, "a")
    await clock.advance(seconds=31)
    assert (await engine.suspend(execution.lease, "a")).word == "lease_expired"
    cancelled = await make.execution("cancelled")
    assert (await engine.suspend(cancelled.lease, "a")).word == "not_active"


async def test_the_attempt_timeout_stands_still_while_suspended(engine, make, clock):
    policy = {"timeout_policy": {"attempt_timeout_ms": 10_000}}
    execution = await make.execution("suspended", lane="w", policy=policy)
    await clock.advance(hours=1)
    await engine.expire_executions()
    assert (await engine.row(execution.id))["public_state"] == "suspended"
    await engine.signal(execution.id)
    lease = await engine.take(execution.id, lanes=["w"])
    left = lease.attempt_deadline_at - await clock.now()
    assert timedelta(seconds=5) < left <= timedelta(seconds=10)


async def test_the_deadline_ends_a_suspended_execution(engine, make, clock):
    execution = await make.execution("suspended", deadline=HOUR)
    await clock.advance(hours=1)
    assert (await engine.expire_executions())[0] == 1
    assert (await engine.row(execution.id))["outcome"] == "expired"
    (suspension,) = await engine.suspensions(execution.id)
    assert suspension["close_reason"] == "expired:execution_deadline"


async def test_cancel_closes_what_is_open_and_a_late_signal_revives_nothing(engine, make):
    execution = await make.execution("suspended")
    assert (await engine.cancel(execution.id)).word == "cancelled"
    (suspension,) = await engine.suspensions(execution.id)
    assert suspension["close_reason"] == "cancelled"
    assert (await engine.signal(execution.id)).word == "not_signalable"
    assert (await engine.row(execution.id))["outcome"] == "cancelled"


# Timeouts


@pytest.mark.parametrize(
    ("behavior", "outcome", "kind"),
    [
        ("fail", "failed", "failed"),
        ("cancel", "cancelled", "cancelled"),
        ("expire", "expired", "expired"),
    ],
)
async def test_a_timeout_that_ends_the_execution(engine, make, clock, behavior, outcome, kind):
    execution = await make.execution("leased", policy={"retry_policy": {"max_retries": 3}})
    await open_waits(engine, execution.lease, "a", timeout=HOUR)
    await engine.suspend(execution.lease, "a", on_timeout=behavior)
    assert await engine.time_out() == (0, pytest.approx(HOUR, abs=timedelta(seconds=30)))
    await clock.advance(hours=1)
    assert (await engine.time_out())[0] == 1
    row = await engine.row(execution.id)
    assert (row["phase"], row["outcome"], row["attempt_state"]) == (
        "terminal",
        outcome,
        "attempt_terminal",
    )
    assert (await engine.kinds(execution.id))[-1] == kind
    reason = row["failure_reason"] if behavior != "cancel" else row["cancellation_reason"]
    assert reason == f"suspension_timeout:{behavior}"
    (suspension,) = await engine.suspensions(execution.id)
    assert suspension["close_reason"] == f"timed_out_{behavior}"
    assert (await engine.signal(execution.id, "a")).word == "not_signalable"
    assert (await engine.time_out())[0] == 0


@pytest.mark.parametrize("behavior", ["fail", "cancel", "expire"])
async def test_a_timeout_that_ends_others_leaves_their_own_timeouts_nothing(
    engine, make, clock, behavior
):
    """Those of other behaviours were due as well, and were ended a second time."""
    parent = await make.execution("leased")
    others = []
    for other in ("auto_resume", "fail", "cancel", "expire"):
        child = await make.execution("leased", parent=parent.id, with_parent=True)
        waiter = await make.execution("leased")
        others.append((other, child, waiter))
    for lease, own, targets in [
        (parent.lease, behavior, []),
        *((child.lease, other, []) for other, child, _ in others),
        *((waiter.lease, other, [parent.id]) for other, _, waiter in others),
    ]:
        await open_waits(engine, lease, "a", timeout=HOUR)
        await engine.suspend(lease, "a", on_timeout=own, targets=targets)
    await clock.advance(hours=1)
    assert (await engine.time_out())[0] == 9
    for _, *both in others:
        for one in both:
            kinds = await engine.kinds(one.id)
            assert kinds[:3] == ["submitted", "claimed", "suspended"]
            ends = [kind for kind in kinds if kind in ("failed", "cancelled", "expired")]
            assert len(ends) <= 1
            assert len(kinds) == (5 if "woken" in kinds and ends else 4)
            # A child that was woken first is cancelled with its parent.
            assert "woken" not in kinds or not ends or ends == ["cancelled"]


async def test_a_timeout_that_wakes_shows_the_holder_a_timeout_signal(engine, make, clock):
    execution = await make.execution("leased", lane="w")
    await open_waits(engine, execution.lease, "a", timeout=HOUR)
    await engine.suspend(execution.lease, "a")
    await clock.advance(hours=1)
    assert (await engine.time_out())[0] == 1
    assert (await engine.suspensions(execution.id))[0]["close_reason"] == "timed_out_auto_resume"
    lease = await engine.take(execution.id, lanes=["w"])
    (seen,) = await engine.observed(lease)
    assert (seen["name"], seen["source_type"], seen["signal_id"]) == ("timeout", "system", None)
    assert (await engine.ask(lease, "a", take=True)).taken_as == "timeout"


async def test_an_escalated_suspension_stays_without_a_timeout(engine, make, clock):
    execution = await make.execution("leased", lane="w")
    await open_waits(engine, execution.lease, "a", timeout=HOUR)
    await engine.suspend(execution.lease, "a", on_timeout="escalate")
    await clock.advance(hours=1)
    assert (await engine.time_out())[0] == 1
    row = await engine.row(execution.id)
    assert (row["public_state"], row["blocking_reason"]) == ("suspended", "paused_by_operator")
    assert (await engine.kinds(execution.id))[-1] == "escalated"
    (suspension,) = await engine.suspensions(execution.id)
    assert (suspension["timeout_at"], suspension["closed_at"]) == (None, None)
    assert await engine.time_out() == (0, None)
    assert (await engine.signal(execution.id, "a", b"1")).effect == "woken"
    lease = await engine.take(execution.id, lanes=["w"])
    assert (await engine.ask(lease, "a", take=True)).value == b"1"


async def test_a_signal_after_the_time_and_before_the_scan_wakes(engine, make, clock):
    execution = await make.execution("leased")
    await open_waits(engine, execution.lease, "a", timeout=HOUR)
    await engine.suspend(execution.lease, "a", on_timeout="fail")
    await clock.advance(hours=2)
    assert (await engine.signal(execution.id, "a")).effect == "woken"
    assert (await engine.time_out())[0] == 0


async def test_a_signal_in_the_inbox_counts_before_the_timeout(engine, make, clock):
    execution = await make.execution("leased")
    await open_waits(engine, execution.lease, "a", timeout=HOUR)
    await engine.suspend(execution.lease, "a", on_timeout="fail")
    await engine.signal(execution.id, "a", join=True)
    await clock.advance(hours=2)
    await engine.time_out()
    assert (await engine.row(execution.id))["public_state"] == "waiting"


@pytest.mark.parametrize("behavior", ["fail", "auto_resume", "escalate"])
async def test_a_timeout_after_a_resume_does_nothing(engine, make, clock, behavior):
    execution = await make.execution("leased", lane="w")
    await open_waits(engine, execution.lease, "a", timeout=HOUR)
    await engine.suspend(execution.lease, "a", on_timeout=behavior)
    await engine.signal(execution.id, "a")
    lease = await engine.take(execution.id, lanes=["w"], ttl=timedelta(hours=5))
    await clock.advance(hours=2)
    assert (await engine.time_out())[0] == 0
    assert (await engine.complete(lease)).word == "completed"


async def test_a_locked_execution_is_left_for_the_next_scan(engine, make, clock, db):
    execution = await make.execution("leased")
    await open_waits(engine, execution.lease, "a", timeout=HOUR)
    await engine.suspend(execution.lease, "a", on_timeout="fail")
    await clock.advance(hours=1)
    other = await db.connect()
    async with other.transaction():
        await other.execute("select from ff.execution for no key update")
        assert (await asyncio.wait_for(engine.time_out(), 60))[0] == 0
    assert (await engine.time_out())[0] == 1


async def test_a_resume_delay_is_honoured_after_a_signal(engine, make, clock):
    await clock.freeze()
    execution = await make.execution("leased", lane="w")
    await open_waits(engine, execution.lease, "a")
    await engine.suspend(execution.lease, "a", resume_delay=timedelta(minutes=5))
    await engine.signal(execution.id, "a")
    row = await engine.row(execution.id)
    assert (row["public_state"], row["blocking_reason"]) == ("delayed", "waiting_for_resume_delay")
    assert row["delayed_until"] == await clock.now() + timedelta(minutes=5)
    assert await engine.claim(1, lanes=["w"]) == []
    await clock.advance(minutes=5)
    await engine.promote()
    await engine.take(execution.id, lanes=["w"])


# An operator


async def test_an_operator_resumes_and_the_waits_are_taken_by_the_operator(engine, make):
    execution = await make.execution("suspended", lane="w")
    answer = await engine.resume(execution.id, actor="ada", reason="enough")
    assert (answer.word, answer.public_state) == ("resumed", "waiting")
    (event,) = [one for one in await engine.events(execution.id) if one["kind"] == "woken"]
    assert (event["actor"], "enough" in event["detail"]) == ("ada", True)
    lease = await engine.take(execution.id, lanes=["w"])
    assert (await engine.ask(lease)).taken_as == "operator"
    assert await engine.observed(lease) == []


async def test_a_resume_with_a_delay_is_promoted_when_it_is_due(engine, make, clock):
    execution = await make.execution("suspended", lane="w")
    assert (await engine.resume(execution.id, delay=HOUR)).public_state == "delayed"
    await clock.advance(hours=1)
    await engine.promote()
    await engine.take(execution.id, lanes=["w"])


@pytest.mark.parametrize("state", ["waiting", "leased", "completed", "interrupted"])
async def test_only_a_suspended_execution_is_resumed(engine, make, state):
    execution = await make.execution(state)
    with refused("WF222"):
        await engine.resume(execution.id)
    with refused("WF301"):
        await engine.resume(new_id())


async def test_a_repeated_resume_with_a_moved_version_is_already_applied(engine, make):
    execution = await make.execution("suspended")
    version = (await engine.row(execution.id))["version"]
    await engine.resume(execution.id, if_version=version)
    answer = await engine.resume(execution.id, if_version=version)
    assert (answer.word, answer.public_state) == ("already_applied", "waiting")


async def test_suspended_executions_are_listed_longest_first_page_by_page(engine, make, clock):
    ids = []
    for _ in range(3):
        ids.append((await make.execution("suspended")).id)
        await clock.advance(seconds=1)
    woken = await make.execution("suspended")
    await engine.signal(woken.id)
    first = await engine.list_suspended(limit=2)
    last = first[-1]
    rest = await engine.list_suspended(
        after_at=last["suspended_at"], after_id=last["execution_id"], limit=2
    )
    assert [row["execution_id"] for row in first + rest] == ids
    assert first[0]["reason_code"] == "waiting_for_signal"
    assert first[0]["conditions"] == '[{"signal": "approve"}]'
    assert await engine.within("other").list_suspended() == []


async def test_the_continuation_that_the_holder_left_is_listed_with_the_suspension(engine, make):
    execution = await make.execution("leased")
    await engine.ask(execution.lease)
    await engine.suspend(execution.lease, "approve", continuation="page 7")
    (row,) = await engine.list_suspended()
    assert row["continuation"] == "page 7"


async def test_trimming_deletes_signals_and_suspensions(engine, make, db, clock):
    execution = await make.execution("suspended")
    await engine.signal(execution.id, "other")
    await engine.cancel(execution.id)
    await clock.advance(days=60)
    await engine.connection.execute(f"select ff.trim_executions('{home()}')")
    for table in ("signal", "signal_inbox", "suspension", "step"):
        assert await db.fetchval(f"select count(*) from ff.{table}") == 0
