"""Run async code for synchronous callers, on a background event loop or the worker's loop."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from flowfabric.handlers import call_and_await, check_no_loop

T = TypeVar("T")

_STOP_SECONDS = 10.0
# The error for async code that calls `in_turn` says to write this loop instead.
ASYNC_FOR = "async for item in"


class Portal:
    """Runs coroutines for callers that have no event loop.

    The background loop ends when the portal is stopped or the program ends. Before the loop ends,
    it runs the function `close`, which closes the connections of the loop.
    """

    def __init__(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._close = close
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self.host: asyncio.AbstractEventLoop | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The background loop, or None if there is none now."""
        return self._loop

    def call(self, work: Callable[[], Coroutine[Any, Any, T]], instead: str) -> T:
        """Run `work` and wait for its result.

        Raise an error if this thread runs an event loop. The error tells the user to call `instead`
        (the text of an async call).
        """
        check_no_loop(instead)
        with self._lock:
            if self._pid != os.getpid():
                # After a fork, the threads that run these loops exist only in the parent process.
                self._pid, self._loop, self._thread, self.host = os.getpid(), None, None, None
            # A task that runs in a thread of the worker uses the worker's connections.
            host = self.host
            loop = host if host is not None and host.is_running() else self._background()
            # Hand over the work under the lock, so that `stop` cannot end the loop before the loop
            # has the work.
            answer = asyncio.run_coroutine_threadsafe(call_and_await(work), loop)
        return answer.result()

    def stop(self) -> None:
        """End the background loop and its thread. The next `call` starts a new loop and thread."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None or self._pid != os.getpid():
            return
        atexit.unregister(self._stop_at_exit)
        try:
            asyncio.run_coroutine_threadsafe(self._end(), loop).result()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def _stop_at_exit(self) -> None:
        # No thread can be started this late. The embedded server ends by itself.
        with contextlib.suppress(Exception):
            self.stop()

    async def _end(self) -> None:
        await self._close()
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=_STOP_SECONDS)
            await self._close()

    def _background(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=loop.run_forever, name="flowfabric-portal", daemon=True
            )
            self._thread.start()
            atexit.register(self._stop_at_exit)
        return self._loop


def in_turn(items: AsyncGenerator[T, None], call: Callable[..., Any], instead: str) -> Iterator[T]:
    """Yield the items of an async generator to synchronous code.

    `call` runs a coroutine, and `instead` is the text of the async call, as in `Portal.call`.
    """
    check_no_loop(instead, ASYNC_FOR)
    end: Any = object()

    async def advance() -> Any:
        return await anext(items, end)

    try:
        while (item := call(advance, instead)) is not end:
            yield item
    finally:
        call(items.aclose, instead)
