"""Workers on a distributed database: drains with kills, flows, sleeps, `via=`, schedules, and the
events of all of it while a shard moves."""

from __future__ import annotations

import asyncio
import secrets
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import asyncpg
import pytest

from faults.workers import Fleet
from flowfabric import App, Context
from flowfabric.client import FlowFabric
from support.admission import Admission
from support.factories import NAMESPACE, Engine, Item
from worker.apps import working

from .conftest import PARTITIONS
from .events import Seen, all_events, out_of_order

TASKS = """
import asyncio
import secrets
from datetime import timedelta
from flowfabric import App, Context

app = App(name="shop")


@app.task(name="quick")
async def quick(ctx: Context, n: int) -> list[int]:
    await asyncio.sleep(0.01)
    return [n, ctx.attempt]
"""


def make_app(url, **settings):
    app = App(database_url=url, name="shop", **settings)

    @app.task(name="quick")
    async def quick(ctx: Context, n: int) -> list[int]:
        await asyncio.sleep(0.01)
        return [n, ctx.attempt]

    @app.task(name="add")
    async def add(left: list[int], right: list[int]) -> int:
        return left[0] + right[0]

    @app.task(name="sleepy")
    async def sleepy(ctx: Context, n: int) -> int:
        first = await ctx.step("first", lambda: n + 1)
        await ctx.sleep(0.2)
        child = await ctx.submit(quick, first)
        return (await child.result())[0] + 1

    return app, quick, add, sleepy


async def ended(connection, task="quick"):
    return await connection.fetchval(
        "select count(*) from ff.execution e join ff.route r on r.route_id = e.route_id"
        " where r.task = $1 and e.phase = 'terminal'",
        task,
    )


async def count_of(items):
    return len(items)


async def until(count, wanted):
    """Look every 0.1 s; a real cluster has no clock that a test could set."""
    while await count() < wanted:  # noqa: ASYNC110
        await asyncio.sleep(0.1)


async def move_a_shard(connection):
    """Move one shard of ff.execution, and those beside it, to another node; None with one node."""
    found = await connection.fetchrow(
        "select p.shardid, d.nodename, d.nodeport, o.nodename as to_name, o.nodeport as to_port"
        " from pg_dist_shard s join pg_dist_placement p on p.shardid = s.shardid"
        " join pg_dist_node d on d.groupid = p.groupid"
        " join pg_dist_node o on o.groupid <> p.groupid and o.shouldhaveshards"
        " where s.logicalrelid = 'ff.execution'::regclass"
        "   and s.shardid = get_shard_id_for_distribution_column('ff.execution', 3::smallint)"
        " limit 1"
    )
    if found is None:
        return None
    await connection.execute(
        "select citus_move_shard_placement($1, $2, $3, $4, $5, 'block_writes')", *found
    )
    return found


async def test_workers_that_are_killed_lose_nothing_and_do_nothing_twice(
    cluster_database, coordinator, crews, tmp_path
):
    count = 400
    app, quick, *_ = make_app(cluster_database.url)
    async with app:
        # A batch of 100 goes to the next partition, however fast the calls are.
        runs = [
            run
            for n in range(0, count, 100)
            for run in await quick.submit_many([(n + m,) for m in range(100)])
        ]
        assert len({run.id.partition_key for run in runs}) > 1
        fleet = Fleet(tmp_path, cluster_database.url, 3, concurrency=20, lease=5.0, tasks=TASKS)
        crews.append(fleet)
        await fleet.until_started()
        moved = False
        async with asyncio.timeout(300):
            while (done := await ended(coordinator)) < count:
                fleet.kill(done % 3)
                if done > count // 3 and not moved:
                    moved = True
                    await move_a_shard(coordinator)
                await asyncio.sleep(3)
        assert [(await run.result(timeout=60))[0] for run in runs] == list(range(count))
        events, _ = await all_events(await app.client())
    ends = [event for event in events if event.kind == "completed"]
    assert len(ends) == len({event.execution for event in ends}) == count
    assert len({event.key for event in events}) == len(events), "an event was delivered twice"
    assert out_of_order(events) == []
    stored = await coordinator.fetchval("select count(*) from ff.event")
    assert len(events) == stored


