"""Send frames: collect the frames of all handlers of a process, and store them with few calls.

Each lease has a queue of frames. About every 20 ms, the frames of all queues are stored, with one
call for each partition. If a queue has 64 KiB of frames, this happens sooner. A frame leaves its
queue when the database has stored the frame. The frames of a lease are numbered, so a call that is
repeated after a lost connection stores nothing twice.
"""

from __future__ import annotations

import asyncio
import threading
from base64 import b64encode
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import lru_cache
from hashlib import sha256
from itertools import groupby, islice
from time import monotonic
from typing import Any
from uuid import UUID

from flowfabric.core.errors import (
    FlowFabricError,
    RetryExhausted,
    StreamStalled,
    Unavailable,
)
from flowfabric.core.execution import Claimed
from flowfabric.core.stream import Chunk, OutgoingFrame
from flowfabric.telemetry import ENGINE_LOGGER

# A frame waits at most this long for more frames. If its queue holds this many bytes, it does not
# wait.
FLUSH_SECONDS = 0.02
FLUSH_BYTES = 65_536
# The most bytes and frames that a queue holds, and the longest time that a handler waits for space
# in it.
QUEUE_BYTES = 1_048_576
QUEUE_FRAMES = 10_000
STALL_SECONDS = 30.0
# The most frames and bytes of one queue in one call.
CALL_FRAMES = 2_000
CALL_BYTES = 262_144
# The most chunks in one call, and the most bytes of all queues in one round of calls.
CALL_CHUNKS = 1_000
TOTAL_BYTES = 8_388_608
# The pause before another try when the database cannot be reached.
OUTAGE_SECONDS = 0.5
# A hint names at most this many streams with new frames. If there are more, the hint says so.
HINTED_STREAMS = 300

Answer = FlowFabricError | None


class FrameQueue:
    """The frames of one lease that are not stored yet. Any thread can put frames into the queue."""

    def __init__(self, sender: FrameSender, claimed: Claimed, base: int) -> None:
        self.claimed = claimed
        # How many journal entries there were when the run of the handler began.
        self.base = base
        self._sender = sender
        self._lock = threading.Lock()
        self._frames: deque[OutgoingFrame] = deque()
        # The number of the first frame in the queue.
        self._first_no = 0
        self._bytes = 0
        self._error: BaseException | None = None
        self._is_closed = False
        # Callers that wait for space, or until frames up to a number are stored.
        self._waiting: list[tuple[int | None, asyncio.Future[None]]] = []

    @property
    def is_empty(self) -> bool:
        return not self._frames

    @property
    def is_finished(self) -> bool:
        """Whether the queue is empty and takes no more frames."""
        return self._error is not None or (self._is_closed and not self._frames)

    def put_nowait(self, frame: OutgoingFrame) -> bool:
        """Put a frame into the queue. Return False if the queue is full."""
        size = len(frame.payload)
        with self._lock:
            self._check()
            if self._frames and (
                self._bytes + size > QUEUE_BYTES or len(self._frames) >= QUEUE_FRAMES
            ):
                return False
            is_first = not self._frames
            was_small = self._bytes < FLUSH_BYTES
            self._frames.append(frame)
            self._bytes += size
            is_urgent = was_small and self._bytes >= FLUSH_BYTES
        if is_first or is_urgent:
            self._sender.notice(self, is_urgent=is_urgent)
        return True

    async def put(self, frame: OutgoingFrame) -> None:
        """Put a frame into the queue; wait while the queue is full."""
        if self.put_nowait(frame):
            return
        try:
            async with asyncio.timeout(STALL_SECONDS):
                while not self.put_nowait(frame):
                    await self._wait(None)
        except TimeoutError:
            raise StreamStalled(
                f"The stream of {self.claimed.id} could not store {QUEUE_BYTES:,} bytes in "
                f"{STALL_SECONDS:g} s. Send less, or look at the database.",
                execution_id=self.claimed.id,
            ) from None

    async def flush(self) -> None:
        """Wait until all frames now in the queue are stored."""
        with self._lock:
            if not self._frames and self._error is None:
                return
            self._check_error()
            last_no = self._first_no + len(self._frames) - 1
        self._sender.notice(self, is_urgent=True)
        await self._wait(last_no)

    def close(self) -> None:
        """Take no more frames. The frames in the queue are still stored."""
        self._is_closed = True

    def fail(self, error: BaseException) -> None:
        """Drop all frames, because they cannot be stored.

        Callers that wait now, and all later callers, get `error`.
        """
        with self._lock:
            self._error = error
            self._frames.clear()
            self._bytes = 0
            waiting, self._waiting = self._waiting, []
        for _, future in waiting:
            if not future.done():
                future.set_exception(error)

    def take(self) -> list[Chunk]:
        """Return the next frames as chunks. They stay in the queue until `stored` removes them."""
        with self._lock:
            taken: list[OutgoingFrame] = []
            size = 0
            for frame in islice(self._frames, CALL_FRAMES):
                size += len(frame.payload)
                if taken and size > CALL_BYTES:
                    break
                taken.append(frame)
            number = self._first_no
        chunks = []
        for _, alike in groupby(taken, key=lambda one: (one.mode, one.position, one.ttl)):
            frames = list(alike)
            chunks.append(Chunk(frames, number))
            number += len(frames)
        return chunks

    def stored(self, last_no: int) -> None:
        """Remove the frames with numbers up to `last_no` from the queue: they are stored."""
        with self._lock:
            while self._frames and self._first_no <= last_no:
                self._bytes -= len(self._frames.popleft().payload)
                self._first_no += 1
            done = [one for one in self._waiting if one[0] is None or one[0] < self._first_no]
            self._waiting = [one for one in self._waiting if one not in done]
        for _, future in done:
            if not future.done():
                future.set_result(None)

    async def _wait(self, last_no: int | None) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._check_error()
            if last_no is not None and last_no < self._first_no:
                return
            self._waiting.append((last_no, future))
        await future

    def _check(self) -> None:
        self._check_error()
        if self._is_closed:
            raise RuntimeError("the handler of this stream has ended: nothing can be sent")

    def _check_error(self) -> None:
        if self._error is not None:
            raise self._error


