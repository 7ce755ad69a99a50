"""Lets synchronous code call the asynchronous core: a background event loop, or the worker's."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Portal:
    """Runs coroutines for callers that have no event loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.host: asyncio.AbstractEventLoop | None = None

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
        # A task in a thread of the worker uses the worker's own connections.
        loop = self.host if self.host is not None and self.host.is_running() else self._background()
        return asyncio.run_coroutine_threadsafe(work(), loop).result()

    def _background(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._pid != os.getpid():
                # Forked: the thread stayed behind in the parent.
                self._pid, self._loop = os.getpid(), None
            if self._loop is None:
                loop = asyncio.new_event_loop()
                threading.Thread(
                    target=loop.run_forever, name="flowfabric-portal", daemon=True
                ).start()
                self._loop = loop
            return self._loop