async def test_flows_sleeps_children_and_steps(cluster_database):
    app, quick, add, sleepy = make_app(cluster_database.url)
    async with app, working(app, concurrency=20):
        flows = []
        for n in range(10):
            async with app.flow(f"sum-{n}") as flow:
                left, right = flow.add(quick, n), flow.add(quick, n + 1)
                flow.add(add, left.result, right.result)
            flows.append((n, flow.run))
        sleeping = [(n, await sleepy.submit(n)) for n in range(10)]
        for n, run in flows:
            assert await run.result(timeout=120) == 2 * n + 1
        for n, run in sleeping:
            assert await run.result(timeout=120) == n + 2


async def test_a_transactional_submit_commits_and_rolls_back_with_its_transaction(
    cluster_database, coordinator
):
    await coordinator.execute("create table orders (id integer)")
    app, quick, add, _ = make_app(cluster_database.url)
    caller = await asyncpg.connect(cluster_database.url)
    async with app, working(app, concurrency=5):
        async with caller.transaction():
            await caller.execute("insert into orders values (1)")
            kept = [await quick.using(via=caller).submit(n, key=f"k-{n}") for n in range(10)]
        transaction = caller.transaction()
        await transaction.start()
        await caller.execute("insert into orders values (2)")
        lost = await quick.using(via=caller).submit(99)
        await transaction.rollback()
        assert [(await run.result(timeout=60))[0] for run in kept] == list(range(10))
        async with caller.transaction():
            again = [await quick.using(via=caller).submit(n, key=f"k-{n}") for n in range(10)]
            async with app.flow("sum", via=caller) as flow:
                flow.add(add, flow.add(quick, 1).result, flow.add(quick, 2).result)
        assert [run.id for run in again] == [run.id for run in kept]
        assert await flow.run.result(timeout=60) == 3
        assert await caller.fetch("select id from orders") == [(1,)]
        found = await coordinator.fetchval(
            "select count(*) from ff.execution where partition_key = $1 and execution_id = $2",
            lost.id.partition_key,
            lost.id.uuid,
        )
        assert found == 0
    await caller.close()


async def test_a_schedule_fires_each_time_once(cluster_database, coordinator):
    app, quick, *_ = make_app(cluster_database.url)
    app.every(timedelta(seconds=1), args=(7,))(quick)
    async with app, working(app, concurrency=5):
        async with asyncio.timeout(60):
            await until(lambda: ended(coordinator), 3)
    rows = await coordinator.fetch("select execution_id from ff.execution")
    assert len(rows) == len(set(rows)) >= 3


async def test_a_follower_does_not_notice_that_a_shard_moves(cluster_database, coordinator):
    app, quick, *_ = make_app(cluster_database.url)
    seen = []
    async with app, working(app, concurrency=10):
        client = await app.client()
        cursor = await client.events.open(since=datetime(2020, 1, 1, tzinfo=UTC))

        async def follow():
            async for event in client.events.follow(cursor):
                seen.append(Seen(str(event.id), event.version, str(event.kind)))  # noqa: PERF401

        following = asyncio.create_task(follow())
        runs = [await quick.submit(n) for n in range(100)]
        for run in runs[:50]:
            await run.result(timeout=60)
        if await move_a_shard(coordinator) is None:
            pytest.skip("the cluster has one node")
        runs += [await quick.submit(n) for n in range(100)]
        for run in runs:
            await run.result(timeout=60)
        async with asyncio.timeout(30):
            await until(lambda: count_of(seen), 600)
        following.cancel()
    assert len(seen) == len(set(seen)) == 600
    generations = await coordinator.fetch(
        "select distinct generation from ff.event_generation order by 1"
    )
    assert len(generations) == 2, "the partitions of the moved shard have a new generation"
    assert out_of_order(seen) == []


