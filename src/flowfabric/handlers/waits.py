"""What a handler waits for, and how its execution pauses when the handler can only wait."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count
from typing import Any, Protocol, TypeAlias

from flowfabric.client import FlowFabric
from flowfabric.core.errors import ExecutionNotFound
from flowfabric.core.execution import Claimed
from flowfabric.core.ids import ExecutionId

# A branch that continues gets this many turns of the event loop to start its next step.
QUIET_TURNS = 8
_REASON_BYTES = 256
_REPAIR = "; restore the code and retry, or replay --from-step or --fresh"
_NOBODY = ", and for 10 minutes nobody with newer code came"
_PREVENTION = " (a code version leaves an execution to the code that began it)"
MAX_TARGETS = 1000
# A handler that sleeps and waits for a run at the same time checks the run after an eighth of the
# time that has passed, within these limits.
CHECK_SHARE = 8
CHECK_SECONDS = (1.0, 300.0)


class Pause(Protocol):
    """How an execution pauses after its handler was unwound.

    `apply` returns how to pause instead, if it could not pause in this way.
    """

    async def apply(self, client: FlowFabric, claimed: Claimed) -> Pause | None: ...


@dataclass(frozen=True, slots=True)
class PauseUntil:
    """Pause until a time."""

    until: datetime

    async def apply(self, client: FlowFabric, claimed: Claimed) -> None:
        await client.executions.delay(claimed, until=self.until)


@dataclass(frozen=True, slots=True)
class PauseForRuns:
    """Pause until `needed` of the target runs have ended."""

    targets: tuple[ExecutionId, ...]
    needed: int = 1

    async def apply(self, client: FlowFabric, claimed: Claimed) -> None:
        try:
            await client.executions.wait_for_runs(claimed, self.targets, self.needed)
        except ExecutionNotFound:
            # A target was trimmed just now: the next run of the handler raises the error.
            await client.executions.delay(claimed, timedelta(0))


@dataclass(frozen=True, slots=True)
class PauseOnHold:
    """Pause until an operator retries or replays the execution."""

    step: str
    problem: str
    has_code_version: bool = False
    # Whether the step was recorded by newer code.
    is_older: bool = False

    @property
    def reason(self) -> str:
        """The problem and what to do about it, as short as the engine wants it."""
        repair = _REPAIR if self.has_code_version else f"{_REPAIR}{_PREVENTION}"
        problem = f"{self.problem}{_NOBODY}" if self.is_older else self.problem
        text = " ".join(problem.split()).encode("utf-8", "replace")
        return text[: _REASON_BYTES - len(repair)].decode(errors="ignore") + repair

    async def apply(self, client: FlowFabric, claimed: Claimed) -> None:
        await client.executions.hold(claimed, self.reason, step=self.step)


@dataclass(frozen=True, slots=True)
class PauseToContinue:
    """End this generation: the next run starts with another payload and a fresh journal."""

    payload: bytes

    async def apply(self, client: FlowFabric, claimed: Claimed) -> None:
        await client.executions.continue_as(claimed, self.payload)


@dataclass(frozen=True, slots=True)
class PauseToRestart:
    """Begin the execution anew with its arguments: the code no longer fits its journal."""

    step: str
    problem: str

    async def apply(self, client: FlowFabric, claimed: Claimed) -> None:
        await client.executions.continue_as(
            claimed, claimed.payload, encoding=claimed.payload_encoding
        )


@dataclass(frozen=True, slots=True)
class PauseForNewerCode:
    """Leave the execution to a worker whose code knows a recorded step; else pause otherwise."""

    step: str
    otherwise: Pause

    async def apply(self, client: FlowFabric, claimed: Claimed) -> Pause | None:
        is_left = await client.executions.wait_for_newer_code(claimed, self.step)
        return None if is_left else self.otherwise


@dataclass(frozen=True, slots=True)
class SleepWait:
    """A branch of a handler sleeps."""

    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class RunWait:
    """A branch of a handler waits for one run; `watch` resolves a future when the run ends."""

    target: ExecutionId
    watch: Callable[[asyncio.Future[Any]], None]


@dataclass(frozen=True, slots=True)
class RunsWait:
    """A branch of a handler waits until `needed` of several runs have ended."""

    targets: tuple[ExecutionId, ...]
    needed: int
    watch: Callable[[asyncio.Future[Any]], None]


@dataclass(frozen=True, slots=True)
class EndedWait:
    """A branch of a handler waits for something that already ended, at `at`.

    Such branches continue in the order of `at`, so that a race between branches has the same
    winner in every run of the handler.
    """

    at: datetime


Wait: TypeAlias = SleepWait | RunWait | RunsWait | EndedWait


class Waits:
    """The branches of one handler that wait.

    When every branch waits and nothing is in flight, `pause` is called with how to pause.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        now: Callable[[], datetime],
        pause: Callable[[Pause], None],
    ) -> None:
        self._loop = loop
        self._now = now
        self._pause = pause
        self._waits: dict[asyncio.Future[Any], Wait] = {}
        self._ended: list[tuple[datetime, int, asyncio.Future[Any]]] = []
        self._numbers = count()
        self._queries = 0
        self._watched: set[asyncio.Future[Any]] = set()
        self._is_checking = False
        self.in_flight = 0

    def begin_work(self) -> None:
        """Note work that a pause must not cut short."""
        self.in_flight += 1

    def end_work(self) -> None:
        self.in_flight -= 1
        self._schedule_check()

    def begin_query(self) -> None:
        """Note a question to the database: branches whose wait has ended wait for the answer."""
        self._queries += 1
        self.begin_work()

    def end_query(self) -> None:
        self._queries -= 1
        self.end_work()

    async def wait(self, wait: Wait) -> Any:
        """Wait here until the wait is over, or until the handler is unwound."""
        future = self._loop.create_future()
        self._waits[future] = wait
        if isinstance(wait, EndedWait):
            heapq.heappush(self._ended, (wait.at, next(self._numbers), future))
        timer = None
        if isinstance(wait, SleepWait):
            left = (wait.until - self._now()).total_seconds()
            timer = self._loop.call_later(max(left, 0.0), _wake, future)
        self._schedule_check()
        try:
            return await future
        finally:
            del self._waits[future]
            self._watched.discard(future)
            if timer is not None:
                timer.cancel()
            self._schedule_check()

    def unwind(self, error: type[BaseException] | None) -> None:
        """Raise an error in every branch that waits; without an error, cancel the branch."""
        for future in list(self._waits):
            if future.done():
                continue
            if error is None:
                future.cancel()
            else:
                future.set_exception(error())

    def _schedule_check(self) -> None:
        if not self._waits:
            return
        if self.in_flight:
            self._watch()
        if not self._is_checking and not self._is_busy:
            self._is_checking = True
            self._loop.call_soon(self._check, QUIET_TURNS)

    @property
    def _is_busy(self) -> bool:
        return bool(self._queries if self._ended else self.in_flight)

    def _check(self, turns: int) -> None:
        """Pause the handler if nothing has happened for so many turns of the event loop."""
        if self._is_busy or not self._waits:
            self._is_checking = False
            self._schedule_check()
        elif turns:
            self._loop.call_soon(self._check, turns - 1)
        else:
            self._is_checking = False
            # A branch that was woken continues first, and then schedules the next check.
            if self._ended:
                _wake(heapq.heappop(self._ended)[2])
                self._schedule_check()
            elif not any(future.done() for future in self._waits):
                self._pause(self._pause_for(list(self._waits.values())))

    def _watch(self) -> None:
        """Watch for the ends of runs from here: work in flight may take longer than they do."""
        for future, wait in self._waits.items():
            if isinstance(wait, RunWait | RunsWait) and future not in self._watched:
                self._watched.add(future)
                wait.watch(future)

    def _pause_for(self, waits: Sequence[Wait]) -> Pause:
        sleeps = [one for one in waits if isinstance(one, SleepWait)]
        targets = dict.fromkeys(one.target for one in waits if isinstance(one, RunWait))
        groups = [one for one in waits if isinstance(one, RunsWait)]
        # No branch can continue before so many runs have ended.
        needed = 1 if targets else min((one.needed for one in groups), default=1)
        for one in groups:
            targets.update(dict.fromkeys(one.targets))
        if not sleeps:
            return PauseForRuns(tuple(targets)[:MAX_TARGETS], min(needed, MAX_TARGETS))
        until = min(one.until for one in sleeps)
        if targets:
            # The engine waits for a time or for runs, not for whichever comes first.
            now = self._now()
            passed = (now - min(one.since for one in sleeps)).total_seconds()
            least, most = CHECK_SECONDS
            pause = min(max(passed / CHECK_SHARE, least), most)
            until = min(until, now + timedelta(seconds=pause))
        return PauseUntil(until)


def _wake(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(None)
