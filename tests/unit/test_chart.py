"""The chart of throughput: every bar inside the drawing, and no number or time over another."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from flowfabric.core.minute import Counted
from flowfabric.core.states import EventKind
from flowfabric.dashboard.chart import BOTTOM, TOP, draw_chart, rate_text, summary

SINCE = datetime(2026, 1, 1, 3, 4, tzinfo=UTC)
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


def counted(minute: int, completed: int, failed: int) -> list[Counted]:
    at = SINCE + minute * MINUTE
    both = ((EventKind.COMPLETED, completed), (EventKind.FAILED, failed))
    return [Counted(at, "", "", kind, number) for kind, number in both if number]


CASES = {
    "a single minute": counted(59, 3, 0),
    "one failure": counted(0, 0, 1),
    "one failure beside many": counted(7, 1_234_567, 0) + counted(8, 12, 1),
    "only failures": counted(7, 0, 40) + counted(59, 0, 7),
    "every minute": [one for n in range(60) for one in counted(n, n * 7, n % 3)],
}


@pytest.mark.parametrize("name", CASES)
def test_bars_stay_inside_the_drawing_and_words_apart(name):
    chart = draw_chart(CASES[name], SINCE, HOUR, MINUTE)
    assert chart.completed == sum(one.completed for one in chart.columns)
    assert TOP <= chart.line <= BOTTOM
    before = 0.0
    for one in chart.columns:
        assert before <= one.x < one.x + one.width <= 100
        before = one.x + one.width
        assert TOP - 0.1 <= one.top <= chart.line <= chart.line + one.depth <= BOTTOM + 0.1
        # Whatever happened can be seen.
        assert bool(one.height) is bool(one.completed)
        assert bool(one.depth) is bool(one.failed)
    places = sorted(y for y, _ in chart.numbers)
    assert all(after - before > 12 for before, after in pairwise(places))
    assert [words for _, words in chart.times] == ["03:15", "03:30", "03:45", ""]


def test_a_quiet_time_says_so():
    chart = draw_chart([], SINCE, HOUR, MINUTE)
    assert chart.is_empty
    assert summary(chart, HOUR) == "No execution ended in the last hour."


def test_the_summary_says_what_the_chart_shows():
    chart = draw_chart(counted(1, 20, 8) + counted(2, 1, 0), SINCE, HOUR, MINUTE)
    assert summary(chart, HOUR) == (
        "Executions that ended in the last hour: 21 completed, 8 failed. "
        "Most ended from 03:05 to 03:06 UTC: 20 completed, 8 failed."
    )
    assert [words for _, words in sorted(chart.numbers)] == ["20", "10", "0", "8"]


@pytest.mark.parametrize(
    ("number", "words"),
    [(0, "none"), (1, "less than 0.1 a minute"), (20, "0.3 a minute"), (90_000, "1 500 a minute")],
)
def test_a_rate_has_its_unit(number, words):
    assert rate_text(number, HOUR) == words
