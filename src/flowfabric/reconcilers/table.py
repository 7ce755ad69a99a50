"""All reconcilers. Each can run in many processes at the same time.

A pass is one call of a database function. It skips locked rows. Before it changes a row, it locks
the row and checks it again. No row can make a pass fail, because rows are checked when they are
stored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic

from flowfabric.client import FlowFabric
from flowfabric.client.reconciler_passes import Due

# The answer of a pass: how many rows it handled, and the time until the next timer is due.
Pass = tuple[int, timedelta | None]


@dataclass(frozen=True, slots=True)
class Reconciler:
    """A reconciler. `run_once` handles up to `batch` rows.

    Each process calls `run_once` about once in every `cadence`, and sooner if work is left or due.
    If `due` names a kind of work, the process first looks for such work in all partitions, and
    calls `run_once` only if some is due.
    """

    name: str
    cadence: timedelta
    batch: int
    run_once: Callable[[FlowFabric, int], Awaitable[Pass]]
    due: Due | None = None


async def _at_cadence(answer: Awaitable[Pass]) -> Pass:
    """Drop the time of the next pass from an answer. The reconciler then waits for its cadence."""
    handled, _ = await answer
    return handled, None


async def _balance(client: FlowFabric, batch: int) -> Pass:
    if len(await client.database.partitions.all()) == 1:
        return 0, None
    return await client.quotas.balance(limit=batch)


async def _roll_up(client: FlowFabric, batch: int) -> Pass:
    """Count a batch of events.

    The next batch waits at least as long as this one took. So counting uses at most half the time
    of one connection.
    """
    begun = monotonic()
    handled, due_in = await client.minutes.roll_up(limit=batch)
    took = timedelta(seconds=monotonic() - begun)
    return min(handled, batch - 1), None if due_in is None else max(due_in, took)


RECONCILERS: tuple[Reconciler, ...] = (
    Reconciler(
        "lease_expiry",
        timedelta(seconds=1.5),
        500,
        lambda client, batch: client.leases.expire(limit=batch),
        Due.TIMER,
    ),
    # Expires attempts that timed out and executions past their deadline.
    Reconciler(
        "execution_expiry",
        timedelta(seconds=2),
        500,
        lambda client, batch: client.executions.expire(limit=batch),
        Due.TIMER,
    ),
    Reconciler(
        "delayed_promoter",
        timedelta(seconds=0.75),
        500,
        lambda client, batch: client.executions.promote_delayed(limit=batch),
        Due.TIMER,
    ),
    # Finishes the propagation of an end that a dead process left behind.
    Reconciler(
        "wake_resolver",
        timedelta(seconds=1),
        500,
        lambda client, batch: client.executions.resolve_wakes(limit=batch),
        Due.WAKE,
    ),
    # Notices signals to executions that were busy, and signals that senders stored in their own
    # transactions.
    Reconciler(
        "signal_notices",
        timedelta(seconds=1),
        500,
        lambda client, batch: client.signals.notice(limit=batch),
        Due.SIGNAL,
    ),
    Reconciler(
        "suspension_timeouts",
        timedelta(seconds=2),
        500,
        lambda client, batch: client.signals.expire_suspensions(limit=batch),
        Due.SUSPENSION,
    ),
    Reconciler(
        "waitpoint_expiry",
        timedelta(seconds=5),
        500,
        lambda client, batch: client.signals.expire_waitpoints(limit=batch),
        Due.WAITPOINT,
    ),
    # Removes frames that expire before their execution does.
    Reconciler(
        "stream_expiry",
        timedelta(seconds=5),
        100,
        lambda client, batch: client.streams.expire(limit=batch),
        Due.STREAM,
    ),
    # Cancels the members of a cancelled flow that the caller of `cancel` left behind.
    Reconciler(
        "cancel_backlog",
        timedelta(seconds=15),
        500,
        lambda client, batch: client.flows.cancel_backlog(limit=batch),
        Due.FLOW_CANCEL,
    ),
    # Cancels flow members that are no longer needed and could not be cancelled at once.
    Reconciler(
        "edge_cancel_dispatcher",
        timedelta(seconds=1),
        500,
        lambda client, batch: client.executions.cancel_siblings(limit=batch),
        Due.SIBLING,
    ),
    Reconciler(
        "edge_cancel_reconciler",
        timedelta(seconds=10),
        50,
        lambda client, batch: client.executions.reconcile_siblings(limit=batch),
        Due.SIBLING,
    ),
    # Unblocks executions that a registered worker can run, if its registration did not unblock
    # them.
    Reconciler(
        "unblocker",
        timedelta(seconds=5),
        500,
        lambda client, batch: client.executions.unblock_all(limit=batch),
        Due.ROUTE,
    ),
    Reconciler(
        "grant_reaper",
        timedelta(seconds=5),
        500,
        lambda client, batch: _at_cadence(client.grants.reap(limit=batch)),
        Due.GRANT,
    ),
    # Ends expired slots, and opens rates and budgets that have room again, if no claim has done so.
    Reconciler(
        "gate_sweep",
        timedelta(seconds=1),
        500,
        lambda client, batch: _at_cadence(client.quotas.sweep(limit=batch)),
        Due.GATE,
    ),
    # Moves shares of limits to partitions in which executions wait.
    Reconciler(
        "gate_balance",
        timedelta(seconds=1),
        100,
        _balance,
    ),
    Reconciler(
        "budget_reset",
        timedelta(seconds=15),
        100,
        lambda client, batch: client.budgets.reset_due(limit=batch),
    ),
    # A pass returns the time of the next pass only while old rows are left. Otherwise the
    # reconciler waits for its cadence, a minute.
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
    # Counts events by minute, for percentiles over hours and days.
    Reconciler("event_roll_up", timedelta(seconds=5), 10_000, _roll_up, Due.MINUTE),
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
