"""Streams: append frames under a lease, follow streams, and read summaries."""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple, NoReturn, TypeAlias

from flowfabric.client.addresses import Scoped, address, lease_addresses
from flowfabric.client.events import STREAM_CHANNEL, wanted_texts
from flowfabric.client.frames import Answer, FrameQueue, FrameSender, hint_of, pack_hint
from flowfabric.client.outcomes import Pass, refusal
from flowfabric.client.reconciler_passes import Due, handle_everywhere
from flowfabric.client.results import Results
from flowfabric.core.attempts import attempt_number
from flowfabric.core.errors import (
    ExecutionNotFound,
    FlowFabricError,
    RetryExhausted,
    Unavailable,
)
from flowfabric.core.execution import Claimed
from flowfabric.core.ids import AnyId, ExecutionId
from flowfabric.core.states import StreamMode
from flowfabric.core.stream import (
    MAX_VALUE_DEPTH,
    Chunk,
    Frame,
    FrameEncoding,
    Position,
    Rewind,
    Summary,
    Truncated,
    depth,
    format_id,
    parse_id,
)
from flowfabric.db import functions
from flowfabric.db.session import Database
from flowfabric.telemetry import ENGINE_LOGGER

StreamItem: TypeAlias = Frame[Any] | Rewind | Truncated

# How often all streams are read without a hint, and the shortest time between two reads.
POLL_SECONDS = 1.0
LEAST_SECONDS = 0.005
_PARTITION = re.compile(r"[0-9]{1,5}")
# How many streams one call reads, and how many frames of each.
BATCH = 1000
PAGE_FRAMES = 1000
# The most queries for one page of a reader that wants only some kinds.
MOST_READS = 10
# How long a call may repeat a write after a lost connection.
PATIENCE_SECONDS = 60.0


class StreamPage(NamedTuple):
    """A page of a stream, whether it is the last one, and the cursor after it."""

    items: list[StreamItem]
    is_ended: bool
    cursor: str | None


class Tail:
    """One reader of one stream: its position, and the items to give to it next."""

    __slots__ = (
        "after",
        "error",
        "floor",
        "hint",
        "id",
        "is_ended",
        "is_hinted",
        "items",
        "ready",
        "with_best_effort",
    )

    def __init__(self, id: ExecutionId, after: Position, with_best_effort: bool) -> None:
        self.id = id
        self.hint = hint_of(id.uuid)
        self.after = after
        self.with_best_effort = with_best_effort
        self.floor: Position = (0, 0)
        self.items: deque[StreamItem] = deque()
        self.is_ended = False
        # Whether there may be something to read.
        self.is_hinted = True
        self.error: FlowFabricError | None = None
        self.ready = asyncio.Event()

    @property
    def is_done(self) -> bool:
        return self.is_ended or self.error is not None

    def fail(self, error: FlowFabricError) -> None:
        self.error = error
        self.ready.set()


