"""The loggers, the meter that counts every operation, and the log formats."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol, TextIO

from flowfabric.core.ids import with_bare_ids

LOGGER = logging.getLogger("flowfabric")
WORKER_LOGGER = logging.getLogger("flowfabric.worker")
ENGINE_LOGGER = logging.getLogger("flowfabric.engine")


class Running(Protocol):
    """A running execution, as a log line names it."""

    attempt: int
    task: str

    @property
    def id(self) -> str: ...


execution_in_log: ContextVar[Running | None] = ContextVar("flowfabric_execution", default=None)

_NAMED = 10
_MAX_LISTED = 10


def named(executions: Iterable[Running]) -> str:
    """List executions with their tasks, for one log line."""
    listed = [f"{execution.task} ({execution.id})" for execution in executions]
    text = ", ".join(listed[:_MAX_LISTED])
    return text if len(listed) <= _MAX_LISTED else f"{text} and {len(listed) - _MAX_LISTED} more"


@dataclass(slots=True)
class Operation:
    """Counts of one operation: calls, failures, seconds and rows."""

    calls: int = 0
    failures: int = 0
    seconds: float = 0.0
    rows: int = 0


class Meter:
    """Counts and times operations. Each listener is called after every operation."""

    def __init__(self) -> None:
        self.operations: dict[str, Operation] = {}
        self.listeners: list[Callable[[str, float, str | None], None]] = []

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
            listener(name, seconds, failure)


class ExecutionFilter(logging.Filter):
    """Adds the running execution, if any, to each log record."""

    def filter(self, record: logging.LogRecord) -> bool:
        about = execution_in_log.get()
        if about is None:
            record.execution_id, record.attempt, record.task = "", 0, ""
        else:
            record.execution_id = about.id
            record.attempt = about.attempt
            record.task = about.task
        return True


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S")
        about = getattr(record, "execution_id", "")
        message, tail = with_bare_ids(record.getMessage()), ""
        if about:
            task = record.__dict__["task"]
            uuid = about.rpartition(":")[2]
            tail = f"  [{uuid}]" if message.startswith(f"{task} ") else f"  [{task} {uuid}]"
        line = f"{time} {record.levelname.lower():<7} {message}{tail}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
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
    """Log to stderr as text or JSON. Only our own commands call this, never the library."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    handler.addFilter(ExecutionFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
