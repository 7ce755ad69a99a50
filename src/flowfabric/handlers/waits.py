"""Pauses: when a handler has nothing to do but wait, and how its execution is then left."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count
from typing import Any, Protocol

from flowfabric.client import FlowFabric
from flowfabric.core.errors import ExecutionNotFound
from flowfabric.core.execution import Claimed
from flowfabric.core.ids import ExecutionId

# A branch that goes on at once gets this many turns of the event loop to start its next step.
QUIET_TURNS = 8
MAX_TARGETS = 1000
# A handler that waits for a run and sleeps at the same time looks again after an eighth of the time
# that has passed, within these limits.
LOOK_SHARE = 8
LOOK_SECONDS = (1.0, 300.0)


class Pause(Protocol):
    """How an execution is left by a handler that has been unwound."""

    async def carry_out(self, client: FlowFabric, held: Claimed) -> None: ...


@dataclass(frozen=True, slots=True)
class Delayed:
    """Until a time."""

    until: datetime

    async def carry_out(self, client: FlowFabric, held: Claimed) -> None:
        await client.executions.delay(held, until=self.until)


@dataclass(frozen=True, slots=True)
class Awaiting:
    """Until one of some runs has ended, or so many as are needed."""

    targets: tuple[ExecutionId, ...]
    needed: int = 1

    async def carry_out(self, client: FlowFabric, held: Claimed) -> None:
        try:
            await client.executions.wait_for_runs(held, self.targets, self.needed)
        except ExecutionNotFound:
            # One was trimmed just now: the next run of the handler is told.
            await client.executions.delay(held, timedelta(0))


@dataclass(frozen=True, slots=True)
class Held:
    """Until an operator has looked."""

    step: str
    reason: str

    async def carry_out(self, client: FlowFabric, held: Claimed) -> None:
        await client.executions.hold(held, self.reason, step=self.step)


@dataclass(frozen=True, slots=True)
class Sleep:
    """One branch of a handler sleeps."""

    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class Wait:
    """One branch of a handler waits for a run; `watch` looks for its end from here."""

    target: ExecutionId
    watch: Callable[[asyncio.Future[Any]], None]


@dataclass(frozen=True, slots=True)
class Several:
    """One branch of a handler waits until so many of some runs have ended."""

    targets: tuple[ExecutionId, ...]
    needed: int
    watch: Callable[[asyncio.Future[Any]], None]


@dataclass(frozen=True, slots=True)
class Over:
    """One branch wanted to wait for what was over at this time. When branches race, the first run
    saw one end before the other: a later run, which finds both, lets them go on in that order."""

    at: datetime


class Waits:
    """The branches of one handler that wait. When all that is left to do is waiting, `leave` is
    called with how."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        now: Callable[[], datetime],
        leave: Callable[[Pause], None],
    ) -> None:
        self._loop = loop
        self._now = now
        self._leave = leave
        self._waits: dict[asyncio.Future[Any], Sleep | Wait | Several | Over] = {}
        self._over: list[tuple[datetime, int, asyncio.Future[Any]]] = []
        self._numbers = count()
        self._questions = 0
        self._watched: set[asyncio.Future[Any]] = set()
        self._is_looking = False
        self.in_flight = 0

    def begin(self) -> None:
        """Something is being done that must not be cut short."""
        self.in_flight += 1

    def end(self) -> None:
        self.in_flight -= 1
        self._look()

    def ask(self) -> None:
        """The database is asked something: what is over already waits for the answer."""
        self._questions += 1
        self.begin()

    def answered(self) -> None:
        self._questions -= 1
        self.end()

    async def wait(self, wait: Sleep | Wait | Several | Over) -> Any:
        """Wait here until it is over, or until the handler is unwound."""
        future = self._loop.create_future()
        self._waits[future] = wait
        if isinstance(wait, Over):
            heapq.heappush(self._over, (wait.at, next(self._numbers), future))
        timer = None
        if isinstance(wait, Sleep):
            left = (wait.until - self._now()).total_seconds()
            timer = self._loop.call_later(max(left, 0.0), _wake, future)
        self._look()
        try:
            return await future
        finally:
            del self._waits[future]
            self._watched.discard(future)
            if timer is not None:
                timer.cancel()
            self._look()

    def unwind(self, error: type[BaseException] | None) -> None:
        """Raise an error wherever a branch waits, or cancel it."""
        for future in list(self._waits):
            if future.done():
                continue
            if error is None:
                future.cancel()
            else:
                future.set_exception(error())

    def _look(self) -> None:
        if not self._waits:
            return
        if self.in_flight:
            self._watch()
        if not self._is_looking and not self._is_busy:
            self._is_looking = True
            self._loop.call_soon(self._turn, QUIET_TURNS)

    @property
    def _is_busy(self) -> bool:
        return bool(self._questions if self._over else self.in_flight)

    def _turn(self, left: int) -> None:
        if self._is_busy or not self._waits:
            self._is_looking = False
            self._look()
        elif left:
            self._loop.call_soon(self._turn, left - 1)
        else:
            self._is_looking = False
            # Whoever has been woken goes on first, and then looks again.
            if self._over:
                _wake(heapq.heappop(self._over)[2])
                self._look()
            elif not any(future.done() for future in self._waits):
                self._leave(self._pause_for(list(self._waits.values())))

    def _watch(self) -> None:
        """Something else goes on, for long perhaps: what is waited for may end before it."""
        for future, wait in self._waits.items():
            if isinstance(wait, Wait | Several) and future not in self._watched:
                self._watched.add(future)
                wait.watch(future)

    def _pause_for(self, waits: Sequence[Sleep | Wait | Several | Over]) -> Pause:
        sleeps = [one for one in waits if isinstance(one, Sleep)]
        targets = dict.fromkeys(one.target for one in waits if isinstance(one, Wait))
        several = [one for one in waits if isinstance(one, Several)]
        # Before so many have ended, no branch can go on.
        needed = 1 if targets else min((one.needed for one in several), default=1)
        for one in several:
            targets.update(dict.fromkeys(one.targets))
        if not sleeps:
            return Awaiting(tuple(targets)[:MAX_TARGETS], min(needed, MAX_TARGETS))
        until = min(one.until for one in sleeps)
        if targets:
            # The engine waits for a time or for runs, not for whichever comes first.
            now = self._now()
            passed = (now - min(one.since for one in sleeps)).total_seconds()
            least, most = LOOK_SECONDS
            pause = min(max(passed / LOOK_SHARE, least), most)
            until = min(until, now + timedelta(seconds=pause))
        return Delayed(until)


def _wake(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(None)
