"""The database of a walk, the calls made to it, and the few names that all steps share."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import asyncpg

from support.database import Template
from support.gate_model import Budget, Gate
from support.model import Policy, Retry, Route, Worker

T = TypeVar("T")

START = datetime(2030, 1, 1, tzinfo=UTC)
NAMESPACE, STRANGER = "test", "other"
TASK = "tests.work"
ROUTES = (
    Route(NAMESPACE, "a"),
    Route(NAMESPACE, "b"),
    Route(NAMESPACE, "a", frozenset({"gpu"})),
    Route(STRANGER, "a"),
)
WORKERS = (
    Worker("pool", "pool-1"),
    Worker("pool", "pool-2", frozenset({"gpu"})),
    Worker("farm", "farm-1", frozenset({"gpu", "big"})),
)
# The quotas and budgets of a walk. A submission may name some of them.
GATES = {
    "slot": {"concurrency": 1},
    "pair": {"concurrency": 2},
    "rate": {"rate": 3},
    "both": {"concurrency": 2, "rate": 4},
    "door": {"concurrency": 1, "is_refusing": True},
}
WINDOW = timedelta(minutes=10)
BUDGETS = {"strict": "fail", "patient": "suspend", "loud": "warn"}
AMOUNT = 100
LIMITS: tuple[tuple[str, ...], ...] = (
    ("slot",),
    ("pair",),
    ("rate",),
    ("both",),
    ("door",),
    ("door", "rate"),
    ("slot", "pair"),
    ("slot", "rate"),
    ("pair", "both"),
    ("slot", "pair", "rate"),
    ("slot", "both", "patient"),
    ("strict",),
    ("patient",),
    ("patient", "loud"),
    ("pair", "strict", "patient"),
    ("loud",),
)
NOTHING = timedelta()
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
POLICIES: tuple[tuple[Policy, dict[str, Any] | None], ...] = (
    (Policy(), None),
    (
        Policy(retry=Retry(max_retries=2, fixed=5 * SECOND)),
        {"retry_policy": {"max_retries": 2, "backoff": {"type": "fixed", "delay_ms": 5000}}},
    ),
    (Policy(retry=Retry()), {"retry_policy": {}}),
    (
        Policy(retry=Retry(categories=frozenset({"io", "timeout"}))),
        {"retry_policy": {"retryable_categories": ["io", "timeout"]}},
    ),
    (
        Policy(attempt_timeout=40 * SECOND),
        {"timeout_policy": {"attempt_timeout_ms": 40_000}},
    ),
    (
        Policy(attempt_timeout=25 * SECOND, retry=Retry(max_retries=1)),
        {
            "timeout_policy": {"attempt_timeout_ms": 25_000},
            "retry_policy": {"max_retries": 1},
        },
    ),
    (Policy(max_reclaims=0), {"max_reclaim_count": 0}),
    (Policy(max_reclaims=3), {"max_reclaim_count": 3}),
    (Policy(max_replays=1), {"max_replay_count": 1}),
    (Policy(retention=2 * MINUTE), {"retention_ms": 120_000}),
)


class Disagreement(AssertionError):
    """The engine did not do what the model says."""


class Bench:
    """One database for all examples of a test, and a way to call it from sync code."""

    def __init__(self, template: Template) -> None:
        self._loop = asyncio.new_event_loop()
        self._template = template
        self._name = f"{template.name}_{next(template.numbers)}"
        self.connection: asyncpg.Connection[Any] = self.run(self._create())
        # somebody else, who holds a row now and then
        self.other: asyncpg.Connection[Any] = self.run(self._open())
        self.limits: dict[str, int] = {}
        self.routes: dict[Route, int] = {route: self._register(route) for route in ROUTES}
        self.places = {id_: route for route, id_ in self.routes.items()}
        self.steps = 0
        self.calls: Counter[str] = Counter()
        self.met: Counter[tuple[str, str]] = Counter()
        self.taken: Counter[str] = Counter()
        self.words: Counter[tuple[str, str]] = Counter()
        # How often a gate was seen to keep a slot or a start for an execution.
        self.reserved = 0

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(call)

    async def _create(self) -> asyncpg.Connection[Any]:
        administration = await asyncpg.connect(self._template.cluster.url)
        await administration.execute(
            f"create database {self._name} template {self._template.name} strategy file_copy"
        )
        await administration.close()
        return await self._open()

    async def _open(self) -> asyncpg.Connection[Any]:
        return await asyncpg.connect(
            self._template.cluster.url_of(self._name), server_settings={"timezone": "UTC"}
        )

    def _register(self, route: Route) -> int:
        row = self.run(
            self.connection.fetchrow(
                "select route_id from ff.register_routes("
                "array[$1], array[$2], array[$3], array[$4])",
                route.namespace,
                route.lane,
                TASK,
                ",".join(sorted(route.capabilities)),
            )
        )
        assert row is not None
        return int(row["route_id"])

    async def declare(self) -> tuple[dict[int, Gate], dict[int, Budget]]:
        """Declare the quotas and budgets, and return them for the model."""
        given: list[dict[str, Any]] = []
        for name, numbers in GATES.items():
            one = {"kind": "quota", "name": name, **numbers}
            if one.pop("is_refusing", False):
                one["overflow"] = "refuse"
            if "rate" in one:
                one["rate_window_ms"] = WINDOW / timedelta(milliseconds=1)
            given.append(one)
        for name, on_exceed in BUDGETS.items():
            limits = {"tokens": {"hard": AMOUNT}}
            given.append({"kind": "budget", "name": name, "limits": limits, "on_exceed": on_exceed})
        rows = await self.connection.fetch(
            "select item, gate_id, outcome from ff.register_gates(0::smallint, $1, $2)",
            NAMESPACE,
            json.dumps(given).replace(".0", ""),
        )
        assert {row["outcome"] for row in rows} == {"registered"}, rows
        self.limits = {given[row["item"] - 1]["name"]: row["gate_id"] for row in rows}
        gates = {
            self.limits[name]: Gate(
                quota=name, window=WINDOW if "rate" in numbers else None, **numbers
            )
            for name, numbers in GATES.items()
        }
        budgets = {
            self.limits[name]: Budget(budget=name, hard=AMOUNT, on_exceed=on_exceed)
            for name, on_exceed in BUDGETS.items()
        }
        return gates, budgets

    def close(self) -> None:
        async def drop() -> None:
            await self.connection.close()
            await self.other.close()
            administration = await asyncpg.connect(self._template.cluster.url)
            await administration.execute(f"drop database {self._name} with (force)")
            await administration.close()

        self.run(drop())
        self._loop.close()


@dataclass(slots=True)
class Call:
    """One SQL call: its function, its arguments by name, and how to read what came back."""

    function: str
    arguments: dict[str, Any]
    read: Callable[[list[asyncpg.Record]], Any]
    casts: dict[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        given = ", ".join(
            f"p_{name} => ${n}{self.casts.get(name, '')}"
            for n, name in enumerate(self.arguments, 1)
        )
        return f"select a.* from ff.{self.function}({given}) a"
