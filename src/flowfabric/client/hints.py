"""Send hints from the client.

The client sends the hints of ended executions. It sends hints of new work only if the tables are
distributed over a cluster. Otherwise the engine sends hints of new work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from time import monotonic

from flowfabric.client.events import READY_CHANNEL
from flowfabric.core.errors import FlowFabricError
from flowfabric.core.execution import Route
from flowfabric.db import functions
from flowfabric.db.session import Database
from flowfabric.telemetry import ENGINE_LOGGER


def ready_hint(partition: int, namespace: str, lane: str) -> str:
    """Return the text of a hint of new work, in the same form as the engine writes such hints."""
    return f"{partition} {namespace} {lane}"


async def hint_routes(database: Database, partition: int, routes: Iterable[Route]) -> None:
    """Send a hint of new work for each lane of the routes.

    If this fails, no error is raised, because workers also poll.
    """
    try:
        for namespace, lane in {(route.namespace, route.lane) for route in routes}:
            payload = ready_hint(partition, namespace, lane)
            await database.call(
                functions.HINT, channel=READY_CHANNEL, payload=payload, patience=0.0
            )
    except FlowFabricError as error:
        ENGINE_LOGGER.debug("hint not sent: %s", error)


class RationedHint:
    """Sends hints on one channel in the background, at most one round every 10 ms.

    Hints that come in between are sent in the next round, hints with equal texts only once.
    """

    INTERVAL = 0.01

    def __init__(self, database: Database, channel: str) -> None:
        self._database = database
        self._channel = channel
        self._task: asyncio.Task[None] | None = None
        self._pending: set[str] = set()
        self._last = 0.0

    def send(self, payload: str) -> None:
        self._pending.add(payload)
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._pending:
                if (pause := self._last + self.INTERVAL - monotonic()) > 0:
                    await asyncio.sleep(pause)
                payloads, self._pending = self._pending, set()
                self._last = monotonic()
                for payload in payloads:
                    await self._database.call(
                        functions.HINT, channel=self._channel, payload=payload, patience=0.0
                    )
        except FlowFabricError as error:
            # A lost hint does no harm: waiting processes also poll.
            ENGINE_LOGGER.debug("hint not sent: %s", error)
        finally:
            self._task = None
