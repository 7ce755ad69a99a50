"""Two calls on one subscription at the same time: the second waits, and sees what the first did."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta

import pytest

from flowfabric.client import consumer
from flowfabric.core.errors import RetryExhausted, WebhookAlreadyExists
from flowfabric.core.ids import uuid7
from flowfabric.core.subscription import EventFilter
from support.factories import NAMESPACE
from worker.waiting import eventually

from .consuming import begin

TTL = timedelta(seconds=30)
LEASE = "select * from ff.lease_subscription($1, 'billing', $2, 'another', $3, p_cursor => $4)"
WAITING = (
    "select count(*) from pg_stat_activity "
    "where datname = current_database() and wait_event_type = 'Lock'"
)
RESET = "select * from ff.reset_subscription($1, 'billing', $2)"
REMOVE = "select * from ff.remove_subscription($1, 'billing')"


@pytest.fixture
async def first(db):
    """A session whose transaction is open while the other call comes."""
    return await db.connect()


async def behind(first, db, statement, arguments, call):
    """Call while another statement is not committed; return the answers of both."""

    async def patiently():
        while True:
            # On a busy machine a lock may be held for longer than the engine waits.
            with suppress(RetryExhausted):
                return await call()

    async with asyncio.timeout(60):
        transaction = first.transaction()
        await transaction.start()
        told = await first.fetchrow(statement, *arguments)
        running = asyncio.create_task(patiently())
        await eventually(lambda: db.fetchval(WAITING))
        await transaction.commit()
        return told, await running


async def test_two_consumers_that_create_a_subscription_at_once_do_not_both_hold_it(
    db, client, first
):
    cursor = await client.events.open()
    told, lease = await behind(
        first,
        db,
        LEASE,
        (NAMESPACE, uuid7(), TTL, cursor),
        lambda: client.subscriptions.lease(
            "billing", uuid7(), holder_name="me", ttl=TTL, filter=EventFilter(), cursor=cursor
        ),
    )
    assert (told["outcome"], told["is_new"], lease.outcome) == ("leased", True, "busy")
    assert lease.holder_name == "another"


async def test_of_two_webhooks_that_are_added_at_once_with_one_name_the_second_is_refused(
    db, client, first
):
    cursor = await client.events.open()
    with pytest.raises(WebhookAlreadyExists):
        await behind(
            first,
            db,
            "select * from ff.add_webhook($1, 'billing', $2, $3, 'one.example:443', $4)",
            (NAMESPACE, uuid7(), "https://one.example/", cursor),
            lambda: client.webhooks.add("billing", "https://other.example/"),
        )
    assert (await client.webhooks.get("billing")).url == "https://one.example/"


@pytest.mark.parametrize("how", ["taken over", "reset", "removed"])
async def test_an_acknowledgement_that_waits_behind_the_loss_of_the_hold_stores_nothing(
    db, client, first, clock, make, how
):
    holder, cursor = uuid7(), await client.events.open()
    lease = await client.subscriptions.lease(
        "billing", holder, holder_name="me", ttl=TTL, filter=EventFilter(), cursor=cursor
    )
    await make.execution("waiting")
    page = await client.events.read(cursor)
    await clock.advance(seconds=31)
    statement, arguments = {
        "taken over": (LEASE, (NAMESPACE, uuid7(), TTL, None)),
        "reset": (RESET, (NAMESPACE, cursor)),
        "removed": (REMOVE, (NAMESPACE,)),
    }[how]
    told, is_acked = await behind(
        first,
        db,
        statement,
        arguments,
        lambda: client.subscriptions.ack(
            "billing", holder, lease.epoch, ttl=TTL, ack_no=1, cursor=page.cursor, count=1
        ),
    )
    assert (told["outcome"], is_acked) == (how.replace("taken over", "leased"), False)
    rows = await db.fetch("select cursor_text, acked_count from ff.subscription")
    assert [tuple(row) for row in rows] == ([] if how == "removed" else [(cursor, 0)])


async def test_a_row_that_is_locked_for_long_does_not_end_a_consumer(client, make, monkeypatch):
    """As if somebody looked at the subscription in a transaction: the engine gives up after 2 s."""
    monkeypatch.setattr(consumer, "RECONNECT_SECONDS", 0.01)
    await begin(client)
    await make.execution("waiting")
    locked = {"ack": 2, "release": 1}

    def failing(name):
        call = getattr(client.subscriptions, name)

        async def attempt(*args, **options):
            if locked[name]:
                locked[name] -= 1
                raise RetryExhausted(operation=name)
            return await call(*args, **options)

        return attempt

    for name in locked:
        monkeypatch.setattr(client.subscriptions, name, failing(name))
    async with asyncio.timeout(60), client.subscriptions.consume("billing") as events:
        await (await anext(aiter(events))).ack()
    assert locked == {"ack": 0, "release": 0}
    assert (await client.subscriptions.get("billing")).acked_count == 1
