"""The report of the doctor."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from flowfabric.core.ids import ExecutionId
from flowfabric.db.distribute import Cluster


class Level(StrEnum):
    """An error needs action. A warning may disappear by itself, or be intended."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One violation."""

    name: str
    level: Level
    problem: str
    execution: ExecutionId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of one check. `is_cut` means that more findings exist than were read."""

    name: str
    title: str
    findings: tuple[Finding, ...]
    duration: timedelta
    is_cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of an examination.

    If only the executions with recent events were checked, `executions` and `events` say how many
    there were. Otherwise they are None. `cluster` is None if the database is not distributed.
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
