"""The settable clock of test databases. `ff.now()` reads it on every connection.

By default the clock runs, shifted by all calls of `set` and `advance`. A frozen clock stands still
until it is set, advanced or run again. So no test has to sleep.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .database import Database


class Clock:
    """Moves the time of one test database. Every change is committed when the call returns."""

    def __init__(self, db: Database) -> None:
        self.db = db

    async def now(self) -> datetime:
        return await self._read("select ff.now()")

    async def set(self, when: datetime) -> datetime:
        """Set the clock to a moment. It runs on from there, unless it is frozen."""
        return await self._read("select ff_test.set_clock($1)", when)

    async def advance(
        self,
        by: timedelta = timedelta(),
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: float = 0,
    ) -> datetime:
        """Move the clock forward, or back by a negative span. Return the new time."""
        span = timedelta(
            days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds
        )
        return await self._read("select ff_test.advance_clock($1)", by + span)

    async def freeze(self, when: datetime | None = None) -> datetime:
        """Stop the clock, now or at a moment. Return the time that it shows."""
        return await self._read("select ff_test.freeze_clock($1)", when)

    async def run(self) -> datetime:
        """Let a frozen clock run again from its present time."""
        return await self._read("select ff_test.run_clock()")

    async def _read(self, query: str, *arguments: object) -> datetime:
        when: datetime = await self.db.fetchval(query, *arguments)
        return when


@pytest.fixture
def clock(db: Database) -> Clock:
    return Clock(db)
