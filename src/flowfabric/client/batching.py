"""Group commit: send concurrent single calls as one batch. A single call is sent without delay.

Each flush runs as a separate asyncio task. A cancelled caller therefore cannot cancel the statement
of other callers. Its own item is withdrawn if it has not been sent yet. The next batch collects
items while a flush is in flight.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from random import uniform
from typing import Any, Generic, TypeAlias, TypeVar

from flowfabric.core.errors import InvalidInput, Unavailable

Item = TypeVar("Item")
Answer = TypeVar("Answer")

MAX_BATCH = 500
MAX_QUEUE = 20_000


class Busy:
    """The answer for an item whose row was locked. The batcher sends the item again, alone."""


BUSY = Busy()

# A busy item is sent again for two seconds: after 5 ms at first, later every 0.1 s.
BUSY_PAUSES = (0.005, 0.01, 0.02, 0.05, *[0.1] * 19)


def busy_pauses() -> Iterator[float]:
    """Yield the pauses before a busy item is sent again.

    Jitter keeps two callers from colliding forever.
    """
    return (pause * uniform(0.5, 1.5) for pause in BUSY_PAUSES)


class _Callback(Generic[Item, Answer]):
    """A cheap stand-in for a future: only the methods that the batcher uses."""

    __slots__ = ("_item", "_settled")

    def __init__(self, item: Item, settled: Callable[[Item, Answer | BaseException], None]) -> None:
        self._item = item
        self._settled = settled

    def done(self) -> bool:
        return False

    def cancel(self) -> None:
        self._settled(self._item, asyncio.CancelledError())

    def set_result(self, answer: Answer) -> None:
        self._settled(self._item, answer)

    def set_exception(self, error: Exception) -> None:
        self._settled(self._item, error)


Sink: TypeAlias = "asyncio.Future[Answer] | _Callback[Any, Answer]"


class Batcher(Generic[Item, Answer]):
    """Collect items and flush them together; at most one flush runs at a time."""

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
        """Hand in an item and wait for its answer."""
        while len(self._queue) >= self._max_queue and not self._closed:
            self._space.clear()
            await self._space.wait()
        return await self.put_nowait(item)

    def put_nowait(self, item: Item) -> asyncio.Future[Answer]:
        """Hand in an item and return a future of its answer. Call it on the loop's thread."""
        if self._closed:
            raise Unavailable("The client is closed.")
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._queue.append((item, future))
        if self._flusher is None:
            self._start()
        return future

    def hand_in(self, item: Item, settled: Callable[[Item, Answer | BaseException], None]) -> None:
        """Hand in an item without waiting.

        The batcher calls `settled` with the answer, or with a CancelledError if the event loop ends
        first.
        """
        if self._closed:
            raise Unavailable("The client is closed.")
        self._queue.append((item, _Callback(item, settled)))
        if self._flusher is None:
            self._start()

    async def close(self) -> None:
        """Send every item in the queue, then refuse new items."""
        self._closed = True
        self._space.set()
        while self._flusher is not None or self._tasks:
            waiting = [*self._tasks, *([self._flusher] if self._flusher else [])]
            await asyncio.wait(waiting)

    def _start(self) -> None:
        self._flusher = asyncio.create_task(self._run())
        self._flusher.add_done_callback(self._flushed)

    def _flushed(self, flusher: asyncio.Task[None]) -> None:
        """Start another flush if items are left.

        A closing event loop cancels its tasks. The flush may have stopped halfway or never started,
        but callers still wait for an answer to their items.
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
                    if not entry[1].done():
                        batch.append(entry)
                self._space.set()
                if batch:
                    await self._send(batch)
        finally:
            self._flusher = None

    async def _send(self, batch: list[tuple[Item, Sink[Answer]]]) -> None:
        try:
            answers = await self._flush([item for item, _ in batch])
        except InvalidInput as error:
            # One bad item fails the whole statement. Halve the batch until the bad item is alone.
            if len(batch) == 1:
                _settle(batch[0][1], error)
                return
            middle = len(batch) // 2
            await self._send(batch[:middle])
            await self._send(batch[middle:])
            return
        except Exception as error:
            for _, future in batch:
                _settle(future, error)
            return
        except BaseException:
            for _, future in batch:
                future.cancel()
            raise
        for (item, future), answer in zip(batch, answers, strict=True):
            if answer is BUSY:
                task = asyncio.create_task(self._repeat(item, future))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            elif not future.done():
                if isinstance(answer, Exception):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)  # type: ignore[arg-type]

    async def _repeat(self, item: Item, future: Sink[Answer]) -> None:
        try:
            answer = await self._alone(item)
        except Exception as error:
            _settle(future, error)
        except BaseException:
            future.cancel()
            raise
        else:
            if not future.done():
                future.set_result(answer)


def _settle(future: Sink[Answer], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
