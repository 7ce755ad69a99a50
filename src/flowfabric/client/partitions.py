"""Partitions: raise the number of partitions, and send a query to each of them.

A few partitions are asked at the same time. If one cannot be reached, the others still answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from typing import TypeVar
from uuid import UUID

from flowfabric.core.errors import ConnectionLost, Unavailable
from flowfabric.core.partition import PartitionNumbers
from flowfabric.db import functions
from flowfabric.db.outage import level_of
from flowfabric.db.partitions import REFRESH_SECONDS
from flowfabric.db.session import Database
from flowfabric.telemetry import ENGINE_LOGGER

# How many partitions are asked at the same time.
AT_ONCE = 4
# How long one of several partitions may take to answer. A call takes milliseconds, and waits for a
# lock for 2 s at most.
ANSWER_SECONDS = 5.0
# How long a query over all partitions may take to answer. It waits for the slowest node, so a node
# that is silent would hold up all partitions. After this time the caller asks one by one.
LOOK_SECONDS = 3.0

# How long new ids keep the old number after a raise. By then every process has read the new number.
REST = timedelta(seconds=3 * REFRESH_SECONDS)

T = TypeVar("T")


class Partitions:
    """Reads and raises the number of partitions. Only an operator is allowed to raise it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def numbers(self) -> PartitionNumbers:
        """Return three counts: all partitions, the partitions that new ids use, and the partitions
        that idempotency keys use.
        """
        await self._database.partitions.refresh()
        known = self._database.partitions.numbers
        return PartitionNumbers(known.partitions, known.minted, known.keyed)

    async def raise_to(
        self, number: int, *, keys: bool = False, grace: timedelta = REST
    ) -> PartitionNumbers:
        """Raise the number of partitions. The number can never be lowered.

        All processes learn the new number within ten seconds. New ids use the new partitions after
        `grace`. If nothing is stored, new ids and keys use the new partitions immediately.

        If `keys` is true, idempotency keys use the new partitions, too. While any key is stored,
        such a call is refused.

        If a process still uses the old number for a key, its submit is refused, and the process
        reads the number again.
        """
        rows = await self._database.call(
            functions.RAISE_PARTITIONS, partitions=number, keys=keys, grace=grace
        )
        row = rows[0]
        await self._database.partitions.refresh()
        return PartitionNumbers(
            row["partitions"], row["minted_partitions"], row["keyed_partitions"], row["grace_left"]
        )


async def ask_each(partitions: Iterable[int], ask: Callable[[int], Awaitable[T]]) -> list[T]:
    """Ask every partition, and return the answers in order. Raise the first error."""
    wanted = list(partitions)
    if len(wanted) == 1:
        return [await ask(wanted[0])]
    found: dict[int, T] = {}
    left = iter(wanted)

    async def go_on() -> None:
        for partition in left:
            found[partition] = await ask(partition)

    workers = [asyncio.ensure_future(go_on()) for _ in range(min(AT_ONCE, len(wanted)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
    return [found[partition] for partition in wanted]


async def ask_reachable(
    partitions: Iterable[int], ask: Callable[[int], Awaitable[T]]
) -> tuple[list[T], tuple[int, ...]]:
    """Ask every partition. Return the answers, and the partitions that could not be reached.

    Raise Unavailable if no partition could be reached.
    """
    wanted = list(partitions)

    async def try_one(partition: int) -> T | Unavailable:
        try:
            return await within_time(partition, len(wanted), ask(partition))
        except Unavailable as error:
            return error

    answers = await ask_each(wanted, try_one)
    errors = [one for one in answers if isinstance(one, Unavailable)]
    if len(errors) == len(wanted):
        raise errors[0]
    missing = tuple(
        partition
        for partition, answer in zip(wanted, answers, strict=True)
        if isinstance(answer, Unavailable)
    )
    return [one for one in answers if not isinstance(one, Unavailable)], missing


async def ask_any(partitions: Iterable[int], ask: Callable[[int], Awaitable[T]]) -> T:
    """Ask one partition after the other, and return the first answer.

    Raise Unavailable if no partition could be reached.
    """
    wanted = list(partitions)
    *others, last = wanted
    for partition in others:
        try:
            return await within_time(partition, len(wanted), ask(partition))
        except Unavailable as error:
            ENGINE_LOGGER.log(level_of(error), "no answer from partition %s: %s", partition, error)
    return await within_time(last, len(wanted), ask(last))


Row = TypeVar("Row")


def merge_pages(
    pages: Sequence[tuple[Sequence[Row], UUID | None]],
    id_of: Callable[[Row], UUID],
    limit: int,
    *,
    newest: bool,
) -> tuple[list[Row], UUID | None]:
    """Merge the pages of several partitions into one page that is ordered by id.

    Return the rows of the merged page, and the id after which the next page begins (None: there is
    no next page).

    An item of `pages` has the rows of one partition, and the last id that was read there (None: all
    rows were read). A row that comes after any of these ids is left out: the partition of that id
    may have unread rows that come earlier.
    """
    ends = [end for _, end in pages if end is not None]
    rows = [row for page, _ in pages for row in page]
    rows.sort(key=id_of, reverse=newest)
    end: UUID | None = None
    if ends:
        end = max(ends) if newest else min(ends)
        rows = [row for row in rows if (id_of(row) >= end if newest else id_of(row) <= end)]
    if len(rows) > limit:
        rows = rows[:limit]
        end = id_of(rows[-1])
    return rows, end


def share_of(limit: int, count: int) -> int:
    """Return how many rows to read from each partition for a page of `limit` rows.

    If there are few partitions, read `limit` rows from each. If there are many, read fewer rows
    from each, so the page may have fewer than `limit` rows although more exist.
    """
    return min(limit, max(1000 // count, 2 * limit // count + 1))


async def within_time(
    partition: int, count: int, answer: Awaitable[T], seconds: float | None = None
) -> T:
    """Wait for the answer of one partition, and return it.

    `count` is the number of partitions. If there are several, wait at most `seconds` (default:
    5 s), then raise ConnectionLost.
    """
    if count == 1:
        return await answer
    seconds = ANSWER_SECONDS if seconds is None else seconds
    return await _wait(f"Partition {partition}", answer, seconds, partition=partition)


async def look(count: int, answer: Awaitable[T]) -> T:
    """Wait for the answer of a query over all partitions, and return it.

    `count` is the number of partitions. If there are several, wait at most 3 s, then raise
    ConnectionLost.
    """
    if count == 1:
        return await answer
    return await _wait("The query over all partitions", answer, LOOK_SECONDS)


async def _wait(who: str, answer: Awaitable[T], seconds: float, **facts: int) -> T:
    try:
        async with asyncio.timeout(seconds):
            return await answer
    except TimeoutError as error:
        raise ConnectionLost(f"{who} did not answer for {seconds:g} s.", **facts) from error
