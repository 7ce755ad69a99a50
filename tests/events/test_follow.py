"""`client.events`: reading, following, filters and feeds, and connections that are cut."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime, timedelta

import pytest

from flowfabric.client import FlowFabric
from flowfabric.client.events import Feed
from flowfabric.core.errors import CursorExpired, InvalidInput, Unavailable
from flowfabric.core.execution import Event, EventPage
from flowfabric.core.ids import ExecutionId
from flowfabric.core.states import EventKind, Outcome
from support.database import home, several_partitions
from support.factories import NAMESPACE, TTL, Engine

from .log import Log, until

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
PATIENCE = 60


@pytest.fixture
async def client(db):
    async with FlowFabric(db.url, namespace=NAMESPACE) as client:
        yield client


def words(events: list[Event]) -> list[str]:
    return [f"{event.kind} {event.version}" for event in events]


async def take(events, count: int) -> list[Event]:
    """The first events of a stream; an error if they do not come."""
    found: list[Event] = []
    async with asyncio.timeout(PATIENCE), aclosing(events):
        async for event in events:
            found.append(event)
            if len(found) == count:
                return found
    raise AssertionError("the stream ended")


async def test_a_page_has_events_a_cursor_and_whether_there_is_more(client, make):
    cursor = await client.events.open()
    execution = await make.execution("completed", lane="mail")
    page = await client.events.read(cursor, limit=2)
    assert isinstance(page, EventPage)
    assert words(page.events) == ["submitted 1", "claimed 2"]
    assert page.has_more
    page = await client.events.read(page.cursor, limit=2)
    (event,) = page.events
    assert not page.has_more
    assert event.id == ExecutionId.of(home(), execution.id)
    assert (event.kind, event.outcome) == (EventKind.COMPLETED, Outcome.SUCCESS)
    assert (event.lane, event.task, event.namespace) == ("mail", "tests.work", NAMESPACE)
    assert event.occurred_at.tzinfo is not None
    page = await client.events.read(page.cursor)
    assert (page.events, page.has_more) == ([], False)


async def test_open_takes_a_time(client, make):
    await make.execution("leased")
    page = await client.events.read(await client.events.open(LONG_AGO))
    assert words(page.events) == ["submitted 1", "claimed 2"]
    page = await client.events.read(await client.events.open(datetime.now(UTC) + timedelta(1)))
    assert page.events == []


async def test_a_client_sees_its_own_namespace_only(db, client, make):
    cursor = await client.events.open()
    await Engine(db.conn, namespace="other").submit()
    await make.execution("waiting")
    page = await client.events.read(cursor)
    assert {event.namespace for event in page.events} == {NAMESPACE}
    async with FlowFabric(db.url, namespace=None) as operator:
        page = await operator.events.read(cursor)
        assert {event.namespace for event in page.events} == {NAMESPACE, "other"}


async def test_filters_reach_the_engine(db, client, make):
    await db.execute("update ff.meta set value = 'app.instance' where name = 'instance_tag_key'")
    cursor = await client.events.open()
    first = await make.execution("leased", lane="one", tags={"app.instance": "i"})
    await make.execution("waiting", lane="two")
    for filters, expected in (
        ({"kinds": [EventKind.CLAIMED]}, ["claimed 2"]),
        ({"kinds": ["submitted"]}, ["submitted 1", "submitted 1"]),
        ({"kinds": ()}, []),
        ({"lanes": ["one"]}, ["submitted 1", "claimed 2"]),
        ({"tasks": ["no.such"]}, []),
        ({"executions": [ExecutionId.of(home(), first.id)]}, ["submitted 1", "claimed 2"]),
        ({"instance_tags": ["i"]}, ["submitted 1", "claimed 2"]),
    ):
        page = await client.events.read(cursor, **filters)
        assert words(page.events) == expected, filters
        assert page.cursor != cursor


async def test_feeds_are_parts_of_the_events(client, make):
    cursor = await client.events.open()
    await make.execution("completed")
    await make.execution("failed")
    await make.execution("expired_lease")

    async def kinds(**filters) -> list[str]:
        page = await client.events.read(cursor, **filters)
        assert page.cursor != cursor
        return [str(event.kind) for event in page.events]

    assert await kinds(feed="completion") == ["completed", "failed"]
    assert await kinds(feed="operator") == []
    assert await kinds(feed="lease") == [
        "claimed", "completed", "claimed", "failed", "claimed", "lease_expired",
    ]  # fmt: skip
    assert await kinds(feed="completion", kinds=["failed", "claimed"]) == ["failed"]
    assert await kinds(feed="lease", kinds=["claimed"]) == ["claimed"] * 3


async def test_the_feeds_agree_with_their_views(db, client, make):
    cursor = await client.events.open()
    for state in ("completed", "failed", "reclaimed", "interrupted", "retried"):
        await make.execution(state)
    for feed in ("completion", "lease", "operator"):
        page = await client.events.read(cursor, feed=feed)
        rows = await db.fetch(f"select execution_id, version from ff.{feed}_feed order by event_id")
        assert [(event.id.uuid, event.version) for event in page.events] == [
            tuple(row) for row in rows
        ]


@pytest.mark.parametrize(
    "cursor",
    ["", "nonsense", "ff2:99999:x", "ff2:-1:x", "ff2:٣:x", "nul\0", "ff2:\udc80", "ff1:0:x",
     "x" * 70_000, None, 7, b"ff2:0"],
)  # fmt: skip
async def test_what_is_no_cursor_is_refused_by_name(client, cursor):
    with pytest.raises(InvalidInput) as told:
        await client.events.read(cursor)
    assert told.value.field == "cursor"


@pytest.mark.parametrize("cursor", ["", "nonsense"])
async def test_following_what_is_no_cursor_is_refused_too(client, cursor):
    """An empty text is not the same as no cursor: it would lose everything until now."""
    for stream in (client.events.follow(cursor), client.events.follow_pages(cursor)):
        with pytest.raises(InvalidInput) as told:
            async with asyncio.timeout(PATIENCE), aclosing(stream):
                await anext(stream)
        assert told.value.field == "cursor"


@pytest.mark.parametrize(
    ("filters", "field"),
    [
        ({"kinds": ["nope"]}, "kinds"),
        ({"kinds": "completed"}, "kinds"),
        ({"feed": "nope"}, "feed"),
        ({"feed": ""}, "feed"),
        ({"lanes": "mail"}, "lanes"),
        ({"tasks": "send"}, "tasks"),
        ({"instance_tags": "i"}, "instance_tags"),
        ({"limit": 0}, "limit"),
        ({"limit": 10_001}, "limit"),
    ],
)
async def test_a_filter_that_makes_no_sense_is_refused_by_name(client, filters, field):
    cursor = await client.events.open()
    with pytest.raises(InvalidInput) as told:
        await client.events.read(cursor, **filters)
    assert told.value.field == field


@several_partitions
async def test_following_gives_what_was_and_what_happens(client, make, engine):
    cursor = await client.events.open()
    await make.execution("leased")
    stream = client.events.follow(cursor)
    async with asyncio.timeout(PATIENCE), aclosing(stream):
        assert words([await anext(stream), await anext(stream)]) == ["submitted 1", "claimed 2"]
        await make.execution("waiting")
        assert words([await anext(stream)]) == ["submitted 1"]


async def test_following_without_a_cursor_begins_now(db, client, make):
    await make.execution("leased")
    stream = client.events.follow()
    async with asyncio.timeout(PATIENCE), aclosing(stream):
        first = asyncio.ensure_future(anext(stream))
        # It begins when it is first asked, so ask the database until it listens.
        await until(
            lambda: db.fetchval(
                "select count(*) from pg_stat_activity where datname = current_database() "
                "and application_name like '%events'"
            )
        )
        execution = await make.execution("waiting")
        assert (await first).id.uuid == execution.id


async def test_following_goes_on_from_the_cursor_of_an_event_without_a_miss(client, make):
    cursor = await client.events.open()
    for _ in range(5):
        await make.execution("completed")
    everything = words((await client.events.read(cursor)).events)
    for limit in (1, 2, 4, 500):
        seen = await take(client.events.follow(cursor, limit=limit), 15)
        assert words(seen) == everything
        for place, event in enumerate(seen):
            page = await client.events.read(event.cursor)
            # At the most a part of a page comes again; nothing that comes later is missing.
            again = len(page.events)
            assert again >= 15 - place - 1
            assert words(page.events) == everything[15 - again :]
        assert (await client.events.read(seen[-1].cursor)).events == []


async def test_following_through_a_filter_gives_every_page_and_stores_the_progress(client, make):
    cursor = await client.events.open()
    await make.execution("leased")
    pages = client.events.follow_pages(cursor, kinds=["completed"])
    async with asyncio.timeout(PATIENCE), aclosing(pages):
        page = await anext(pages)
    assert page.events == []
    assert page.cursor != cursor
    await make.execution("completed")
    (event,) = await take(client.events.follow(page.cursor, feed="completion"), 1)
    assert event.kind == EventKind.COMPLETED
    (event,) = await take(client.events.follow(page.cursor, feed="lease", kinds=["completed"]), 1)
    assert event.lease_id is not None


async def test_following_takes_filters_that_can_be_read_only_once(client, make):
    cursor = await client.events.open()
    stream = client.events.follow(cursor, limit=1, kinds=(kind for kind in ["claimed"]))
    async with asyncio.timeout(PATIENCE), aclosing(stream):
        for _ in range(3):
            await make.execution("leased")
            assert words([await anext(stream)]) == ["claimed 2"]


async def cut(db) -> int:
    """End every connection of the client; the tests' own stay."""
    return len(
        await db.fetch(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where datname = current_database() and application_name like 'flowfabric%'"
        )
    )