Store = Callable[[int, Sequence[tuple[FrameQueue, Chunk]]], Awaitable[Sequence[Answer]]]
Hint = Callable[[str], Coroutine[Any, Any, None]]


class FrameSender:
    """Stores the frames in the frame queues of all leases of a process."""

    def __init__(self, store: Store, hint: Hint) -> None:
        self._store = store
        self._hint = hint
        self._queues: dict[Claimed, FrameQueue] = {}
        self._pending: dict[FrameQueue, None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._urgent = asyncio.Event()
        self._hints: set[asyncio.Task[None]] = set()
        self._opening: dict[Claimed, asyncio.Task[None]] = {}
        self._due = 0.0

    def queue(self, claimed: Claimed, base: int) -> FrameQueue:
        """Return the frame queue of a lease. Make the queue if there is none."""
        self._loop = asyncio.get_running_loop()
        queue = self._queues.get(claimed)
        if queue is None:
            queue = self._queues[claimed] = FrameQueue(self, claimed, base)
        return queue

    def open_later(self, claimed: Claimed, opening: asyncio.Task[None]) -> None:
        """Remember the asyncio task that makes the queue of a lease. `flush` waits for it."""
        self._opening[claimed] = opening
        opening.add_done_callback(lambda _: self._opening.pop(claimed, None))

    def is_sending(self, claimed: Claimed) -> bool:
        return claimed in self._queues or claimed in self._opening

    async def flush(self, claimed: Claimed) -> None:
        """Wait until all frames of a lease are stored."""
        if (opening := self._opening.get(claimed)) is not None:
            await asyncio.wait([opening])
        if (queue := self._queues.get(claimed)) is not None:
            await queue.flush()

    def close_queue(self, claimed: Claimed, *, is_lost: bool) -> None:
        """Take no more frames of a lease. If the lease is lost, drop the frames not stored yet."""
        if (queue := self._queues.get(claimed)) is None:
            return
        queue.close()
        if is_lost:
            queue.fail(Unavailable("The lease of this stream is lost."))
        if queue.is_finished:
            del self._queues[claimed]
            self._pending.pop(queue, None)

    def notice(self, queue: FrameQueue, *, is_urgent: bool) -> None:
        """Arrange that the frames of a queue are stored: in about 20 ms, or now if `is_urgent`.

        Any thread can call this.
        """
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        try:
            if asyncio.get_running_loop() is loop:
                self._notice(queue, is_urgent)
                return
        except RuntimeError:
            pass  # a thread without an event loop
        loop.call_soon_threadsafe(self._notice, queue, is_urgent)

    async def close(self) -> None:
        """Store the remaining frames, and stop. Drop the frames that are not stored within 5 s."""
        if self._task is not None:
            self._urgent.set()
            await asyncio.wait([self._task], timeout=5)
            if self._task is not None:
                self._task.cancel()
                await asyncio.wait([self._task])
        for queue in [*self._queues.values()]:
            queue.fail(Unavailable("The client is closed."))
        self._queues.clear()
        if self._hints:
            await asyncio.wait(self._hints)

    def _notice(self, queue: FrameQueue, is_urgent: bool) -> None:
        if queue.claimed not in self._queues:
            return
        if not self._pending:
            self._due = monotonic() + FLUSH_SECONDS
        self._pending[queue] = None
        if is_urgent:
            self._urgent.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._pending:
                if not self._urgent.is_set() and (pause := self._due - monotonic()) > 0:
                    try:
                        async with asyncio.timeout(pause):
                            await self._urgent.wait()
                    except TimeoutError:
                        pass
                self._urgent.clear()
                pending, self._pending = list(self._pending), {}
                self._due = monotonic() + FLUSH_SECONDS
                await self._flush(pending)
        except BaseException as error:
            # The frames cannot be stored any more: tell the callers that wait.
            for queue in [*self._queues.values()]:
                queue.fail(Unavailable(f"The frames were not stored: {error!r}"))
            raise
        finally:
            self._task = None

    async def _flush(self, queues: Sequence[FrameQueue]) -> None:
        """Store the next frames of the given queues, with one call for each partition."""
        batches: dict[int, list[tuple[FrameQueue, Chunk]]] = {}
        size = 0
        for queue in queues:
            if queue.is_empty:
                continue
            batch = batches.setdefault(queue.claimed.partition_key, [])
            chunks = queue.take()
            size += sum(len(frame.payload) for chunk in chunks for frame in chunk.frames)
            if batch and (len(batch) + len(chunks) > CALL_CHUNKS or size > TOTAL_BYTES):
                self._again(queue)
                continue
            batch.extend((queue, chunk) for chunk in chunks[:CALL_CHUNKS])
        await asyncio.gather(*(self._send(*batch) for batch in batches.items() if batch[1]))

    async def _send(self, partition: int, batch: Sequence[tuple[FrameQueue, Chunk]]) -> None:
        try:
            answers = await self._store(partition, batch)
        except Unavailable as error:
            ENGINE_LOGGER.info("frames not stored, trying again: %s", error)
            await asyncio.sleep(OUTAGE_SECONDS)
            for queue, _ in batch:
                self._again(queue)
            return
        except FlowFabricError as error:
            for queue, _ in batch:
                queue.fail(error)
            return
        hinted: dict[UUID, None] = {}
        refused: set[FrameQueue] = set()
        for (queue, chunk), answer in zip(batch, answers, strict=True):
            if queue in refused:
                continue
            if answer is None:
                queue.stored(chunk.first_no + len(chunk.frames) - 1)
                hinted[queue.claimed.execution_id] = None
            else:
                refused.add(queue)
                if not isinstance(answer, RetryExhausted):
                    queue.fail(answer)
        for queue in {queue: None for queue, _ in batch}:
            if not queue.is_empty:
                self._again(queue)
            elif queue.is_finished:
                self._queues.pop(queue.claimed, None)
        if hinted:
            task = asyncio.create_task(self._hint(pack_hint(partition, hinted)))
            self._hints.add(task)
            task.add_done_callback(self._hints.discard)

    def _again(self, queue: FrameQueue) -> None:
        if queue.claimed in self._queues and not queue.is_empty:
            self._pending[queue] = None


def pack_hint(partition: int, ids: Iterable[UUID]) -> str:
    """Return the text of a hint. It says which streams of a partition have new frames."""
    several = list(ids)
    if len(several) > HINTED_STREAMS:
        return f"{partition} *"
    return f"{partition} {''.join(map(hint_of, several))}"


@lru_cache(maxsize=4096)  # a stream gets up to 50 hints a second
def hint_of(id: UUID) -> str:
    """Return the text that stands for a stream in a hint: a digest of the id of its execution.

    Every login of the database can listen to hints, so a hint must not reveal an id. If two ids
    have the same digest, a hint also wakes the readers of a stream that has nothing new. This does
    no harm.
    """
    return b64encode(sha256(id.bytes).digest()[:9]).decode()
