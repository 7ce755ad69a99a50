"""Lanes and routes: register routes, and read and change lanes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from flowfabric.client.addresses import Scoped
from flowfabric.client.gates import Gates
from flowfabric.client.outcomes import refusal
from flowfabric.client.partitions import ask_reachable
from flowfabric.core.errors import InvalidInput, LaneNotFound
from flowfabric.core.execution import LaneInfo, Route, Submission, check_lane
from flowfabric.core.lane import LaneOptions, LaneTraffic, joined_traffic
from flowfabric.core.limit import Gate, Rate
from flowfabric.core.partition import Found
from flowfabric.db import functions
from flowfabric.db.records import optional, reader
from flowfabric.db.session import Database

_info = reader(LaneInfo, functions.LIST_LANES, weights=optional(json.loads))
_traffic = reader(LaneTraffic, functions.READ_TRAFFIC)
# The fields of the engine that hold each option.
_OPTIONS = {
    "concurrency": ("concurrency",),
    "rate": ("rate", "rate_window_ms"),
    "weights": ("weights",),
}


class Lanes(Scoped):
    """Operations on lanes, and the registry of routes."""

    def __init__(self, database: Database, namespace: str | None = None) -> None:
        super().__init__(database, namespace)
        # The ids of the routes that this client has registered.
        self.known: dict[Route, int] = {}
        self._registering: dict[Route, asyncio.Future[int]] = {}
        self.gates = Gates(database)

    async def register(self, route: Route) -> int:
        """Return the id of a route. Register the route if this client does not know it.

        Concurrent calls for one route share one query.
        """
        if (known := self.known.get(route)) is not None:
            return known
        if (pending := self._registering.get(route)) is None:
            pending = self._registering[route] = asyncio.ensure_future(self._register(route))
            pending.add_done_callback(lambda _: self._registering.pop(route, None))
        return await asyncio.shield(pending)

    async def prepare(self, submissions: Iterable[Submission]) -> None:
        """Register the routes and the gates that submissions use.

        Skip routes and gates that this client has registered before.
        """
        gates: dict[int, dict[int, Gate]] = {}
        for submission in submissions:
            if submission.route not in self.known:
                await self.register(submission.route)
            if submission.quotas or submission.budgets:
                found = gates.setdefault(submission.id.partition_key, {})
                found.update({one.id: one for one in (*submission.quotas, *submission.budgets)})
        for partition, found in gates.items():
            await self.gates.register(partition, found)

    def forget(self) -> None:
        """Forget all registered routes and gates, so that they are registered again.

        Call this when the database no longer has them.
        """
        self.known.clear()
        self.gates.forget()

    async def list(self, *, after: str | None = None, limit: int | None = None) -> list[LaneInfo]:
        """List the lanes with their states and depths, in byte order of their names.

        If `after` is given, the list begins with the first name after it. If the client is for all
        namespaces, a name is listed once for each namespace that has it.

        One query reads all partitions. On a cluster, it fails if a node is down; `traffic` still
        works then.
        """
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
            raise InvalidInput(field="limit", problem="must be a whole number, 0 or more")
        if limit is not None and limit < 0:
            raise InvalidInput(field="limit", problem=f"is {limit}; must be 0 or more")
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
        """Return one lane; raise LaneNotFound if there is no lane of this name.

        The first submit, schedule, hook or declaration that names a lane creates the lane. If the
        client is for all namespaces, and several of them have the lane, raise InvalidInput.
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
                field="namespace", problem=f"must be given: the lane {lane} exists in {names}"
            )
        return _info(rows[0])

    async def traffic(
        self, *, window: timedelta = timedelta(seconds=10), limit: int = 1000
    ) -> Found[LaneTraffic]:
        """Return how busy each lane is.

        The answer says how many executions wait, are delayed or run now, and how many were
        submitted, completed, retried or failed in the last `window`.

        You can call this every second, because it reads a limited number of rows. A partition that
        cannot be reached is not counted. In that case `missing` names the partition, and the
        `is_more` flags of the counts are set.
        """
        partitions = await self._database.partitions.all()
        count = len(partitions)
        share = max(limit // count, min(limit, 100)) if isinstance(limit, int) else limit

        async def read(partition: int) -> Sequence[LaneTraffic]:
            rows = await self._database.call(
                functions.READ_TRAFFIC,
                partition_key=partition,
                namespace=self._namespace,
                window=window,
                limit=share,
            )
            return [_traffic(row) for row in rows]

        answers, missing = await ask_reachable(partitions, read)
        if count == 1:
            return Found(answers[0])
        lanes: dict[tuple[str, str], list[LaneTraffic]] = {}
        for one in (lane for answer in answers for lane in answer):
            lanes.setdefault((one.namespace, one.lane), []).append(one)
        joined = (joined_traffic(lanes[name], bool(missing)) for name in sorted(lanes))
        return Found(joined, missing)

    async def pause(
        self,
        lane: str,
        *,
        until: datetime | None = None,
        reason: str | None = None,
        actor: str | None = None,
    ) -> LaneInfo:
        """Pause a lane until the time `until`, or until `resume` is called.

        A paused lane accepts submits, but workers cannot claim its executions.
        """
        return await self._set(lane, "paused", resumes_at=until, reason=reason, actor=actor)

    async def resume(
        self, lane: str, *, reason: str | None = None, actor: str | None = None
    ) -> LaneInfo:
        """Make a lane active again. An active lane accepts submits and allows claims."""
        return await self._set(lane, "active", reason=reason, actor=actor)

    async def drain(
        self, lane: str, *, reason: str | None = None, actor: str | None = None
    ) -> LaneInfo:
        """Drain a lane. A draining lane refuses submits, but allows claims."""
        return await self._set(lane, "draining", reason=reason, actor=actor)

    async def disable(
        self, lane: str, *, reason: str | None = None, actor: str | None = None
    ) -> LaneInfo:
        """Disable a lane. A disabled lane refuses submits and allows no claims."""
        return await self._set(lane, "disabled", reason=reason, actor=actor)

    async def set_retention(
        self, lane: str, retention: timedelta | None, *, actor: str | None = None
    ) -> LaneInfo:
        """Set how long ended executions of a lane are kept; None restores the default."""
        return await self._set(
            lane, None, retention=retention, clear_retention=retention is None, actor=actor
        )

    async def set(
        self,
        lane: str,
        *,
        concurrency: int | None = None,
        rate: str | Rate | None = None,
        weights: Mapping[str, int] | None = None,
        clear: Iterable[str] = (),
        reason: str | None = None,
        actor: str | None = None,
    ) -> LaneInfo:
        """Set the options of a lane: its concurrency, its rate and the weights of its fair keys.

        The new options override the declared options until `lift` is called. None leaves an option
        unchanged. `clear` names the options to remove: concurrency, rate, weights.
        """
        check_lane(lane)
        options = LaneOptions(concurrency=concurrency, rate=rate, weights=weights)
        facts: dict[str, object] = options.facts()
        for name in clear:
            if name not in _OPTIONS:
                raise InvalidInput(field="clear", problem=f"must be any of {', '.join(_OPTIONS)}")
            if name in facts:
                raise InvalidInput(field="clear", problem=f"must not name {name}, which is set")
            facts |= dict.fromkeys(_OPTIONS[name])
        if not facts:
            raise InvalidInput(
                field="concurrency", problem="give a concurrency, a rate, weights or clear"
            )
        await self._set_options(lane, facts, reason=reason, actor=actor)
        return await self.get(lane)

    async def lift(
        self, lane: str, *, reason: str | None = None, actor: str | None = None
    ) -> LaneInfo:
        """Remove the options that an operator set with `set`. The declared options apply again."""
        check_lane(lane)
        await self._set_options(lane, None, reason=reason, actor=actor)
        return await self.get(lane)

    async def declare(self, namespace: str, lane: str, options: LaneOptions) -> None:
        """Store the options that the code of an app declares for a lane.

        Options that an operator sets override the declared options.
        """
        await self._database.call(
            functions.SET_LANE_OPTIONS,
            namespace=namespace,
            lane=lane,
            options=json.dumps(options.facts()),
            is_declared=True,
            reason=None,
            actor=None,
        )

    async def _set_options(
        self,
        lane: str,
        facts: dict[str, object] | None,
        *,
        reason: str | None,
        actor: str | None,
    ) -> None:
        await self._database.call(
            functions.SET_LANE_OPTIONS,
            namespace=self._namespace or (await self.get(lane)).namespace,
            lane=lane,
            options=None if facts is None else json.dumps(facts),
            is_declared=False,
            reason=reason,
            actor=actor,
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
            code_versions=[route.code_version],
        )
        row = rows[0]
        if row["outcome"] != "registered":
            raise refusal(row["outcome"], row["detail"])
        route_id: int = row["route_id"]
        self.known[route] = route_id
        return route_id
