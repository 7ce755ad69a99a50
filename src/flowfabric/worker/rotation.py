"""Decides which partition a worker claims from next.

Each partition has its own claim id, floor and back-off, so that a partition that cannot be reached
does not delay the others.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from time import monotonic
from uuid import UUID

from flowfabric.client.executions import Floor
from flowfabric.client.partitions import look, within_time
from flowfabric.core.errors import Unavailable
from flowfabric.core.execution import Claimed
from flowfabric.db.outage import level_of
from flowfabric.db.partitions import KnownPartitions
from flowfabric.telemetry import WORKER_LOGGER

FLOOR_SECONDS = 0.1
# How long a worker uses the result of one ff.find_work before it asks again: LOOK_SHARE times the
# duration of the call, but at least LOOK_SECONDS and at most MOST_LOOK_SECONDS.
LOOK_SHARE = 30
LOOK_SECONDS = 0.1
MOST_LOOK_SECONDS = 0.5
# How long a worker asks the partitions one after the other, after ff.find_work has failed: longer
# after each failure in a row, because a node that is silent costs 3 s each time.
BLIND_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)
# How long one of several partitions may take to answer a claim.
ANSWER_SECONDS = 3.0
# How long a partition is skipped after a claim that found nothing, although ff.find_work found work
# there. Other workers have locked this work, or have grants for it.
VAIN_SECONDS = (0.05, 0.1, 0.2, 0.4, 1.0, 2.0, 5.0)


class ClaimFloor:
    """The position where the last full claim stopped. For a short time, claims continue there."""

    def __init__(self) -> None:
        self._floor: Floor | None = None
        self._since = 0.0

    @property
    def is_set(self) -> bool:
        return self._floor is not None

    def get(self) -> Floor | None:
        """Return the floor, or None if it is too old: more urgent work may have come since then."""
        if self._floor is not None and monotonic() - self._since > FLOOR_SECONDS:
            self._floor = None
        return self._floor

    def set_behind(self, last: Claimed) -> None:
        if self._floor is None:
            self._since = monotonic()
        self._floor = (last.rank, last.order_at, last.execution_id)

    def clear(self) -> None:
        self._floor = None


class Turn:
    """The state of one partition in the rotation: its floor, unanswered claim and failures."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.floor = ClaimFloor()
        # The id and the time of a claim whose answer is not known.
        self.pending: tuple[UUID, float] | None = None
        # How many claims in a row have failed, and how many found nothing although ff.find_work
        # found work.
        self.failures = 0
        self.vain = 0
        self.not_before = 0.0


class PartitionRotation:
    """Chooses the partition of the next claim.

    The partition with the most urgent work is next. Partitions with equally urgent work take turns.
    """

    def __init__(
        self, partitions: KnownPartitions, look: Callable[[], Awaitable[dict[int, int]]]
    ) -> None:
        self._partitions = partitions
        self._look = look
        self._turns = [Turn(0)]
        self._current = self._turns[0]
        # The partitions that the last ff.find_work found, the next one first.
        self._found: Iterator[int] = iter(())
        self._ranks: dict[int, int] = {}
        self._stays = False
        self._looked_at = 0.0
        self._fresh_for = LOOK_SECONDS
        self._blind_until = 0.0
        self._failed_looks = 0
        self._last = random.randrange(1 << 16)

    @property
    def is_single(self) -> bool:
        """Whether there is only one partition."""
        return len(self._turns) == 1

    @property
    def pending(self) -> list[Turn]:
        """The partitions whose latest claim is unanswered."""
        return [turn for turn in self._turns if turn.pending is not None]

    @property
    def retry_in(self) -> float | None:
        """The seconds until a skipped partition is asked again; None if no partition is skipped."""
        times = [turn.not_before for turn in self._turns if turn.vain or turn.pending]
        return max(min(times) - monotonic(), 0.01) if times else None

    async def next(self) -> Turn | None:
        """Return the turn of the next claim; None if there is nothing to claim anywhere."""
        if len(self._turns) < self._partitions.numbers.partitions:
            self._turns += map(Turn, range(len(self._turns), self._partitions.numbers.partitions))
        if self.is_single:
            return self._turns[0]
        now = monotonic()
        is_fresh = now - self._looked_at < self._fresh_for
        if self._stays and is_fresh:
            return self._current
        if is_fresh and (turn := self._take()) is not None:
            return turn
        await self._look_again()
        return self._take()

    async def within_time(self, turn: Turn, claim: Awaitable[list[Claimed]]) -> list[Claimed]:
        """Wait for a claim, with a time limit if there are several partitions."""
        count = len(self._turns)
        return await within_time(turn.partition, count, claim, ANSWER_SECONDS)

    def after(self, turn: Turn, claimed: Sequence[Claimed], *, is_full: bool) -> None:
        """Note the result of a claim.

        If the partition has more work, the next claims also go to it for a moment, unless another
        partition has more urgent work.
        """
        turn.failures = 0
        turn.pending = None
        self._stays = is_full
        if claimed:
            turn.vain = 0
            if is_full and not self.is_single:
                others = (rank for one, rank in self._ranks.items() if one != turn.partition)
                self._stays = claimed[-1].rank <= min(others, default=claimed[-1].rank)
        elif not self.is_single:
            pause = VAIN_SECONDS[min(turn.vain, len(VAIN_SECONDS) - 1)]
            turn.vain += 1
            turn.not_before = monotonic() + pause

    def after_failure(self, turn: Turn, pause: float) -> None:
        """Skip a partition for `pause` seconds, because a claim from it has failed."""
        turn.failures += 1
        turn.not_before = monotonic() + pause
        self._stays = False

    def _take(self) -> Turn | None:
        now = monotonic()
        for partition in self._found:
            if (turn := self._turns[partition]).not_before <= now:
                if turn is not self._current:
                    # The next ff.find_work finds the work that is left there.
                    self._ranks.pop(self._current.partition, None)
                self._current, self._last = turn, partition
                return turn
            self._ranks.pop(partition, None)
        return None

    async def _look_again(self) -> None:
        self._stays = False
        count = len(self._turns)
        if monotonic() >= self._blind_until:
            try:
                await self._partitions.current()
                began = monotonic()
                ranks = await look(count, self._look())
            except Unavailable as error:
                WORKER_LOGGER.log(level_of(error), "query over all partitions failed: %s", error)
                pause = BLIND_SECONDS[min(self._failed_looks, len(BLIND_SECONDS) - 1)]
                self._blind_until = monotonic() + pause
                self._failed_looks += 1
            else:
                self._failed_looks = 0
                for turn in self._turns:
                    if turn.partition not in ranks:
                        turn.vain = 0
                self._ranks = dict(ranks)
                found = [partition for partition in ranks if partition < count]
                found.sort(key=lambda one: (ranks[one], (one - self._last - 1) % count))
                # Ask again where the answer of a claim was lost: the claim may have leased all the
                # work there.
                lost = [turn.partition for turn in self.pending]
                self._found = iter(dict.fromkeys([*lost, *found]))
                self._looked_at = monotonic()
                wanted = LOOK_SHARE * (self._looked_at - began)
                self._fresh_for = min(max(wanted, LOOK_SECONDS), MOST_LOOK_SECONDS)
                return
        self._ranks, self._fresh_for = {}, LOOK_SECONDS
        # Ask one partition after the other: some may answer although ff.find_work over all fails.
        behind = [(self._last + 1 + step) % count for step in range(count)]
        self._found, self._looked_at = iter(behind), monotonic()
