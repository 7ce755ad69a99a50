"""Hints that there may be work: heard once a process, passed to one idle worker at a time."""

from __future__ import annotations

import asyncio
from typing import Protocol

from flowfabric.client.events import READY_CHANNEL
from flowfabric.db.session import Session
from flowfabric.telemetry import WORKER_LOGGER


class Sleeper(Protocol):
    """What the hints need to know of a worker."""

    @property
    def is_idle(self) -> bool: ...

    @property
    def is_still(self) -> bool: ...

    @property
    def has_turn_of_its_own(self) -> bool: ...

    def look(self) -> None: ...

    def covers(self, namespace: str, lane: str) -> bool: ...

    def wake(self) -> None: ...


class Hints:
    """The listening of a process. Nobody listens while everybody is busy."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._sleepers: list[Sleeper] = []
        self.is_listening = False

    def join(self, sleeper: Sleeper) -> None:
        self._sleepers.append(sleeper)

    def leave(self, sleeper: Sleeper) -> None:
        self._sleepers.remove(sleeper)
        self.let_go()

    @property
    def is_still(self) -> bool:
        """Whether nothing runs in any worker of the process."""
        return all(sleeper.is_still for sleeper in self._sleepers)

    @property
    def is_reserved(self) -> bool:
        """Whether a worker of the process runs a suspect alone, or waits to."""
        return any(sleeper.has_turn_of_its_own for sleeper in self._sleepers)

    def let_go(self) -> None:
        """A suspect runs alone no more: all workers of the process may go on."""
        for sleeper in self._sleepers:
            sleeper.look()

    @property
    def is_deaf(self) -> bool:
        """Whether hints do not arrive here, so that polling has to do."""
        return self._session.can_hear is False

    async def listen(self) -> None:
        """Listen from now on. Without a connection this does nothing: polling is the net."""
        self.is_listening = True
        try:
            await self._session.listen(READY_CHANNEL, self._heard)
        except Exception as error:
            WORKER_LOGGER.warning("cannot listen for hints, polling instead: %s", error)
            self.is_listening = False
            await asyncio.sleep(1)

    async def stop_listening(self) -> None:
        """Everybody is busy: a hint would tell them what they know."""
        if self.is_listening and not any(sleeper.is_idle for sleeper in self._sleepers):
            self.is_listening = False
            await self._session.unlisten(READY_CHANNEL)

    def more(self, finder: Sleeper) -> None:
        """A worker found as much as it could take: there may be more for another."""
        self._wake_one(None)

    def _heard(self, payload: str | None) -> None:
        if payload is None:
            for sleeper in self._sleepers:
                if sleeper.is_idle:
                    sleeper.wake()
            return
        # `partition namespace lane`; anybody may send anything, so nothing of it is relied on.
        words = payload.split(" ", 2)
        if len(words) == 3:
            self._wake_one((words[1], words[2]))

    def _wake_one(self, lane: tuple[str, str] | None) -> None:
        for position, sleeper in enumerate(self._sleepers):
            if sleeper.is_idle and (lane is None or sleeper.covers(*lane)):
                # The next hint goes to the next one.
                self._sleepers.append(self._sleepers.pop(position))
                sleeper.wake()
                return
        # Nobody sleeps: whoever has just asked may have asked too early, and asks once more.
        for sleeper in self._sleepers:
            if lane is not None and sleeper.covers(*lane):
                sleeper.wake()