async def test_following_lives_through_connections_that_are_cut(db, client, make):
    cursor = await client.events.open()
    seen: list[Event] = []
    wanted = asyncio.Event()

    async def follow() -> None:
        async for event in client.events.follow(cursor, limit=2):
            seen.append(event)
            if len(seen) == 30:
                wanted.set()
                return

    task = asyncio.create_task(follow())
    try:
        async with asyncio.timeout(60):
            for number in range(10):
                await make.execution("completed")
                if number % 3 == 1:
                    await until(lambda: cut(db))
            await wanted.wait()
    finally:
        task.cancel()
        await asyncio.wait([task])
    rows = await db.fetch("select execution_id, version from ff.event order by event_id")
    assert [(event.id.uuid, event.version) for event in seen] == [tuple(row) for row in rows]


async def test_following_listens_again_after_its_connection_was_cut(db, client, make):
    """Not only polls: a hint still wakes it."""
    listening = (
        "select max(pid) from pg_stat_activity where datname = current_database() "
        "and application_name like '%events' and query ilike '%listen%'"
    )
    stream = client.events.follow(await client.events.open())
    await make.execution("waiting")
    async with asyncio.timeout(PATIENCE), aclosing(stream):
        assert (await anext(stream)).version == 1
        first = await db.fetchval(listening)
        assert first
        following = asyncio.ensure_future(anext(stream))
        await cut(db)
        # by its number: the time without any may be too short to be seen
        await until(lambda: db.fetchval(f"select ({listening}) <> $1", first))
        await make.execution("waiting")
        assert (await following).version == 1