class Streams(Scoped):
    """Operations on streams."""

    def __init__(self, database: Database, results: Results, namespace: str | None) -> None:
        super().__init__(database, namespace)
        self._results = results
        self.sender = FrameSender(self._store, self._hint)
        # The tails by partition, then by the text that names the stream in a hint.
        self._tails: dict[int, dict[str, list[Tail]]] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    async def close(self) -> None:
        self._is_closed = True
        await self.sender.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for tail in self._all_tails():
            tail.fail(Unavailable("The client is closed."))

    def is_sending(self, claimed: Claimed) -> bool:
        """Return whether frames that were sent under a lease are perhaps not stored yet."""
        return self.sender.is_sending(claimed)

    async def append(self, claimed: Claimed, chunk: Chunk, *, base: int = 0) -> None:
        """Store a chunk under a lease, and wait until it is stored. Skip frames that are already
        stored.
        """
        for frame in chunk.frames:
            frame.check()
        queue = FrameQueue(self.sender, claimed, base)
        for pause in (0.01, 0.05, 0.2, 0.5, None):
            (error,) = await self._store(claimed.partition_key, [(queue, chunk)])
            if error is None:
                await self._hint(pack_hint(claimed.partition_key, [claimed.execution_id]))
                return
            if not isinstance(error, RetryExhausted) or pause is None:
                raise error
            await asyncio.sleep(pause)

    async def flush(self, claimed: Claimed) -> None:
        """Wait until all frames that were sent under a lease are stored."""
        await self.sender.flush(claimed)

    async def summary(self, id: AnyId) -> Summary | None:
        """Return the summary of an execution; None if no summary frame was sent."""
        rows = await self._database.call(
            functions.READ_SUMMARY, **address(await self._execution(id), self._namespace)
        )
        if not rows:
            return None
        row = rows[0]
        return Summary(
            document=json.loads(row["document"]),
            version=row["version"],
            first_applied_at=row["first_applied_at"],
            updated_at=row["updated_at"],
        )

    async def read(
        self,
        id: AnyId,
        *,
        since: str | None = None,
        kinds: Collection[str] | None = None,
        with_best_effort: bool = True,
        limit: int = PAGE_FRAMES,
    ) -> StreamPage:
        """Return the frames after `since` that a stream has now, and whether the stream ends with
        them.

        A page has about `limit` frames at most. To get more, call again with the cursor of the page
        as `since`. If `kinds` is given, a page without frames may be followed by pages with frames,
        because one call looks only at a part of a long stream.
        """
        kinds = wanted_texts("kinds", kinds)
        tail = Tail(await self._execution(id), parse_id(since), with_best_effort)
        page = StreamPage([], False, since)
        for _ in range(MOST_READS):
            asked = limit if kinds is None else PAGE_FRAMES
            await self._read(tail.id.partition_key, [tail], limit=asked)
            if tail.error is not None:
                raise tail.error
            page = _page(tail, kinds, limit, page.cursor)
            if page.items or tail.is_ended or not tail.items:
                break
            tail.items.clear()
        return page

    async def follow(
        self,
        id: AnyId,
        *,
        since: str | None = None,
        kinds: Collection[str] | None = None,
        with_best_effort: bool = True,
    ) -> AsyncGenerator[StreamItem, None]:
        """Yield the frames of an execution after `since`: first the stored frames, then new frames
        until the execution has ended.

        All followers of one client share one connection.
        """
        if self._is_closed:
            raise Unavailable("The client is closed.")
        kinds = wanted_texts("kinds", kinds)
        tail = Tail(await self._execution(id), parse_id(since), with_best_effort)
        tails = self._tails.setdefault(tail.id.partition_key, {}).setdefault(tail.hint, [])
        tails.append(tail)
        self._start()
        try:
            while True:
                while tail.items:
                    item = tail.items.popleft()
                    if _is_asked(item, kinds):
                        yield item
                if tail.error is not None:
                    raise tail.error
                if tail.is_ended:
                    return
                tail.ready.clear()
                if tail.is_hinted:
                    self._wake.set()
                await tail.ready.wait()
        finally:
            tails.remove(tail)
            if not tails:
                group = self._tails[tail.id.partition_key]
                if group.get(tail.hint) is tails:
                    del group[tail.hint]

    async def expire(self, *, partition: int | None = None, limit: int = 500) -> Pass:
        """Remove the frames of expired streams. Summaries stay."""
        return await handle_everywhere(
            self._database, functions.EXPIRE_STREAMS, Due.STREAM, partition=partition, limit=limit
        )

    async def _store(
        self, _partition: int, batch: Sequence[tuple[FrameQueue, Chunk]]
    ) -> list[Answer]:
        """Append chunks of one partition. The answer None means that the chunk is stored."""
        flat = [frame for _, chunk in batch for frame in chunk.frames]
        firsts = [chunk.frames[0] for _, chunk in batch]
        rows = await self._database.call(
            functions.APPEND_FRAMES,
            **lease_addresses([queue.claimed for queue, _ in batch], self._namespace),
            bases=[queue.base for queue, _ in batch],
            positions=[first.position for first in firsts],
            modes=[first.mode.value for first in firsts],
            first_nos=[chunk.first_no for _, chunk in batch],
            counts=[len(chunk.frames) for _, chunk in batch],
            payloads=[frame.payload for frame in flat],
            kinds=[frame.kind for frame in flat],
            encodings=[frame.encoding.value for frame in flat],
            correlation_ids=(
                [frame.correlation_id for frame in flat]
                if any(frame.correlation_id for frame in flat)
                else None
            ),
            ttls=[first.ttl for first in firsts] if any(first.ttl for first in firsts) else None,
            patience=PATIENCE_SECONDS,
        )
        answers: list[Answer] = [None] * len(batch)
        for row in rows:
            if row["outcome"] != "appended":
                claimed = batch[row["item"] - 1][0].claimed
                answers[row["item"] - 1] = refusal(
                    row["outcome"], row["detail"], id=str(claimed.id)
                )
        for (_, chunk), answer in zip(batch, answers, strict=True):
            if answer is None:
                mode = chunk.frames[0].mode.value
                self._database.meter.count("flowfabric_frames", len(chunk.frames), mode=mode)
        return answers

    async def _hint(self, payload: str) -> None:
        try:
            await self._database.call(
                functions.HINT, channel=STREAM_CHANNEL, payload=payload, patience=0.0
            )
        except FlowFabricError as error:
            # A lost hint does no harm: readers also poll.
            ENGINE_LOGGER.debug("hint not sent: %s", error)

    # Following

    def _start(self) -> None:
        self._wake.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def _all_tails(self) -> list[Tail]:
        return [
            tail for group in self._tails.values() for tails in group.values() for tail in tails
        ]

    def _on_hint(self, payload: str | None) -> None:
        """Remember which streams have new frames. A payload of None means that hints may have
        been missed."""
        partition, _, packed = (payload or "").partition(" ")
        if not _PARTITION.fullmatch(partition) or packed == "*":
            for tail in self._all_tails():
                tail.is_hinted = True
            self._wake.set()
            return
        group = self._tails.get(int(partition), {})
        for start in range(0, len(packed), 12):
            for tail in group.get(packed[start : start + 12], ()):
                tail.is_hinted = True
                self._wake.set()

    async def _run(self) -> None:
        """Read streams until no tail is left.

        A stream is read after each hint for it, and also once a second, in case a hint was lost.
        """
        try:
            await self._results.follow(STREAM_CHANNEL, self._on_hint)
            polled_at = monotonic()
            while any(self._tails.values()):
                self._wake.clear()
                if monotonic() - polled_at >= POLL_SECONDS:
                    polled_at = monotonic()
                    for tail in self._all_tails():
                        tail.is_hinted = True
                await self._look()
                await asyncio.sleep(LEAST_SECONDS)
                try:
                    async with asyncio.timeout(max(polled_at + POLL_SECONDS - monotonic(), 0)):
                        await self._wake.wait()
                except TimeoutError:
                    pass
        except Exception as error:
            # No task reads for these tails from now on: tell the readers that wait.
            for tail in self._all_tails():
                tail.fail(Unavailable(f"The streams were not read: {error!r}"))
            raise
        finally:
            self._task = None
            self._results.unfollow(STREAM_CHANNEL)
            if any(self._tails.values()) and not self._is_closed:
                # A reader came after the last read: read for it, too.
                self._start()

    async def _look(self) -> None:
        for partition, tails in self._hungry():
            await self._read(partition, tails, is_following=True)

    def _hungry(self) -> Iterator[tuple[int, Sequence[Tail]]]:
        """Yield the tails that may have something to read, in groups that one call can read."""
        for partition, group in list(self._tails.items()):
            hungry = [
                tail
                for tails in group.values()
                for tail in tails
                if tail.is_hinted and not tail.items and not tail.is_done
            ]
            for with_best_effort in (True, False):
                asked = [tail for tail in hungry if tail.with_best_effort is with_best_effort]
                for start in range(0, len(asked), BATCH):
                    yield partition, asked[start : start + BATCH]

    async def _read(
        self,
        partition: int,
        tails: Sequence[Tail],
        *,
        limit: int = PAGE_FRAMES,
        is_following: bool = False,
    ) -> None:
        """Read the streams of several tails with one call."""
        for tail in tails:
            tail.is_hinted = False
        # Read on the connection that listens, so that readers need no second connection.
        session = self._results.own_session if is_following else None
        try:
            rows = await (session or self._database).call(
                functions.READ_STREAMS,
                partition_key=partition,
                namespace=self._namespace,
                execution_ids=[tail.id.uuid for tail in tails],
                after_ms=[tail.after[0] for tail in tails],
                after_seqs=[tail.after[1] for tail in tails],
                limit=limit,
                with_best_effort=tails[0].with_best_effort,
                changed=True,
            )
        except Unavailable as error:
            ENGINE_LOGGER.debug("streams not read, the next poll reads them: %s", error)
            return
        except FlowFabricError as error:
            for tail in tails:
                tail.fail(error)
            return
        ends: dict[Tail, Position] = {}
        for row in rows:
            tail = tails[row["item"] - 1]
            if tail.error is not None:
                continue
            if row["ms"] is None:
                if row["outcome"] == "not_found":
                    tail.fail(ExecutionNotFound(execution_id=tail.id))
                    continue
                _note_floor(tail, row)
                if row["is_ended"]:
                    ends[tail] = (row["last_ms"] or 0, row["last_seq"] or 0)
            else:
                try:
                    _add_chunk(tail, row)
                except ValueError as error:
                    # The function library in the database is newer: it has a mode or an encoding
                    # that this client does not know.
                    tail.fail(Unavailable(f"This version cannot read the stream: {error}"))
                tail.is_hinted = True  # there may be more
        for tail, last in ends.items():
            # If a limit has cut the answer, the stream has not ended here: read the rest next time.
            tail.is_ended = not tail.is_hinted or tail.after >= last
        for tail in tails:
            if tail.items or tail.is_done:
                tail.ready.set()


