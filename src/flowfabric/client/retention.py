"""Retention: delete executions, events and keys that are older than their retention."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from uuid import UUID

from flowfabric.client.reconciler_passes import Due, handle_everywhere
from flowfabric.core.errors import Unavailable
from flowfabric.core.execution import check_lane, check_tags
from flowfabric.db import functions
from flowfabric.db.outage import level_of
from flowfabric.db.session import Database
from flowfabric.telemetry import ENGINE_LOGGER

DEFAULT_RETENTION = timedelta(days=30)
EVENT_FLOOR = timedelta(hours=24)


class Retention:
    """Deletes old executions, events and idempotency keys.

    Each call handles a limited number of them. It returns how many it has handled, and the time
    until the next call is due.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def trim_executions(
        self, *, partition: int | None = None, limit: int = 500
    ) -> tuple[int, timedelta | None]:
        """Delete executions that ended longer ago than their retention.

        The retention comes from the policy of the execution, or else from its lane, or else it is
        30 days. The events of a deleted execution stay for at least 24 hours after its end.
        """
        return await handle_everywhere(
            self._database, functions.TRIM_EXECUTIONS, None, partition=partition, limit=limit
        )

    async def trim(
        self,
        *,
        partition: int | None = None,
        limit: int = 500,
        retention: timedelta = DEFAULT_RETENTION,
        event_floor: timedelta = EVENT_FLOOR,
        namespace: str | None = None,
        lane: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> tuple[int, timedelta | None]:
        """Delete executions that ended longer ago than their retention.

        The retention comes from the policy of the execution, or else from its lane, or else from
        `retention`. If `namespace`, `lane` or `tags` are given, only executions that match all of
        them are deleted. The events of a deleted execution stay for at least `event_floor` after
        its end.
        """
        if lane is not None:
            check_lane(lane)
        if tags is not None:
            check_tags(tags)
        found = json.dumps(dict(tags)) if tags else None
        handled, times = 0, list[timedelta]()
        wanted = await self._database.partitions.all() if partition is None else [partition]
        unreached: list[Unavailable] = []
        for one in wanted:
            left = limit - handled
            trim = self._trim(one, left, retention, event_floor, namespace, lane, found)
            try:
                count, due_in = await trim
            except Unavailable as error:
                message = "trimming failed in partition %s: %s"
                ENGINE_LOGGER.log(level_of(error), message, one, error)
                unreached.append(error)
                continue
            handled += count
            if due_in is not None:
                times.append(due_in)
            if handled >= limit:
                break
        if len(unreached) == len(wanted):
            raise unreached[0]
        return handled, min(times, default=None)

    async def _trim(
        self,
        partition: int,
        limit: int,
        retention: timedelta,
        event_floor: timedelta,
        namespace: str | None,
        lane: str | None,
        tags: str | None,
    ) -> tuple[int, timedelta | None]:
        handled = 0
        after: UUID | None = None
        while True:
            rows = await self._database.call(
                functions.TRIM_RETENTION,
                partition_key=partition,
                limit=limit - handled,
                retention=retention,
                event_floor=event_floor,
                namespace=namespace,
                lane=lane,
                tags=tags,
                after=after,
            )
            row = rows[0]
            handled += row["handled"]
            after = row["next_after"]
            # Without a filter, the engine remembers how far it has come.
            if after is None:
                return handled, row["due_in"]
            if handled >= limit:
                return handled, timedelta(0)

    async def trim_events(
        self, *, partition: int | None = None, limit: int = 500
    ) -> tuple[int, timedelta | None]:
        """Delete the events of trimmed executions when the retention of the events is over."""
        return await handle_everywhere(
            self._database, functions.TRIM_EVENTS, Due.EVENT, partition=partition, limit=limit
        )

    async def trim_keys(
        self, *, partition: int | None = None, limit: int = 500
    ) -> tuple[int, timedelta | None]:
        """Delete expired idempotency keys."""
        return await handle_everywhere(
            self._database, functions.TRIM_KEYS, None, partition=partition, limit=limit
        )
