"""ff.roll_up_events and ff.read_minutes: every event counted once, and how long things took."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

import pytest

from flowfabric.client import FlowFabric
from flowfabric.core.errors import InvalidInput
from flowfabric.core.minute import Counted, together
from flowfabric.core.states import EventKind
from support.database import home
from support.factories import NAMESPACE, Engine, Item, refused
from support.proofs import drawn

MINUTE = timedelta(minutes=1)


@pytest.fixture
async def client(db):
    async with FlowFabric(db.url, namespace=NAMESPACE) as client:
        yield client


async def roll_up(engine: Engine, limit: int = 5000) -> int:
    """Count until nothing is left; return how many events were counted."""
    total = 0
    while True:
        handled, due_in = await engine._tick("ff.roll_up_events", limit)
        total += handled
        if not handled and due_in is None:
            return total


async def counted(engine: Engine) -> Counter[str]:
    rows = await engine.connection.fetch(
        "select kind::text, sum(event_count)::integer as number from ff.minute "
        "where minutes = 1 group by kind"
    )
    return Counter({row["kind"]: row["number"] for row in rows})


async def logged(engine: Engine) -> Counter[str]:
    rows = await engine.connection.fetch(
        "select kind::text from ff.event where kind in ('submitted', 'claimed', 'resumed', "
        "'reclaimed', 'completed', 'failed', 'cancelled', 'expired', 'retry_scheduled', "
        "'lease_expired', 'skipped', 'replayed')"
    )
    return Counter(row["kind"] for row in rows)


async def test_events_are_counted_once_with_waits_and_runs(engine, clock, client):
    await clock.freeze()
    await engine.submit()
    await clock.advance(timedelta(seconds=20))
    (held,) = await engine.claim()
    await clock.advance(timedelta(seconds=3))
    await engine.complete(held)
    assert await roll_up(engine) == 3
    assert await roll_up(engine) == 0
    found = {one.kind: one for one in await client.minutes.read()}
    assert {kind: one.event_count for kind, one in found.items()} == {
        "submitted": 1,
        "claimed": 1,
        "completed": 1,
    }
    waited, ran = found[EventKind.CLAIMED].percentile(0.5), found[EventKind.COMPLETED].percentile(1)
    assert waited.total_seconds() == pytest.approx(20, rel=0.05)
    assert ran.total_seconds() == pytest.approx(3, rel=0.05)
    assert found[EventKind.SUBMITTED].percentile(0.5) is None


async def test_later_passes_add_to_the_same_minute(engine, clock, client):
    await clock.freeze()
    for seconds in (1, 2, 2):
        await engine.submit()
        (held,) = await engine.claim()
        await clock.advance(timedelta(seconds=seconds))
        await engine.complete(held)
        await roll_up(engine)
    (ended,) = [one for one in await client.minutes.read() if one.kind == "completed"]
    assert (ended.event_count, sum(ended.counts), len(ended.buckets)) == (3, 3, 2)
    assert ended.percentile(0.3).total_seconds() == pytest.approx(1, rel=0.05)
    assert ended.percentile(0.9).total_seconds() == pytest.approx(2, rel=0.05)


async def test_a_page_that_is_too_small_is_followed_by_others(engine):
    for _ in range(7):
        await engine.submit()
    handled, due_in = await engine._tick("ff.roll_up_events", 3)
    assert (handled, due_in) == (3, timedelta(0))
    assert await roll_up(engine, 3) == 4
    assert await counted(engine) == {"submitted": 7}


async def test_a_pass_that_is_rolled_back_counts_nothing_and_loses_nothing(engine, db):
    for _ in range(3):
        await engine.submit()
    transaction = engine.connection.transaction()
    await transaction.start()
    assert (await engine._tick("ff.roll_up_events", 500))[0] == 3
    await transaction.rollback()
    assert await counted(engine) == {}
    assert await roll_up(engine) == 3


async def test_a_pass_beside_another_does_nothing(engine, db):
    await engine.submit()
    await roll_up(engine)
    await engine.submit()
    transaction = engine.connection.transaction()
    await transaction.start()
    assert (await engine._tick("ff.roll_up_events", 500))[0] == 1
    rows = await db.fetch(f"select handled from ff.roll_up_events('{home()}', 500)")
    assert rows[0]["handled"] == 0
    await transaction.commit()
    assert await counted(engine) == {"submitted": 2}


async def test_an_event_of_a_late_commit_is_counted_when_it_commits(engine, db):
    await engine.submit()
    transaction = engine.connection.transaction()
    await transaction.start()
    await engine.submit()
    async with FlowFabric(db.url, namespace=None) as other:
        assert (await other.minutes.roll_up())[0] == 1
    await transaction.commit()
    assert await roll_up(engine) == 1
    assert await counted(engine) == {"submitted": 2}


async def test_counts_are_kept_for_thirty_days(engine, clock, db):
    await engine.submit()
    await roll_up(engine)
    await clock.advance(timedelta(days=30, minutes=2))
    await engine.submit()
    await roll_up(engine)
    rows = await db.fetch("select event_count from ff.minute where minutes = 1")
    assert [row[0] for row in rows] == [1]


async def test_a_lost_position_is_told_and_counting_goes_on(engine, db):
    await engine.submit()
    await roll_up(engine)
    # As after a failover to an older copy: the last event that was counted is another one now.
    await db.execute(
        """
        update ff.minute_position m
        set cursor_text = c.text || ':'
          || left(encode(sha256(convert_to(c.text, 'UTF8')), 'hex'), 8)
        from (
          select array_to_string((string_to_array(cursor_text, ':'))[:10], ':') || ':abc:' as text
          from ff.minute_position) c
        """
    )
    await engine.submit()
    assert await engine._tick("ff.roll_up_events", 500) == (0, None)
    assert await db.fetchval("select lost_at is not null from ff.minute_position")
    await engine.submit()
    assert await roll_up(engine) == 1
    assert await counted(engine) == {"submitted": 2}


async def test_sums_and_minutes_give_the_same_answer_for_every_window(engine, clock, client, db):
    """Two days of events, some of them counted or committed late, are read by window and step."""
    chance = drawn("windows of sums")
    await clock.freeze()
    other = await db.connect()
    late = engine.on(other)
    for turn in range(40):
        for _ in range(chance.randint(0, 2)):
            await engine.submit()
        if turn % 10 == 3:
            transaction = other.transaction()
            await transaction.start()
            await late.submit()
        if turn % 10 == 7:
            await transaction.commit()
        for held in await engine.claim(limit=chance.randint(1, 3)):
            await clock.advance(timedelta(seconds=chance.uniform(0, 50)))
            await engine.complete(held)
        await clock.advance(timedelta(minutes=chance.choice((1, 3, 17, 60, 190))))
        if chance.random() < 0.6:
            await engine._tick("ff.roll_up_events", chance.choice((1, 4, 500)))
    await roll_up(engine)
    assert await counted(engine) == await logged(engine)
    rows = await engine.connection.fetch("select * from ff.minute where minutes = 1")
    now = await client.executions.server_time()
    for _ in range(60):
        until = now - timedelta(minutes=chance.choice((0, 0, chance.randint(1, 2000))))
        window = timedelta(minutes=chance.choice((5, 60, 360, 1440, chance.randint(1, 4000))))
        step = chance.choice((None, timedelta(minutes=chance.randint(3, 400))))
        found = await client.minutes.read(window, until=until, step=step)
        assert shape(found) == shape(expected(rows, window, until, step)), (window, until, step)
    lengths = await db.fetch("select distinct minutes from ff.minute order by 1")
    assert [row[0] for row in lengths] == [1, 10, 60, 360]


def expected(rows, window, until, step) -> list[Counted]:
    """Add up the minutes of a window, one by one."""
    last = until.replace(second=0, microsecond=0) + MINUTE
    parts: dict[tuple, list[Counted]] = {}
    for row in rows:
        if last - window <= row["starts_at"] < last:
            passed = row["starts_at"] - (last - window)
            start = last - window + (step * (passed // step) if step else timedelta(0))
            facts = (start, row["lane"], row["task"], EventKind(row["kind"]))
            one = Counted(*facts, row["event_count"], row["buckets"], row["counts"])
            parts.setdefault(facts, []).append(one)
    return [together(parts[key]) for key in sorted(parts)]


def shape(counts) -> list[tuple]:
    return [
        (one.starts_at, one.task, one.kind, one.event_count, list(one.buckets), list(one.counts))
        for one in counts
    ]


async def test_a_pass_adds_at_most_an_hour_to_the_sums(engine, clock, db):
    await clock.freeze()
    for _ in range(4):
        await engine.submit()
        await engine._tick("ff.roll_up_events", 500)
        await clock.advance(timedelta(minutes=45))
    # As if minutes had been counted for three hours, and never added to the sums.
    await db.execute("delete from ff.minute where minutes > 1")
    await db.execute("update ff.minute_position set summed_at = '-infinity'")
    passes = 0
    while (await engine._tick("ff.roll_up_events", 500))[1] is not None:
        passes += 1
    assert passes >= 2
    sums = await db.fetch("select minutes, sum(event_count)::integer from ff.minute group by 1")
    assert {row[0]: row[1] for row in sums} == {1: 4, 10: 4, 60: 4, 360: 4}


async def test_many_events_are_counted_exactly_and_timed_by_a_sample(engine, clock, client):
    await clock.freeze()
    for _ in range(5):
        await engine.submit_many([Item() for _ in range(500)])
    await clock.advance(timedelta(seconds=30))
    assert len(await engine.claim(limit=500)) == 500
    await clock.advance(timedelta(seconds=10))
    claimed = 500
    rare = await engine.register(lane="rare")
    await engine.submit_many([Item(route=rare) for _ in range(9)])
    await clock.advance(timedelta(seconds=5))
    while held := await engine.claim(limit=500):
        claimed += len(held)
    assert claimed == 2509
    await roll_up(engine, 10_000)
    waits, rare_waits = [one for one in await client.minutes.read() if one.kind == "claimed"]
    assert (waits.event_count, sum(waits.counts)) == (2500, 2500)
    assert (rare_waits.event_count, sum(rare_waits.counts)) == (9, 9)
    assert rare_waits.percentile(0.01).total_seconds() == pytest.approx(5, rel=0.05)
    assert waits.percentile(0.15).total_seconds() == pytest.approx(30, rel=0.05)
    assert waits.percentile(0.6).total_seconds() == pytest.approx(45, rel=0.05)


async def test_an_unfinished_transaction_is_looked_for_until_it_is_counted(engine, db):
    """Its partition is due at once, and only once in the answer."""
    await engine.submit()
    other = await db.connect()
    transaction = other.transaction()
    await transaction.start()
    await engine.on(other).submit()
    await engine.submit()
    await roll_up(engine)
    await transaction.commit()
    due = await db.fetch("select partition_key, due_in from ff.find_due(array['minute'])")
    assert [tuple(row) for row in due] == [(home(), timedelta(0))]
    assert await roll_up(engine) == 1
    assert await counted(engine) == {"submitted": 3}


async def test_minutes_are_read_in_parts_by_task_and_by_lane(engine, clock, client):
    await clock.freeze()
    routes = [await engine.register(lane=lane) for lane in ("a", "b")]
    for route in routes:
        await engine.submit(route=route)
    await clock.advance(10 * MINUTE)
    await engine.submit(route=routes[0])
    await roll_up(engine)
    parts = await client.minutes.read(timedelta(hours=1), step=5 * MINUTE, lane="a")
    assert [one.event_count for one in parts] == [1, 1]
    assert parts[1].starts_at - parts[0].starts_at == 10 * MINUTE
    assert [one.lane for one in await client.minutes.read()] == ["a", "b"]
    # A total adds up lanes and tasks.
    totals = await client.minutes.read(timedelta(hours=1), step=5 * MINUTE, is_total=True)
    assert [(one.lane, one.task, one.event_count) for one in totals] == [("", "", 2), ("", "", 1)]
    assert [one.starts_at for one in totals] == [one.starts_at for one in parts]
    assert await client.minutes.read(5 * MINUTE, lane="b") == []
    assert await client.minutes.read(task="nobody") == []
    assert await client.within("elsewhere").minutes.read() == []


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"window": timedelta(days=31)}, "window"),
        ({"window": timedelta(0)}, "window"),
        ({"window": timedelta(days=1), "step": timedelta(seconds=30)}, "step"),
        ({"window": timedelta(days=30), "step": timedelta(minutes=1)}, "step"),
    ],
)
async def test_what_cannot_be_read_is_refused_with_its_field(client, given, field):
    with pytest.raises(InvalidInput) as caught:
        await client.minutes.read(**given)
    assert caught.value.field == field


async def test_times_at_the_end_of_the_calendar_are_refused_or_empty(engine, db):
    last = "'294276-12-31 23:59:59.999999+00'"
    await engine.submit()
    await roll_up(engine)
    assert await db.fetch(f"select * from ff.read_minutes('{home()}', null, {last})") == []
    with refused("WF001", field="until"):
        await db.fetch(f"select * from ff.read_minutes('{home()}', null, {last}, {last})")


async def test_a_pass_without_a_limit_is_refused(engine):
    with refused("WF001", field="limit"):
        await engine._tick("ff.roll_up_events", 0)


async def test_passes_of_many_processes_count_every_event_once(engine, db):
    """Submits, claims and ends go on while four processes count, each with another page size."""
    chance = drawn("pages of the roll-up")
    ended = asyncio.Event()

    async def count(client: FlowFabric) -> None:
        while not ended.is_set():
            await client.minutes.roll_up(limit=chance.randint(1, 40))

    async with (
        FlowFabric(db.url, namespace=None) as one,
        FlowFabric(db.url, namespace=None) as two,
        asyncio.TaskGroup() as group,
    ):
        for client in (one, one, two, two):
            group.create_task(count(client))
        for _ in range(12):
            for _ in range(chance.randint(1, 5)):
                await engine.submit()
            for held in await engine.claim(limit=3):
                if chance.random() < 0.8:
                    await engine.complete(held)
        ended.set()
    await roll_up(engine)
    assert await counted(engine) == await logged(engine)


def test_a_percentile_is_within_five_percent_and_parts_add_up():
    chance = drawn("latencies")
    seconds = sorted(chance.uniform(0.002, 100) for _ in range(2000))
    import math

    def sketch(values: list[float]) -> Counted:
        found = Counter(math.ceil(math.log(max(one * 1000, 1)) / math.log(1.1)) for one in values)
        buckets = sorted(found)
        numbers = [found[one] for one in buckets]
        from datetime import UTC, datetime

        at = datetime(2026, 1, 1, tzinfo=UTC)
        return Counted(at, "l", "t", EventKind.COMPLETED, len(values), buckets, numbers)

    both = together([sketch(seconds[::2]), sketch(seconds[1::2])])
    assert both == together([sketch(seconds)])
    for share in (0.5, 0.9, 0.95, 0.99):
        exact = seconds[math.ceil(share * len(seconds)) - 1]
        assert both.percentile(share).total_seconds() == pytest.approx(exact, rel=0.05)
    with pytest.raises(InvalidInput):
        both.percentile(1.1)
