"""Runs the reconcilers of a process: at once while work is left, else at their cadence."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from flowfabric.client import FlowFabric
from flowfabric.core.errors import FlowFabricError
from flowfabric.db.outage import level_of
from flowfabric.reconcilers.table import RECONCILERS, Reconciler
from flowfabric.telemetry import ENGINE_LOGGER

MIN_PAUSE_SECONDS = 0.02
MAX_BACKOFF_SECONDS = 30.0


async def run_reconcilers(
    client: FlowFabric, reconcilers: Sequence[Reconciler] = RECONCILERS
) -> None:
    """Run all reconcilers until cancelled."""
    async with asyncio.TaskGroup() as group:
        for reconciler in reconcilers:
            group.create_task(_run(client, reconciler), name=f"flowfabric {reconciler.name}")


async def _run(client: FlowFabric, reconciler: Reconciler) -> None:
    cadence = reconciler.cadence.total_seconds()
    # Processes may start together, so spread their passes.
    await asyncio.sleep(random.uniform(0, cadence) / 4)
    backoff = cadence
    batch = reconciler.batch
    while True:
        try:
            handled, due_in = await reconciler.run_once(client, batch)
        except Exception as error:
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
