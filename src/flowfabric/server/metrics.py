"""Metrics in the text form of Prometheus: of a server, of a worker, and from the database.

Labels are names of tasks, lanes, routes and operations, never ids or tenants. NAMES lists every
metric, so that the dashboards and alerts in deploy/ can be tested against it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
    start_http_server,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from flowfabric.client import FlowFabric
from flowfabric.core.lane import LaneTraffic

if TYPE_CHECKING:
    from flowfabric.app.app import App
    from flowfabric.telemetry import Meter

# Each counter would come with the time of its making, a second series.
disable_created_metrics()  # type: ignore[no-untyped-call]

# The values of one metric: labels, and the number.
Values: TypeAlias = list[tuple[list[str], float]]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    30,
    60,
    300,
    1800,
)

# Every metric, and what it says.
NAMES = {
    "flowfabric_http_requests_total": "Requests by method, route and status.",
    "flowfabric_http_request_seconds": "How long requests took, by route.",
    "flowfabric_calls_total": "Calls of the database by operation and outcome (ok or error).",
    "flowfabric_call_seconds": "How long calls of the database took, by operation.",
    "flowfabric_started_total": "Runs of handlers that started in this worker, by task.",
    "flowfabric_ended_total": "Runs of handlers that ended here: completed, failed or paused.",
    "flowfabric_run_seconds": "How long runs of handlers took, by task.",
    "flowfabric_running": "Handlers that run now in this worker.",
    "flowfabric_executions": "Executions by lane and state (waiting, delayed, active, in_line).",
    "flowfabric_oldest_waiting_seconds": "How long the oldest waiting execution waits, by lane.",
    "flowfabric_workers": "Live workers.",
    "flowfabric_heartbeat_age_seconds": "Age of the oldest last heartbeat of a live worker.",
}


class CallMetrics:
    """Counts the calls of one process, as the listener of its meters."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._calls = Counter(
            *_named("flowfabric_calls"), ["operation", "outcome"], registry=registry
        )
        self._seconds = Histogram(
            *_named("flowfabric_call_seconds"), ["operation"], buckets=SECONDS, registry=registry
        )

    def listen(self, meter: Meter) -> None:
        """Count the calls of a meter from now on; a second call changes nothing."""
        if self._note not in meter.listeners:
            meter.listeners.append(self._note)

    def _note(self, name: str, seconds: float, failure: str | None) -> None:
        self._calls.labels(name, "ok" if failure is None else "error").inc()
        self._seconds.labels(name).observe(seconds)


class ServerMetrics:
    """The metrics of one server process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.calls = CallMetrics(self.registry)
        self._requests = Counter(
            *_named("flowfabric_http_requests"),
            ["method", "route", "status"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            *_named("flowfabric_http_request_seconds"),
            ["route"],
            buckets=SECONDS,
            registry=self.registry,
        )

    def note(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    async def text(self, client: FlowFabric) -> bytes:
        """Return all metrics, with those of the database for the namespace of the client."""
        self.calls.listen(client.database.meter)
        found = CollectorRegistry()
        traffic, workers, now = await asyncio.gather(
            client.lanes.traffic(), client.workers.list(), client.executions.server_time()
        )
        oldest = max((now - one.heartbeat_at for one in workers), default=None)
        ages: Values = [] if oldest is None else [([], max(oldest.total_seconds(), 0.0))]
        found.register(
            _Gauges(
                [
                    ("flowfabric_executions", ["lane", "state"], list(_counts(traffic))),
                    (
                        "flowfabric_oldest_waiting_seconds",
                        ["lane"],
                        [
                            ([one.lane], max((now - one.waiting_since).total_seconds(), 0.0))
                            for one in traffic
                            if one.waiting_since is not None
                        ],
                    ),
                    ("flowfabric_workers", [], [([], float(len(workers)))]),
                    ("flowfabric_heartbeat_age_seconds", [], ages),
                ]
            )
        )
        return generate_latest(self.registry) + generate_latest(found)


class WorkerMetrics:
    """The metrics of one worker process, on a port of its own."""

    def __init__(self, app: App) -> None:
        self.registry = CollectorRegistry()
        self.calls = CallMetrics(self.registry)
        self._started = Counter(*_named("flowfabric_started"), ["task"], registry=self.registry)
        self._ended = Counter(
            *_named("flowfabric_ended"), ["task", "outcome"], registry=self.registry
        )
        self._seconds = Histogram(
            *_named("flowfabric_run_seconds"), ["task"], buckets=SECONDS, registry=self.registry
        )
        self._running = Gauge(*_named("flowfabric_running"), registry=self.registry)
        self._app = app
        app.middleware(self._around)
        app.on_startup(self._listen)

    def serve(self, port: int, host: str = "127.0.0.1") -> int:
        """Serve the metrics on a port, 0 for a free one; return the port."""
        self._server, _ = start_http_server(port, host, self.registry)
        return int(self._server.server_port)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()

    async def _listen(self) -> None:
        self.calls.listen((await self._app.client()).database.meter)

    async def _around(self, context: Any, call_next: Callable[[], Awaitable[Any]]) -> Any:
        task, started, outcome = context.task, perf_counter(), "paused"
        self._started.labels(task).inc()
        self._running.inc()
        try:
            result = await call_next()
            outcome = "completed"
            return result
        except Exception:
            outcome = "failed"
            raise
        finally:
            self._running.dec()
            self._ended.labels(task, outcome).inc()
            self._seconds.labels(task).observe(perf_counter() - started)


class _Gauges(Collector):
    """Values that were read just now."""

    def __init__(self, families: list[tuple[str, list[str], Values]]) -> None:
        self._families = families

    def collect(self) -> Iterable[GaugeMetricFamily]:
        for name, labels, values in self._families:
            family = GaugeMetricFamily(name, NAMES[name], labels=labels)
            for words, value in values:
                family.add_metric(words, value)
            yield family


def _counts(traffic: Iterable[LaneTraffic]) -> Iterable[tuple[list[str], float]]:
    for one in traffic:
        for state in ("waiting", "delayed", "active", "in_line"):
            yield [one.lane, state], float(getattr(one, state))


def _named(name: str) -> tuple[str, str]:
    """Return a name and its description. A counter is described with its ending `_total`."""
    return name, NAMES.get(name) or NAMES[f"{name}_total"]
