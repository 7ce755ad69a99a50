"""The waits of a handler. When all its branches wait, its execution pauses.

A branch is one of the concurrent parts of a handler, for example one coroutine of `asyncio.gather`.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count
from typing import Any, Protocol, TypeAlias

from flowfabric.client import FlowFabric
from flowfabric.core.errors import ExecutionNotFound, InvalidInput
from flowfabric.core.execution import Claimed
from flowfabric.core.ids import ExecutionId

# A branch that continues has this many turns of the event loop to start its next step.
QUIET_TURNS = 8
_REASON_BYTES = 256
_REPAIR = "; restore the code and retry, or replay --from-step or --fresh"
_NOBODY = ", and no worker with newer code came within 10 minutes"
_PREVENTION = " (with a code version, an execution stays with its own code)"
MAX_TARGETS = 1000
_SIGNAL = "waiting_for_signal"
# The most waits for signals that one suspension names.
MAX_WAITS = 1000


class Pause(Protocol):
    """A way to pause an execution after its handler has stopped.

    `apply` returns None, or another pause to apply if this one was not possible.
    """

    async def apply(self, client: FlowFabric, claimed: Claimed) -> Pause | None: ...


@dataclass(frozen=True, slots=True)
class PauseUntil:
    """Pause until the time `until`."""

    until: datetime

    async def apply(self, client: FlowFabric, claimed: Claimed) -> None:
        await client.executions.delay(claimed, until=self.until)


@dataclass(frozen=True, slots=True)
class PauseForRuns:
    """Pause until at least `needed` of the runs `targets` have ended."""

    targets: tuple[ExecutionId, ...]
    needed: int = 1

    async def apply(self, client: FlowFabric, claimed: Claimed) -> None:
        try:
            await client.executions.wait_for_runs(claimed, self.targets, self.needed)
        except ExecutionNotFound:
            # A target was trimmed just now. The next run of the handler raises the error.
            await client.executions.delay(claimed, timedelta(0))


@dataclass(frozen=True, slots=True)
class PauseSuspended:
    """Pause until the first of three things happens.

    A signal comes, at least `needed` of the runs `targets` have ended, or the time `until` comes.
    """

    waits: tuple[tuple[str, int], ...] = ()
    targets: tuple[ExecutionId, ...] = ()
    needed: int | None = None
    until: datetime | None = None
    reason_code: str = _SIGNAL

    async def apply(self, client: FlowFabric, claimed: Claimed) -> None:
        try:
            is_suspended = await client.signals.suspend(
                claimed,
                waits=self.waits,
                targets=self.targets,
                k=self.needed,
                until=self.until,
                reason_code=self.reason_code,
            )
        except ExecutionNotFound:
            # A target was trimmed just now: the next run of the handler raises the error.
            is_suspended = False
        if not is_suspended:
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
        """The problem and what to do about it, cut to the length that the database allows."""
        repair = _REPAIR if self.has_code_version else f"{_REPAIR}{_PREVENTION}"
        problem = f"{self.problem}{_NOBODY}" if self.is_older else self.problem
        text = " ".join(problem.split()).encode("utf-8", "replace")
        return text[: _REASON_BYTES - len(repair)].decode(errors="ignore") + repair

    async def apply(self, client: FlowFabric, claimed: Claimed) -> None:
        await client.executions.hold(claimed, self.reason, step=self.step)


@dataclass(frozen=True, slots=True)
class PauseForBudget:
    """Leave the execution as it is: it already waits for room in a budget.

    The report of usage has paused it and ended its lease.
    """

    async def apply(self, client: FlowFabric, claimed: Claimed) -> None:
        """Do nothing, because the execution already waits for the budget."""


@dataclass(frozen=True, slots=True)
class PauseToContinue:
    """End this generation. The next run starts with another payload and a fresh journal."""

    payload: bytes

    async def apply(self, client: FlowFabric, claimed: Claimed) -> None:
        await client.executions.continue_as(claimed, self.payload)


@dataclass(frozen=True, slots=True)
class PauseToRestart:
    """Start the execution over with the same arguments, because its code and journal disagree."""

    step: str
    problem: str

    async def apply(self, client: FlowFabric, claimed: Claimed) -> None:
        await client.executions.continue_as(
            claimed, claimed.payload, encoding=claimed.payload_encoding
        )


@dataclass(frozen=True, slots=True)
class PauseForNewerCode:
    """Let a worker with newer code continue the execution. If there is none, apply `otherwise`."""

    step: str
    otherwise: Pause

    async def apply(self, client: FlowFabric, claimed: Claimed) -> Pause | None:
        is_waiting = await client.executions.wait_for_newer_code(claimed, self.step)
        return None if is_waiting else self.otherwise


@dataclass(frozen=True, slots=True)
class SleepWait:
    """A sleep of one branch, from `since` until `until`."""

    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class RunWait:
    """A branch's wait for one run. `watch` sets the result of a future when the run ends.

    A run in another partition cannot wake the execution. For such a run, `poll` limits the pause,
    and after the pause the handler checks whether the run has ended.
    """

    target: ExecutionId
    watch: Callable[[asyncio.Future[Any]], None]
    poll: timedelta | None = None


@dataclass(frozen=True, slots=True)
class RunsWait:
    """A branch's wait until at least `needed` of the runs `targets` have ended.

    A run in another partition cannot wake the execution, so it is not in `targets`. If the branch
    also waits for such runs, `poll` limits the pause. After the pause, the handler checks which
    runs have ended.
    """

    targets: tuple[ExecutionId, ...]
    needed: int
    watch: Callable[[asyncio.Future[Any]], None]
    poll: timedelta | None = None


@dataclass(frozen=True, slots=True)
class EndedWait:
    """A branch's wait that ended at the time `at`. The branch continues when its turn comes.

    Branches take turns in the order of `at`. So a race between branches has the same winner in
    every run of the handler.
    """

    at: datetime


@dataclass(frozen=True, slots=True)
class SignalWait:
    """A branch's wait for a signal. `watch` sets a future's result when the signal comes."""

    name: str
    occurrence: int
    until: datetime | None
    watch: Callable[[asyncio.Future[Any]], None]
    reason_code: str = _SIGNAL


Wait: TypeAlias = SleepWait | RunWait | RunsWait | EndedWait | SignalWait


class Waits:
    """The waiting branches of one handler.

    When every branch waits and nothing is in flight, this object calls `pause` with a `Pause` that
    says what the execution waits for.
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
        """Count a piece of work as in flight. The handler cannot pause until the work ends."""
        self.in_flight += 1

    def end_work(self) -> None:
        self.in_flight -= 1
        self._schedule_check()

    def begin_query(self) -> None:
        """Count a query as work in flight.

        Until the database answers, branches whose waits have ended do not continue.
        """
        self._queries += 1
        self.begin_work()

    def end_query(self) -> None:
        self._queries -= 1
        self.end_work()

    async def wait(self, wait: Wait) -> Any:
        """Let a branch wait until `wait` is over. Raise if the handler is stopped first."""
        if isinstance(wait, SignalWait):
            several = sum(isinstance(one, SignalWait) for one in self._waits.values())
            if several >= MAX_WAITS:
                raise InvalidInput(
                    field="signals",
                    problem=f"a handler waits for at most {MAX_WAITS} signals at once; wait for "
                    "one name and tell them apart by their values",
                )
        future = self._loop.create_future()
        self._waits[future] = wait
        if isinstance(wait, EndedWait):
            heapq.heappush(self._ended, (wait.at, next(self._numbers), future))
        timer = None
        if isinstance(wait, SleepWait | SignalWait) and wait.until is not None:
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
        """Raise `error` in every waiting branch. If it is None, cancel the branches instead."""
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
        """Continue the branch whose wait ended first. If no wait has ended, pause the handler.

        First, give running branches `turns` cycles of the event loop to start their next step.
        """
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
        """Watch for the runs and signals that branches wait for, because the handler cannot pause
        while work is in flight."""
        for future, wait in self._waits.items():
            if isinstance(wait, RunWait | RunsWait | SignalWait) and future not in self._watched:
                self._watched.add(future)
                wait.watch(future)

    def _pause_for(self, waits: Sequence[Wait]) -> Pause:
        sleeps = [one for one in waits if isinstance(one, SleepWait)]
        runs = [one for one in waits if isinstance(one, RunWait | RunsWait)]
        targets = dict.fromkeys(
            one.target for one in runs if isinstance(one, RunWait) and one.poll is None
        )
        groups = [one for one in runs if isinstance(one, RunsWait) and one.targets]
        # No branch can continue before this many runs have ended.
        needed = 1 if targets else min((one.needed for one in groups), default=1)
        for one in groups:
            targets.update(dict.fromkeys(one.targets))
        signals = [one for one in waits if isinstance(one, SignalWait)]
        polls = [self._now() + one.poll for one in runs if one.poll is not None]
        until = min((*(one.until for one in sleeps), *polls), default=None)
        several = tuple(targets)[:MAX_TARGETS]
        if signals or (until is not None and targets):
            return PauseSuspended(
                tuple((one.name, one.occurrence) for one in signals),
                several,
                min(needed, MAX_TARGETS) if several else None,
                until,
                signals[0].reason_code if len(waits) == 1 and signals else _SIGNAL,
            )
        if until is None:
            return PauseForRuns(several, min(needed, MAX_TARGETS))
        return PauseUntil(until)


def _wake(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(None)
