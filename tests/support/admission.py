"""Quotas and budgets on one connection, for tests of the SQL functions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from asyncpg import Record

from .database import home, partitions
from .factories import Engine, Item, Lease, Outcome, Submitted

# For tests whose workers claim from all partitions, or that set the limit of a lane.
in_one_partition = pytest.mark.skipif(
    partitions() > 1,
    reason="a limit is exact at once in one partition only: tests/partitions/test_shares.py",
)


# What may change the limits of gates, or make gates.
CHANGING = {
    "register_gates",
    "check_admission",
    "create_quota",
    "set_quota",
    "lift_quota",
    "delete_quota",
}
GATHER = """
update ff.gate_share s set
  concurrency = case when s.share_no = $1 then t.concurrency when t.concurrency >= 0 then 0 end,
  rate = case when s.share_no = $1 then t.rate when t.rate >= 0 then 0 end
from (
  select g.gate_id,
         case when c.key is null then q.concurrency else c.concurrency end as concurrency,
         case when c.key is null then q.rate else c.rate end as rate
  from (select distinct x.gate_id, x.namespace, x.quota, x.key from ff.gate_share x) g
  left join ff.quota q on q.namespace = g.namespace and q.quota = g.quota
  left join lateral (
    select x.key, x.concurrency, x.rate from ff.quota_change x
    where x.namespace = g.namespace and x.quota = g.quota and x.key in (g.key, '')
    order by x.key desc limit 1) c on true) t
where s.gate_id = t.gate_id
"""
APPLY = """
select ff._apply_quota(g.partition_key, g.namespace, g.quota, g.key, ff.now())
from ff.gate g join ff.gate_share s on s.gate_id = g.gate_id and s.share_no = g.partition_key
where (g.max_running, g.rate) is distinct from (s.concurrency, s.rate)
"""


class Admission:
    """The functions of quotas and budgets, in the namespace of an engine."""

    def __init__(self, engine: Engine, *, has_all: bool = False) -> None:
        self.engine = engine
        # With several partitions: whether the partition of the engine has the whole limits.
        self.has_all = has_all and home() > 0

    async def call(self, function: str, **arguments: Any) -> list[Record]:
        """Call a function with the namespace of the engine."""
        given = ", ".join(f"p_{name} => ${i}" for i, name in enumerate(arguments, 2))
        rows = list(
            await self.engine.connection.fetch(
                f"select r.* from ff.{function}(p_namespace => $1{', ' if given else ''}{given}) r",
                self.engine.namespace,
                *arguments.values(),
            )
        )
        if self.has_all and function in CHANGING:
            await self.gather()
        return rows

    async def gather(self) -> None:
        """Give this partition the shares of all partitions, as if no other had work."""
        await self.engine.connection.execute(GATHER, self.engine.partition_key)
        await self.engine.connection.execute(APPLY)

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
