"""Daemon threads for plain handlers.

Threads of the standard library's pool keep the process alive until they end. Daemon threads do not.
The worker need not wait for them: it releases the execution of a handler that does not end.
"""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_Item = tuple[Future[Any], Callable[[], Any]]


class Threads(Executor):
    """An executor with at most `size` daemon threads. Call its methods from one thread only."""

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._count = 0
        self._idle = threading.Semaphore(0)
        self._work: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        self._work.put((future, functools.partial(function, *args, **kwargs)))
        if not self._idle.acquire(blocking=False) and self._count < self._size:
            self._count += 1
            threading.Thread(
                target=self._run, name=f"{self._name}-{self._count}", daemon=True
            ).start()
        return future

    def resize(self, by: int) -> None:
        """Add `by` to the maximum number of threads."""
        self._size += by

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = True) -> None:
        """Drop calls that have not started. This never waits: a thread ends after its last call."""
        while True:
            try:
                item = self._work.get_nowait()
            except queue.Empty:
                break
            if item is not None:
                item[0].cancel()
        for _ in range(self._count):
            self._work.put(None)

    def _run(self) -> None:
        while True:
            try:
                item = self._work.get_nowait()
            except queue.Empty:
                self._idle.release()
                item = self._work.get()
            if item is None:
                return
            future, call = item
            if future.set_running_or_notify_cancel():
                try:
                    answer = call()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(answer)
                    del answer
            del item, future, call  # an idle thread must not keep these objects alive
