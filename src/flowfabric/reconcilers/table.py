"""All reconcilers. Each may run in any process, any number of times at once.

A pass is one call of the engine. It skips locked rows and checks each row again under its lock. No
row can make a pass fail, because rows are checked when they are stored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from flowfabric.client import FlowFabric

# The answer of a pass: how many rows it handled, and how long until the next timer is due.
Pass = tuple[int, timedelta | None]


@dataclass(frozen=True, slots=True)
class Reconciler:
    """A reconciler: at the latest after `cadence`, `run_once` handles up to `batch` rows."""

    name: str
    cadence: timedelta
    batch: int
    run_once: Callable[[FlowFabric, int], Awaitable[Pass]]


async def _at_cadence(answer: Awaitable[Pass]) -> Pass:
    """Drop the time of the next timer: the cadence is soon enough."""
    handled, _ = await answer
    return handled, None


RECONCILERS: tuple[Reconciler, ...] = (
    Reconciler(
        "lease_expiry",
        timedelta(seconds=1.5),
        500,
        lambda client, batch: client.leases.expire(limit=batch),
    ),
    # Expires attempts that timed out and executions past their deadline.
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
    # Finishes propagation of an end that a dead process left behind.
    Reconciler(
        "wake_resolver",
        timedelta(seconds=1),
        500,
        lambda client, batch: client.executions.resolve_wakes(limit=batch),
    ),
    # Cancels members of cancelled flows that their canceller left or could not lock.
    Reconciler(
        "cancel_backlog",
        timedelta(seconds=15),
        500,
        lambda client, batch: client.flows.cancel_backlog(limit=batch),
    ),
    # Cancels flow members that are no longer needed and could not be cancelled at once.
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
    # Unblocks executions for which a capable worker has registered, if its call did not.
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
        lambda client, batch: _at_cadence(client.grants.reap(limit=batch)),
    ),
    # Returns the next timer only while old rows are left; otherwise a minute is soon enough.
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
        lambda client, batch: _at_cadence(client.retention.trim_events(limit=batch)),
    ),
    Reconciler(
        "key_trimmer",
        timedelta(seconds=60),
        500,
        lambda client, batch: _at_cadence(client.retention.trim_keys(limit=batch)),
    ),
    Reconciler(
        "worker_sweep",
        timedelta(seconds=30),
        500,
        lambda client, batch: _at_cadence(client.workers.sweep(limit=batch)),
    ),
)
