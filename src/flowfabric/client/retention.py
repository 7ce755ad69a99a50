"""Retention: delete executions, events and keys whose time is over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from uuid import UUID

from flowfabric.client.outcomes import handle_batch
from flowfabric.core.execution import check_lane, check_tags
from flowfabric.db import functions
from flowfabric.db.session import Database

DEFAULT_RETENTION = timedelta(days=30)
EVENT_FLOOR = timedelta(hours=24)


class Retention:
    """Trims. Each call deletes one batch; it returns how many, and when the next call is due."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def trim_executions(
        self, *, partition: int = 0, limit: int = 500
    ) -> tuple[int, timedelta | None]:
        """Delete executions that ended longer ago than the retention of their policy or lane
        (default: 30 days). Their events stay for 24 hours after the end."""
        return await handle_batch(
            self._database, functions.TRIM_EXECUTIONS, partition_key=partition, limit=limit
        )

    async def trim(
        self,
        *,
        partition: int = 0,
        limit: int = 500,
        retention: timedelta = DEFAULT_RETENTION,
        event_floor: timedelta = EVENT_FLOOR,
        namespace: str | None = None,
        lane: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> tuple[int, timedelta | None]:
        """Delete executions that ended longer ago than the retention of their policy or lane
        (default: `retention`). Filter by namespace, lane and tags (all must match). Their events
        stay for `event_floor` after the end."""
        if lane is not None:
            check_lane(lane)
        if tags is not None:
            check_tags(tags)
        found = json.dumps(dict(tags)) if tags else None
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
                tags=found,
                after=after,
            )
            row = rows[0]
            handled += row["handled"]
            after = row["next_after"]
            # Without a filter the engine remembers the position.
            if after is None:
                return handled, row["due_in"]
            if handled >= limit:
                return handled, timedelta(0)

    async def trim_events(
        self, *, partition: int = 0, limit: int = 500
    ) -> tuple[int, timedelta | None]:
        """Delete events that outlived their trimmed executions and are now due."""
        return await handle_batch(
            self._database, functions.TRIM_EVENTS, partition_key=partition, limit=limit
        )

    async def trim_keys(
        self, *, partition: int = 0, limit: int = 500
    ) -> tuple[int, timedelta | None]:
        """Delete expired idempotency keys."""
        return await handle_batch(
            self._database, functions.TRIM_KEYS, partition_key=partition, limit=limit
        )
