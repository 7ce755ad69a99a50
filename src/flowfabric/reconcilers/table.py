"""Every reconciler, on one screen. Each is safe to run anywhere, any number of times at once: a
pass is one call of the engine, which passes over rows that are locked and looks again at each row
under its lock. No row can make a pass fail: what a pass reads was checked when it was stored.
"""

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


async def _unhurried(one: Awaitable[Pass]) -> Pass:
    """A pass whose cadence is soon enough, whatever is due before."""
    handled, _ = await one
    return handled, None


RECONCILERS: tuple[Reconciler, ...] = (
    Reconciler(
        "lease_expiry",
        timedelta(seconds=1.5),
        500,
        lambda client, batch: client.leases.expire(limit=batch),
    ),
    # Attempts that take too long and executions past their deadline.
    Reconciler(
        "execution_expiry",
        timedelta(seconds=2),
        500,
        lambda client, batch: client.executions.expire(limit=batch),
    ),
    Reconciler(
        "delayed_promoter",
        timedelta(seconds=0.75),
        500,
        lambda client, batch: client.executions.promote_delayed(limit=batch),
    ),
    # Those whom an end concerns, where whoever ended it could not tell them all and then died.
    Reconciler(
        "wake_resolver",
        timedelta(seconds=1),
        500,
        lambda client, batch: client.executions.resolve_wakes(limit=batch),
    ),
    # Members of cancelled flows, where whoever cancelled them died, or they took their time.
    Reconciler(
        "cancel_backlog",
        timedelta(seconds=15),
        500,
        lambda client, batch: client.flows.cancel_backlog(limit=batch),
    ),
    # Members of flows that nobody needs any more, where not all could be cancelled at once.
    Reconciler(
        "edge_cancel_dispatcher",
        timedelta(seconds=1),
        500,
        lambda client, batch: client.executions.cancel_siblings(limit=batch),
    ),
    Reconciler(
        "edge_cancel_reconciler",
        timedelta(seconds=10),
        50,
        lambda client, batch: client.executions.reconcile_siblings(limit=batch),
    ),
    # What waits for a capable worker, where the one that registered did not let all of it go.
    Reconciler(
        "unblocker",
        timedelta(seconds=5),
        500,
        lambda client, batch: client.executions.unblock_all(limit=batch),
    ),
    Reconciler(
        "grant_reaper",
        timedelta(seconds=5),
        500,
        lambda client, batch: _unhurried(client.grants.reap(limit=batch)),
    ),
    # It says when it is in the midst of old rows; otherwise a minute is soon enough.
    Reconciler(
        "retention_trimmer",
        timedelta(seconds=60),
        500,
        lambda client, batch: client.retention.trim_executions(limit=batch),
    ),
    Reconciler(
        "event_trimmer",
        timedelta(seconds=60),
        500,
        lambda client, batch: _unhurried(client.retention.trim_events(limit=batch)),
    ),
    Reconciler(
        "key_trimmer",
        timedelta(seconds=60),
        500,
        lambda client, batch: _unhurried(client.retention.trim_keys(limit=batch)),
    ),
    Reconciler(
        "worker_sweep",
        timedelta(seconds=30),
        500,
        lambda client, batch: _unhurried(client.workers.sweep(limit=batch)),
    ),
)
