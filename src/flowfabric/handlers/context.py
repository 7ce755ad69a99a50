"""Context: what a handler knows about its execution, and what it can do durably."""

from __future__ import annotations

import asyncio
import functools
import math
import random
from collections.abc import Awaitable, Callable, Coroutine, Generator
from datetime import datetime, timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    NoReturn,
    ParamSpec,
    Protocol,
    TypeVar,
    TypeVarTuple,
    overload,
)

from flowfabric import tracing
from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import check_payload
from flowfabric.core.policy import Retry
from flowfabric.core.schedule import SCHEDULED_AT_TAG
from flowfabric.core.states import StepKind
from flowfabric.handlers.durable_run import DurableRun
from flowfabric.handlers.handler_run import HandlerRun, current_run
from flowfabric.handlers.loops import (
    check_no_loop,
    mark_coroutine_function,
    not_awaited,
    running_loop,
)
from flowfabric.handlers.step_calls import StepCall
from flowfabric.handlers.step_errors import error_of, stored_error
from flowfabric.handlers.steps import (
    RESERVED_PREFIX,
    check_name,
    function_name,
    in_step,
)
from flowfabric.handlers.transactions import TransactionalStep
from flowfabric.tasks.handler_context import HandlerContext

if TYPE_CHECKING:
    from flowfabric.core.execution import Submission, Submitted
    from flowfabric.core.ids import ExecutionId
    from flowfabric.core.step import StepRecord
    from flowfabric.handlers.journal import Entry

P = ParamSpec("P")
Ts = TypeVarTuple("Ts")
T = TypeVar("T")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
F = TypeVar("F", bound="Storable")

_SLEEP = f"{RESERVED_PREFIX}sleep"
_NOW = f"{RESERVED_PREFIX}now"


class ChildOptions(Protocol):
    """The options of a task that matter to a child."""

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


def _awaited(function: Callable[P, R]) -> Callable[P, R]:
    """Refuse a call of a context's async method off the worker's event loop; name its twin."""
    name = getattr(function, "__name__", "")

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        context: Any = args[0]
        _check_loop(context._run, f"ctx.{name}(...)", f"ctx.{name}_sync")
        return function(*args, **kwargs)

    return mark_coroutine_function(call)


