"""Quotas and budgets on one connection, for tests of the SQL functions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from asyncpg import Record

from .database import partitions
from .factories import Engine, Item, Lease, Outcome, Submitted

# For tests that look at the counters of partition 0, or start the whole limit there.
in_one_partition = pytest.mark.skipif(
    partitions() > 1, reason="with several partitions, each has a share of the limit"
)


class Admission:
    """The functions of quotas and budgets, in the namespace of an engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def call(self, function: str, **arguments: Any) -> list[Record]:
        """Call a function with the namespace of the engine."""
        given = ", ".join(f"p_{name} => ${i}" for i, name in enumerate(arguments, 2))
        return list(
            await self.engine.connection.fetch(
                f"select r.* from ff.{function}(p_namespace => $1{', ' if given else ''}{given}) r",
                self.engine.namespace,
                *arguments.values(),
            )
        )

    async def one(self, function: str, **arguments: Any) -> Record:
        """Call a function that answers with one row."""
        (row,) = await self.call(function, **arguments)
        return row

    async def register(self, *gates: dict[str, Any]) -> list[Record]:
        """The answers to a call of ff.register_gates."""
        return await self.call(
            "register_gates",
            partition_key=self.engine.partition_key,
            gates=json.dumps(gates),
        )

    async def quota(self, name: str = "api", key: str | None = None, **limits: Any) -> int:
        """The gate of a quota with these limits, which code declares."""
        gate = {"kind": "quota", "name": name, "key": key, **limits}
        (answer,) = await self.register({k: v for k, v in gate.items() if v is not None})
        assert answer["outcome"] == "registered", answer
        return int(answer["gate_id"])

    async def budget(
        self, name: str = "monthly", key: str | None = None, *, on_exceed: str = "fail", **hard: int
    ) -> int:
        """A budget with these hard limits, which code declares."""
        gate: dict[str, Any] = {
            "kind": "budget",
            "name": name,
            "limits": {dimension: {"hard": amount} for dimension, amount in hard.items()},
            "on_exceed": on_exceed,
        }
        if key is not None:
            gate["key"] = key
        (answer,) = await self.register(gate)
        assert answer["outcome"] == "registered", answer
        return int(answer["gate_id"])

    async def gate(self, name: str = "api", key: str = "") -> Record:
        """The counters of one gate."""
        return await self.one(
            "list_gates", partition_key=self.engine.partition_key, quota=name, key=key
        )

    async def status(self, name: str = "monthly", key: str | None = None) -> Record:
        """One budget as it is."""
        return await self.one(
            "get_budget_status", partition_key=self.engine.partition_key, budget=name, key=key
        )

    async def submit(
        self,
        count: int = 1,
        *,
        quotas: Sequence[int] = (),
        budgets: Sequence[int] = (),
        **changes: Any,
    ) -> list[Submitted]:
        """Submit executions under these quotas and budgets."""
        item = Item(quotas=tuple(quotas) or None, budgets=tuple(budgets) or None, **changes)
        answers: list[Submitted] = await self.engine.submit_many([item] * count)
        return answers

    async def report(
        self, lease: Lease, usage: dict[str, int], dedup_key: str | None = None
    ) -> Outcome:
        """Report the usage of one running execution."""
        row = await self.one(
            "report_usage",
            partition_key=self.engine.partition_key,
            execution_ids=[lease.execution_id],
            lease_ids=[lease.lease_id],
            epochs=[lease.epoch],
            attempt_ids=[lease.attempt_id],
            usages=[json.dumps(usage)],
            dedup_keys=[dedup_key],
        )
        detail = row["detail"]
        return Outcome(
            word=row["outcome"], detail=json.loads(detail) if isinstance(detail, str) else detail
        )
