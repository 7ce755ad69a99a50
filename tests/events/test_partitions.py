"""`client.events` over several partitions: one cursor, one feed."""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256

import pytest

from flowfabric.client import FlowFabric
from flowfabric.core.errors import ConnectionLost, CursorExpired, InvalidInput, Unavailable
from flowfabric.core.execution import Event
from support.database import partitions
from support.factories import NAMESPACE, Engine

pytestmark = pytest.mark.skipif(partitions() > 1, reason="each test raises the number from one")

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


@pytest.fixture
async def client(db):
    async with FlowFabric(db.url, namespace=NAMESPACE) as client:
        yield client


@pytest.fixture
def grow(db, client):
    """Raise the number of partitions, and let the client know."""

    async def grow(number: int) -> None:
        await db.execute(f"select ff.raise_partitions({number}, true, interval '0')")
        await client.database.partitions.refresh()

    return grow


async def work(db, *partitions: int) -> None:
    """One execution in each partition, submitted in all before one is completed."""
    engines = [Engine(db.conn, partition_key=number) for number in partitions]
    submitted = [await engine.submit() for engine in engines]
    for engine, one in zip(engines, submitted, strict=True):
        await engine.complete(await engine.take(one.id))


async def drain(client, cursor: str, **options) -> tuple[list[Event], str]:
    events: list[Event] = []
    while True:
        page = await client.events.read(cursor, **options)
        events += page.events
        cursor = page.cursor
        if not page.has_more:
            return events, cursor


def places(events: list[Event]) -> list[tuple[int, int]]:
    return [(event.id.partition_key, event.version) for event in events]


@pytest.mark.parametrize("limit", [1, 5, 500])
async def test_one_cursor_reads_all_partitions(db, client, grow, limit):
    await grow(4)
    start = await client.events.open()
    await work(db, 0, 3, 1)
    events, end = await drain(client, start, limit=limit)
    assert sorted(places(events)) == [(n, version) for n in (0, 1, 3) for version in (1, 2, 3)]
    for number in (0, 1, 3):
        assert [v for n, v in places(events) if n == number] == [1, 2, 3]
    assert (await client.events.read(end)).events == []
    assert places((await drain(client, await client.events.open(LONG_AGO)))[0]) == sorted(
        places(events), key=lambda place: (place[1] > 1, [0, 3, 1].index(place[0]), place[1])
    )


async def test_a_cursor_made_with_fewer_partitions_reads_the_new_ones_from_their_start(
    db, client, grow
):
    start = await client.events.open()
    await work(db, 0)
    await grow(3)
    await work(db, 2)
    events, end = await drain(client, start)
    assert sorted(places(events)) == [(n, version) for n in (0, 2) for version in (1, 2, 3)]
    assert len(end.split("/")) == 3
    await work(db, 1, 2)
    events, _ = await drain(client, end)
    assert sorted(places(events)) == [(n, version) for n in (1, 2) for version in (1, 2, 3)]


async def test_followers_notice_new_partitions(db, client, grow):
    cursor = await client.events.open()
    await grow(2)
    await work(db, 1)
    async for event in client.events.follow(cursor):
        if event.version == 3:
            assert event.id.partition_key == 1
            break


@pytest.mark.parametrize("change", ["doubled", "beyond", "cut", "swapped for an older form"])
async def test_joined_cursors_that_do_not_fit_are_refused(client, grow, change):
    await grow(2)
    zero, one = (await client.events.open()).split("/")
    text = {
        "doubled": f"{zero}/{zero}",
        "beyond": f"{zero}/{one.replace('ff2:1:', 'ff2:2:')}",
        "cut": f"{zero}/{one[:-3]}",
        "swapped for an older form": f"{zero}/{one.replace('ff2:', 'ff1:')}",
    }[change]
    with pytest.raises(InvalidInput) as told:
        await client.events.read(text)
    assert told.value.field == "cursor"


async def test_a_partition_that_cannot_be_reached_holds_up_only_itself(
    db, client, grow, monkeypatch
):
    await grow(3)
    start = await client.events.open()
    await work(db, 0, 1, 2)
    call = type(client.database).call
    lost = {1}

    async def partly(self, statement, **arguments):
        if arguments.get("partition_key") in lost:
            raise ConnectionLost("the node of partition 1 is down")
        return await call(self, statement, **arguments)

    monkeypatch.setattr(type(client.database), "call", partly)
    page = await client.events.read(start)
    assert page.missing == (1,)
    assert {event.id.partition_key for event in page.events} == {0, 2}
    lost.clear()
    page = await client.events.read(page.cursor)
    assert page.missing == ()
    assert places(page.events) == [(1, 1), (1, 2), (1, 3)]
    lost |= {0, 1, 2}
    with pytest.raises(Unavailable):
        await client.events.read(start)


async def test_a_reader_that_resumes_after_one_partition_expired_misses_nothing_of_the_others(
    db, client, grow, clock
):
    await grow(3)
    zero, one, two = (await client.events.open()).split("/")
    await work(db, 1)
    await clock.advance(hours=1)
    await work(db, 0, 2)
    zero, _, two = (await client.events.read(f"{zero}/{one}/{two}")).cursor.split("/")
    with pytest.raises(CursorExpired) as told:
        await client.events.read(f"{later_generation(zero)}/{one}/{later_generation(two)}")
    assert told.value.resume_from is not None
    again = await client.events.open(told.value.resume_from)
    events, _ = await drain(client, again)
    assert sorted(places(events)) == [(n, version) for n in (0, 1, 2) for version in (1, 2, 3)]


def later_generation(cursor: str) -> str:
    """A cursor of a generation that this database does not have."""
    parts = cursor.split(":")[:-1]
    parts[5] = "7"
    text = ":".join(parts)
    return f"{text}:{sha256(text.encode()).hexdigest()[:8]}"


async def test_filters_hold_in_every_partition(db, client, grow):
    await grow(3)
    start = await client.events.open()
    await work(db, 0, 1, 2)
    events, _ = await drain(client, start, feed="completion")
    assert [event.version for event in events] == [3, 3, 3]
    (wanted,) = [event.id for event in events if event.id.partition_key == 2]
    events, _ = await drain(client, start, executions=[wanted])
    assert places(events) == [(2, 1), (2, 2), (2, 3)]