class PatchAnswer:
    """The answer of `ctx.patched`, which has to be awaited."""

    __slots__ = ("_decide",)

    def __init__(self, decide: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        self._decide = decide

    def __await__(self) -> Generator[Any, Any, bool]:
        return self._decide().__await__()

    def __bool__(self) -> bool:
        # An object is true by default, so that `if ctx.patched(...)` would always be.
        raise RuntimeError("ctx.patched(...) was not awaited; write `if await ctx.patched(...)`")


class Context(HandlerContext):
    """The execution a handler runs: its id, its attempt, and its durable operations.

    A parameter annotated with this class receives it; `flowfabric.current` is the same object.

    After a crash, a sleep or a wait the handler starts again from its first line. What it did
    through `step`, `sleep`, `now` and `submit` is not done again: each call returns what it
    returned before.
    """

    __slots__ = ("_random", "_run")

    def __init__(self, run: HandlerRun) -> None:
        self._run = run
        self._random: random.Random | None = None

    def __dir__(self) -> list[str]:
        """List what a handler may use."""
        return [name for name in vars(Context) if not name.startswith("_")]

    @property
    def execution_id(self) -> ExecutionId:
        return self._run.claimed.id

    @property
    def task(self) -> str:
        return self._run.claimed.task

    @property
    def attempt(self) -> int:
        """The number of this attempt: 1 for the first, then 2, 3, ..."""
        return self._run.claimed.attempt

    @property
    def generation(self) -> int:
        """How often `continue_as` has continued the execution: 0 at first, then 1, 2, ..."""
        return self._run.claimed.generation

    @property
    def epoch(self) -> int:
        """The fencing number of this lease; every new lease has a higher one."""
        return self._run.claimed.epoch

    @property
    def cancelled(self) -> bool:
        """True once the lease is lost or the worker stops: nothing done from then on counts.

        An `async def` handler is cancelled by itself; a `def` handler has to check this.
        """
        return self._run.is_cancelled

    @property
    def random(self) -> random.Random:
        """Random numbers that are the same in every run of the handler."""
        if in_step.get() is not None:
            raise RuntimeError(
                "ctx.random was used inside the function of a step. A later run does not call the "
                "function, so its numbers would differ. Draw them in the handler, or use the "
                "random module in the step"
            )
        if self._random is None:
            claimed = self._run.claimed
            seed = str(claimed.execution_id)
            if claimed.generation:
                seed += f" {claimed.generation}"
            self._random = random.Random(seed)
        return self._random

    # Python cannot type keyword arguments of a function together with options of ours: with
    # `retry` or `timeout` a type checker accepts positional arguments only.

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
    @overload
    async def step(
        self,
        name: str,
        function: Callable[[*Ts], Coroutine[Any, Any, T]],
        /,
        *args: *Ts,
        retry: Retry | None,
        timeout: timedelta | float | None = None,
    ) -> T: ...
    @overload
    async def step(
        self,
        name: str,
        function: Callable[[*Ts], Coroutine[Any, Any, T]],
        /,
        *args: *Ts,
        timeout: timedelta | float | None,
    ) -> T: ...
    @overload
    async def step(
        self,
        name: str,
        function: Callable[[*Ts], T],
        /,
        *args: *Ts,
        retry: Retry | None,
        timeout: timedelta | float | None = None,
    ) -> T: ...
    @overload
    async def step(
        self,
        name: str,
        function: Callable[[*Ts], T],
        /,
        *args: *Ts,
        timeout: timedelta | float | None,
    ) -> T: ...

    # mypy does not see that the implementation accepts `*args: *Ts`.
    def step(  # type: ignore[misc]
        self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """Call a function once and record its value; a later run returns the recorded value.

        A plain function runs in a thread. The value is stored as JSON by the function's return
        type. An error is raised here; `retry` calls the function again without restarting the
        handler. A call that takes longer than `timeout` raises TimeoutError. An error that fails
        the attempt is not recorded, and the next attempt calls the function again. An error that
        the handler handles is recorded, and a later run raises it here. Steps that run side by
        side should have different names.
        """
        _check_loop(self._run, f"ctx.step({name!r}, ...)", "ctx.step_sync")
        prepare = self._prepare_step
        return self._perform(asyncio.current_task(), prepare, name, function, args, kwargs)

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
    @overload
    def step_sync(
        self,
        name: str,
        function: Callable[[*Ts], Coroutine[Any, Any, T]],
        /,
        *args: *Ts,
        retry: Retry | None,
        timeout: timedelta | float | None = None,
    ) -> T: ...
    @overload
    def step_sync(
        self,
        name: str,
        function: Callable[[*Ts], Coroutine[Any, Any, T]],
        /,
        *args: *Ts,
        timeout: timedelta | float | None,
    ) -> T: ...
    @overload
    def step_sync(
        self,
        name: str,
        function: Callable[[*Ts], T],
        /,
        *args: *Ts,
        retry: Retry | None,
        timeout: timedelta | float | None = None,
    ) -> T: ...
    @overload
    def step_sync(
        self,
        name: str,
        function: Callable[[*Ts], T],
        /,
        *args: *Ts,
        timeout: timedelta | float | None,
    ) -> T: ...

    def step_sync(  # type: ignore[misc]
        self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """`step` for a `def` handler; a plain function runs in the handler's own thread."""
        check_no_loop("ctx.step(...)")
        return self._perform_sync(self._prepare_step, name, function, args, kwargs)

    # `function` gets a connection or a session first, whose type depends on the setting `connect`.

    @overload
    async def transaction(
        self,
        function: str | Callable[..., Any],
        /,
        *args: Any,
        retry: Retry | None,
        **kwargs: Any,
    ) -> Any: ...
    @overload
    async def transaction(
        self,
        name: str,
        function: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T: ...
    @overload
    async def transaction(
        self,
        function: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T: ...
    @overload
    async def transaction(
        self,
        name: str,
        function: Callable[Concatenate[Any, P], T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T: ...
    @overload
    async def transaction(
        self, function: Callable[Concatenate[Any, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...

    def transaction(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run a step whose own writes commit together with its record: exactly once.

        `await ctx.transaction(function, ...)` calls `function(connection, ...)` in a transaction,
        records the value as the last statement, and commits. The name of the step is that of the
        function, or a text before it. The data must be in the database of the execution;
        `App(connect=...)` gives the connections.
        """
        _check_loop(self._run, "ctx.transaction(...)", "ctx.transaction_sync")
        call = _transaction_call(function, args)
        return self._perform(asyncio.current_task(), self._prepare_transaction, *call, kwargs)

    @overload
    def transaction_sync(
        self,
        function: str | Callable[..., Any],
        /,
        *args: Any,
        retry: Retry | None,
        **kwargs: Any,
    ) -> Any: ...
    @overload
    def transaction_sync(
        self,
        name: str,
        function: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T: ...
    @overload
    def transaction_sync(
        self,
        function: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T: ...
    @overload
    def transaction_sync(
        self,
        name: str,
        function: Callable[Concatenate[Any, P], T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T: ...
    @overload
    def transaction_sync(
        self, function: Callable[Concatenate[Any, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...

    def transaction_sync(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """`transaction` for a `def` handler; a plain function runs in the handler's own thread."""
        check_no_loop("ctx.transaction(...)")
        call = _transaction_call(function, args)
        return self._perform_sync(self._prepare_transaction, *call, kwargs)

    def _prepare_step(
        self, name: str, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> StepCall:
        durable = self._run.begin(f"step {name!r}")
        check_name(name)
        retry, timeout = _pop_retry(kwargs), _pop_timeout(kwargs)
        return StepCall(self._run, durable, name, function, args, kwargs, retry, timeout)

    def _prepare_transaction(
        self, name: str, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> StepCall:
        durable = self._run.begin(f"transaction {name!r}")
        check_name(name)
        retry = _pop_retry(kwargs)
        return TransactionalStep(self._run, durable, name, function, args, kwargs, retry)

    async def _perform(
        self,
        caller: asyncio.Task[Any] | None,
        prepare: Callable[..., StepCall],
        name: str,
        *call: Any,
    ) -> Any:
        """Return the recorded value of a step, or do the step."""
        step = prepare(name, *call)
        durable = step.durable
        entry = await durable.begin_step(name, StepKind.STEP, is_own=self._run.is_own_flow())
        if entry.record is not None:
            return _recorded_value(step, entry.record)
        try:
            value, other = await step.do(entry)
        except Exception as error:
            durable.fail_step(entry, stored_error(error), asyncio.current_task(), caller)
            raise
        finally:
            durable.end_step()
        return value if other is None else _recorded_value(step, other)

    def _perform_sync(self, prepare: Callable[..., StepCall], name: str, *call: Any) -> Any:
        """Do as `_perform` does, in the thread of a plain handler."""
        step = prepare(name, *call)
        durable, is_own = step.durable, self._run.is_own_flow()
        begin = functools.partial(durable.begin_step, name, StepKind.STEP, is_own=is_own)
        entry = self._run.call_sync(begin)
        if entry.record is not None:
            return _recorded_value(step, entry.record)
        try:
            value, other = step.do_sync(entry)
        except Exception as error:
            durable.fail_step(entry, stored_error(error))
            raise
        finally:
            durable.end_step_from_thread()
        return value if other is None else _recorded_value(step, other)

    @_awaited
    async def sleep(self, duration: timedelta | float, *, name: str | None = None) -> None:
        """Sleep for a timedelta or a number of seconds.

        The worker is free meanwhile, and any worker continues the handler.
        """
        await self._sleep("sleep", name, delay=_as_timedelta(duration))

    def sleep_sync(self, duration: timedelta | float, *, name: str | None = None) -> None:
        """`sleep` for a `def` handler."""
        self._call_sync(lambda: self.sleep(duration, name=name), "ctx.sleep(...)")

    @_awaited
    async def sleep_until(self, when: datetime, *, name: str | None = None) -> None:
        """Sleep until a time.

        The worker is free meanwhile, and any worker continues the handler.
        """
        if not isinstance(when, datetime) or when.tzinfo is None:
            raise InvalidInput(field="when", problem="must be a datetime with a time zone")
        await self._sleep("sleep_until", name, until=when)

    def sleep_until_sync(self, when: datetime, *, name: str | None = None) -> None:
        """`sleep_until` for a `def` handler."""
        self._call_sync(lambda: self.sleep_until(when, name=name), "ctx.sleep_until(...)")

    @_awaited
    async def now(self, *, name: str | None = None) -> datetime:
        """Return the time of the database, the same in every run of the handler."""
        durable = self._run.begin("now")
        entry = await durable.begin_step(
            _step_name(name, _NOW), StepKind.NOW, is_own=self._run.is_own_flow()
        )
        return (entry.record or await _record(durable, entry)).recorded_at

    def now_sync(self, *, name: str | None = None) -> datetime:
        """`now` for a `def` handler."""
        return self._call_sync(lambda: self.now(name=name), "ctx.now()")

    @_awaited
    def patched(self, name: str) -> Awaitable[bool]:
        """Return True to take new code, False to keep the old code of a run already past it.

        The answer is recorded, so it is the same in every run of the handler. In a loop each call
        gets an answer of its own. Write `if await ctx.patched("name"):`.
        """
        return PatchAnswer(
            lambda: self._run.begin(f"patched({name!r})").is_patched(
                name, is_own=self._run.is_own_flow()
            )
        )

    def patched_sync(self, name: str) -> bool:
        """`patched` for a `def` handler."""

        async def decide() -> bool:
            return await self.patched(name)

        return self._call_sync(decide, "ctx.patched(...)")

    @_awaited
    async def deprecate_patch(self, name: str) -> None:
        """Keep the name of a patch whose old code has gone; holds a run that needs the old code."""
        durable = self._run.begin(f"deprecate_patch({name!r})")
        await durable.deprecate_patch(name, is_own=self._run.is_own_flow())

    def deprecate_patch_sync(self, name: str) -> None:
        """`deprecate_patch` for a `def` handler."""
        self._call_sync(lambda: self.deprecate_patch(name), "ctx.deprecate_patch(...)")

    @_awaited
    async def scheduled_at(self) -> datetime | None:
        """Return the time for which a schedule submitted this execution; None without one."""
        executions = self._run.worker.client.executions
        tag = await executions.tag(self.execution_id, SCHEDULED_AT_TAG)
        return None if tag is None else datetime.fromisoformat(tag)

    def scheduled_at_sync(self) -> datetime | None:
        """`scheduled_at` for a `def` handler."""
        return self._call_sync(self.scheduled_at, "ctx.scheduled_at()")

    @_awaited
    async def progress(self, percent: int | None = None, message: str | None = None) -> None:
        """Report how far the execution is; an argument that is left out keeps its value."""
        await self._run.make_durable().report_progress(percent, message)

    def progress_sync(self, percent: int | None = None, message: str | None = None) -> None:
        """`progress` for a `def` handler."""
        self._call_sync(lambda: self.progress(percent, message), "ctx.progress(...)")

    @_awaited
    async def submit(self, task: Submittable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Submit a child once; a later run of the handler gets the same run back.

        `await run.result()` frees the worker until the child has ended. A child outlives this
        execution, unless it was submitted by `task.using(with_parent=True)`.
        """
        durable = self._run.begin(f"submit of {task.name}")
        if task.options.via is not None:
            raise InvalidInput(
                field="via", problem="a child is stored by itself: use task.submit(..., via=...)"
            )
        submission = task.submission(args, kwargs)
        submission.with_parent = task.options.with_parent
        is_own = self._run.is_own_flow()
        return task.run_of(await durable.submit(task.name, submission, is_own=is_own))

    def submit_sync(self, task: Submittable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """`submit` for a `def` handler."""
        return self._call_sync(lambda: self.submit(task, *args, **kwargs), "ctx.submit(...)")

    @_awaited
    async def continue_as(self, *args: Any, **kwargs: Any) -> NoReturn:
        """End this run, and start the handler again with other arguments and a fresh journal.

        The execution keeps its id, its history, its children and its deadline; `ctx.generation`
        counts. Use it in a handler that never ends, before its journal grows long. The arguments
        are those of the task, and are checked here. Nothing after this call runs.
        """
        durable = self._run.begin("continue_as")
        payload = self._run.spec.encode(args, kwargs)
        check_payload(payload)
        await durable.continue_as(payload, is_own=self._run.is_own_flow())
        raise AssertionError("unreachable: the handler was unwound")

    def continue_as_sync(self, *args: Any, **kwargs: Any) -> NoReturn:
        """`continue_as` for a `def` handler."""
        self._call_sync(lambda: self.continue_as(*args, **kwargs), "ctx.continue_as(...)")
        raise AssertionError("unreachable: the handler was unwound")

    def flow(self, flow: F, /) -> F:
        """Store a flow once: `async with ctx.flow(app.flow("report")) as f: ...`.

        A later run of the handler builds the flow again and gets the stored one back.
        `await f.run.result()` frees the worker until the flow has ended. A `def` handler uses
        `with` instead of `async with`.
        """
        if not hasattr(flow, "within"):
            raise InvalidInput(
                field="flow",
                problem=f"must be a flow, not {type(flow).__name__}: ctx.flow(app.flow(name))",
            )
        self._run.begin(f"flow {flow.name!r}")
        flow.within(self)
        return flow

    async def _sleep(self, what: str, name: str | None, **facts: Any) -> None:
        durable = self._run.begin(what)
        entry = await durable.begin_step(
            _step_name(name, _SLEEP), StepKind.SLEEP, is_own=self._run.is_own_flow()
        )
        await durable.sleep(entry.record or await _record(durable, entry, **facts))

    def _call_sync(self, work: Callable[[], Coroutine[Any, Any, T]], instead: str) -> T:
        """Run an async twin on the worker's loop and wait for it in this thread."""
        check_no_loop(instead)
        return self._run.call_sync(work)


def context_of(run: HandlerRun) -> Context:
    """Return the context of a run, the same object for every caller."""
    context = run.context
    if not isinstance(context, Context):
        context = run.context = Context(run)
    return context


def run_of(context: Context) -> HandlerRun:
    """Return the run behind a context, for the worker and the app."""
    return context._run


class _Current:
    """The context of the handler that is running here: `current.step(...)`, `current.attempt`.

    Called, it returns that context.
    """

    __slots__ = ()

    def __call__(self) -> Context:
        run = current_run.get()
        if run is None:
            raise RuntimeError("current was used outside a handler: no execution is running here")
        return context_of(run)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self(), name)

    def __dir__(self) -> list[str]:
        return [name for name in vars(Context) if not name.startswith("_")]

    def __repr__(self) -> str:
        return "flowfabric.current"


if TYPE_CHECKING:

    class _TypedCurrent(Context):
        def __call__(self) -> Context: ...

    current: _TypedCurrent
else:
    current = _Current()


def _check_loop(run: HandlerRun, call: str, instead: str) -> None:
    """Refuse a call that has to be awaited where the worker's event loop does not run."""
    loop = running_loop()
    if loop is not None and run.is_on_loop(loop):
        return
    if (step := in_step.get()) is not None and loop is None:
        raise RuntimeError(
            f"{call} inside the function of step {step!r}: a step is done as a whole or again. "
            "Call it from the handler"
        )
    raise not_awaited(call, instead)


def _recorded_value(step: StepCall, record: StepRecord) -> Any:
    """Return the value of a recorded step, or raise its recorded failure."""
    tracing.step_replayed(record.name)
    if record.kind is StepKind.FAILURE:
        raise error_of(record)
    try:
        return step.codec.read(record.value)
    except ValueError as error:
        raise step.durable.hold(record.name, f"its value does not fit any more: {error}") from None


async def _record(durable: DurableRun, entry: Entry, **facts: Any) -> StepRecord:
    try:
        return await durable.record(entry, **facts)
    finally:
        durable.end_step()


def _as_timedelta(duration: timedelta | float, field: str = "duration") -> timedelta:
    if isinstance(duration, timedelta):
        return duration
    if isinstance(duration, bool) or not isinstance(duration, int | float):
        raise InvalidInput(field=field, problem="must be a timedelta or a number of seconds")
    if not math.isfinite(duration):
        raise InvalidInput(field=field, problem=f"must be a finite time, not {duration}")
    try:
        return timedelta(seconds=duration)
    except OverflowError:
        raise InvalidInput(field=field, problem="must be at most a hundred years") from None


def _pop_retry(kwargs: dict[str, Any]) -> Retry | None:
    """Take the option `retry` out of the keyword arguments of a step."""
    retry: Retry | None = kwargs.pop("retry", None)
    if retry is not None:
        if not isinstance(retry, Retry):
            raise InvalidInput(
                field="retry", problem=f"must be a Retry, not {type(retry).__name__}"
            )
        retry.to_json()
    return retry


def _pop_timeout(kwargs: dict[str, Any]) -> timedelta | None:
    """Take the option `timeout` out of the keyword arguments of a step."""
    given = kwargs.pop("timeout", None)
    if given is None:
        return None
    timeout = _as_timedelta(given, "timeout")
    if timeout <= timedelta(0):
        raise InvalidInput(field="timeout", problem="must be more than nothing")
    return timeout


def _transaction_call(
    first: Any, args: tuple[Any, ...]
) -> tuple[str, Callable[..., Any], tuple[Any, ...]]:
    """Return the name, the function and its arguments; the name may be left out."""
    name = first if isinstance(first, str) else None
    function, *rest = (first, *args) if name is None else args or (None,)
    if not callable(function):
        raise InvalidInput(
            field="function", problem="must be a function: ctx.transaction(function, ...)"
        )
    return function_name(function) if name is None else name, function, tuple(rest)


def _step_name(name: str | None, default: str) -> str:
    if name is None:
        return default
    check_name(name)
    return name
