"""Speed: how many executions ended lately, and how long executions waited and ran."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from flowfabric.core.errors import InvalidInput
from flowfabric.core.minute import Counted, together
from flowfabric.core.states import EventKind
from flowfabric.dashboard.chart import Chart, draw_chart, summary
from flowfabric.server.routing import Call

# The times over which ended executions are counted, and the percentiles of their latencies.
WINDOWS = (timedelta(hours=1), timedelta(hours=6), timedelta(hours=24))
SHARES = (0.5, 0.95, 0.99)
# The charts by name: their label, how far they go back, and the time of one bar. A bar stands for a
# minute, or for a span for which the database keeps a sum. The last bar is not over yet.
CHARTS = {
    "1h": ("Last hour", timedelta(hours=1), timedelta(minutes=1)),
    "6h": ("6 hours", timedelta(hours=6), timedelta(minutes=10)),
    "24h": ("24 hours", timedelta(hours=24), timedelta(hours=1)),
}
FIRST_CHART = "1h"
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Speed:
    """How many executions ended in a span of time, and how long executions waited and ran."""

    window: timedelta
    completed: int
    failed: int
    waits: Sequence[timedelta | None]
    runs: Sequence[timedelta | None]


async def speeds_of(call: Call, task: str | None = None) -> list[Speed]:
    """Return a `Speed` for the last hour, one for the last 6 hours and one for the last 24 hours.

    If `task` is given, only its executions are counted.
    """
    return await asyncio.gather(*(_speed(call, window, task) for window in WINDOWS))


async def _speed(call: Call, window: timedelta, task: str | None) -> Speed:
    found = await call.client.minutes.read(window, task=task)

    def of(*kinds: EventKind) -> Counted | None:
        parts = [one for one in found if one.kind in kinds]
        return together(parts) if parts else None

    completed, failed = of(EventKind.COMPLETED), of(EventKind.FAILED)
    waits, runs = of(EventKind.CLAIMED), of(EventKind.COMPLETED, EventKind.FAILED)
    return Speed(
        window,
        completed.event_count if completed else 0,
        failed.event_count if failed else 0,
        [waits.percentile(share) if waits else None for share in SHARES],
        [runs.percentile(share) if runs else None for share in SHARES],
    )


async def chart_facts(
    call: Call, name: str, now: datetime, address: str, task: str | None = None
) -> dict[str, Any]:
    """Return what a page needs to show a chart.

    Links to the other charts append `chart=NAME` to `address`.
    """
    if name not in CHARTS:
        raise InvalidInput(field="chart", problem=f"must be one of {', '.join(CHARTS)}")
    _, window, step = CHARTS[name]
    chart = await call.backend.shared.read(
        f"chart {name} {task or ''}", call.client, lambda: _chart(call, window, step, now, task)
    )
    return {
        "chart": chart,
        "chart_name": name,
        "chart_of": address,
        "chart_window": window,
        "chart_summary": summary(chart, window),
        "charts": {key: words for key, (words, _, _) in CHARTS.items()},
    }


async def _chart(
    call: Call, window: timedelta, step: timedelta, now: datetime, task: str | None
) -> Chart:
    # The last bar is not over yet.
    end = _EPOCH + ((now - _EPOCH) // step + 1) * step
    found = await call.client.minutes.read(
        window, until=end - timedelta(minutes=1), step=step, task=task, is_total=True
    )
    return draw_chart(found, end - window, window, step)
