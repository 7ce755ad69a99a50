"""Limit and Budget: what they take, what they refuse, and the keys of a call."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from flowfabric import App, Budget, InvalidInput, Limit
from flowfabric.core.limit import Gate, Rate, amount_text, gate_id, micros, money
from flowfabric.core.quota import rate_of


class Order(BaseModel):
    tenant: str


class Plan(Enum):
    FREE = "free"


@pytest.mark.parametrize(
    ("text", "number", "window", "shown"),
    [
        ("100/min", 100, timedelta(minutes=1), "100/min"),
        ("5/s", 5, timedelta(seconds=1), "5/s"),
        ("5 / 15 minutes", 5, timedelta(minutes=15), "5/15min"),
        ("1/hour", 1, timedelta(hours=1), "1/h"),
        ("10/2days", 10, timedelta(days=2), "10/2d"),
        ("7/90s", 7, timedelta(seconds=90), "7/90s"),
    ],
)
def test_a_rate_is_a_number_per_time(text, number, window, shown):
    rate = Rate.parse(text)
    assert rate == Rate(number, window)
    assert str(rate) == shown
    assert rate_of(number, window) == rate


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("limit.name", lambda: Limit("")),
        ("limit.name", lambda: Limit("a b")),
        ("limit.name", lambda: Limit(7)),  # type: ignore[arg-type]
        ("limit.concurrency", lambda: Limit("api", concurrency=0)),
        ("limit.concurrency", lambda: Limit("api", concurrency=True)),
        ("limit.concurrency", lambda: Limit("api", concurrency=2.5)),  # type: ignore[arg-type]
        ("limit.rate", lambda: Limit("api", rate="100")),
        ("limit.rate", lambda: Limit("api", rate="0/min")),
        ("limit.rate", lambda: Limit("api", rate="1/fortnight")),
        ("limit.rate", lambda: Limit("api", rate="1/32d")),
        ("limit.name", lambda: Limit("a\ud800")),
        ("limit.key", lambda: Limit("api", key="")),
        ("limit.key", lambda: Limit("api", key=3)),  # type: ignore[arg-type]
        ("limit.overflow", lambda: Limit("api", overflow="drop")),  # type: ignore[arg-type]
        ("budget.name", lambda: Budget("\n")),
        ("budget.usd", lambda: Budget("api", usd=0.5)),  # type: ignore[arg-type]
        ("budget.usd", lambda: Budget("api", usd="much")),
        ("budget.usd", lambda: Budget("api", usd="0.0000001")),
        ("budget.usd", lambda: Budget("api", usd="NaN")),
        ("budget.usd", lambda: Budget("api", usd="0")),
        ("budget.tokens", lambda: Budget("api", tokens="7")),  # type: ignore[arg-type]
        ("budget.pages", lambda: Budget("api", amounts={"pages": -1})),
        ("budget.a b", lambda: Budget("api", amounts={"a b": 1})),
        ("budget.amounts.name", lambda: Budget("api", amounts={"name": 1})),
        ("budget.period", lambda: Budget("api", tokens=1, period="year")),  # type: ignore[arg-type]
        ("budget.period", lambda: Budget("api", tokens=1, period=timedelta(seconds=59))),
        ("budget.tz", lambda: Budget("api", tokens=1, period="day", tz="Mars/Olympus")),
        ("budget.on_exceed", lambda: Budget("api", on_exceed="cry")),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_part_of_a_limit_is_named(field, make):
    with pytest.raises(InvalidInput) as caught:
        make()
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("given", "stored", "shown"),
    [
        ("50.00", 50_000_000, "50.00"),
        (Decimal("0.000001"), 1, "0.000001"),
        (7, 7_000_000, "7.00"),
        ("0.125", 125_000, "0.125"),
    ],
)
def test_money_is_exact(given, stored, shown):
    assert micros("usd", given) == stored
    assert money(stored) == shown
    assert amount_text("usd", stored) == shown
    assert amount_text("tokens", 12) == "12"
    assert amount_text("tokens", None) == "-"


def test_a_limit_declares_its_numbers_and_a_named_one_declares_nothing():
    limit = Limit("api", concurrency=3, rate="5/s", overflow="refuse")
    assert limit.declaration() == {
        "kind": "quota",
        "name": "api",
        "concurrency": 3,
        "rate": 5,
        "rate_window_ms": 1000,
        "overflow": "refuse",
    }
    assert Limit("api").declaration() == {"kind": "quota", "name": "api"}
    budget = Budget("monthly", usd="1.5", tokens=9, period="month", on_exceed="suspend")
    assert budget.declaration() == {
        "kind": "budget",
        "name": "monthly",
        "limits": {"usd": {"hard": 1_500_000}, "tokens": {"hard": 9}},
        "on_exceed": "suspend",
        "period": "month",
        "zone": "UTC",
    }
    every = Budget("x", tokens=1, period=timedelta(hours=36))
    assert every.declaration()["period_ms"] == 36 * 3_600_000
    assert Gate("default", limit, "acme").declaration()["key"] == "acme"


def test_the_ids_of_gates_differ_by_kind_and_key():
    ids = {
        gate_id(kind, "default", "api", key) for kind in ("quota", "budget") for key in ("", "acme")
    }
    assert len(ids) == 4
    assert sorted(one >= 2**62 for one in ids) == [False, False, True, True]


@pytest.mark.parametrize(
    ("key", "args", "found"),
    [
        ("tenant", (), "nobody"),
        ("tenant", ("acme",), "acme"),
        ("number", ("acme", 7), "7"),
        ("number", ("acme", "7"), "7"),
        ("plan", ("acme", 1, "free"), "free"),
        (lambda tenant, number: f"{tenant}-{number}", ("acme", 7), "acme-7"),
        (lambda order: order.tenant, ("a", 1, "free", {"tenant": "acme"}), "acme"),
        (lambda id: id, ("a", 1, "free", {"tenant": "x"}, str(UUID(int=7))), str(UUID(int=7))),
    ],
)
def test_a_key_is_an_argument_or_a_function_of_arguments(key, args, found):
    app = App(database_url="postgresql://nowhere/x")

    @app.task(name="pay", limit=Limit("tenant", concurrency=1, key=key))
    async def pay(
        tenant: str = "nobody",
        number: int = 0,
        plan: Plan = Plan.FREE,
        order: Order | None = None,
        id: UUID = UUID(int=0),
    ) -> None: ...

    (gate,) = pay.submission(args, {}).quotas
    assert (gate.limit.name, gate.key) == ("tenant", found)


@pytest.mark.parametrize(
    ("key", "args", "problem"),
    [
        ("tenant", (None,), "it is None"),
        ("tenant", ("",), "must be 1 to 256 bytes"),
        ("tenant", ("x" * 257,), "must be 1 to 256 bytes"),
        ("tenant", ("a\nb",), "without control characters"),
        (lambda tenant: [tenant], ("acme",), "it is a list"),
        (lambda tenant: tenant.nothing, ("acme",), "its function raised AttributeError"),
    ],
)
def test_a_key_that_is_no_key_is_refused_by_name(key, args, problem):
    app = App(database_url="postgresql://nowhere/x")

    @app.task(name="pay", limit=Limit("tenant", concurrency=1, key=key))
    async def pay(tenant: str | None) -> None: ...

    with pytest.raises(InvalidInput) as caught:
        pay.submission(args, {})
    assert caught.value.field == "limit tenant: key"
    assert problem in caught.value.problem


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"limit": Limit("tenant", key="customer")}, "limit tenant: key"),
        ({"limit": Limit("tenant", key=lambda customer: customer)}, "limit tenant: key"),
        ({"limit": Limit("tenant", key=lambda *all: all)}, "limit tenant: key"),
        ({"budget": Budget("monthly", key="customer")}, "budget monthly: key"),
        ({"fair_by": "customer"}, "fair_by"),
        ({"fair_by": 7}, "fair_by"),
        ({"limit": "tenant"}, "limit"),
        ({"limit": [Limit("a"), Limit("a")]}, "limit"),
        ({"limit": [Limit(f"l{n}") for n in range(21)]}, "limit"),
        ({"budget": Limit("a")}, "budget"),
    ],
)
def test_a_wrong_limit_of_a_task_is_refused_where_it_is_written(options, field):
    app = App(database_url="postgresql://nowhere/x")

    async def pay(tenant: str) -> None: ...

    with pytest.raises(InvalidInput) as caught:
        app.task(name="pay", **options)(pay)
    assert caught.value.field == field
    task = app.task(name="other")(pay)
    with pytest.raises(InvalidInput) as caught:
        task.using(**options)
    assert caught.value.field == field


def test_limits_of_using_come_on_top_and_the_same_name_replaces_the_key():
    app = App(database_url="postgresql://nowhere/x")

    @app.task(name="pay", limit=Limit("tenant", concurrency=1, key="tenant"))
    async def pay(tenant: str, region: str) -> None: ...

    changed = pay.using(limit=[Limit("tenant", key="region"), Limit("bank", rate="1/s")])
    gates = changed.submission(("acme", "eu"), {}).quotas
    assert [(gate.limit.name, gate.key) for gate in gates] == [("tenant", "eu"), ("bank", "")]
    # The numbers are those of the app, wherever they were written.
    assert gates[0].limit.concurrency == 1
    assert [gate.key for gate in pay.submission(("acme", "eu"), {}).quotas] == ["acme"]


@pytest.mark.parametrize(
    ("one", "other", "field"),
    [
        (Limit("api", concurrency=1), Limit("api", concurrency=2), "limit.name"),
        (Limit("api", rate="1/s"), Limit("api", concurrency=2), "limit.name"),
        (Limit("api", concurrency=1), Limit("api", concurrency=1, key="tenant"), "limit.key"),
    ],
)
def test_an_app_has_one_set_of_numbers_for_a_limit(one, other, field):
    app = App(database_url="postgresql://nowhere/x")

    @app.task(name="first", limit=one)
    async def first(tenant: str) -> None: ...

    async def second(tenant: str) -> None: ...

    with pytest.raises(InvalidInput) as caught:
        app.task(name="second", limit=other)(second)
    assert caught.value.field == field
    assert "second" not in app.tasks


def test_a_task_without_a_key_keeps_the_fast_path_and_one_with_a_key_does_not():
    app = App(database_url="postgresql://nowhere/x")

    async def work(tenant: str) -> None: ...

    shared = app.task(name="shared", limit=Limit("api", concurrency=1))(work)
    keyed = app.task(name="keyed", limit=Limit("tenant", concurrency=1, key="tenant"))(work)
    fair: Any = app.task(name="fair", fair_by="tenant")(work)
    assert not shared.spec.limits.is_keyed
    assert keyed.spec.limits.is_keyed
    assert fair.submission(("acme",), {}).fair_key == "acme"


def test_a_result_of_a_node_cannot_be_a_key():
    app = App(database_url="postgresql://nowhere/x")

    @app.task(name="find")
    async def find() -> str: ...  # type: ignore[empty-body]

    @app.task(name="pay", limit=Limit("tenant", concurrency=1, key="tenant"))
    async def pay(tenant: str, amount: str) -> None: ...

    flow = app.flow("pays")
    found = flow.add(find)
    flow.add(pay, "acme", found.result)
    with pytest.raises(InvalidInput, match="the result of find: a key must be known"):
        flow.add(pay, found.result, "7")
