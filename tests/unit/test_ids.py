"""Identifiers: parsing, canonical spelling, partitions, and ids that rise."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from flowfabric.core import ids
from flowfabric.core.errors import InvalidId, InvalidPartitionIndex, InvalidUuid, MissingTag
from flowfabric.core.ids import (
    ExecutionId,
    child_id,
    firing_id,
    mint,
    mint_for_key,
    mint_many,
    partition_of,
    uuid7,
)

UUID_TEXT = "550e8400-e29b-41d4-a716-446655440000"


@pytest.mark.parametrize(
    ("data", "crc", "of_256"),
    [
        (b"123456789", 0x31C3, 0xC3),
        (b"default", 0xD656, 86),
        (b"workers-a", 0x2EC1, 193),
        (b"gpu", 0x3890, 144),
        (UUID(UUID_TEXT).bytes, 0x9018, 24),
        (UUID(int=0).bytes, 0, 0),
        (b"", 0, 0),
    ],
)
def test_the_hash_is_that_of_every_client(data, crc, of_256):
    assert partition_of(data, 65536) == crc
    assert partition_of(data, 256) == of_256
    assert partition_of(data, 1) == 0


@pytest.mark.parametrize("partitions", [0, -1])
def test_there_is_at_least_one_partition(partitions):
    with pytest.raises(ValueError, match="at least 1"):
        partition_of(b"x", partitions)


@pytest.mark.parametrize("partition", [0, 1, 42, 255, 65535])
@pytest.mark.parametrize("uuid", [UUID_TEXT, str(UUID(int=1)), str(UUID(int=2**128 - 1))])
def test_an_id_reads_back(partition, uuid):
    text = f"{{fp:{partition}}}:{uuid}"
    parsed = ExecutionId.parse(text)
    assert parsed == text == ExecutionId.of(partition, UUID(uuid))
    assert (parsed.partition_key, parsed.uuid) == (partition, UUID(uuid))
    assert isinstance(parsed, str)
    assert hash(parsed) == hash(text)


@pytest.mark.parametrize(
    "spelling",
    [
        f"{{fp:42}}:{UUID_TEXT.upper()}",
        f"{{fp:042}}:{UUID_TEXT}",
        f"{{fp:+42}}:{UUID_TEXT}",
        f"{{fp:0000042}}:{UUID_TEXT.replace('-', '')}",
    ],
)
def test_every_spelling_becomes_the_same_id(spelling):
    assert ExecutionId.parse(spelling) == f"{{fp:42}}:{UUID_TEXT}"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        # 1. the tag
        (UUID_TEXT, MissingTag),
        ("", MissingTag),
        (f"fp:42:{UUID_TEXT}", MissingTag),
        (f"{{fp:42:{UUID_TEXT}", MissingTag),
        (f"{{fp:42}}{UUID_TEXT}", MissingTag),
        (f"{{b:42}}:{UUID_TEXT}", MissingTag),
        (f"{{FP:42}}:{UUID_TEXT}", MissingTag),
        (f" {{fp:42}}:{UUID_TEXT}", MissingTag),
        (f"{{fp}}:{UUID_TEXT}", MissingTag),
        # 2. the partition
        (f"{{fp:xx}}:{UUID_TEXT}", InvalidPartitionIndex),
        (f"{{fp:65536}}:{UUID_TEXT}", InvalidPartitionIndex),
        (f"{{fp:-1}}:{UUID_TEXT}", InvalidPartitionIndex),
        (f"{{fp:}}:{UUID_TEXT}", InvalidPartitionIndex),
        (f"{{fp:+}}:{UUID_TEXT}", InvalidPartitionIndex),
        (f"{{fp:++4}}:{UUID_TEXT}", InvalidPartitionIndex),
        (f"{{fp: 4}}:{UUID_TEXT}", InvalidPartitionIndex),
        (f"{{fp:4.0}}:{UUID_TEXT}", InvalidPartitionIndex),
        (f"{{fp:4_2}}:{UUID_TEXT}", InvalidPartitionIndex),
        (f"{{fp:٤}}:{UUID_TEXT}", InvalidPartitionIndex),
        (f"{{fp:²}}:{UUID_TEXT}", InvalidPartitionIndex),
        ("{fp:xx}:not-a-uuid", InvalidPartitionIndex),
        # 3. the UUID
        ("{fp:42}:", InvalidUuid),
        ("{fp:42}:not-a-uuid", InvalidUuid),
        (f"{{fp:42}}:{UUID(int=0)}", InvalidUuid),
        (f"{{fp:42}}:{UUID_TEXT} ", InvalidUuid),
        (f"{{fp:42}}:{UUID_TEXT}\n", InvalidUuid),
        (f"{{fp:42}}:{UUID_TEXT[:-1]}", InvalidUuid),
        (f"{{fp:42}}:{UUID_TEXT}0", InvalidUuid),
        (f"{{fp:42}}:{{{UUID_TEXT}}}", InvalidUuid),
        (f"{{fp:42}}:urn:uuid:{UUID_TEXT}", InvalidUuid),
        (f"{{fp:42}}:{UUID_TEXT[:-1]}g", InvalidUuid),
        (f"{{fp:1}}:{{fp:2}}:{UUID_TEXT}", InvalidUuid),
    ],
)
def test_what_is_no_id_says_which_part(text, error):
    with pytest.raises(InvalidId) as caught:
        ExecutionId.parse(text)
    assert type(caught.value) is error
    assert caught.value.field == "execution_id"
    assert caught.value.problem


def test_a_long_number_is_refused_at_once():
    with pytest.raises(InvalidPartitionIndex):
        ExecutionId.parse(f"{{fp:{'9' * 10_000}}}:{UUID_TEXT}")


def test_the_number_of_partitions_does_not_matter_when_reading():
    assert ExecutionId.parse(f"{{fp:65535}}:{UUID_TEXT}").partition_key == 65535


def test_minted_ids_lie_in_their_partition():
    assert mint().partition_key == 0
    for _ in range(50):
        minted = mint(256)
        assert minted.partition_key == partition_of(minted.uuid.bytes, 256)
        assert ExecutionId.parse(minted) == minted


def test_a_key_decides_the_partition_not_the_id():
    first, second = mint_for_key("shop", "order-7", 256), mint_for_key("shop", "order-7", 256)
    assert first != second
    assert first.partition_key == second.partition_key
    assert first.partition_key == partition_of(b"shop\x00order-7", 256)
    assert {mint_for_key("shop", f"order-{n}", 256).partition_key for n in range(200)} != {0}
    # the namespace cannot run into the key
    assert mint_for_key("a", "b:c", 65536).partition_key != (
        mint_for_key("a:b", "c", 65536).partition_key
    )


def test_uuids_are_of_version_7():
    for made in [*(uuid7() for _ in range(100)), *map(UUID, mint_many(100))]:
        assert made.version == 7
        assert made.variant == UUID(UUID_TEXT).variant


def test_uuids_rise_also_within_a_millisecond():
    made = [uuid7() for _ in range(10_000)]
    made += [UUID(one) for _ in range(3) for one in (*mint_many(5000), uuid7().hex)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_uuids_rise_when_the_clock_goes_back(monkeypatch):
    before = uuid7()
    monkeypatch.setattr(ids.time, "time_ns", lambda: 0)
    made = [*(uuid7() for _ in range(5000)), *map(UUID, mint_many(5000))]
    assert [before, *made] == sorted([before, *made])


def test_uuids_of_threads_are_distinct_and_rise_in_each():
    made: list[list[UUID]] = [[] for _ in range(8)]
    start = threading.Barrier(8)

    def work(own: list[UUID]) -> None:
        start.wait()
        for _ in range(20):
            own.extend(uuid7() for _ in range(50))
            own.extend(map(UUID, mint_many(50)))

    threads = [threading.Thread(target=work, args=(own,)) for own in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(own == sorted(own) for own in made)
    assert len({uuid for own in made for uuid in own}) == 16_000


def test_a_batch_of_ids_is_made_of_random_bits():
    tails = [int(one, 16) & ((1 << 62) - 1) for one in mint_many(2000)]
    assert len(set(tails)) == 2000
    for bit in range(62):
        assert 700 < sum(tail >> bit & 1 for tail in tails) < 1300


# Derived ids

PARENT = ExecutionId.of(3, UUID("01906d5e-7a3e-7c11-9d2e-3f5a6b7c8d9e"))
SCHEDULE = UUID("0190b5c2-7a3e-7c11-9d2e-3f5a6b7c8d9e")
NOON = datetime(2031, 5, 4, 12, tzinfo=UTC)


def test_a_child_has_the_time_and_the_partition_of_its_parent():
    child = child_id(PARENT, 0, "send", 0)
    assert (child.partition_key, child.uuid.int >> 80) == (3, PARENT.uuid.int >> 80)
    assert (child.uuid.version, child.uuid.variant) == (8, PARENT.uuid.variant)
    assert ExecutionId.parse(str(child)) == child


def test_a_child_is_found_again_and_every_other_is_another():
    assert child_id(PARENT, 0, "send", 0) == child_id(PARENT, 0, "send", 0)
    others = {
        child_id(PARENT, 0, "send", 0),
        child_id(PARENT, 1, "send", 0),
        child_id(PARENT, 0, "send", 1),
        child_id(PARENT, 0, "sent", 0),
        child_id(ExecutionId.of(3, UUID(int=PARENT.uuid.int + 1)), 0, "send", 0),
    }
    assert len(others) == 5


def test_the_ids_of_children_do_not_change_between_releases():
    """A handler that starts over under a new release must find its children."""
    assert child_id(PARENT, 2, "grüße", 7).uuid == UUID("01906d5e-7a3e-8c13-9535-ede76c5134dd")
    assert firing_id(SCHEDULE, NOON).uuid == UUID("01c2ae78-4200-86f0-914c-2a5fcc875613")


def test_a_firing_has_the_time_it_is_for():
    fired = firing_id(SCHEDULE, NOON)
    assert fired.partition_key == 0
    assert fired.uuid.int >> 80 == NOON.timestamp() * 1000
    assert fired.uuid.version == 8
    assert fired == firing_id(SCHEDULE, NOON.astimezone())
    assert fired != firing_id(SCHEDULE, NOON + timedelta(microseconds=1))
    assert firing_id(SCHEDULE, NOON, 256).partition_key == partition_of(SCHEDULE.bytes, 256)


def test_a_firing_before_the_epoch_has_an_id_too():
    assert firing_id(SCHEDULE, datetime(1960, 1, 1, tzinfo=UTC)).uuid.int >> 80 == 0
