"""expire_executions: deadlines of executions, and of attempts. Not the same thing as a lease."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from support.factories import Engine, Item, refused

RETRY = {"retry_policy": {"max_retries": 1, "backoff": {"type": "fixed", "delay_ms": 5000}}}
TIMEOUT = {"timeout_policy": {"attempt_timeout_ms": 60_000}}
LONG = timedelta(hours=5)


@pytest.mark.parametrize(
    "state",
    [
        "waiting",
        "delayed",
        "leased",
        "interrupted",
        "retry_delayed",
        "expired_lease",
        "reclaim_delayed",
        "revoked",
        "delayed_by_worker",
        "held",
        "blocked",
        "replayed",
    ],
)
async def test_a_deadline_ends_an_execution_in_any_state(engine, make, clock, state):
    execution = await make.execution(state, deadline=timedelta(hours=3))
    before = await engine.row(execution.id)
    await clock.set(before["deadline_at"])
    assert (await engine.expire_executions())[0] == 1
    row = await engine.row(execution.id)
    assert row["public_state"] == "expired"
    shown = await engine.connection.fetchrow(
        "select failure_category from ff.execution_view where execution_id = $1", execution.id
    )
    assert shown["failure_category"] == "execution_deadline"
    if state in ("retry_delayed", "replayed"):
        # the attempt had ended before: it keeps how
        assert row["failure_reason"] == before["failure_reason"]
    else:
        assert (row["failure_class"], row["failure_category"]) == ("timeout", "execution_deadline")
    assert row["attempt_state"] == (
        "pending_first_attempt"
        if before["attempt_state"] == "pending_first_attempt"
        else "attempt_terminal"
    )
    assert (await engine.kinds(execution.id))[-1] == "expired"
    assert (await engine.expire_executions())[0] == 0


async def test_before_its_time_nothing_happens(engine, make, clock):
    execution = await make.execution("waiting", deadline=timedelta(hours=1))
    handled, due_in = await engine.expire_executions()
    assert handled == 0
    assert timedelta(minutes=59) < due_in <= timedelta(hours=1)
    assert (await engine.row(execution.id))["public_state"] == "waiting"


async def test_a_running_execution_past_its_deadline_loses_its_lease(engine, make, clock):
    execution = await make.execution("leased", ttl=LONG, deadline=timedelta(hours=1))
    await clock.advance(hours=1)
    await engine.expire_executions()
    row = await engine.row(execution.id)
    assert (row["epoch"], row["attempt_ended_as"]) == (
        execution.lease.epoch + 1,
        "ended_failure",
    )
    event = (await engine.events(execution.id))[-1]
    assert event["lease_id"] == execution.lease.lease_id
    assert (await engine.complete(execution.lease)).word == "not_active"


async def test_an_attempt_that_renews_its_lease_still_runs_out_of_time(engine, make, clock):
    execution = await make.execution("leased", policy={**RETRY, **TIMEOUT})
    for _ in range(3):
        await clock.advance(seconds=20)
        if _ < 2:
            assert (await engine.renew(execution.lease)).word == "renewed"
            await engine.expire()
            assert (await engine.expire_executions())[0] == 0
    assert (await engine.expire_executions())[0] == 1
    row = await engine.row(execution.id)
    assert (row["public_state"], row["attempt_state"]) == ("delayed", "pending_retry_attempt")
    assert (row["retry_count"], row["epoch"]) == (1, execution.lease.epoch + 1)
    assert row["failure_category"] == "attempt_timeout"
    assert (await engine.kinds(execution.id))[-1] == "retry_scheduled"
    assert (await engine.complete(execution.lease)).word == "not_active"


async def test_without_a_retry_left_the_attempts_timeout_ends_the_execution(engine, make, clock):
    execution = await make.execution("leased", ttl=LONG, policy=TIMEOUT)
    await clock.advance(seconds=60)
    assert (await engine.expire_executions())[0] == 1
    row = await engine.row(execution.id)
    assert (row["public_state"], row["cause"]) == ("expired", "time_out")
    assert row["attempt_ended_as"] == "ended_failure"


async def test_a_lost_lease_costs_no_retry(engine, make, clock):
    execution = await make.execution("expired_lease", policy={**RETRY, **TIMEOUT})
    await clock.advance(hours=1)
    assert (await engine.expire_executions())[0] == 0
    assert (await engine.row(execution.id))["retry_count"] == 0


async def test_a_reclaimed_attempt_has_its_own_time(engine, make, clock):
    execution = await make.execution("leased", lane="a", policy=TIMEOUT)
    await clock.advance(seconds=30)
    await engine.expire()
    await engine.take(execution.id, lanes=["a"], ttl=LONG)
    await clock.advance(seconds=40)
    assert (await engine.expire())[0] == 0
    assert (await engine.expire_executions())[0] == 0
    assert (await engine.row(execution.id))["ownership"] == "leased"
    await clock.advance(seconds=20)
    assert (await engine.expire_executions())[0] == 1


async def test_the_lease_reconciler_leaves_a_passed_deadline_alone(engine, make, clock):
    """Else it would meet the same row again and again, and the deadline would never come."""
    execution = await make.execution("leased", ttl=LONG, deadline=timedelta(hours=1))
    await clock.advance(hours=1)
    assert (await engine.expire())[0] == 0
    assert (await engine.promote())[0] == 0
    assert (await engine.expire_executions())[0] == 1
    assert (await engine.row(execution.id))["public_state"] == "expired"


async def test_a_retry_and_a_promotion_keep_the_deadline(engine, make, clock):
    execution = await make.execution("retry_waiting", deadline=timedelta(hours=1))
    row = await engine.row(execution.id)
    assert row["due_at"] == row["deadline_at"] is not None


async def test_a_back_off_beyond_the_deadline_expires_first(engine, make, clock):
    slow = {"retry_policy": {"max_retries": 1, "backoff": {"type": "fixed", "delay_ms": 9e6}}}
    execution = await make.execution("leased", deadline=timedelta(hours=1), policy=slow)
    await engine.fail(execution.lease)
    await clock.advance(hours=1)
    assert (await engine.expire_executions())[0] == 1
    assert (await engine.row(execution.id))["public_state"] == "expired"


async def test_four_at_once_end_each_execution_once(db, engine, clock):
    route = await engine.register()
    items = [Item(route=route, deadline=timedelta(minutes=1)) for _ in range(40)]
    await engine.submit_many(items)
    await clock.advance(minutes=1)
    others = [Engine(await db.connect()) for _ in range(4)]
    handled = await asyncio.gather(*(other.expire_executions() for other in others))
    assert sum(count for count, _ in handled) == 40
    assert (await engine.kinds()).count("expired") == 40


async def test_a_batch_is_no_larger_than_its_limit(engine, clock):
    route = await engine.register()
    await engine.submit_many([Item(route=route, deadline=timedelta(minutes=1)) for _ in range(5)])
    await clock.advance(minutes=1)
    assert [(await engine.expire_executions(2))[0] for _ in range(4)] == [2, 2, 1, 0]


@pytest.mark.parametrize("limit", [None, 0, -1, 10_001])
async def test_a_limit_that_makes_no_sense_is_refused(engine, limit):
    with refused("WF001", field="limit"):
        await engine.expire_executions(limit)


async def test_an_ended_attempt_keeps_its_failure_when_a_deadline_comes(engine, make, clock):
    """What went wrong is what an operator wants to know."""
    policy = {"retry_policy": {"backoff": {"type": "fixed", "delay_ms": 36_000_000}}}
    execution = await make.execution("leased", deadline=timedelta(hours=1), policy=policy)
    await engine.fail(execution.last_lease, "transient", "smtp down", detail=b"trace of smtp")
    await clock.advance(hours=1)
    await engine.expire_executions()
    row = await engine.row(execution.id)
    assert (row["failure_reason"], row["failure_detail"]) == ("smtp down", b"trace of smtp")
    assert row["public_state"] == "expired"


async def test_an_attempt_timeout_is_judged_by_the_category_it_is_stored_with(engine, make, clock):
    policy = {
        "retry_policy": {"retryable_categories": ["attempt_timeout"]},
        "timeout_policy": {"attempt_timeout_ms": 1000},
    }
    execution = await make.execution("leased", ttl=timedelta(hours=2), policy=policy)
    await clock.advance(seconds=2)
    await engine.expire_executions()
    row = await engine.row(execution.id)
    assert (row["phase"], row["failure_category"]) == ("runnable", "attempt_timeout")
