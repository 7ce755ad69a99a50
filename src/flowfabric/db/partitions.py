"""The number of partitions of a database, as last read by this process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic

# A process works on all partitions that it knows, and reads their number again after this time.
# New ids use a raised number only after three times as long (ff.raise_partitions), so no process
# can miss work in a new partition.
REFRESH_SECONDS = 10.0

# New ids that are made one by one stay in one partition for this long, so that one call can store
# many of them: a call stores ids of one partition only. All callers change to the next partition
# together, in a gap between ids.
SHARED_SECONDS = 0.25
GAP_SECONDS = 0.0005
# This many ids fill a call, so the next ids go to the next partition.
MANY = 100

# How long a failed partition is skipped: at first, and at most.
REST_SECONDS = 1.0
MAX_REST_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Numbers:
    """How many partitions exist.

    `minted` is the number of partitions that new ids use. `keyed` is the number of partitions that
    idempotency keys use.
    """

    partitions: int = 1
    minted: int = 1
    keyed: int = 1


# In a `Rest`, this number stands for the query over all partitions.
ALL = -1


class Rest:
    """The partitions that this process skips for a while, because calls to them failed."""

    def __init__(self) -> None:
        self._failed: dict[int, tuple[int, float]] = {}

    def is_over(self, partition: int) -> bool:
        found = self._failed.get(partition)
        return found is None or monotonic() >= found[1]

    def failures(self, partition: int) -> int:
        """Return how many times in a row a call to the partition has failed."""
        return self._failed.get(partition, (0, 0.0))[0]

    def begin(self, partition: int) -> None:
        """Skip a partition for a while: longer after each failure, up to about 30 s."""
        failures = self.failures(partition) + 1
        pause = min(REST_SECONDS * 2 ** (failures - 1), MAX_REST_SECONDS)
        self._failed[partition] = (failures, monotonic() + pause * random.uniform(0.8, 1.2))

    def end(self, partition: int) -> None:
        self._failed.pop(partition, None)


class KnownPartitions:
    """Knows how many partitions a database has, and chooses the partitions of new ids.

    Before the first read, it assumes that there is one partition.
    """

    def __init__(self, read: Callable[[], Awaitable[Numbers]]) -> None:
        self._read = read
        self._lock = asyncio.Lock()
        self._read_at = -REFRESH_SECONDS
        self.numbers = Numbers()
        self.rest = Rest()
        # The partition for new ids, when its turn ends, and when a caller last asked for it.
        self._chosen = self._next = random.randrange(1 << 15)
        self._chosen_until = 0.0
        self._chosen_at = 0.0

    def note(self, numbers: Numbers) -> None:
        """Remember how many partitions there are, as just read from the database."""
        self.numbers = numbers
        self._read_at = monotonic()

    async def all(self) -> range:
        """Return all partitions. Read their number again if it is more than ten seconds old."""
        return range((await self.current()).partitions)

    async def current(self) -> Numbers:
        """Return how many partitions there are, as read at most ten seconds ago."""
        if monotonic() - self._read_at > REFRESH_SECONDS:
            await self.refresh()
        return self.numbers

    async def refresh(self) -> None:
        """Read from the database how many partitions there are. Concurrent calls share one read."""
        asked_at = monotonic()
        async with self._lock:
            if self._read_at < asked_at:
                self.note(await self._read())

    def choose(self, count: int = 1) -> int:
        """Return a partition for `count` new ids.

        The partitions take turns. Single ids that are made at nearly the same time share a
        partition, so that one call can store them.
        """
        minted = self.numbers.minted
        if minted == 1:
            return 0
        if count >= MANY:
            self._next = (self._next + 1) % minted
            return self._next
        now = monotonic()
        is_gap, self._chosen_at = now - self._chosen_at > GAP_SECONDS, now
        if now > self._chosen_until and (is_gap or now > self._chosen_until + SHARED_SECONDS):
            self._chosen = self._next = (self._next + 1) % minted
            self._chosen_until = now + SHARED_SECONDS
        return self._chosen % minted
