"""Streams: the frames that a running execution sends, and the items that a reader gets."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Generic, TypeAlias, TypeVar

from flowfabric.core.errors import InvalidInput, PayloadTooLarge
from flowfabric.core.execution import check_text
from flowfabric.core.states import StreamMode

T_co = TypeVar("T_co", covariant=True)

MAX_FRAME_BYTES = 65_536
MAX_KIND_BYTES = 64
MAX_CORRELATION_BYTES = 256
MAX_PATCH_DEPTH = 16
# A value that is nested deeper is returned as text, because programs that show it could run out of
# stack.
MAX_VALUE_DEPTH = 200
# In a summary patch this text stands for a null, because a real null deletes its key.
NULL = "__ff_null__"
_ID = re.compile(r"(\d{1,18})-(\d{1,9})")

# The time and the number that make up the id of a frame.
Position: TypeAlias = tuple[int, int]
START: Position = (0, 0)


class FrameEncoding(StrEnum):
    """The encoding of the bytes of a frame."""

    TEXT = "text"
    JSON = "json"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True, eq=False)
class OutgoingFrame:
    """A frame that a handler sends. `position` is the number of journal entries before it."""

    payload: bytes = field(repr=False)
    encoding: FrameEncoding
    kind: str
    mode: StreamMode = StreamMode.DURABLE
    position: int = 0
    correlation_id: str | None = None
    ttl: timedelta | None = None

    def check(self) -> None:
        """Refuse invalid fields, as the engine would. The error names the field."""
        if len(self.payload) > MAX_FRAME_BYTES:
            raise PayloadTooLarge(
                field="value",
                problem=f"of this frame is {len(self.payload)} bytes; at most {MAX_FRAME_BYTES} "
                "(64 KiB) are allowed. Split it, or store it elsewhere and send a reference",
            )
        check_text("kind", self.kind, MAX_KIND_BYTES)
        if self.correlation_id is not None:
            check_text("correlation_id", self.correlation_id, MAX_CORRELATION_BYTES)
        if self.ttl is not None and not timedelta(0) < self.ttl <= timedelta(days=1):
            raise InvalidInput(field="ttl", problem="must be more than 0 and at most a day")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive frames that are stored as one row.

    All frames of a chunk have the same mode, the same ttl and the same position. `first_no` is the
    number of the first frame.
    """

    frames: list[OutgoingFrame]
    first_no: int


@dataclass(frozen=True, slots=True)
class Frame(Generic[T_co]):
    """One frame of a stream.

    `data` is the text, the bytes or the JSON value that was sent. `text` is the payload as text.
    `id` rises with every frame of the execution. To read on after this frame, pass it as `since`.
    """

    id: str
    kind: str
    mode: StreamMode
    payload: bytes = field(repr=False)
    encoding: FrameEncoding
    sent_at: datetime
    # The number of the attempt that sent it, from 1.
    attempt: int
    data: T_co
    correlation_id: str | None = None
    # The version of the summary after this frame. Only summary frames have it.
    summary_version: int | None = None

    @property
    def text(self) -> str:
        return self.payload.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Rewind:
    """The handler has started again and sends frames again: forget all frames after the id `to`.

    If no earlier frame stays valid, `to` is 0-0.
    """

    id: str
    to: str
    attempt: int

    def keeps(self, frame: Frame[Any]) -> bool:
        """Return whether an earlier frame is still valid."""
        return parse_id(frame.id) <= parse_id(self.to)


@dataclass(frozen=True, slots=True)
class Truncated:
    """Durable frames were removed before you read them. All of them have an id below `before`."""

    before: str


@dataclass(frozen=True, slots=True)
class Summary:
    """The summary of an execution: the document that its summary frames have built."""

    document: dict[str, Any]
    version: int
    first_applied_at: datetime
    updated_at: datetime


def format_id(position: Position) -> str:
    """Return the id that consists of a time and a number: `1731844800000-0`."""
    return f"{position[0]}-{position[1]}"


def parse_id(id: str | None, field: str = "since") -> Position:
    """Return the time and the number in the id of a frame, or (0, 0) for None."""
    if id is None:
        return START
    if not isinstance(id, str) or (match := _ID.fullmatch(id)) is None:
        raise InvalidInput(
            field=field, problem=f"{id!r} is not the id of a frame, such as 1731844800000-0"
        )
    return int(match[1]), int(match[2])


def patch_problem(payload: bytes) -> str | None:
    """Return what is wrong with a summary patch, or None if the patch is valid."""
    try:
        patch = json.loads(payload)
    except (ValueError, RecursionError):
        return "must be JSON"
    if not isinstance(patch, dict):
        return "must be an object: a JSON merge patch"
    if depth(patch) > MAX_PATCH_DEPTH:
        return f"patch_depth_exceeded: must be nested at most {MAX_PATCH_DEPTH} deep"
    if b"\\u0000" in payload and _has_null_character(patch):
        return "must not contain the character U+0000"
    return None


def depth(value: Any) -> int:
    """Return how deep objects and lists are nested in a value: 0 for a text or a number."""
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0)
    return 0


def _has_null_character(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any(_has_null_character(one) for entry in value.items() for one in entry)
    return isinstance(value, list) and any(map(_has_null_character, value))
