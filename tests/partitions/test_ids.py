"""Ids choose their partition by their own bytes, and ids made together share one."""

from __future__ import annotations

from collections import Counter
from uuid import RFC_4122, UUID

import pytest

from flowfabric.core.ids import fit, mint_at, mint_many, partition_of, uuid7
from flowfabric.db.partitions import MANY, KnownPartitions, Numbers


@pytest.mark.parametrize("partitions", [1, 2, 7, 8, 32, 1000, 32_767])
def test_an_id_can_be_made_for_any_partition(partitions):
    for partition in {0, partitions // 2, partitions - 1}:
        for _ in range(50):
            made = mint_at(partition, partitions)
            assert made.partition_key == partition_of(made.uuid.bytes, partitions) == partition
            assert (made.uuid.version, made.uuid.variant) == (7, uuid7().variant)


@pytest.mark.parametrize("partitions", [1, 8, 32])
def test_many_ids_are_made_for_one_partition_and_rise(partitions):
    # More than a millisecond has ticks for.
    made = [one for _ in range(3) for one in mint_many(5000, partitions - 1, partitions)]
    assert made == sorted(made)
    assert len(set(made)) == 15_000
    assert {(UUID(str(one)).version, UUID(str(one)).variant) for one in made} == {(7, RFC_4122)}
    assert {partition_of(UUID(str(one)).bytes, partitions) for one in made} == {partitions - 1}


def test_ids_made_together_share_the_random_part_that_other_processes_draw_anew():
    batches = [mint_many(100, 3, 8) for _ in range(200)]
    assert all(len({str(one)[16:28] for one in batch}) == 1 for batch in batches)
    assert len({str(batch[0])[16:28] for batch in batches}) == 200
    # The last two bytes of the first ids: random too, so rarely the same.
    assert len({str(batch[0])[28:] for batch in batches}) > 150


def test_the_last_two_bytes_stay_random():
    uuid = uuid7()
    ends = {fit(UUID(int=uuid.int ^ end), 3, 8).int & 0xFFFF for end in range(1 << 13)}
    assert len(ends) == 1 << 13
    assert fit(uuid, 0, 1) == uuid


def known(minted: int) -> KnownPartitions:
    async def read() -> Numbers:
        raise AssertionError("it was read just now")

    partitions = KnownPartitions(read)
    partitions.note(Numbers(minted, minted, minted))
    return partitions


def test_ids_made_together_share_a_partition_and_all_partitions_take_turns():
    partitions = known(8)
    assert Counter(partitions.choose(MANY) for _ in range(16)) == dict.fromkeys(range(8), 2)
    partitions.choose()
    partitions._chosen_until = float("inf")
    assert len({partitions.choose() for _ in range(10_000)}) == 1


def test_ids_made_one_after_the_other_do_not_stay_in_one_partition(monkeypatch):
    partitions = known(8)
    now = 1000.0
    monkeypatch.setattr("flowfabric.db.partitions.monotonic", lambda: now)

    def choose() -> int:
        nonlocal now
        now += 1.0
        return partitions.choose()

    assert Counter(choose() for _ in range(16)) == dict.fromkeys(range(8), 2)
    assert known(1).choose() == 0
