"""The traffic of a lane."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime


@dataclass(frozen=True, slots=True)
class LaneTraffic:
    """The traffic of one lane. A count is exact unless its `is_more` flag is set.

    Submitted, completed, retried and failed executions are counted over the last `seconds`.
    """

    namespace: str
    lane: str
    state: str
    resumes_at: datetime | None
    waiting: int
    is_more_waiting: bool
    # When the oldest waiting execution began to wait; None if none waits.
    waiting_since: datetime | None
    delayed: int
    active: int
    is_more_timed: bool
    submitted: int
    completed: int
    retried: int
    failed: int
    seconds: float
    # The worker workers[i] runs running[i] executions of this lane.
    workers: list[str]
    running: list[int]
    # Executions that wait in the lines of quotas and budgets.
    in_line: int
    is_more_in_line: bool


def joined_traffic(parts: Sequence[LaneTraffic], is_incomplete: bool = False) -> LaneTraffic:
    """Join the traffic of one lane in several partitions.

    Rates add up: what was counted over a shorter time counts for more.
    """
    first, seconds = parts[0], max(part.seconds for part in parts)
    running: Counter[str] = Counter()
    for part in parts:
        running.update(dict(zip(part.workers, part.running, strict=True)))

    def total(name: str) -> int:
        found: float = sum(
            getattr(part, name) * (seconds / (part.seconds or seconds or 1)) for part in parts
        )
        return round(found)

    return replace(
        first,
        waiting=sum(part.waiting for part in parts),
        is_more_waiting=is_incomplete or any(part.is_more_waiting for part in parts),
        waiting_since=min(
            (part.waiting_since for part in parts if part.waiting_since is not None), default=None
        ),
        delayed=sum(part.delayed for part in parts),
        active=sum(part.active for part in parts),
        is_more_timed=is_incomplete or any(part.is_more_timed for part in parts),
        submitted=total("submitted"),
        completed=total("completed"),
        retried=total("retried"),
        failed=total("failed"),
        seconds=seconds,
        workers=sorted(running),
        running=[running[name] for name in sorted(running)],
        in_line=sum(part.in_line for part in parts),
        is_more_in_line=is_incomplete or any(part.is_more_in_line for part in parts),
    )
