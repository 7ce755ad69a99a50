"""Defects D-90 to D-98: tables, clocks, versions and shutdown."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from flowfabric.client import FlowFabric
from flowfabric.core.errors import SchemaMismatch
from flowfabric.core.execution import Route, Submission
from flowfabric.core.ids import ExecutionId, mint
from flowfabric.db import functions
from support.factories import TTL, Engine
from worker.waiting import eventually

ROUTE = Route("test", "default", "tests.work")


async def test_d90_tables_are_plain_and_few(db):
    rows = await db.fetch(
        "select relname, relkind, relispartition from pg_class "
        "where relnamespace = 'ff'::regnamespace and relkind in ('r', 'p')"
    )
    assert {(bytes(row["relkind"]), row["relispartition"]) for row in rows} == {(b"r", False)}
    assert len(rows) < 50


@pytest.mark.parametrize("number", [0, 255, 32_766])
async def test_d91_a_high_partition_works_like_the_first(db, number):
    await db.execute("update ff.meta set value = $1 where name = 'partitions'", str(number + 1))
    engine = Engine(db.conn, partition_key=number)
    submitted = await engine.submit()
    assert (await engine.row(submitted.id))["partition_key"] == number
    async with FlowFabric(db.url, namespace="test") as client:
        (held,) = await client.executions.claim(
            worker_id="w", worker_instance_id="w-1", partition=number
        )
        assert held.id == ExecutionId.of(number, submitted.id)
        await client.executions.complete(held, b"1")
        assert await client.executions.result(held.id) == b"1"


async def test_d92_every_time_is_the_database_s(db, clock):
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


async def test_d93_a_client_looks_at_the_schema_before_it_starts(db):
    db.leave_broken("the ledger says that a step is missing")
    last = "select max(step) from ff.schema_step"
    await db.execute(f"delete from ff.schema_step where step = ({last})")
    with pytest.raises(SchemaMismatch, match="flowfabric db migrate"):
        async with FlowFabric(db.url):
            pass


async def test_d94_what_the_engine_knows_is_in_columns_of_its_types(db):
    found = {
        row["name"]: row["type"]
        for row in await db.fetch(
            "select attname as name, format_type(atttypid, atttypmod) as type from pg_attribute "
            "where attrelid = 'ff.execution'::regclass and attnum > 0 and not attisdropped"
        )
    }
    counters = ("retry_count", "replay_count", "reclaim_count", "total_attempt_count")
    assert {found[name] for name in counters} == {"integer"}
    times = [name for name in found if name.endswith("_at") or name == "delayed_until"]
    assert {found[name] for name in times} == {"timestamp with time zone"}
    assert found["progress_percent"] == "smallint"
    assert not {"json", "jsonb"} & set(found.values())


async def test_d95_what_the_database_can_do_the_client_offers(db):
    """Nothing has to be switched on, or said to be there: a binding for every function."""
    there = {
        row["proname"]
        for row in await db.fetch(
            "select proname from pg_proc where pronamespace = 'ff'::regnamespace "
            "and proname !~ '^_' and proname <> 'now'"
        )
    }
    assert there == {function.name for function in functions.FUNCTIONS}
    assert {"issue_reclaim_grant", "reclaim_execution"} <= there


async def test_d98_closing_ends_the_connections_as_well(db):
    async with FlowFabric(db.url, namespace="test") as client:
        await client.executions.submit(Submission(id=mint(), route=ROUTE, payload=b""))
        follower = asyncio.create_task(anext(aiter(client.events.follow())))
        await asyncio.sleep(0)
        assert await _connections(db) > 0
        follower.cancel()
        await asyncio.wait([follower])
    await eventually(lambda: _is_alone(db))


async def _is_alone(db):
    return await _connections(db) == 0


async def _connections(db):
    return await db.fetchval(
        "select count(*) from pg_stat_activity "
        "where datname = current_database() and pid <> pg_backend_pid()"
    )
