"""Webhooks: posts, signatures, failures, and who may do what."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial

import pytest

from flowfabric import App
from flowfabric.app import app as app_module
from flowfabric.app import webhooks
from flowfabric.app.webhooks import WebhookDelivery
from flowfabric.core.errors import (
    InvalidInput,
    IsWebhook,
    WebhookAlreadyExists,
    WebhookNotFound,
)
from flowfabric.core.ids import uuid7
from flowfabric.core.states import EventKind
from support.database import home
from support.factories import NAMESPACE, Item
from worker.apps import working
from worker.waiting import eventually

from .consuming import PATIENCE, Pages, begin, rest, stopwatch
from .receiver import is_signed, receiving


@pytest.fixture
async def receiver():
    async with receiving() as receiver:
        yield receiver


@pytest.fixture
def delivery(client, receiver):
    return WebhookDelivery(client, receiver.allowed, resolve=receiver.resolve, trust=receiver.trust)


async def add(client, receiver, **options) -> str:
    return await client.webhooks.add("crm", receiver.url, **options)


async def post(delivery) -> int:
    async with asyncio.timeout(60):
        return await delivery.serve("crm", follow=False)


async def test_a_post_says_what_happened_and_is_signed(client, make, receiver, delivery):
    secret = await add(client, receiver, kinds=["completed", "failed"])
    first = await make.execution("completed")
    await make.execution("failed")
    assert await post(delivery) == 2
    assert [body["type"] for body in receiver.bodies] == ["completed", "failed"]
    line, headers, body = receiver.requests[0]
    assert line == "POST /events?x=1 HTTP/1.1"
    assert headers["host"] == f"hooks.example.com:{receiver.port}"
    assert is_signed(secret, headers, body)
    assert not is_signed(secret, headers, body + b" ")
    assert receiver.bodies[0]["data"] == {
        "execution_id": str(first.id),
        "id": f"{{fp:{home()}}}:{first.id}",
        "version": 3,
        "task": "tests.work",
        "lane": "lane-1",
        "namespace": "test",
        "outcome": "success",
        "attempt": 1,
        "flow_id": None,
    }
    assert await post(delivery) == 0
    assert (await client.webhooks.get("crm")).acked_count == 2


async def test_details_are_posted_only_on_request(client, make, receiver, delivery):
    await add(client, receiver, kinds=["failed"], has_detail=True)
    await make.execution("failed")
    await post(delivery)
    assert receiver.bodies[0]["data"]["detail"]


async def test_a_secret_is_shown_once_and_stored_as_blocks(client, db, receiver):
    secret = await add(client, receiver)
    assert secret.startswith("whsec_")
    row = await db.fetchval("select s::text from ff.subscription s")
    assert secret.removeprefix("whsec_") not in row
    assert secret not in str(await client.webhooks.list())


async def test_a_post_that_fails_is_tried_again_later(client, make, clock, receiver, delivery):
    await add(client, receiver, kinds=["completed"])
    await clock.freeze()
    first = await make.execution("completed")
    await make.execution("completed")
    receiver.statuses = [204, 500]
    await post(delivery)
    info = await client.webhooks.get("crm")
    assert (info.state, info.failure_count, info.answer) == ("failing", 1, "HTTP 500")
    assert info.retry_at == await clock.now() + timedelta(seconds=5)
    assert await post(delivery) == 0, "not before its time"
    await clock.advance(seconds=5)
    assert await post(delivery) == 1, "the first one was accepted before"
    ids = [headers["webhook-id"] for _, headers, _ in receiver.requests]
    assert ids[0].startswith(str(first.id))
    assert ids[1] == ids[2] != ids[0]
    info = await client.webhooks.get("crm")
    assert (info.state, info.failure_count, info.retry_at) == ("enabled", 0, None)


async def test_another_worker_posts_a_page_again_and_its_ids_tell(
    client, other, make, clock, receiver, delivery
):
    await add(client, receiver, kinds=["completed"])
    await make.execution("completed")
    await make.execution("completed")
    receiver.statuses = [204, 302]
    await post(delivery)
    assert "redirects" in (await client.webhooks.get("crm")).answer
    await clock.advance(seconds=6)
    another = WebhookDelivery(
        other, receiver.allowed, resolve=receiver.resolve, trust=receiver.trust
    )
    assert await post(another) == 2
    ids = [headers["webhook-id"] for _, headers, _ in receiver.requests]
    assert ids == [ids[0], ids[1], ids[0], ids[1]]


@pytest.mark.parametrize("how", ["reset", "added again"])
async def test_what_a_receiver_accepted_before_is_posted_again_after_a_reset(
    client, make, clock, receiver, delivery, how
):
    """Another receiver may have the name now, or the first one may have lost what it accepted."""
    began = await clock.freeze()
    await add(client, receiver, kinds=["completed"])
    for _ in range(2):
        await make.execution("completed")
    receiver.statuses = [204, 500]
    await post(delivery)
    await clock.advance(seconds=5)
    if how == "reset":
        await client.subscriptions.reset("crm", since=began)
    else:
        await client.webhooks.remove("crm")
        await add(client, receiver, kinds=["completed"], since=began)
    assert await post(delivery) == 2


async def test_all_events_of_a_large_transaction_are_posted(
    client, engine, db, receiver, delivery, monkeypatch
):
    """A page holds whole transactions, and one call signs at most 1 000 bodies."""
    posted = []

    async def accept(self, id, body, signed) -> int:
        posted.append(id)
        return 204

    monkeypatch.setattr(webhooks.Poster, "post", accept)
    await add(client, receiver, kinds=["submitted"])
    route = await engine.register()
    async with db.conn.transaction():
        for count in (1000, 1):
            await engine.submit_many([Item(route=route)] * count)
    assert await post(delivery) == 1001
    assert len(set(posted)) == 1001


async def test_waits_grow_and_after_many_failures_the_webhook_is_disabled_with_an_event(
    db, client, make, clock, receiver, delivery
):
    await add(client, receiver, kinds=["completed"])
    await begin(client, "watch", kinds=["webhook_disabled"])
    await clock.freeze()
    await make.execution("completed")
    receiver.statuses = [503] * 24
    waits = []
    for _ in range(24):
        await post(delivery)
        info = await client.webhooks.get("crm")
        if info.retry_at is not None:
            waits.append((info.retry_at - await clock.now()).total_seconds())
            await clock.set(info.retry_at)
    assert waits[:4] == [5, 10, 20, 40]
    assert waits == sorted(waits)
    assert (len(waits), waits[-1]) == (23, 3600)
    assert info.state == "disabled"
    (event,) = await rest(client, "watch", kinds=["webhook_disabled"])
    assert event.kind == EventKind.WEBHOOK_DISABLED
    assert event.detail == {"webhook": "crm", "failures": 24, "answer": "HTTP 503"}
    find = "select count(*) from ff.execution where execution_id = $1"
    assert await db.fetchval(find, event.id.uuid) == 0
    await clock.advance(days=1)
    assert await client.webhooks.due() == []
    assert await post(delivery) == 0
    await client.webhooks.enable("crm", reason="repaired", actor="ann")
    assert await post(delivery) == 1
    # The event is trimmed in the end, as those of executions are.
    await clock.advance(days=30)
    await client.retention.trim_executions(limit=500)
    await client.retention.trim_events(limit=500)
    assert await db.fetchval("select count(*) from ff.event where kind = 'webhook_disabled'") == 0


async def test_a_host_that_is_not_listed_is_not_served(client, make, receiver):
    from flowfabric.core.webhook import Allowed

    await add(client, receiver)
    await make.execution("completed")
    delivery = WebhookDelivery(client, Allowed.parse("other.example", ""))
    await delivery.look()
    assert delivery._serving == {}
    assert receiver.requests == []


async def test_a_url_that_the_rules_forbid_is_a_failure_even_if_it_was_stored_with_sql(
    client, make, db, receiver, delivery
):
    await db.fetch(
        "select ff.add_webhook('test', 'crm', gen_random_uuid(), $1, $2, $3)",
        f"https://user@hooks.example.com:{receiver.port}/",
        f"hooks.example.com:{receiver.port}",
        await client.events.open(),
    )
    await make.execution("waiting")
    assert await post(delivery) == 0
    info = await client.webhooks.get("crm")
    assert (info.state, "a user or a password" in info.answer) == ("failing", True)
    assert receiver.requests == []


async def test_a_receiver_with_the_certificate_of_another_host_gets_nothing(client, make):
    async with receiving("evil.example.com") as receiver:
        await add(client, receiver)
        await make.execution("waiting")
        delivery = WebhookDelivery(
            client, receiver.allowed, resolve=receiver.resolve, trust=receiver.trust
        )
        await post(delivery)
        assert receiver.requests == []
    assert "certificate" in (await client.webhooks.get("crm")).answer.lower()


async def test_a_worker_serves_webhooks_beside_its_work(client, make, receiver, delivery):
    await add(client, receiver, kinds=["submitted"])
    running = asyncio.create_task(delivery.run())
    try:
        async with asyncio.timeout(60):
            await make.execution("waiting")
            await receiver.arrived.wait()
    finally:
        running.cancel()
        await asyncio.wait([running])
    assert (await client.webhooks.get("crm")).holder_name is None


@asynccontextmanager
async def serving(url):
    """A process with a worker, with the settings of the environment."""
    async with App(database_url=url, namespace=NAMESPACE) as app:
        app.task(name="nothing")(lambda: None)
        async with working(app):
            yield


async def has_acked(client, number) -> bool:
    return (await client.webhooks.get("crm")).acked_count == number


async def test_any_worker_whose_settings_list_the_host_posts(
    client, make, db, receiver, monkeypatch
):
    """The first one stops, and the second one goes on; a worker without the host does nothing."""
    monkeypatch.setattr(
        app_module,
        "WebhookDelivery",
        partial(WebhookDelivery, resolve=receiver.resolve, trust=receiver.trust),
    )
    monkeypatch.setattr(webhooks, "LOOK_SECONDS", 0.05)
    await add(client, receiver, kinds=["submitted"])
    async with asyncio.timeout(PATIENCE), serving(db.url):
        monkeypatch.setenv("FLOWFABRIC_WEBHOOK_HOSTS", f"hooks.example.com:{receiver.port}")
        monkeypatch.setenv("FLOWFABRIC_WEBHOOK_NETWORKS", "127.0.0.0/8")
        for number in (1, 2):
            async with serving(db.url):
                await make.execution("waiting")
                # A process that ends before it has stored its position would leave a repeat.
                await eventually(partial(has_acked, client, number))
            assert len(receiver.requests) == number
            assert (await client.webhooks.get("crm")).holder_name is None
        await make.execution("waiting")
        assert len(await client.webhooks.due()) == 1
    assert len(receiver.requests) == 2


async def test_the_position_of_a_webhook_is_stored_after_30_s_even_if_nothing_follows(
    client, make, db, receiver, delivery, monkeypatch
):
    await add(client, receiver, kinds=["failed"])
    before = await db.fetchval("select cursor_text from ff.subscription")
    monkeypatch.setattr(webhooks, "POLL_SECONDS", 0.05)
    pages = Pages(client, monkeypatch)
    passed = stopwatch(monkeypatch, webhooks)
    serving = asyncio.create_task(delivery.serve("crm"))
    try:
        await make.execution("waiting")
        await pages.read(3)
        assert await db.fetchval("select cursor_text from ff.subscription") == before
        passed.seconds = 31
        async with asyncio.timeout(PATIENCE):
            while await db.fetchval("select cursor_text from ff.subscription") == before:
                await pages.read(1)
    finally:
        serving.cancel()
        await asyncio.wait([serving])
    assert receiver.requests == []


async def test_two_workers_do_not_serve_one_webhook(client, other, receiver):
    await add(client, receiver)
    lease = await client.webhooks.lease("crm", uuid7(), holder_name="a", ttl=timedelta(seconds=30))
    assert lease.outcome == "leased"
    assert (
        await other.webhooks.lease("crm", uuid7(), holder_name="b", ttl=timedelta(seconds=30))
    ).outcome == "busy"
    assert await other.webhooks.due() == []


async def test_a_worker_that_lost_its_hold_signs_and_fails_nothing(client, clock, receiver):
    await add(client, receiver)
    old, new = uuid7(), uuid7()
    lease = await client.webhooks.lease("crm", old, holder_name="a", ttl=timedelta(seconds=30))
    await clock.advance(seconds=31)
    await client.webhooks.lease("crm", new, holder_name="b", ttl=timedelta(seconds=30))
    assert await client.webhooks.sign("crm", ["x"], [b""], holder_id=old, epoch=lease.epoch) is None
    answer = await client.webhooks.fail("crm", old, lease.epoch, ack_no=1, answer="late")
    assert answer == "subscription_lost"
    assert (await client.webhooks.get("crm")).failure_count == 0


async def test_a_failure_is_counted_once(client, clock, receiver):
    """Neither a late repeat counts, nor another failure before the next try."""
    await add(client, receiver)
    holder = uuid7()
    lease = await client.webhooks.lease("crm", holder, holder_name="a", ttl=timedelta(seconds=30))
    for ack_no in (2, 3):
        await client.webhooks.fail("crm", holder, lease.epoch, ack_no=ack_no, answer="HTTP 500")
    await clock.advance(seconds=6)
    for ack_no in (1, 2):
        await client.webhooks.fail("crm", holder, lease.epoch, ack_no=ack_no, answer="HTTP 500")
    assert (await client.webhooks.get("crm")).failure_count == 1


async def test_names_are_shared_with_subscriptions(client, receiver):
    await add(client, receiver)
    with pytest.raises(WebhookAlreadyExists):
        await add(client, receiver)
    with pytest.raises(IsWebhook):
        await rest(client, "crm")
    await begin(client, "billing")
    with pytest.raises(WebhookAlreadyExists):
        await client.webhooks.add("billing", receiver.url)
    assert [one.name for one in await client.subscriptions.list()] == ["billing"]
    assert [one.name for one in await client.webhooks.list()] == ["crm"]


async def test_a_removed_webhook_is_gone(client, receiver):
    await add(client, receiver)
    await client.webhooks.remove("crm")
    for call in (client.webhooks.get("crm"), client.webhooks.enable("crm")):
        with pytest.raises(WebhookNotFound):
            await call


@pytest.mark.parametrize(
    ("url", "options", "field"),
    [
        ("http://hooks.example.com/", {}, "url"),
        ("https://x@hooks.example.com/", {}, "url"),
        ("https://hooks.example.com/", {"kinds": ["nope"]}, "kinds"),
        ("https://hooks.example.com/", {"tasks": []}, "tasks"),
    ],
)
async def test_a_bad_webhook_is_refused_by_name(client, url, options, field):
    with pytest.raises(InvalidInput) as told:
        await client.webhooks.add("crm", url, **options)
    assert told.value.field == field
    assert await client.webhooks.list() == []
