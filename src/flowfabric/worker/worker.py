"""One worker: claims what its tasks can do, runs it, hands in the results, and drains when told."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import os
import secrets
import socket
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from time import monotonic
from typing import Any
from uuid import UUID

from flowfabric import tracing
from flowfabric.client import FlowFabric
from flowfabric.client.executions import Floor
from flowfabric.core.errors import (
    ExecutionNotActive,
    FlowFabricError,
    InvalidInput,
    LeaseLost,
    Unavailable,
)
from flowfabric.core.execution import Claimed, Failure, check_lane
from flowfabric.core.ids import uuid7
from flowfabric.core.policy import capability_set
from flowfabric.core.states import FailureClass
from flowfabric.db.session import Session
from flowfabric.telemetry import WORKER_LOGGER, execution_in_log
from flowfabric.worker.context import Context, running
from flowfabric.worker.course import Host, Leaving
from flowfabric.worker.failures import failure_of
from flowfabric.worker.heartbeat import Heartbeat
from flowfabric.worker.hints import Hints
from flowfabric.worker.inputs import ENCODING, Inputs, fill
from flowfabric.worker.lifespan import Lifespan
from flowfabric.worker.pauses import Awaiting, Departure, Held
from flowfabric.worker.presence import Registration
from flowfabric.worker.task import TaskSpec
from flowfabric.worker.threads import Threads

MAX_CLAIM = 500
IDLE_POLL_SECONDS = 10.0
DEAF_POLL_SECONDS = 0.5
FLOOR_SECONDS = 0.1
# Handlers slower than this on average get no work claimed ahead of a free slot: it could be done
# by another worker in the meantime.
AHEAD_SECONDS = 0.1
# Those faster than this are limited by the database: they get batches that are worth a claim.
BATCH_SECONDS = 0.01
AHEAD_HOLD_SECONDS = 1.0
# After this many full claims in a row hints would only disturb.
BUSY_CLAIMS = 3
# How long a handler cancelled by somebody else may mean that the program is ending.
INTERRUPT_SECONDS = 1.0
# How long an abandoned handler may take to notice.
CRASH_SECONDS = 1.0
# How long a handler that was told to leave its execution for now may take to do so.
UNWIND_SECONDS = 5.0
RETRY_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


def new_instance_id(worker_id: str) -> str:
    """A name for one process's worker that was never used before."""
    return f"{worker_id}-{os.getpid()}-{secrets.token_hex(4)}"


