"""What every call of a client has in common: its time, its retries, its connections."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from flowfabric.client import FlowFabric
from flowfabric.client.events import Feed
from flowfabric.core.errors import (
    InvalidInput,
    LeaseExpired,
    LeaseLost,
    LeaseRevoked,
    RetryExhausted,
    SchemaMismatch,
    StaleLease,
    Unavailable,
)
from flowfabric.core.execution import Failure, Route, Submission
from flowfabric.core.ids import mint
from flowfabric.core.states import FailureClass
from flowfabric.db.functions import Read
from support.factories import TTL, Engine
from worker.waiting import eventually

ROUTE = Route("test", "default", "tests.work")


@pytest.fixture
async def client(db):
    async with FlowFabric(db.url, namespace="test") as client:
        yield client


async def submitted(client, lane="default", **options):
    route = Route("test", lane, "tests.work")
    submission = Submission(id=mint(), route=route, payload=b"null", **options)
    return (await client.executions.submit(submission)).id


async def test_from_claim_over_progress_to_its_only_end(client):
    cursor = await client.events.open()
    id = await submitted(client)
    (held,) = await client.executions.claim(worker_id="w", worker_instance_id="w-1")
    assert (await client.executions.describe(id)).public_state == "active"
    assert (held.epoch, held.attempt) == (1, 1)
    assert held.lease_expires_at > await client.executions.server_time()
    await client.executions.report_progress(held, 30, "read")
    await client.executions.report_progress(held, 60)
    info = await client.executions.describe(id)
    assert (info.progress_percent, info.progress_message) == (60, "read")
    await client.executions.complete(held, b"\x00\xff")
    info = await client.executions.info(id)
    assert (info.phase, info.outcome, info.public_state) == ("terminal", "success", "completed")
    assert await client.executions.result(id) == b"\x00\xff"
    ends = (await client.events.read(cursor, feed=Feed.COMPLETION)).events
    assert [(event.id, event.outcome) for event in ends] == [(id, "success")]


async def test_a_retry_is_kept_when_everybody_who_knew_of_it_is_gone(db, clock):
    """The wait is a row: another client promotes it and goes on."""
    async with FlowFabric(db.url, namespace="test") as first:
        id = await submitted(first, policy='{"retry_policy": {}}')
        (held,) = await first.executions.claim(worker_id="w", worker_instance_id="w-1")
        answer = await first.executions.fail(held, Failure(FailureClass.TRANSIENT, "it broke"))
        assert answer.will_retry
    await db.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where datname = current_database() and application_name like 'flowfabric%'"
    )
    await clock.advance(seconds=1)
    async with FlowFabric(db.url, namespace="test") as second:
        assert (await second.executions.promote_delayed())[0] == 1
        (held,) = await second.executions.claim(worker_id="w", worker_instance_id="w-2")
        assert (held.id, held.attempt_type, held.epoch) == (id, "retry", 2)


async def test_an_empty_poll_is_one_statement(client):
    await client.lanes.register(Route("test", "default", "tests.work"))
    meter = client.database.meter
    before = sum(operation.calls for operation in meter.operations.values())
    assert await client.executions.claim(worker_id="w", worker_instance_id="w-1") == []
    assert sum(operation.calls for operation in meter.operations.values()) == before + 1


async def claimed(client, **options):
    route = Route("test", "default", "tests.work")
    await client.executions.submit(Submission(id=mint(), route=route, payload=b"", **options))
    (one,) = await client.executions.claim(worker_id="w", worker_instance_id="w-1", lease_ttl=TTL)
    return one


async def test_a_lost_lease_is_final_and_says_which_way(client, engine, clock):
    """A worker can tell that it must stop: none of these is worth another try."""
    stale, expired, revoked = [await claimed(client) for _ in range(3)]
    await clock.advance(TTL / 2)
    assert await client.leases.renew([stale, revoked], TTL) == ({}, [])
    await clock.advance(TTL / 2)
    assert not issubclass(LeaseLost, Unavailable)
    await client.leases.revoke(stale.id)
    assert len(await Engine.of(engine.connection, stale.id).claim(1)) == 1
    await client.leases.revoke(revoked.id)
    for held, error in ((stale, StaleLease), (expired, LeaseExpired), (revoked, LeaseRevoked)):
        with pytest.raises(error):
            await client.executions.complete(held, b"1")
        lost, busy = await client.leases.renew([held], TTL)
        assert ({one: type(why) for one, why in lost.items()}, busy) == ({held: error}, [])


async def test_conflicts_are_tried_again_and_refusals_are_not(db, client):
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
    text = "select ff_test.moody($1, $2)"
    moody = Read("moody", ("state", "times"), ("moody",), text, "moody")

    async def ask(state, times):
        await db.execute("alter sequence ff_test.calls restart")
        try:
            return (await client.database.call(moody, state=state, times=times))[0][0]
        except Exception as error:
            calls = await db.fetchval("select last_value from ff_test.calls")
            return type(error), calls

    for conflict in ("40001", "40P01"):
        assert await ask(conflict, 2) == 3
        assert await ask(conflict, 3) == (RetryExhausted, 3)
    assert await ask("WF101", 1) == (StaleLease, 1)
    assert await ask("23505", 1) == (InvalidInput, 1)


async def test_every_time_is_the_database_s(db, clock):
    """Seven years ahead of this process: nothing of its own clock is written or compared."""
    now = await clock.freeze(await clock.now() + timedelta(days=7 * 365))
    async with FlowFabric(db.url, namespace="test") as client:
        id = (
            await client.executions.submit(
                Submission(id=mint(), route=ROUTE, payload=b"", deadline=timedelta(hours=1))
            )
        ).id
        (held,) = await client.executions.claim(
            worker_id="w", worker_instance_id="w-1", lease_ttl=TTL
        )
        assert held.lease_expires_at == now + TTL
        await client.executions.complete(held, b"1")
        info = await client.executions.describe(id)
        assert {info.created_at, info.started_at, info.terminal_at} == {now}
        assert info.deadline_at == now + timedelta(hours=1)
        assert {event.occurred_at for event in await client.executions.events(id)} == {now}
        assert await client.executions.server_time() == now


async def test_a_client_looks_at_the_schema_before_it_starts(db):
    db.leave_broken("the ledger says that a step is missing")
    last = "select max(step) from ff.schema_step"
    await db.execute(f"delete from ff.schema_step where step = ({last})")
    with pytest.raises(SchemaMismatch, match="flowfabric db migrate"):
        async with FlowFabric(db.url):
            pass


async def test_closing_ends_the_connections_as_well(db):
    async with FlowFabric(db.url, namespace="test") as client:
        await client.executions.submit(Submission(id=mint(), route=ROUTE, payload=b""))
        follower = asyncio.create_task(anext(aiter(client.events.follow())))
        await asyncio.sleep(0)
        assert await db.others() > 0
        follower.cancel()
        await asyncio.wait([follower])
    await eventually(lambda: _is_alone(db))


async def _is_alone(db):
    return await db.others() == 0
