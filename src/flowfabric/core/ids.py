"""Ids of executions and flows.

An id contains its partition, so that callers need not compute it.
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
from binascii import crc_hqx
from datetime import UTC, datetime, timedelta
from functools import cache
from hashlib import sha256
from typing import Any, ClassVar, Self, TypeAlias
from uuid import UUID, SafeUUID

from flowfabric.core.errors import (
    InvalidId,
    InvalidInput,
    InvalidPartitionIndex,
    InvalidUuid,
    MissingTag,
)

_UUID = re.compile(
    r"[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}"
)
_SUFFIX = re.compile(r"[0-9a-fA-F-]+")
_WHOLE = re.compile(r"\{fp:[0-9]+\}:(?=[0-9a-f]{8}-)")
MAX_PARTITION = 65535
# Users may give only the end of a UUID, if this end has at least this many digits.
MIN_SUFFIX = 8

# An id as users give it: whole (`{fp:0}:uuid`), or a UUID. The partition of a UUID is looked up.
AnyId: TypeAlias = str | UUID

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class PartitionedId(str):
    """An id `{fp:N}:uuid`: N without sign or leading zeros, then a lower-case UUID with hyphens."""

    __slots__ = ("partition_key", "uuid")

    _field: ClassVar[str]

    partition_key: int
    uuid: UUID

    @classmethod
    def of(cls, partition: int, uuid: UUID) -> Self:
        self = str.__new__(cls, f"{{fp:{partition}}}:{uuid!s}")
        # Stored next to the text, because every call of the engine needs both.
        self.partition_key = partition
        self.uuid = uuid
        return self

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an id in any spelling.

        Raises `MissingTag`, `InvalidPartitionIndex` or `InvalidUuid`.
        """
        if not isinstance(text, str):
            raise MissingTag(field=cls._field, problem=f"must be text, not {type(text).__name__}")
        head, separator, tail = text.partition("}:")
        if not separator or not head.startswith("{fp:"):
            raise MissingTag(field=cls._field, problem=f"{text!r} does not begin with {{fp:N}}:")
        index = head[4:].removeprefix("+")
        digits = index.lstrip("0") or index[:1]
        if (
            not (index.isascii() and index.isdigit())
            or len(digits) > 5
            or int(digits) > MAX_PARTITION
        ):
            raise InvalidPartitionIndex(
                field=cls._field,
                problem=f"{head[4:]!r} is not a whole number from 0 to {MAX_PARTITION}",
            )
        if not _UUID.fullmatch(tail):
            raise InvalidUuid(field=cls._field, problem=f"{tail!r} is not a UUID")
        uuid = UUID(tail)
        if not uuid.int:
            raise InvalidUuid(field=cls._field, problem="is the nil UUID, which is never an id")
        return cls.of(int(digits), uuid)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> dict[str, Any]:
        """Let Pydantic parse text into this type."""
        parse = {"type": "no-info", "function": cls.parse}
        return {"type": "function-after", "function": parse, "schema": handler(str)}

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self).of, (self.partition_key, self.uuid))


def bare_uuid(id: AnyId) -> UUID | None:
    """Return the UUID if the text is a UUID without a partition, otherwise None."""
    if isinstance(id, UUID):
        return id
    return UUID(id) if isinstance(id, str) and _UUID.fullmatch(id) else None


def as_uuid(uuid: UUID | str) -> UUID:
    """Turn a UUID or its text into a UUID."""
    return uuid if isinstance(uuid, UUID) else UUID(uuid)


def is_suffix(text: str) -> bool:
    """Return whether a text can be the last 8 to 31 digits of a UUID, not counting hyphens."""
    digits = len(text.replace("-", ""))
    return _SUFFIX.fullmatch(text) is not None and MIN_SUFFIX <= digits < 32


def with_bare_ids(text: str) -> str:
    """Shorten each whole id in a sentence to its UUID, for people to read."""
    return _WHOLE.sub("", text)


