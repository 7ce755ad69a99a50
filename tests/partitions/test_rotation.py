"""Which partition a worker claims from next: by what a look over all of them found."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from flowfabric.core.errors import ConnectionLost
from flowfabric.db.partitions import KnownPartitions, Numbers
from flowfabric.worker import rotation as rotation_module
from flowfabric.worker.rotation import PartitionRotation

URGENT, USUAL = 8000, 9000


def claimed(rank: int) -> list[Any]:
    """What a claim returned: the last one has this rank."""
    return [SimpleNamespace(rank=rank)]


class Stage:
    """A rotation over partitions, and a time that only tests move."""

    def __init__(self, number: int) -> None:
        async def read() -> Numbers:
            return Numbers(number, number, number)

        partitions = KnownPartitions(read)
        partitions.note(Numbers(number, number, number))
        self.now = 1000.0
        self.ranks: dict[int, int] | None = {}
        self.looks = 0
        self.rotation = PartitionRotation(partitions, self._look)
        self.rotation._last = number - 1

    async def _look(self) -> dict[int, int]:
        self.looks += 1
        if self.ranks is None:
            raise ConnectionLost("a node is away")
        return self.ranks

    async def next(self) -> int | None:
        turn = await self.rotation.next()
        return None if turn is None else turn.partition


@pytest.fixture
def stage(monkeypatch):
    stage = Stage(4)
    monkeypatch.setattr(rotation_module, "monotonic", lambda: stage.now)
    return stage


async def test_one_partition_needs_no_look():
    single = Stage(1)
    assert [await single.next() for _ in range(3)] == [0, 0, 0]
    assert single.looks == 0
    assert single.rotation.retry_in is None


async def test_the_most_urgent_partition_comes_first_and_equals_take_turns(stage):
    stage.ranks = {0: USUAL, 1: USUAL, 2: URGENT, 3: USUAL}
    assert [await stage.next() for _ in range(4)] == [2, 0, 1, 3]
    assert stage.looks == 1


async def test_a_partition_with_more_work_keeps_the_turn_for_a_moment(stage):
    stage.ranks = {1: USUAL, 2: USUAL}
    turn = await stage.rotation.next()
    for _ in range(3):
        stage.rotation.after(turn, claimed(USUAL), is_full=True)
        assert await stage.next() == turn.partition
    stage.now += 0.2
    assert await stage.next() != turn.partition
    assert stage.looks == 2


async def test_a_partition_does_not_keep_the_turn_over_more_urgent_work_elsewhere(stage):
    stage.ranks = {1: URGENT, 2: URGENT + 5}
    turn = await stage.rotation.next()
    stage.rotation.after(turn, claimed(URGENT + 1), is_full=True)
    assert await stage.next() == 1
    stage.rotation.after(turn, claimed(USUAL), is_full=True)
    assert await stage.next() == 2


async def test_nothing_anywhere_is_nothing_to_claim(stage):
    assert await stage.next() is None
    assert stage.rotation.retry_in is None


async def test_a_partition_where_a_claim_was_in_vain_is_asked_again_later_each_time(stage):
    stage.ranks = {1: USUAL}
    pauses = []
    for _ in range(3):
        turn = await stage.rotation.next()
        stage.rotation.after(turn, [], is_full=False)
        assert await stage.next() is None
        pauses.append(stage.rotation.retry_in)
        stage.now += pauses[-1]
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[-1]
    stage.ranks = {}
    stage.now += 10
    assert await stage.next() is None
    assert stage.rotation.retry_in is None


async def test_a_lost_claim_is_repeated_even_if_nothing_is_left_to_claim_there(stage):
    stage.ranks = {1: USUAL, 3: USUAL}
    turn = await stage.rotation.next()
    turn.pending = (uuid4(), stage.now)
    stage.rotation.after_failure(turn, 2.0)
    assert await stage.next() == 3
    stage.ranks = {}
    stage.now += 1
    assert await stage.next() is None
    assert stage.rotation.retry_in == pytest.approx(1.0)
    stage.now += 1
    assert await stage.next() == turn.partition
    stage.rotation.after(turn, claimed(USUAL), is_full=False)
    assert stage.rotation.pending == []
    assert stage.rotation.retry_in is None


async def test_without_a_look_the_partitions_are_asked_one_after_the_other(stage):
    stage.ranks = None
    assert [await stage.next() for _ in range(4)] == [0, 1, 2, 3]
    assert stage.looks == 1
    stage.ranks = {2: USUAL}
    stage.now += 2
    assert await stage.next() == 2


async def test_a_raised_number_is_noticed(stage):
    stage.ranks = {6: USUAL}
    stage.rotation._partitions.note(Numbers(8, 8, 8))
    assert await stage.next() == 6


async def test_a_look_that_takes_long_is_used_for_longer(stage):
    stage.ranks = {0: USUAL, 1: USUAL, 2: USUAL, 3: USUAL}
    look = stage.rotation._look

    async def look_slowly() -> dict[int, int]:
        stage.now += 0.01
        return await look()

    stage.rotation._look = look_slowly
    await stage.next()
    stage.now += 0.25
    await stage.next()
    assert stage.looks == 1
    stage.now += 0.1
    await stage.next()
    assert stage.looks == 2
