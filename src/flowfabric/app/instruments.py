"""Metrics of a worker for OpenTelemetry, with the same names as for Prometheus.

They are recorded only if the program has set a meter provider before its worker starts. Some
names lack the suffix `_total`, because an exporter of OpenTelemetry adds it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any

from opentelemetry import metrics

from flowfabric.client import FlowFabric
from flowfabric.telemetry import COUNTED, OBSERVED, ROWS, SECONDS


def is_configured() -> bool:
    """Return whether the program has set a meter provider."""
    return not type(metrics.get_meter_provider()).__module__.startswith("opentelemetry.metrics")


class Instruments:
    """Records the metrics of one worker process."""

    def __init__(self) -> None:
        meter = metrics.get_meter("flowfabric")
        self._calls = meter.create_counter("flowfabric_calls")
        self._call_seconds = _times(meter, "flowfabric_call_seconds")
        self._call_rows = meter.create_histogram(
            "flowfabric_call_rows", explicit_bucket_boundaries_advisory=ROWS
        )
        self._started = meter.create_counter("flowfabric_started")
        self._ended = meter.create_counter("flowfabric_ended")
        self._seconds = _times(meter, "flowfabric_run_seconds")
        self._running = meter.create_up_down_counter("flowfabric_running")

        self._counters = {name: meter.create_counter(name) for name in COUNTED}
        self._histograms = {name: _times(meter, name) for name in OBSERVED}
        self._client: FlowFabric | None = None
        meter.create_observable_gauge("flowfabric_pool_connections", [self._pool])

    def listen(self, client: FlowFabric) -> None:
        """Record every call of a client. Listening to the same client twice changes nothing."""
        self._client, meter = client, client.database.meter
        if self._note not in meter.listeners:
            meter.listeners.append(self._note)
            meter.counters.append(self._count)
            meter.observers.append(self._observe)

    def _count(self, name: str, number: int, labels: Mapping[str, str]) -> None:
        self._counters[name].add(number, dict(labels))

    def _observe(self, name: str, values: Sequence[float], labels: Mapping[str, str]) -> None:
        for value in values:
            self._histograms[name].record(value, labels)

    def _pool(self, _: Any) -> Iterable[metrics.Observation]:
        busy, idle = (0, 0) if self._client is None else self._client.database.pool_use
        return [
            metrics.Observation(busy, {"state": "busy"}),
            metrics.Observation(idle, {"state": "idle"}),
        ]

    async def around(self, context: Any, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """Record one run of a handler. This is a middleware."""
        labels = {"task": context.task, "lane": context.lane}
        started, outcome = perf_counter(), "paused"
        self._started.add(1, labels)
        self._running.add(1)
        try:
            result = await call_next()
            outcome = "completed"
            return result
        except Exception:
            outcome = "failed"
            raise
        finally:
            self._running.add(-1)
            self._ended.add(1, {**labels, "outcome": outcome})
            self._seconds.record(perf_counter() - started, labels)

    def _note(self, name: str, seconds: float, failure: str | None, rows: int) -> None:
        operation = {"operation": name}
        self._calls.add(1, {**operation, "outcome": "ok" if failure is None else "error"})
        self._call_seconds.record(seconds, operation)
        self._call_rows.record(rows, operation)


def _times(meter: metrics.Meter, name: str) -> metrics.Histogram:
    """Create a histogram of seconds, with the same buckets as for Prometheus.

    The default buckets of OpenTelemetry are made for milliseconds.
    """
    return meter.create_histogram(name, unit="s", explicit_bucket_boundaries_advisory=SECONDS)
