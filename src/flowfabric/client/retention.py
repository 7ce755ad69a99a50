"""Retention: what ended long ago is deleted."""

from __future__ import annotations

from datetime import timedelta

from flowfabric.db import functions
from flowfabric.db.session import Database

DEFAULT_RETENTION = timedelta(days=30)
EVENT_FLOOR = timedelta(hours=24)


class Retention:
    """Each call deletes one batch; it returns how many, and how soon another one is worth it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def trim(
        self,
        *,
        partition: int = 0,
        limit: int = 500,
        retention: timedelta = DEFAULT_RETENTION,
        event_floor: timedelta = EVENT_FLOOR,
    ) -> tuple[int, timedelta | None]:
        """Delete executions that ended longer ago than their policy, their lane or `retention`
        says. Their events stay `event_floor` after their end."""
        row = (
            await self._database.call(
                functions.TRIM_RETENTION, partition, limit, retention, event_floor
            )
        )[0]
        return row["handled"], row["due_in"]

    async def trim_events(
        self, *, partition: int = 0, limit: int = 500
    ) -> tuple[int, timedelta | None]:
        """Delete the events that were kept when their executions were deleted."""
        row = (await self._database.call(functions.TRIM_EVENTS, partition, limit))[0]
        return row["handled"], row["due_in"]

    async def trim_keys(
        self, *, partition: int = 0, limit: int = 500
    ) -> tuple[int, timedelta | None]:
        """Delete idempotency keys that are over."""
        row = (await self._database.call(functions.TRIM_KEYS, partition, limit))[0]
        return row["handled"], row["due_in"]
