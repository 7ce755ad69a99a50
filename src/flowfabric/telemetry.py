"""The loggers, the log formats, and the meter that counts every operation."""

from __future__ import annotations

import json
import logging
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, TextIO

from flowfabric.core.ids import with_bare_ids
from flowfabric.core.text import printable
from flowfabric.core.trace import fold

LOGGER = logging.getLogger("flowfabric")
WORKER_LOGGER = logging.getLogger("flowfabric.worker")
ENGINE_LOGGER = logging.getLogger("flowfabric.engine")


class Running(Protocol):
    """A running execution, as log lines show it."""

    attempt: int
    task: str

    @property
    def id(self) -> str: ...


execution_in_log: ContextVar[Running | None] = ContextVar("flowfabric_execution", default=None)

_NAMED = 10
_MAX_LISTED = 10
_MAX_LINE = 4000
_NEXT_LINE = re.compile(r"\n(?!\n|$)")


def named(executions: Iterable[Running]) -> str:
    """Return executions and their tasks as text for one log line."""
    listed = [f"{execution.task} ({execution.id})" for execution in executions]
    text = ", ".join(listed[:_MAX_LISTED])
    return text if len(listed) <= _MAX_LISTED else f"{text} and {len(listed) - _MAX_LISTED} more"


@dataclass(slots=True)
class Operation:
    """The totals of one operation: calls, failures, seconds and rows."""

    calls: int = 0
    failures: int = 0
    seconds: float = 0.0
    rows: int = 0


# The counters that `Meter.count` accepts, with the labels of each.
COUNTED = {
    "flowfabric_frames": ["mode"],
    "flowfabric_quota_refusals": ["quota"],
    "flowfabric_reconciler_runs": ["reconciler", "outcome"],
}


# The histograms that `Meter.observe` accepts, with the labels of each.
OBSERVED = {"flowfabric_wait_seconds": ["task", "lane"]}

# The upper ends of the buckets of histograms: of times in seconds, and of rows.
SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1, 2.5, 5, 10, 30, 60, 300, 1800),
)
ROWS = (0, 1, 3, 10, 30, 100, 300, 1000)


class Meter:
    """Counts operations and adds up their times.

    Other code adds functions to `listeners`, `counters` and `observers`. After every operation, the
    meter calls each listener. `count` calls each counter with a number, such as the number of
    frames sent. `observe` calls each observer with values, such as the waiting times of one claim.
    """

    def __init__(self) -> None:
        self.operations: dict[str, Operation] = {}
        self.listeners: list[Callable[[str, float, str | None, int], None]] = []
        self.counters: list[Callable[[str, int, Mapping[str, str]], None]] = []
        self.observers: list[Callable[[str, Sequence[float], Mapping[str, str]], None]] = []

    def record(self, name: str, seconds: float, rows: int, failure: str | None = None) -> None:
        operation = self.operations.get(name)
        if operation is None:
            operation = self.operations[name] = Operation()
        operation.calls += 1
        operation.seconds += seconds
        operation.rows += rows
        if failure is not None:
            operation.failures += 1
        for listener in self.listeners:
            listener(name, seconds, failure, rows)

    def count(self, name: str, number: int = 1, **labels: str) -> None:
        """Report to all functions in `self.counters` that the metric `name` grew by `number`."""
        for counter in self.counters:
            counter(name, number, labels)

    def observe(self, name: str, values: Sequence[float], **labels: str) -> None:
        """Report new values of the histogram `name` to all functions in `self.observers`."""
        for observer in self.observers:
            observer(name, values, labels)


def about(execution: Running) -> dict[str, object]:
    """Return the fields that describe an execution: the `extra` of a log call."""
    return {
        "execution_id": str(execution.id),
        "attempt": execution.attempt,
        "task": execution.task,
    }


class ExecutionFilter(logging.Filter):
    """Adds the running execution to each log record that has no execution."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not hasattr(record, "execution_id"):
            running = execution_in_log.get()
            nothing = {"execution_id": "", "attempt": 0, "task": ""}
            vars(record).update(nothing if running is None else about(running))
        return True


class _Formatter(logging.Formatter):
    def formatException(self, info: Any) -> str:  # noqa: N802 - the name in the standard library
        """Return the traceback as text, without the lines about flowfabric's own code."""
        kind, error, trace = info
        # The traceback of the record may start at user code. The error has the whole traceback.
        whole = trace if error is None else error.__traceback__
        text = fold("".join(traceback.format_exception(kind, error, whole)))
        # An error message may contain any text. It must not control the terminal or flood the log.
        lines = (
            line if len(line) <= _MAX_LINE else f"{line[:_MAX_LINE]}…" for line in text.split("\n")
        )
        return printable("\n".join(lines), lines=True)


class TextFormatter(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S")
        uuid = getattr(record, "execution_id", "").rpartition(":")[2]
        message, tail = with_bare_ids(record.getMessage()), ""
        if uuid and uuid not in message:
            task = record.__dict__["task"]
            tail = f"  [{uuid}]" if message.startswith(f"{task} ") else f"  [{task} {uuid}]"
        line = f"{time} {record.levelname.lower():<7} {message}{tail}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        # Indent all further lines, so that text of a user cannot look like another record.
        return _NEXT_LINE.sub("\n  ", printable(line, lines=True))


class JsonFormatter(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for key in ("action", "execution_id", "attempt", "task", "worker_instance_id"):
            if (value := getattr(record, key, None)) not in (None, "", 0):
                line[key] = value
        if "execution_id" in line:
            line["uuid"] = str(line["execution_id"]).rpartition(":")[2]
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def install_logging(log_format: str, level: str, stream: TextIO | None = None) -> None:
    """Log to stderr, as text or JSON. Only our own commands call this; the library never does."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    handler.addFilter(ExecutionFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
