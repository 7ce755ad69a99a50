"""Runs the reconcilers of a process: until empty, then until the next timer or the cadence."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from flowfabric.client import FlowFabric
from flowfabric.core.errors import FlowFabricError
from flowfabric.reconcilers.table import RECONCILERS, Reconciler
from flowfabric.telemetry import ENGINE_LOGGER

LEAST_SECONDS = 0.02
MOST_BACKOFF_SECONDS = 30.0


async def run_reconcilers(
    client: FlowFabric, reconcilers: Sequence[Reconciler] = RECONCILERS
) -> None:
    """Run them all until cancelled."""
    async with asyncio.TaskGroup() as group:
        for reconciler in reconcilers:
            group.create_task(_run(client, reconciler), name=f"flowfabric {reconciler.name}")


async def _run(client: FlowFabric, reconciler: Reconciler) -> None:
    cadence = reconciler.cadence.total_seconds()
    # Processes that start together should not look together.
    await asyncio.sleep(random.uniform(0, cadence) / 4)
    backoff = cadence
    while True:
        try:
            handled, due_in = await reconciler.run_once(client, reconciler.batch)
        except Exception as error:
            # Whatever it is: without this loop nobody would take over what dead workers left.
            ENGINE_LOGGER.warning(
                "%s failed, trying again: %s",
                reconciler.name,
                error,
                exc_info=None if isinstance(error, FlowFabricError) else error,
            )
            await asyncio.sleep(backoff * random.uniform(0.8, 1.2))
            backoff = min(backoff * 2, MOST_BACKOFF_SECONDS)
            continue
        backoff = cadence
        if handled == reconciler.batch:
            continue
        if handled:
            ENGINE_LOGGER.debug("%s handled %s", reconciler.name, handled)
        pause = cadence * random.uniform(0.9, 1.1)
        if due_in is not None:
            pause = min(pause, max(due_in.total_seconds(), LEAST_SECONDS))
        await asyncio.sleep(pause)
