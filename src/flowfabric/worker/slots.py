"""The slots of a worker, and those that are lost: to a handler that was told to stop, or a thread
that nobody waits for any more, which goes on all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from flowfabric.core.execution import Claimed
from flowfabric.telemetry import WORKER_LOGGER
from flowfabric.worker.threads import Threads


class Slots:
    """Counts the handlers that hold a slot. One that does not stop holds it for `grace` seconds;
    then the slot is lost and another opened in its place, until as many are lost as there are."""

    def __init__(
        self,
        size: int,
        grace: float,
        threads: Threads,
        running: Collection[Claimed],
        *,
        opened: Callable[[], None],
        lost: Callable[[Claimed], None],
        used_up: Callable[[], None],
    ) -> None:
        self._size = size
        self._grace = grace
        self._threads = threads
        self._running = running
        self._opened = opened
        self._is_lost = lost
        self._used_up = used_up
        self._loop = asyncio.get_running_loop()
        self._told: set[Claimed] = set()
        self._left: dict[Claimed, set[Future[Any]]] = {}
        self._timers: dict[Claimed, asyncio.TimerHandle] = {}
        # With the number of threads that were added in its place.
        self._lost: dict[Claimed, int] = {}

    @property
    def taken(self) -> int:
        """How many slots are in use; those that are lost are not."""
        if not self._left and not self._lost:
            return len(self._running)
        return len({*self._running, *self._left}.difference(self._lost))

    @property
    def free(self) -> int:
        return self._size - self.taken

    @property
    def has_left_threads(self) -> bool:
        """Whether threads go on that nobody waits for any more."""
        return bool(self._left)

    @property
    def lost(self) -> Collection[Claimed]:
        return self._lost.keys()

    def told(self, claimed: Claimed) -> None:
        """The handler was told to stop."""
        self._told.add(claimed)
        self._arm(claimed)

    def left(self, claimed: Claimed, thread: Future[Any]) -> None:
        """Nobody waits any more for what a thread does, and it goes on."""
        self._left.setdefault(claimed, set()).add(thread)
        thread.add_done_callback(partial(self._returned_elsewhere, claimed))
        self._arm(claimed)

    def ended(self, claimed: Claimed) -> None:
        """The handler has ended."""
        self._told.discard(claimed)
        self._look(claimed)

    def lose(self, claimed: Claimed) -> None:
        """Whoever holds this slot has had its time to stop."""
        self._disarm(claimed)
        if claimed in self._lost:
            return
        threads = max(1, len(self._left.get(claimed, ())))
        self._lost[claimed] = threads
        self._threads.resize(threads)
        WORKER_LOGGER.warning(
            "%s does not stop: the handler of %s goes on. Its slot is lost and another is opened "
            "(%s of %s are lost)",
            claimed.task,
            claimed.id,
            len(self._lost),
            self._size,
        )
        self._is_lost(claimed)
        if len(self._lost) >= self._size:
            self._used_up()
        else:
            self._opened()

    def close(self) -> None:
        """Lose no more slots: the worker stops."""
        for claimed in list(self._timers):
            self._disarm(claimed)

    def _arm(self, claimed: Claimed) -> None:
        if claimed not in self._timers and claimed not in self._lost:
            self._timers[claimed] = self._loop.call_later(self._grace, self._is_due, claimed)

    def _disarm(self, claimed: Claimed) -> None:
        if (timer := self._timers.pop(claimed, None)) is not None:
            timer.cancel()

    def _is_due(self, claimed: Claimed) -> None:
        self._disarm(claimed)
        if claimed in self._told or claimed not in self._running:
            self.lose(claimed)
        else:
            # The handler gave up on a step, and is itself at work.
            self._arm(claimed)

    def _returned_elsewhere(self, claimed: Claimed, thread: Future[Any]) -> None:
        """Called in the thread that has come to its end."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._returned, claimed, thread)

    def _returned(self, claimed: Claimed, thread: Future[Any]) -> None:
        threads = self._left.get(claimed, set())
        threads.discard(thread)
        if not threads:
            self._left.pop(claimed, None)
            self._look(claimed)

    def _look(self, claimed: Claimed) -> None:
        """Take the slot back if nobody holds it any more."""
        if claimed in self._running or claimed in self._left:
            return
        self._disarm(claimed)
        if (threads := self._lost.pop(claimed, None)) is not None:
            self._threads.resize(-threads)
            WORKER_LOGGER.info(
                "%s has stopped after all: the slot of %s is back", claimed.task, claimed.id
            )
        self._opened()
