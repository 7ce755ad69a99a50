"""Budgets: limits on what executions spend. Read them, change them, and report usage."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeAlias
from uuid import UUID

from flowfabric.client.addresses import Scoped, lease_addresses
from flowfabric.client.batching import BUSY, Batcher, Busy
from flowfabric.client.outcomes import handle_batch, refusal
from flowfabric.client.partitions import ask_reachable
from flowfabric.core.errors import BudgetNotFound, InvalidInput, RetryExhausted
from flowfabric.core.execution import Claimed
from flowfabric.core.ids import AnyId, uuid7
from flowfabric.core.limit import Budget, check_limit_name, dimensions
from flowfabric.core.partition import Found
from flowfabric.core.quota import MORE_IN_LINE, BudgetInfo, UsageAnswer
from flowfabric.core.states import BudgetPeriod, OnExceed
from flowfabric.db import functions
from flowfabric.db.records import optional, reader
from flowfabric.db.session import Database

# Defined here because, inside the class, `list` is the method `Budgets.list`.
BudgetList: TypeAlias = Found[BudgetInfo]
Infos: TypeAlias = Sequence[BudgetInfo]
Report: TypeAlias = tuple[Claimed, Mapping[str, int], str]
Reports: TypeAlias = list[Report]
UsageAnswers: TypeAlias = list[UsageAnswer | Exception | Busy]

_READERS: dict[str, Any] = {
    "on_exceed": OnExceed,
    "period": optional(BudgetPeriod),
    "usage": json.loads,
    "refused": json.loads,
    "hard_limits": json.loads,
    "soft_limits": json.loads,
}
_info = reader(BudgetInfo, functions.LIST_BUDGETS, default="missing", **_READERS)
_status = reader(BudgetInfo, functions.GET_BUDGET_STATUS, default="missing", **_READERS)

# The prefix of the `dedup_key` that this module makes if the caller passes none.
_MINTED = "one call/"

# The outcomes that answer a report of usage. Any other outcome is a refusal.
_ANSWERS = ("ok", "soft_breach", "hard_breach", "already_applied", "suspended")


class Budgets(Scoped):
    """Operations on budgets."""

    def __init__(self, database: Database, namespace: str | None) -> None:
        super().__init__(database, namespace)
        self._reports: dict[int, Batcher[Report, UsageAnswer]] = {}

    async def close(self) -> None:
        for reports in list(self._reports.values()):
            await reports.close()

    async def create(self, budget: Budget, *, key: str = "", actor: str | None = None) -> bool:
        """Create a budget for one key. If the budget exists already, return False and change
        nothing."""
        declared = budget.declaration()
        limits = budget.limits
        rows = await self._database.call(
            functions.CREATE_BUDGET,
            namespace=self._own(),
            budget=budget.name,
            key=key,
            dimensions=[*limits],
            hard_limits=[*limits.values()],
            soft_limits=[None] * len(limits),
            period="interval" if "period_ms" in declared else declared.get("period"),
            period_zone=declared.get("zone"),
            period_length=budget.period if "period_ms" in declared else None,
            on_exceed=str(budget.on_exceed),
            actor=actor,
        )
        return bool(rows[0]["outcome"] == "created")

    async def list(
        self, *, budget: str | None = None, limit: int = 1000, partition: int | None = None
    ) -> BudgetList:
        """List all budgets, or the budgets of one name, sorted by name and key.

        `in_line` is the number of executions that wait for a budget: in all partitions, or only in
        `partition`. `missing` names partitions that did not answer.
        """

        async def read(one: int) -> Infos:
            rows = await self._database.call(
                functions.LIST_BUDGETS,
                partition_key=one,
                namespace=self._namespace,
                budget=budget,
                key=None,
                after_namespace=None,
                after_budget=None,
                after_key=None,
                limit=limit,
            )
            return [_info(row) for row in rows]

        found = await self._everywhere(read, partition)
        return Found(found[:limit], found.missing)

    async def get(self, budget: str, *, key: str = "", partition: int | None = None) -> BudgetInfo:
        """Return the budget of one key; raise BudgetNotFound if the key has no such budget.

        `in_line` is the number of executions that wait for the budget: in all partitions, or only
        in `partition`.
        """
        check_limit_name("budget", budget)

        async def read(one: int) -> Infos:
            rows = await self._database.call(
                functions.GET_BUDGET_STATUS,
                partition_key=one,
                namespace=self._own(),
                budget=budget,
                key=key,
            )
            return [_status(row) for row in rows]

        found = await self._everywhere(read, partition)
        if not found:
            raise BudgetNotFound.explained({"budget": budget, "key": key})
        return replace(found[0], missing=found.missing)

    async def _everywhere(
        self, read: Callable[[int], Awaitable[Infos]], partition: int | None
    ) -> BudgetList:
        """Read budgets in `partition`, or in all partitions if `partition` is None.

        `in_line` is added up over the partitions. All other facts of a budget are the same in every
        partition.
        """
        if partition is not None:
            return Found(await read(partition))
        answers, missing = await ask_reachable(await self._database.partitions.all(), read)
        if len(answers) == 1:
            return Found(answers[0], missing)
        budgets: dict[int, BudgetInfo] = {}
        for one in (one for answer in answers for one in answer):
            known = budgets.get(one.budget_id)
            lines = one.in_line + (known.in_line if known else 0)
            budgets[one.budget_id] = replace(one, in_line=min(lines, MORE_IN_LINE))
        ordered = sorted(budgets.values(), key=lambda one: (one.namespace, one.budget, one.key))
        return Found(ordered, missing)

    async def raise_limits(
        self,
        budget: str,
        *,
        key: str = "",
        reason: str | None = None,
        actor: str | None = None,
        **amounts: Any,
    ) -> None:
        """Set hard limits of a budget: `raise_limits("monthly", key="acme", usd="80.00")`.

        The new limits override the declared hard limits until `lift` is called. Executions that
        wait for the budget can start if it has room now.
        """
        check_limit_name("budget", budget)
        limits = dimensions("budget", **amounts)
        if not limits:
            raise InvalidInput(field="amounts", problem="must be given, as in usd='80.00'")
        await self._database.call(
            functions.RAISE_BUDGET,
            namespace=self._own(),
            budget=budget,
            key=key,
            dimensions=[*limits],
            hard_limits=[*limits.values()],
            reason=reason,
            actor=actor,
        )

    async def lift(
        self,
        budget: str,
        *,
        key: str = "",
        reason: str | None = None,
        actor: str | None = None,
    ) -> bool:
        """Remove the hard limits that an operator set. The declared limits apply again.

        Return False if no operator has set a limit.
        """
        check_limit_name("budget", budget)
        rows = await self._database.call(
            functions.LIFT_BUDGET,
            namespace=self._own(),
            budget=budget,
            key=key,
            reason=reason,
            actor=actor,
        )
        return bool(rows[0]["outcome"] == "lifted")

    async def reset(
        self,
        budget: str,
        *,
        key: str = "",
        reason: str | None = None,
        actor: str | None = None,
    ) -> None:
        """Begin a new period with a usage of 0. Executions that wait for the budget can start."""
        check_limit_name("budget", budget)
        await self._database.call(
            functions.RESET_BUDGET,
            namespace=self._own(),
            budget=budget,
            key=key,
            reason=reason,
            actor=actor,
        )

    async def reset_due(self, *, limit: int = 100) -> tuple[int, timedelta | None]:
        """Reset the budgets whose period has ended. Delete old reports and ledger entries.

        Return how much was done, and the time until the next period ends. If the first value is
        `limit`, there may be more to do.
        """
        return await handle_batch(self._database, functions.RESET_DUE_BUDGETS, limit=limit)

    async def report_usage_admin(
        self, budget: str, *, key: str = "", dedup_key: str | None = None, **amounts: Any
    ) -> UsageAnswer:
        """Report usage to one budget. The usage belongs to no execution.

        The call counts nothing if a report with the same `dedup_key` was counted in the last 24
        hours. If `dedup_key` is None, each call has a new key. A call that the client sends again
        after a lost connection keeps its key.
        """
        check_limit_name("budget", budget)
        usage = dimensions("usage", **amounts)
        rows = await self._database.call(
            functions.REPORT_USAGE_ADMIN,
            namespace=self._own(),
            budget=budget,
            key=key,
            dimensions=[*usage],
            amounts=[*usage.values()],
            dedup_key=dedup_key or _minted_key(),
        )
        return _answer(rows[0], is_own=not dedup_key)

    async def record_spend(
        self,
        budget: str,
        execution: AnyId,
        *,
        key: str = "",
        dedup_key: str | None = None,
        **amounts: Any,
    ) -> UsageAnswer:
        """Report usage of an execution to one budget. `release` can take the usage back.

        `dedup_key` works as in `report_usage_admin`.
        """
        check_limit_name("budget", budget)
        usage = dimensions("usage", **amounts)
        rows = await self._database.call(
            functions.RECORD_SPEND,
            namespace=self._own(),
            budget=budget,
            key=key,
            execution_id=await self._uuid(execution),
            dimensions=[*usage],
            amounts=[*usage.values()],
            dedup_key=dedup_key or _minted_key(),
        )
        return _answer(rows[0], is_own=not dedup_key)

    async def release(self, budget: str, execution: AnyId, *, key: str = "") -> Mapping[str, int]:
        """Take back the usage that `record_spend` counted for an execution in this period.

        Return the amounts that were taken back, by dimension.
        """
        check_limit_name("budget", budget)
        rows = await self._database.call(
            functions.RELEASE_BUDGET,
            namespace=self._own(),
            budget=budget,
            key=key,
            execution_id=await self._uuid(execution),
        )
        released: Mapping[str, int] = json.loads(rows[0]["released"] or "{}")
        return released

    async def report_usage(
        self, claimed: Claimed, usage: Mapping[str, int], dedup_key: str | None = None
    ) -> UsageAnswer:
        """Report usage of a running execution to all its budgets, on behalf of the lease holder.

        Concurrent calls share transactions. `dedup_key` works as in
        `report_usage_admin`.
        """
        batcher = self._reports.get(claimed.partition_key)
        if batcher is None:
            batcher = Batcher(self._flush_reports, self._report_alone)
            self._reports[claimed.partition_key] = batcher
        return await batcher.put((claimed, usage, dedup_key or _minted_key()))

    async def _flush_reports(self, batch: Reports, wait: bool = False) -> UsageAnswers:
        rows = await self._database.call(
            functions.REPORT_USAGE,
            **lease_addresses([claimed for claimed, _, _ in batch], self._namespace),
            usages=[json.dumps(dict(usage)) for _, usage, _ in batch],
            dedup_keys=[key for _, _, key in batch],
            wait=wait,
        )
        found: UsageAnswers = [BUSY] * len(batch)
        for row in rows:
            if row["outcome"] in _ANSWERS:
                key = batch[row["item"] - 1][2]
                found[row["item"] - 1] = _answer(row, is_own=key.startswith(_MINTED))
            elif row["outcome"] not in ("busy", "duplicate"):
                found[row["item"] - 1] = refusal(row["outcome"], row["detail"])
        return found

    async def _report_alone(self, item: Report) -> UsageAnswer:
        answer = (await self._flush_reports([item], wait=True))[0]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Busy):
            raise RetryExhausted(operation="report_usage")
        return answer

    async def _uuid(self, execution: AnyId) -> UUID:
        return (await self._execution(execution)).uuid

    def _own(self) -> str:
        """Return the namespace of the client. Refuse a client that is for all namespaces."""
        if self._namespace is None:
            raise InvalidInput(
                field="namespace", problem="must be given: a budget belongs to one namespace"
            )
        return self._namespace


def _minted_key() -> str:
    """Return a new dedup key for one call, so that a call that is sent twice counts once."""
    return f"{_MINTED}{uuid7()}"


def _answer(row: Any, *, is_own: bool) -> UsageAnswer:
    """Build the answer to a report of usage from a row of the engine.

    `is_own` says that the client made the dedup key for this call alone. Then the outcome
    `already_applied` means that the client sent the call twice: return the outcome of the first
    send.
    """
    detail = json.loads(row["detail"]) if row["detail"] else {}
    if is_own and row["outcome"] == "already_applied":
        return UsageAnswer(detail["first"])
    return UsageAnswer(row["outcome"], detail)
