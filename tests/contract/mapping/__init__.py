"""What the reference's operations are here: each called on real rows, with what must be seen."""

from __future__ import annotations

from . import (
    admission,
    attempt,
    exec_core,
    flows,
    grants,
    lookups,
    operators,
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
    "text",
    "timers",
    "worker_calls",
    "workers",
]
