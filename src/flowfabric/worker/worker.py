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
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
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
    SlotsLost,
    Unavailable,
)
from flowfabric.core.execution import Claimed, Failure, check_lane
from flowfabric.core.ids import uuid7
from flowfabric.core.policy import capability_set
from flowfabric.core.states import FailureClass
from flowfabric.db.session import Session
from flowfabric.handlers.context import Context, running
from flowfabric.handlers.handler_run import HandlerPaused, Host
from flowfabric.handlers.waits import Awaiting, Held, Pause
from flowfabric.tasks.failures import failure_of
from flowfabric.tasks.inputs import ENCODING, Inputs, fill
from flowfabric.tasks.spec import TaskSpec
from flowfabric.telemetry import WORKER_LOGGER, execution_in_log, named
from flowfabric.worker.heartbeat import Heartbeat
from flowfabric.worker.hints import Hints
from flowfabric.worker.lifespan import Lifespan
from flowfabric.worker.registration import Registration
from flowfabric.worker.slots import Slots
from flowfabric.worker.suspects import (
    ALONE_SECONDS,
    PUT_OFF,
    QUIET_LOOK_SECONDS,
    QUIET_SECONDS,
    Suspects,
)
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
# How long a handler that was told to stop, or to leave its execution for now, may take to do so.
UNWIND_SECONDS = 5.0
# The same when the worker is in a hurry.
HURRIED_SECONDS = 1.0
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
        self._extensions = lifespan.extensions
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
        # A claim whose answer was not heard: the loop is ending, or the connection was cut.
        self._unheard: tuple[UUID, float] | None = None
        # What is to be given back when the worker ends.
        self._returning: dict[Claimed, None] = {}
        self._suspects = Suspects()
        self._attending: asyncio.Task[None] | None = None
        # Set when a suspect that runs alone does not stop, or waits for other work itself.
        self._turn_is_over = asyncio.Event()
        self._is_claiming = False
        self._unsettled: set[asyncio.Future[None]] = set()
        self._ended = asyncio.Event()
        self._ended.set()
        self._unanswered = 0
        self._all_answered = asyncio.Event()
        self._freed = asyncio.Event()
        self._woken = asyncio.Event()
        self._stopping = asyncio.Event()
        self._hurrying = asyncio.Event()
        self._turn = 0
        self._mean_seconds = AHEAD_SECONDS
        self._is_idle = False
        # For plain handlers and plain steps; a thread starts when it is needed.
        self._threads = Threads(concurrency, "flowfabric-task")
        self._pausing: dict[Claimed, asyncio.TimerHandle] = {}
        self._unwind_seconds = UNWIND_SECONDS
        self._slots = Slots(
            concurrency,
            self._unwind_seconds,
            self._threads,
            self._running.keys(),
            opened=self._fill,
            lost=self._end_turn,
            used_up=self._wear_out,
        )
        self._worn_out: SlotsLost | None = None
        self._inputs = Inputs(client)
        self._host = Host(
            client=client,
            loop=self._loop,
            in_thread=self._in_thread,
            lease_ttl=lease_ttl,
            root=self._root,
            leaving=self._watch_pausing,
            lost=self._lost_here,
            waits=self._end_turn,
        )

    @property
    def is_idle(self) -> bool:
        return self._is_idle

    def covers(self, namespace: str, lane: str) -> bool:
        """Whether a hint about a lane concerns this worker."""
        return self._client.namespace in (None, namespace) and (
            self.lanes is None or lane in self.lanes
        )

    def wake(self) -> None:
        """There may be work."""
        self._is_idle = False
        self._woken.set()

    def look(self) -> None:
        """There may be room."""
        self._freed.set()

    def stop(self) -> None:
        """Claim no more; finish what runs, then end."""
        self._stopping.set()
        self._woken.set()
        self._freed.set()

    def stop_at_once(self) -> None:
        """Claim no more, and give back what runs without waiting for it."""
        self._hurrying.set()
        self.stop()

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
        return self._suspects.current is not None or not self._is_quiet

    @property
    def _is_quiet(self) -> bool:
        """Whether nothing runs here or waits for a slot or its end, besides a suspect."""
        return not (
            self._running
            or self._buffer
            or self._interrupted
            or self._unanswered
            or self._unsettled
        )

    @property
    def is_still(self) -> bool:
        """Whether nothing runs here, or is about to, that a crash of the process could come from
        or would hit; a suspect that waits is not counted."""
        return self._is_quiet and not self._slots.has_left_threads and not self._is_claiming

    @property
    def has_turn_of_its_own(self) -> bool:
        """Whether a suspect waits here or runs alone: no worker of the process takes other work."""
        return self._suspects.current is not None

    @property
    def held(self) -> list[Claimed]:
        """What runs here or waits to."""
        return [*self._running, *self._buffer, *self._waiting_suspect]

    @property
    def _waiting_suspect(self) -> list[Claimed]:
        suspect = self._suspects.current
        return [] if suspect is None or suspect in self._running else [suspect]

    @property
    def handlers(self) -> list[tuple[asyncio.Task[None], Claimed]]:
        """What runs here, with its asyncio task; from any thread."""
        return [(task, claimed) for claimed, (task, _) in list(self._running.items())]

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
        if self._suspects.current is not None or self._hints.is_reserved:
            return []
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
            reports_starts=True,
        )
        self._accept(claimed, asked_at)
        return claimed

    async def crash(self) -> list[Claimed]:
        """Leave everything as it is, as a killed process would: nothing is given back, nothing is
        handed in, and the leases run out. Returns what was left behind."""
        left = [*self.held, *self._interrupted]
        self._buffer.clear()
        self._interrupted.clear()
        self._suspects.current = None
        self._hints.let_go()
        stopping = [task for task, _ in self._running.values()]
        for claimed in list(self._running):
            self._abandon(claimed)
        for claimed in left:
            self._heartbeat.drop(claimed)
        if stopping:
            await asyncio.wait(stopping, timeout=CRASH_SECONDS)
        self._threads.shutdown()
        self._slots.close()
        return left

    async def run(self) -> None:
        """Work until stopped or cancelled, then drain. The app's hooks run before and after.

        Cancelled again, it does not wait for what runs, but gives it back. Raises `SlotsLost` if so
        many handlers do not stop that no slot is left.
        """
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
        drain = functools.partial(self._drain, claiming)
        try:
            await asyncio.shield(claiming)
        except BaseException:
            # Cancelled, or it may not claim any more: what is running deserves its end anyway.
            self.stop()
            await self._see_through(drain)
            raise
        else:
            await self._see_through(drain)
            if self._worn_out is not None:
                raise self._worn_out
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
            room = self._slots.free + self._ahead - len(self._buffer)
            if room <= 0 or self._suspects.current is not None or self._hints.is_reserved:
                await self._wait_for_room()
                continue
            # In halves, so that there is something to run while the next claim is on its way.
            limit = self._suspects.limit(min(room, MAX_CLAIM, 2 * self._concurrency))
            behind = self._suspects.behind
            if floor is not None and monotonic() - floor_since > FLOOR_SECONDS:
                floor = None
            self._woken.clear()
            if claim_id is None:
                claim_id, asked_at = uuid7(), monotonic()
            self._is_claiming = True
            try:
                claimed = await self._client.executions.claim(
                    worker_id=self.worker_id,
                    worker_instance_id=self.instance_id,
                    tasks=self._names,
                    lanes=self.lanes,
                    capabilities=self._needs,
                    limit=limit,
                    lease_ttl=self._ttl,
                    # Behind the suspects the lanes have no turns: their places are compared.
                    first_lane=None if behind else self._next_lane(),
                    floor=behind or floor,
                    caller=self._claims,
                    patience=1.0,
                    claim_id=claim_id,
                    reports_starts=True,
                )
            except Unavailable as error:
                # The claim may have been made: it is asked for again by the same name.
                pause = RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)]
                failures += 1
                WORKER_LOGGER.warning("cannot claim, trying again: %s", error)
                self._unheard = (claim_id, asked_at)
                await self._wait(pause)
                continue
            except BaseException:
                self._unheard = (claim_id, asked_at)
                raise
            finally:
                self._is_claiming = False
            failures, claim_id, self._unheard = 0, None, None
            self._accept(claimed, asked_at)
            if behind is not None or self._suspects.current is not None:
                floor = None
            elif len(claimed) == limit:
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

    def _accept(self, claimed: list[Claimed], asked_at: float) -> None:
        """Start what was claimed, or let it wait for a slot; suspects have a way of their own."""
        self._heartbeat.hold(claimed, asked_at, self._lost_elsewhere)
        ordinary, suspects = self._suspects.sort(claimed)
        self._buffer.extend(ordinary)
        self._start_buffered()
        if suspects:
            self._suspects.begin(suspects[0])
            self._attending = asyncio.create_task(self._attend(suspects[0], suspects[1:]))

    async def _attend(self, suspect: Claimed, others: list[Claimed]) -> None:
        """Run a suspect when nothing else runs here, and nothing beside it. The other suspects are
        given back before it starts: a worker that it ends must not hold them."""
        try:
            if others:
                await self._return(others, "suspects_run_alone")
            is_quiet = await self._become_quiet(suspect)
            if self._suspects.current is not suspect or self._stopping.is_set():
                return
            if not is_quiet and (self._suspects.may_put_off(suspect) or self._slots.free <= 0):
                await self._put_off(suspect)
                return
            self._suspects.is_alone = is_quiet
            self._turn_is_over.clear()
            WORKER_LOGGER.warning(
                "%s workers in a row vanished with %s (%s): it runs %s now",
                suspect.crash_count,
                suspect.id,
                suspect.task,
                "alone" if is_quiet else "beside others, which have not ended for long",
            )
            task = self._start(suspect)
            if is_quiet:
                await self._leave_alone(task)
            if is_quiet and self._is_at_work(suspect) and not self._stopping.is_set():
                await self._client.executions.start(suspect, alone=False)
            self._suspects.forget(suspect)
        except FlowFabricError as error:
            WORKER_LOGGER.warning("the turn of %s is over: %s", suspect.id, error)
        except asyncio.CancelledError:
            # The loop is ending: the suspect stays noted, to be given back.
            self.stop()
            raise
        finally:
            if self._suspects.current is suspect and not self._stopping.is_set():
                self._suspects.end()
            self._hints.let_go()
            self._freed.set()
            self.wake()

    def _is_at_work(self, claimed: Claimed) -> bool:
        return claimed in self._running and not self._running[claimed][1].cancelled

    async def _leave_alone(self, task: asyncio.Task[None]) -> None:
        """Wait until a suspect has ended, has run for long, itself waits for other work or does not
        stop, or the worker stops."""
        stopping = asyncio.create_task(self._stopping.wait())
        over = asyncio.create_task(self._turn_is_over.wait())
        try:
            await asyncio.wait(
                [task, stopping, over], timeout=ALONE_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            stopping.cancel()
            over.cancel()

    def _end_turn(self, claimed: Claimed) -> None:
        """A handler waits where it is for other executions, or does not stop: if it is a suspect
        that runs alone, other work is let in."""
        if self._suspects.current is claimed:
            self._turn_is_over.set()

    async def _become_quiet(self, suspect: Claimed) -> bool:
        until = monotonic() + QUIET_SECONDS
        while not (self.is_still and self._hints.is_still):
            if self._suspects.current is not suspect or self._stopping.is_set():
                return False
            if monotonic() > until:
                return False
            await asyncio.sleep(QUIET_LOOK_SECONDS)
        return True

    async def _put_off(self, suspect: Claimed) -> None:
        WORKER_LOGGER.warning(
            "%s (%s) cannot run alone now, other handlers do not end; it is put off for %s",
            suspect.id,
            suspect.task,
            PUT_OFF,
        )
        try:
            await self._client.executions.delay(suspect, PUT_OFF)
        finally:
            self._heartbeat.drop(suspect)

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
            await self._return(waiting, "claimed_ahead")

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
        while self._buffer and self._slots.free > 0:
            self._start(self._buffer.popleft())

    def _start(self, claimed: Claimed) -> asyncio.Task[None]:
        context = Context(claimed, self._host)
        # Not in the context of the handler that made room: what it set is its own.
        task = self._loop.create_task(self._execute(claimed, context), context=self._context.copy())
        self._running[claimed] = (task, context)
        return task

    async def _execute(self, claimed: Claimed, context: Context) -> None:
        """One execution: decode, call, encode, settle."""
        started = monotonic()
        running.set(context)
        execution_in_log.set(claimed)
        spec = self._tasks[claimed.task]
        # What cannot be read or stored now cannot be later; what the handler raises may pass.
        kind = FailureClass.PERMANENT
        try:
            if claimed.crash_count and not await self._say_started(claimed):
                return
            with tracing.process_span(claimed, self.instance_id):
                payload = claimed.payload
                if claimed.payload_encoding == ENCODING:
                    kind = FailureClass.TRANSIENT
                    inputs = await self._inputs.read(claimed.id)
                    kind = FailureClass.PERMANENT
                    payload = fill(payload, inputs)
                args, kwargs = spec.decode(payload, context)
                kind = FailureClass.TRANSIENT
                if not self._extensions.is_bare:
                    value = await self._extensions.run(
                        spec,
                        context,
                        args,
                        kwargs,
                        shared=self._lifespan.shared,
                        in_thread=functools.partial(self._in_thread, claimed),
                    )
                elif spec.is_async:
                    value = await spec.function(*args, **kwargs)
                else:
                    value = await self._in_thread(
                        claimed, functools.partial(spec.function, *args, **kwargs)
                    )
                if claimed.epoch > 1 or context.has_failed_steps:
                    await context.check_reached()
                kind = FailureClass.PERMANENT
                result = spec.encode_result(value)
        except HandlerPaused:
            # Not an end: what becomes of the execution is settled below, or by whoever stopped it.
            pass
        except asyncio.CancelledError as error:
            if context.cancelled or context.is_pausing:
                return
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                self._interrupt(claimed, context, error)
            else:
                # Something the handler waited for was cancelled: a failure like any other.
                self._settle_failed(claimed, failure_of(error, retry=spec.retry))
        except KeyboardInterrupt:
            self._end_by_interrupt(claimed, context)
            raise
        except GeneratorExit:
            # The loop has ended: nobody is left to give the lease back, so it runs out.
            self._heartbeat.drop(claimed)
            raise
        except BaseException as error:
            if not context.is_pausing:
                self._settle_failed(claimed, failure_of(error, kind, spec.retry))
        else:
            if context.is_pausing:
                return
            self._hand_in(claimed, result)
        finally:
            seconds = monotonic() - started
            self._mean_seconds += 0.05 * (seconds - self._mean_seconds)
            del self._running[claimed]
            context.end()
            if context.is_pausing:
                self._pause(claimed, context)
            self._slots.ended(claimed)

    def _fill(self) -> None:
        """A slot is free."""
        self._freed.set()
        if not self._stopping.is_set():
            self._start_buffered()

    def _wear_out(self) -> None:
        """No slot is left: a new process has them all again."""
        if not self._stopping.is_set():
            self._worn_out = SlotsLost(
                f"All {self._concurrency} slots are lost to handlers that do not stop: "
                f"{named(self._slots.lost)}."
            )
            WORKER_LOGGER.error("%s The worker drains and ends.", self._worn_out)
            self.stop()

    async def _say_started(self, claimed: Claimed) -> bool:
        """Let the database know, before the handler is called, of a run that may crash again."""
        is_alone = self._suspects.is_alone and self._suspects.current is claimed
        try:
            await self._client.executions.start(claimed, alone=is_alone)
        except (LeaseLost, ExecutionNotActive) as error:
            WORKER_LOGGER.warning("%s was lost before it started: %s", claimed.id, error)
        except Unavailable as error:
            WORKER_LOGGER.warning(
                "%s is not started, its lease will run out: %s", claimed.id, error
            )
        else:
            return True
        self._heartbeat.drop(claimed)
        return False

    def _root(self, claimed: Claimed) -> asyncio.Task[None] | None:
        """The task in which an async handler runs."""
        running = self._running.get(claimed)
        return running[0] if running and self._tasks[claimed.task].is_async else None

    def _watch_pausing(self, claimed: Claimed) -> None:
        self._pausing[claimed] = self._loop.call_later(
            self._unwind_seconds, self._pause_without_handler, claimed
        )

    def _pause_without_handler(self, claimed: Claimed) -> None:
        """The handler goes on although it was told to leave: its execution does so without it."""
        if (running := self._running.get(claimed)) is not None:
            WORKER_LOGGER.warning(
                "the handler of %s does not let go of it; what it still does will not count",
                claimed.id,
            )
            self._pause(claimed, running[1])
            if not self._stopping.is_set():
                self._slots.lose(claimed)

    def _pause(self, claimed: Claimed, context: Context) -> None:
        """The handler has been unwound: put its execution to sleep, let it wait, or hold it."""
        if (timer := self._pausing.pop(claimed, None)) is not None:
            timer.cancel()
        handler_run = context.handler_run
        if handler_run is None or (pause := handler_run.pause) is None or handler_run.has_paused:
            return
        if context.cancelled:  # the lease is gone, or given back by whoever stopped the handler
            return
        handler_run.has_paused = True
        if isinstance(pause, Held):
            WORKER_LOGGER.warning("%s is held at step %s: %s", claimed.id, pause.step, pause.reason)
        future = asyncio.ensure_future(self._carry_out(pause, claimed))
        self._unsettled.add(future)
        future.add_done_callback(functools.partial(self._paused, claimed, pause))

    async def _carry_out(self, pause: Pause, claimed: Claimed) -> None:
        for seconds in RETRY_SECONDS:
            try:
                await pause.carry_out(self._client, claimed)
            except Unavailable as error:
                WORKER_LOGGER.info("%s cannot be left yet: %s", claimed.id, error)
                await asyncio.sleep(seconds)
            else:
                return
        await pause.carry_out(self._client, claimed)

    def _paused(self, claimed: Claimed, pause: Pause, future: asyncio.Future[None]) -> None:
        self._unsettled.discard(future)
        if future.cancelled():
            # The loop is ending.
            self._returning[claimed] = None
            return
        self._heartbeat.drop(claimed)
        if isinstance(pause, Awaiting):
            # Its rows were locked for a moment: a claim may have passed over what it waits for.
            self.wake()
        if (error := future.exception()) is None:
            return
        if isinstance(error, ExecutionNotActive) and error.is_late:
            _log_late(claimed, error)
        elif isinstance(error, LeaseLost | ExecutionNotActive):
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

    def _end_by_interrupt(self, claimed: Claimed, context: Context) -> None:
        """Ctrl-C hit this handler, or it raised KeyboardInterrupt by itself. That ends the event
        loop; whoever ends its tasks gives us the time to give everything back."""
        WORKER_LOGGER.error(
            "%s raised KeyboardInterrupt: the worker ends and gives back what it holds (%s)",
            claimed.task,
            claimed.id,
        )
        context.cancel()
        self._returning[claimed] = None
        if (task := asyncio.current_task()) is not None:
            # The loop raises it by itself; nobody asks this task for it.
            task.add_done_callback(lambda task: task.cancelled() or task.exception())
        self.stop_at_once()

    def _settle_interrupted(self, claimed: Claimed) -> None:
        failure = self._interrupted.pop(claimed, None)
        if failure is not None:
            self._settle_failed(claimed, failure)

    async def _in_thread(self, claimed: Claimed, call: Callable[[], Any]) -> Any:
        # The thread sees the context; it cannot be interrupted, so its late result is dropped.
        inherited = contextvars.copy_context()
        thread = self._threads.submit(functools.partial(inherited.run, _called, call))
        try:
            return await asyncio.wrap_future(thread)
        except asyncio.CancelledError:
            if thread.running() and not self._stopping.is_set():
                self._slots.left(claimed, thread)
            raise

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

    def _hand_in(self, claimed: Claimed, result: bytes | None) -> None:
        try:
            self._client.executions.hand_in(claimed, result, self._answered)
        except Unavailable as error:
            self._told(claimed, error, has_result=True)
        else:
            self._unanswered += 1

    def _answered(self, item: tuple[Claimed, bytes | None], answer: BaseException | None) -> None:
        """A result was stored, or refused."""
        claimed = item[0]
        self._unanswered -= 1
        if answer is None:
            self._heartbeat.drop(claimed)
        elif isinstance(answer, asyncio.CancelledError):
            # All tasks of the loop were cancelled, and that of the call with them: say it again.
            self._hand_in(*item)
        else:
            self._told(claimed, answer, has_result=True)
        if not self._unanswered:
            self._all_answered.set()

    def _settled(self, claimed: Claimed, future: asyncio.Future[None]) -> None:
        """A failure was stored, or refused."""
        self._unsettled.discard(future)
        if future.cancelled():
            # The loop is ending. If it was not stored, it runs again.
            self._returning[claimed] = None
        else:
            self._told(claimed, future.exception(), has_result=False)

    def _told(self, claimed: Claimed, error: BaseException | None, *, has_result: bool) -> None:
        self._heartbeat.drop(claimed)
        if isinstance(error, ExecutionNotActive) and error.is_late:
            _log_late(claimed, error)
        elif isinstance(error, LeaseLost | ExecutionNotActive):
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
        if self._suspects.current in gone and self._suspects.current not in self._running:
            self._suspects.current = None
            self._hints.let_go()
        for claimed in several:
            self._heartbeat.drop(claimed)
            if claimed in self._running and not self._has_paused(claimed):
                WORKER_LOGGER.warning("lost the lease of %s, stopping its handler", claimed.id)
                self._abandon(claimed)
                self._slots.told(claimed)

    def _has_paused(self, claimed: Claimed) -> bool:
        handler_run = self._running[claimed][1].handler_run
        return handler_run is not None and handler_run.has_paused

    def _lost_here(self, claimed: Claimed, error: FlowFabricError) -> None:
        """The engine refused what the handler wanted to record."""
        self._heartbeat.drop(claimed)
        if claimed in self._running:
            task, context = self._running[claimed]
            if not context.cancelled and isinstance(error, ExecutionNotActive) and error.is_late:
                _log_late(claimed, error)
            elif not context.cancelled:
                WORKER_LOGGER.warning("lost the lease of %s, stopping its handler", claimed.id)
            context.cancel()
            self._slots.told(claimed)
            if task is not asyncio.current_task():
                task.cancel()

    def _abandon(self, claimed: Claimed) -> None:
        task, context = self._running[claimed]
        context.cancel()
        task.cancel()

    async def _see_through(self, work: Callable[[], Awaitable[None]]) -> None:
        """Bring this to its end, however often this task or all tasks of the loop are cancelled
        meanwhile, as by a second Ctrl-C: then it is begun again, and in a hurry."""
        interruption: asyncio.CancelledError | None = None
        task = asyncio.ensure_future(work())
        while True:
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                interruption = error
                self.stop_at_once()
                continue
            if not task.cancelled() and not isinstance(task.exception(), KeyboardInterrupt):
                break
            self.stop_at_once()
            task = asyncio.ensure_future(work())
        task.result()
        if interruption is not None:
            raise interruption

    async def _drain(self, claiming: asyncio.Task[None]) -> None:
        """Give back what has not started, let the rest finish, and give that back in the end. May
        be cancelled anywhere and begun again."""
        await asyncio.wait([claiming])
        self._slots.close()
        await self._hear()
        await self._give_back()
        finishing = [task for task, context in self._stoppable.values() if not context.cancelled]
        if finishing and not self._hurrying.is_set():
            WORKER_LOGGER.info("draining: %s executions are running", len(finishing))
            await self._wait_for(finishing, self._drain_timeout.total_seconds())
        left = self._stoppable
        kept = [claimed for claimed, (_, context) in left.items() if not context.cancelled]
        if kept:
            WORKER_LOGGER.warning(
                "giving back %s executions that did not finish: %s", len(kept), named(kept)
            )
        for claimed in kept:
            self._returning[claimed] = None
            self._abandon(claimed)
        if left:
            await asyncio.wait(
                [task for task, _ in left.values()],
                timeout=HURRIED_SECONDS if self._hurrying.is_set() else self._unwind_seconds,
            )
        if self._attending is not None:
            await asyncio.wait([self._attending])
        # A result that cannot be stored becomes a failure to be settled.
        while self._returning or self._interrupted or self._unanswered or self._unsettled:
            await self._give_back()
            if self._unanswered:
                self._all_answered.clear()
                await self._all_answered.wait()
            if self._unsettled:
                await asyncio.wait(self._unsettled)

    @property
    def _stoppable(self) -> dict[Claimed, tuple[asyncio.Task[None], Context]]:
        """What runs, without the handlers of which it is known that they do not stop."""
        lost = self._slots.lost
        return {claimed: one for claimed, one in self._running.items() if claimed not in lost}

    async def _wait_for(self, tasks: list[asyncio.Task[None]], seconds: float) -> None:
        """Wait until they have ended, the time is over, or the worker is in a hurry."""
        ended = asyncio.ensure_future(asyncio.wait(tasks))
        hurried = asyncio.ensure_future(self._hurrying.wait())
        try:
            await asyncio.wait(
                [ended, hurried], timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            ended.cancel()
            hurried.cancel()

    async def _give_back(self) -> None:
        """Give back what has not started, or was interrupted. What is given back stays noted until
        that is done."""
        waiting = [*self._buffer, *self._interrupted, *self._waiting_suspect]
        self._buffer.clear()
        self._interrupted.clear()
        self._suspects.current = None
        await self._return([*waiting, *self._returning])

    async def _return(self, several: list[Claimed], cause: str = "worker_shutdown") -> None:
        self._returning.update(dict.fromkeys(several))
        if several:
            await self._release(several, cause)
            for claimed in several:
                self._returning.pop(claimed, None)

    async def _hear(self) -> None:
        """Ask what a claim has leased that was cut short: asked for no task, it leases no more."""
        if self._unheard is None:
            return
        claim_id, asked_at = self._unheard
        try:
            claimed = await self._client.executions.claim(
                worker_id=self.worker_id,
                worker_instance_id=self.instance_id,
                tasks=[],
                lease_ttl=self._ttl,
                caller=self._claims,
                patience=1.0,
                claim_id=claim_id,
            )
        except FlowFabricError as error:
            WORKER_LOGGER.error("what was claimed last will run out: %s", error)
            claimed = []
        self._unheard = None
        self._heartbeat.hold(claimed, asked_at, self._lost_elsewhere)
        self._returning.update(dict.fromkeys(claimed))

    async def _release(self, held: list[Claimed], cause: str) -> None:
        try:
            refused = await self._client.leases.release(held, cause=cause)
        except FlowFabricError as error:
            WORKER_LOGGER.error("leases could not be given back, they will run out: %s", error)
            refused = {}
        for claimed in held:
            self._heartbeat.drop(claimed)
        for claimed, reason in refused.items():
            WORKER_LOGGER.warning("%s could not be given back: %s", claimed.id, reason)


def _log_late(claimed: Claimed, error: ExecutionNotActive) -> None:
    """Say which time was over, and what becomes of the execution."""
    if error.facts["reason"] == "deadline_passed":
        what, then = "deadline passed", "it expired"
    elif error.delayed_until is None:
        what, then = "attempt timed out", "no retry is left, it expired"
    else:
        what, then = "attempt timed out", f"it will be tried again at {error.delayed_until}"
    WORKER_LOGGER.warning(
        "%s before the handler had ended: %s %s, attempt %s; its result does not count, %s",
        what,
        claimed.task,
        claimed.id,
        claimed.attempt_index + 1,
        then,
    )


def _called(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except StopIteration as error:
        # No future can carry it: whoever waits would wait for ever.
        raise RuntimeError("the handler raised StopIteration") from error
