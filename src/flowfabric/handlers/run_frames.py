"""The frames of one handler run, and how they fit the journal.

The frames that a handler sends before a step are stored before the journal entry of the step. When
a handler starts again, all frames before the last journal entry are therefore stored already. The
new run drops its frames until it has reached that entry.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from flowfabric.core.errors import ExecutionNotActive, FlowFabricError, LeaseLost
from flowfabric.core.stream import OutgoingFrame

if TYPE_CHECKING:
    from flowfabric.client import FlowFabric
    from flowfabric.client.frames import FrameQueue
    from flowfabric.core.execution import Claimed
    from flowfabric.handlers.journal import Journal

# At most this many log lines wait until the journal is read.
_EARLY_FRAMES = 1_000


class RunFrames:
    """The frames that one run of a handler sends."""

    def __init__(
        self,
        claimed: Claimed,
        client: FlowFabric,
        loop: asyncio.AbstractEventLoop,
        *,
        journal: Callable[[], Journal | None],
        load_journal: Callable[[], Awaitable[Journal]],
        check_running: Callable[[], None],
        refused: Callable[[Exception], BaseException],
        query: Callable[[Awaitable[None]], Awaitable[None]],
    ) -> None:
        self._claimed = claimed
        self._sender = client.streams.sender
        self._loop = loop
        self._journal = journal
        self._load_journal = load_journal
        self._check_running = check_running
        self._refused = refused
        self._query = query
        self._queue: FrameQueue | None = None
        # Log lines of a run whose queue is not open yet, from any thread.
        self._lock = threading.Lock()
        self._early: list[OutgoingFrame] = []
        self._is_closed = False

    @property
    def is_used(self) -> bool:
        return self._queue is not None or bool(self._early)

    def put_nowait(self, frame: OutgoingFrame) -> bool:
        """Send a frame without waiting. Return False if `put` would have to wait."""
        self._check_running()
        queue, journal = self._queue, self._journal()
        if queue is None or journal is None:
            return False
        return self._put_into(queue, journal, frame)

    async def put(self, frame: OutgoingFrame) -> None:
        """Wait until the journal has been read and the queue has room, then send a frame."""
        queue, journal = await self._open()
        self._check_running()
        if not self._put_into(queue, journal, frame):
            try:
                await self._query(queue.put(_with_position(frame, journal)))
            except FlowFabricError as error:
                raise self._refused(error) from None

    def put_soon(self, frame: OutgoingFrame) -> bool:
        """Send a log line from any thread, without waiting. Return False if it is dropped."""
        if self._queue is not None:
            return self.put_nowait(frame)
        self._check_running()
        with self._lock:
            if self._queue is None:
                if len(self._early) >= _EARLY_FRAMES:
                    return False
                self._early.append(frame)
                if len(self._early) == 1:
                    self._loop.call_soon_threadsafe(self._open_soon)
                return True
        return self.put_nowait(frame)

    async def flush(self) -> None:
        """Wait until all frames that were sent before this call are stored."""
        if self._early:
            await self._open()
        if self._queue is not None and not self._queue.is_empty:
            try:
                await self._query(self._queue.flush())
            except FlowFabricError as error:
                raise self._refused(error) from None

    def close(self, *, is_lost: bool) -> None:
        """Refuse further frames. If the lease is lost, drop the frames that are not stored."""
        self._is_closed = True
        self._sender.close_queue(self._claimed, is_lost=is_lost)

    def _put_into(self, queue: FrameQueue, journal: Journal, frame: OutgoingFrame) -> bool:
        if journal.is_catching_up:
            return True
        try:
            return queue.put_nowait(_with_position(frame, journal))
        except (LeaseLost, ExecutionNotActive) as error:
            raise self._refused(error) from None

    def _open_soon(self) -> None:
        if self._queue is None:
            task = self._loop.create_task(self._open_quietly())
            self._sender.open_later(self._claimed, task)

    async def _open_quietly(self) -> None:
        try:
            await self._open()
        except (FlowFabricError, asyncio.CancelledError):
            # Drop the lines. The run is over, and its next database call raises the error.
            self._early.clear()

    async def _open(self) -> tuple[FrameQueue, Journal]:
        journal = self._journal()
        if journal is None:
            journal = await self._load_journal()
        with self._lock:
            queue = self._queue
            if queue is None:
                queue = self._sender.queue(self._claimed, journal.base)
                for frame in self._early:
                    self._put_into(queue, journal, frame)
                self._early.clear()
                self._queue = queue
                if self._is_closed:
                    self._sender.close_queue(self._claimed, is_lost=False)
        return queue, journal


def _with_position(frame: OutgoingFrame, journal: Journal) -> OutgoingFrame:
    position = journal.recorded_count
    return replace(frame, position=position) if position else frame
