"""`quota` and `budget`: what an operator sees of both, and does to them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from flowfabric import Budget, Limit
from flowfabric.client import FlowFabric
from flowfabric.core.execution import Route, Submission
from flowfabric.core.ids import mint
from flowfabric.core.limit import Gate
from support.admission import in_one_partition
from support.factories import NAMESPACE

TENANT = Limit("tenant", concurrency=2, rate="100/min", key="tenant")
MONTHLY = Budget("monthly", key="tenant", usd="50.00", tokens=1000, period="month")


@pytest.fixture
async def client(db):
    async with FlowFabric(db.url, namespace=NAMESPACE) as client:
        yield client


async def submit(client: FlowFabric, key: str = "acme", *, number: int = 1) -> None:
    """Submit executions under both limits."""
    for _ in range(number):
        await client.executions.submit(
            Submission(
                id=mint(),
                route=Route(NAMESPACE, "mail", "tests.work"),
                payload=b"null",
                quotas=(Gate(NAMESPACE, TENANT, key),),
                budgets=(Gate(NAMESPACE, MONTHLY, key),),
            )
        )


async def claim(client: FlowFabric, limit: int = 10) -> int:
    claimed = await client.executions.claim(
        worker_id="w", worker_instance_id="w-1", limit=limit, lease_ttl=timedelta(hours=1)
    )
    return len(claimed)


async def test_quotas_are_listed_with_the_numbers_in_force(ff, client):
    found = await ff("quota", "ls", "-o", "table")
    assert (found.code, found.out) == (0, "")
    assert "no quotas yet" in found.err
    await submit(client)
    line = (await ff("quota", "ls")).line
    assert (line["quota"], line["concurrency"], line["rate"]) == ("tenant", 2, 100)
    table = (await ff("quota", "ls", "-o", "table")).out.splitlines()
    assert table[0].split() == [
        "QUOTA", "KEYED", "LIMIT", "RATE", "OVERFLOW", "SET", "CHANGED", "REASON",
    ]  # fmt: skip
    assert table[1].split() == ["tenant", "yes", "2", "100/min", "queue", "-"]


@in_one_partition
async def test_a_quota_shows_what_runs_and_what_waits_in_line(ff, client):
    await submit(client, number=5)
    await submit(client, "beta")
    assert await claim(client) == 3
    gates = {gate["key"]: gate for gate in (await ff("quota", "show", "tenant")).line["gates"]}
    assert {key: (gate["running"], gate["in_line"]) for key, gate in gates.items()} == {
        "acme": (2, 3),
        "beta": (1, 0),
    }
    one = (await ff("quota", "show", "tenant", "--for", "beta")).line
    assert [gate["key"] for gate in one["gates"]] == ["beta"]
    table = (await ff("quota", "show", "tenant", "-o", "table")).out
    assert "in the code  concurrency 2, rate 100/min" in table
    lanes = (await ff("lane", "ls", "-o", "table")).out.splitlines()
    assert lanes[0].split()[2:5] == ["WAITING", "IN", "LINE"]
    assert lanes[1].split()[2:4] == ["0", "3"]
    (traffic,) = (await ff("top", "--once")).line["lanes"]
    assert (traffic["in_line"], traffic["is_more_in_line"]) == (3, False)
    assert "IN LINE" in (await ff("top", "--once", "-o", "table")).out


@in_one_partition
async def test_numbers_are_set_for_a_key_lifted_and_the_quota_removed(ff, client):
    await submit(client, number=6)
    set_ = ("quota", "set", "tenant", "--concurrency", "4", "--for", "acme")
    line = (await ff(*set_, "--reason", "big import", "--actor", "ann")).line
    assert [gate["concurrency"] for gate in line["gates"]] == [4]
    assert line["keys_set"] == 1
    facts = [(gate["is_set"], gate["reason"], gate["changed_by"]) for gate in line["gates"]]
    assert facts == [(True, "big import", "ann")]
    assert await claim(client) == 4
    await submit(client, "beta")
    table = (await ff("quota", "show", "tenant", "-o", "table")).out.splitlines()
    acme, beta = (line.split() for line in table[-2:])
    assert (acme[0], acme[-5:]) == ("acme", ["ago", "by", "ann", "big", "import"])
    assert (beta[0], beta[-1]) == ("beta", "-")
    line = (await ff("quota", "set", "tenant", "--rate", "5/s", "--no-concurrency")).line
    assert (line.get("concurrency"), line["rate"], line["is_set"]) == (None, 5, True)
    await ff("quota", "lift", "tenant")
    line = (await ff("quota", "lift", "tenant", "--for", "acme")).line
    assert (line["concurrency"], line["is_set"], line["keys_set"]) == (2, False, 0)
    assert (await ff("quota", "rm", "tenant")).code == 0
    assert (await ff("quota", "rm", "tenant")).code == 3


@in_one_partition
async def test_a_lane_is_limited_and_the_limit_is_lifted(ff, client):
    await submit(client, number=6)
    line = (
        await ff("lane", "set", "mail", "-c", "1", "--weight", "acme=3", "--reason", "flood")
    ).line
    assert (line["concurrency"], line["weights"], line["is_set"]) == (1, {"acme": 3}, True)
    assert await claim(client) == 1
    shown = (await ff("lane", "ls", "-o", "table")).out
    assert "1 at once" in shown
    assert "acme=3" in shown
    line = (await ff("lane", "set", "mail", "--no-concurrency", "--rate", "5/s")).line
    assert (line.get("concurrency"), line["rate"]) == (None, 5)
    assert (await ff("lane", "lift", "mail")).line["is_set"] is False


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (("lane", "set", "nothing", "-c", "2"), 3, "no such lane"),
        (("lane", "set", "mail"), 2, "give an option to set"),
        (("lane", "set", "mail", "--weight", "acme"), 2, "KEY=TURNS"),
        (("lane", "set", "mail", "--weight", "acme=0"), 2, "acme"),
        (("lane", "set", "mail", "-c", "2", "--no-concurrency"), 2, "cannot be combined"),
        (("lane", "set", "mail", "--weight", "a=2", "--no-weights"), 2, "cannot be combined"),
        (("quota", "show", "nothing"), 3, "no such quota"),
        (("quota", "set", "nothing", "--concurrency", "2"), 3, "no such quota"),
        (("quota", "set", "tenant"), 2, "give a number to set"),
        (("quota", "set", "tenant", "--rate", "fast"), 2, "as in '100/min'"),
        (("quota", "set", "tenant", "--rate", "1/s", "--no-rate"), 2, "--no-rate"),
        (("budget", "show", "nothing"), 3, "no such budget"),
        (("budget", "raise", "monthly", "usd"), 2, "usd=80.00"),
        (("budget", "raise", "monthly", "tokens=1.5"), 2, "tokens must be a whole number"),
        (("budget", "usage", "monthly", "usd=x", "--for", "acme"), 2, "not an amount of money"),
    ],
)
async def test_what_cannot_be_done_is_said(ff, client, arguments, code, problem):
    await submit(client)
    found = await ff(*arguments)
    assert found.code == code
    assert problem in found.err


async def test_budgets_are_listed_with_what_was_used(ff, client):
    found = await ff("budget", "ls", "-o", "table")
    assert "no budgets yet" in found.err
    await submit(client)
    line = (await ff("budget", "usage", "monthly", "usd=0.50", "tokens=20", "--for", "acme")).line
    assert line["usage"] == {"usd": 500_000, "tokens": 20}
    table = (await ff("budget", "ls", "-o", "table")).out
    assert "tokens 20 of 1000, usd 0.50 of 50.00" in table
    assert [one["key"] for one in (await ff("budget", "ls", "--budget", "monthly")).lines] == [
        "acme"
    ]
    shown = (await ff("budget", "show", "monthly", "--for", "acme", "-o", "table")).out
    assert "month in UTC" in shown


async def test_a_budget_is_raised_lifted_and_reset(ff, client):
    await submit(client)
    acme = ("monthly", "--for", "acme")
    assert (await ff("budget", "usage", *acme, "tokens=900")).code == 0
    refused = await ff("budget", "usage", *acme, "tokens=200")
    assert refused.code == 4
    assert "tokens is at 900 of 1000; nothing was counted" in refused.err
    line = (await ff("budget", "raise", *acme, "tokens=2000", "--actor", "ann")).line
    assert (line["hard_limits"]["tokens"], line["raised"]) == (2000, ["tokens"])
    repeated = ("budget", "usage", *acme, "tokens=200", "--dedup-key", "once")
    assert (await ff(*repeated)).line["usage"]["tokens"] == 1100
    assert (await ff(*repeated)).line["usage"]["tokens"] == 1100
    line = (await ff("budget", "lift", *acme)).line
    assert (line["hard_limits"]["tokens"], line["raised"]) == (1000, [])
    line = (await ff("budget", "reset", *acme, "--reason", "goodwill")).line
    assert (line["usage"]["tokens"], line["reason"]) == (0, "goodwill")


@pytest.mark.parametrize("words", [("show",), ("reset",), ("lift",), ("raise", "usd=80.00")])
async def test_a_budget_with_keys_says_that_it_needs_one(ff, client, words):
    await submit(client)
    verb, *amounts = words
    found = await ff("budget", verb, "monthly", *amounts)
    assert found.code == 3
    assert "The budget monthly has a key: give one with --for, for example acme." in found.err
    other = await ff("budget", "show", "monthly", "--for", "zeta")
    assert "has no key zeta" in other.err


async def test_a_key_without_submissions_is_said_to_have_none(ff, client):
    await submit(client)
    found = await ff("quota", "set", "tenant", "-c", "3", "--for", "zeta", "-o", "table")
    assert found.out.splitlines()[-1] == "nothing was submitted with the key zeta yet"
