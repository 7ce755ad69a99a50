"""Metrics of a server, of a worker and of the database, in the text format of Prometheus.

Labels are names, such as names of tasks and lanes, but never ids or tenants. NAMES lists every
metric, so that tests can compare the dashboards and alerts in deploy/ with the list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
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
from flowfabric.core.execution import ExecutionFilter
from flowfabric.core.lane import LaneTraffic
from flowfabric.core.minute import Counted
from flowfabric.core.quota import BudgetInfo
from flowfabric.telemetry import COUNTED, OBSERVED, ROWS, SECONDS

if TYPE_CHECKING:
    from flowfabric.app.app import App
    from flowfabric.db.session import Database

# Without this call, each counter would also export its creation time as a second series.
disable_created_metrics()  # type: ignore[no-untyped-call]

# The values of one metric: labels, and the number.
Values: TypeAlias = list[tuple[list[str], float]]
# A metric: its name, its labels and its values.
Family: TypeAlias = tuple[str, list[str], Values]

# How often the lag of the event loop is measured.
LAG_SECONDS = 1.0
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Every metric, and what it says.
NAMES = {
    "flowfabric_http_requests_total": "Requests by method, route and status.",
    "flowfabric_http_request_seconds": "How long requests took, by route.",
    "flowfabric_calls_total": "Calls of database functions by operation and outcome (ok or error).",
    "flowfabric_call_seconds": "How long calls of database functions took, by operation.",
    "flowfabric_started_total": "Runs of handlers that started in this worker, by task and lane.",
    "flowfabric_ended_total": (
        "Runs of handlers that ended here, by task, lane and outcome (completed, failed or paused)."
    ),
    "flowfabric_wait_seconds": (
        "How long executions waited from submit to their first claim, by task and lane."
    ),
    "flowfabric_run_seconds": "How long runs of handlers took, by task and lane.",
    "flowfabric_running": "Handlers that run now in this worker.",
    "flowfabric_executions": "Executions by lane and state (waiting, delayed, active, in_line).",
    "flowfabric_oldest_waiting_seconds": "How long the oldest waiting execution waits, by lane.",
    "flowfabric_workers": "Live workers.",
    "flowfabric_heartbeat_age_seconds": (
        "Time since the last heartbeat of the live worker that has been silent longest."
    ),
    "flowfabric_events": "Events of the last hour by lane, task and kind, such as retry_scheduled.",
    "flowfabric_latency_seconds": (
        "Percentiles of the last hour: how long executions waited (kind claimed) or "
        "ran (kind completed)."
    ),
    "flowfabric_suspended": "Executions that wait for a signal, up to 1000.",
    "flowfabric_held": "Executions that are held because their code has changed, up to 10000.",
    "flowfabric_feed_lag_seconds": "Age of the first event that a subscription has not read.",
    "flowfabric_budget_used_ratio": "Usage of a budget without a key, divided by its hard limit.",
    "flowfabric_loop_lag_seconds": "How late the event loop of this worker runs its timers.",
    "flowfabric_pool_connections": (
        "Connections of this process to the database by state (busy, idle)."
    ),
    "flowfabric_frames_total": "Frames that this process stored in streams, by mode.",
    "flowfabric_quota_refusals_total": "Submissions that a quota refused in this process.",
    "flowfabric_reconciler_runs_total": "Passes of reconcilers by name and outcome (ok or error).",
    "flowfabric_call_rows": "How many rows one call of a database function returned.",
}


class CallMetrics:
    """Counts and times the calls of database functions that this process makes."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._calls = Counter(
            *_named("flowfabric_calls"), ["operation", "outcome"], registry=registry
        )
        self._seconds = Histogram(
            *_named("flowfabric_call_seconds"), ["operation"], buckets=SECONDS, registry=registry
        )
        self._rows = Histogram(
            *_named("flowfabric_call_rows"), ["operation"], buckets=ROWS, registry=registry
        )

        self._counters = {
            name: Counter(*_named(name), labels, registry=registry)
            for name, labels in COUNTED.items()
        }
        self._histograms = {
            name: Histogram(*_named(name), labels, buckets=SECONDS, registry=registry)
            for name, labels in OBSERVED.items()
        }
        self._pool = Gauge(*_named("flowfabric_pool_connections"), ["state"], registry=registry)

    def listen(self, database: Database) -> None:
        """Count every call that this process makes through `database` from now on.

        A second `listen` for the same database changes nothing.
        """
        meter = database.meter
        if self._note not in meter.listeners:
            meter.listeners.append(self._note)
            meter.counters.append(self._count)
            meter.observers.append(self._observe)
            self._pool.labels("busy").set_function(lambda: database.pool_use[0])
            self._pool.labels("idle").set_function(lambda: database.pool_use[1])

    def _count(self, name: str, number: int, labels: Mapping[str, str]) -> None:
        self._counters[name].labels(**labels).inc(number)

    def _observe(self, name: str, values: Sequence[float], labels: Mapping[str, str]) -> None:
        histogram = self._histograms[name].labels(**labels)
        for value in values:
            histogram.observe(value)

    def _note(self, name: str, seconds: float, failure: str | None, rows: int) -> None:
        self._calls.labels(name, "ok" if failure is None else "error").inc()
        self._seconds.labels(name).observe(seconds)
        self._rows.labels(name).observe(rows)


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

    def serve(self, port: int, host: str = "127.0.0.1") -> int:
        """Serve the metrics of this process on a port (0: any free port). Return the port."""
        self._server, _ = start_http_server(port, host, self.registry)
        return int(self._server.server_port)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()

    async def text(self, client: FlowFabric, *, with_totals: bool = False) -> bytes:
        """Return the metrics of the database for the namespace of the client.

        If `with_totals` is true, add the totals of this process.
        """
        self.calls.listen(client.database)
        found = CollectorRegistry()
        found.register(_Gauges([*await _work(client), *await _history(client)]))
        # The totals of the process count all namespaces.
        totals = generate_latest(self.registry) if with_totals else b""
        return totals + generate_latest(found)


