"""Cascades: propagate ends that the engine could not propagate within the call."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

from flowfabric.client.outcomes import handle_batch
from flowfabric.core.errors import FlowFabricError
from flowfabric.db import functions
from flowfabric.db.session import Database
from flowfabric.telemetry import ENGINE_LOGGER

# Pauses before a locked row is tried again. After the last one the reconcilers take over.
_PAUSES = (0.005, 0.02, 0.05)
# How many siblings one call cancels. No caller waits for these rows, and in a busy worker each
# call waits for its turn.
_SIBLINGS = 500


class Cascades:
    """Propagate, in the background, the ends that calls of this process left pending."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._task: asyncio.Task[None] | None = None
        self._pending: set[int] = set()

    def send(self, partition: int) -> None:
        """Propagate the pending ends of a partition soon, without waiting."""
        self._pending.add(partition)
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])

    async def resolve(self, partition: int) -> None:
        """Resolve the pending wakes of a partition and cancel siblings that flows no longer need.

        Each may create work for the other, so both repeat until none is left or rows stay locked.
        """
        pauses = iter(_PAUSES)
        try:
            while True:
                resolved, due_in = await self.resolve_once(partition)
                cancelled, cancel_in = await self.cancel_siblings_once(partition, _SIBLINGS)
                if due_in is None and cancel_in is None and cancelled == 0:
                    return
                if resolved == cancelled == 0:
                    pause = next(pauses, None)
                    if pause is None:
                        return
                    await asyncio.sleep(pause)
        except FlowFabricError as error:
            # The ends are stored; only their propagation is late. A reconciler finishes it.
            ENGINE_LOGGER.debug("propagation left to the reconciler: %s", error)

    async def resolve_once(self, partition: int, limit: int = 100) -> tuple[int, timedelta | None]:
        return await handle_batch(
            self._database, functions.RESOLVE_WAKES, partition_key=partition, limit=limit
        )

    async def cancel_siblings_once(
        self, partition: int, limit: int = 100
    ) -> tuple[int, timedelta | None]:
        return await handle_batch(
            self._database, functions.CANCEL_SIBLINGS, partition_key=partition, limit=limit
        )

    async def _run(self) -> None:
        try:
            while self._pending:
                await self.resolve(self._pending.pop())
        finally:
            self._task = None


def is_pending(detail: str | None) -> bool:
    """Return whether an answer says that propagation is still pending."""
    return detail is not None and json.loads(detail).get("wakes_pending") is True
