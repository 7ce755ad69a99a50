"""The harness: an app's tasks under a test that decides when they run and what time it is."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from difflib import get_close_matches
from time import monotonic
from typing import Any, ParamSpec, TypeVar, overload

from flowfabric.app.app import App
from flowfabric.app.flow import Flow
from flowfabric.app.flow_run import FlowRun
from flowfabric.app.run import Run
from flowfabric.app.task import Task
from flowfabric.client import FlowFabric
from flowfabric.core.errors import ExecutionFailed, ExecutionNotFound, InvalidInput
from flowfabric.core.execution import Claimed, Event
from flowfabric.core.ids import ExecutionId
from flowfabric.core.states import PublicState
from flowfabric.core.step import StepRecord
from flowfabric.doctor import Level, invariants
from flowfabric.reconcilers.table import RECONCILERS
from flowfabric.testing.breakpoint import Breakpoint
from flowfabric.testing.database import Database
from flowfabric.testing.redirect import Redirect
from flowfabric.testing.submissions import Expectation, Submitted
from flowfabric.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

# A drain that starts more handlers than this works on something that feeds itself.
MOST_ATTEMPTS = 10_000
# How often a run that waits for time may be helped on by a jump of the clock.
MOST_JUMPS = 1_000
_TICK_SECONDS = 0.001
_LOOK_SECONDS = 0.01
# What clears old rows away: nobody waits for it, and only a skip gives it something to do.
_CLEARING = {"retention_trimmer", "event_trimmer", "key_trimmer", "worker_sweep"}


@dataclass(eq=False)
class _Here:
    """What lives on the event loop of the test."""

    loop: asyncio.AbstractEventLoop
    client: FlowFabric
    workers: dict[App, Worker] = field(default_factory=dict)
    scheduled: set[App] = field(default_factory=set)
    gate: Breakpoint = field(default_factory=Breakpoint)
    # Whether something may have become due since the last look, and old since the last clearing.
    is_due: bool = True
    is_old: bool = False
    due_in: timedelta | None = None

    @property
    def is_working(self) -> bool:
        return any(worker.is_working for worker in self.workers.values())


class Harness:
    """Runs tasks for a test, on a database of its own. Nothing runs by itself.

    `timeout` is how many seconds of real time handlers may take before a call gives up.
    """

    def __init__(self, database: Database, *, timeout: float = 30.0) -> None:
        self.database = database
        self.timeout = timeout
        self._redirect = Redirect(database.url)
        self._here: _Here | None = None
        self._runner: asyncio.Runner | None = None

    @property
    def database_url(self) -> str:
        """The test's database: all apps use it until the test ends."""
        return self.database.url

    async def client(self) -> FlowFabric:
        """The engine's operations on the test's database, for every namespace."""
        return (await self._open()).client

    async def submit(self, task: Task[P, R, T], *args: P.args, **kwargs: P.kwargs) -> Run[T]:
        """Submit a task; it runs with the next `run`, `run_until` or `drain`."""
        _check(task, Task)
        await self._meet(task.app)
        return await task.submit(*args, **kwargs)

    @overload
    async def run(self, run: Run[T], /) -> T: ...
    @overload
    async def run(self, flow: Flow | FlowRun, /) -> Any: ...
    @overload
    async def run(self, task: Task[P, R, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def run(self, what: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Work until a run has ended, and return its result or raise as `Run.result` does.

        A task is submitted first. When nothing can run now, time passes until something can: a
        retry's back-off, a delay, a sleep, the lease of a crashed worker. Of a flow all nodes are
        run to their end; the result is that of its last node, or of several by their names.
        """
        __tracebackhide__ = True
        if isinstance(what, Flow | FlowRun):
            return await self._run_flow(what)
        if isinstance(what, ExecutionId):
            _check(what, Run)
        run: Run[Any] = what if isinstance(what, Run) else await self.submit(what, *args, **kwargs)
        await self._run_to_end(run)
        try:
            return await run.result(timeout=self.timeout)
        except ExecutionFailed as error:
            error.add_note(f"\n{error.trace}")
            raise

    async def _run_flow(self, flow: Flow | FlowRun) -> Any:
        __tracebackhide__ = True
        if isinstance(flow, Flow):
            await self._meet(flow.app)
            flow = flow.run if flow.is_stored else await flow.submit()
        nodes = await flow.nodes()
        for run in nodes.values():
            await self._run_to_end(run)
        try:
            if len(await flow.last_nodes()) == 1:
                return await flow.result(timeout=self.timeout)
            return await flow.results(timeout=self.timeout)
        except ExecutionFailed as error:
            error.add_note(f"\n{error.trace}")
            raise

    async def _run_to_end(self, run: Run[Any]) -> None:
        __tracebackhide__ = True
        here = await self._begin()
        jumps = 0
        while not (state := await self._state(run)).is_terminal:
            if await self._settle(here, run, state) or await self._work(here, 1):
                continue
            if here.due_in is None or jumps == MOST_JUMPS:
                raise AssertionError(await self._standstill(run, "its end"))
            await self.skip(max(here.due_in, timedelta()))
            jumps += 1

    @overload
    async def run_until(self, run: Run[Any], state: PublicState | str) -> None: ...
    @overload
    async def run_until(self, run: Run[Any], *, step: str) -> None: ...

    async def run_until(
        self, run: Run[Any], state: PublicState | str | None = None, *, step: str | None = None
    ) -> None:
        """Work until a run is in a state: "active", "delayed", "waiting", "completed", ...

        Time does not pass. Active is reached when the handler has started; it goes on during the
        test's own awaits. With `step` instead of a state, work until that step is recorded: there
        the handler stands still until the next `run`, `run_until` or `drain`.
        """
        __tracebackhide__ = True
        _check(run, Run)
        if (state is None) == (step is None):
            raise InvalidInput(field="state", problem="give either a state or a step")
        here = await self._begin()
        if step is not None:
            here.gate.close_at(run.id, step)
        wanted = None if state is None else _state(state)
        what = f"step {step!r}" if wanted is None else str(wanted)
        if step and any(one.name == step for one in await self.steps(run)):
            what += f" again ({step!r} was recorded before this call)"
        while not here.gate.is_reached and (now := await self._state(run)) is not wanted:
            if now.is_terminal:
                raise AssertionError(await self._standstill(run, what))
            if await self._settle(here, run, now):
                continue
            claimed: list[Claimed] = []
            if not await self._work(here, 1, claimed):
                raise AssertionError(await self._standstill(run, what))
            if wanted is PublicState.ACTIVE and any(one.id == run.id for one in claimed):
                await asyncio.sleep(0)  # the handler begins
                return

    async def drain(self, *, concurrency: int = 1) -> int:
        """Work until nothing can run now, and say how often a handler was started.

        What is delayed stays; `skip` lets time pass. By default one runs after the other, in the
        order a worker claims them: priority first, then age.
        """
        __tracebackhide__ = True
        here = await self._begin()
        started: list[Claimed] = []
        await self._settle(here)
        while await self._work(here, concurrency, started):
            await self._settle(here)
            if len(started) > MOST_ATTEMPTS:
                raise AssertionError(
                    f"drain() has started {len(started)} handlers and there is still work: does "
                    f"{started[-1].task} submit itself again and again?"
                )
        return len(started)

    async def skip(
        self,
        by: timedelta = timedelta(),
        *,
        weeks: float = 0,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
    ) -> datetime:
        """Let time pass by the clock of the database, and return the new time.

        What becomes due runs with the next `run`, `run_until` or `drain`. Python's clock stays.
        """
        _check(by, timedelta)
        span = by + timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)
        if span < timedelta():
            raise InvalidInput(field="by", problem="time does not go back")
        here = await self._open()
        here.is_due = here.is_old = True
        living = [worker.instance_id for worker in here.workers.values()]
        return await asyncio.to_thread(self.database.skip, span, living)

    async def start_schedules(self, app: App) -> None:
        """Let the schedules of an app count from now on; what is due fires with the next `drain`.

        Without this they never fire. After a `skip` they do what their misfire rule says about the
        times that were passed over.
        """
        await self._meet(app)
        here = await self._open()
        here.scheduled.add(app)
        await app.fire_schedules()

    async def now(self) -> datetime:
        """The time by the clock of the database."""
        return await (await self.client()).executions.server_time()

    async def crash_worker(self) -> list[ExecutionId]:
        """Let the worker die as by `kill -9`: what it holds is neither finished nor given back.

        Returns what it left behind. Its leases run out when time passes; another worker starts
        with the next `run`, `run_until` or `drain`.
        """
        here = await self._open()
        left: list[Claimed] = []
        here.gate.crash()
        workers = list(here.workers.values())
        here.workers.clear()
        for worker in workers:
            left += await worker.crash()
        return [claimed.id for claimed in left]

    async def events(self, run: Run[Any]) -> list[Event]:
        """What happened to a run, in order."""
        return await (await self.client()).executions.events(run.id)

    async def steps(self, run: Run[Any]) -> list[StepRecord]:
        """What a run has recorded, in the order it was started."""
        return await (await self.client()).steps.list(run.id)

    def submitted(self) -> list[Submitted]:
        """Everything that was submitted, oldest first."""
        return [Submitted.of(row) for row in self.database.submitted()]

    def assert_submitted(
        self,
        task: Task[..., Any, Any],
        /,
        *args: Any,
        times: int | None = 1,
        **kwargs: Any,
    ) -> list[Submitted]:
        """Fail unless a task was submitted so often with these arguments; return what was found.

        Arguments that are left out may be anything, and so may options: name them by
        `task.using(lane=..., priority=..., key=..., tags=..., delay=...)`. `times=None` is at least
        once, `times=0` is never. This is no coroutine: it needs no await.
        """
        __tracebackhide__ = True
        _check(task, Task)
        expected = Expectation(task, args, kwargs)
        several = self.submitted()
        found = [one for one in several if expected.fits(one)]
        if len(found) != times and not (times is None and found):
            raise AssertionError(expected.complaint(several, times))
        return found

    def check(self) -> None:
        """Fail if the data break a promise of the engine, as `flowfabric doctor` would.

        For tests that write to its tables by hand. No coroutine: it needs no await.
        """
        __tracebackhide__ = True
        # The installation is not that of a release: it has a clock that can be moved.
        promises = {check.name for check in invariants()}
        broken = [
            one
            for one in self.database.examine().findings
            if one.name in promises and one.level is Level.ERROR
        ]
        if broken:
            lines = [f"  {one.name} {one.execution or ''}: {one.problem}" for one in broken]
            raise AssertionError("\n".join(["The database is not as it should be:", *lines]))

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Do one of the above in a test that is no coroutine: `ff.call(ff.run(task, 7))`."""
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            work.close()
            raise TypeError("call() is for plain tests; in a coroutine use await")
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(work)

    async def close(self) -> None:
        """Stop everything that runs, and leave the event loop. A later call opens it again."""
        here, self._here = self._here, None
        if here is not None:
            here.gate.crash()
            for worker in here.workers.values():
                await worker.crash()
        for app in self._redirect.used():
            await app.close()
        if here is not None:
            await here.client.close()

    def rest(self) -> None:
        """Close what a fixture has opened again behind the test, while its loop is still there."""
        loops = {loop for app in self._redirect.used() for loop in app.loops}
        if self._here is not None:
            loops.add(self._here.loop)
        for loop in loops:
            if not loop.is_running() and not loop.is_closed():
                loop.run_until_complete(self.close())

    def end(self) -> None:
        """Point the apps back to where they were. The test's event loop is over."""
        try:
            self.rest()
            if self._runner is not None:
                self._runner.close()
        finally:
            self._redirect.release()

    async def _open(self) -> _Here:
        """What lives on the running loop; a worker for every app that has met this database."""
        loop = asyncio.get_running_loop()
        here = self._here
        if here is not None and here.loop is not loop:
            raise RuntimeError(
                "ff was used on another event loop before. Fixtures and the test that use it must "
                "share one loop: see loop_scope of pytest-asyncio, or anyio_backend."
            )
        if here is None:
            here = self._here = _Here(loop, FlowFabric(self.database.url, namespace=None))
            await here.client.open()
        return here

    async def _begin(self) -> _Here:
        """Before work is done: a handler that stands behind a step goes on."""
        here = await self._open()
        here.gate.open()
        here.is_due = True
        return here

    async def _meet(self, app: App) -> None:
        self._redirect.take(app)
        await self._open()

    async def _worker(self, here: _Here, app: App) -> Worker:
        worker = here.workers.get(app)
        if worker is None:
            here.gate.watch(await app.client())
            worker = here.workers[app] = await app.worker(
                concurrency=MOST_ATTEMPTS,
                needs=frozenset().union(*(task.spec.needs for task in app.tasks.values())),
                worker_id="test",
                is_paced=True,
            )
        return worker

    async def _work(
        self, here: _Here, concurrency: int, started: list[Claimed] | None = None
    ) -> int:
        """Do what is due and start what can run. 0 if there was nothing of either."""
        done = await self._reconcile(here) if here.is_due else 0
        here.is_due = False
        claimed: list[Claimed] = []
        for app in self._redirect.used():
            if app.tasks and len(claimed) < concurrency:
                worker = await self._worker(here, app)
                claimed += await worker.claim_once(concurrency - len(claimed))
        if started is not None:
            started += claimed
        # The last look before there is nothing to do.
        return done + len(claimed) or await self._reconcile(here)

    async def _reconcile(self, here: _Here) -> int:
        """Let what is due by now happen, and note when more is."""
        handled = 0
        due: list[timedelta] = []
        for reconciler in RECONCILERS:
            is_clearing = reconciler.name in _CLEARING
            if is_clearing and not here.is_old:
                continue
            count, due_in = await reconciler.run_once(here.client, reconciler.batch)
            handled += count
            if due_in is not None and not is_clearing:
                due.append(due_in)
        here.is_old = False
        here.due_in = min(due, default=None)
        for app in here.scheduled:
            handled += await app.fire_schedules()
        return handled

    async def _settle(
        self, here: _Here, run: Run[Any] | None = None, state: PublicState | None = None
    ) -> bool:
        """Wait until nothing runs any more, or a run has left a state. False: nothing ran."""
        __tracebackhide__ = True
        if not here.is_working:
            return False
        started = looked = monotonic()
        while here.is_working and not here.gate.is_reached:
            await asyncio.sleep(_TICK_SECONDS)
            now = monotonic()
            if now - started > self.timeout:
                raise AssertionError(await self._endless(here))
            if run is not None and now - looked > _LOOK_SECONDS:
                looked = now
                if await self._state(run) is not state:
                    break
        return True

    async def _state(self, run: Run[Any]) -> PublicState:
        state = await (await self.client()).executions.state(run.id)
        if state is None:
            raise ExecutionNotFound(execution_id=run.id)
        return state

    async def _endless(self, here: _Here) -> str:
        running = [one for worker in here.workers.values() for one in worker.claimed]
        lines = [f"After {self.timeout:g} s handlers are still running:"]
        lines += [f"  {one.task}, {one.id}" for one in running]
        lines.append("Give them what they wait for, or raise the `timeout` of the harness.")
        return "\n".join(lines)

    async def _standstill(self, run: Run[Any], wanted: str) -> str:
        """Why a run does not get where the test wants it."""
        executions = (await self.client()).executions
        state = await executions.state(run.id)
        lines = [f"{run.task} is {state} and nothing can run now: it does not reach {wanted}."]
        if state is not None and state.is_terminal:
            lines = [f"{run.task} has ended, it is {state}, and did not reach {wanted}."]
        lines.append(f"Why: {await executions.why(run.id)}")
        lines.append("What happened to it:")
        lines += [
            f"  {event.occurred_at:%H:%M:%S.%f} {event.kind}"
            for event in await executions.events(run.id)
        ]
        if steps := await self.steps(run):
            lines.append(f"Its steps: {', '.join(step.name for step in steps)}")
        return "\n".join(lines)


_HINTS: dict[type, str] = {
    Task: "decorate it with @app.task",
    Run: "app.get(id) returns one",
    timedelta: "or name the unit, as in skip(days=1)",
}


def _check(given: object, kind: type) -> None:
    """Say what belongs where something else was given."""
    if not isinstance(given, kind):
        name = kind.__name__ if kind is timedelta else kind.__name__.lower()
        raise InvalidInput(
            field=name, problem=f"must be a {name}, not {type(given).__name__}: {_HINTS[kind]}"
        )


def _state(text: PublicState | str) -> PublicState:
    try:
        return PublicState(text)
    except ValueError as error:
        near = get_close_matches(str(text), list(PublicState), n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise InvalidInput(
            field="state", problem=f"{text!r} is not one of {', '.join(PublicState)}{hint}"
        ) from error
