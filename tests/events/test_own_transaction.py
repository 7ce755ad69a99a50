"""Reads from inside a transaction that writes events itself."""

from __future__ import annotations

import pytest

from .log import Reader

LIMITS = (1, 2, 500)


@pytest.mark.parametrize("limit", LIMITS)
async def test_own_events_are_not_delivered_before_they_are_committed(log, limit):
    start = await log.open()
    own = await log.begin()
    await own.write("a", "b", "c")
    await own.write("a", "b", "c")
    # A higher number that has ended: by numbers alone, ours looks finished now.
    await log.conn.execute("select pg_current_xact_id()")
    reader = Reader(log, start, own.connection)
    assert await reader.drain(limit, most=20) == []
    assert reader.cursor == start
    await own.commit()
    reader.connection = None
    assert await reader.drain(limit) == ["a1", "b1", "c1", "a2", "b2", "c2"]


@pytest.mark.parametrize("limit", LIMITS)
async def test_own_events_do_not_hold_up_those_of_others(log, limit):
    """Others commit with higher numbers: the cursor passes our own transaction and waits for it."""
    start = await log.open()
    own = await log.begin()
    await own.write("a", "b", "c")
    for number in range(5):
        await log.write(f"other{number}")
    reader = Reader(log, start, own.connection)
    assert await reader.drain(limit, most=20) == [f"other{number}1" for number in range(5)]
    await own.write("a")
    await log.write("more")
    assert await reader.drain(limit, most=20) == ["more1"]
    await own.commit()
    reader.connection = None
    assert await reader.drain(limit) == ["a1", "b1", "c1", "a2"]


async def test_a_cursor_from_a_transaction_that_is_rolled_back_misses_nothing(log):
    start = await log.open()
    own = await log.begin()
    await own.write("a")
    await log.write("b")
    reader = Reader(log, start, own.connection)
    assert await reader.drain(1, most=20) == ["b1"]
    await own.rollback()
    reader.connection = None
    assert await reader.drain(1) == []
    await log.write("a")
    assert await reader.drain(1) == ["a1"]


async def test_events_written_in_a_savepoint_are_own_events_too(log):
    start = await log.open()
    own = await log.begin()
    await own.connection.execute("savepoint s")
    await own.write("a", "b")
    await log.write("c")
    reader = Reader(log, start, own.connection)
    assert await reader.drain(1, most=20) == ["c1"]
    await own.connection.execute("release s")
    await own.commit()
    reader.connection = None
    assert await reader.drain(1) == ["a1", "b1"]


@pytest.mark.parametrize("limit", LIMITS)
async def test_a_repeatable_read_sees_its_own_moment_and_loses_nothing(log, limit):
    start = await log.open()
    await log.write("a")
    connection = await log.connect()
    await connection.execute("begin isolation level repeatable read")
    await connection.fetchval("select count(*) from ff.event")
    await log.write("b")
    await connection.execute("select t.write('{own}')")
    await log.write("c")
    reader = Reader(log, start, connection)
    assert await reader.drain(limit, most=20) == ["a1"]
    await connection.execute("commit")
    assert sorted(await reader.drain(limit)) == ["b1", "c1", "own1"]


async def test_a_cursor_opened_in_a_writing_transaction_stands_before_its_events(log):
    own = await log.begin()
    await own.write("a")
    cursor = await log.open(connection=own.connection)
    await log.write("b")
    behind = await log.open(connection=own.connection)
    await own.write("a")
    await own.commit()
    assert (await log.read(cursor)).names == ["a1", "b1", "a2"]
    assert (await log.read(behind)).names == ["a1", "a2"]


async def test_a_cursor_since_a_time_opened_in_a_writing_transaction_misses_nothing(log):
    """Our first event is older than the time; our second is not, and has the same number."""
    own = await log.begin()
    now = await log.conn.fetchval("select clock_timestamp()")
    hour = await log.conn.fetchval("select interval '1 hour'")
    await own.write("a", at=now - hour)
    await log.conn.execute("select pg_current_xact_id()")
    cursor = await log.open(now, connection=own.connection)
    await own.write("a", at=now)
    await own.commit()
    assert "a2" in (await log.read(cursor)).names


async def test_a_cursor_since_a_time_does_not_rest_on_events_that_are_rolled_back(log):
    own = await log.begin()
    await own.write("a")
    await log.conn.execute("select pg_current_xact_id()")
    future = await log.conn.fetchval("select clock_timestamp() + interval '1 hour'")
    cursor = await log.open(future, connection=own.connection)
    await own.rollback()
    assert (await log.read(cursor)).names == []
