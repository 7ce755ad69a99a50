"""Listens for hints of new work. A process has one listener; each hint wakes one idle worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from flowfabric.client.events import READY_CHANNEL, SIGNAL_CHANNEL
from flowfabric.core.signal import MAX_PARTITION
from flowfabric.db.outage import level_of
from flowfabric.db.session import Session
from flowfabric.telemetry import WORKER_LOGGER


class HintedWorker(Protocol):
    """The methods of a worker that `Hints` calls."""

    @property
    def is_idle(self) -> bool: ...

    @property
    def is_quiet(self) -> bool: ...

    @property
    def has_suspect(self) -> bool: ...

    def notify_room(self) -> None: ...

    def covers(self, namespace: str, lane: str) -> bool: ...

    def wake(self) -> None: ...


class Hints:
    """Listens for hints for the workers of a process, unless all of them are busy.

    A hint can say that signals of a partition are stored but not noticed yet. Then `on_signal` is
    called with the partition. If hints may have been lost, `on_signal` is called with None.
    """

    def __init__(
        self, session: Session, on_signal: Callable[[int | None], None] | None = None
    ) -> None:
        self._session = session
        self._on_signal = on_signal
        self._workers: list[HintedWorker] = []
        self.is_listening = False

    def add(self, worker: HintedWorker) -> None:
        self._workers.append(worker)

    def remove(self, worker: HintedWorker) -> None:
        self._workers.remove(worker)
        self.end_reservation()

    @property
    def is_quiet(self) -> bool:
        """Whether nothing runs in this process that could crash it or suffer from a crash."""
        return all(worker.is_quiet for worker in self._workers)

    @property
    def is_reserved(self) -> bool:
        """Whether this process has a suspect. If so, none of its workers claims executions."""
        return any(worker.has_suspect for worker in self._workers)

    def end_reservation(self) -> None:
        """Let all workers of the process claim again, because no suspect runs alone any more."""
        for worker in self._workers:
            worker.notify_room()

    @property
    def are_missed(self) -> bool:
        """Whether some or all hints do not arrive here, so that workers have to poll more often."""
        return self._session.is_distributed or self._session.can_hear is False

    async def listen(self) -> None:
        """Listen for hints. If there is no connection, polling finds the work."""
        self.is_listening = True
        try:
            await self._session.listen(READY_CHANNEL, self._on_hint)
            if self._on_signal is not None:
                await self._session.listen(SIGNAL_CHANNEL, self._on_signal_hint)
        except Exception as error:
            WORKER_LOGGER.log(
                level_of(error), "listening for hints failed, polling instead: %s", error
            )
            self.is_listening = False
            await asyncio.sleep(1)

    async def stop_listening(self) -> None:
        """Stop listening if no worker is idle."""
        if self.is_listening and not any(worker.is_idle for worker in self._workers):
            self.is_listening = False
            await self._session.unlisten(READY_CHANNEL)
            if self._on_signal is not None:
                await self._session.unlisten(SIGNAL_CHANNEL)

    def wake_another(self) -> None:
        """Wake an idle worker: a claim was full, so there may be more work."""
        self._wake_one(None)

    def _on_hint(self, payload: str | None) -> None:
        if payload is None:
            for worker in self._workers:
                if worker.is_idle:
                    worker.wake()
            return
        # `partition namespace lane`. Do not trust the text: every database user can send a hint.
        words = payload.split(" ", 2)
        if len(words) == 3:
            self._wake_one((words[1], words[2]))

    def _on_signal_hint(self, payload: str | None) -> None:
        if self._on_signal is None:
            return
        # Do not trust the text: every database user can send a hint.
        if payload is None:
            self._on_signal(None)
        elif (
            payload.isascii()
            and payload.isdecimal()
            and len(payload) <= 5
            and int(payload) <= MAX_PARTITION
        ):
            self._on_signal(int(payload))

    def _wake_one(self, lane: tuple[str, str] | None) -> None:
        for position, worker in enumerate(self._workers):
            if worker.is_idle and (lane is None or worker.covers(*lane)):
                # The next hint goes to the next worker.
                self._workers.append(self._workers.pop(position))
                worker.wake()
                return
        # No worker is idle. A claim that runs now may have missed the new work, so a worker
        # claims once more.
        for worker in self._workers:
            if lane is not None and worker.covers(*lane):
                worker.wake()