async def test_following_polls_where_it_cannot_listen(client, make, monkeypatch):
    """The listening connection is refused, for whatever reason: nothing is missed."""

    async def refuse(*_) -> None:
        raise ConnectionError("no")

    cursor = await client.events.open()
    monkeypatch.setattr("flowfabric.db.session.Session.listen", refuse)
    await make.execution("completed")
    assert len(await take(client.events.follow(cursor), 3)) == 3


async def test_an_expired_cursor_ends_following_with_the_time_to_go_on_from(log: Log):
    await log.write("a")
    cursor = await log.open()
    await log.conn.execute("delete from ff.event")
    await log.write("b")
    async with FlowFabric(log.url, namespace=None) as client:
        with pytest.raises(CursorExpired) as told:
            await anext(client.events.follow(cursor))
        assert told.value.facts["reason"] == "history_lost"
        page = await client.events.read(await client.events.open(told.value.resume_from))
        assert len(page.events) == 1


async def test_a_server_that_is_gone_makes_reading_unavailable(servers):
    server = servers.make()
    client = await FlowFabric(server.url).open()
    try:
        cursor = await client.events.open()
        server.kill()
        reading = client.database.call
        client.database.call = lambda *args, **named: reading(*args, **named, patience=0.1)
        with pytest.raises(Unavailable):
            await client.events.read(cursor)
    finally:
        await client.close()


