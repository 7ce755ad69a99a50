"""What can be seen of a lane at work."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class LaneTraffic:
    """How busy a lane is. Counts are exact unless their flag says that there are more.

    What came and went is counted over the last `seconds`.
    """

    namespace: str
    lane: str
    state: str
    resumes_at: datetime | None
    waiting: int
    is_more_waiting: bool
    # Since when the first in line waits; None if nothing does.
    waiting_since: datetime | None
    delayed: int
    active: int
    is_more_timed: bool
    submitted: int
    completed: int
    retried: int
    failed: int
    seconds: float
    # Which workers run how many of its executions, by place.
    workers: list[str]
    running: list[int]