def _page(tail: Tail, kinds: Collection[str] | None, limit: int, cursor: str | None) -> StreamPage:
    """Choose the items of a page among the items that the tail has read."""
    found: list[StreamItem] = []
    for item in tail.items:
        if kinds is not None and len(found) >= limit:
            return StreamPage(found, False, cursor)
        if not isinstance(item, Truncated):
            cursor = item.id
        if _is_asked(item, kinds):
            found.append(item)
    return StreamPage(found, tail.is_ended, cursor)


def _is_asked(item: StreamItem, kinds: Collection[str] | None) -> bool:
    return kinds is None or not isinstance(item, Frame) or item.kind in kinds


def _note_floor(tail: Tail, row: Any) -> None:
    """Tell the reader if durable frames were removed before it could read them. Tell it once for
    each new floor.
    """
    if row["floor_ms"] is None:
        return
    floor = (row["floor_ms"], row["floor_seq"])
    ms, seq = tail.after
    if floor > tail.floor and tail.after < floor and (ms, seq + 1) != floor:
        tail.items.append(Truncated(before=format_id(floor)))
    tail.floor = max(floor, tail.floor)


def _add_chunk(tail: Tail, row: Any) -> None:
    ms, seq = row["ms"], row["seq"]
    attempt = attempt_number(row["attempt_index"])
    if row["mode"] == "rewind":
        to = format_id((row["to_ms"], row["to_seq"]))
        tail.items.append(Rewind(format_id((ms, seq)), to, attempt))
        tail.after = (ms, seq)
        return
    mode = StreamMode(row["mode"])
    size = len(row["payloads"])
    correlations = row["correlation_ids"] or [None] * size
    for i, (payload, kind, encoding, correlation_id) in enumerate(
        zip(row["payloads"], row["kinds"], row["encodings"], correlations, strict=True)
    ):
        position = (ms, seq + i)
        if position <= tail.after:
            continue
        tail.after = position
        tail.items.append(
            Frame(
                id=format_id(position),
                kind=kind,
                mode=mode,
                payload=payload,
                encoding=FrameEncoding(encoding),
                sent_at=row["appended_at"],
                attempt=attempt,
                data=read_data(payload, encoding),
                correlation_id=correlation_id,
                summary_version=(
                    row["mode_no"] - size + 1 + i if mode is StreamMode.SUMMARY else None
                ),
            )
        )


def read_data(payload: bytes, encoding: str) -> Any:
    """Return the value of a frame: parsed JSON, its text, or its bytes.

    The engine does not check the content of frames. If a frame is marked as JSON but is not valid
    JSON, or is nested very deeply, its text is returned, so that no reader fails.
    """
    if encoding == FrameEncoding.JSON:
        with suppress(ValueError, RecursionError):
            value = json.loads(payload, parse_constant=_refuse_constant)
            brackets = payload.count(b"[") + payload.count(b"{")
            if brackets <= MAX_VALUE_DEPTH or depth(value) <= MAX_VALUE_DEPTH:
                return value
    return payload if encoding == FrameEncoding.BYTES else payload.decode("utf-8", "replace")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
