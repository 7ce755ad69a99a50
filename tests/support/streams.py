"""Streams in tests of the engine: append chunks of frames, and read them as a reader would."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from .factories import Engine, Lease

Id = tuple[int, int]
START: Id = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Frames of one mode for one call."""

    lease: Lease
    frames: Sequence[bytes | None] = (b"x",)
    no: int | None = 0
    mode: str | None = "durable"
    base: int | None = 0
    position: int | None = None
    kind: str | None = "text"
    encoding: str | None = "text"
    correlation_id: str | None = None
    ttl: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Appended:
    """The answer for one chunk."""

    word: str
    last_no: int | None
    id: Id | None
    frame_count: int | None
    summary_version: int | None
    detail: Any


@dataclass(frozen=True, slots=True)
class StreamFrame:
    """One frame as it is read. `to` is the target of a rewind."""

    id: Id
    payload: bytes | None
    mode: str
    kind: str | None = None
    attempt_index: int = 0
    to: Id | None = None


@dataclass(slots=True)
class StreamRead:
    """The answer for one stream."""

    word: str
    is_ended: bool | None = None
    closed_at: datetime | None = None
    close_reason: str | None = None
    floor: Id | None = None
    last: Id | None = None
    frame_count: int | None = None
    frames: list[StreamFrame] = field(default_factory=list)

    @property
    def payloads(self) -> list[bytes | None]:
        return [one.payload for one in self.frames if one.mode != "rewind"]

    @property
    def rewinds(self) -> list[Id | None]:
        return [one.to for one in self.frames if one.mode == "rewind"]

    @property
    def valid(self) -> list[bytes | None]:
        """The payloads that a reader has in the end, if it obeys the rewinds."""
        kept: list[StreamFrame] = []
        for one in self.frames:
            if one.to is not None:
                kept = [frame for frame in kept if frame.id <= one.to]
            else:
                kept.append(one)
        return [one.payload for one in kept]


async def append(engine: Engine, lease: Lease, *frames: bytes, **given: Any) -> Appended:
    """Append one chunk."""
    chunk = Chunk(lease=lease, frames=frames or (b"x",), **given)
    return (await append_many(engine, [chunk]))[0]


async def append_many(engine: Engine, chunks: Sequence[Chunk]) -> list[Appended]:
    """Append several chunks with one call. Every chunk must be answered once."""
    flat = [(chunk, payload) for chunk in chunks for payload in chunk.frames]
    rows = await engine.connection.fetch(
        "select * from ff.append_frames("
        "p_partition_key => $1, p_namespace => $2, p_execution_ids => $3::uuid[], "
        "p_lease_ids => $4::uuid[], p_epochs => $5::bigint[], p_attempt_ids => $6::uuid[], "
        "p_bases => $7::integer[], p_positions => $8::integer[], p_modes => $9::text[], "
        "p_first_nos => $10::bigint[], p_counts => $11::integer[], p_payloads => $12::bytea[], "
        "p_kinds => $13::text[], p_encodings => $14::text[], p_correlation_ids => $15::text[], "
        "p_ttls => $16::interval[])",
        engine.partition_key,
        engine.namespace,
        [chunk.lease.execution_id for chunk in chunks],
        [chunk.lease.lease_id for chunk in chunks],
        [chunk.lease.epoch for chunk in chunks],
        [chunk.lease.attempt_id for chunk in chunks],
        [chunk.base for chunk in chunks],
        [chunk.base if chunk.position is None else chunk.position for chunk in chunks],
        [chunk.mode for chunk in chunks],
        [chunk.no for chunk in chunks],
        [len(chunk.frames) for chunk in chunks],
        [payload for _, payload in flat],
        [chunk.kind for chunk, _ in flat],
        [chunk.encoding for chunk, _ in flat],
        [chunk.correlation_id for chunk, _ in flat],
        [chunk.ttl for chunk in chunks],
    )
    assert sorted(row["item"] for row in rows) == list(range(1, len(chunks) + 1))
    return [
        Appended(
            row["outcome"],
            row["last_no"],
            None if row["last_ms"] is None else (row["last_ms"], row["last_seq"]),
            row["frame_count"],
            row["summary_version"],
            None if row["detail"] is None else json.loads(row["detail"]),
        )
        for row in sorted(rows, key=lambda row: row["item"])
    ]


async def read(engine: Engine, execution_id: UUID, after: Id = START, **given: Any) -> StreamRead:
    """Read one stream."""
    (found,) = await read_many(engine, [(execution_id, after)], **given)
    assert found is not None
    return found


async def read_many(
    engine: Engine,
    asked: Sequence[tuple[UUID, Id]],
    *,
    limit: int | None = 1000,
    with_best_effort: bool = True,
    changed: bool = False,
) -> list[StreamRead | None]:
    """Read several streams. A stream without a row is None."""
    rows = await engine.connection.fetch(
        "select * from ff.read_streams("
        "$1, $2, $3::uuid[], $4::bigint[], $5::integer[], $6, $7, $8)",
        engine.partition_key,
        engine.namespace,
        [id for id, _ in asked],
        [ms for _, (ms, _) in asked],
        [seq for _, (_, seq) in asked],
        limit,
        with_best_effort,
        changed,
    )
    found: list[StreamRead | None] = [None] * len(asked)
    for row in rows:
        place = row["item"] - 1
        stream = found[place]
        if row["ms"] is None:
            assert stream is None
            found[place] = StreamRead(
                row["outcome"],
                row["is_ended"],
                row["closed_at"],
                row["close_reason"],
                None if row["floor_ms"] is None else (row["floor_ms"], row["floor_seq"]),
                None if row["last_ms"] is None else (row["last_ms"], row["last_seq"]),
                row["frame_count"],
            )
            continue
        assert stream is not None
        if row["mode"] == "rewind":
            to = (row["to_ms"], row["to_seq"])
            stream.frames.append(
                StreamFrame((row["ms"], row["seq"]), None, "rewind", None, row["attempt_index"], to)
            )
        for i, (payload, kind) in enumerate(zip(row["payloads"], row["kinds"], strict=True)):
            id = (row["ms"], row["seq"] + i)
            if id > asked[place][1]:
                stream.frames.append(
                    StreamFrame(id, payload, row["mode"], kind, row["attempt_index"])
                )
    return found


async def summary(engine: Engine, execution_id: UUID) -> tuple[Any, int] | None:
    """Return the summary of an execution and its version."""
    row = await engine.connection.fetchrow(
        "select * from ff.read_summary($1, $2, $3)",
        engine.partition_key,
        engine.namespace,
        execution_id,
    )
    return None if row is None else (json.loads(row["document"]), row["version"])


async def stream_row(engine: Engine, execution_id: UUID) -> Any:
    return await engine.connection.fetchrow(
        "select * from ff.stream where execution_id = $1", execution_id
    )


async def expire_streams(engine: Engine, limit: int = 500) -> tuple[int, timedelta | None]:
    row = await engine.connection.fetchrow(
        "select * from ff.expire_streams($1, $2)", engine.partition_key, limit
    )
    assert row is not None
    return row["handled"], row["due_in"]
