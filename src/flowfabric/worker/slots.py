"""The slots of a worker. A handler or thread that does not stop costs a slot."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from flowfabric.core.execution import Claimed
from flowfabric.telemetry import WORKER_LOGGER
from flowfabric.worker.log_text import attempt_text
from flowfabric.worker.threads import Threads


class Slots:
    """Counts the handlers that occupy a slot.

    A handler that was asked to stop keeps its slot for `grace` seconds. Then the slot is lost and
    another slot opens. When the worker has lost as many slots as its concurrency, no other slot
    opens and the worker ends.
    """

    def __init__(
        self,
        size: int,
        grace: float,
        threads: Threads,
        running: Collection[Claimed],
        *,
        on_free: Callable[[], None],
        on_lost: Callable[[Claimed], None],
        on_exhausted: Callable[[], None],
    ) -> None:
        self._size = size
        self._grace = grace
        self._threads = threads
        self._running = running
        self._on_free = on_free
        self._on_lost = on_lost
        self._on_exhausted = on_exhausted
        self._loop = asyncio.get_running_loop()
        self._stop_requested: set[Claimed] = set()
        self._abandoned: dict[Claimed, set[Future[Any]]] = {}
        self._timers: dict[Claimed, asyncio.TimerHandle] = {}
        # Lost slots, each with the number of threads that were added to replace its threads.
        self._lost: dict[Claimed, int] = {}

    @property
    def taken(self) -> int:
        """Number of slots in use, without the lost slots."""
        if not self._abandoned and not self._lost:
            return len(self._running)
        return len({*self._running, *self._abandoned}.difference(self._lost))

    @property
    def free(self) -> int:
        if not self._abandoned and not self._lost:
            return self._size - len(self._running)
        return self._size - self.taken

    @property
    def has_abandoned_threads(self) -> bool:
        """Whether any thread still runs after its handler stopped waiting for it."""
        return bool(self._abandoned)

    @property
    def lost(self) -> Collection[Claimed]:
        return self._lost.keys()

    def request_stop(self, claimed: Claimed) -> None:
        """Remember that a handler was asked to stop."""
        self._stop_requested.add(claimed)
        self._arm(claimed)

    def abandon_thread(self, claimed: Claimed, thread: Future[Any]) -> None:
        """Remember that a thread still runs although its handler no longer waits for it."""
        self._abandoned.setdefault(claimed, set()).add(thread)
        thread.add_done_callback(partial(self._on_thread_ended, claimed))
        self._arm(claimed)

    def end_handler(self, claimed: Claimed) -> None:
        """Free the slot of a handler that has ended, unless one of its threads still runs."""
        self._stop_requested.discard(claimed)
        if self._abandoned or self._timers or self._lost or claimed in self._running:
            self._free_if_unused(claimed)
        else:
            self._on_free()

    def lose(self, claimed: Claimed) -> None:
        """Count a slot as lost, because its handler or thread did not stop in time."""
        self._disarm(claimed)
        if claimed in self._lost:
            return
        threads = max(1, len(self._abandoned.get(claimed, ())))
        self._lost[claimed] = threads
        self._threads.resize(threads)
        WORKER_LOGGER.warning(
            "slot lost, its handler does not stop; another slot opens: %s (%s of %s lost)",
            attempt_text(claimed),
            len(self._lost),
            self._size,
        )
        self._on_lost(claimed)
        if len(self._lost) >= self._size:
            self._on_exhausted()
        else:
            self._on_free()

    def close(self) -> None:
        """Stop counting slots as lost, because the worker stops."""
        for claimed in list(self._timers):
            self._disarm(claimed)

    def _arm(self, claimed: Claimed) -> None:
        if claimed not in self._timers and claimed not in self._lost:
            self._timers[claimed] = self._loop.call_later(self._grace, self._on_timer, claimed)

    def _disarm(self, claimed: Claimed) -> None:
        if (timer := self._timers.pop(claimed, None)) is not None:
            timer.cancel()

    def _on_timer(self, claimed: Claimed) -> None:
        self._disarm(claimed)
        if claimed in self._stop_requested or claimed not in self._running:
            self.lose(claimed)
        else:
            # The handler stopped waiting for a step in a thread, and still runs itself.
            self._arm(claimed)

    def _on_thread_ended(self, claimed: Claimed, thread: Future[Any]) -> None:
        """Let the event loop free the slot of a thread that has ended. Called on that thread."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._remove_thread, claimed, thread)

    def _remove_thread(self, claimed: Claimed, thread: Future[Any]) -> None:
        threads = self._abandoned.get(claimed, set())
        threads.discard(thread)
        if not threads:
            self._abandoned.pop(claimed, None)
            self._free_if_unused(claimed)

    def _free_if_unused(self, claimed: Claimed) -> None:
        """Free the slot if neither a handler nor a thread occupies it."""
        if claimed in self._running or claimed in self._abandoned:
            return
        self._disarm(claimed)
        if (threads := self._lost.pop(claimed, None)) is not None:
            self._threads.resize(-threads)
            WORKER_LOGGER.info(
                "lost slot recovered, its handler has stopped: %s", attempt_text(claimed)
            )
        self._on_free()