async def test_following_outlives_a_crash_of_the_server(servers):
    """Started before, it goes on after, and gets everything."""
    server = servers.make()
    log = await server.log()
    async with FlowFabric(server.url, namespace=None) as client:
        cursor = await client.events.open()
        await log.write("a")
        stream = client.events.follow(cursor)
        async with asyncio.timeout(60), aclosing(stream):
            await anext(stream)
            server.kill()
            log.conn.terminate()
            following = asyncio.ensure_future(anext(stream))
            server.start()
            log = await server.log()
            await log.write("b")
            event = await following
            assert event.id.uuid == await log.conn.fetchval("select t.id_of('b')")
    await log.conn.close()


ENDED = {
    "completed": "success",
    "failed": "failed",
    "over_the_cap": "failed",
    "cancelled": "cancelled",
    "cancelled_unstarted": "cancelled",
    "expired": "expired",
    "timed_out": "expired",
}


@pytest.mark.parametrize("state", ENDED)
async def test_the_words_of_the_log_are_those_of_its_readers(client, make, state):
    cursor = await client.events.open()
    await make.execution(state)
    page = await client.events.read(cursor, feed=Feed.COMPLETION)
    assert [event.outcome for event in page.events] == [Outcome(ENDED[state])]


@pytest.mark.parametrize("feed", [Feed.COMPLETION, Feed.LEASE, None])
async def test_a_subscriber_goes_on_where_it_stopped(client, make, feed):
    cursor = await client.events.open()
    await make.execution("completed")
    first = await client.events.read(cursor, feed=feed)
    second = await make.execution("completed")
    rest = await client.events.read(first.cursor, feed=feed)
    assert first.events
    assert {event.id.uuid for event in rest.events} == {second.id}
    assert first.cursor != rest.cursor


async def test_the_leases_of_a_life_are_read_in_order_and_resumed_from_a_cursor(
    client, engine, clock
):
    cursor = await client.events.open()
    submitted = await engine.submit()
    (held,) = await client.executions.claim(worker_id="w", worker_instance_id="w-1", lease_ttl=TTL)
    assert await client.leases.renew([held], TTL) == ({}, [])
    page = await client.events.read(cursor, feed=Feed.LEASE)
    assert [event.kind for event in page.events] == ["claimed"]
    await clock.advance(TTL)
    await client.leases.expire()
    (held,) = await client.executions.claim(worker_id="w", worker_instance_id="w-2")
    await client.executions.complete(held, b"")
    page = await client.events.read(page.cursor, feed=Feed.LEASE)
    assert [event.kind for event in page.events] == ["lease_expired", "reclaimed", "completed"]
    assert {event.id.uuid for event in page.events} == {submitted.id}
    assert [event.epoch for event in page.events] == [1, 2, 2]
