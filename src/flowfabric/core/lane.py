"""How busy a lane is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class LaneTraffic:
    """How busy a lane is. A count is exact unless its `is_more` flag is set.

    Submitted, completed, retried and failed executions are counted over the last `seconds`.
    """

    namespace: str
    lane: str
    state: str
    resumes_at: datetime | None
    waiting: int
    is_more_waiting: bool
    # When the first execution in line began to wait; None if none waits.
    waiting_since: datetime | None
    delayed: int
    active: int
    is_more_timed: bool
    submitted: int
    completed: int
    retried: int
    failed: int
    seconds: float
    # workers[i] runs running[i] executions of this lane.
    workers: list[str]
    running: list[int]
