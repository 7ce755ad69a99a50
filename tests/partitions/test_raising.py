"""`ff.raise_partitions` and `flowfabric db partitions`: up, never down, and after a rest."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
import pytest

from flowfabric import App, Context
from flowfabric.client import FlowFabric
from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import DEFAULT_NAMESPACE
from flowfabric.core.ids import key_partition
from flowfabric.db.partitions import Numbers
from races.crowd import until_blocked
from support.admission import Admission
from support.factories import NAMESPACE, Engine, Item, refused
from worker.apps import working

# A key that has another partition when there are eight.
KEY = "order 1"
PLACE = key_partition(DEFAULT_NAMESPACE, KEY, 8)
assert PLACE != 0


@pytest.fixture
async def fresh(db):
    """A database with as few partitions as there can be."""
    if await db.fetchval("select partitions from ff.installation") > 1:
        pytest.skip("the template has several partitions")
    return db


@pytest.fixture
async def client(fresh):
    async with FlowFabric(fresh.url, namespace=NAMESPACE) as client:
        yield client


async def numbers(db) -> tuple[int, int, int]:
    row = await db.fetchrow(
        "select partitions, minted_partitions, keyed_partitions from ff.installation"
    )
    return tuple(row)


async def test_an_unused_database_uses_its_partitions_at_once(client, fresh):
    answer = await client.partitions.raise_to(8)
    assert (answer.partitions, answer.minted, answer.keyed) == (8, 8, 8)
    assert answer.grace_left == timedelta(0)
    assert client.database.partitions.numbers.minted == 8
    assert await fresh.fetchval("select count(*) from ff.partition") == 8


async def test_new_ids_use_a_raised_number_after_a_rest_and_keys_do_not(client, fresh, engine):
    await engine.submit()
    answer = await client.partitions.raise_to(8)
    assert (answer.partitions, answer.minted, answer.keyed) == (8, 1, 1)
    assert timedelta(seconds=25) < answer.grace_left <= timedelta(seconds=30)
    again = await client.partitions.raise_to(8)
    assert (again.partitions, again.minted, again.keyed) == (8, 1, 1)
    await client.partitions.raise_to(16, grace=timedelta(0))
    assert await numbers(fresh) == (16, 16, 1)
    await client.partitions.raise_to(16, keys=True)
    assert await numbers(fresh) == (16, 16, 16)


async def test_a_second_raise_during_the_rest_keeps_the_number_in_use(client, fresh, engine):
    await engine.submit()
    await client.partitions.raise_to(4)
    await client.partitions.raise_to(8)
    assert await numbers(fresh) == (8, 1, 1)


async def test_the_number_is_never_lowered(client, fresh):
    await client.partitions.raise_to(8)
    with pytest.raises(InvalidInput, match="can only be raised") as caught:
        await client.partitions.raise_to(4)
    assert caught.value.field == "partitions"
    assert await numbers(fresh) == (8, 8, 8)


async def test_the_number_of_keys_is_not_raised_while_a_key_is_stored(client, fresh, engine):
    await engine.submit(key="one", fingerprint=b"")
    with pytest.raises(InvalidInput, match="would not be found") as caught:
        await client.partitions.raise_to(8, keys=True)
    assert caught.value.field == "keys"
    assert await numbers(fresh) == (1, 1, 1)


@pytest.mark.parametrize("number", [0, -1, 32_768, None])
async def test_an_impossible_number_is_refused(fresh, number):
    with refused("WF001", field="partitions"):
        await fresh.fetch("select * from ff.raise_partitions($1)", number)


@pytest.mark.parametrize("grace", [timedelta(seconds=-1), timedelta(days=1, seconds=1), None])
async def test_an_impossible_grace_is_refused(fresh, grace):
    with refused("WF001", field="grace"):
        await fresh.execute("select ff.raise_partitions(8, p_grace => $1)", grace)
    assert await numbers(fresh) == (1, 1, 1)


@pytest.mark.parametrize("kinds", [["nonsense"], ["timer", None], None])
async def test_a_kind_of_due_work_that_does_not_exist_is_refused(fresh, kinds):
    with refused("WF001", field="kinds"):
        await fresh.fetch("select * from ff.find_due($1)", kinds)


class Caller:
    """A process that submits with a key. It may know an old number of partitions."""

    def __init__(self, app: App, url: str) -> None:
        self.app = app
        self.url = url

        @app.task(name="shop.charge")
        async def charge(n: int) -> int:
            return n

        self.charge = charge

    async def forget(self) -> None:
        """Know one partition, as if the number had been read just before it was raised."""
        (await self.app.client()).database.partitions.note(Numbers())

    async def keyed(self) -> int:
        return (await self.app.client()).database.partitions.numbers.keyed

    async def submit(self, way: str) -> Any:
        match way:
            case "single":
                return await self.charge.submit(7, key=KEY)
            case "many":
                runs = await self.charge.submit_many([(1,), (7,)], keys=["other", KEY])
                return runs[1]
            case "via":
                connection = await asyncpg.connect(self.url)
                try:
                    async with connection.transaction():
                        return await self.charge.submit(7, key=KEY, via=connection)
                finally:
                    await connection.close()
            case "via, in a thread":
                return await asyncio.to_thread(self._submit_in_thread)

    def _submit_in_thread(self) -> Any:
        # Threads share a client of their own.
        self.app.portal.call(self.forget, "")
        with psycopg.connect(self.url) as connection:
            run = self.charge.submit_sync(7, key=KEY, via=connection)
        assert self.app.portal.call(self.keyed, "") == 8
        return run


@pytest.fixture
async def callers(fresh):
    async with AsyncExitStack() as stack:
        apps = [await stack.enter_async_context(App(database_url=fresh.url)) for _ in range(2)]
        yield [Caller(app, fresh.url) for app in apps]


@pytest.mark.parametrize(
    ("way", "is_stale_first"),
    [
        ("single", True),
        ("single", False),
        ("many", True),
        ("via", False),
        ("via, in a thread", True),
    ],
)
async def test_a_key_is_one_execution_though_one_process_knows_an_old_number(
    callers, client, fresh, way, is_stale_first
):
    stale, current = callers
    await client.partitions.raise_to(8)
    if not is_stale_first:
        first = await current.submit("single")
    await stale.forget()
    late = await stale.submit(way)
    if is_stale_first:
        first = await current.submit("single")
    assert late.id == first.id
    assert (late.is_duplicate, first.is_duplicate) == (not is_stale_first, is_stale_first)
    assert first.id.partition_key == PLACE
    stored = await fresh.fetch("select partition_key from ff.idempotency_key where key = $1", KEY)
    assert [row["partition_key"] for row in stored] == [PLACE]
    if way != "via, in a thread":
        assert await stale.keyed() == 8


async def test_a_process_that_knows_an_old_number_finds_an_execution_by_its_key(callers, client):
    stale, current = callers
    await client.partitions.raise_to(8)
    run = await current.submit("single")
    await stale.forget()
    assert (await stale.app.get_by_key(KEY)).id == run.id
    await stale.forget()
    assert await (await stale.app.client()).executions.find_by_key("unused") is None


async def test_an_outdated_number_is_refused_and_nothing_is_stored(fresh, engine):
    await fresh.execute("select ff.raise_partitions(8)")
    item = Item(key="k", fingerprint=b"", key_partitions=1)
    answer, other = await engine.submit_many([item, Item()])
    assert (answer.word, answer.detail["field"]) == ("invalid", "key_partitions")
    assert "keys use 8 partitions now" in answer.detail["problem"]
    assert other.word == "created"
    assert await fresh.fetchval("select count(*) from ff.idempotency_key") == 0
    assert len(await engine.rows()) == 1


async def test_the_repeat_of_a_stored_submit_is_a_duplicate_though_keys_moved(fresh, engine):
    # The key has no window, so it is not stored, and the number may be raised.
    item = Item(key="k", fingerprint=b"", key_partitions=1, window=timedelta(0))
    first = await engine.submit(item)
    await fresh.execute("select ff.raise_partitions(8, p_keys => true)")
    again = await engine.submit(item, id=first.id)
    assert (again.word, again.id) == ("duplicate", first.id)


# What `flowfabric db distribute` does before it raises the number, and the node of this server.
DISTRIBUTED = """
create or replace function ff._node_id() returns integer language sql stable as 'select 1';
insert into ff.meta (name, value) values ('distributed', 'true');
select ff._raise_generation(g.n::smallint, 1) from generate_series(0, 7) g(n);
"""


@pytest.fixture(params=[False, True], ids=["plain", "distributed"])
async def either(fresh, request):
    """A database, plain or marked as distributed, whose raises wait for locks."""
    # On a busy machine, a test may take longer than the two seconds of the function.
    await fresh.execute("alter function ff.raise_partitions set lock_timeout = '60s'")
    if request.param:
        await fresh.execute(DISTRIBUTED)
    return fresh


async def test_the_number_of_keys_is_raised_after_open_submits_or_not_at_all(either):
    """The raise waits for a transaction that has submitted with a key. Then it finds the key."""
    writer, raiser = Engine(await either.connect()), Engine(await either.connect())
    raising = None
    async with writer.connection.transaction():
        await writer.submit(Item(key="k", fingerprint=b"", key_partitions=1))
        raising = asyncio.ensure_future(raiser.connection.execute("select ff.raise_partitions(8)"))
        await until_blocked(either, raiser, raising)
    await raising
    assert (await numbers(either))[2] == 1


async def test_a_gate_of_an_open_transaction_gets_shares_when_the_number_is_raised(either):
    """The raise waits for a transaction that makes a gate. Then it gives each partition a share."""
    writer, raiser = Engine(await either.connect()), Engine(await either.connect())
    raising = None
    async with writer.connection.transaction():
        await Admission(writer).quota(concurrency=1)
        raising = asyncio.ensure_future(raiser.connection.execute("select ff.raise_partitions(8)"))
        await until_blocked(either, raiser, raising)
    await raising
    assert await either.fetchval("select count(*) from ff.gate_share") == 8


async def test_a_transaction_with_an_old_snapshot_cannot_use_the_old_number(fresh):
    engine = Engine(await fresh.connect())
    route = await engine.register()
    async with engine.connection.transaction(isolation="repeatable_read"):
        await engine.connection.fetchval("select count(*) from ff.installation")
        await fresh.execute("select ff.raise_partitions(8)")
        with pytest.raises(asyncpg.SerializationError):
            await engine.submit(Item(route=route, key="k", fingerprint=b"", key_partitions=1))


async def test_children_of_parents_in_several_partitions_share_a_key(fresh, engine):
    """Keys use one partition, and executions use eight, as after a raise of a used database."""
    await engine.submit()
    await fresh.execute("select ff.raise_partitions(8, p_grace => '0')")
    assert await numbers(fresh) == (8, 8, 1)
    async with App(database_url=fresh.url) as app:

        @app.task
        async def child(n: int) -> int:
            return n

        @app.task
        async def parent(ctx: Context, n: int) -> str:
            return str((await ctx.submit(child.using(key="shared"), 7)).id)

        await (await app.client()).partitions.numbers()
        parents = []
        while len({run.id.partition_key for run in parents}) < 2:
            # So many together use the next partition.
            parents += await parent.submit_many([(n,) for n in range(100)])
        async with working(app, concurrency=20):
            ids = [await run.result(timeout=60) for run in (parents[0], parents[-1])]
        assert ids[0] == ids[1]


async def test_citus_can_copy_every_table_to_a_new_node_while_work_goes_on(db):
    """It copies changes by logical replication, so it must be able to identify each row."""
    rows = await db.fetch(
        "select c.relname from pg_class c where c.relnamespace = 'ff'::regnamespace "
        "and c.relkind = 'r' and c.relreplident <> 'f' "
        "and not exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary)"
    )
    assert [row["relname"] for row in rows] == []
