"""Ids of executions and flows. An id carries its partition, so no caller computes it again."""

from __future__ import annotations

import os
import random
import re
import threading
import time
from binascii import crc_hqx
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, ClassVar, Self, TypeAlias
from uuid import UUID, SafeUUID

from flowfabric.core.errors import InvalidPartitionIndex, InvalidUuid, MissingTag

_UUID = re.compile(
    r"[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}"
)
_SUFFIX = re.compile(r"[0-9a-fA-F-]+")
_WHOLE = re.compile(r"\{fp:[0-9]+\}:(?=[0-9a-f]{8}-)")
MAX_PARTITION = 65535
# The fewest digits that name an execution or a flow by the end of its UUID.
MIN_SUFFIX = 8

# An id as users give it: whole (`{fp:0}:uuid`), or the UUID alone, whose partition is found.
AnyId: TypeAlias = str | UUID

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class PartitionedId(str):
    """`{fp:N}:uuid`, canonical: a lower-case UUID with hyphens, N without sign or leading zeros."""

    __slots__ = ("partition_key", "uuid")

    _field: ClassVar[str]

    partition_key: int
    uuid: UUID

    @classmethod
    def of(cls, partition: int, uuid: UUID) -> Self:
        self = str.__new__(cls, f"{{fp:{partition}}}:{uuid!s}")
        # Stored beside the text because every call to the engine needs both.
        self.partition_key = partition
        self.uuid = uuid
        return self

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an id in any spelling, or raise `MissingTag`, `InvalidPartitionIndex` or
        `InvalidUuid`."""
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
    """Return the UUID of an id that is a UUID alone; None if it is anything else."""
    if isinstance(id, UUID):
        return id
    return UUID(id) if isinstance(id, str) and _UUID.fullmatch(id) else None


def as_uuid(uuid: UUID | str) -> UUID:
    """Return a UUID that may be given as text."""
    return uuid if isinstance(uuid, UUID) else UUID(uuid)


def is_suffix(text: str) -> bool:
    """Return whether a text can be the end of a UUID: 8 to 31 digits, hyphens apart."""
    digits = len(text.replace("-", ""))
    return _SUFFIX.fullmatch(text) is not None and MIN_SUFFIX <= digits < 32


def with_bare_ids(text: str) -> str:
    """Return a sentence for people: each whole id in it becomes its UUID."""
    return _WHOLE.sub("", text)


class ExecutionId(PartitionedId):
    """The id of an execution."""

    __slots__ = ()

    _field = "execution_id"


class FlowId(PartitionedId):
    """The id of a flow. Its members live in its partition."""

    __slots__ = ()

    _field = "flow_id"


def noun_of(kind: type[PartitionedId]) -> str:
    """Return what ids of a type name: `execution` or `flow`."""
    return "flow" if issubclass(kind, FlowId) else "execution"


def partition_of(data: bytes, partitions: int) -> int:
    """Return the partition of bytes: CRC-16/XMODEM, the same in every client."""
    if partitions < 1:
        raise ValueError(f"partitions must be at least 1, not {partitions}")
    return crc_hqx(data, 0) % partitions


def mint(partitions: int = 1) -> ExecutionId:
    """Make an id for an execution that belongs to nothing else. Its own bytes choose the
    partition."""
    uuid = uuid7()
    partition = 0 if partitions == 1 else partition_of(uuid.bytes, partitions)
    return ExecutionId.of(partition, uuid)


def key_partition(namespace: str, key: str, partitions: int = 1) -> int:
    """Return the partition of an idempotency key."""
    return partition_of(f"{namespace}\x00{key}".encode(), partitions)


def mint_for_key(namespace: str, key: str, partitions: int = 1) -> ExecutionId:
    """Make an id in the partition of its idempotency key, where duplicates are found."""
    return ExecutionId.of(key_partition(namespace, key, partitions), uuid7())


def mint_flow(partitions: int = 1) -> FlowId:
    """Make an id for a flow. Its own bytes choose the partition."""
    uuid = uuid7()
    partition = 0 if partitions == 1 else partition_of(uuid.bytes, partitions)
    return FlowId.of(partition, uuid)


def mint_in(partition: int) -> ExecutionId:
    """Make an id in a given partition, for example the partition of a flow."""
    return ExecutionId.of(partition, uuid7())


def child_id(
    parent: ExecutionId, replay_count: int, name: str, occurrence: int, generation: int = 0
) -> ExecutionId:
    """Return the id of a child: the same id for the same step of the same life of its parent.

    A restarted handler finds the children it submitted before; a replayed one submits others, and
    so does one that was continued with new input.
    """
    identity = b"".join(
        (parent.uuid.bytes, replay_count.to_bytes(8), occurrence.to_bytes(8), name.encode())
    )
    millisecond = parent.uuid.int >> 80
    kind = f"child of {generation}".encode() if generation else b"child"
    return ExecutionId.of(parent.partition_key, _derived(millisecond, kind, identity))


def firing_id(schedule_id: UUID, at: datetime, partitions: int = 1) -> ExecutionId:
    """Return the id of a schedule's firing at one time: the same id whichever process fires."""
    partition = 0 if partitions == 1 else partition_of(schedule_id.bytes, partitions)
    microsecond = (at - _EPOCH) // timedelta(microseconds=1)
    identity = schedule_id.bytes + microsecond.to_bytes(8, signed=True)
    millisecond = min(max(microsecond // 1000, 0), (1 << 48) - 1)
    return ExecutionId.of(partition, _derived(millisecond, b"firing", identity))


def mint_for_schedule(schedule_id: UUID, partitions: int = 1) -> ExecutionId:
    """Make an id for an extra firing of a schedule, in the partition of its other firings."""
    partition = 0 if partitions == 1 else partition_of(schedule_id.bytes, partitions)
    return ExecutionId.of(partition, uuid7())


def _derived(millisecond: int, kind: bytes, identity: bytes) -> UUID:
    """Return a UUIDv8 (RFC 9562): a time, as in all our ids, then a digest of the identity."""
    digest = int.from_bytes(sha256(kind + b"\x00" + identity).digest()[:10])
    middle, tail = digest >> 68, digest & ((1 << 62) - 1)
    return UUID(int=millisecond << 80 | 0x8 << 76 | middle << 64 | 0x2 << 62 | tail)


# Ids must be unique, not secret: our own generator is ten times cheaper than the system's. A child
# process reseeds it, so it does not repeat its parent's numbers.
_random = random.Random(os.urandom(32))
os.register_at_fork(after_in_child=lambda: _random.seed(os.urandom(32)))
_last = (0, 0)
_lock = threading.Lock()
_RANDOM_BITS = ((1 << 62) - 1).to_bytes(8)
_VARIANT_BITS = (0x2 << 62).to_bytes(8)
_new_uuid = UUID.__new__
_set = object.__setattr__


def uuid7() -> UUID:
    """Make a UUIDv7 (RFC 9562). It rises within this process, even inside one millisecond."""
    global _last
    with _lock:
        now = time.time_ns() // 1_000_000
        millisecond, counter = _last
        if now > millisecond:
            millisecond, counter = now, _random.getrandbits(11)
        else:
            counter += 1
            if counter > 0xFFF:
                millisecond, counter = millisecond + 1, 0
        _last = (millisecond, counter)
    tail = _random.getrandbits(62)
    return _uuid(millisecond << 80 | 0x7 << 76 | counter << 64 | 0x2 << 62 | tail)


def mint_many(count: int) -> list[UUID | str]:
    """Make the UUIDs of many executions in partition 0, as 32 digits each. They rise as those of
    `uuid7` do."""
    global _last
    with _lock:
        now = time.time_ns() // 1_000_000
        millisecond, counter = _last
        if now > millisecond:
            millisecond, counter = now, _random.getrandbits(11)
        first = (millisecond << 12 | counter) + 1
        last = first + count - 1
        _last = (last >> 12, last & 0xFFF)
    # All random tails at once; the two bits of the variant stand at the head of each.
    tails = _random.getrandbits(64 * count) & int.from_bytes(_RANDOM_BITS * count)
    digits = (tails | int.from_bytes(_VARIANT_BITS * count)).to_bytes(8 * count).hex()
    return [
        f"{place >> 12:012x}7{place & 0xFFF:03x}{digits[start : start + 16]}"
        for place, start in zip(range(first, last + 1), range(0, 16 * count, 16), strict=True)
    ]


def _uuid(number: int) -> UUID:
    """Return `UUID(int=number)` without its checks, at half the cost."""
    uuid = _new_uuid(UUID)
    _set(uuid, "int", number)
    _set(uuid, "is_safe", SafeUUID.unknown)
    return uuid
