"""Group commit: send concurrent calls as one batch. A call that comes alone is sent at once.

Flushes (calls with a batch) run in a separate asyncio task. Therefore a cancelled caller cannot
cancel the statement that other callers wait for. If a caller is cancelled before its item was sent,
the item is not sent. While a flush is in flight, new items collect for the next batch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from random import uniform
from typing import Any, Generic, TypeAlias, TypeVar

from flowfabric.core.errors import InvalidInput, Unavailable

Item = TypeVar("Item")
Answer = TypeVar("Answer")

MAX_BATCH = 500
MAX_QUEUE = 20_000


# At most this many busy items of a batch are sent again one by one. A call for one item waits for
# its lock. If more items are busy, another call has locked many rows for a moment: send the items
# again together.
MAX_ALONE = 4
# How many times busy items are sent again together, before each is sent alone.
TRIES_TOGETHER = 5


class Busy:
    """The answer for an item whose row was locked. The batcher sends the item again."""


BUSY = Busy()

# A busy item is sent again for two seconds: after 5 ms at first, later every 0.1 s.
BUSY_PAUSES = (0.005, 0.01, 0.02, 0.05, *[0.1] * 19)


def busy_pauses() -> Iterator[float]:
    """Yield the pauses before each new try of a busy item, in seconds.

    The pauses vary at random, so that two callers do not meet at the same row again and again.
    """
    return (pause * uniform(0.5, 1.5) for pause in BUSY_PAUSES)


# Who gets an answer: a future, or a function that is called with the item and its answer. A
# function costs less than a future.
Sink: TypeAlias = "asyncio.Future[Answer] | Callable[[Any, Answer | BaseException], None]"


class Batcher(Generic[Item, Answer]):
    """Collects items and sends them together.

    Only one batch of new items is in flight at a time. Busy items are sent again
    separately.
    """

    def __init__(
        self,
        flush: Callable[[list[Item]], Awaitable[Sequence[Answer | Exception | Busy]]],
        alone: Callable[[Item], Awaitable[Answer]],
        *,
        max_batch: int = MAX_BATCH,
        max_queue: int = MAX_QUEUE,
    ) -> None:
        self._flush = flush
        self._alone = alone
        self._max_batch = max_batch
        self._max_queue = max_queue
        self._queue: deque[tuple[Item, Sink[Answer]]] = deque()
        self._space = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flusher: asyncio.Task[None] | None = None
        self._closed = False

    async def put(self, item: Item) -> Answer:
        """Put an item into the queue, and wait for its answer."""
        while len(self._queue) >= self._max_queue and not self._closed:
            self._space.clear()
            await self._space.wait()
        return await self.put_nowait(item)

    def put_nowait(self, item: Item) -> asyncio.Future[Answer]:
        """Put an item into the queue, and return a future of its answer.

        Call this method only in the thread of the event loop.
        """
        if self._closed:
            raise Unavailable("The client is closed.")
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._queue.append((item, future))
        if self._flusher is None:
            self._start()
        return future

    def put_soon(
        self, item: Item, answered: Callable[[Item, Answer | BaseException], None]
    ) -> None:
        """Put an item into the queue, without waiting.

        The batcher later calls `answered` with the item and its answer or error. The error is a
        CancelledError if the event loop ends first.
        """
        if self._closed:
            raise Unavailable("The client is closed.")
        self._queue.append((item, answered))
        if self._flusher is None:
            self._start()

    async def close(self) -> None:
        """Refuse new items, and wait until every item in the queue has its answer."""
        self._closed = True
        self._space.set()
        while self._flusher is not None or self._tasks:
            waiting = [*self._tasks, *([self._flusher] if self._flusher else [])]
            await asyncio.wait(waiting)

    def _start(self) -> None:
        self._flusher = asyncio.create_task(self._run())
        self._flusher.add_done_callback(self._flushed)

    def _flushed(self, flusher: asyncio.Task[None]) -> None:
        """If `flusher` has left items in the queue, start another asyncio task that sends them.

        Items are left if `flusher` was cancelled, for example by an event loop that closes.
        """
        if self._flusher is flusher:
            self._flusher = None
        if self._queue and self._flusher is None:
            self._start()

    async def _run(self) -> None:
        try:
            while self._queue:
                batch: list[tuple[Item, Sink[Answer]]] = []
                while self._queue and len(batch) < self._max_batch:
                    entry = self._queue.popleft()
                    if not isinstance(entry[1], asyncio.Future) or not entry[1].done():
                        batch.append(entry)
                self._space.set()
                if batch:
                    await self._send(batch)
        finally:
            self._flusher = None

    async def _send(self, batch: list[tuple[Item, Sink[Answer]]], tries: int = 0) -> None:
        try:
            answers = await self._flush([item for item, _ in batch])
        except InvalidInput as error:
            # One bad item fails the whole statement. Halve the batch until the bad item is alone.
            if len(batch) == 1:
                _settle(*batch[0], error)
                return
            middle = len(batch) // 2
            await self._send(batch[:middle], tries)
            await self._send(batch[middle:], tries)
            return
        except Exception as error:
            for item, sink in batch:
                _settle(item, sink, error)
            return
        except BaseException:
            for item, sink in batch:
                _cancel(item, sink)
            raise
        busy: list[tuple[Item, Sink[Answer]]] = []
        for entry, answer in zip(batch, answers, strict=True):
            if answer is BUSY:
                busy.append(entry)
            else:
                _settle(*entry, answer)  # type: ignore[arg-type]
        if len(busy) > MAX_ALONE and tries < TRIES_TOGETHER:
            self._begin(self._repeat_together(busy, tries))
        else:
            for item, sink in busy:
                self._begin(self._repeat(item, sink))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _repeat_together(self, busy: list[tuple[Item, Sink[Answer]]], tries: int) -> None:
        try:
            await asyncio.sleep(BUSY_PAUSES[tries] * uniform(0.5, 1.5))
        except BaseException:
            for item, sink in busy:
                _cancel(item, sink)
            raise
        await self._send(busy, tries + 1)

    async def _repeat(self, item: Item, sink: Sink[Answer]) -> None:
        try:
            answer = await self._alone(item)
        except Exception as error:
            _settle(item, sink, error)
        except BaseException:
            _cancel(item, sink)
            raise
        else:
            _settle(item, sink, answer)


def _settle(item: Item, sink: Sink[Answer], answer: Answer | Exception) -> None:
    if not isinstance(sink, asyncio.Future):
        sink(item, answer)
    elif sink.done():
        return
    elif isinstance(answer, Exception):
        sink.set_exception(answer)
    else:
        sink.set_result(answer)


def _cancel(item: Item, sink: Sink[Answer]) -> None:
    if isinstance(sink, asyncio.Future):
        sink.cancel()
    else:
        sink(item, asyncio.CancelledError())
