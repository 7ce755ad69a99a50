"""Options and traffic of a lane."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import check_text
from flowfabric.core.limit import MAX_LIMIT_KEY_BYTES, Rate, check_limit_name, check_whole_number

MAX_WEIGHT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneOptions:
    """How many executions of a lane run at once, how many start in a window, and how keys take
    turns.

    `fair_by` is the name of an argument: executions with different values of this argument take
    turns. `weights` says how many turns a value gets for each turn of a value without a weight.
    """

    concurrency: int | None = None
    rate: str | Rate | None = None
    fair_by: str | None = None
    weights: Mapping[str, int] | None = None

    def __post_init__(self) -> None:
        if self.concurrency is not None:
            check_whole_number("concurrency", self.concurrency, most=2_000_000_000)
        if self.rate is not None and not isinstance(self.rate, Rate):
            object.__setattr__(self, "rate", Rate.parse(self.rate))
        if self.fair_by is not None:
            check_limit_name("fair_by", self.fair_by)
        if self.weights is None:
            return
        if not isinstance(self.weights, Mapping):
            raise InvalidInput(field="weights", problem="must be a mapping of keys to turns")
        for key, weight in self.weights.items():
            check_text("weights", key, MAX_LIMIT_KEY_BYTES)
            check_whole_number(f"weights[{key!r:.40}]", weight, most=MAX_WEIGHT)
        object.__setattr__(self, "weights", dict(self.weights))

    def facts(self) -> dict[str, Any]:
        """Return the options that are given, as the engine stores them."""
        found: dict[str, Any] = {
            "concurrency": self.concurrency,
            "fair_by": self.fair_by,
            "weights": self.weights,
        }
        if isinstance(self.rate, Rate):
            found["rate"] = self.rate.number
            found["rate_window_ms"] = round(self.rate.window.total_seconds() * 1000)
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True)
class LaneTraffic:
    """The traffic of one lane.

    A count may be too low if the flag in brackets is set: `waiting` (`is_more_waiting`), `in_line`
    (`is_more_in_line`), `delayed` and `active` (`is_more_timed`). `submitted`, `completed`,
    `retried` and `failed` are counts over the last `seconds`.
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
    """Add up the traffic of one lane in several partitions.

    Counts over a shorter time are scaled up to the longest time. `is_incomplete` means that a
    partition is missing, so the counts may be too low.
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
