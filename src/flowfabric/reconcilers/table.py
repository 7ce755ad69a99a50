"""Every reconciler, on one screen. Each is safe to run anywhere, any number of times at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from flowfabric.client import FlowFabric

# What one pass returns: how many rows it handled, and how long until the next timer is due.
Pass = tuple[int, timedelta | None]


@dataclass(frozen=True, slots=True)
class Reconciler:
    """A name, how often it looks at the least, how many rows a pass takes, and the pass itself."""

    name: str
    cadence: timedelta
    batch: int
    run_once: Callable[[FlowFabric, int], Awaitable[Pass]]


RECONCILERS: tuple[Reconciler, ...] = (
    Reconciler(
        "lease_expiry",
        timedelta(seconds=1.5),
        500,
        lambda client, batch: client.leases.expire(limit=batch),
    ),
    Reconciler(
        "delayed_promoter",
        timedelta(seconds=0.75),
        500,
        lambda client, batch: client.executions.promote_delayed(limit=batch),
    ),
)
