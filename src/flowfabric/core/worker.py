"""The record of a registered worker."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """One registered worker.

    If `lanes` is None, the worker takes all lanes. If `tasks` is None, it takes all tasks. An empty
    `namespace` means all namespaces.
    """

    namespace: str
    worker_instance_id: str
    worker_id: str
    lanes: list[str] | None
    tasks: list[str] | None
    capabilities: list[str]
    liveness_ttl: timedelta
    registered_at: datetime
    heartbeat_at: datetime
    # The worker counts as alive until this time. Every heartbeat extends it.
    expires_at: datetime
    is_alive: bool
    # Whether it has missed two heartbeats; a heartbeat is due every sixth of `liveness_ttl`.
    is_silent: bool
    # The version of its code, and the other versions whose journals it can read.
    code_version: str | None
    reads: list[str]
    # Whether it only finishes executions that its code version has begun.
    finish_only: bool
    # Where it runs, and how many handlers it runs at once.
    host: str | None
    slots: int | None
    # At its last heartbeat: how many handlers ran, and how long its event loop took to answer.
    running: int
    loop_lag: timedelta | None
    # When an operator asked it to drain: to finish what runs, and then to end.
    drain_asked_at: datetime | None


@dataclass(frozen=True, slots=True)
class Asked:
    """The answer to a heartbeat: which workers must register again, and which must drain."""

    register: list[str]
    drain: list[str]
