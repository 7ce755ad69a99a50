"""Wakes: telling those whom an end concerns, where the engine could not do it at once."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

from flowfabric.client.outcomes import handle_batch
from flowfabric.core.errors import FlowFabricError
from flowfabric.db import functions
from flowfabric.db.session import Database
from flowfabric.telemetry import ENGINE_LOGGER

# Whoever was locked is tried again so soon; after that it is left to the reconcilers.
_PAUSES = (0.005, 0.02, 0.05)
# How many siblings one call cancels. Nobody waits for a row of it, and in a busy worker every call
# waits for its turn.
_SIBLINGS = 500


class Cascades:
    """Resolves what the calls of this process left pending, beside them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._task: asyncio.Task[None] | None = None
        self._pending: set[int] = set()

    def send(self, partition: int) -> None:
        """Resolve the wakes of a partition soon; nobody waits for it."""
        self._pending.add(partition)
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])

    async def resolve(self, partition: int) -> None:
        """Resolve the wakes of a partition as far as they can be now, and cancel the siblings that
        flows do not need any more: either may leave some of the other."""
        pauses = iter(_PAUSES)
        try:
            while True:
                told, due_in = await self.resolve_once(partition)
                cancelled, cancel_in = await self.cancel_siblings_once(partition, _SIBLINGS)
                if due_in is None and cancel_in is None and cancelled == 0:
                    return
                if told == cancelled == 0:
                    pause = next(pauses, None)
                    if pause is None:
                        return
                    await asyncio.sleep(pause)
        except FlowFabricError as error:
            # The call that left them has done its work; a reconciler does the rest.
            ENGINE_LOGGER.debug("wakes left to the reconciler: %s", error)

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
    """Whether an answer says that somebody could not be told."""
    return detail is not None and json.loads(detail).get("wakes_pending") is True
