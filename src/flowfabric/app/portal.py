"""Lets synchronous code call the asynchronous core: a background event loop, or the worker's."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from flowfabric.handlers.context import on_loop

T = TypeVar("T")

_STOP_SECONDS = 10.0


class Portal:
    """Runs coroutines for callers that have no event loop.

    `close` is what the background loop does before it ends: when the portal is stopped, or with
    the program.
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
        """The background loop, if somebody needed it."""
        return self._loop

    def call(self, work: Callable[[], Coroutine[Any, Any, T]], instead: str) -> T:
        """Run `work` and wait for it; an error on a thread that runs an event loop itself."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise RuntimeError(
                f"This would block the event loop. In async code use: await {instead}"
            )
        with self._lock:
            if self._pid != os.getpid():
                # Forked: the threads that run these loops stayed behind in the parent.
                self._pid, self._loop, self._thread, self.host = os.getpid(), None, None, None
            # A task in a thread of the worker uses the worker's own connections.
            host = self.host
            loop = host if host is not None and host.is_running() else self._background()
            # Under the lock, so that a loop being stopped still does what it was given.
            answer = asyncio.run_coroutine_threadsafe(on_loop(work), loop)
        return answer.result()

    def stop(self) -> None:
        """End the background loop and its thread. A later call starts another."""
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
        # No thread starts this late, so the embedded server is left to its own way out.
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
