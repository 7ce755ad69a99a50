"""Runs an app's tasks in a test. The test decides when tasks run and what time it is."""

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
from flowfabric.core.stream import Frame, Rewind, Truncated
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
S = TypeVar("S")

# A drain that starts more handlers than this will probably never end, so it fails.
MOST_ATTEMPTS = 10_000
# How many times `run` may move the clock for one run.
MOST_JUMPS = 1_000
_TICK_SECONDS = 0.001
_LOOK_SECONDS = 0.01
# The reconcilers that remove old rows. No run waits for them, so they run only after a skip.
_TRIMMERS = {
    "retention_trimmer",
    "event_trimmer",
    "key_trimmer",
    "event_roll_up",
    "stream_expiry",
    "worker_sweep",
}


@dataclass(eq=False)
class _Session:
    """The client and the workers on the event loop of the test."""

    loop: asyncio.AbstractEventLoop
    client: FlowFabric
    workers: dict[App, Worker] = field(default_factory=dict)
    scheduled: set[App] = field(default_factory=set)
    breakpoint: Breakpoint = field(default_factory=Breakpoint)
    # Whether timers may have become due since the reconcilers last ran, and whether old rows may
    # exist.
    is_due: bool = True
    is_old: bool = False
    due_in: timedelta | None = None

    @property
    def is_working(self) -> bool:
        return any(worker.is_working for worker in self.workers.values())


