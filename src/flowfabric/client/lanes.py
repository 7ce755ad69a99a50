"""Lanes and routes: registered once, remembered by every client."""

from __future__ import annotations

import asyncio

from flowfabric.client.refusals import refusal
from flowfabric.core.execution import LaneInfo, Route
from flowfabric.db import functions
from flowfabric.db.session import Database


class Lanes:
    """What can be asked and said about lanes."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # The ids of the routes this client has registered.
        self.known: dict[Route, int] = {}
        self._registering: dict[Route, asyncio.Future[int]] = {}

    async def register(self, route: Route) -> int:
        """The id of a route, registered if it is new. Callers at once share one registration."""
        if (known := self.known.get(route)) is not None:
            return known
        if (pending := self._registering.get(route)) is None:
            pending = self._registering[route] = asyncio.ensure_future(self._register(route))
            pending.add_done_callback(lambda _: self._registering.pop(route, None))
        return await asyncio.shield(pending)

    def forget(self) -> None:
        """Ask again for every route: the database does not know them any more."""
        self.known.clear()

    async def list(self) -> list[LaneInfo]:
        """Every lane, its state, and how many executions wait in it."""
        return [LaneInfo(*row) for row in await self._database.call(functions.LIST_LANES)]

    async def _register(self, route: Route) -> int:
        route.check()
        rows = await self._database.call(
            functions.REGISTER_ROUTES,
            [route.namespace],
            [route.lane],
            [route.task],
            [",".join(sorted(route.capabilities))],
            "submit_executions",
        )
        _, route_id, outcome, detail = rows[0]
        if outcome != "registered":
            raise refusal(outcome, detail)
        self.known[route] = int(route_id)
        return int(route_id)
