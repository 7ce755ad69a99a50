"""Counts of events by minute, lane, task and kind, with their latencies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from flowfabric.core.errors import InvalidInput
from flowfabric.core.states import EventKind

# Bucket n counts latencies of more than 1.1^(n-1) ms and at most 1.1^n ms (ff.minute).
_BASE = 1.1


@dataclass(frozen=True, slots=True)
class Counted:
    """The events of one kind that a task had in a span of time.

    `buckets` and `counts` are a sketch of latencies. For events that begin a run of the handler,
    a latency is how long the execution had waited. For events that end a run, a latency is how long
    the run took.
    """

    starts_at: datetime
    lane: str
    task: str
    kind: EventKind
    event_count: int
    buckets: Sequence[int] = ()
    counts: Sequence[int] = ()

    def percentile(self, share: float) -> timedelta | None:
        """Return a percentile of the latencies: the median for 0.5, the maximum for 1.

        The result is accurate to 5 %. Return None if no latency was counted.
        """
        if not 0 <= share <= 1:
            raise InvalidInput(field="share", problem="must be from 0 to 1")
        left = share * sum(self.counts)
        for bucket, number in zip(self.buckets, self.counts, strict=True):
            left -= number
            if left <= 0 or bucket == self.buckets[-1]:
                # This value differs by at most 5 % from every latency in the bucket.
                return timedelta(milliseconds=2 * _BASE**bucket / (_BASE + 1))
        return None


def together(parts: Iterable[Counted]) -> Counted:
    """Add up several records. The result has the time, lane, task and kind of the first."""
    found = list(parts)
    sketch: Counter[int] = Counter()
    for one in found:
        sketch.update(dict(zip(one.buckets, one.counts, strict=True)))
    first, buckets = found[0], sorted(sketch)
    return Counted(
        first.starts_at,
        first.lane,
        first.task,
        first.kind,
        sum(one.event_count for one in found),
        tuple(buckets),
        tuple(sketch[bucket] for bucket in buckets),
    )
