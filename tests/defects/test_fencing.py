"""Defects D-20 to D-28: epochs, fences, repeats, and what a refusal is called."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from flowfabric.client import FlowFabric
from flowfabric.core.errors import (
    InvalidInput,
    LeaseExpired,
    LeaseLost,
    LeaseRevoked,
    RetryExhausted,
    StaleLease,
    Unavailable,
)
from flowfabric.core.execution import Failure, Route, Submission
from flowfabric.core.ids import mint
from flowfabric.core.states import FailureClass
from flowfabric.db.functions import Read
from support.factories import TTL, Engine

RETRIES = {"retry_policy": {"max_retries": 5, "backoff": {"type": "fixed", "delay_ms": 0}}}


@pytest.fixture
async def client(db):
    async with FlowFabric(db.url, namespace="test") as client:
        yield client


async def claimed(client, **options):
    route = Route("test", "default", "tests.work")
    await client.executions.submit(Submission(id=mint(), route=route, payload=b"", **options))
    (one,) = await client.executions.claim(worker_id="w", worker_instance_id="w-1", lease_ttl=TTL)
    return one


async def test_d20_the_epoch_rises_over_attempts_and_never_starts_again(engine, clock):
    """Retry, resume, reclaim, revoke, cancel and replay: one counter for the execution."""
    submitted = await engine.submit(policy=RETRIES)
    epochs = []

    async def take():
        await engine.promote()
        lease = await engine.take(submitted.id)
        epochs.append(lease.epoch)
        return lease

    await engine.fail(await take())
    await engine.release(await take())
    await take()
    await clock.advance(TTL)
    await engine.expire()
    await take()
    await engine.revoke(submitted.id)
    await take()
    await engine.cancel(submitted.id)
    await engine.replay(submitted.id)
    await engine.complete(await take())
    assert epochs == [1, 2, 3, 4, 6, 8]
    assert (await engine.row(submitted.id))["attempt_index"] == 4


async def test_d22_a_repeated_end_changes_neither_the_result_nor_the_log(engine, make):
    execution = await make.execution("leased")
    lease = execution.last_lease
    assert (await engine.complete(lease, b"first")).word == "completed"
    before = await engine.snapshot()
    assert (await engine.complete(lease, b"second")).word == "completed"
    assert (await engine.fail(lease)).word == "not_active"
    assert await engine.snapshot() == before
    assert (await engine.row(execution.id))["result"] == b"first"
    assert (await engine.kinds(execution.id)).count("completed") == 1


async def test_d22_a_repeated_failure_ends_it_once(engine, make):
    execution = await make.execution("leased")
    for _ in range(3):
        assert (await engine.fail(execution.last_lease, "permanent")).word == "failed"
    assert (await engine.kinds(execution.id)).count("failed") == 1


async def test_d25_a_lost_lease_is_final_and_says_which_way(client, engine, clock):
    """A worker can tell that it must stop: none of these is worth another try."""
    stale, expired, revoked = [await claimed(client) for _ in range(3)]
    await clock.advance(TTL / 2)
    assert await client.leases.renew([stale, revoked], TTL) == ([], [])
    await clock.advance(TTL / 2)
    assert not issubclass(LeaseLost, Unavailable)
    await client.leases.revoke(stale.id)
    assert len(await engine.claim(1)) == 1
    await client.leases.revoke(revoked.id)
    for held, error in ((stale, StaleLease), (expired, LeaseExpired), (revoked, LeaseRevoked)):
        with pytest.raises(error):
            await client.executions.complete(held, b"1")
        assert await client.leases.renew([held], TTL) == ([held], [])


async def test_d26_conflicts_are_tried_again_and_refusals_are_not(db, client):
    """Each call draws a number that no rollback gives back: so we know how often it was made."""
    await db.execute("create sequence ff_test.calls")
    await db.execute("""
        create function ff_test.moody(p_state text, p_times bigint) returns bigint
        language plpgsql as $$
        declare v_call bigint := nextval('ff_test.calls');
        begin
          if v_call <= p_times then
            raise exception using errcode = p_state, detail = '{"field": "x", "problem": "y"}';
          end if;
          return v_call;
        end $$""")
    moody = Read("moody", "moody", "select ff_test.moody($1, $2)")

    async def ask(state, times):
        await db.execute("alter sequence ff_test.calls restart")
        try:
            return (await client.database.call(moody, state, times))[0][0]
        except Exception as error:
            calls = await db.fetchval("select last_value from ff_test.calls")
            return type(error), calls

    for conflict in ("40001", "40P01"):
        assert await ask(conflict, 2) == 3
        assert await ask(conflict, 3) == (RetryExhausted, 3)
    assert await ask("WF101", 1) == (StaleLease, 1)
    assert await ask("23505", 1) == (InvalidInput, 1)


async def test_d27_the_caller_s_clock_decides_nothing(client, clock):
    """What ran out by the database's clock is over, whatever time it is here."""
    first, second = await claimed(client), await claimed(client)
    await clock.advance(TTL)
    with pytest.raises(LeaseExpired):
        await client.executions.complete(first, b"1")
    with pytest.raises(LeaseExpired):
        await client.executions.fail(second, Failure(FailureClass.PERMANENT, "it broke"))
    for held in (first, second):
        assert (await client.executions.info(held.id)).ownership == "lease_expired_reclaimable"


async def test_d27_one_millisecond_late_is_late_and_one_early_is_not(engine, make, clock):
    await clock.freeze()
    late, early = await make.execution("leased"), await make.execution("leased")
    await clock.advance(TTL - timedelta(milliseconds=1))
    assert (await engine.complete(early.last_lease)).word == "completed"
    await clock.advance(milliseconds=2)
    assert (await engine.complete(late.last_lease)).word == "lease_expired"
    assert (await engine.row(late.id))["ownership"] == "lease_expired_reclaimable"
    assert (await engine.kinds(late.id))[-1] == "lease_expired"


async def test_d28_opposite_operations_on_the_same_rows_never_deadlock(db, engine, make, clock):
    """Holders, operators and reconcilers on the same ten executions, all at once, ten times."""
    crowd = [Engine(await db.connect()) for _ in range(6)]
    for _ in range(10):
        policy = RETRIES | {"timeout_policy": {"attempt_timeout_ms": 3_600_000}}
        executions = [
            await make.execution(
                "leased", policy=policy, deadline=timedelta(hours=1), ttl=timedelta(hours=2)
            )
            for _ in range(10)
        ]
        leases = [execution.last_lease for execution in executions]
        await clock.advance(hours=1)
        calls = [
            crowd[0].complete_many(leases),
            crowd[1].fail_many(leases[::-1], ["transient"] * 10, ["no"] * 10),
            crowd[2].expire_executions(),
            crowd[3].expire(),
            _all(crowd[4].cancel, executions),
            _all(crowd[5].revoke, executions[::-1]),
        ]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [answer for answer in answers if _is_deadlock(answer)] == []
        for execution in executions:
            kinds = await engine.kinds(execution.id)
            assert (
                sum(kind in ("completed", "failed", "cancelled", "expired") for kind in kinds) == 1
            )


async def _all(call, executions):
    for execution in executions:
        try:
            await call(execution.id)
        except Exception as error:
            if _is_deadlock(error):
                raise


def _is_deadlock(answer):
    return getattr(answer, "sqlstate", None) in ("40P01", "40001", "55P03")