async def test_the_feed_of_signals_goes_on_after_a_shard_has_moved(cluster_database, coordinator):
    app, quick, *_ = make_app(cluster_database.url)
    async with app:
        client = await app.client()
        runs = await quick.using(delay=timedelta(hours=1)).submit_many([(n,) for n in range(32)])

        async def send(number: int) -> set[str]:
            for run in runs:
                await run.signal("note", number)
            return {run.id for run in runs}

        async def read(cursor: str | None) -> tuple[list[str], str]:
            found = []
            while (page := await client.signals.feed(cursor))[0]:
                found += [str(signal.execution_id) for signal in page[0]]
                cursor = page[1]
            return found, cursor

        first = await send(1)
        found, cursor = await read(None)
        assert (len(found), set(found)) == (32, first)
        if await move_a_shard(coordinator) is None:
            pytest.skip("the cluster has one node")
        second = await send(2)
        found, _ = await read(cursor)
        assert (len(found), set(found)) == (32, second)
        assert len((await read(None))[0]) == 64


async def test_an_execution_is_in_the_partition_of_its_id(cluster_database):
    app, quick, *_ = make_app(cluster_database.url)
    async with app:
        runs = [await quick.submit(n) for n in range(64)]
        client = await app.client()
        for run in runs[::8]:
            assert (await client.executions.describe(run.id)).id == run.id
        assert (await client.executions.count()).number == 64
    assert {run.id.partition_key for run in runs} <= set(range(PARTITIONS))


async def test_urgent_work_of_any_node_comes_first(cluster_database, coordinator):
    """One query over all nodes returns the rank of the work, also of work in line."""
    ready = {partition: 9000 - partition for partition in range(5)}
    async with FlowFabric(cluster_database.url, namespace=NAMESPACE) as client:
        for partition in ready:
            await Engine(coordinator, partition_key=partition).submit(Item(priority=partition))
        assert await client.executions.find_work() == ready
        claimed = await client.executions.claim(worker_id="w", worker_instance_id="w-1", limit=3)
        assert [one.partition_key for one in claimed] == [4, 3, 2]

        engine = Engine(coordinator, partition_key=5)
        admission = Admission(engine)
        gate = await admission.quota(concurrency=PARTITIONS)  # one in each partition
        await admission.submit(3, quotas=[gate])
        (lease,) = await engine.claim(3)
        assert await client.executions.find_work() == {0: 9000, 1: 8999}
        await engine.complete(lease)
        assert await client.executions.find_work() == {0: 9000, 1: 8999, 5: 9000}
        await client.quotas.sweep()
        assert await client.executions.find_work() == {0: 9000, 1: 8999, 5: 9000}


async def test_a_key_is_found_in_its_partition(cluster_database):
    app, quick, *_ = make_app(cluster_database.url)
    async with app:
        first = [await quick.submit(n, key=f"order-{n}") for n in range(20)]
        again = [await quick.submit(n, key=f"order-{n}") for n in range(20)]
    assert [run.id for run in again] == [run.id for run in first]
    assert len({run.id.partition_key for run in first}) > 1


async def test_a_role_of_an_application_can_work(cluster_database, coordinator):
    """It may read neither tables nor shards, only call functions and see the installation."""
    name = f"ff_test_{secrets.token_hex(4)}"
    await coordinator.execute(f"create role {name} login password 'x' in role flowfabric_app")
    parts = urlsplit(cluster_database.url)
    host = parts.netloc.rpartition("@")[2]
    app, quick, *_ = make_app(parts._replace(netloc=f"{name}:x@{host}").geturl())
    try:
        async with app, working(app, concurrency=5):
            runs = [await quick.submit(n) for n in range(20)]
            assert [(await run.result(timeout=60))[0] for run in runs] == list(range(20))
    finally:
        await coordinator.execute(f"drop role {name}")
