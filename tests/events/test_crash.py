"""Servers that die: `kill -9` of PostgreSQL, a standby that lost commits, an old copy.

Whatever is lost, the reader is told, or gets everything that is there. Never a silent gap.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import datetime, timedelta

import asyncpg
import pytest

from flowfabric.client import FlowFabric
from flowfabric.core.errors import CursorExpired, ReadOnlyServer
from support.factories import refused

from .log import Log, Reader, assert_in_order, until
from .servers import Server


async def existing(log: Log) -> set[tuple]:
    rows = await log.conn.fetch("select execution_id, version, event_id from ff.event")
    return {tuple(row) for row in rows}


class Subscriber:
    """Stores its cursor, follows what CursorExpired tells it, and remembers what it was given."""

    def __init__(self, cursor: str) -> None:
        self.cursor = cursor
        self.got: Counter = Counter()
        self.order: list[tuple] = []
        self.expired: list[str] = []

    async def drain(self, log: Log, limit: int) -> None:
        for _ in range(100_000):
            try:
                page = await log.read(self.cursor, limit)
            except asyncpg.PostgresError as error:
                if error.sqlstate != "WF403":
                    raise
                detail = json.loads(error.detail)
                self.expired.append(detail["reason"])
                self.cursor = await log.open(datetime.fromisoformat(detail["resume_from"]))
                continue
            self.cursor = page.cursor
            self.got.update((e["execution_id"], e["version"], e["event_id"]) for e in page.events)
            self.order += [(e["execution_id"], e["version"]) for e in page.events]
            if not page.has_more:
                return
        raise AssertionError("there is always more")


async def roll_back(log: Log) -> int:
    """Write an event that never was; return the number its transaction had."""
    transaction = log.conn.transaction()
    await transaction.start()
    await log.conn.execute("select t.write('{gone-}')")
    number = await log.conn.fetchval("select pg_current_xact_id()::text::bigint")
    await transaction.rollback()
    return number


async def roll_back_unwritten(log: Log) -> int:
    """Roll back until the server has written nothing of it: a crash gives that number out again.

    Nothing flushes a rollback, but the WAL writer may wake at any time.
    """
    for _ in range(50):
        before = await log.conn.fetchval("select pg_current_wal_insert_lsn()::text")
        number = await roll_back(log)
        if await log.conn.fetchval("select pg_current_wal_lsn() <= $1::text::pg_lsn", before):
            return number
    raise AssertionError("the server writes every rollback at once")


async def crash(servers, *, rounds: int, seed: int, asynchronous: bool) -> dict[str, int]:
    """Write, roll back, read and kill, so that numbers are given out again, `rounds` times."""
    chance = random.Random(seed)
    server: Server = servers.make(wal_writer_delay="10s", wal_writer_flush_after="1GB")
    log = await server.log()
    start = await log.open()
    subscribers = {1: Subscriber(start), 2: Subscriber(start), 500: Subscriber(start)}
    figures = Counter()
    await log.conn.close()
    for round_ in range(rounds):
        log = await server.log()
        if asynchronous:
            await log.conn.execute("set synchronous_commit = off")
        open_writers = await log.begin_numbered(chance.randint(0, 2))
        for writer in open_writers:
            await writer.write(f"open{round_}-{id(writer)}-")
        for step in range(chance.randint(2, 6)):
            await log.write(f"e{chance.randrange(20)}-", f"r{round_}-{step}-")
            if chance.random() < 0.7:
                for limit, subscriber in subscribers.items():
                    if chance.random() < 0.7:
                        await subscriber.drain(log, limit)
            for _ in range(chance.randint(1, 4)):
                await roll_back(log)
        for subscriber in subscribers.values():
            if chance.random() < 0.7:
                await subscriber.drain(log, 500)
        highest = await roll_back_unwritten(log)
        server.kill()
        await log.close()
        log.conn.terminate()
        server.start()
        log = await server.log()
        next_number = int(await log.conn.fetchval("select pg_current_xact_id()::text::bigint"))
        figures["numbers given out again"] += max(0, highest - next_number)
        figures["rounds with such"] += next_number <= highest
        for number in range(6):
            await log.write(f"e{chance.randrange(20)}-", f"after{round_}-{number}-")
        there = await existing(log)
        for limit, subscriber in subscribers.items():
            await subscriber.drain(log, limit)
            assert there <= set(subscriber.got), "a silent gap"
        await log.conn.close()
    for subscriber in subscribers.values():
        figures["expired"] += len(subscriber.expired)
        assert set(subscriber.expired) <= {"history_lost"}
        if not asynchronous:
            assert subscriber.expired == []
            assert set(subscriber.got) == there
            assert set(subscriber.got.values()) == {1}
            assert_in_order(subscriber.order)
    figures["events"] = len(there)
    print(dict(figures))
    return figures


@pytest.mark.parametrize(
    "asynchronous", [False, pytest.param(True, marks=pytest.mark.slow(short=0))]
)
async def test_five_kills_of_postgres_with_unflushed_rollbacks_leave_no_gap(servers, asynchronous):
    figures = await crash(servers, rounds=5, seed=1, asynchronous=asynchronous)
    assert figures["rounds with such"] >= 3


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_hundred_kills_of_postgres_with_unflushed_rollbacks_leave_no_gap(
    servers, asynchronous, sized
):
    rounds = sized(100, short=10)
    figures = await crash(servers, rounds=rounds, seed=2, asynchronous=asynchronous)
    assert figures["rounds with such"] >= 0.6 * rounds
    if asynchronous:
        assert figures["expired"] > 0


async def caught_up(primary: Log, standby: Log) -> None:
    position = await primary.conn.fetchval("select pg_current_wal_flush_lsn()::text")
    await until(
        lambda: standby.conn.fetchval(
            "select pg_last_wal_replay_lsn() >= $1::text::pg_lsn", position
        )
    )


@pytest.mark.slow(short=2, of="copies of servers")
async def test_a_promoted_standby_that_lost_commits_says_so_and_from_when_to_read(servers):
    primary = servers.make()
    standby = servers.adopt(primary.back_up(standby=True))
    standby.start()
    log, copy = await primary.log(), await standby.log()
    start = await log.open()
    long_ago = await log.conn.fetchval("select clock_timestamp() - interval '1 hour'")
    # Below the cursor, unfinished when it is made, committed later, and its event is an hour old.
    long, long_lost = await log.begin_numbered(2)
    await long.write("long", at=long_ago)
    await long_lost.write("lost-long", at=long_ago)
    for number in range(5):
        await log.write(f"kept{number}-")
    page = await log.read(start, 2)
    assert page.unfinished == 2
    reader = Reader(log, page.cursor)
    await long.commit()
    await caught_up(log, copy)
    await copy.conn.close()
    standby.stop()
    await long_lost.commit()
    for number in range(5):
        await log.write(f"lost{number}-")
    await reader.drain()
    assert "lost41" in " ".join(reader.names).replace("-", "")
    await log.conn.close()
    primary.kill()

    standby.start()
    standby.promote()
    log = await standby.log()
    await log.write("new")
    there = set((await log.read(await log.open(long_ago))).names)
    assert there == {"long1", *(f"kept{n}-1" for n in range(5)), "new1"}
    first, all_ = set(page.names), set(page.names) | set(reader.names)
    async with FlowFabric(standby.url, namespace=None) as client:
        for cursor, delivered in ((page.cursor, first), (reader.cursor, all_)):
            with pytest.raises(CursorExpired) as told:
                await client.events.read(cursor)
            assert told.value.facts["reason"] == "another_timeline"
            resumed = Reader(log, await client.events.open(told.value.resume_from))
            await resumed.drain(1)
            assert there <= delivered | set(resumed.names)
    await log.conn.close()


async def test_a_standby_refuses_to_read_events(servers):
    primary = servers.make()
    standby = servers.adopt(primary.back_up(standby=True))
    standby.start()
    log = await primary.log()
    cursor = await log.open()
    async with FlowFabric(standby.url) as client:
        with pytest.raises(ReadOnlyServer):
            await client.events.open()
        with pytest.raises(ReadOnlyServer):
            await client.events.read(cursor)
        with pytest.raises(ReadOnlyServer):
            async for _ in client.events.follow(cursor):
                pass
    await log.conn.close()


@pytest.mark.slow(short=2, of="copies of servers")
async def test_a_base_backup_started_without_recovery_is_noticed(servers):
    """The same system, the same timeline, older data: also when the same numbers come again."""
    primary = servers.make()
    log = await primary.log()
    start = await log.open()
    for number in range(3):
        await log.write(f"kept{number}-")
    early = (await log.read(start)).cursor
    copy = servers.adopt(primary.back_up())
    for number in range(5):
        await log.write(f"lost{number}-")
    reader = Reader(log, start)
    await reader.drain(2)
    lost = await log.conn.fetchrow("select event_id, xid from ff.event order by xid desc limit 1")
    await log.conn.close()
    primary.stop()

    copy.start()
    log = await copy.log()
    with refused("WF403", reason="history_lost"):
        await log.read(reader.cursor)
    # A cursor from before the backup still fits.
    assert (await log.read(early)).names == []
    for number in range(40):
        await log.write(f"new{number}-")
        with refused("WF403", reason="history_lost"):
            await log.read(reader.cursor)
    assert await log.conn.fetchval(
        "select count(*) from ff.event where event_id = $1", lost["event_id"]
    )
    assert await log.conn.fetchval(
        "select count(*) from ff.event where xid = $1::text::xid8", str(lost["xid"])
    )
    subscriber = Subscriber(reader.cursor)
    subscriber.got.update((e, v, None) for e, v in reader.seen)
    await subscriber.drain(log, 1)
    assert subscriber.expired == ["history_lost"]
    names = set((await log.read(early)).names)
    assert names == {f"new{number}-1" for number in range(40)}
    assert {(e, v) for e, v, _ in subscriber.got} >= set(await log.committed())
    await log.conn.close()


@pytest.mark.slow(short=2, of="copies of servers")
async def test_a_copy_of_the_data_is_noticed_when_another_event_has_the_same_numbers(servers):
    """The lost event and the new one share number, id and version; time and execution differ."""
    primary = servers.make()
    log = await primary.log()
    start = await log.open()
    await log.write("kept")
    await log.conn.close()
    primary.stop()
    copy = servers.copy(primary)
    identities = []
    for server in (primary, copy):
        server.start()
        log = await server.log()
        await log.write(f"only-in-{server.folder.name}")
        page = await log.read(start)
        identities.append(
            (
                page.cursor,
                await log.conn.fetchrow(
                    "select event_id, xid from ff.event order by xid desc limit 1"
                ),
            )
        )
        await log.conn.close()
        if server is primary:
            server.kill()
    (cursor, one), (_, other) = identities
    assert one == other, "the test needs the same numbers"
    log = await copy.log()
    with refused("WF403", reason="history_lost"):
        await log.read(cursor)
    await log.conn.close()


async def test_resuming_reaches_back_to_the_oldest_event_that_was_not_delivered(servers):
    """A page ended before it, it is behind the cursor by number, and much older than the anchor."""
    primary = servers.make()
    standby = servers.adopt(primary.back_up(standby=True))
    standby.start()
    log, copy = await primary.log(), await standby.log()
    start = await log.open()
    hour = timedelta(hours=1)
    now = await log.conn.fetchval("select clock_timestamp()")
    anchor, old = await log.begin_numbered(2)
    await old.write("old", at=now - hour)
    await old.commit()
    await log.write("young", at=now + hour)
    await caught_up(log, copy)
    await copy.conn.close()
    standby.stop()
    await anchor.write("anchor", at=now)
    await anchor.commit()
    page = await log.read(start, 1)
    assert page.names == ["anchor1"]
    await log.conn.close()
    primary.kill()
    standby.start()
    standby.promote()
    log = await standby.log()
    subscriber = Subscriber(page.cursor)
    await subscriber.drain(log, 1)
    assert subscriber.expired == ["another_timeline"]
    assert set(subscriber.got) == await existing(log)
    await log.conn.close()