async def _work(client: FlowFabric) -> list[Family]:
    """Return metrics of the workers, and of the executions that wait, run or are held now."""
    traffic, workers, now, suspended, held = await asyncio.gather(
        client.lanes.traffic(),
        client.workers.list(),
        client.executions.server_time(),
        client.signals.suspended(limit=1000),
        client.executions.count(ExecutionFilter(is_held=True)),
    )
    beats = [_age(now, one.heartbeat_at) for one in workers]
    waits: Values = [
        ([one.lane], _age(now, one.waiting_since))
        for one in traffic
        if one.waiting_since is not None
    ]
    return [
        ("flowfabric_executions", ["lane", "state"], list(_counts(traffic))),
        ("flowfabric_oldest_waiting_seconds", ["lane"], waits),
        ("flowfabric_workers", [], [([], float(len(workers)))]),
        ("flowfabric_heartbeat_age_seconds", [], [([], max(beats))] if beats else []),
        ("flowfabric_suspended", [], [([], float(len(suspended)))]),
        ("flowfabric_held", [], [([], float(held.number))]),
    ]


async def _history(client: FlowFabric) -> list[Family]:
    """Return metrics of recent events, of the lag of subscriptions and of the usage of budgets."""
    minutes, feeds, budgets, now = await asyncio.gather(
        client.minutes.read(),
        client.subscriptions.list(),
        client.budgets.list(),
        client.executions.server_time(),
    )
    events: Values = [([o.lane, o.task, o.kind], float(o.event_count)) for o in minutes]
    lags: Values = [
        ([one.name], _age(now, one.behind_at)) for one in feeds if one.behind_at is not None
    ]
    return [
        ("flowfabric_events", ["lane", "task", "kind"], events),
        (
            "flowfabric_latency_seconds",
            ["lane", "task", "kind", "quantile"],
            list(_latencies(minutes)),
        ),
        ("flowfabric_feed_lag_seconds", ["subscription"], lags),
        ("flowfabric_budget_used_ratio", ["budget", "dimension"], list(_budget_use(budgets))),
    ]