class Harness:
    """Runs tasks for a test, on its own database. Nothing runs by itself.

    A call fails if handlers take more than `timeout` seconds of real time.
    """

    def __init__(self, database: Database, *, timeout: float = 30.0) -> None:
        self.database = database
        self.timeout = timeout
        self._redirect = Redirect(database.url)
        self._session: _Session | None = None
        self._runner: asyncio.Runner | None = None

    @property
    def database_url(self) -> str:
        """The URL of the test's database. All apps use it until the test ends."""
        return self.database.url

    async def client(self) -> FlowFabric:
        """Return a client of the test's database, for every namespace."""
        return (await self._open()).client

    async def submit(self, task: Task[P, R, T, S], *args: P.args, **kwargs: P.kwargs) -> Run[T, S]:
        """Submit a task. It runs with the next `run`, `run_until` or `drain`."""
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
        """Work until a run has ended. Return its result or raise as `Run.result` does.

        If you pass a task instead of a run, it is submitted first. When nothing can run, the clock
        moves to the end of the next back-off, delay, sleep or lease of a crashed worker. For a
        flow, all nodes run to their end. The result of a flow is the result of its last node. If
        there are several last nodes, the result is a dict of their results by node name.
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
        session = await self._begin()
        jumps = 0
        while not (state := await self._state(run)).is_terminal:
            if await self._settle(session, run, state) or await self._work(session, 1):
                continue
            if await self._state(run) is not state:
                continue  # The run made progress between the first read and the search for work.
            if session.due_in is None or jumps == MOST_JUMPS:
                raise AssertionError(await self._standstill(run, "its end"))
            await self.skip(max(session.due_in, timedelta()))
            jumps += 1

    @overload
    async def run_until(self, run: Run[Any], state: PublicState | str) -> None: ...
    @overload
    async def run_until(self, run: Run[Any], *, step: str) -> None: ...

    async def run_until(
        self, run: Run[Any], state: PublicState | str | None = None, *, step: str | None = None
    ) -> None:
        """Work until a run is in a state: "active", "delayed", "waiting", "completed", ...

        The clock does not move. A run is active when its handler has started; the handler continues
        during the test's own awaits. If `step` is given instead of a state, work until that step is
        recorded. The handler stops there until the next `run`, `run_until` or `drain`.
        """
        __tracebackhide__ = True
        _check(run, Run)
        if (state is None) == (step is None):
            raise InvalidInput(field="state", problem="give either a state or a step")
        session = await self._begin()
        if step is not None:
            session.breakpoint.close_at(run.id, step)
        wanted = None if state is None else _state(state)
        what = f"step {step!r}" if wanted is None else str(wanted)
        if step and any(record.name == step for record in await self.steps(run)):
            what += f" again ({step!r} was recorded before this call)"
        while not session.breakpoint.is_reached and (now := await self._state(run)) is not wanted:
            if now.is_terminal:
                raise AssertionError(await self._standstill(run, what))
            if await self._settle(session, run, now):
                continue
            claimed: list[Claimed] = []
            if not await self._work(session, 1, claimed):
                if await self._state(run) is not now:
                    continue
                raise AssertionError(await self._standstill(run, what))
            if wanted is PublicState.ACTIVE and any(one.id == run.id for one in claimed):
                await asyncio.sleep(0)  # the handler begins
                return

    async def drain(self, *, concurrency: int = 1) -> int:
        """Work until nothing can run now. Return how many handlers were started.

        Delayed executions stay delayed; `skip` moves the clock. By default handlers run one after
        another, in the order of a worker's claims: priority first, then age.
        """
        __tracebackhide__ = True
        session = await self._begin()
        started: list[Claimed] = []
        await self._settle(session)
        while await self._work(session, concurrency, started):
            await self._settle(session)
            if len(started) > MOST_ATTEMPTS:
                raise AssertionError(
                    f"drain() has started {len(started)} handlers and there is still work: does "
                    f"{started[-1].task} submit itself endlessly?"
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
        """Move the clock of the database forward, and return the new time.

        Work that becomes due runs with the next `run`, `run_until` or `drain`. Python's clock does
        not move.
        """
        _check(by, timedelta)
        span = by + timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)
        if span < timedelta():
            raise InvalidInput(field="by", problem="must not be negative")
        session = await self._open()
        session.is_due = session.is_old = True
        living = [worker.instance_id for worker in session.workers.values()]
        return await asyncio.to_thread(self.database.skip, span, living)

    async def signal(
        self, run: Run[Any], name: str, value: Any = None, /, *, by: str | None = None
    ) -> None:
        """Send a signal to a run; a handler that waits for it continues with the next `run`."""
        _check(run, Run)
        await self._begin()
        await run.signal(name, value, by=by)

    async def start_schedules(self, app: App) -> None:
        """Start the schedules of an app now. Due schedules fire with the next `drain`.

        If a test does not call this, schedules never fire. After a `skip`, the misfire rule of a
        schedule decides whether its skipped times fire.
        """
        await self._meet(app)
        session = await self._open()
        session.scheduled.add(app)
        await app.fire_schedules()

    async def now(self) -> datetime:
        """Return the time of the database's clock."""
        return await (await self.client()).executions.server_time()

    async def crash_worker(self) -> list[ExecutionId]:
        """Crash the worker like `kill -9`, without finishing or releasing its executions.

        Return the executions that it had claimed. Their leases expire when the clock moves. Another
        worker starts with the next `run`, `run_until` or `drain`.
        """
        session = await self._open()
        left: list[Claimed] = []
        session.breakpoint.crash()
        workers = list(session.workers.values())
        session.workers.clear()
        for worker in workers:
            left += await worker.crash()
        return [claimed.id for claimed in left]

    async def events(self, run: Run[Any]) -> list[Event]:
        """Return the events of a run, oldest first."""
        return await (await self.client()).executions.events(run.id)

    async def steps(self, run: Run[Any]) -> list[StepRecord]:
        """Return the recorded steps of a run, in the order they started."""
        return await (await self.client()).steps.list(run.id)

    async def frames(self, run: Run[Any, S]) -> list[Frame[S]]:
        """Return the frames of a run so far.

        Frames that a later run of the handler sent again are listed once.
        """
        streams = (await self.client()).streams
        kept: list[Frame[S]] = []
        since: str | None = None
        while True:
            items, _, since = await streams.read(run.id, since=since)
            for item in map(run.typed, items):
                if isinstance(item, Rewind):
                    kept = [frame for frame in kept if item.keeps(frame)]
                elif isinstance(item, Frame):
                    kept.append(item)
            if all(isinstance(item, Truncated) for item in items):
                return kept

    def submitted(self) -> list[Submitted]:
        """Return everything that was submitted, oldest first."""
        return [Submitted.of(row) for row in self.database.submitted()]

    def assert_submitted(
        self,
        task: Task[..., Any, Any],
        /,
        *args: Any,
        times: int | None = 1,
        **kwargs: Any,
    ) -> list[Submitted]:
        """Fail unless a task was submitted `times` times with these arguments. Return the matches.

        Omitted arguments and options match anything. To give options, pass
        `task.using(lane=..., priority=..., key=..., tags=..., delay=...)` as the task.
        `times=None` means at least once, `times=0` means never. This is not a coroutine: do not
        await it.
        """
        __tracebackhide__ = True
        _check(task, Task)
        expected = Expectation(task, args, kwargs)
        submitted = self.submitted()
        matches = [submission for submission in submitted if expected.fits(submission)]
        if len(matches) != times and not (times is None and matches):
            raise AssertionError(expected.message(submitted, times))
        return matches

    def check(self) -> None:
        """Fail if the data violate an invariant that `flowfabric doctor` checks.

        For tests that write to the tables by hand. This is not a coroutine: do not await it.
        """
        __tracebackhide__ = True
        # The checks of the installation would fail, because the test database has a movable clock.
        names = {check.name for check in invariants()}
        violations = [
            finding
            for finding in self.database.examine().findings
            if finding.name in names and finding.level is Level.ERROR
        ]
        if violations:
            lines = [
                f"  {found.name} {found.execution or ''}: {found.problem}" for found in violations
            ]
            raise AssertionError("\n".join(["The database violates invariants:", *lines]))

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine method of the harness in a plain test: `ff.call(ff.run(task, 7))`."""
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            work.close()
            raise TypeError("call() is for plain tests; in a coroutine use await")
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(work)

    async def close(self) -> None:
        """Stop everything that runs, and close all connections.

        After this call, the harness can be used again.
        """
        session, self._session = self._session, None
        if session is not None:
            session.breakpoint.crash()
            for worker in session.workers.values():
                await worker.crash()
        for app in self._redirect.used():
            await app.close()
        if session is not None:
            await session.client.close()

    def rest(self) -> None:
        """Close the harness on each event loop that it used. Call this outside of coroutines.

        Event loops that are running or closed are skipped.
        """
        loops = {loop for app in self._redirect.used() for loop in app.loops}
        if self._session is not None:
            loops.add(self._session.loop)
        for loop in loops:
            if not loop.is_running() and not loop.is_closed():
                loop.run_until_complete(self.close())

    def end(self) -> None:
        """Close the harness for good, and point the apps back to their own databases."""
        try:
            self.rest()
            if self._runner is not None:
                self._runner.close()
        finally:
            self._redirect.release()

    async def _open(self) -> _Session:
        """Return the session of the running loop. Open it if needed."""
        loop = asyncio.get_running_loop()
        session = self._session
        if session is not None and session.loop is not loop:
            raise RuntimeError(
                "ff was used on another event loop before. Fixtures and the test that use it must "
                "share one loop: see loop_scope of pytest-asyncio, or anyio_backend."
            )
        if session is None:
            session = self._session = _Session(loop, FlowFabric(self.database.url, namespace=None))
            await session.client.open()
        return session

    async def _begin(self) -> _Session:
        """Open the session. If a handler has stopped at a step, let it continue."""
        session = await self._open()
        session.breakpoint.open()
        session.is_due = True
        return session

    async def _meet(self, app: App) -> None:
        self._redirect.take(app)
        await self._open()

    async def _worker(self, session: _Session, app: App) -> Worker:
        worker = session.workers.get(app)
        if worker is None:
            session.breakpoint.watch(await app.client())
            worker = session.workers[app] = await app.worker(
                concurrency=MOST_ATTEMPTS,
                needs=frozenset().union(*(task.spec.needs for task in app.tasks.values())),
                worker_id="test",
                is_paced=True,
            )
        return worker

    async def _work(
        self, session: _Session, concurrency: int, started: list[Claimed] | None = None
    ) -> int:
        """Run due reconcilers and start handlers. Return 0 if nothing was done."""
        done = await self._reconcile(session) if session.is_due else 0
        session.is_due = False
        claimed: list[Claimed] = []
        for app in self._redirect.used():
            if app.tasks and len(claimed) < concurrency:
                worker = await self._worker(session, app)
                claimed += await worker.claim_once(concurrency - len(claimed))
        if started is not None:
            started += claimed
        # Look once more before reporting that there is nothing to do.
        return done + len(claimed) or await self._reconcile(session)

    async def _reconcile(self, session: _Session) -> int:
        """Run the reconcilers, fire due schedules, and note when the next timer is due.

        Reconcilers that remove old rows run only after a skip. Return 0 if nothing was done.
        """
        handled = 0
        due: list[timedelta] = []
        for reconciler in RECONCILERS:
            is_trimmer = reconciler.name in _TRIMMERS
            if is_trimmer and not session.is_old:
                continue
            count, due_in = await reconciler.run_once(session.client, reconciler.batch)
            handled += count
            if due_in is not None and not is_trimmer:
                due.append(due_in)
        session.is_old = False
        session.due_in = min(due, default=None)
        for app in session.scheduled:
            handled += await app.fire_schedules()
        return handled

    async def _settle(
        self, session: _Session, run: Run[Any] | None = None, state: PublicState | None = None
    ) -> bool:
        """Wait for the running handlers. Return False if no handler was running.

        The wait ends early if a handler has stopped at the awaited step, or if `run` is no longer
        in `state`.
        """
        __tracebackhide__ = True
        if not session.is_working:
            return False
        started = looked = monotonic()
        while session.is_working and not session.breakpoint.is_reached:
            await asyncio.sleep(_TICK_SECONDS)
            now = monotonic()
            if now - started > self.timeout:
                raise AssertionError(await self._endless(session))
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

    async def _endless(self, session: _Session) -> str:
        running = [claimed for worker in session.workers.values() for claimed in worker.claimed]
        lines = [f"After {self.timeout:g} s handlers are still running:"]
        lines += [f"  {claimed.task}, {claimed.id}" for claimed in running]
        lines.append("Let them finish, or raise the `timeout` of the harness.")
        return "\n".join(lines)

    async def _standstill(self, run: Run[Any], wanted: str) -> str:
        """Return a message that says why a run does not reach the wanted state or step."""
        executions = (await self.client()).executions
        state = await executions.state(run.id)
        lines = [f"{run.task} is {state} and nothing can run now: it does not reach {wanted}."]
        if state is not None and state.is_terminal:
            lines = [f"{run.task} has ended as {state} and did not reach {wanted}."]
        lines.append(f"Why: {await executions.why(run.id)}")
        lines.append("Its events:")
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
    """Refuse an argument that is not of the type `kind`. The error says how to correct the call."""
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
