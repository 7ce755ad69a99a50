"""Cascades: propagate the ends that a call of this process has left pending."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

from flowfabric.client.reconciler_passes import Due, handle_everywhere
from flowfabric.core.errors import FlowFabricError
from flowfabric.db import functions
from flowfabric.db.session import Database
from flowfabric.telemetry import ENGINE_LOGGER

# Pauses before locked rows are tried again. After the last pause the reconcilers take over.
_PAUSES = (0.005, 0.02, 0.05)
# How many siblings one call cancels. The batch is large because no caller waits for these rows and,
# in a busy worker, each call has to wait for a connection.
_SIBLINGS = 500


class Cascades:
    """Propagates pending ends in the background."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._task: asyncio.Task[None] | None = None
        self._pending: set[int] = set()

    def send(self, partition: int) -> None:
        """Start to propagate the pending ends of a partition in the background."""
        self._pending.add(partition)
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])

    async def resolve(self, partition: int) -> None:
        """Propagate the pending ends of a partition, and cancel siblings that are no longer needed.

        The call repeats both until nothing is left to do. If other transactions keep the remaining
        rows locked, a reconciler does the rest.
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
            # The ends themselves are stored. A reconciler propagates them later.
            ENGINE_LOGGER.debug("propagation left to the reconciler: %s", error)

    async def resolve_once(
        self, partition: int | None, limit: int = 100
    ) -> tuple[int, timedelta | None]:
        return await handle_everywhere(
            self._database, functions.RESOLVE_WAKES, Due.WAKE, partition=partition, limit=limit
        )

    async def cancel_siblings_once(
        self, partition: int | None, limit: int = 100
    ) -> tuple[int, timedelta | None]:
        return await handle_everywhere(
            self._database, functions.CANCEL_SIBLINGS, Due.SIBLING, partition=partition, limit=limit
        )

    async def _run(self) -> None:
        try:
            while self._pending:
                await self.resolve(self._pending.pop())
        finally:
            self._task = None


def is_pending(detail: str | None) -> bool:
    """Return whether the detail of an answer says that propagation is pending."""
    return detail is not None and json.loads(detail).get("wakes_pending") is True
