"""Where a cursor stands that was opened: behind now, or before a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from support.factories import refused

from .log import Reader, assert_in_order, until

T0 = datetime(2030, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@asynccontextmanager
async def held(log, reader) -> AsyncIterator[None]:
    """Keep the reader from its first look at the events; open writers must keep a lock on them."""
    locker = await log.connect()
    lock = asyncio.create_task(
        locker.execute("begin; lock table ff.event in access exclusive mode")
    )
    await waits(log, locker)
    try:
        yield
    finally:
        await log.conn.execute("select pg_cancel_backend($1)", locker.get_server_pid())
        with pytest.raises(asyncpg.PostgresError):
            await lock


async def waits(log, connection) -> None:
    """Until that connection waits for a lock."""
    await until(
        lambda: log.conn.fetchval(
            "select cardinality(pg_blocking_pids($1)) > 0", connection.get_server_pid()
        )
    )


async def test_a_cursor_of_an_empty_log_gives_everything_to_come(log):
    cursor = await log.open()
    assert (await log.read(cursor)).names == []
    await log.write("a")
    assert (await log.read(cursor)).names == ["a1"]


async def test_a_cursor_of_now_stands_behind_what_is_committed_and_before_what_is_not(log):
    await log.write("old")
    late, early = await log.begin_numbered(2)
    await late.write("late")
    await early.write("early")
    await early.commit()
    cursor = await log.open()
    await log.write("new")
    await late.commit()
    assert sorted((await log.read(cursor)).names) == ["late1", "new1"]


@pytest.mark.parametrize("minutes", range(-1, 12))
async def test_a_cursor_of_a_time_gives_everything_from_then_on(log, minutes):
    for number in range(10):
        await log.write(f"e{number}-", at=T0 + number * MINUTE)
    for grace in (None, timedelta(0), 3 * MINUTE):
        names = (await log.read(await log.open(T0 + minutes * MINUTE, grace=grace))).names
        assert names == [f"e{number}-1" for number in range(max(minutes, 0), 10)], grace


async def test_a_search_with_grace_finds_events_of_older_generations(log):
    for number in range(4):
        await log.write(f"e{number}-", at=T0 + number * MINUTE)
    await log.conn.execute("select ff._raise_generation(0::smallint)")
    for number in range(4, 8):
        await log.write(f"e{number}-", at=T0 + number * MINUTE)
    for minutes in range(-1, 8):
        reader = Reader(log, await log.open(T0 + minutes * MINUTE, grace=MINUTE))
        names = await reader.drain(500)
        assert names == [f"e{number}-1" for number in range(max(minutes, 0), 8)], minutes


async def test_a_search_with_grace_reads_few_rows_of_a_long_log(log):
    for number in range(300):
        await log.write(f"e{number}-", at=T0 + number * MINUTE)
    plain, quick = [await reads(log, T0 + 298 * MINUTE, grace) for grace in (None, timedelta(0))]
    assert plain > 290
    assert quick < 60


async def reads(log, since: datetime, grace: timedelta | None) -> int:
    """Return how many rows of the log a search reads."""
    query = "select idx_tup_fetch from pg_stat_xact_user_tables where relid = 'ff.event'::regclass"
    async with log.conn.transaction():
        # The numbers may contain those of earlier transactions.
        before = await log.conn.fetchval(query)
        await log.open(since, grace=grace)
        return int(await log.conn.fetchval(query) - before)


@pytest.mark.parametrize("grace", [timedelta(seconds=-1), timedelta(days=32)])
async def test_a_wrong_grace_is_refused(log, grace):
    with refused("WF001", field="grace"):
        await log.open(T0, grace=grace)


async def test_a_cursor_of_a_time_gives_events_of_a_long_transaction(log):
    """One that began long ago, whose number lies far below, and which has ended."""
    (long,) = await log.begin_numbered(1)
    for number in range(10):
        await log.write(f"e{number}-", at=T0 + number * MINUTE)
    await long.write("long", at=T0 + 8 * MINUTE)
    await long.commit()
    names = (await log.read(await log.open(T0 + 8 * MINUTE))).names
    assert {"e8-1", "e9-1", "long1"} <= set(names)


async def test_a_cursor_of_a_time_waits_for_a_transaction_that_is_still_open(log):
    long, other = await log.begin_numbered(2)
    await other.write("other", at=T0)
    await other.commit()
    await long.write("long", at=T0 + MINUTE)
    await log.write("new", at=T0 + MINUTE)
    reader = Reader(log, await log.open(T0 + MINUTE))
    assert await reader.drain(1) == ["new1"]
    await long.commit()
    assert await reader.drain(1) == ["long1"]


async def test_a_cursor_of_a_time_to_come_stands_behind_all(log):
    await log.write("a")
    cursor = await log.open(datetime(2999, 1, 1, tzinfo=UTC))
    await log.write("b")
    assert (await log.read(cursor)).names == ["b1"]


async def test_a_reader_from_the_first_moment_gets_the_whole_history_in_order(log):
    for version in range(5):
        await log.write("a", "b", at=T0 + version * MINUTE)
    reader = Reader(log, await log.open(T0))
    await reader.drain(1)
    assert_in_order(reader.seen)
    assert sorted(reader.seen) == sorted(await log.committed())


async def test_a_transaction_that_is_open_while_a_cursor_of_a_time_is_made_is_not_missed(log):
    """The cursor's snapshot is taken; then others commit, before it looks for the first event.

    A lock that is waited for holds open_cursor between the two.
    """
    await log.write("anchor", at=T0 - 3 * MINUTE)
    missed, before, after = await log.begin_numbered(3)
    await missed.write("missed", at=T0 + MINUTE)
    await before.write("before", at=T0 - MINUTE)
    await after.write("after", at=T0 + MINUTE)
    reader = await log.connect()
    async with held(log, reader):
        opening = asyncio.create_task(log.open(T0, connection=reader))
        await waits(log, reader)
        await before.commit()
        await after.commit()
    cursor = await opening
    await missed.commit()
    assert {"missed1", "after1"} <= set((await log.read(cursor)).names)


@pytest.mark.parametrize("limit", [1, 2, 500])
async def test_a_transaction_that_ends_while_a_page_is_made_is_not_missed(log, limit):
    start = await log.open()
    writers = await log.begin_numbered(5)
    for number, writer in enumerate(writers):
        await writer.write(f"e{number}-")
    connection = await log.connect()
    reader = Reader(log, start, connection)
    async with held(log, connection):
        reading = asyncio.create_task(reader.step(limit))
        await waits(log, connection)
        for number in (1, 3, 4):
            await writers[number].commit()
    await reading
    await reader.drain(limit)
    await writers[2].commit()
    await writers[0].commit()
    await reader.drain(limit)
    assert sorted(reader.seen) == sorted(await log.committed())
    assert len(reader.names) == 5


async def test_events_that_are_trimmed_while_a_page_is_made_are_not_passed_over(log):
    """The cursor was good when the page began; what was trimmed since is missing in it."""
    start = await log.open()
    for number in range(6):
        await log.write(f"e{number}-")
    keeper, trimmer = await log.begin(), await log.begin()
    await keeper.write("open")
    await trimmer.connection.execute("delete from ff.event where false")
    connection = await log.connect()
    async with held(log, connection):
        reading = asyncio.create_task(log.read(start, connection=connection))
        await waits(log, connection)
        await trimmer.connection.execute(
            "with gone as (delete from ff.event where xid in "
            "(select xid from ff.event order by xid limit 3) returning xid) "
            "select ff._raise_trim_mark(0::smallint, 0, max(xid)) from gone"
        )
        await trimmer.commit()
    with refused("WF403", reason="trimmed"):
        await reading
