"""The report of the doctor, and the findings in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from flowfabric.core.ids import ExecutionId
from flowfabric.db.distribute import Cluster


class Level(StrEnum):
    """How serious a finding is.

    Somebody must act on an error. A warning may disappear by itself, or its cause may be intended.
    """

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem that a check has found."""

    name: str
    level: Level
    problem: str
    execution: ExecutionId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of one check. `is_cut` means that `findings` is not the whole list."""

    name: str
    title: str
    findings: tuple[Finding, ...]
    duration: timedelta
    is_cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of an examination.

    If only executions with recent events were checked, `executions` is the number of these
    executions, and `events` is the number of these events. If all executions were checked, both are
    None. `cluster` is None if the database is not distributed.
    """

    verdicts: tuple[Verdict, ...]
    duration: timedelta
    executions: int | None = None
    events: int | None = None
    cursor: str | None = None
    notes: tuple[str, ...] = field(default=())
    cluster: Cluster | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for verdict in self.verdicts for finding in verdict.findings)

    def count(self, level: Level) -> int:
        return sum(finding.level is level for finding in self.findings)

    @property
    def is_sound(self) -> bool:
        return self.count(Level.ERROR) == 0
