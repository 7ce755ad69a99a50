"""Draws the life of one execution, or of all members of a flow, as bars over time.

The bars are rectangles of an SVG inside the page. They have CSS classes, because the pages forbid
inline style.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from flowfabric.core.execution import Event, ExecutionInfo
from flowfabric.core.flow import EdgeInfo, FlowMember
from flowfabric.core.ids import ExecutionId
from flowfabric.core.states import EventKind, PublicState, Resolution
from flowfabric.core.step import StepRecord
from flowfabric.drawing.times import short

WIDTH = 1000
HEIGHT = 26
# A bar is at least this wide, so that a short attempt can be seen.
LEAST = 4.0
# If there are more bars than this, only bars wider than LEAST are drawn, at most this many.
MOST = 300

# What an execution does after an event: the class of the bar, and its words.
_AFTER = {
    EventKind.SUBMITTED: ("wait", "waited"),
    EventKind.CLAIMED: ("run", "ran"),
    EventKind.RESUMED: ("run", "ran"),
    EventKind.RECLAIMED: ("run", "ran"),
    EventKind.RELEASED: ("wait", "waited"),
    EventKind.LEASE_EXPIRED: ("wait", "waited for another worker"),
    EventKind.LEASE_REVOKED: ("wait", "waited for another worker"),
    EventKind.RETRY_SCHEDULED: ("backoff", "waited before the next attempt"),
    EventKind.DELAYED: ("suspended", "slept"),
    EventKind.WAITING: ("suspended", "waited for others"),
    EventKind.SUSPENDED: ("suspended", "was suspended"),
    EventKind.HELD: ("suspended", "was held"),
    EventKind.WOKEN: ("wait", "waited"),
    EventKind.BLOCKED: ("wait", "was blocked"),
    EventKind.UNBLOCKED: ("wait", "waited"),
    EventKind.PROMOTED: ("wait", "waited"),
    EventKind.REPLAYED: ("wait", "waited"),
    EventKind.CONTINUED: ("wait", "waited"),
}
# The class of a run's bar, by the event that ended the run.
_ENDS = {
    EventKind.COMPLETED: "ended_success",
    EventKind.FAILED: "ended_failure",
    EventKind.RETRY_SCHEDULED: "ended_failure",
    EventKind.LEASE_EXPIRED: "ended_failure",
    EventKind.EXPIRED: "ended_failure",
}
_ENDED = (
    *(EventKind.COMPLETED, EventKind.FAILED, EventKind.CANCELLED, EventKind.EXPIRED),
    EventKind.SKIPPED,
)


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a timeline: where it is in the drawing, and the time for which it stands.

    `kind` is the CSS class of the bar.
    """

    kind: str
    x: float
    width: float
    title: str
    time: timedelta = timedelta()


# The words for all bars of a class, in the order of the legend.
_LEGEND = {
    "wait": "waited",
    "run": "running",
    "run ended_success": "ran",
    "run ended_failure": "ran and failed",
    "backoff": "waited before a retry",
    "suspended": "slept or waited for others",
    "step": "steps",
}


def draw_timeline(
    info: ExecutionInfo, events: Sequence[Event], steps: Sequence[StepRecord], now: datetime
) -> list[Bar]:
    """Return the bars of an execution, from its creation to its end or to now, and then the bars of
    its steps."""
    begin = info.created_at
    end = max([info.terminal_at or now, begin, *(event.occurred_at for event in events[-1:])])
    span = (end - begin).total_seconds() or 1.0

    def bar(kind: str, since: datetime, until: datetime, title: str, least: float = LEAST) -> Bar:
        x = min(max((since - begin).total_seconds() / span, 0.0) * WIDTH, WIDTH - least)
        width = max((until - since).total_seconds() / span * WIDTH, least)
        return Bar(kind, x, min(width, WIDTH - x), title, until - since)

    bars: list[Bar] = []
    kind, words, since = "wait", "waited", begin
    for event in events:
        at = max(event.occurred_at, since)
        if event.kind not in _AFTER and event.kind not in _ENDED:
            continue
        if kind and at > since:
            name = f"{kind} {_ENDS[event.kind]}" if kind == "run" and event.kind in _ENDS else kind
            attempt = f"attempt {event.attempt}: " if kind == "run" and event.attempt else ""
            bars.append(bar(name, since, at, f"{attempt}{words} {short(at - since)}"))
        kind, words = _AFTER.get(event.kind, ("", ""))
        since = at
    if kind and end > since:
        bars.append(bar(kind, since, end, f"{words} {short(end - since)}"))
    if len(bars) > MOST:
        bars = [one for one in bars if one.width > LEAST][:MOST]
    marks = [
        bar("step", one.recorded_at, one.recorded_at, f"step {one.name}", least=2.0)
        for one in steps[:MOST]
    ]
    return bars + marks


