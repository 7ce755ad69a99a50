"""What a handler can know about the execution it runs, and what it can do once and for all."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import math
import random
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

from flowfabric import tracing
from flowfabric.core.errors import InvalidInput
from flowfabric.core.policy import Retry
from flowfabric.core.schedule import SCHEDULED_AT_TAG
from flowfabric.core.states import StepKind
from flowfabric.handlers.handler_run import HandlerPaused, HandlerRun, Host, Unrepeated
from flowfabric.handlers.step_errors import error_of, stored_error
from flowfabric.handlers.steps import (
    MARK,
    OWN_PREFIX,
    StepCodec,
    call_in_thread,
    check_name,
    codec_of,
    in_step,
    is_coroutine_function,
    may_try_again,
    pause_before,
)
from flowfabric.tasks.handler_context import HandlerContext
from flowfabric.telemetry import WORKER_LOGGER

if TYPE_CHECKING:
    from flowfabric.client import FlowFabric
    from flowfabric.core.execution import Claimed, Ending, Submission, Submitted
    from flowfabric.core.ids import ExecutionId
    from flowfabric.core.step import StepRecord
    from flowfabric.handlers.journal import Entry

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
F = TypeVar("F", bound="Storable")

_SLEEP = f"{OWN_PREFIX}sleep"
_NOW = f"{OWN_PREFIX}now"
# How often a plain handler that waits to try a step again looks whether it should stop.
_LOOK_SECONDS = 0.1
_making = threading.Lock()


class ChildOptions(Protocol):
    @property
    def with_parent(self) -> bool: ...

    @property
    def via(self) -> object: ...


class Submittable(Protocol[P, R_co]):
    """A task, as far as `ctx.submit` needs one; `R_co` is its run."""

    @property
    def name(self) -> str: ...

    @property
    def options(self) -> ChildOptions: ...

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any: ...

    def submission(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Submission: ...

    def run_of(self, submitted: Submitted) -> R_co: ...


class Storable(Protocol):
    """A flow, as far as `ctx.flow` needs one."""

    @property
    def name(self) -> str: ...

    def within(self, context: Context) -> None: ...


def _on_the_loop(function: Callable[P, R]) -> Callable[P, R]:
    """For the methods of a context that are awaited."""
    name = getattr(function, "__name__", "")

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        context: Any = args[0]
        context._check_loop(f"ctx.{name}(...)", f"ctx.{name}_sync")
        return function(*args, **kwargs)

    return _marked(call)


def _marked(call: Callable[P, R]) -> Callable[P, R]:
    """Let others see that what it returns is to be awaited, as with `async def`."""
    if sys.version_info >= (3, 12):
        return inspect.markcoroutinefunction(call)
    setattr(call, MARK, getattr(asyncio.coroutines, MARK))
    return call


def _not_awaited(call: str, instead: str) -> RuntimeError:
    return RuntimeError(
        f"{call} has to be awaited in an `async def` task. In a `def` task use: {instead}(...)"
    )


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Context(HandlerContext):
    """The execution a handler runs: who it is, which attempt, what it has done so far.

    A parameter annotated with this class receives it; `flowfabric.current` is the same one.

    After a crash, a sleep or a wait the handler starts again from its first line. What it did
    through `step`, `sleep`, `now` and `submit` is not done again: it returns what it returned.
    """

    __slots__ = ("_cancelled", "_claimed", "_handler_run", "_host", "_random")

    def __init__(self, claimed: Claimed, host: Host | None = None) -> None:
        self._claimed = claimed
        self._host = host
        self._cancelled = False
        self._handler_run: HandlerRun | None = None
        self._random: random.Random | None = None

    @property
    def execution_id(self) -> ExecutionId:
        return self._claimed.id

    @property
    def task(self) -> str:
        return self._claimed.task

    @property
    def attempt(self) -> int:
        """0 for the first attempt, then 1, 2, ..."""
        return self._claimed.attempt_index

    @property
    def epoch(self) -> int:
        """The fencing number of this lease; it rises with every new one."""
        return self._claimed.epoch

    @property
    def cancelled(self) -> bool:
        """True once the lease is lost or the worker stops: nothing done from then on counts.

        An `async def` handler is cancelled anyway; a `def` handler has to look.
        """
        return self._cancelled

    @property
    def random(self) -> random.Random:
        """Random numbers that are the same in every run of the handler."""
        if in_step.get() is not None:
            raise RuntimeError(
                "ctx.random inside the function of a step: a later run does not come here, and "
                "its numbers would be others. Draw them in the handler, or use random itself"
            )
        if self._random is None:
            self._random = random.Random(str(self._claimed.execution_id))
        return self._random

    # The arguments of a function cannot be typed together with an option of ours: with `retry`
    # they are checked when it is called.

    @overload
    async def step(
        self,
        name: str,
        function: Callable[..., Coroutine[Any, Any, T]],
        /,
        *args: Any,
        retry: Retry | None,
        **kwargs: Any,
    ) -> T: ...
    @overload
    async def step(
        self,
        name: str,
        function: Callable[..., T],
        /,
        *args: Any,
        retry: Retry | None,
        **kwargs: Any,
    ) -> T: ...
    @overload
    async def step(
        self,
        name: str,
        function: Callable[P, Coroutine[Any, Any, T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T: ...
    @overload
    async def step(
        self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...

    def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function once: its value is recorded, and a later run gets it from there.

        A plain function runs in a thread. The value is stored as JSON by the function's return
        type. An error is raised here; `retry` tries again at once, without starting the handler
        over. An error that fails the attempt is not recorded, and the next attempt calls the
        function again; one after which the handler goes on is, and a later run raises it here.
        Steps that run side by side should have different names.
        """
        self._check_loop(f"ctx.step({name!r}, ...)", "ctx.step_sync")
        return self._step(asyncio.current_task(), name, function, args, kwargs)

    async def _step(
        self,
        caller: asyncio.Task[Any] | None,
        name: str,
        function: Callable[..., Any],
        args: Any,
        kwargs: Any,
    ) -> Any:
        run = self._durable(f"step {name!r}")
        check_name(name)
        codec = codec_of(function, name)
        retry = _policy(kwargs)
        entry = await run.begin(name, StepKind.STEP, is_own=run.is_own())
        if entry.record is not None:
            return self._recorded(run, codec, entry.record)
        try:
            value = await self._try(name, function, args, kwargs, retry)
            stored = codec.write(value, name)
            record = await run.record(entry, value=stored)
        except Exception as error:
            run.failed(entry, stored_error(error), asyncio.current_task(), caller)
            raise
        finally:
            run.done()
        return value if record.value == stored else self._recorded(run, codec, record)

    @_on_the_loop
    async def sleep(self, duration: timedelta | float, *, name: str | None = None) -> None:
        """Sleep for a time, or seconds. The worker is free meanwhile, and any worker goes on."""
        delay = _span(duration)
        run = self._durable("sleep")
        await self._sleep(run, name, run.is_own(), delay=delay)

    @_on_the_loop
    async def sleep_until(self, when: datetime, *, name: str | None = None) -> None:
        """Sleep until a time. The worker is free meanwhile, and any worker goes on."""
        _check_moment(when)
        run = self._durable("sleep_until")
        await self._sleep(run, name, run.is_own(), until=when)

    @_on_the_loop
    async def now(self, *, name: str | None = None) -> datetime:
        """The time of the database, the same in every run of the handler."""
        run = self._durable("now")
        return await self._now(run, name, run.is_own())

    @_on_the_loop
    async def scheduled_at(self) -> datetime | None:
        """The time for which a schedule submitted this execution; None if none did."""
        if self._host is None:
            raise RuntimeError("no handler runs with this context: nothing can be asked")
        told = await self._host.client.executions.tag(self.execution_id, SCHEDULED_AT_TAG)
        return None if told is None else datetime.fromisoformat(told)

    @_on_the_loop
    async def progress(self, percent: int | None = None, message: str | None = None) -> None:
        """Say how far the execution is; what is not given stays."""
        await self._made().progress(percent, message)

    @_on_the_loop
    async def submit(self, task: Submittable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Submit a child, once: a later run of the handler gets the same run back.

        `await run.result()` leaves the worker free until the child has ended. A child lives on when
        this execution ends, unless it was submitted by `task.using(with_parent=True)`.
        """
        run = self._durable(f"submit of {task.name}")
        if task.options.via is not None:
            raise InvalidInput(
                field="via", problem="a child is stored by itself: use task.submit(..., via=...)"
            )
        submission = task.submission(args, kwargs)
        submission.with_parent = task.options.with_parent
        submitted = await run.submit(task.name, submission, is_own=self._is_own(run))
        return task.run_of(submitted)

    def flow(self, flow: F, /) -> F:
        """Store a flow once: `async with ctx.flow(app.flow("report")) as f: ...`. A later run of
        the handler writes it down again and gets the run of the first.

        `await f.run.result()` leaves the worker free until the flow has ended. A `def` handler says
        `with` instead.
        """
        if not hasattr(flow, "within"):
            raise InvalidInput(
                field="flow",
                problem=f"must be a flow, not {type(flow).__name__}: ctx.flow(app.flow(name))",
            )
        self._durable(f"flow {flow.name!r}")
        flow.within(self)
        return flow

    # For handlers that run in a thread.

    @overload
    def step_sync(
        self,
        name: str,
        function: Callable[..., Coroutine[Any, Any, T]],
        /,
        *args: Any,
        retry: Retry | None,
        **kwargs: Any,
    ) -> T: ...
    @overload
    def step_sync(
        self,
        name: str,
        function: Callable[..., T],
        /,
        *args: Any,
        retry: Retry | None,
        **kwargs: Any,
    ) -> T: ...
    @overload
    def step_sync(
        self,
        name: str,
        function: Callable[P, Coroutine[Any, Any, T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T: ...
    @overload
    def step_sync(
        self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...

    def step_sync(
        self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """`step` for a `def` handler; a plain function runs in the handler's own thread."""
        run = self._durable(f"step {name!r}", "ctx.step(...)")
        check_name(name)
        codec = codec_of(function, name)
        retry = _policy(kwargs)
        is_own = self._is_own_thread(run)
        entry = self._call(lambda: run.begin(name, StepKind.STEP, is_own=is_own))
        if entry.record is not None:
            return self._recorded(run, codec, entry.record)
        try:
            value = self._try_sync(name, function, args, kwargs, retry)
            stored = codec.write(value, name)
            record = self._call(lambda: run.record(entry, value=stored))
        except Exception as error:
            run.failed(entry, stored_error(error))
            raise
        finally:
            run.done_elsewhere()
        return value if record.value == stored else self._recorded(run, codec, record)

    def sleep_sync(self, duration: timedelta | float, *, name: str | None = None) -> None:
        """`sleep` for a `def` handler."""
        delay = _span(duration)
        run = self._durable("sleep", "ctx.sleep(...)")
        is_own = self._is_own_thread(run)
        self._call(lambda: self._sleep(run, name, is_own, delay=delay))

    def sleep_until_sync(self, when: datetime, *, name: str | None = None) -> None:
        """`sleep_until` for a `def` handler."""
        _check_moment(when)
        run = self._durable("sleep_until", "ctx.sleep_until(...)")
        is_own = self._is_own_thread(run)
        self._call(lambda: self._sleep(run, name, is_own, until=when))

    def now_sync(self, *, name: str | None = None) -> datetime:
        """`now` for a `def` handler."""
        run = self._durable("now", "ctx.now()")
        is_own = self._is_own_thread(run)
        return self._call(lambda: self._now(run, name, is_own))

    def scheduled_at_sync(self) -> datetime | None:
        """`scheduled_at` for a `def` handler."""
        _not_on_a_loop("ctx.scheduled_at()")
        return self._call(self.scheduled_at)

    def progress_sync(self, percent: int | None = None, message: str | None = None) -> None:
        """`progress` for a `def` handler."""
        _not_on_a_loop("ctx.progress(...)")
        self._call(lambda: self.progress(percent, message))

    def submit_sync(self, task: Submittable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """`submit` for a `def` handler."""
        _not_on_a_loop("ctx.submit(...)")
        return self._call(lambda: self.submit(task, *args, **kwargs))

    # For the worker.

    @property
    def handler_run(self) -> HandlerRun | None:
        """What the handler has done durably; None if nothing."""
        return self._handler_run

    @property
    def is_pausing(self) -> bool:
        """Whether the handler was told to leave its execution for now."""
        return self._handler_run is not None and self._handler_run.is_pausing

    @property
    def has_failed_steps(self) -> bool:
        """Whether the handler, if it returns now, has got over failures that are to be recorded."""
        return self._handler_run is not None and self._handler_run.has_failed

    async def check_reached(self) -> None:
        """The handler has returned: hold it, if it left out a step that was recorded; record the
        failures it got over."""
        if self._host is not None:
            await self._made().check_reached()

    async def ending_of(self, id: ExecutionId, client: FlowFabric) -> Ending | None:
        """How a run ended; until it has, the handler leaves. None: wait for it here."""
        if self._host is None or self._host.client is not client:
            return None
        run = self._made()
        if not run.may_leave_for(id):
            return None
        return await run.ending(id, is_own=self._is_own(run))

    async def endings_of(
        self, ids: Sequence[ExecutionId], needed: int, client: FlowFabric
    ) -> list[Ending] | None:
        """How runs ended, once so many have; until then the handler leaves. None: wait for them
        here."""
        if not self.records_for(client):
            return None
        run = self._made()
        if not all(run.may_leave_for(id) for id in ids):
            return None
        return await run.endings(ids, needed, is_own=self._is_own(run))

    def records_for(self, client: FlowFabric) -> bool:
        """Whether what is decided here, with what a client says, is that of a handler."""
        return self._host is not None and self._host.client is client and in_step.get() is None

    async def once(self, name: str, work: Callable[[Unrepeated], Awaitable[Any]]) -> Any:
        """Do something of our own whose outcome is that of the first run for all later ones."""
        run = self._durable(name)
        return await run.once(name, work, is_own=self._is_own(run))

    async def ask(self, question: Awaitable[T]) -> T:
        """Wait for the database: the handler does not pause meanwhile."""
        return await self._made().ask(question)

    def know(self, ids: Sequence[ExecutionId]) -> None:
        """These runs exist."""
        self._made().know(ids)

    def loosen(self, ids: Iterable[ExecutionId]) -> None:
        """These runs were submitted by the handler, but not with its context: every run of it
        submits others, so it waits for them where it is."""
        if self._host is not None and not self._cancelled and in_step.get() is None:
            self._made().loosen(ids)

    def waits_here(self) -> None:
        """The handler waits where it is for other executions; from any thread."""
        if (host := self._host) is not None:
            host.loop.call_soon_threadsafe(host.waits, self._claimed)

    def end(self) -> None:
        """The handler has ended; nothing more can be done with its context."""
        self._host = None
        if self._handler_run is not None:
            self._handler_run.end()

    def cancel(self) -> None:
        self._cancelled = True
        if self._handler_run is not None:
            self._handler_run.cancel()

    def _made(self) -> HandlerRun:
        run = self._handler_run
        if run is None:
            with _making:  # a plain handler may have threads of its own
                if (host := self._host) is None:
                    raise RuntimeError("no handler runs with this context: nothing can be recorded")
                run = self._handler_run = self._handler_run or HandlerRun(self._claimed, host)
        if self._cancelled:
            raise run.unwinding()
        return run

    def _durable(self, what: str, instead: str | None = None) -> HandlerRun:
        if instead is not None:
            _not_on_a_loop(instead)
        run = self._made()
        run.check_free(what)
        return run

    def _check_loop(self, call: str, instead: str) -> None:
        """Refuse what has to be awaited on the worker's event loop anywhere else: nobody would."""
        loop = _running_loop()
        if loop is not None and (self._host is None or self._host.loop is loop):
            return
        if (step := in_step.get()) is not None and loop is None:
            raise RuntimeError(
                f"{call} inside the function of step {step!r}: a step is done as a whole or again. "
                "Call it from the handler"
            )
        raise _not_awaited(call, instead)

    def _is_own(self, run: HandlerRun) -> bool:
        """Whether this is the handler's own flow; a call from its thread carries its variables."""
        return run.is_own() if run.root is not None else self._is_own_thread(run)

    def _is_own_thread(self, run: HandlerRun) -> bool:
        """Whether this is the thread of a plain handler, not one that it has started."""
        return run.root is None and running.get() is self

    def _call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run something on the worker's loop, and wait for it in this thread."""
        run = self._made()
        coroutine = on_loop(work)
        try:
            answer = asyncio.run_coroutine_threadsafe(coroutine, run.loop)
        except RuntimeError:
            # The loop is closed, and the worker gone with it.
            coroutine.close()
            raise run.unwinding() from None
        return answer.result()

    def _recorded(self, run: HandlerRun, codec: StepCodec, record: StepRecord) -> Any:
        tracing.step_replayed(record.name)
        if record.kind is StepKind.FAILURE:
            raise error_of(record)
        try:
            return codec.read(record.value)
        except ValueError as error:
            raise run.hold(record.name, f"its value does not fit any more: {error}") from None

    async def _sleep(
        self,
        run: HandlerRun,
        name: str | None,
        is_own: bool,
        *,
        delay: timedelta | None = None,
        until: datetime | None = None,
    ) -> None:
        entry = await run.begin(_named(name, _SLEEP), StepKind.SLEEP, is_own=is_own)
        record = entry.record or await self._noted(run, entry, delay=delay, until=until)
        await run.sleep(record)

    async def _now(self, run: HandlerRun, name: str | None, is_own: bool) -> datetime:
        entry = await run.begin(_named(name, _NOW), StepKind.NOW, is_own=is_own)
        return (entry.record or await self._noted(run, entry)).recorded_at

    async def _noted(self, run: HandlerRun, entry: Entry, **facts: Any) -> StepRecord:
        try:
            return await run.record(entry, **facts)
        finally:
            run.done()

    async def _try(
        self, name: str, function: Callable[..., Any], args: Any, kwargs: Any, retry: Retry | None
    ) -> Any:
        failures = 0
        while True:
            try:
                with tracing.step_span(name):
                    return await self._run(name, function, args, kwargs)
            except Exception as error:
                if self._cancelled or not may_try_again(retry, failures, error):
                    raise
                assert retry is not None
                pause = pause_before(retry, failures)
                _tell_retry(name, error, pause)
            failures += 1
            await asyncio.sleep(pause)

    async def _run(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        token = in_step.set(name)
        try:
            if is_coroutine_function(function):
                return await function(*args, **kwargs)
            call = functools.partial(
                contextvars.copy_context().run, call_in_thread, function, args, kwargs
            )
            value = await self._made().in_thread(call)
            return await value if inspect.isawaitable(value) else value
        finally:
            in_step.reset(token)

    def _try_sync(
        self, name: str, function: Callable[..., Any], args: Any, kwargs: Any, retry: Retry | None
    ) -> Any:
        failures = 0
        while True:
            try:
                with tracing.step_span(name):
                    return self._run_sync(name, function, args, kwargs)
            except Exception as error:
                if self._cancelled or not may_try_again(retry, failures, error):
                    raise
                assert retry is not None
                pause = pause_before(retry, failures)
                _tell_retry(name, error, pause)
            failures += 1
            until = time.monotonic() + pause
            while (left := until - time.monotonic()) > 0:
                time.sleep(min(left, _LOOK_SECONDS))
                if self._cancelled:
                    raise HandlerPaused()

    def _run_sync(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        token = in_step.set(name)
        try:
            value = function(*args, **kwargs)
            return self._call(lambda: _awaited(value)) if inspect.isawaitable(value) else value
        finally:
            in_step.reset(token)


running: ContextVar[Context | None] = ContextVar("flowfabric_context", default=None)


class _Current:
    """The context of the handler that is running here: `current.step(...)`, `current.attempt`;
    called, it is that context itself."""

    __slots__ = ()

    def __call__(self) -> Context:
        context = running.get()
        if context is None:
            raise RuntimeError("current was used outside a handler: no execution is running here")
        return context

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self(), name)

    def __repr__(self) -> str:
        return "flowfabric.current"


if TYPE_CHECKING:

    class _TypedCurrent(Context):
        def __call__(self) -> Context: ...

    current: _TypedCurrent
else:
    current = _Current()


def _span(duration: timedelta | float) -> timedelta:
    if isinstance(duration, timedelta):
        return duration
    if isinstance(duration, bool) or not isinstance(duration, int | float):
        raise InvalidInput(field="duration", problem="must be a timedelta or a number of seconds")
    if not math.isfinite(duration):
        raise InvalidInput(field="duration", problem=f"must be a finite time, not {duration}")
    try:
        return timedelta(seconds=duration)
    except OverflowError:
        raise InvalidInput(field="duration", problem="must be at most a hundred years") from None


def _check_moment(when: datetime) -> None:
    if not isinstance(when, datetime) or when.tzinfo is None:
        raise InvalidInput(field="when", problem="must be a datetime with a time zone")


def _policy(kwargs: dict[str, Any]) -> Retry | None:
    """The option among the arguments of a step."""
    retry: Retry | None = kwargs.pop("retry", None)
    if retry is not None:
        if not isinstance(retry, Retry):
            raise InvalidInput(
                field="retry", problem=f"must be a Retry, not {type(retry).__name__}"
            )
        retry.to_json()
    return retry


def _named(name: str | None, ours: str) -> str:
    if name is None:
        return ours
    check_name(name)
    return name


def _not_on_a_loop(instead: str) -> None:
    if _running_loop() is None:
        return
    raise RuntimeError(f"This would block the event loop. In async code use: await {instead}")


def _tell_retry(name: str, error: Exception, pause: float) -> None:
    WORKER_LOGGER.info(
        "step %s failed, trying it again in %.3g s: %s", name, pause, type(error).__name__
    )


async def on_loop(work: Callable[[], Awaitable[T]]) -> T:
    """Begin something where it runs, not where it was asked for."""
    return await work()


async def _awaited(value: Any) -> Any:
    return await value


def asynchronous(instead: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """For what has to be awaited: in the thread of a plain handler, where nobody can, it is an
    error that names what to call there instead."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if running.get() is not None and _running_loop() is None:
                raise _not_awaited(f"{instead.removesuffix('_sync')}(...)", instead)
            return function(*args, **kwargs)

        return _marked(call)

    return decorate
