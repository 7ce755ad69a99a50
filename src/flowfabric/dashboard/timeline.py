"""Draws the life of one execution: when it waited, and when each attempt ran.

The bars are rectangles of an SVG inside the page. They have classes and no style of their own,
because the pages forbid inline style.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from flowfabric.core.execution import AttemptInfo, ExecutionInfo
from flowfabric.drawing.times import short

WIDTH = 1000
HEIGHT = 26
# A bar is at least this wide, so that a short attempt can be seen.
LEAST = 4.0


@dataclass(frozen=True, slots=True)
class Bar:
    """One stretch of time, with its place in the picture."""

    kind: str
    x: float
    width: float
    title: str


def draw_timeline(info: ExecutionInfo, attempts: Sequence[AttemptInfo], now: datetime) -> list[Bar]:
    """Return the bars of an execution from its creation to its end, or to now."""
    begin = info.created_at
    end = max([info.terminal_at or now, begin, *(one.ended_at or begin for one in attempts)])
    span = (end - begin).total_seconds() or 1.0

    def bar(kind: str, since: datetime, until: datetime, title: str) -> Bar:
        x = (since - begin).total_seconds() / span * WIDTH
        width = max((until - since).total_seconds() / span * WIDTH, LEAST)
        return Bar(kind, min(x, WIDTH - LEAST), min(width, WIDTH - min(x, WIDTH - LEAST)), title)

    bars, reached = [], begin
    for one in attempts:
        started = max(one.started_at, begin)
        ended = max(one.ended_at or end, started)
        if started > reached:
            bars.append(bar("wait", reached, started, f"waited {short(started - reached)}"))
        took = short(ended - started)
        words = str(one.lifecycle).replace("_", " ")
        bars.append(
            bar(f"run {one.lifecycle}", started, ended, f"attempt {one.attempt}: {words}, {took}")
        )
        reached = max(reached, ended)
    if end > reached:
        bars.append(bar("wait", reached, end, f"waited {short(end - reached)}"))
    return bars
