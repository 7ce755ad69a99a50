"""Many writers in no order at all: every subscriber gets every event, once and in order."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from itertools import count

import pytest

from .log import Reader, assert_in_order

EXECUTIONS = 400


class Storm:
    """Writers that begin early, write late, give up often, and one reader of each temper."""

    def __init__(self, log, *, seed: int, events: int) -> None:
        self.log = log
        self.chance = random.Random(seed)
        self.left = events
        self.rolled_back = 0

    async def write_some(self) -> None:
        chance = self.chance
        connection = await self.log.connect(synchronous_commit="off")
        while self.left > 0:
            # In order of name, so that nobody waits for somebody who waits for him.
            numbers = chance.sample(range(EXECUTIONS), chance.randint(2, 24))
            names = sorted(f"{number:03}-" for number in numbers)
            transaction = connection.transaction()
            await transaction.start()
            if chance.random() < 0.5:
                await connection.execute("select pg_current_xact_id()")
                await self.dawdle()
            written = 0
            while names:
                part, names = names[: (size := chance.choice((1, 2, 12)))], names[size:]
                if chance.random() < 0.1:
                    await connection.execute("savepoint s")
                    await connection.execute("select t.write($1)", part)
                    await connection.execute("rollback to s")
                else:
                    await connection.execute("select t.write($1)", part)
                    written += len(part)
                await self.dawdle()
            if chance.random() < 0.2:
                await transaction.rollback()
                self.rolled_back += written
            else:
                await transaction.commit()
                self.left -= written

    async def dawdle(self) -> None:
        """Let others go first: often for a moment, now and then for long."""
        for _ in range(self.chance.choice((0, 0, 0, 1, 3, 30))):
            await asyncio.sleep(0)

    async def read_on(self, reader: Reader, limits: tuple[int, ...], until: asyncio.Event) -> None:
        while True:
            is_over = until.is_set()
            page = await reader.step(self.chance.choice(limits))
            if is_over and not page.has_more:
                return
            if not page.events:
                await asyncio.sleep(0.01)


async def rage(log, *, seed: int, writers: int, events: int) -> tuple[Storm, list[Reader]]:
    storm = Storm(log, seed=seed, events=events)
    start = await log.open()
    over = asyncio.Event()
    live = [
        (Reader(log, start, await log.connect()), limits)
        for limits in ((1,), (1, 2, 3, 50, 500), (500,))
    ]
    await log.conn.execute("select t.write($1)", [f"{n:03}-" for n in range(EXECUTIONS)])
    async with asyncio.TaskGroup() as group:
        for reader, limits in live:
            group.create_task(storm.read_on(reader, limits, over))
        async with asyncio.TaskGroup() as work:
            for _ in range(writers):
                work.create_task(storm.write_some())
        over.set()
    readers = [reader for reader, _ in live]
    for limits in (1, 500):
        reader = Reader(log, start)
        await reader.drain(limits)
        readers.append(reader)
    return storm, readers


async def check(log, storm: Storm, readers: list[Reader], events: int) -> None:
    committed = await log.committed()
    assert len(committed) >= events
    assert storm.rolled_back > events * 0.1
    # The storm was one: executions whose later event has the lower number are common.
    inverted = await log.conn.fetchval(
        "select count(*) from (select xid < lag(xid) over (partition by execution_id "
        "order by version) as is_inverted from ff.event) e where is_inverted"
    )
    assert inverted > events * 0.01
    for reader in readers:
        assert Counter(reader.seen) == Counter(committed)
        assert_in_order(reader.seen)


@pytest.mark.timeout(300)
async def test_ten_writers_in_disorder_lose_and_turn_round_nothing(log):
    events = 2_000
    storm, readers = await rage(log, seed=1, writers=10, events=events)
    await check(log, storm, readers, events)


@pytest.mark.slow(short=1)
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(2, 7))
async def test_larger_storms_lose_and_turn_round_nothing(log, seed, sized):
    events = sized(60_000, short=10_000)
    storm, readers = await rage(log, seed=seed, writers=16, events=events)
    await check(log, storm, readers, events)


@pytest.mark.parametrize("steps", [50, pytest.param(200, marks=pytest.mark.slow(short=0))])
async def test_a_reader_that_starts_over_from_any_old_cursor_still_misses_nothing(log, steps):
    """Every cursor ever given leads to everything that was not delivered before it."""
    chance = random.Random(3)
    start = await log.open()
    reader = Reader(log, start)
    kept: list[tuple[str, set[tuple[object, int]]]] = [(start, set())]
    open_writers: list = []
    names = (f"{n:03}-" for n in count())
    for _ in range(steps):
        if open_writers and chance.random() < 0.5:
            writer = open_writers.pop(chance.randrange(len(open_writers)))
            await writer.write(next(names), f"shared{len(open_writers)}-")
            await (writer.rollback() if chance.random() < 0.3 else writer.commit())
        elif len(open_writers) < 6:
            open_writers += await log.begin_numbered(1)
        await reader.step(chance.choice((1, 2, 500)))
        kept.append((reader.cursor, set(reader.seen)))
    for writer in open_writers:
        await writer.commit()
    committed = set(await log.committed())
    for cursor, delivered in kept:
        again = Reader(log, cursor)
        await again.drain(chance.choice((1, 2, 500)))
        assert set(again.seen) == committed - delivered
        assert len(set(again.seen)) == len(again.seen)


@pytest.mark.parametrize("rounds", [40, pytest.param(200, marks=pytest.mark.slow(short=0))])
async def test_three_transactions_that_interleave_at_random_are_read_in_order(log, rounds):
    """Taking a number, writing and ending in any order, with a reader in between."""
    connections = [await log.connect() for _ in range(3)]
    steps = [(who, what) for who in range(3) for what in ("number", "write", "end")]
    chance = random.Random(11)
    start = await log.open()
    live = Reader(log, start, await log.connect())
    for round_ in range(rounds):
        holder: int | None = None
        for who, what in _in_sequence(chance.sample(steps, len(steps))):
            connection = connections[who]
            if what == "number":
                await connection.execute("begin; select pg_current_xact_id()")
            elif what == "write":
                # While another holds the row, only what nobody else writes.
                shared = [f"x{round_ % 7}"] if holder is None else []
                holder = who if holder is None else holder
                await connection.execute("select t.write($1)", [*shared, f"own{who}-"])
            else:
                holder = None if who == holder else holder
                await connection.execute("rollback" if chance.random() < 0.2 else "commit")
            if chance.random() < 0.5:
                await live.step(chance.choice((1, 2, 500)))
    for limit in (1, 2, 3, 500):
        reader = Reader(log, start)
        await reader.drain(limit)
        assert sorted(reader.seen) == sorted(await log.committed())
        assert_in_order(reader.seen)
    await live.drain(1)
    assert sorted(live.seen) == sorted(await log.committed())
    assert_in_order(live.seen)


def _in_sequence(plan: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """The same order of transactions, each of which takes its steps in sequence."""
    steps = {who: iter(("number", "write", "end")) for who in range(3)}
    return [(who, next(steps[who])) for who, _ in plan]
