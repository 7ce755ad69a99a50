"""`app.subscribe` and `app.subscribe_sync`."""

from __future__ import annotations

import asyncio

import pytest

from flowfabric import App, SubscribedEvent, SubscriptionLost
from flowfabric.core.errors import InvalidInput
from support.factories import NAMESPACE

from .consuming import LONG_AGO, PATIENCE, names


@pytest.fixture
async def app(db):
    async with App(name="shop", database_url=db.url, namespace=NAMESPACE) as app:
        yield app


async def test_an_app_subscribes_by_task_and_kind(app, make, engine):
    events = app.subscribe("billing", kinds=["completed"], task="shop.*", follow=False)
    assert [event async for event in events] == []
    for task in ("shop.pay", "other.pay"):
        route = await engine.register(lane="one", task=task)
        await make.execution("completed", lane="one", route=route)
    async for event in events:
        assert isinstance(event, SubscribedEvent)
        assert (event.task, event.kind) == ("shop.pay", "completed")
        await event.ack()
    assert [event async for event in events] == []


async def test_a_loop_that_is_left_lets_the_next_consumer_in(app, make):
    await make.execution("completed")
    async with asyncio.timeout(PATIENCE):
        async for event in app.subscribe("billing", since=LONG_AGO, page_size=1):
            await event.ack()
            break
        # It waits until the first consumer has let go, which takes no time.
        async for event in app.subscribe("billing"):
            assert names([event]) == ["claimed 2"]
            break


async def test_synchronous_code_consumes_and_acknowledges(app, make):
    await make.execution("completed")

    def consume() -> list[str]:
        seen = []
        for event in app.subscribe_sync("billing", since=LONG_AGO, follow=False):
            seen.append(event)
            event.ack_sync()
        return names(seen)

    def leave() -> str:
        for event in app.subscribe_sync("billing", since=LONG_AGO, page_size=1):
            event.ack_sync()
            return f"{event.kind} {event.version}"
        raise AssertionError("the loop waits for events")

    # A loop that is left lets the next consumer in at once.
    async with asyncio.timeout(PATIENCE):
        assert await asyncio.to_thread(leave) == "submitted 1"
        assert await asyncio.to_thread(consume) == ["claimed 2", "completed 3"]
        assert await asyncio.to_thread(consume) == []
    (event,) = [event async for event in app.subscribe("other", since=LONG_AGO, follow=False)][:1]
    with pytest.raises(InvalidInput):
        await asyncio.to_thread(event.ack_sync)


async def test_an_event_of_a_consumer_that_ended_cannot_be_acknowledged(app, make):
    """Its lease was given up, and another consumer may have taken it."""
    await make.execution("completed")
    seen = [event async for event in app.subscribe("billing", since=LONG_AGO, follow=False)]
    with pytest.raises(SubscriptionLost):
        await seen[-1].ack()
    again = [event async for event in app.subscribe("billing", follow=False)]
    assert names(again) == names(seen)
