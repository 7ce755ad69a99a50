"""What the registry knows about a worker."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """One worker of one process. No lanes or tasks (None) means any; an empty namespace, all."""

    namespace: str
    worker_instance_id: str
    worker_id: str
    lanes: list[str] | None
    tasks: list[str] | None
    capabilities: list[str]
    liveness_ttl: timedelta
    registered_at: datetime
    heartbeat_at: datetime
    # Alive until then, unless it beats again.
    expires_at: datetime
    is_alive: bool
