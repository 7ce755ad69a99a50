"""A thread with its own event loop, for work beside the loop of a test."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines one after another in its thread. `do` waits for the result."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "flowfabric-testing")
        self._runner: asyncio.Runner | None = None

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return self._thread.submit(self._do, work)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.begin(work).result()

    def close(self) -> None:
        """Finish all work, then end the thread."""
        self._thread.submit(self._end)
        self._thread.shutdown(wait=True)

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(work)

    def _end(self) -> None:
        if self._runner is not None:
            self._runner.close()