class ExecutionId(PartitionedId):
    """The id of an execution."""

    __slots__ = ()

    _field = "execution_id"


class FlowId(PartitionedId):
    """The id of a flow. All members of the flow are in the partition of this id."""

    __slots__ = ()

    _field = "flow_id"


def noun_of(kind: type[PartitionedId]) -> str:
    """Return the noun for a type of id: `execution` or `flow`."""
    return "flow" if issubclass(kind, FlowId) else "execution"


def partition_of(data: bytes, partitions: int) -> int:
    """Compute a partition from bytes with CRC-16/XMODEM. All clients compute it in this way."""
    if partitions < 1:
        raise ValueError(f"partitions must be at least 1, not {partitions}")
    return crc_hqx(data, 0) % partitions


def mint(partitions: int = 1) -> ExecutionId:
    """Make an id for an execution without key, parent or flow.

    The partition is computed from the UUID.
    """
    uuid = uuid7()
    partition = 0 if partitions == 1 else partition_of(uuid.bytes, partitions)
    return ExecutionId.of(partition, uuid)


def mint_at(partition: int, partitions: int) -> ExecutionId:
    """Make an id whose bytes determine the given partition."""
    return ExecutionId.of(partition, uuid7_in(partition, partitions))


def fit(uuid: UUID, partition: int, partitions: int) -> UUID:
    """Return the UUID with its last two bytes changed, so that its bytes determine the given
    partition.
    """
    if partitions == 1:
        return uuid
    head, tail = uuid.int >> 16, uuid.int & 0xFFFF
    return _uuid(head << 16 | _tail_for(head.to_bytes(14), tail, partition, partitions))


