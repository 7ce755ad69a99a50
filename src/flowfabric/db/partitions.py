"""How many partitions a database has, as this process read it last."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic

# A process looks in all partitions that it knows of, and reads their number again after this time.
# ff.installation lets a raised number rest for three times as long before new ids use it, so no
# process can miss work in a new partition.
REFRESH_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of partitions: that exist, that new ids use, and that keys use."""

    partitions: int = 1
    minted: int = 1
    keyed: int = 1


class KnownPartitions:
    """The partitions of a database. Without a first reading there is one."""

    def __init__(self, read: Callable[[], Awaitable[Numbers]]) -> None:
        self._read = read
        self._lock = asyncio.Lock()
        self._read_at = -REFRESH_SECONDS
        self.numbers = Numbers()

    def note(self, numbers: Numbers) -> None:
        """Store numbers that were read just now."""
        self.numbers = numbers
        self._read_at = monotonic()

    async def all(self) -> range:
        """Return every partition, by a number that is at most ten seconds old."""
        if monotonic() - self._read_at > REFRESH_SECONDS:
            await self.refresh()
        return range(self.numbers.partitions)

    async def refresh(self) -> None:
        """Read the numbers again. Concurrent calls share one reading."""
        asked_at = monotonic()
        async with self._lock:
            if self._read_at < asked_at:
                self.note(await self._read())
