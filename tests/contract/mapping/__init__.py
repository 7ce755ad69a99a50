"""The counterparts of the reference's operations, each called on real rows and checked."""

from __future__ import annotations

from . import (
    admission,
    attempt,
    exec_core,
    flows,
    grants,
    lookups,
    operators,
    signals,
    streams,
    timers,
    worker_calls,
    workers,
)
from .limits import LIMITS
from .world import OPERATIONS, Operation, World, text

__all__ = [
    "LIMITS",
    "OPERATIONS",
    "Operation",
    "World",
    "admission",
    "attempt",
    "exec_core",
    "flows",
    "grants",
    "lookups",
    "operators",
    "signals",
    "streams",
    "text",
    "timers",
    "worker_calls",
    "workers",
]
