"""Lanes and routes: registered once, remembered by every client."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta

from flowfabric.client.addresses import Scoped
from flowfabric.client.outcomes import refusal
from flowfabric.core.errors import InvalidInput, LaneNotFound
from flowfabric.core.execution import LaneInfo, Route, check_lane
from flowfabric.core.lane import LaneTraffic
from flowfabric.db import functions
from flowfabric.db.records import reader
from flowfabric.db.session import Database

_info = reader(LaneInfo, functions.LIST_LANES)
_traffic = reader(LaneTraffic, functions.READ_TRAFFIC)


class Lanes(Scoped):
    """What can be asked and said about lanes."""

    def __init__(self, database: Database, namespace: str | None = None) -> None:
        super().__init__(database, namespace)
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

    async def list(self, *, after: str | None = None, limit: int | None = None) -> list[LaneInfo]:
        """The lanes behind `after` in the order of their bytes: state, and how many wait.

        A client of all namespaces gets all lanes of one name together.
        """
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
            raise InvalidInput(field="limit", problem="must be a whole number from 0 on")
        if limit is not None and limit < 0:
            raise InvalidInput(field="limit", problem=f"is {limit}; must be from 0 on")
        rows = await self._database.call(
            functions.LIST_LANES,
            namespace=self._namespace,
            lane=None,
            after=after,
            after_namespace=None,
            limit=limit,
        )
        return [_info(row) for row in rows]

    async def get(self, lane: str) -> LaneInfo:
        """One lane; LaneNotFound if nothing was ever submitted to it.

        A client of all namespaces is asked to say which, if several have a lane of this name.
        """
        check_lane(lane)
        rows = await self._database.call(
            functions.LIST_LANES,
            namespace=self._namespace,
            lane=lane,
            after=None,
            after_namespace=None,
            limit=None,
        )
        if not rows:
            raise LaneNotFound.explained({"lane": lane})
        if len(rows) > 1:
            names = ", ".join(row["namespace"] for row in rows)
            raise InvalidInput(
                field="namespace", problem=f"several have a lane {lane}: {names}; say which"
            )
        return _info(rows[0])

    async def traffic(
        self, *, window: timedelta = timedelta(seconds=10), limit: int = 1000, partition: int = 0
    ) -> Sequence[LaneTraffic]:
        """How busy the lanes are. Looks at a bounded number of rows; may be asked every second."""
        rows = await self._database.call(
            functions.READ_TRAFFIC,
            partition_key=partition,
            namespace=self._namespace,
            window=window,
            limit=limit,
        )
        return [_traffic(row) for row in rows]

    async def pause(
        self,
        lane: str,
        *,
        until: datetime | None = None,
        reason: str | None = None,
        actor: str | None = None,
    ) -> LaneInfo:
        """Take submissions, but let nothing be claimed until then, or until `resume`."""
        return await self._set(lane, "paused", resumes_at=until, reason=reason, actor=actor)

    async def resume(
        self, lane: str, *, reason: str | None = None, actor: str | None = None
    ) -> LaneInfo:
        """Take submissions and let them be claimed: what a lane does by default."""
        return await self._set(lane, "active", reason=reason, actor=actor)

    async def drain(
        self, lane: str, *, reason: str | None = None, actor: str | None = None
    ) -> LaneInfo:
        """Let what waits be claimed, but refuse submissions."""
        return await self._set(lane, "draining", reason=reason, actor=actor)

    async def disable(
        self, lane: str, *, reason: str | None = None, actor: str | None = None
    ) -> LaneInfo:
        """Refuse submissions and let nothing be claimed."""
        return await self._set(lane, "disabled", reason=reason, actor=actor)

    async def set_retention(
        self, lane: str, retention: timedelta | None, *, actor: str | None = None
    ) -> LaneInfo:
        """Keep what ended in this lane so long; None goes back to the default."""
        return await self._set(
            lane, None, retention=retention, clear_retention=retention is None, actor=actor
        )

    async def _set(
        self,
        lane: str,
        state: str | None,
        *,
        resumes_at: datetime | None = None,
        retention: timedelta | None = None,
        clear_retention: bool = False,
        reason: str | None = None,
        actor: str | None = None,
    ) -> LaneInfo:
        check_lane(lane)
        namespace = self._namespace or (await self.get(lane)).namespace
        await self._database.call(
            functions.SET_LANE,
            namespace=namespace,
            lane=lane,
            state=state,
            resumes_at=resumes_at,
            retention=retention,
            clear_retention=clear_retention,
            reason=reason,
            actor=actor,
        )
        return await self.get(lane)

    async def _register(self, route: Route) -> int:
        route.check()
        rows = await self._database.call(
            functions.REGISTER_ROUTES,
            namespaces=[route.namespace],
            lanes=[route.lane],
            tasks=[route.task],
            capabilities=[",".join(sorted(route.capabilities))],
            registered_by="submit_executions",
        )
        row = rows[0]
        if row["outcome"] != "registered":
            raise refusal(row["outcome"], row["detail"])
        route_id: int = row["route_id"]
        self.known[route] = route_id
        return route_id
