"""Run the reconcilers of a process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from datetime import timedelta

from flowfabric.client import FlowFabric
from flowfabric.client.reconciler_passes import Dues
from flowfabric.core.errors import FlowFabricError
from flowfabric.db.outage import level_of
from flowfabric.reconcilers.table import RECONCILERS, Pass, Reconciler
from flowfabric.telemetry import ENGINE_LOGGER

MIN_PAUSE_SECONDS = 0.02
MAX_BACKOFF_SECONDS = 30.0
# All reconcilers share one query for due work. A reconciler reuses its answer if the answer is not
# older than this share of the reconciler's cadence.
LOOK_AGE = 0.75


async def run_reconcilers(
    client: FlowFabric, reconcilers: Sequence[Reconciler] = RECONCILERS
) -> None:
    """Run all reconcilers until this call is cancelled."""
    dues = Dues(client.database)
    async with asyncio.TaskGroup() as group:
        for reconciler in reconcilers:
            group.create_task(_run(client, dues, reconciler), name=f"flowfabric {reconciler.name}")


async def _run(client: FlowFabric, dues: Dues, reconciler: Reconciler) -> None:
    cadence = reconciler.cadence.total_seconds()
    # Processes may start together, so spread their passes.
    await asyncio.sleep(random.uniform(0, cadence) / 4)
    backoff = cadence
    batch = reconciler.batch
    while True:
        try:
            handled, due_in = await _run_if_due(client, dues, reconciler, batch)
        except Exception as error:
            _count(client, reconciler, "error")
            # Catch everything: if this loop ended, the leases of dead workers would never expire.
            ENGINE_LOGGER.log(
                level_of(error),
                "reconciler failed and will retry: %s: %s",
                reconciler.name,
                error,
                exc_info=None if isinstance(error, FlowFabricError) else error,
            )
            await asyncio.sleep(backoff * random.uniform(0.8, 1.2))
            backoff = min(backoff * 2, MAX_BACKOFF_SECONDS)
            # The pass may have exceeded the statement_timeout, for example because of large hooks.
            # Handle fewer rows at once.
            batch = max(batch // 4, 1)
            continue
        backoff = cadence
        if handled == batch:
            continue
        batch = reconciler.batch
        if handled:
            ENGINE_LOGGER.debug("reconciler %s handled %s rows", reconciler.name, handled)
        pause = cadence * random.uniform(0.9, 1.1)
        if due_in is not None:
            pause = min(pause, max(due_in.total_seconds(), MIN_PAUSE_SECONDS))
        await asyncio.sleep(pause)


async def _run_if_due(client: FlowFabric, dues: Dues, reconciler: Reconciler, batch: int) -> Pass:
    if reconciler.due is not None:
        due_in = await dues.due_in(reconciler.due, max_age=reconciler.cadence * LOOK_AGE)
        if due_in is None or due_in > timedelta(0):
            return 0, due_in
    handled, due_in = await reconciler.run_once(client, batch)
    _count(client, reconciler, "ok")
    return handled, due_in


def _count(client: FlowFabric, reconciler: Reconciler, outcome: str) -> None:
    client.database.meter.count(
        "flowfabric_reconciler_runs", reconciler=reconciler.name, outcome=outcome
    )