def _tail_for(head: bytes, tail: int, partition: int, partitions: int) -> int:
    """Return the two bytes to append to `head`, so that the id belongs to the partition.

    Many pairs of bytes would do; `tail` picks one of them.
    """
    crc = partition + partitions * (tail % ((0xFFFF - partition) // partitions + 1))
    return crc_hqx(head, 0) ^ _before(crc)


def _before(crc: int) -> int:
    """Return the checksum that becomes `crc` when two zero bytes are appended to the data."""
    return _BEFORE_HIGH[crc >> 8] ^ _BEFORE_LOW[crc & 0xFF]


def _computed_before(crc: int) -> int:
    for _ in range(2):
        index = _CRC_INDEX[crc & 0xFF]
        crc = index << 8 | (crc ^ _CRC[index]) >> 8
    return crc


# `_CRC` holds the checksum of each byte. `_CRC_INDEX` is the reverse table: it holds the byte whose
# checksum has the given low byte.
_CRC = [crc_hqx(bytes([byte]), 0) for byte in range(256)]
_CRC_INDEX = [index for _, index in sorted((_CRC[byte] & 0xFF, byte) for byte in range(256))]
# A checksum is linear: `_before` of two bytes is the XOR of `_before` of each byte.
_BEFORE_HIGH = [_computed_before(byte << 8) for byte in range(256)]
_BEFORE_LOW = [_computed_before(byte) for byte in range(256)]


def key_partition(namespace: str, key: str, partitions: int = 1) -> int:
    """Return the partition of an idempotency key."""
    return partition_of(f"{namespace}\x00{key}".encode(), partitions)


def mint_for_key(namespace: str, key: str, partitions: int = 1) -> ExecutionId:
    """Make an id in the partition of its idempotency key, where the engine looks for duplicates."""
    return ExecutionId.of(key_partition(namespace, key, partitions), uuid7())


def mint_flow(partitions: int = 1) -> FlowId:
    """Make an id for a flow. The partition is computed from the UUID."""
    uuid = uuid7()
    partition = 0 if partitions == 1 else partition_of(uuid.bytes, partitions)
    return FlowId.of(partition, uuid)


def mint_in(partition: int) -> ExecutionId:
    """Make an id in a given partition, for example the partition of a flow."""
    return ExecutionId.of(partition, uuid7())


def child_id(
    parent: ExecutionId, replay_count: int, name: str, occurrence: int, generation: int = 0
) -> ExecutionId:
    """Compute the id of a child from its parent, its name and its occurrence.

    A later run of the handler computes the same ids, so it finds the children of the earlier run. A
    replay, a restart or `continue_as` changes the ids, so the handler submits new children.
    """
    identity = b"".join(
        (parent.uuid.bytes, replay_count.to_bytes(8), occurrence.to_bytes(8), name.encode())
    )
    millisecond = parent.uuid.int >> 80
    kind = f"child of {generation}".encode() if generation else b"child"
    return ExecutionId.of(parent.partition_key, _derived(millisecond, kind, identity))


def firing_id(schedule_id: UUID, at: datetime, partitions: int = 1) -> ExecutionId:
    """Compute the id of the execution that a schedule submits for the time `at`.

    Every process computes the same id, so the schedule fires once for this time.
    """
    partition = 0 if partitions == 1 else partition_of(schedule_id.bytes, partitions)
    microsecond = (at - _EPOCH) // timedelta(microseconds=1)
    identity = schedule_id.bytes + microsecond.to_bytes(8, signed=True)
    millisecond = min(max(microsecond // 1000, 0), (1 << 48) - 1)
    return ExecutionId.of(partition, _derived(millisecond, b"firing", identity))


def mint_for_schedule(
    schedule_id: UUID, partitions: int = 1, uuid: UUID | None = None
) -> ExecutionId:
    """Make an id for a manual firing, in the partition of all firings of the schedule. Use
    `uuid` if it is given.
    """
    partition = 0 if partitions == 1 else partition_of(schedule_id.bytes, partitions)
    return ExecutionId.of(partition, uuid or uuid7())


def _derived(millisecond: int, kind: bytes, identity: bytes) -> UUID:
    """Return a UUIDv8 (RFC 9562): the time, then a digest of the kind and the identity."""
    digest = int.from_bytes(sha256(kind + b"\x00" + identity).digest()[:10])
    middle, tail = digest >> 68, digest & ((1 << 62) - 1)
    return UUID(int=millisecond << 80 | 0x8 << 76 | middle << 64 | 0x2 << 62 | tail)


# Ids must be unique, not secret. This generator is ten times cheaper than the system's. A forked
# process seeds it again, so that it does not repeat the numbers of its parent.
_random = random.Random(os.urandom(32))
os.register_at_fork(after_in_child=lambda: _random.seed(os.urandom(32)))
_last = 0
_lock = threading.Lock()
_RANDOM_BITS = ((1 << 62) - 1).to_bytes(8)
_VARIANT_BITS = (0x2 << 62).to_bytes(8)
_new_uuid = UUID.__new__
_set = object.__setattr__


def uuid7() -> UUID:
    """Make a UUIDv7 (RFC 9562). Each UUID is greater than the one before it in this process."""
    tick = _take_ticks(1)
    middle = tick >> 12 << 80 | 0x7 << 76 | (tick & 0xFFF) << 64
    return _uuid(middle | 0x2 << 62 | _random.getrandbits(62))


def uuid7_in(partition: int, partitions: int) -> UUID:
    """Make a UUIDv7 whose bytes determine `partition`. Cheaper than `fit(uuid7(), ...)`."""
    if partitions == 1:
        return uuid7()
    tick = _take_ticks(1)
    middle = tick >> 12 << 64 | 0x7 << 60 | (tick & 0xFFF) << 48
    head = middle | 0x2 << 46 | _random.getrandbits(46)
    tail = _tail_for(head.to_bytes(14), _random.getrandbits(16), partition, partitions)
    return _uuid(head << 16 | tail)


def mint_many(count: int, partition: int = 0, partitions: int = 1) -> list[UUID | str]:
    """Make UUIDs for many executions in one partition, as 32 digits each.

    As with `uuid7`, each UUID is greater than the one before it. The bytes of a UUID determine its
    partition, so a bare UUID is enough to find the execution.
    """
    first = _take_ticks(count)
    ticks = range(first, first + count)
    if partitions > 1:
        return _mint_many_in(ticks, partition, partitions)
    # Draw all random tails at once, and set the two variant bits at the start of each.
    tails = _random.getrandbits(64 * count) & int.from_bytes(_RANDOM_BITS * count)
    digits = (tails | int.from_bytes(_VARIANT_BITS * count)).to_bytes(8 * count).hex()
    return [
        f"{tick >> 12:012x}7{tick & 0xFFF:03x}{digits[start : start + 16]}"
        for tick, start in zip(ticks, range(0, 16 * count, 16), strict=True)
    ]


def _mint_many_in(ticks: range, partition: int, partitions: int) -> list[UUID | str]:
    """Make one UUID in the partition for each tick (a millisecond and a counter).

    The UUIDs share 46 random bits, and their last two bytes are computed. The risk that two
    processes make the same UUID is as low as with 62 random bits for each UUID.
    """
    middle = 0x2 << 46 | _random.getrandbits(46)
    choice = _random.getrandbits(16)
    added = _added_by_counter()
    found: list[UUID | str] = []
    while ticks:
        millisecond = ticks[0] >> 12
        number = (millisecond + 1 << 12) - ticks[0]
        now, ticks = ticks[:number], ticks[number:]
        # A checksum is linear: within a millisecond, only the part that the counter adds changes.
        head = millisecond << 64 | middle
        end = _tail_for(head.to_bytes(14), choice, partition, partitions)
        start, digits = f"{millisecond:012x}7", f"{middle:012x}"
        found += [
            f"{start}{tick & 0xFFF:03x}{digits}{end ^ added[tick & 0xFFF]:04x}" for tick in now
        ]
    return found


@cache
def _added_by_counter() -> list[int]:
    """Return, for each counter, what it and the version add (XOR) to the checksum of a UUIDv7.

    The last two bytes of the UUID are not part of this checksum.
    """
    return [crc_hqx((0x7000 | counter).to_bytes(2) + bytes(6), 0) for counter in range(1 << 12)]


def _take_ticks(count: int) -> int:
    """Take consecutive ticks for UUIDs, and return the first.

    A tick is a millisecond and a counter of 12 bits. No tick is taken twice. When the counters of
    a millisecond are used up, the counters of the next millisecond are taken.
    """
    global _last
    with _lock:
        now = time.time_ns() // 1_000_000
        last = _last
        if now > last >> 12:
            last = now << 12 | _random.getrandbits(11)
        _last = last + count
    return last + 1


def _uuid(number: int) -> UUID:
    """Return `UUID(int=number)`, but skip its checks, which halves the cost."""
    uuid = _new_uuid(UUID)
    _set(uuid, "int", number)
    _set(uuid, "is_safe", SafeUUID.unknown)
    return uuid


_EXAMPLE = "0190b5c2-7a3e-7c11-9d2e-3f5a6b7c8d9e"
ID_FORMS = f"such as {_EXAMPLE}, or at least its last {MIN_SUFFIX} digits"
# The engine stores partitions as signed 16-bit numbers.
_MAX_PARTITION = 32_767


def parse_id(text: str) -> str:
    """Refuse a text that does not look like an id; return any other text unchanged."""
    if is_suffix(text) or bare_uuid(text):
        return text
    try:
        id = ExecutionId.parse(text)
    except InvalidId as error:
        raise InvalidInput(
            field="ID", problem=f"{text[:80]!r} is not an id; give one {ID_FORMS}"
        ) from error
    if id.partition_key > _MAX_PARTITION:
        raise InvalidInput(
            field="ID", problem=f"{text!r}: the highest partition is {_MAX_PARTITION}"
        )
    return text
