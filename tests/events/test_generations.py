"""A partition moves to another server: transaction numbers fall, event ids overlap, and the feed
goes on without a gap."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta

import pytest

from support.factories import refused

from .log import Reader, assert_in_order
from .test_open_cursor import waits

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
T0 = datetime(2030, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)

# How far the new server's numbers lie behind: far, so that they overlap, and not at all.
SHIFTS = [1_000_000, 4, 0]

ON_NODES = """
create table t.node (id integer not null);
insert into t.node values (0);
create or replace function ff._node_id() returns integer language plpgsql stable
as $$ begin return (select n.id from t.node n); end $$;
select ff._raise_generation(0::smallint, 0);
"""


async def from_the_start(log, limit: int = 500) -> Reader:
    reader = Reader(log, await log.open(LONG_AGO))
    await reader.drain(limit)
    return reader


async def generation_of(log) -> int:
    return int(await log.conn.fetchval("select ff._find_generation(0::smallint)"))


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("limit", [1, 2, 500])
async def test_a_reader_goes_on_after_a_move(log, shift, limit):
    reader = Reader(log, await log.open())
    await log.write("a", "b")
    await reader.drain(limit)
    await log.write("a", "c")
    moved = await log.move(shift)
    reader.cursor = moved(reader.cursor)
    await log.write("a", "b", "d")
    await reader.drain(limit)
    assert sorted(reader.seen) == sorted(await log.committed())
    assert_in_order(reader.seen)


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("limit", [1, 2, 500])
async def test_reading_from_the_start_returns_every_event_of_three_generations_once(
    log, shift, limit
):
    for _ in range(3):
        await log.write("a", "b")
        await log.write("b")
        await log.move(shift)
    await log.write("a")
    reader = await from_the_start(log, limit)
    assert sorted(reader.seen) == sorted(await log.committed())
    assert_in_order(reader.seen)


async def test_an_idle_reader_stays_where_it_is_until_the_new_generation_has_events(log):
    await log.write("a")
    await log.move(1000)
    reader = Reader(log, await log.open())
    before = reader.cursor
    assert await reader.drain() == []
    assert reader.cursor == before
    (late,) = await log.begin_numbered()
    await late.write("late")
    await log.write("b")
    assert await reader.drain() == ["b1"]
    await late.commit()
    assert await reader.drain() == ["late1"]


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("ends", ["commits", "rolls back"])
@pytest.mark.parametrize("limit", [1, 500])
async def test_a_transaction_that_a_cursor_waits_for_ends_before_the_move(log, shift, ends, limit):
    reader = Reader(log, await log.open())
    (long,) = await log.begin_numbered()
    await long.write("long")
    await log.write("a")
    await reader.drain()
    await log.write("b")
    await (long.commit() if ends == "commits" else long.rollback())
    moved = await log.move(shift)
    reader.cursor = moved(reader.cursor)
    await log.write("c")
    await reader.drain(limit)
    assert sorted(reader.seen) == sorted(await log.committed())


async def test_a_cursor_that_waits_for_a_foreign_transaction_reads_on_after_the_move(log):
    """It only runs on the old server and never writes an event."""
    reader = Reader(log, await log.open())
    (foreign,) = await log.begin_numbered()
    await log.write("a")
    await reader.drain()
    moved = await log.move(1000)
    reader.cursor = moved(reader.cursor)
    assert await reader.drain() == []
    await log.write("b")
    assert await reader.drain() == ["b1"]
    await foreign.rollback()


async def test_cursors_of_a_time_before_the_move_and_after_it(log):
    for number in range(3):
        await log.write(f"e{number}-", at=T0 + number * MINUTE)
    await log.move(1000)
    for number in range(3, 6):
        await log.write(f"e{number}-", at=T0 + number * MINUTE)
    for minutes in range(-1, 7):
        reader = Reader(log, await log.open(T0 + minutes * MINUTE))
        assert await reader.drain(2) == [f"e{number}-1" for number in range(max(minutes, 0), 6)]
    assert (await log.read(await log.open())).names == []


async def trim(log, *names: str) -> None:
    """What retention does: delete all events of some executions, and say up to which."""
    await log.conn.execute(
        """
        with gone as (
          delete from ff.event e
          using t.execution x where x.execution_id = e.execution_id and x.name = any ($1)
          returning e.generation, e.xid)
        select ff._raise_trim_mark(0::smallint, g.generation, g.xid) from gone g
        order by g.generation, g.xid
        """,
        list(names),
    )


async def test_what_is_trimmed_in_an_old_generation_expires_only_cursors_before_it(log):
    start = await log.open()
    await log.write("a")
    middle = await log.open()
    await log.write("b")
    moved = await log.move(1_000_000)
    await log.write("c")
    present = await log.open()
    await trim(log, "b")
    for cursor in (start, middle):
        with refused("WF403", reason="trimmed"):
            await log.read(moved(cursor))
    await log.write("d")
    # The mark of the old generation is a higher number than any of the present one.
    assert (await log.read(present)).names == ["d1"]
    assert (await from_the_start(log)).names == ["a1", "c1", "d1"]


async def test_a_mark_of_the_present_generation_expires_every_cursor_of_the_old_one(log):
    await log.write("a")
    cursor = await log.open()
    moved = await log.move(1_000_000)
    await log.write("b")
    await log.write("c")
    await trim(log, "b")
    with refused("WF403", reason="trimmed"):
        await log.read(moved(cursor))
    await trim(log, "a")
    mark = await log.conn.fetchrow("select generation, xid::text::bigint as xid from ff.trim_mark")
    assert mark["generation"] == 1
    assert mark["xid"] < 1_000_000
    assert (await from_the_start(log)).names == ["c1"]


async def test_a_cursor_of_a_generation_that_is_gone_has_expired(log):
    """An older copy was restored: the generation that the cursor saw has not begun in it."""
    await log.move(0)
    await log.write("a")
    cursor = await log.open()
    await log.conn.execute("delete from ff.event; delete from ff.event_generation")
    with refused("WF403", reason="history_lost"):
        await log.read(cursor)


async def test_an_anchor_that_is_missing_in_an_old_generation_is_noticed(log):
    await log.write("a")
    cursor = await log.open()
    moved = await log.move(5)
    await log.conn.execute("delete from ff.event")
    with refused("WF403", reason="history_lost"):
        await log.read(moved(cursor))


@pytest.mark.parametrize("first", ["writer", "reader"])
async def test_the_first_on_another_node_raises_the_generation(log, first):
    await log.conn.execute(ON_NODES)
    await log.write("a")
    cursor = await log.open()
    before = await generation_of(log)
    await log.conn.execute("update t.node set id = 7")
    if first == "reader":
        assert (await log.read(cursor)).names == []
    await log.write("b")
    await log.write("c")
    rows = await log.conn.fetch("select generation, node_id from ff.event_generation")
    assert [tuple(row) for row in rows] == [(before + 1, 7)]
    assert (await log.read(cursor)).names == ["b1", "c1"]
    assert (await from_the_start(log, 1)).names == ["a1", "b1", "c1"]


@pytest.mark.parametrize("ends", ["commits", "rolls back"])
async def test_two_first_writers_raise_it_once(log, ends):
    await log.conn.execute(ON_NODES)
    await log.conn.execute("update t.node set id = 7")
    first, second = await log.begin(), await log.begin()
    await first.write("a")
    writing = asyncio.create_task(second.write("b"))
    await waits(log, second.connection)
    await (first.commit() if ends == "commits" else first.rollback())
    await writing
    await second.commit()
    assert await log.conn.fetch("select distinct generation from ff.event") == [(2,)]
    assert await generation_of(log) == 2


async def test_a_raise_by_hand_waits_for_open_writers(log):
    await log.move(0)
    writer = await log.begin()
    await writer.write("a")
    connection = await log.connect()
    raising = asyncio.create_task(connection.execute("select ff._raise_generation(0::smallint)"))
    await waits(log, connection)
    await writer.commit()
    await raising
    assert await generation_of(log) == 2


async def test_a_partition_that_never_moved_locks_nothing(log):
    writer = await log.begin()
    await writer.write("a")
    locks = await log.conn.fetchval(
        "select count(*) from pg_locks l join pg_database d on d.oid = l.database "
        "where d.datname = current_database() and l.relation = 'ff.event_generation'::regclass "
        "and l.mode not like '%Share%'"
    )
    assert locks == 0
    assert await log.conn.fetchval("select count(*) from ff.event_generation") == 0
    await writer.rollback()


@pytest.mark.parametrize("seed", range(8))
async def test_random_moves_rollbacks_and_open_writers_lose_and_repeat_nothing(log, seed):
    """Several readers, each with pages of its own size, while writers come and go."""
    chance = random.Random(seed)
    readers = [Reader(log, await log.open()) for _ in range(3)]
    writers: list[tuple] = []
    names = [f"x{number}-" for number in range(6)]

    async def end(entry) -> None:
        writers.remove(entry)
        await (entry[0].rollback() if chance.random() < 0.3 else entry[0].commit())

    for _ in range(60):
        held = {name for _, mine in writers for name in mine}
        match chance.choices(["begin", "write", "end", "read", "move"], [3, 6, 3, 5, 1])[0]:
            case "begin" if len(writers) < 4:
                (writer,) = await log.begin_numbered()
                writers.append((writer, set()))
            case "write" if writers and len(held) < len(names):
                writer, mine = chance.choice(writers)
                name = chance.choice([one for one in names if one not in held or one in mine])
                await writer.write(name)
                mine.add(name)
            case "end" if writers:
                await end(chance.choice(writers))
            case "read":
                await chance.choice(readers).step(chance.choice([1, 2, 500]))
            case "move":
                # Transactions that have written in the partition end first; others may stay open.
                for entry in [entry for entry in writers if entry[1]]:
                    await end(entry)
                moved = await log.move(chance.choice([*SHIFTS, 50]))
                for reader in readers:
                    reader.cursor = moved(reader.cursor)
    while writers:
        await end(writers[0])
    committed = sorted(await log.committed())
    for reader in [*readers, await from_the_start(log, 1), await from_the_start(log)]:
        await reader.drain(chance.choice([1, 3, 500]))
        assert sorted(reader.seen) == committed
        assert_in_order(reader.seen)


async def test_cursors_survive_a_dump_that_is_restored_into_a_younger_server(log, servers):
    """Two real servers: the numbers of the new one are lower."""
    other = await servers.make().log()
    number = "select pg_current_xact_id()::text::bigint"
    ahead = await other.conn.fetchval(number) - await log.conn.fetchval(number) + 1000
    await log.conn.execute(
        f"do $$ begin for i in 1..{max(ahead, 0)} loop perform pg_current_xact_id(); commit; "
        "end loop; end $$"
    )
    reader = Reader(log, await log.open())
    for _ in range(3):
        await log.write("a", "b")
    await reader.step(1)
    await log.write("c")
    for table in ("ff.event", "t.execution"):
        rows = await log.conn.fetch(f"select * from {table}")
        for row in rows:
            places = ", ".join(f"${number}" for number in range(1, len(row) + 1))
            await other.conn.execute(
                f"insert into {table} ({', '.join(row.keys())}) overriding system value "
                f"values ({places})",
                *row.values(),
            )
    await other.conn.execute(
        "update ff.meta set value = $1 where name = 'installation_id'",
        await log.conn.fetchval("select value from ff.meta where name = 'installation_id'"),
    )
    with refused("WF403", reason="another_system"):
        await other.read(reader.cursor)
    await other.conn.execute("select ff._raise_generation(0::smallint)")
    reader.log = other
    await other.write("a", "d")
    await reader.drain(1)
    assert sorted(reader.seen) == sorted(await other.committed())
    assert_in_order(reader.seen)
    highest = "select max(xid)::text::bigint from ff.event where generation = $1"
    assert await other.conn.fetchval(highest, 0) > await other.conn.fetchval(highest, 1)
    await other.conn.close()
