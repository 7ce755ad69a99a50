"""Transactions that end in another order than they began, number by number."""

from __future__ import annotations

import random

import asyncpg
import pytest

from .log import Reader, assert_in_order

LIMITS = (1, 2, 500)


@pytest.fixture
async def start(log):
    """A cursor before everything, with one event that has a predecessor to come behind it."""
    return await log.open()


@pytest.mark.parametrize("limit", LIMITS)
async def test_a_transaction_that_ends_late_is_delivered_when_it_ends(log, start, limit):
    late, early = await log.begin_numbered(2)
    await late.write("a")
    await early.write("b")
    await early.commit()
    reader = Reader(log, start)
    assert await reader.drain(limit) == ["b1"]
    await log.write("c")
    assert await reader.drain(limit) == ["c1"]
    await late.commit()
    assert await reader.drain(limit) == ["a1"]
    assert await reader.drain(limit) == []


@pytest.mark.parametrize("limit", LIMITS)
async def test_a_transaction_that_is_rolled_back_leaves_nothing_and_holds_up_nothing(
    log, start, limit
):
    gone, kept = await log.begin_numbered(2)
    await gone.write("a")
    await kept.write("b")
    await kept.commit()
    reader = Reader(log, start)
    assert await reader.drain(limit) == ["b1"]
    await gone.rollback()
    assert await reader.drain(limit) == []
    await log.write("a")
    assert await reader.drain(limit) == ["a1"]


@pytest.mark.parametrize("limit", LIMITS)
async def test_an_execution_whose_later_event_has_the_lower_number_comes_in_order(
    log, start, limit
):
    low, high = await log.begin_numbered(2)
    await high.write("x")
    await high.commit()
    await low.write("x")
    await low.commit()
    assert await Reader(log, start).drain(limit) == ["x1", "x2"]


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("between", [0, 1, 7])
async def test_an_execution_written_by_falling_numbers_comes_in_order(log, start, limit, between):
    writers = await log.begin_numbered(6)
    for writer in reversed(writers):
        await writer.write("x")
        await writer.commit()
        for other in range(between):
            await log.write(f"other{other}")
    reader = Reader(log, start)
    names = await reader.drain(limit)
    assert [name for name in names if name[0] == "x"] == [f"x{v}" for v in range(1, 7)]
    assert sorted(reader.seen) == sorted(await log.committed())
    assert_in_order(reader.seen)


@pytest.mark.parametrize("limit", LIMITS)
async def test_a_chain_of_inversions_over_several_executions_comes_in_order(log, start, limit):
    """a2 (low) needs a1, whose transaction also holds b2, which needs b1, and so on upwards."""
    names = "abcdefgh"
    writers = await log.begin_numbered(len(names) + 1)
    for place in reversed(range(len(names))):
        # The first event of each execution is written by the next higher number.
        await writers[place + 1].write(names[place])
        await writers[place + 1].commit()
        await log.write(f"filler{place}")
        if place:
            await log.write(names[place - 1] + "-unrelated")
        # Its second event comes from the number below, which goes on to write another first one.
        await writers[place].write(names[place])
    await writers[0].commit()
    reader = Reader(log, start)
    await reader.drain(limit)
    assert sorted(reader.seen) == sorted(await log.committed())
    assert_in_order(reader.seen)


@pytest.mark.parametrize("limit", LIMITS)
async def test_a_late_commit_below_the_cursor_brings_its_predecessor_along(log, start, limit):
    """x2 is in a transaction below the cursor; x1 is far ahead of it, behind a full page."""
    (low,) = await log.begin_numbered(1)
    await log.write("before")
    reader = Reader(log, start)
    assert await reader.drain(limit) == ["before1"]
    for filler in range(10):
        await log.write(f"filler{filler}")
    await log.write("x")
    await low.write("x")
    await low.commit()
    await reader.drain(limit)
    assert sorted(reader.seen) == sorted(await log.committed())
    assert_in_order(reader.seen)


async def test_a_page_of_one_takes_no_more_than_it_has_to(log, start):
    for number in range(10):
        await log.write(f"e{number}")
    page = await log.read(start, 1)
    assert len(page.events) <= 2
    assert page.has_more


async def test_has_more_says_whether_the_next_page_has_events(log, start):
    for number in range(4):
        await log.write(f"e{number}")
    reader = Reader(log, start)
    for _ in range(10):
        page = await reader.step(1)
        assert page.events
        if not page.has_more:
            break
    assert reader.names == ["e01", "e11", "e21", "e31"]
    assert not (await reader.step(1)).events


async def test_the_events_of_one_transaction_are_in_one_page(log, start):
    await log.write("a", "b", "c")
    await log.write("a", "b", "c")
    await log.write("a", "b", "c")
    page = await log.read(start, 1)
    assert page.names == ["a1", "b1", "c1"]


async def test_an_idle_cursor_does_not_move(log, start):
    """Others on this server may end: those it waits for grow fewer, its position stays."""

    def position(cursor: str) -> list[str]:
        parts = cursor.split(":")
        return parts[:7] + parts[8:11]

    assert (await log.read(start)).cursor == start
    await log.write("a")
    cursor = (await log.read(start)).cursor
    for _ in range(3):
        other = await log.begin()
        await other.write("b")
        while_open = await log.read(cursor)
        await other.rollback()
        for page in (while_open, await log.read(cursor)):
            assert (page.events, page.has_more) == ([], False)
            assert position(page.cursor) == position(cursor)


