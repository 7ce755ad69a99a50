"""`subscription` and `webhook`: what an operator sees of them, and does to them."""

from __future__ import annotations

import pytest

from flowfabric.client import FlowFabric
from support.factories import NAMESPACE


@pytest.fixture
async def client(db):
    async with FlowFabric(db.url, namespace=NAMESPACE) as client:
        yield client


async def consume(client, **options) -> int:
    count = 0
    async for event in client.subscriptions.consume("billing", follow=False, **options):
        await event.ack()
        count += 1
    return count


async def test_subscriptions_are_listed_with_how_far_they_are_behind(ff, client, make):
    assert await consume(client, kinds=["completed"]) == 0
    await make.execution("completed")
    (line,) = (await ff("subscription", "ls")).lines
    assert (line["name"], line["kinds"], line["waiting"]) == ("billing", ["completed"], 3)
    table = (await ff("subscription", "ls", "-o", "table")).out.splitlines()
    assert table[0].split() == [
        "SUBSCRIPTION", "STATE", "CONSUMER", "BEHIND", "WAITING", "ACKED", "KINDS", "TASKS",
    ]  # fmt: skip
    assert table[1].split()[:3] == ["billing", "idle", "-"]


async def test_no_subscriptions_are_no_mistake(ff, db):
    found = await ff("subscription", "ls", "-o", "table")
    assert (found.code, found.out) == (0, "")
    assert "no subscriptions yet" in found.err


async def test_a_subscription_is_reset_to_now_or_to_a_time(ff, client, make):
    assert await consume(client) == 0
    await make.execution("completed")
    line = (
        await ff("subscription", "reset", "billing", "--now", "-r", "flood", "--actor", "ann")
    ).line
    assert (line["waiting"], line["reason"], line["changed_by"]) == (0, "flood", "ann")
    assert await consume(client) == 0
    line = (await ff("subscription", "reset", "billing", "--since", "1h")).line
    assert line["waiting"] == 3
    assert await consume(client) == 3


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("reset", "billing"), 2, "--since or --now"),
        (("reset", "billing", "--now", "--since", "1h"), 2, "--since or --now"),
        (("reset", "billing", "--since", "soon"), 2, "since"),
        (("reset", "billing", "--now"), 3, "no such subscription"),
        (("rm", "billing"), 3, "no such subscription"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, tuple) else None,
)
async def test_a_mistake_is_told_with_its_exit_code(ff, db, arguments, code, said):
    found = await ff("subscription", *arguments)
    assert found.code == code
    assert said in found.err


async def test_a_subscription_is_removed(ff, client):
    await consume(client)
    assert (await ff("subscription", "rm", "billing")).code == 0
    assert await client.subscriptions.list() == []


async def test_a_webhook_is_added_listed_and_removed(ff, client):
    url = "https://hooks.example.com/x"
    line = (await ff("webhook", "add", url, "--kinds", "completed,failed", "--actor", "ann")).line
    assert (line["name"], line["host"]) == ("hooks.example.com", "hooks.example.com:443")
    assert line["secret"].startswith("whsec_")
    (line,) = (await ff("webhook", "ls")).lines
    assert (line["url"], line["kinds"], line["state"]) == (url, ["completed", "failed"], "enabled")
    assert "secret" not in line
    table = (await ff("webhook", "ls", "-o", "table")).out.splitlines()
    assert table[0].split() == [
        "WEBHOOK", "STATE", "HOST", "KINDS", "POSTED", "BEHIND", "FAILURES", "RETRY", "ANSWER",
    ]  # fmt: skip
    assert (await ff("webhook", "enable", "hooks.example.com")).line["state"] == "enabled"
    assert (await ff("webhook", "rm", "hooks.example.com")).code == 0
    assert "no webhooks" in (await ff("webhook", "ls", "-o", "table")).err


async def test_a_test_post_obeys_the_rules_of_a_worker(ff, client):
    await client.webhooks.add("crm", "https://hooks.example.com/x")
    found = await ff("webhook", "test", "crm")
    assert found.code == 1
    assert "hooks.example.com:443 is not in FLOWFABRIC_WEBHOOK_HOSTS" in found.out


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("add", "http://hooks.example.com"), 2, "https://"),
        (("add", "https://127.1/"), 2, "203.0.113.7"),
        (("add", "https://hooks.example.com", "--kinds", "nope"), 2, "kinds"),
        (("enable", "crm"), 3, "no such webhook"),
        (("rm", "crm"), 3, "no such webhook"),
        (("test", "crm"), 3, "no such webhook"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, tuple) else None,
)
async def test_a_mistake_with_a_webhook_is_told_with_its_exit_code(ff, db, arguments, code, said):
    found = await ff("webhook", *arguments)
    assert found.code == code
    assert said in found.err
