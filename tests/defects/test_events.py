"""Defects D-70 to D-73: what events say, and how they are read."""

from __future__ import annotations

import asyncio

import pytest

from flowfabric.client import FlowFabric
from flowfabric.client.events import Feed
from flowfabric.core.states import Outcome
from support.factories import STATES, Engine

ENDED = {
    "completed": "success",
    "failed": "failed",
    "over_the_cap": "failed",
    "cancelled": "cancelled",
    "cancelled_unstarted": "cancelled",
    "expired": "expired",
    "timed_out": "expired",
}


@pytest.fixture
async def client(db):
    async with FlowFabric(db.url, namespace="test") as client:
        yield client


@pytest.mark.parametrize("state", STATES)
async def test_d70_every_event_knows_its_namespace_and_its_tag(db, engine, make, state):
    await db.execute(
        "insert into ff.meta (name, value) values ('instance_tag_key', 'app.instance') "
        "on conflict (name) do update set value = excluded.value"
    )
    execution = await make.execution(state, tags={"app.instance": "blue"})
    events = await engine.events(execution.id)
    assert {(event["namespace"], event["instance_tag"]) for event in events} == {("test", "blue")}


async def test_d71_an_event_that_commits_late_is_not_missed(db, client, engine):
    cursor = await client.events.open()
    slow, route = Engine(await db.connect()), await engine.register()
    async with slow.connection.transaction():
        late = await slow.submit(route=route)
        early = await engine.submit(route=route)
        page = await client.events.read(cursor)
        assert [event.id.uuid for event in page.events] == [early.id]
    assert (await engine.events(late.id))[0]["event_id"] < (await engine.events(early.id))[0][
        "event_id"
    ]
    page = await client.events.read(page.cursor)
    assert [event.id.uuid for event in page.events] == [late.id]


@pytest.mark.parametrize("state", ENDED)
async def test_d72_the_words_of_the_log_are_those_of_its_readers(client, make, state):
    cursor = await client.events.open()
    await make.execution(state)
    page = await client.events.read(cursor, feed=Feed.COMPLETION)
    assert [event.outcome for event in page.events] == [Outcome(ENDED[state])]


@pytest.mark.parametrize("feed", [Feed.COMPLETION, Feed.LEASE, None])
async def test_d73_a_subscriber_goes_on_where_it_stopped(client, make, feed):
    cursor = await client.events.open()
    await make.execution("completed")
    first = await client.events.read(cursor, feed=feed)
    second = await make.execution("completed")
    rest = await client.events.read(first.cursor, feed=feed)
    assert first.events
    assert {event.id.uuid for event in rest.events} == {second.id}
    assert first.cursor != rest.cursor


async def test_d73_every_partition_can_be_followed(db, client):
    """Each has a position of its own; none is left out."""
    await db.execute("update ff.meta set value = '4' where name = 'partitions'")
    cursors = [await client.events.open(partition=number) for number in (0, 3)]
    for number in (0, 3):
        engine = Engine(db.conn, partition_key=number)
        submitted = await engine.submit()
        await engine.complete(await engine.take(submitted.id))
    pages = await asyncio.gather(
        *(client.events.read(cursor, feed=Feed.LEASE) for cursor in cursors)
    )
    assert [[event.id.partition_key for event in page.events] for page in pages] == [
        [0, 0],
        [3, 3],
    ]
