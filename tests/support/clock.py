"""The settable clock of test databases: `ff.now()` reads it, whichever connection asks.

It runs by default, shifted by what `set` and `advance` added up to; a frozen one stands still
until it is set, advanced or run again. Nobody has to sleep for time to pass.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .database import Database


class Clock:
    """Moves the time of one test database. What it did is committed when the call returns."""

    def __init__(self, db: Database) -> None:
        self.db = db

    async def now(self) -> datetime:
        return await self._read("select ff.now()")

    async def set(self, when: datetime) -> datetime:
        """Go to a moment; the clock goes on from there, or stands there if it is frozen."""
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
        """Go on by a span, or back by a negative one; returns the new time."""
        span = timedelta(
            days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds
        )
        return await self._read("select ff_test.advance_clock($1)", by + span)

    async def freeze(self, when: datetime | None = None) -> datetime:
        """Stop the clock, now or at a moment; returns the time it shows."""
        return await self._read("select ff_test.freeze_clock($1)", when)

    async def run(self) -> datetime:
        """Let a frozen clock go on from where it stands."""
        return await self._read("select ff_test.run_clock()")

    async def _read(self, query: str, *arguments: object) -> datetime:
        when: datetime = await self.db.fetchval(query, *arguments)
        return when


@pytest.fixture
def clock(db: Database) -> Clock:
    return Clock(db)