def _age(now: datetime, since: datetime) -> float:
    return max((now - since).total_seconds(), 0.0)


class WorkerMetrics:
    """The metrics of one worker process, on a port of its own."""

    def __init__(self, app: App) -> None:
        self.registry = CollectorRegistry()
        self.calls = CallMetrics(self.registry)
        labels = ["task", "lane"]
        self._started = Counter(*_named("flowfabric_started"), labels, registry=self.registry)
        self._ended = Counter(
            *_named("flowfabric_ended"), [*labels, "outcome"], registry=self.registry
        )
        self._seconds = Histogram(
            *_named("flowfabric_run_seconds"), labels, buckets=SECONDS, registry=self.registry
        )
        self._running = Gauge(*_named("flowfabric_running"), registry=self.registry)
        self._lag = Gauge(*_named("flowfabric_loop_lag_seconds"), registry=self.registry)
        self._timer: asyncio.TimerHandle | None = None
        self._app = app
        app.middleware(self._around)
        app.on_startup(self._listen)

    def serve(self, port: int, host: str = "127.0.0.1") -> int:
        """Serve the metrics on a port (0: any free port). Return the port."""
        self._server, _ = start_http_server(port, host, self.registry)
        return int(self._server.server_port)

    def close(self) -> None:
        """Stop serving and measuring."""
        if self._timer is not None:
            self._timer.cancel()
        self._server.shutdown()
        self._server.server_close()

    async def _listen(self) -> None:
        self.calls.listen((await self._app.client()).database)
        self._measure_lag(asyncio.get_running_loop(), None)

    def _measure_lag(self, loop: asyncio.AbstractEventLoop, due_at: float | None) -> None:
        """Record how late the event loop calls this method. The next call is due in a second."""
        if due_at is not None:
            self._lag.set(max(loop.time() - due_at, 0.0))
        self._timer = loop.call_later(
            LAG_SECONDS, self._measure_lag, loop, loop.time() + LAG_SECONDS
        )

    async def _around(self, context: Any, call_next: Callable[[], Awaitable[Any]]) -> Any:
        labels, started, outcome = (context.task, context.lane), perf_counter(), "paused"
        self._started.labels(*labels).inc()
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
            self._ended.labels(*labels, outcome).inc()
            self._seconds.labels(*labels).observe(perf_counter() - started)


class _Gauges(Collector):
    """Serves the given values as gauges of Prometheus."""

    def __init__(self, families: list[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[GaugeMetricFamily]:
        for name, labels, values in self._families:
            family = GaugeMetricFamily(name, NAMES[name], labels=labels)
            for words, value in values:
                family.add_metric(words, value)
            yield family


def _latencies(minutes: Iterable[Counted]) -> Iterable[tuple[list[str], float]]:
    for one in minutes:
        for share in (0.5, 0.95, 0.99):
            if (latency := one.percentile(share)) is not None:
                yield [one.lane, one.task, one.kind, str(share)], latency.total_seconds()


def _budget_use(budgets: Iterable[BudgetInfo]) -> Iterable[tuple[list[str], float]]:
    # A key must not be a label: it may be a tenant, and there may be any number of keys.
    for one in budgets:
        for dimension, limit in one.hard_limits.items() if not one.key else ():
            yield [one.budget, dimension], one.usage.get(dimension, 0) / max(limit, 1)


def _counts(traffic: Iterable[LaneTraffic]) -> Iterable[tuple[list[str], float]]:
    for one in traffic:
        for state in ("waiting", "delayed", "active", "in_line"):
            yield [one.lane, state], float(getattr(one, state))


def _named(name: str) -> tuple[str, str]:
    """Return the name and the description of a metric.

    NAMES lists a counter with the suffix `_total`. `name` does not have this suffix.
    """
    return name, NAMES.get(name) or NAMES[f"{name}_total"]
