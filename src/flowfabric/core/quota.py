"""Quotas and budgets as operators see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from flowfabric.core.limit import Rate
from flowfabric.core.states import BudgetPeriod, OnExceed, Overflow

# The engine counts at most 10 000 executions in line. This number means more than 10 000.
MORE_IN_LINE = 10_001


@dataclass(frozen=True, slots=True)
class QuotaInfo:
    """A quota: the limits in force, the limits that code declared, and the last change.

    `is_set` says whether an operator has set limits for all keys. `keys_set` is the number of keys
    for which an operator has set separate limits.
    """

    namespace: str
    quota: str
    is_keyed: bool
    overflow: Overflow
    concurrency: int | None
    rate: int | None
    rate_window: timedelta | None
    declared_concurrency: int | None
    declared_rate: int | None
    declared_rate_window: timedelta | None
    declared_at: datetime
    is_set: bool
    keys_set: int
    reason: str | None
    changed_by: str | None
    changed_at: datetime | None


@dataclass(frozen=True, slots=True)
class GateInfo:
    """The counter of a quota for one key, and the executions that wait in line for it.

    `running` is the number of taken slots. `tickets` says how many of these slots belong to callers
    outside executions (`check_admission`). `started` is the number of starts within the last
    `rate_window`. `in_line` is the number of waiting executions; 10 001 means more than 10 000.
    `is_set` says whether an operator has set the limits, and `reason` says why.
    """

    gate_id: int
    key: str
    concurrency: int | None
    rate: int | None
    rate_window: timedelta | None
    is_set: bool
    running: int
    tickets: int
    started: int
    in_line: int
    opens_at: datetime | None
    reason: str | None
    changed_by: str | None
    changed_at: datetime | None

    def plus(self, other: GateInfo) -> GateInfo:
        """Return this record, with the counts of the same gate in another partition added.

        `opens_at` is the earlier of the two times.
        """
        opens = [at for at in (self.opens_at, other.opens_at) if at is not None]
        return replace(
            self,
            running=self.running + other.running,
            tickets=self.tickets + other.tickets,
            started=self.started + other.started,
            in_line=min(self.in_line + other.in_line, MORE_IN_LINE),
            opens_at=min(opens, default=None),
        )


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """The answer to a change of a quota: the limits that are now in force."""

    outcome: str
    key: str | None
    concurrency: int | None
    rate: int | None
    rate_window: timedelta | None


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer to a caller that asked for a slot of a quota.

    If `is_admitted` is False, `outcome` says why. `retry_at` is the time to ask again, or None if
    this time is not known.
    """

    outcome: str
    expires_at: datetime | None
    retry_at: datetime | None

    @property
    def is_admitted(self) -> bool:
        return self.outcome in ("admitted", "already_admitted")


@dataclass(frozen=True, slots=True)
class BudgetInfo:
    """A budget for one key: its usage in this period, and the limits in force.

    Money (the dimension `usd`) is in millionths. `raised` lists the dimensions for which an
    operator has set the limit. While `is_shut` is true, no execution under the budget starts.
    `in_line` is the number of executions that wait for the budget; 10 001 means more than 10 000.
    Executions of the partitions in `missing` are not counted, because these partitions did not
    answer.
    """

    budget_id: int
    namespace: str
    budget: str
    key: str
    on_exceed: OnExceed
    period: BudgetPeriod | None
    period_zone: str | None
    period_length: timedelta | None
    period_started_at: datetime
    next_reset_at: datetime | None
    is_shut: bool
    usage: Mapping[str, int]
    refused: Mapping[str, int]
    hard_limits: Mapping[str, int]
    soft_limits: Mapping[str, int]
    raised: Sequence[str]
    in_line: int
    breach_count: int
    soft_breach_count: int
    last_breach_at: datetime | None
    last_breach_dimension: str | None
    created_at: datetime
    changed_by: str | None
    changed_at: datetime | None
    reason: str | None
    missing: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class UsageAnswer:
    """The answer to a report of usage.

    `outcome` is one of these words:

    - `ok`: the usage was counted.
    - `soft_breach`: the usage was counted, and it is over a limit.
    - `hard_breach`: the usage was not counted.
    - `already_applied`: an earlier report with the same dedup key was counted.
    - `suspended`: the usage was not counted, and the execution waits for room in the budget.

    `detail` names the budget, the key, the dimension and the limit of a breach.
    """

    outcome: str
    detail: Mapping[str, Any] = field(default_factory=dict)


def rate_of(number: int | None, window: timedelta | None) -> Rate | None:
    """Return a Rate, or None if `number` or `window` is None."""
    return None if number is None or window is None else Rate(number, window)
