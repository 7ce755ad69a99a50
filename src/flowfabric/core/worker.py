"""A worker as the registry knows it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """One registered worker instance. None in `lanes` or `tasks` means any; an empty `namespace`
    means all."""

    namespace: str
    worker_instance_id: str
    worker_id: str
    lanes: list[str] | None
    tasks: list[str] | None
    capabilities: list[str]
    liveness_ttl: timedelta
    registered_at: datetime
    heartbeat_at: datetime
    # The worker counts as alive until this time; each heartbeat moves it.
    expires_at: datetime
    is_alive: bool
    # It has missed two heartbeats; one is due every sixth of `liveness_ttl`.
    is_silent: bool
    # The version of its code, and the other versions whose journals it reads.
    code_version: str | None
    reads: list[str]
    # Whether it only finishes what its code version has begun.
    finish_only: bool
