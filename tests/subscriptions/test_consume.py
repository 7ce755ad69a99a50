"""`client.subscriptions`: consumers, their positions, and what ends their turn."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import datetime, timedelta

import pytest

from flowfabric.client import FlowFabric, consumer
from flowfabric.core.errors import (
    ConnectionLost,
    InvalidInput,
    SubscriptionBusy,
    SubscriptionLost,
    SubscriptionNotFound,
    Unavailable,
)
from flowfabric.core.ids import uuid7
from flowfabric.core.states import EventKind
from flowfabric.core.subscription import EventFilter, SubscriptionState
from support.factories import NAMESPACE, Engine
from worker.waiting import eventually

from .consuming import (
    LONG_AGO,
    OUR_CONNECTIONS,
    PATIENCE,
    Pages,
    begin,
    names,
    rest,
    rest_forever,
    stopwatch,
)


async def test_a_new_subscription_begins_now_and_remembers_what_was_acknowledged(client, make):
    await make.execution("completed")
    await begin(client)
    await make.execution("completed")
    assert names(await rest(client)) == ["submitted 1", "claimed 2", "completed 3"]
    assert await rest(client) == []
    await make.execution("waiting")
    assert names(await rest(client)) == ["submitted 1"]


async def test_a_new_subscription_may_begin_at_a_time(client, make):
    await make.execution("leased")
    assert names(await rest(client, since=LONG_AGO)) == ["submitted 1", "claimed 2"]
    assert await rest(client, since=LONG_AGO) == [], "an old one stays where it is"


async def test_events_that_were_not_acknowledged_come_again(client, make):
    await begin(client)
    await make.execution("completed")
    seen = names(await rest(client, ack=False))
    assert seen == ["submitted 1", "claimed 2", "completed 3"]
    assert names(await rest(client)) == seen


async def test_at_most_one_page_comes_again(client, make):
    await begin(client)
    for _ in range(4):
        await make.execution("completed")
    seen = []
    async with aclosing(aiter(client.subscriptions.consume("billing", page_size=3))) as events:
        async for event in events:
            seen.append(event)
            await event.ack()
            if len(seen) == 8:
                break
    again = await rest(client)
    assert names(again) == ["submitted 1", "claimed 2", "completed 3"] * 2
    assert {event.id for event in again[:3]} == {seen[-1].id}


async def test_an_acknowledgement_is_good_for_all_events_before_it(client, make):
    await begin(client)
    for _ in range(3):
        await make.execution("completed")
    *_, last = await rest(client, ack=False, page_size=3)
    assert len(await rest(client, ack=False)) == 9
    async with client.subscriptions.consume("billing", page_size=3) as subscription:
        seen = []
        async for event in subscription:
            seen.append(event)
            if event.id == last.id and event.version == last.version:
                await event.ack()
                break
    assert len(seen) == 9
    assert await rest(client) == []


async def test_filters_choose_events_and_the_others_pass(client, make, engine):
    await begin(client, kinds=["completed", "failed"], tasks=["shop.*"])
    for state, task in (
        ("completed", "shop.pay"),
        ("completed", "shopping"),
        ("failed", "shop.send"),
        ("completed", "other.pay"),
    ):
        await make.execution(state, lane="one", route=await engine.register(lane="one", task=task))
    found = await rest(client, kinds=["completed", "failed"], tasks=["shop.*"])
    assert [(event.task, event.kind) for event in found] == [
        ("shop.pay", EventKind.COMPLETED), ("shop.send", EventKind.FAILED),
    ]  # fmt: skip
    info = await client.subscriptions.get("billing")
    assert (info.kinds, info.tasks) == (["completed", "failed"], ["shop.*"])
    assert (info.acked_count, info.waiting) == (2, 0)


async def test_a_subscription_sees_its_namespace_only(db, client, make):
    await begin(client)
    await Engine(db.conn, namespace="other").submit()
    await make.execution("waiting")
    assert {event.namespace for event in await rest(client)} == {NAMESPACE}


async def test_two_subscriptions_both_get_everything(client, make):
    await begin(client, "one")
    await begin(client, "two")
    await make.execution("completed")
    assert names(await rest(client, "one")) == names(await rest(client, "two"))


async def test_one_consumer_reads_at_a_time_and_the_next_one_takes_over(client, other, make):
    await begin(client)
    await make.execution("leased")
    first = aiter(client.subscriptions.consume("billing"))
    async with asyncio.timeout(PATIENCE), aclosing(first):
        await (await anext(first)).ack()
        with pytest.raises(SubscriptionBusy) as told:
            await rest(other)
        assert told.value.facts["subscription"] == "billing"
        assert told.value.facts["holder_name"]
        waiting = asyncio.ensure_future(
            anext(second := aiter(other.subscriptions.consume("billing", kinds=["claimed"])))
        )
        await (await anext(first)).ack()
    # The first has read everything and let go. The filters of the second are in force now.
    async with asyncio.timeout(PATIENCE), aclosing(second):
        await make.execution("leased")
        assert names([await waiting]) == ["claimed 2"]


async def test_a_consumer_that_waits_for_its_turn_lives_through_an_outage(
    client, other, make, monkeypatch
):
    monkeypatch.setattr(consumer, "BUSY_SECONDS", 0.01)
    monkeypatch.setattr(consumer, "RECONNECT_SECONDS", 0.01)
    lease, asked, is_away = other.subscriptions.lease, asyncio.Event(), False

    async def failing(*args, **options):
        asked.set()
        if is_away:
            raise ConnectionLost("the server is away")
        return await lease(*args, **options)

    async def until_asked(times):
        for _ in range(times):
            asked.clear()
            await asked.wait()

    monkeypatch.setattr(other.subscriptions, "lease", failing)
    await begin(client)
    await make.execution("waiting")
    async with asyncio.timeout(PATIENCE), client.subscriptions.consume("billing") as first:
        event = await anext(aiter(first))
        waiting = asyncio.create_task(anext(aiter(other.subscriptions.consume("billing"))))
        await until_asked(2)
        is_away = True
        await until_asked(3)
        is_away = False
        await event.ack()
        await first.__aexit__(None, None, None)
        second = await make.execution("waiting")
        assert (await waiting).id.uuid == second.id
        # A consumer that begins during an outage gets an error.
        is_away = True
        with pytest.raises(ConnectionLost):
            await anext(aiter(other.subscriptions.consume("audit")))


async def test_a_killed_consumer_is_replaced_when_its_hold_has_run_out(client, other, make, clock):
    await begin(client)
    await make.execution("completed")
    dead = aiter(client.subscriptions.consume("billing"))
    *_, last = [await anext(dead) for _ in range(3)]
    with pytest.raises(SubscriptionBusy):
        await rest(other)
    await clock.advance(seconds=31)
    found = await rest(other)
    assert names(found) == ["submitted 1", "claimed 2", "completed 3"]
    # The dead one was only slow. What it acknowledges now is refused, and moves nothing.
    async with asyncio.timeout(PATIENCE), aclosing(dead):
        with pytest.raises(SubscriptionLost):
            await last.ack()
    assert await rest(other) == []


async def test_a_reset_during_a_page_refuses_the_page_and_reads_again(client, other, make):
    await begin(client)
    await make.execution("completed")
    async with asyncio.timeout(PATIENCE), client.subscriptions.consume("billing") as subscription:
        events = aiter(subscription)
        page = [await anext(events) for _ in range(3)]
        await other.subscriptions.reset("billing", since=LONG_AGO, reason="again", actor="op")
        with pytest.raises(SubscriptionLost):
            await page[-1].ack()
        again = [await anext(events) for _ in range(3)]
        assert names(again) == names(page)
        await again[-1].ack()
    info = await client.subscriptions.get("billing")
    assert (info.changed_by, info.reason, info.holder_name) == ("op", "again", None)
    assert await rest(client) == []


async def test_a_reset_to_now_skips_what_waits(client, make):
    await begin(client)
    await make.execution("completed")
    await client.subscriptions.reset("billing")
    assert await rest(client) == []


async def test_a_consumer_lives_through_cut_connections(db, client, make):
    await begin(client)
    async with asyncio.timeout(PATIENCE), client.subscriptions.consume("billing") as subscription:
        events = aiter(subscription)
        for _ in range(3):
            await db.fetch(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and application_name like 'flowfabric%'"
            )
            execution = await make.execution("waiting")
            event = await anext(events)
            assert event.id.uuid == execution.id
            await event.ack()
    assert await rest(client) == []


async def test_consumers_end_with_their_client(db, make, monkeypatch):
    """One that reads, one that waits for its turn, and one that acknowledges."""
    monkeypatch.setattr(consumer, "BUSY_SECONDS", 0.01)
    client = await FlowFabric(db.url, namespace=NAMESPACE).open()
    await begin(client)
    await make.execution("waiting")
    events = aiter(client.subscriptions.consume("billing"))
    async with asyncio.timeout(PATIENCE):
        event = await anext(events)
        waiting = [
            asyncio.create_task(anext(events)),
            asyncio.create_task(anext(aiter(client.subscriptions.consume("billing")))),
        ]
        asked = Pages(client, monkeypatch)
        await asked.read(1)
        await client.close()
        for one in waiting:
            with pytest.raises(Unavailable, match="closed"):
                await one
        with pytest.raises(Unavailable, match="closed"):
            await event.ack()
        with pytest.raises(Unavailable, match="closed"):
            await anext(aiter(client.subscriptions.consume("billing")))
        await eventually(lambda: db.fetchval(f"select ({OUR_CONNECTIONS}) = 0"))


async def test_a_consumer_ends_while_a_position_waits_for_a_database_that_is_away(
    client, make, monkeypatch
):
    await begin(client)
    for _ in range(2):
        await make.execution("completed")
    tried = asyncio.Event()

    async def away(*_, ack_no=None, **__):
        if ack_no is not None:
            tried.set()
        raise ConnectionLost("The connection was lost.")

    # So that the second page is stored later, however slow the machine is.
    monkeypatch.setattr(consumer, "monotonic", lambda: 1000.0)
    async with asyncio.timeout(PATIENCE):
        events = aiter(client.subscriptions.consume("billing", page_size=3))
        await (await anext(events)).ack()
        for _ in range(2):
            last = await anext(events)
        # The first page is stored at once, the next one in a moment.
        await last.ack()
        monkeypatch.setattr(client.subscriptions, "ack", away)
        for _ in range(3):
            last = await anext(events)
        await last.ack()
        await tried.wait()
        await events.aclose()


async def test_consumers_of_a_client_share_one_listening_connection(db, client, make):
    for name in ("one", "two", "three"):
        await begin(client, name)
    streams = [aiter(client.subscriptions.consume(name)) for name in ("one", "two", "three")]
    await make.execution("waiting")
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(anext(stream) for stream in streams))
    listening = (
        "select count(*) from pg_stat_activity where datname = current_database() "
        "and application_name like '%subscriptions'"
    )
    assert await db.fetchval(listening) == 1
    for stream in streams:
        await stream.aclose()
    assert await client.subscriptions.list() != []


async def test_the_position_is_stored_seldom_while_only_unwanted_events_pass(client, make, db):
    """But it is stored when the consumer ends."""
    await begin(client)
    before = await db.fetchval("select cursor_text from ff.subscription")
    await make.execution("leased")
    assert await rest(client, kinds=["failed"]) == []
    after = await db.fetchrow("select cursor_text, acked_count from ff.subscription")
    assert after["cursor_text"] != before
    assert after["acked_count"] == 0


async def test_the_position_is_stored_after_30_s_even_if_nothing_follows(
    client, make, db, monkeypatch
):
    """One unwanted event passes, and then it is quiet."""
    await begin(client)
    before = await db.fetchval("select cursor_text from ff.subscription")
    pages = Pages(client, monkeypatch)
    passed = stopwatch(monkeypatch, consumer)
    consuming = asyncio.create_task(rest_forever(client, kinds=["failed"]))
    try:
        await make.execution("waiting")
        await pages.read(3)
        assert await db.fetchval("select cursor_text from ff.subscription") == before
        passed.seconds = 31
        async with asyncio.timeout(PATIENCE):
            while await db.fetchval("select cursor_text from ff.subscription") == before:
                await pages.read(1)
        (info,) = await client.subscriptions.list()
        assert (info.waiting, info.acked_count) == (0, 0)
    finally:
        consuming.cancel()
        await asyncio.wait([consuming])


async def test_a_list_says_who_reads_and_how_far_behind(client, make):
    await begin(client)
    (info,) = await client.subscriptions.list()
    assert (info.state, info.waiting, info.behind_at) == (SubscriptionState.IDLE, 0, None)
    await make.execution("leased")
    (info,) = await client.subscriptions.list()
    assert info.waiting == 2
    assert info.behind_at is not None
    async with client.subscriptions.consume("billing") as subscription:
        await anext(aiter(subscription))
        (info,) = await client.subscriptions.list()
        assert info.state == SubscriptionState.CONSUMED
        assert info.holder_name


async def test_a_removed_subscription_is_gone_and_begins_anew(client, make):
    await begin(client)
    await make.execution("waiting")
    await client.subscriptions.remove("billing")
    await client.subscriptions.remove("billing")
    with pytest.raises(SubscriptionNotFound):
        await client.subscriptions.get("billing")
    with pytest.raises(SubscriptionNotFound):
        await client.subscriptions.reset("billing")
    assert await rest(client) == []


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"name": "a b"}, "name"),
        ({"name": ""}, "name"),
        ({"name": "x" * 257}, "name"),
        ({"kinds": ["nope"]}, "kinds"),
        ({"kinds": "completed"}, "kinds"),
        ({"kinds": []}, "kinds"),
        ({"kinds": 5}, "kinds"),
        ({"tasks": []}, "tasks"),
        ({"tasks": "shop"}, "tasks"),
        ({"tasks": [5]}, "tasks"),
        ({"lanes": ["x" * 257]}, "lanes"),
        ({"instance_tags": []}, "instance_tags"),
        ({"instance_tags": 5}, "instance_tags"),
        ({"since": datetime(2026, 1, 1)}, "since"),  # noqa: DTZ001
        ({"on_expiry": "ignore"}, "on_expiry"),
        ({"keep": timedelta(days=31)}, "keep"),
        ({"lease_ttl": timedelta(0)}, "lease_ttl"),
        ({"lease_ttl": 30}, "lease_ttl"),
        ({"page_size": 0}, "page_size"),
    ],
    ids=str,
)
async def test_bad_filters_are_refused_by_name_and_change_nothing(client, options, field):
    with pytest.raises(InvalidInput) as told:
        await rest(client, options.pop("name", "billing"), **options)
    assert told.value.field == field
    assert await client.subscriptions.list() == []


async def test_a_namespace_has_at_most_a_hundred_subscriptions(client, db):
    await begin(client)
    await db.execute(
        "insert into ff.subscription (namespace, name, cursor_text, on_expiry, keep, created_at) "
        "select namespace, 'n' || n, cursor_text, on_expiry, keep, created_at "
        "from ff.subscription, generate_series(1, 99) n"
    )
    with pytest.raises(Exception, match="number of subscriptions; remove one") as told:
        await rest(client, "one-too-many")
    assert told.value.code == "WF227"
    await rest(client, "n7")


async def test_a_late_repeat_does_not_put_the_position_back(client, make):
    """As after a lost connection: the first acknowledgement arrives again after the second."""
    holder, ttl = uuid7(), timedelta(seconds=30)
    cursors = [await client.events.open()]
    for _ in range(2):
        await make.execution("waiting")
        cursors.append((await client.events.read(cursors[-1])).cursor)
    lease = await client.subscriptions.lease(
        "billing", holder, holder_name="me", ttl=ttl, filter=EventFilter(), cursor=cursors[0]
    )
    for ack_no in (1, 2, 2, 1):
        assert await client.subscriptions.ack(
            "billing", holder, lease.epoch, ttl=ttl, ack_no=ack_no, cursor=cursors[ack_no], count=1
        )
    info = await client.subscriptions.get("billing")
    assert (info.waiting, info.acked_count) == (0, 2)
    for wrong in (lease.epoch - 1, lease.epoch + 1):
        assert not await client.subscriptions.ack(
            "billing", holder, wrong, ttl=ttl, ack_no=3, cursor=cursors[0]
        )
    assert not await client.subscriptions.ack(
        "billing", uuid7(), lease.epoch, ttl=ttl, ack_no=3, cursor=cursors[0]
    )
    assert (await client.subscriptions.get("billing")).waiting == 0