def times_spent(bars: Sequence[Bar]) -> list[tuple[str, str]]:
    """Return the legend of a timeline: for each class of bars, the class and a text.

    The text contains the total time of these bars. For steps, it contains their number instead.
    """
    found = []
    for kind, words in _LEGEND.items():
        those = [one for one in bars if one.kind == kind]
        if kind == "run" and not any(one.kind == kind for one in bars[-1:]):
            words = "ran"
        if kind == "step" and those:
            found.append((kind, f"{len(those)} {'step' if len(those) == 1 else words}"))
        elif those:
            found.append((kind, f"{words} {short(sum((one.time for one in those), timedelta()))}"))
    return found


def critical_path(
    members: Sequence[FlowMember], edges: Sequence[EdgeInfo], now: datetime
) -> list[FlowMember]:
    """Return the members that decide when a flow ends, in the order in which they run.

    The path ends with a member that has started and not ended. If all started members have ended,
    the path ends with the latest of them. Before each member of the path comes the upstream member
    that succeeded latest. The path is empty if it would have fewer than two members.
    """
    known = {one.id: one for one in members}
    before: dict[ExecutionId, FlowMember] = {}
    for edge in edges:
        upstream = known.get(edge.upstream_id)
        if upstream is None or upstream.terminal_at is None:
            continue
        if edge.resolution is not Resolution.SATISFIED:
            continue
        other = before.get(edge.downstream_id)
        if other is None or _ended(upstream, now) > _ended(other, now):
            before[edge.downstream_id] = upstream
    started = [one for one in members if one.started_at is not None]
    if not started:
        return []
    last = max(started, key=lambda one: (_ended(one, now), one.started_at, one.id.uuid))
    path = [last]
    while (upstream := before.get(path[-1].id)) is not None and upstream not in path:
        path.append(upstream)
    return path[::-1] if len(path) > 1 else []


def _ended(member: FlowMember, now: datetime) -> datetime:
    return member.terminal_at or now


@dataclass(frozen=True, slots=True)
class Stretch:
    """One row of the drawing of a flow: how long a member waited, and how long it ran."""

    uuid: str
    name: str
    state: PublicState
    x: float
    wait: float
    run: float
    words: str

    @property
    def title(self) -> str:
        return f"{self.name}: {str(self.state).replace('_', ' ')}, {self.words}"


def draw_gantt(members: Sequence[FlowMember], begin: datetime, now: datetime) -> list[Stretch]:
    """Return the rows of the drawing of a flow, one for each member, in the order of their start.

    All rows have the same scale.
    """
    ends = [one.terminal_at or now for one in members]
    span = (max([begin, *ends]) - begin).total_seconds() or 1.0

    def width(since: datetime, until: datetime) -> float:
        return max((until - since).total_seconds() / span * WIDTH, 0.0)

    found = []
    for one in sorted(members, key=lambda one: (one.started_at or now, one.id.uuid)):
        end = one.terminal_at or now
        started = min(one.started_at or end, end)
        x = min(width(begin, one.created_at), WIDTH - LEAST)
        wait = min(width(max(one.created_at, begin), started), WIDTH - x - LEAST)
        run = 0.0
        if one.started_at is not None:
            run = min(max(width(started, end), LEAST), WIDTH - x - wait)
        words = f"ran {short(end - started)}"
        if one.started_at is None:
            words = "never ran" if one.terminal_at else f"waits {short(end - begin)}"
        found.append(
            Stretch(str(one.id.uuid), one.name or one.task, one.public_state, x, wait, run, words)
        )
    return found