class Worker:
    """Runs executions until it is told to stop."""

    def __init__(
        self,
        client: FlowFabric,
        claims: Session,
        heartbeat: Heartbeat,
        tasks: Mapping[str, TaskSpec],
        *,
        hints: Hints,
        lifespan: Lifespan,
        lanes: Sequence[str] | None = None,
        concurrency: int = 20,
        needs: Iterable[str] = (),
        worker_id: str | None = None,
        lease_ttl: timedelta = timedelta(seconds=30),
        drain_timeout: timedelta = timedelta(seconds=25),
    ) -> None:
        if not tasks:
            raise InvalidInput(field="tasks", problem="this app has no task; decorate one first")
        if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
            raise InvalidInput(field="concurrency", problem="must be a whole number from 1 on")
        if isinstance(lanes, str) or (lanes is not None and not lanes):
            raise InvalidInput(field="lanes", problem="must be a list of lanes, or None for all")
        for lane in lanes or ():
            check_lane(lane)
        self.worker_id = worker_id or socket.gethostname()
        self.instance_id = new_instance_id(self.worker_id)
        self.lanes = None if lanes is None else sorted(set(lanes))
        self._client = client
        self._claims = claims
        self._heartbeat = heartbeat
        self._tasks = dict(tasks)
        self._names = sorted(tasks)
        self._concurrency = concurrency
        self._needs = sorted(capability_set(needs))
        self._ttl = lease_ttl
        self._drain_timeout = drain_timeout
        self._hints = hints
        self._lifespan = lifespan
        self._surroundings = lifespan.surroundings
        self._has_begun = False
        self._context = contextvars.copy_context()
        self._turns: list[str | None] = [
            *sorted(set(lanes or (spec.lane for spec in tasks.values())))
        ]
        if lanes is None and len(self._turns) > 1:
            # A turn of nobody, by age alone: so a lane that only submits name is served as well.
            self._turns.append(None)
        self._loop = asyncio.get_running_loop()
        self._buffer: deque[Claimed] = deque()
        self._running: dict[Claimed, tuple[asyncio.Task[None], Context]] = {}
        self._interrupted: dict[Claimed, Failure] = {}
        self._unsettled: set[asyncio.Future[None]] = set()
        self._ended = asyncio.Event()
        self._ended.set()
        self._unanswered = 0
        self._all_answered = asyncio.Event()
        self._freed = asyncio.Event()
        self._woken = asyncio.Event()
        self._stopping = asyncio.Event()
        self._turn = 0
        self._mean_seconds = AHEAD_SECONDS
        self._is_idle = False
        # For plain handlers and plain steps; a thread starts when it is needed.
        self._threads = Threads(concurrency, "flowfabric-task")
        self._leaving: dict[Claimed, asyncio.TimerHandle] = {}
        self._inputs = Inputs(client)
        self._host = Host(
            client=client,
            loop=self._loop,
            threads=self._threads,
            lease_ttl=lease_ttl,
            root=self._root,
            leaving=self._watch_leaving,
            lost=self._lost_here,
        )

    @property
    def is_idle(self) -> bool:
        return self._is_idle

    def covers(self, lane: str) -> bool:
        """Whether a hint about a lane concerns this worker."""
        return self.lanes is None or lane in self.lanes

    def wake(self) -> None:
        """There may be work."""
        self._is_idle = False
        self._woken.set()

    def stop(self) -> None:
        """Claim no more; finish what runs, then end."""
        self._stopping.set()
        self._woken.set()
        self._freed.set()

    async def stopped(self) -> None:
        """Wait until the worker has ended; one that never started has."""
        await self._ended.wait()

    @property
    def has_stuck_handlers(self) -> bool:
        """Whether handlers go on although they were told to stop and their work was given back."""
        return any(not task.done() for task, _ in self._running.values())

    @property
    def is_working(self) -> bool:
        """Whether something runs here, waits for a slot, or is not settled yet."""
        return bool(
            self._running
            or self._buffer
            or self._interrupted
            or self._unanswered
            or self._unsettled
        )

    @property
    def held(self) -> list[Claimed]:
        """What runs here or waits for a slot."""
        return [*self._running, *self._buffer]

    async def begin(self) -> None:
        """What comes before the first claim: the app's startup hooks, unless another worker of
        this process has run them. `run()` does it by itself."""
        if not self._has_begun:
            self._context = await self._lifespan.enter(self._tasks.values())
            self._has_begun = True
            tracing.look()  # a hook may have set a provider

    async def claim_once(self, limit: int) -> list[Claimed]:
        """Claim what can run now, at most `limit`, and start it: for a worker that is not `run()`
        but paced by somebody else, as in tests. It has ended when `is_working` is over."""
        await self.begin()
        asked_at = monotonic()
        claimed = await self._client.executions.claim(
            worker_id=self.worker_id,
            worker_instance_id=self.instance_id,
            tasks=self._names,
            lanes=self.lanes,
            capabilities=self._needs,
            limit=limit,
            lease_ttl=self._ttl,
            caller=self._claims,
        )
        self._heartbeat.hold(claimed, asked_at, self._lost_elsewhere)
        self._buffer.extend(claimed)
        self._start_buffered()
        return claimed

    async def crash(self) -> list[Claimed]:
        """Leave everything as it is, as a killed process would: nothing is given back, nothing is
        handed in, and the leases run out. Returns what was left behind."""
        left = [*self.held, *self._interrupted]
        self._buffer.clear()
        self._interrupted.clear()
        stopping = [task for task, _ in self._running.values()]
        for claimed in list(self._running):
            self._abandon(claimed)
        for claimed in left:
            self._heartbeat.drop(claimed)
        if stopping:
            await asyncio.wait(stopping, timeout=CRASH_SECONDS)
        self._threads.shutdown()
        return left

    async def run(self) -> None:
        """Work until stopped or cancelled, then drain. The app's hooks run before and after."""
        self._ended.clear()
        try:
            await self.begin()
            try:
                await self._work()
            except BaseException:
                with contextlib.suppress(Exception):  # it was logged
                    await self._leave()
                raise
            else:
                await self._leave()
        finally:
            self._ended.set()
            WORKER_LOGGER.info("worker %s stopped", self.instance_id)

    async def _leave(self) -> None:
        self._has_begun = False
        await self._lifespan.leave()

    async def _work(self) -> None:
        WORKER_LOGGER.info(
            "worker %s started: %s tasks, concurrency %s, lanes %s",
            self.instance_id,
            len(self._names),
            self._concurrency,
            ", ".join(self.lanes) if self.lanes else "all",
        )
        self._hints.join(self)
        self._heartbeat.join(
            Registration(self.worker_id, self.instance_id, self.lanes, self._names, self._needs)
        )
        claiming = asyncio.create_task(self._claim_until_stopped())
        try:
            await asyncio.shield(claiming)
        except BaseException:
            # Cancelled, or it may not claim any more: what is running deserves its end anyway.
            self.stop()
            await asyncio.wait([claiming])
            await self._drain()
            raise
        else:
            await self._drain()
        finally:
            self._hints.leave(self)
            self._heartbeat.leave(self.instance_id)
            self._threads.shutdown()

    async def _claim_until_stopped(self) -> None:
        floor: Floor | None = None
        floor_since = 0.0
        failures = full = 0
        claim_id: UUID | None = None
        asked_at = 0.0
        while not self._stopping.is_set():
            room = self._concurrency + self._ahead - len(self._running) - len(self._buffer)
            if room <= 0:
                await self._wait_for_room()
                continue
            # In halves, so that there is something to run while the next claim is on its way.
            limit = min(room, MAX_CLAIM, 2 * self._concurrency)
            if floor is not None and monotonic() - floor_since > FLOOR_SECONDS:
                floor = None
            self._woken.clear()
            if claim_id is None:
                claim_id, asked_at = uuid7(), monotonic()
            try:
                claimed = await self._client.executions.claim(
                    worker_id=self.worker_id,
                    worker_instance_id=self.instance_id,
                    tasks=self._names,
                    lanes=self.lanes,
                    capabilities=self._needs,
                    limit=limit,
                    lease_ttl=self._ttl,
                    first_lane=self._next_lane(),
                    floor=floor,
                    caller=self._claims,
                    patience=1.0,
                    claim_id=claim_id,
                )
            except Unavailable as error:
                # The claim may have been made: it is asked for again by the same name.
                pause = RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)]
                failures += 1
                WORKER_LOGGER.warning("cannot claim, trying again: %s", error)
                await self._wait(pause)
                continue
            failures, claim_id = 0, None
            if claimed:
                self._heartbeat.hold(claimed, asked_at, self._lost_elsewhere)
                self._buffer.extend(claimed)
                self._start_buffered()
            if len(claimed) == limit:
                self._hints.more(self)
                full += 1
                if full == BUSY_CLAIMS:
                    await self._hints.stop_listening()
                if len(self._turns) == 1:
                    if floor is None:
                        floor_since = monotonic()
                    last = claimed[-1]
                    floor = (last.rank, last.order_at, last.execution_id)
            elif floor is not None:
                floor = None
            elif not self._hints.is_listening:
                # Whatever came between the claim and the listening is found by one more claim.
                full = 0
                await self._hints.listen()
            else:
                full = 0
                await self._wait(DEAF_POLL_SECONDS if self._hints.is_deaf else IDLE_POLL_SECONDS)

    @property
    def _ahead(self) -> int:
        """How many executions may wait here for a free slot."""
        if self._mean_seconds < BATCH_SECONDS:
            return 3 * self._concurrency
        return self._concurrency if self._mean_seconds < AHEAD_SECONDS else 0

    async def _wait_for_room(self) -> None:
        self._freed.clear()
        try:
            async with asyncio.timeout(AHEAD_HOLD_SECONDS if self._buffer else None):
                await self._freed.wait()
        except TimeoutError:
            # The handlers have become slow: what waits here could run elsewhere.
            self._mean_seconds = AHEAD_SECONDS
            waiting = list(self._buffer)
            self._buffer.clear()
            await self._release(waiting, "claimed_ahead")

    async def _wait(self, seconds: float) -> None:
        self._is_idle = True
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return
        finally:
            self._is_idle = False

    def _next_lane(self) -> str | None:
        """The lane that goes first among equals in the next claim: they take turns."""
        if len(self._turns) < 2:
            return None
        self._turn = (self._turn + 1) % len(self._turns)
        return self._turns[self._turn]

    def _start_buffered(self) -> None:
        while self._buffer and len(self._running) < self._concurrency:
            claimed = self._buffer.popleft()
            context = Context(claimed, self._host)
            self._running[claimed] = (
                # Not in the context of the handler that made room: what it set is its own.
                self._loop.create_task(
                    self._execute(claimed, context), context=self._context.copy()
                ),
                context,
            )

    async def _execute(self, claimed: Claimed, context: Context) -> None:
        """One execution: decode, call, encode, settle."""
        started = monotonic()
        running.set(context)
        execution_in_log.set(claimed)
        spec = self._tasks[claimed.task]
        # What cannot be read or stored now cannot be later; what the handler raises may pass.
        kind = FailureClass.PERMANENT
        try:
            with tracing.process_span(claimed, self.instance_id):
                payload = claimed.payload
                if claimed.payload_encoding == ENCODING:
                    kind = FailureClass.TRANSIENT
                    inputs = await self._inputs.read(claimed.id)
                    kind = FailureClass.PERMANENT
                    payload = fill(payload, inputs)
                args, kwargs = spec.decode(payload, context)
                kind = FailureClass.TRANSIENT
                if not self._surroundings.is_bare:
                    value = await self._surroundings.run(
                        spec,
                        context,
                        args,
                        kwargs,
                        shared=self._lifespan.shared,
                        in_thread=self._in_thread,
                    )
                elif spec.is_async:
                    value = await spec.function(*args, **kwargs)
                else:
                    value = await self._in_thread(functools.partial(spec.function, *args, **kwargs))
                if claimed.epoch > 1 or context.has_failed_steps:
                    await context.check_reached()
                kind = FailureClass.PERMANENT
                result = spec.encode_result(value)
        except Leaving:
            # Not an end: what becomes of the execution is settled below, or by whoever stopped it.
            pass
        except asyncio.CancelledError as error:
            if context.cancelled or context.is_leaving:
                return
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                self._interrupt(claimed, context, error)
            else:
                # Something the handler waited for was cancelled: a failure like any other.
                self._settle_failed(claimed, failure_of(error, retry=spec.retry))
        except (KeyboardInterrupt, GeneratorExit):
            # The process or the loop is ending: let the lease run out.
            self._heartbeat.drop(claimed)
            raise
        except BaseException as error:
            if not context.is_leaving:
                self._settle_failed(claimed, failure_of(error, kind, spec.retry))
        else:
            if context.is_leaving:
                return
            try:
                self._client.executions.hand_in(claimed, result, self._answered)
            except Unavailable as error:
                self._told(claimed, error, has_result=True)
            else:
                self._unanswered += 1
        finally:
            seconds = monotonic() - started
            self._mean_seconds += 0.05 * (seconds - self._mean_seconds)
            del self._running[claimed]
            context.end()
            if context.is_leaving:
                self._depart(claimed, context)
            self._freed.set()
            if not self._stopping.is_set():
                self._start_buffered()

    def _root(self, claimed: Claimed) -> asyncio.Task[None] | None:
        """The task in which an async handler runs."""
        running = self._running.get(claimed)
        return running[0] if running and self._tasks[claimed.task].is_async else None

    def _watch_leaving(self, claimed: Claimed) -> None:
        self._leaving[claimed] = self._loop.call_later(UNWIND_SECONDS, self._leave_behind, claimed)

    def _leave_behind(self, claimed: Claimed) -> None:
        """The handler goes on although it was told to leave: its execution does so without it."""
        if (running := self._running.get(claimed)) is not None:
            WORKER_LOGGER.warning(
                "the handler of %s does not let go of it; what it still does will not count",
                claimed.id,
            )
            self._depart(claimed, running[1])

    def _depart(self, claimed: Claimed, context: Context) -> None:
        """The handler has been unwound: put its execution to sleep, let it wait, or hold it."""
        if (timer := self._leaving.pop(claimed, None)) is not None:
            timer.cancel()
        course = context.course
        if course is None or (departure := course.departure) is None or course.has_departed:
            return
        if context.cancelled:  # the lease is gone, or given back by whoever stopped the handler
            return
        course.has_departed = True
        if isinstance(departure, Held):
            WORKER_LOGGER.warning(
                "%s is held at step %s: %s", claimed.id, departure.step, departure.reason
            )
        future = asyncio.ensure_future(self._carry_out(departure, claimed))
        self._unsettled.add(future)
        future.add_done_callback(functools.partial(self._departed, claimed, departure))

    async def _carry_out(self, departure: Departure, claimed: Claimed) -> None:
        for pause in RETRY_SECONDS:
            try:
                await departure.carry_out(self._client, claimed)
            except Unavailable as error:
                WORKER_LOGGER.info("%s cannot be left yet: %s", claimed.id, error)
                await asyncio.sleep(pause)
            else:
                return
        await departure.carry_out(self._client, claimed)

    def _departed(
        self, claimed: Claimed, departure: Departure, future: asyncio.Future[None]
    ) -> None:
        self._unsettled.discard(future)
        self._heartbeat.drop(claimed)
        if isinstance(departure, Awaiting):
            # Its rows were locked for a moment: a claim may have passed over what it waits for.
            self.wake()
        if future.cancelled() or (error := future.exception()) is None:
            return
        if isinstance(error, LeaseLost | ExecutionNotActive):
            WORKER_LOGGER.info("%s was left too late: %s", claimed.id, error)
        else:
            WORKER_LOGGER.error("%s could not be left, it will run again: %s", claimed.id, error)

    def _interrupt(self, claimed: Claimed, context: Context, error: BaseException) -> None:
        """The handler's task was cancelled, not by us: most likely the event loop is ending, and
        the worker with it. Then the execution is given back; work must not fail because a program
        stops. If the worker is still there a moment later, it was the handler itself."""
        context.cancel()
        self._interrupted[claimed] = failure_of(error, retry=self._tasks[claimed.task].retry)
        self._loop.call_later(INTERRUPT_SECONDS, self._settle_interrupted, claimed)

    def _settle_interrupted(self, claimed: Claimed) -> None:
        failure = self._interrupted.pop(claimed, None)
        if failure is not None:
            self._settle_failed(claimed, failure)

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        # The thread sees the context; it cannot be interrupted, so its late result is dropped.
        inherited = contextvars.copy_context()
        return await self._loop.run_in_executor(
            self._threads, functools.partial(inherited.run, _called, call)
        )

    def _settle_failed(self, claimed: Claimed, failure: Failure) -> None:
        WORKER_LOGGER.warning(
            "%s failed in attempt %s: %s", claimed.task, claimed.attempt_index + 1, failure.reason
        )
        future = asyncio.ensure_future(self._fail(claimed, failure))
        self._unsettled.add(future)
        future.add_done_callback(functools.partial(self._settled, claimed))

    async def _fail(self, claimed: Claimed, failure: Failure) -> None:
        answer = await self._client.executions.fail(claimed, failure)
        if answer.will_retry:
            WORKER_LOGGER.info("%s will be tried again at %s", claimed.task, answer.delayed_until)

    def _answered(self, item: tuple[Claimed, bytes | None], answer: Exception | None) -> None:
        """A result was stored, or refused."""
        claimed = item[0]
        self._unanswered -= 1
        if answer is None:
            self._heartbeat.drop(claimed)
        else:
            self._told(claimed, answer, has_result=True)
        if not self._unanswered:
            self._all_answered.set()

    def _settled(self, claimed: Claimed, future: asyncio.Future[None]) -> None:
        """A failure was stored, or refused."""
        self._unsettled.discard(future)
        if not future.cancelled():
            self._told(claimed, future.exception(), has_result=False)

    def _told(self, claimed: Claimed, error: BaseException | None, *, has_result: bool) -> None:
        self._heartbeat.drop(claimed)
        if isinstance(error, LeaseLost | ExecutionNotActive):
            WORKER_LOGGER.warning(
                "%s ended too late, its result does not count: %s", claimed.id, error
            )
        elif isinstance(error, InvalidInput) and has_result:
            # The result itself cannot be stored; the failure can.
            self._settle_failed(claimed, failure_of(error, FailureClass.PERMANENT))
        elif error is not None:
            WORKER_LOGGER.error("%s could not be settled, it will run again: %s", claimed.id, error)

    def _lost_elsewhere(self, several: list[Claimed]) -> None:
        """Called on the heartbeat's thread."""
        self._loop.call_soon_threadsafe(self._lost, several)

    def _lost(self, several: list[Claimed]) -> None:
        gone = set(several)
        if any(claimed in gone for claimed in self._buffer):
            self._buffer = deque(claimed for claimed in self._buffer if claimed not in gone)
            self._freed.set()
        for claimed in several:
            self._heartbeat.drop(claimed)
            if claimed in self._running and not self._has_departed(claimed):
                WORKER_LOGGER.warning("lost the lease of %s, stopping its handler", claimed.id)
                self._abandon(claimed)

    def _has_departed(self, claimed: Claimed) -> bool:
        course = self._running[claimed][1].course
        return course is not None and course.has_departed

    def _lost_here(self, claimed: Claimed) -> None:
        """The engine refused what the handler wanted to record."""
        self._heartbeat.drop(claimed)
        if claimed in self._running:
            task, context = self._running[claimed]
            if not context.cancelled:
                WORKER_LOGGER.warning("lost the lease of %s, stopping its handler", claimed.id)
            context.cancel()
            if task is not asyncio.current_task():
                task.cancel()

    def _abandon(self, claimed: Claimed) -> None:
        task, context = self._running[claimed]
        context.cancel()
        task.cancel()

    async def _drain(self) -> None:
        """Give back what has not started, let the rest finish, and give that back in the end."""
        waiting = [*self._buffer, *self._interrupted]
        self._buffer.clear()
        self._interrupted.clear()
        if waiting:
            await self._release(waiting)
        if self._running:
            WORKER_LOGGER.info("draining: %s executions are running", len(self._running))
            await asyncio.wait(
                [task for task, _ in self._running.values()],
                timeout=self._drain_timeout.total_seconds(),
            )
        if left := dict(self._running):
            WORKER_LOGGER.warning("giving back %s executions that did not finish", len(left))
            for claimed in left:
                self._abandon(claimed)
            await asyncio.wait([task for task, _ in left.values()], timeout=5)
            await self._release(list(left))
        # A result that cannot be stored becomes a failure to be settled.
        while self._unanswered or self._unsettled:
            if self._unanswered:
                self._all_answered.clear()
                await self._all_answered.wait()
            if self._unsettled:
                await asyncio.wait(self._unsettled)

    async def _release(self, held: list[Claimed], cause: str = "worker_shutdown") -> None:
        try:
            refused = await self._client.leases.release(held, cause=cause)
        except FlowFabricError as error:
            WORKER_LOGGER.error("leases could not be given back, they will run out: %s", error)
            refused = {}
        for claimed in held:
            self._heartbeat.drop(claimed)
        for claimed, reason in refused.items():
            WORKER_LOGGER.warning("%s could not be given back: %s", claimed.id, reason)


def _called(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except StopIteration as error:
        # No future can carry it: whoever waits would wait for ever.
        raise RuntimeError("the handler raised StopIteration") from error
