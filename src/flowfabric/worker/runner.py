"""Runs executions: decodes the payload, calls the handler, settles the result."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import timedelta
from time import monotonic
from typing import Any, TypeVar

from flowfabric import tracing
from flowfabric.client import FlowFabric
from flowfabric.core.errors import (
    ExecutionNotActive,
    FlowFabricError,
    InvalidInput,
    LeaseLost,
    TooManySteps,
    Unavailable,
)
from flowfabric.core.execution import Claimed, Failure
from flowfabric.handlers import (
    HandlerPaused,
    HandlerRun,
    PauseForNewerCode,
    PauseOnHold,
    PauseToRestart,
    WorkerServices,
    call_for_future,
    context_of,
    current_run,
)
from flowfabric.tasks import (
    UNFILLED_ENCODINGS,
    Inputs,
    TaskSpec,
    failure_of,
    fill_payload,
)
from flowfabric.telemetry import WORKER_LOGGER, execution_in_log
from flowfabric.worker.heartbeat import Heartbeat
from flowfabric.worker.lifespan import Lifespan
from flowfabric.worker.log_text import attempt_text
from flowfabric.worker.pace import Pace
from flowfabric.worker.settlement import Settlement, log_loss
from flowfabric.worker.slots import Slots
from flowfabric.worker.suspects import Suspects
from flowfabric.worker.threads import Threads

# How long a handler may take to end after it was cancelled or asked to pause.
UNWIND_SECONDS = 5.0
# A handler that ends sooner than this, without yielding, needs no asyncio task of its own.
QUICK_SECONDS = 0.0001

_Given = TypeVar("_Given")
_Result = TypeVar("_Result")


def _without_retry(
    step: Callable[[Runner, HandlerRun, _Given], _Result],
) -> Callable[[Runner, HandlerRun, _Given], _Result]:
    """After an error of this step, fail the execution without a retry."""

    @functools.wraps(step)
    def guarded(self: Runner, run: HandlerRun, given: _Given) -> _Result:
        try:
            return step(self, run, given)
        except BaseException:
            run.forbid_retry()
            raise

    return guarded


class Runner:
    """Runs the executions of one worker, and knows which ones are running."""

    def __init__(
        self,
        client: FlowFabric,
        tasks: Mapping[str, TaskSpec],
        lifespan: Lifespan,
        heartbeat: Heartbeat,
        settlement: Settlement,
        suspects: Suspects,
        *,
        instance_id: str,
        code_version: str | None,
        concurrency: int,
        lease_ttl: timedelta,
        stopping: asyncio.Event,
        on_free_slot: Callable[[], None],
        on_no_slots: Callable[[], None],
        on_interrupt: Callable[[], None],
    ) -> None:
        self._client = client
        self._tasks = tasks
        self._lifespan = lifespan
        self._extensions = lifespan.extensions
        self._heartbeat = heartbeat
        self._settlement = settlement
        self._suspects = suspects
        self._instance_id = instance_id
        self._stopping = stopping
        self._on_interrupt = on_interrupt
        self._loop = asyncio.get_running_loop()
        self._inputs = Inputs(client)
        self._pause_timers: dict[Claimed, asyncio.TimerHandle] = {}
        self.unwind_seconds = UNWIND_SECONDS
        # The contextvars that the app's startup hooks set.
        self.contextvars = contextvars.copy_context()
        self.running: dict[Claimed, HandlerRun] = {}
        self.pace = Pace()
        # Names of the tasks whose handlers have yielded (see `driver.py`).
        self._yielding: set[str] = set()
        # Runs plain handlers and plain steps.
        self.threads = Threads(concurrency, "flowfabric-task")
        self.slots = Slots(
            concurrency,
            self.unwind_seconds,
            self.threads,
            self.running.keys(),
            on_free=on_free_slot,
            on_lost=suspects.end_turn_of,
            on_exhausted=on_no_slots,
        )
        self._services = WorkerServices(
            client=client,
            loop=self._loop,
            lease_ttl=lease_ttl,
            code_version=code_version,
            run_in_thread=self._run_in_thread,
            on_pausing=self._watch_pausing,
            on_lease_lost=self._on_write_refused,
            on_blocking_wait=suspects.end_turn_of,
            connect=lifespan.extensions.connect,
            public_url=lifespan.extensions.public_url,
        )

    def start(self, claimed: Claimed) -> asyncio.Task[None]:
        """Start an execution in its own asyncio task."""
        run = self._make_run(claimed)
        # Pass the contextvars: the current ones belong to the handler that freed the slot.
        run.task = self._loop.create_task(self._run(run), context=self.contextvars.copy())
        return run.task

    def begin(
        self, claimed: Claimed, task: asyncio.Task[None]
    ) -> tuple[contextvars.Context, Coroutine[Any, Any, None]]:
        """Return the contextvars and the coroutine of an execution that will run in `task`."""
        run = self._make_run(claimed)
        run.task = task
        return self.contextvars.copy(), self._run(run)

    def yields(self, claimed: Claimed) -> bool:
        """Tell whether the coroutine of the handler will probably yield (see `driver.py`).

        A coroutine that yields needs its own asyncio task.
        """
        return claimed.task in self._yielding

    def note_yielded(self, claimed: Claimed) -> None:
        self._yielding.add(claimed.task)

    def _make_run(self, claimed: Claimed) -> HandlerRun:
        run = self.running[claimed] = HandlerRun(claimed, self._tasks[claimed.task], self._services)
        return run

    async def _run(self, run: HandlerRun) -> None:
        """Run one execution: decode → prepare → call → encode → settle."""
        started_at = monotonic()
        claimed = run.claimed
        current_run.set(run)
        execution_in_log.set(claimed)
        try:
            if claimed.crash_count and not await self._report_start(claimed):
                return
            with tracing.process_span(claimed, self._instance_id):
                payload = claimed.payload
                if claimed.payload_encoding in UNFILLED_ENCODINGS:
                    payload = await self._fill_inputs(run)
                args, kwargs = self._decode(run, payload)
                call = self._prepare(run, args, kwargs)
                value = await call
                if claimed.epoch > 1 or run.has_step_failures:
                    await run.check_journal()
                result = self._encode(run, value)
                if run.has_frames:
                    await run.flush_frames()
        except BaseException as error:
            self._settle_error(run, error)
            if isinstance(error, KeyboardInterrupt | GeneratorExit):
                raise
        else:
            self._settle(run, result)
        finally:
            ended_at = monotonic()
            self.pace.end(ended_at - started_at, ended_at)
            if ended_at - started_at < QUICK_SECONDS:
                self._yielding.discard(claimed.task)
            del self.running[claimed]
            run.end()
            if run.is_pausing:
                self._pause(run)
            self.slots.end_handler(claimed)

    async def _fill_inputs(self, run: HandlerRun) -> bytes:
        """Put the results of other nodes of the flow into the payload."""
        try:
            return await fill_payload(run.claimed, run.spec, self._inputs)
        except InvalidInput:
            run.forbid_retry()
            raise

    @_without_retry
    def _decode(self, run: HandlerRun, payload: bytes | None) -> tuple[list[Any], dict[str, Any]]:
        """Decode the arguments. After an error there is no retry: the payload stays the same."""
        context = None if run.spec.context_name is None else context_of(run)
        return run.spec.decode(payload, context)

    def _prepare(self, run: HandlerRun, args: list[Any], kwargs: dict[str, Any]) -> Awaitable[Any]:
        """Return an awaitable that calls the handler through the extensions of the app.

        A plain handler runs in a thread.
        """
        spec = run.spec
        if not self._extensions.is_empty:
            return self._extensions.call(
                spec,
                context_of(run),
                args,
                kwargs,
                shared=self._lifespan.shared,
                run_in_thread=functools.partial(self._run_in_thread, run.claimed),
            )
        if spec.is_async:
            handler: Awaitable[Any] = spec.function(*args, **kwargs)
            return handler
        return self._run_in_thread(run.claimed, functools.partial(spec.function, *args, **kwargs))

    @_without_retry
    def _encode(self, run: HandlerRun, value: Any) -> bytes:
        """Encode the result. After an error there is no retry: it would most likely fail too."""
        return run.spec.encode_result(value)

    def _settle(self, run: HandlerRun, result: bytes) -> None:
        """Complete an execution whose handler returned, unless the handler was asked to pause."""
        if not run.is_pausing:
            self._settlement.complete(run.claimed, result)

    def _settle_error(self, run: HandlerRun, error: BaseException) -> None:
        """Settle an execution whose handler did not return a result."""
        claimed = run.claimed
        if isinstance(error, HandlerPaused):
            # The execution has not ended: it pauses, or someone else cancelled it.
            return
        if isinstance(error, asyncio.CancelledError):
            if run.is_cancelled or run.is_pausing:
                return
            if run.task.cancelling():
                run.cancel()
                self._settlement.fail_interrupted(claimed, self._failure_of(run, error), error)
            else:
                # Something that the handler awaited was cancelled. This is an ordinary failure.
                self._settlement.fail(claimed, self._failure_of(run, error), error)
        elif isinstance(error, KeyboardInterrupt):
            self._end_by_keyboard(run)
        elif isinstance(error, GeneratorExit):
            # The loop has ended and cannot release the lease any more, so the lease expires.
            self._heartbeat.drop(claimed)
        elif not run.is_pausing:
            if isinstance(error, TooManySteps):
                run.forbid_retry()  # a retry has the same journal
            self._settlement.fail(claimed, self._failure_of(run, error), error)

    def _failure_of(self, run: HandlerRun, error: BaseException) -> Failure:
        return failure_of(error, run.failure_class, run.spec.retry, run.claimed.attempt)

    def _end_by_keyboard(self, run: HandlerRun) -> None:
        """End the worker, because this handler raised KeyboardInterrupt or was hit by Ctrl-C.

        KeyboardInterrupt ends the event loop. `asyncio.run` then cancels all asyncio tasks
        and waits for them, which gives the worker time to release its executions.
        """
        WORKER_LOGGER.error(
            "worker interrupted, it releases its executions: KeyboardInterrupt in %s",
            attempt_text(run.claimed),
        )
        run.cancel()
        self._settlement.release_later([run.claimed])
        # The loop raises the exception itself. Retrieve it here, because no other code does.
        run.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        self._on_interrupt()

    async def _report_start(self, claimed: Claimed) -> bool:
        """Report the start of an execution that crashed earlier, before its handler is called.

        Return False if the handler must not be called.
        """
        is_alone = self._suspects.is_alone and self._suspects.current is claimed
        try:
            await self._client.executions.start(claimed, alone=is_alone)
        except (LeaseLost, ExecutionNotActive) as error:
            log_loss("lease lost before the start", claimed, error)
        except Unavailable as error:
            WORKER_LOGGER.warning(
                "execution not started, its lease will expire: %s: %s", claimed.id, error
            )
        else:
            return True
        self._heartbeat.drop(claimed)
        return False

    async def _run_in_thread(self, claimed: Claimed, call: Callable[[], Any]) -> Any:
        # The thread sees our contextvars. It cannot be interrupted, so a late result is dropped.
        inherited = contextvars.copy_context()
        thread = self.threads.submit(
            functools.partial(inherited.run, call_for_future, call, "the handler")
        )
        try:
            return await asyncio.wrap_future(thread)
        except asyncio.CancelledError:
            if thread.running() and not self._stopping.is_set():
                self.slots.abandon_thread(claimed, thread)
            raise

    def _watch_pausing(self, claimed: Claimed) -> None:
        self._pause_timers[claimed] = self._loop.call_later(
            self.unwind_seconds, self._pause_without_handler, claimed
        )

    def _pause_without_handler(self, claimed: Claimed) -> None:
        """Pause an execution whose handler was asked to pause and did not stop in time."""
        if (run := self.running.get(claimed)) is not None:
            WORKER_LOGGER.warning(
                "handler does not stop, its execution pauses without it and later results of the "
                "handler will not count: %s",
                attempt_text(claimed),
            )
            self._pause(run)
            if not self._stopping.is_set():
                self.slots.lose(claimed)

    def _pause(self, run: HandlerRun) -> None:
        """Pause an execution, unless it was paused already or its handler was cancelled."""
        if (timer := self._pause_timers.pop(run.claimed, None)) is not None:
            timer.cancel()
        durable = run.durable
        if durable is None or durable.pause is None or durable.has_paused or run.is_cancelled:
            return
        durable.has_paused = True
        pause = durable.pause
        if isinstance(pause, PauseOnHold):
            step, is_older = pause.step, pause.is_older
            if run.is_restarted_on_change:
                pause = PauseToRestart(step, pause.problem)
            if is_older:
                pause = PauseForNewerCode(step, pause)
        self._settlement.pause(run.claimed, pause)

    def is_running(self, claimed: Claimed) -> bool:
        """Tell whether the handler runs and still has its lease."""
        return claimed in self.running and not self.running[claimed].is_cancelled

    def cancel(self, claimed: Claimed) -> None:
        """Cancel a handler and ignore its later results."""
        run = self.running[claimed]
        run.cancel()
        run.task.cancel()

    def on_leases_lost(self, several: Mapping[Claimed, FlowFabricError]) -> None:
        """Cancel the handlers of executions whose leases are lost. Log how each lease was lost."""
        for claimed, error in several.items():
            self._heartbeat.drop(claimed)
            run = self.running.get(claimed)
            if run is None or (run.durable is not None and run.durable.has_paused):
                continue
            log_loss("lost the lease, handler cancelled", claimed, error)
            self.cancel(claimed)
            self.slots.request_stop(claimed)

    def _on_write_refused(self, claimed: Claimed, error: FlowFabricError) -> None:
        """Cancel a handler, because the database refused its write."""
        self._heartbeat.drop(claimed)
        if (run := self.running.get(claimed)) is None:
            return
        if not run.is_cancelled:
            log_loss("lost the lease, handler cancelled", claimed, error)
        run.cancel()
        self.slots.request_stop(claimed)
        if run.task is not asyncio.current_task():
            run.task.cancel()

    @property
    def stoppable(self) -> list[HandlerRun]:
        """The runs that can be stopped: all except runs whose slot is lost."""
        lost = self.slots.lost
        return [run for claimed, run in self.running.items() if claimed not in lost]