async def test_the_same_cursor_gives_the_same_events_again(log, start):
    for number in range(5):
        await log.write(f"e{number}")
    first = await log.read(start)
    await log.write("late")
    again = await log.read(start)
    assert again.names == [*first.names, "late1"]


@pytest.mark.parametrize("limit", LIMITS)
async def test_savepoints_count_as_their_transaction(log, start, limit):
    outer, other = await log.begin_numbered(2)
    await outer.write("a")
    await outer.connection.execute("savepoint one")
    await outer.write("a", "gone")
    await outer.connection.execute("rollback to one")
    await outer.connection.execute("savepoint two")
    await outer.write("b")
    await outer.connection.execute("release two")
    await other.write("c")
    await other.commit()
    reader = Reader(log, start)
    assert await reader.drain(limit) == ["c1"]
    await outer.write("a")
    await outer.commit()
    assert await reader.drain(limit) == ["a1", "b1", "a2"]


async def test_hundreds_of_savepoints_do_not_confuse_a_reader(log, start):
    outer, other = await log.begin_numbered(2)
    for number in range(200):
        await outer.connection.execute("savepoint s")
        await outer.write("a")
        if number % 2:
            await outer.connection.execute("rollback to s")
        await outer.connection.execute("release s")
    await other.write("b")
    await other.commit()
    reader = Reader(log, start)
    assert await reader.drain(1) == ["b1"]
    await outer.commit()
    assert await reader.drain(1) == [f"a{version}" for version in range(1, 101)]


@pytest.mark.slow
async def test_three_hundred_open_writers_fit_into_a_cursor_of_four_kilobytes(servers):
    """Some of them prepared: for a snapshot they are as open as the others, and cost no process."""
    log = await servers.make(max_prepared_transactions="280").log()
    start = await log.open()
    writers = await log.begin_numbered(20)
    for number in range(280):
        await log.conn.execute(
            f"begin; select t.write('{{p{number}-}}'); prepare transaction 'p{number}'"
        )
        # Numbers that lie far apart, as they do when most transactions are short.
        await log.conn.execute(
            "do $$ begin for i in 1..20 loop perform pg_current_xact_id(); commit; end loop; end $$"
        )
    for number, writer in enumerate(writers):
        await writer.write(f"w{number}-")
    await log.write("last")
    reader = Reader(log, start)
    page = await reader.step()
    assert page.names == ["last1"]
    assert page.unfinished == 300
    assert len(page.cursor) <= 4096
    prepared = [f"p{number}" for number in range(280)]
    random.Random(1).shuffle(prepared)
    for number, name in enumerate(prepared):
        await log.conn.execute(f"commit prepared '{name}'")
        if number % 40 == 0:
            await reader.step(1)
            await writers.pop().commit()
    for writer in writers:
        await writer.commit()
    await reader.drain(1)
    assert sorted(reader.seen) == sorted(await log.committed())
    assert len(reader.seen) == 301
    await log.conn.close()


async def test_a_foreign_transaction_that_stays_open_does_not_stall_the_feed(log, cluster, start):
    """Neither one of this database nor one of another."""
    elsewhere = await asyncpg.connect(cluster.url)
    try:
        async with elsewhere.transaction():
            await elsewhere.execute("select pg_current_xact_id()")
            (foreign,) = await log.begin_numbered(1)
            reader = Reader(log, start)
            for number in range(50):
                await log.write(f"e{number}")
                assert await reader.drain(1) == [f"e{number}1"]
            await foreign.commit()
    finally:
        await elsewhere.close()
    assert await reader.drain() == []
    await log.write("after")
    assert await reader.drain() == ["after1"]


async def test_a_prepared_transaction_is_delivered_when_it_is_committed(servers):
    log = await servers.make(max_prepared_transactions="5").log()
    start = await log.open()
    connection = await log.connect()
    for name in ("kept", "dropped"):
        await connection.execute("begin")
        await connection.execute("select t.write($1)", [name, f"{name}-too"])
        await connection.execute(f"prepare transaction '{name}'")
    await log.write("b")
    reader = Reader(log, start)
    assert await reader.drain(1) == ["b1"]
    await connection.execute("rollback prepared 'dropped'")
    assert await reader.drain(1) == []
    await connection.execute("commit prepared 'kept'")
    assert await reader.drain(1) == ["kept1", "kept-too1"]
    await log.conn.close()
    await connection.close()


async def test_a_prepared_transaction_outlives_a_crash_and_is_delivered_then(servers):
    server = servers.make(max_prepared_transactions="5")
    log = await server.log()
    start = await log.open()
    connection = await log.connect()
    await connection.execute("begin")
    await connection.execute("select t.write('{a}')")
    await connection.execute("prepare transaction 'a'")
    await log.write("b")
    reader = Reader(log, start)
    assert await reader.drain(1) == ["b1"]
    server.kill()
    server.start()
    reader.log = log = await server.log()
    await log.write("c")
    assert await reader.drain(1) == ["c1"]
    await log.conn.execute("commit prepared 'a'")
    assert await reader.drain(1) == ["a1"]
    await log.conn.close()
