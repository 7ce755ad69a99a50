"""Counts of events by minute: throughput and percentiles over hours and days."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TypedDict

from starlette.requests import Request
from starlette.responses import Response

from flowfabric.core.minute import Counted
from flowfabric.core.states import EventKind
from flowfabric.core.times import span
from flowfabric.core.token import Scope
from flowfabric.server.answers import missing_in, page
from flowfabric.server.routing import CurrentCall, Routes
from flowfabric.server.shapes import MISSING, PageOf

routes = Routes("minutes")


class Minute(TypedDict):
    """The number of events of a lane, task and kind in a span of time, and their latencies."""

    starts_at: datetime
    lane: str
    task: str
    kind: EventKind
    count: int
    p50: timedelta | None
    p90: timedelta | None
    p95: timedelta | None
    p99: timedelta | None


@routes.get("/v1/minutes", Scope.READ, answers=PageOf(Minute, MISSING))
async def list_minutes(
    call: CurrentCall,
    request: Request,
    window: str = "1h",
    step: str | None = None,
    task: str | None = None,
    lane: str | None = None,
    until: datetime | None = None,
) -> Response:
    """Count events by lane, task and kind, with percentiles of their latencies in seconds.

    For `claimed`, a latency is how long an execution had waited. For `completed` and other events
    that end a run of the handler, it is how long the run took. If `step` is given, it is the length
    of the parts into which the window is divided. A window is at most 30 days long.
    """
    found = await call.client.minutes.read(
        span(window, "window"),
        until=until,
        step=None if step is None else span(step, "step"),
        task=task,
        lane=lane,
    )
    return page(request, list(map(facts, found)), None, **missing_in(found))


def facts(one: Counted) -> Minute:
    """Return the number of events and the percentiles of their latencies, as plain data."""
    return {
        "starts_at": one.starts_at,
        "lane": one.lane,
        "task": one.task,
        "kind": one.kind,
        "count": one.event_count,
        "p50": one.percentile(0.5),
        "p90": one.percentile(0.9),
        "p95": one.percentile(0.95),
        "p99": one.percentile(0.99),
    }
