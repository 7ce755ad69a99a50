"""All reconcilers. Each may run in any process, any number of times at once.

A pass is one call of a database function. It skips locked rows and checks each row again under its
lock. No row can make a pass fail, because rows are checked when they are stored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from flowfabric.client import FlowFabric

# The answer of a pass: how many rows it handled, and the time until the next timer is due.
Pass = tuple[int, timedelta | None]


@dataclass(frozen=True, slots=True)
class Reconciler:
    """A reconciler. `run_once` handles up to `batch` rows, and runs at least every `cadence`."""

    name: str
    cadence: timedelta
    batch: int
    run_once: Callable[[FlowFabric, int], Awaitable[Pass]]


async def _at_cadence(answer: Awaitable[Pass]) -> Pass:
    """Drop the time of the next timer, because the cadence is soon enough."""
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
    # Finishes the propagation of an end if a process died before it could.
    Reconciler(
        "wake_resolver",
        timedelta(seconds=1),
        500,
        lambda client, batch: client.executions.resolve_wakes(limit=batch),
    ),
    # Notices signals to executions that were busy, and signals of the senders' transactions.
    Reconciler(
        "signal_notices",
        timedelta(seconds=1),
        500,
        lambda client, batch: client.signals.notice(limit=batch),
    ),
    Reconciler(
        "suspension_timeouts",
        timedelta(seconds=2),
        500,
        lambda client, batch: client.signals.expire_suspensions(limit=batch),
    ),
    Reconciler(
        "waitpoint_expiry",
        timedelta(seconds=5),
        500,
        lambda client, batch: client.signals.expire_waitpoints(limit=batch),
    ),
    # Removes frames that expire before their execution.
    Reconciler(
        "stream_expiry",
        timedelta(seconds=5),
        100,
        lambda client, batch: client.streams.expire(limit=batch),
    ),
    # Cancels members of cancelled flows if the cancelling call could not.
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
    # Unblocks executions that a registered worker can run, if its registration did not unblock
    # them.
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
    # Opens what a claim could not: slots that ran out, rates and budgets that have room again.
    Reconciler(
        "gate_sweep",
        timedelta(seconds=1),
        500,
        lambda client, batch: _at_cadence(client.quotas.sweep(limit=batch)),
    ),
    # Moves shares of limits to partitions in which executions wait. Idle with one partition.
    Reconciler(
        "gate_balance",
        timedelta(seconds=1),
        100,
        lambda client, batch: client.quotas.balance(limit=batch),
    ),
    Reconciler(
        "budget_reset",
        timedelta(seconds=15),
        100,
        lambda client, batch: client.budgets.reset_due(limit=batch),
    ),
    # Returns a next timer only while old rows are left. Otherwise a minute is soon enough.
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
