"""Draws how many executions ended over time: completed ones above a line, failed ones below it.

All coordinates and sizes are percentages of the drawing, so that it fits every screen and its text
is never stretched. A table under the drawing has the exact numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from flowfabric.core.minute import Counted
from flowfabric.core.states import EventKind

# The bars are drawn between these heights. The times are written below the bars.
TOP, BOTTOM = 8.0, 86.0
# A bar is at least this high, so that a single execution can be seen.
LEAST = 2.5
# If anything failed, the part below the line has at least this height.
LEAST_BELOW = 12.0
# The fraction of its column's width that a bar fills.
FILLED = 0.76
# A number or a time that is nearer than this to its neighbour or to the edge is left out.
NEAR_NUMBER, NEAR_EDGE = 13.0, 7.0
# An axis ends at one of these numbers times a power of ten.
_ROUND = (1, 2, 3, 4, 5, 6, 8, 10)
_BETWEEN_TIMES = {
    timedelta(minutes=1): timedelta(minutes=15),
    timedelta(minutes=10): timedelta(hours=1),
    timedelta(hours=1): timedelta(hours=4),
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the chart: the executions that ended in one span of time, drawn as two bars."""

    starts_at: datetime
    completed: int
    failed: int
    x: float
    width: float
    top: float
    height: float
    depth: float
    title: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: its columns, its horizontal line, and the labels of its axes.

    The line separates completed from failed executions, and `line` is its vertical coordinate.
    `numbers` and `times` are the labels: each is a coordinate and a text. If the text of a
    time does not fit, it is empty.
    """

    step: timedelta
    columns: Sequence[Column]
    completed: int
    failed: int
    line: float
    numbers: Sequence[tuple[float, str]]
    times: Sequence[tuple[float, str]]

    @property
    def is_empty(self) -> bool:
        return not self.columns

    @property
    def busiest(self) -> Column:
        """The column in which the most executions ended."""
        return max(self.columns, key=lambda one: one.completed + one.failed)


def draw_chart(
    found: Sequence[Counted], since: datetime, window: timedelta, step: timedelta
) -> Chart:
    """Return a chart of the executions that ended in the `window` after `since`.

    Each column stands for a span of the length `step`. `found` contains the counts of these spans.
    """
    completed, failed = _by_time(found, EventKind.COMPLETED), _by_time(found, EventKind.FAILED)
    above, below = _round(max(completed.values(), default=0)), max(failed.values(), default=0)
    below = _round(below)
    room = BOTTOM - TOP
    scale = room / (above + below or 1)
    if below and below * scale < LEAST_BELOW:
        scale = (room - LEAST_BELOW) / (above or 1)
    line = TOP + above * scale

    def size(number: int) -> float:
        return max(number * scale, LEAST) if number else 0.0

    columns = []
    for at in sorted(completed.keys() | failed.keys()):
        done, lost = completed.get(at, 0), failed.get(at, 0)
        words = f"{_clock(at)} to {_clock(at + step)} UTC: {done} completed, {lost} failed"
        width = step / window * 100
        x = (at - since) / window * 100 + width * (1 - FILLED) / 2
        column = (x, width * FILLED, line - size(done), size(done), size(lost), words)
        columns.append(Column(at, done, lost, *column))
    return Chart(
        step,
        columns,
        sum(completed.values()),
        sum(failed.values()),
        line,
        _numbers(line, scale, above, below),
        _times(since, window, step),
    )


def rate_text(number: int, window: timedelta) -> str:
    """Return a number of executions as a rate, such as `0.3 a minute`."""
    rate = number / (window / timedelta(minutes=1))
    if not number:
        return "none"
    if rate < 0.05:
        return "less than 0.1 a minute"
    return f"{rate:.1f} a minute" if rate < 10 else f"{rate:,.0f} a minute".replace(",", " ")


def summary(chart: Chart, window: timedelta) -> str:
    """Say in words what the chart shows, for people who cannot see it."""
    number = round(window / timedelta(hours=1))
    hours = "hour" if number == 1 else f"{number} hours"
    if chart.is_empty:
        return f"No execution ended in the last {hours}."
    return (
        f"Executions that ended in the last {hours}: {chart.completed} completed, {chart.failed} "
        f"failed. Most ended from {chart.busiest.title}."
    )


def _by_time(found: Sequence[Counted], kind: EventKind) -> dict[datetime, int]:
    numbers: dict[datetime, int] = {}
    for one in found:
        if one.kind is kind:
            numbers[one.starts_at] = numbers.get(one.starts_at, 0) + one.event_count
    return numbers


def _round(number: int) -> int:
    """Return the number at which an axis ends: a round number such as 600, at least `number`."""
    power = int("1" + "0" * (len(str(number)) - 1))
    return next(one * power for one in (0, *_ROUND) if one * power >= number)


def _numbers(line: float, scale: float, above: int, below: int) -> list[tuple[float, str]]:
    """Return the labels of the vertical axis, each as its height in the drawing and its text."""
    wanted = [(line, 0), (line - above * scale, above)]
    wanted.append((max(line + below * scale, BOTTOM if below else line), below))
    if not above % 2:
        wanted.append((line - above * scale / 2, above // 2))
    found: list[tuple[float, str]] = []
    for y, number in wanted:
        if all(abs(y - other) >= NEAR_NUMBER for other, _ in found):
            found.append((y, _compact(number)))
    return found


def _compact(number: int) -> str:
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if number >= size * 10:
            return f"{number / size:.4g}{unit}"
    return str(number)


def _times(since: datetime, window: timedelta, step: timedelta) -> list[tuple[float, str]]:
    between = _BETWEEN_TIMES[step]
    midnight = since.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    at = midnight + -(-(since - midnight) // between) * between
    found = []
    while at < since + window:
        x = (at - since) / window * 100
        found.append((x, _clock(at) if NEAR_EDGE <= x <= 100 - NEAR_EDGE else ""))
        at += between
    return found


def _clock(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%H:%M}"
