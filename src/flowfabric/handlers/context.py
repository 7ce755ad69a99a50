"""The context of a handler: facts about its execution, and its durable operations."""

from __future__ import annotations

import asyncio
import functools
import json
import math
import random
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import CancelledError
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
from uuid import UUID

from flowfabric import tracing
from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import check_payload
from flowfabric.core.limit import Money, dimensions
from flowfabric.core.policy import Retry
from flowfabric.core.schedule import SCHEDULED_AT_TAG
from flowfabric.core.signal import WaitAnswer, check_signal_name
from flowfabric.core.states import StepKind
from flowfabric.handlers.approvals import (
    Approval,
    Ask,
    OpenedApproval,
    check_approval,
    encode_details,
)
from flowfabric.handlers.conditions import Condition
from flowfabric.handlers.durable_run import DurableRun, HandlerPaused
from flowfabric.handlers.handler_run import HandlerRun, current_run
from flowfabric.handlers.loops import (
    check_no_loop,
    mark_coroutine_function,
    not_awaited,
    running_loop,
)
from flowfabric.handlers.signal_waits import signal_step
from flowfabric.handlers.signals import (
    NO_DEFAULT,
    AwaitedSignal,
    default_or_error,
    read_answer,
    signal_codec,
)
from flowfabric.handlers.step_calls import StepCall
from flowfabric.handlers.step_errors import error_of, stored_error
from flowfabric.handlers.steps import (
    RESERVED_PREFIX,
    check_name,
    function_name,
    in_step,
)
from flowfabric.handlers.streams import HandlerStream
from flowfabric.handlers.transactions import TransactionalStep
from flowfabric.handlers.usage import UsageReport, usage_step
from flowfabric.handlers.waitpoints import Waitpoint
from flowfabric.tasks.handler_context import HandlerContext
from flowfabric.tasks.signals import check_declared

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
_WAITPOINT = f"{RESERVED_PREFIX}waitpoint "
_ANSWER = f"{RESERVED_PREFIX}answer "
_CONDITION = f"{RESERVED_PREFIX}condition"
_APPROVAL = f"{RESERVED_PREFIX}approval "
_DECISION = f"{RESERVED_PREFIX}decision "
_NOW = f"{RESERVED_PREFIX}now"


class ChildOptions(Protocol):
    """The options of a task that matter when a handler submits the task as a child."""

    @property
    def with_parent(self) -> bool: ...

    @property
    def via(self) -> object: ...


class Submittable(Protocol[P, R_co]):
    """The part of a task that `ctx.submit` uses. `R_co` is the type of the runs of the task."""

    @property
    def name(self) -> str: ...

    @property
    def options(self) -> ChildOptions: ...

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any: ...

    def submission(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Submission: ...

    def run_of(self, submitted: Submitted) -> R_co: ...


class Storable(Protocol):
    """The part of a flow that `ctx.flow` uses."""

    @property
    def name(self) -> str: ...

    def within(self, context: Context) -> None: ...


def _awaited(function: Callable[P, R]) -> Callable[P, R]:
    """Make an async method refuse calls outside the worker's event loop.

    The error names the method to use instead.
    """
    name = getattr(function, "__name__", "")

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        context: Any = args[0]
        _check_loop(context._run, f"ctx.{name}(...)", f"ctx.{name}_sync")
        return function(*args, **kwargs)

    return mark_coroutine_function(call)


class PatchAnswer:
    """The answer of `ctx.patched`. The caller must await it."""

    __slots__ = ("_decide",)

    def __init__(self, decide: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        self._decide = decide

    def __await__(self) -> Generator[Any, Any, bool]:
        return self._decide().__await__()

    def __bool__(self) -> bool:
        # Objects are true by default, so `if ctx.patched(...)` would always take the new code.
        raise RuntimeError("ctx.patched(...) was not awaited; write `if await ctx.patched(...)`")


class Context(HandlerContext):
    """The execution that a handler runs: its id, its attempt, and its durable operations.

    A parameter annotated with this class receives the context; `flowfabric.current` has the same
    attributes and methods.

    After a crash, a sleep or a wait, the handler starts again from its first line. Calls of `step`,
    `sleep`, `now` and `submit` that have already finished are not repeated: each returns its
    recorded value.
    """

    __slots__ = ("_random", "_run")

    def __init__(self, run: HandlerRun) -> None:
        self._run = run
        self._random: random.Random | None = None

    def __dir__(self) -> list[str]:
        """List the attributes and methods that a handler may use."""
        return [name for name in vars(Context) if not name.startswith("_")]

    @property
    def execution_id(self) -> ExecutionId:
        return self._run.claimed.id

    @property
    def task(self) -> str:
        return self._run.claimed.task

    @property
    def lane(self) -> str:
        return self._run.claimed.lane

    @property
    def attempt(self) -> int:
        """The number of this attempt: 1 for the first, then 2, 3, ..."""
        return self._run.claimed.attempt

    @property
    def generation(self) -> int:
        """The number of this generation: 0 at first. Each `continue_as` or restart adds 1."""
        return self._run.claimed.generation

    @property
    def epoch(self) -> int:
        """The fencing number of this lease. Every new lease has a higher number."""
        return self._run.claimed.epoch

    @property
    def cancelled(self) -> bool:
        """True once the lease is lost or released. Later results of the handler do not count.

        At that moment flowfabric cancels an `async def` handler. It cannot stop a `def` handler, so
        such a handler must check this attribute and return. When a worker stops, it releases the
        leases of all handlers that do not finish in time.
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

    # Python cannot type a function's keyword arguments together with our own options. So with
    # `retry` or `timeout`, a type checker accepts positional arguments only.

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
        """Call a function once and record its value. A later run returns the recorded value.

        A plain function runs in a thread. The value is stored as JSON and read as the return type
        of the function. Give different names to steps that run concurrently.

        If the function raises, it is called again as often as `retry` allows (default: never). Then
        its last error is raised here. If one call of the function takes longer than `timeout`, this
        counts as a TimeoutError of the function.

        If the handler catches the error, the error is recorded, and a later run raises it here. If
        the error fails the attempt, it is not recorded, and the next attempt calls the function
        again.
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

    # The first argument of `function` is a connection or a session. `connect` decides its type.

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
        """Run a step whose writes to the database happen exactly once.

        `await ctx.transaction(function, ...)` calls `function(connection, ...)` in a transaction,
        records the returned value in the same transaction, and commits. The step is named after the
        function; to choose another name, pass it as the first argument.

        The connection comes from `App(connect=...)`, and must lead to the database that stores the
        execution. The default is an asyncpg connection, for an `async def` function only.
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
        """Return the recorded value of a step, or run the step."""
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
        """Like `_perform`, in the thread of a plain handler."""
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

        The sleep takes no slot of the worker. After the sleep, any worker can continue the handler.
        """
        await self._sleep("sleep", name, delay=_as_timedelta(duration))

    def sleep_sync(self, duration: timedelta | float, *, name: str | None = None) -> None:
        """`sleep` for a `def` handler."""
        self._call_sync(lambda: self.sleep(duration, name=name), "ctx.sleep(...)")

    @_awaited
    async def sleep_until(self, when: datetime, *, name: str | None = None) -> None:
        """Sleep until a time.

        The sleep takes no slot of the worker. After the sleep, any worker can continue the handler.
        """
        if not isinstance(when, datetime) or when.tzinfo is None:
            raise InvalidInput(field="when", problem="must be a datetime with a time zone")
        await self._sleep("sleep_until", name, until=when)

    def sleep_until_sync(self, when: datetime, *, name: str | None = None) -> None:
        """`sleep_until` for a `def` handler."""
        self._call_sync(lambda: self.sleep_until(when, name=name), "ctx.sleep_until(...)")

    @overload
    async def wait_for_signal(
        self, name: str, type: type[T], /, *, timeout: timedelta | float | None = None
    ) -> T: ...
    @overload
    async def wait_for_signal(
        self, name: str, type: type[T], /, *, timeout: timedelta | float | None, default: R
    ) -> T | R: ...
    @overload
    async def wait_for_signal(
        self,
        name: str,
        type: Any = ...,
        /,
        *,
        timeout: timedelta | float | None = None,
        default: Any = ...,
    ) -> Any: ...

    def wait_for_signal(
        self,
        name: str,
        type: Any = Any,
        /,
        *,
        timeout: timedelta | float | None = None,
        default: Any = NO_DEFAULT,
    ) -> Any:
        """Wait for a signal with this name, and return its value, which must fit `type`.

        The wait takes no slot of the worker. Signals are kept until they are taken, so a signal
        that came before this call counts, too. Signals are taken in the order in which they came,
        each once.

        After `timeout` the call returns `default`, or raises WaitTimeout if there is no default.
        The timeout begins with the first call; a later run of the handler does not extend it.
        """
        _check_loop(self._run, f"ctx.wait_for_signal({name!r})", "ctx.wait_for_signal_sync")
        return self._wait_for_signal(name, type, timeout, default)

    @overload
    def wait_for_signal_sync(
        self, name: str, type: type[T], /, *, timeout: timedelta | float | None = None
    ) -> T: ...
    @overload
    def wait_for_signal_sync(
        self, name: str, type: type[T], /, *, timeout: timedelta | float | None, default: R
    ) -> T | R: ...
    @overload
    def wait_for_signal_sync(
        self,
        name: str,
        type: Any = ...,
        /,
        *,
        timeout: timedelta | float | None = None,
        default: Any = ...,
    ) -> Any: ...

    def wait_for_signal_sync(
        self,
        name: str,
        type: Any = Any,
        /,
        *,
        timeout: timedelta | float | None = None,
        default: Any = NO_DEFAULT,
    ) -> Any:
        """`wait_for_signal` for a `def` handler."""
        return self._call_sync(
            lambda: self._wait_for_signal(name, type, timeout, default), "ctx.wait_for_signal(...)"
        )

    @overload
    def signal(self, name: str, type: type[T], /) -> AwaitedSignal[T]: ...
    @overload
    def signal(self, name: str, type: Any = ..., /) -> AwaitedSignal[Any]: ...

    def signal(self, name: str, type: Any = Any, /) -> AwaitedSignal[Any]:
        """Return an awaitable for a signal. Await it, or pass it to `first`.

        `await first(run, ctx.signal("stop"), ctx.sleep(60))` takes the signal only if
        the signal comes first.
        """
        signal_codec(name, type)
        return AwaitedSignal(name, lambda: self._wait_for_signal(name, type, None, NO_DEFAULT))

    @overload
    def signals(self, name: str, type: type[T], /) -> AsyncIterator[T]: ...
    @overload
    def signals(self, name: str, type: Any = ..., /) -> AsyncIterator[Any]: ...

    async def signals(self, name: str, type: Any = Any, /) -> AsyncIterator[Any]:
        """Yield the values of all signals with this name, as they come.

        Each signal is recorded, so a later run of the handler gets the same values in the same
        order. The loop does not end by itself: end it with `break` or `return`.
        """
        while True:
            yield await self._wait_for_signal(name, type, None, NO_DEFAULT)

    @overload
    def signals_sync(self, name: str, type: type[T], /) -> Iterator[T]: ...
    @overload
    def signals_sync(self, name: str, type: Any = ..., /) -> Iterator[Any]: ...

    def signals_sync(self, name: str, type: Any = Any, /) -> Iterator[Any]:
        """`signals` for a `def` handler."""
        while True:
            yield self.wait_for_signal_sync(name, type)

    @overload
    async def wait_for(
        self, condition: Condition[T], /, *, timeout: timedelta | float | None = None
    ) -> T: ...
    @overload
    async def wait_for(
        self, condition: Condition[T], /, *, timeout: timedelta | float | None, default: R
    ) -> T | R: ...

    def wait_for(
        self,
        condition: Condition[Any],
        /,
        *,
        timeout: timedelta | float | None = None,
        default: Any = NO_DEFAULT,
    ) -> Any:
        """Wait until a condition is satisfied, and return the values of its signals.

        `await ctx.wait_for(every(signal("a", int), at_least(1, signal("b"), signal("c"))))` returns
        a tuple of the value of `a` and a list of one value. The call takes the signals that
        satisfied the condition. Other waits can take the other signals.

        After `timeout` the call returns `default`, or raises WaitTimeout if there is no default. It
        does not wait for the timeout if closed waitpoints make the condition impossible.
        """
        _check_loop(self._run, "ctx.wait_for(...)", "ctx.wait_for_sync")
        return self._wait_for(condition, timeout, default)

    def wait_for_sync(
        self,
        condition: Condition[T],
        /,
        *,
        timeout: timedelta | float | None = None,
        default: Any = NO_DEFAULT,
    ) -> T:
        """`wait_for` for a `def` handler."""
        found: T = self._call_sync(
            lambda: self._wait_for(condition, timeout, default), "ctx.wait_for(...)"
        )
        return found

    async def _wait_for(
        self, condition: Condition[Any], timeout: timedelta | float | None, default: Any
    ) -> Any:
        self._run.begin("wait_for")
        if not isinstance(condition, Condition):
            raise InvalidInput(
                field="condition",
                problem=f"must be signal(...), every(...) or at_least(...), not "
                f"{type(condition).__name__}",
            )
        for one in condition.ones():
            if (name := one.to_json().get("signal")) is not None:
                check_declared(name, self._run.spec.signals, task=self._run.spec.name)
        limit = None if timeout is None else _as_timedelta(timeout, "timeout")
        what = "complete answer to ctx.wait_for"
        return await self._wait_until(condition, _CONDITION, what, limit, default)

    async def _wait_until(
        self,
        condition: Condition[Any],
        step: str,
        what: str,
        limit: timedelta | None,
        default: Any,
        reason_code: str = "waiting_for_signal",
    ) -> Any:
        durable = self._run.make_durable()
        answer = await durable.signals.wait(
            step,
            functools.partial(durable.signals.declare, condition),
            limit,
            is_own=self._run.is_own_flow(),
            has_default=default is not NO_DEFAULT,
            needs_ids=True,
            reason_code=reason_code,
        )
        if answer.taken_as != "signals" or not isinstance(answer, WaitAnswer):
            return default_or_error(what, answer, default)
        signals = await durable.query(
            durable.client.signals.list(self.execution_id, signal_ids=answer.signal_ids)
        )
        try:
            return condition.read(signals)
        except ValueError as error:
            raise durable.hold(step, f"the value does not fit: {error}") from None

    @_awaited
    async def waitpoint(
        self, key: str, /, *, expires_in: timedelta | float | None = None
    ) -> Waitpoint:
        """Make an address for one answer. Send its token now, `await waitpoint.wait(...)` later.

        Everybody who has the token can answer, with `app.signal(token, value)` or on the page
        `waitpoint.url`. A signal with the name `key` is an answer, too. A later run of the handler
        gets the same waitpoint. If the handler does not begin to wait within `expires_in` after the
        waitpoint was made, the waitpoint is closed.
        """
        durable = self._run.begin(f"waitpoint({key!r})")
        check_signal_name(key)
        expires = None if expires_in is None else _as_timedelta(expires_in, "expires_in")
        entry = await durable.begin_step(
            f"{_WAITPOINT}{_title(key)}", StepKind.STEP, is_own=self._run.is_own_flow()
        )
        record = entry.record
        if record is None:
            try:
                record = await durable.make_waitpoint(entry, key, expires)
            finally:
                durable.end_step()
        made = json.loads(record.value or b"{}")
        return Waitpoint(
            key,
            UUID(made["id"]),
            made["token"],
            durable.public_url,
            self._wait_for_waitpoint,
            lambda work: self._call_sync(work, "waitpoint.wait(...)"),
        )

    def waitpoint_sync(
        self, key: str, /, *, expires_in: timedelta | float | None = None
    ) -> Waitpoint:
        """`waitpoint` for a `def` handler."""
        return self._call_sync(
            lambda: self.waitpoint(key, expires_in=expires_in), "ctx.waitpoint(...)"
        )

    @overload
    async def approval(
        self,
        question: str,
        /,
        *,
        approvers: Sequence[str],
        need: int | None = None,
        deny: int | None = None,
        details: Any = None,
        ask: Ask | None = None,
        timeout: timedelta | float | None = None,
    ) -> Approval: ...
    @overload
    async def approval(
        self,
        question: str,
        /,
        *,
        approvers: Sequence[str],
        need: int | None = None,
        deny: int | None = None,
        details: Any = None,
        ask: Ask | None = None,
        timeout: timedelta | float | None,
        default: R,
    ) -> Approval | R: ...

    def approval(
        self,
        question: str,
        /,
        *,
        approvers: Sequence[str],
        need: int | None = None,
        deny: int | None = None,
        details: Any = None,
        ask: Ask | None = None,
        timeout: timedelta | float | None = None,
        default: Any = NO_DEFAULT,
    ) -> Any:
        """Ask several approvers a question, and wait until they have decided.

        The approval is granted when `need` approvers have approved (default: all). It is denied
        when `deny` approvers have rejected. Without `deny`, it is denied as soon as it can no
        longer be granted.

        Each approver answers once, with their own token. Anybody who has the token can answer as
        this approver. `ask(request)` is called for each approver, as a step, to send the token. An
        operator can answer for an approver with `flowfabric approvals approve`.

        After `timeout` the call returns `default`, or raises WaitTimeout if there is no default.
        """
        _check_loop(self._run, f"ctx.approval({question!r})", "ctx.approval_sync")
        return self._approval(question, approvers, need, deny, details, ask, timeout, default)

    def approval_sync(
        self,
        question: str,
        /,
        *,
        approvers: Sequence[str],
        need: int | None = None,
        deny: int | None = None,
        details: Any = None,
        ask: Ask | None = None,
        timeout: timedelta | float | None = None,
        default: Any = NO_DEFAULT,
    ) -> Any:
        """`approval` for a `def` handler."""
        opened = self._call_sync(
            lambda: self._open_approval(question, approvers, need, deny, details),
            "ctx.approval(...)",
        )
        if ask is not None:
            for request in opened.requests:
                self.step_sync(f"ask {_title(request.approver)}", ask, request)
        return self._call_sync(
            lambda: self._await_approval(opened, timeout, default), "ctx.approval(...)"
        )

    async def _approval(
        self,
        question: str,
        approvers: Sequence[str],
        need: int | None,
        deny: int | None,
        details: Any,
        ask: Ask | None,
        timeout: timedelta | float | None,
        default: Any,
    ) -> Any:
        opened = await self._open_approval(question, approvers, need, deny, details)
        if ask is not None:
            function: Callable[..., Any] = ask
            for request in opened.requests:
                await self.step(f"ask {_title(request.approver)}", function, request)
        return await self._await_approval(opened, timeout, default)

    async def _open_approval(
        self,
        question: str,
        approvers: Sequence[str],
        need: int | None,
        deny: int | None,
        details: Any,
    ) -> OpenedApproval:
        """Ask the question, or return the approval that an earlier run has opened."""
        durable = self._run.begin(f"approval({question!r})")
        names, needed, denying = check_approval(question, approvers, need, deny)
        stored = encode_details(details)
        title = _title(question)
        entry = await durable.begin_step(
            f"{_APPROVAL}{title}", StepKind.STEP, is_own=self._run.is_own_flow()
        )
        record = entry.record
        if record is None:
            try:
                record = await durable.make_approval(
                    entry, names, question, stored, needed, denying
                )
            finally:
                durable.end_step()
        return OpenedApproval.read(record.value, title, question, details, durable.public_url)

    async def _await_approval(
        self, opened: OpenedApproval, timeout: timedelta | float | None, default: Any
    ) -> Any:
        limit = None if timeout is None else _as_timedelta(timeout, "timeout")
        return await self._wait_until(
            opened.condition,
            f"{_DECISION}{opened.title}",
            f"decision of the approval {opened.title!r}",
            limit,
            default,
            reason_code="waiting_for_approval",
        )

    async def _wait_for_waitpoint(
        self,
        key: str,
        id: UUID,
        type: Any,
        timeout: timedelta | float | None,
        default: Any,
    ) -> Any:
        durable = self._run.begin(f"wait for waitpoint {key!r}")
        codec = signal_codec(key, type)
        limit = None if timeout is None else _as_timedelta(timeout, "timeout")
        answer = await durable.signals.wait(
            f"{_ANSWER}{key}",
            functools.partial(durable.signals.declare_one, {"waitpoint": str(id)}, codec),
            limit,
            is_own=self._run.is_own_flow(),
            has_default=default is not NO_DEFAULT,
        )
        return read_answer(durable, key, answer, codec, default)

    async def _wait_for_signal(
        self, name: str, type: Any, timeout: timedelta | float | None, default: Any
    ) -> Any:
        durable = self._run.begin(f"wait_for_signal({name!r})")
        codec = signal_codec(name, type)
        # Nobody can send a signal that the task has not declared. The handler would wait forever.
        check_declared(name, self._run.spec.signals, task=self._run.spec.name)
        limit = None if timeout is None else _as_timedelta(timeout, "timeout")
        answer = await durable.signals.wait(
            signal_step(name),
            functools.partial(durable.signals.declare_one, {"signal": name}, codec),
            limit,
            is_own=self._run.is_own_flow(),
            has_default=default is not NO_DEFAULT,
        )
        return read_answer(durable, name, answer, codec, default)

    @_awaited
    async def now(self, *, name: str | None = None) -> datetime:
        """Return the database's current time, recorded so that later runs get the same time."""
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
        """Return True if this execution takes the new code, False if it keeps the old code.

        An execution that passed this point with the old code keeps the old code. The answer is
        recorded, so it is the same in every run of the handler. In a loop, each call gets its own
        answer. Write `if await ctx.patched("name"):`.
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
        """Declare that the old code of a patch was removed from the handler.

        An execution that took the old code is held, because this code is gone.
        """
        durable = self._run.begin(f"deprecate_patch({name!r})")
        await durable.deprecate_patch(name, is_own=self._run.is_own_flow())

    def deprecate_patch_sync(self, name: str) -> None:
        """`deprecate_patch` for a `def` handler."""
        self._call_sync(lambda: self.deprecate_patch(name), "ctx.deprecate_patch(...)")

    @_awaited
    async def scheduled_at(self) -> datetime | None:
        """Return the scheduled time of this execution, or None if no schedule submitted it."""
        executions = self._run.worker.client.executions
        tag = await executions.tag(self.execution_id, SCHEDULED_AT_TAG)
        return None if tag is None else datetime.fromisoformat(tag)

    def scheduled_at_sync(self) -> datetime | None:
        """`scheduled_at` for a `def` handler."""
        return self._call_sync(self.scheduled_at, "ctx.scheduled_at()")

    @property
    def stream(self) -> HandlerStream:
        """The stream of the execution: `await ctx.stream.send("text")`.

        Readers follow it with `async for frame in run.stream()`, from its beginning or from any
        later frame.
        """
        return HandlerStream(self._run)

    @_awaited
    async def progress(self, percent: int | None = None, message: str | None = None) -> None:
        """Report the progress of the execution. An omitted argument keeps its last value."""
        await self._run.make_durable().report_progress(percent, message)

    def progress_sync(self, percent: int | None = None, message: str | None = None) -> None:
        """`progress` for a `def` handler."""
        self._call_sync(lambda: self.progress(percent, message), "ctx.progress(...)")

    async def usage(
        self,
        *,
        tokens: int | None = None,
        usd: Money | None = None,
        name: str | None = None,
        **amounts: int,
    ) -> None:
        """Report the usage of this execution to all its budgets.

        `await ctx.usage(tokens=120, usd="0.02")`. Money is text, a Decimal or a whole number, never
        a float; other dimensions are whole numbers. If a budget has too little left, its
        `on_exceed` decides. With "fail", nothing is counted and the call raises BudgetExceeded.
        With "suspend", nothing is counted and the execution waits for the budget. With "warn", the
        usage is counted anyway.

        A report is recorded like a step: a later run of the handler does not count it again. The
        reports of concurrent branches are told apart by their amounts. If the amounts can differ in
        a later run, give each report a `name`. A report inside the function of a step is not
        recorded: it counts at every call of the function, because each call spends again.
        """
        _check_loop(self._run, "ctx.usage(...)", "ctx.usage_sync", in_steps=True)
        usage = dimensions("usage", tokens=tokens, usd=usd, **amounts)
        durable = self._run.make_durable()
        if in_step.get() is not None:
            await durable.report_usage(usage, durable.step_usage_key())
            return
        step = usage_step(name, usage, is_own=self._run.is_own_flow())
        await self._perform(asyncio.current_task(), self._prepare_usage, step, usage)

    def usage_sync(
        self,
        *,
        tokens: int | None = None,
        usd: Money | None = None,
        name: str | None = None,
        **amounts: int,
    ) -> None:
        """`usage` for a `def` handler, and for the plain function of a step."""
        check_no_loop("ctx.usage(...)")
        usage = dimensions("usage", tokens=tokens, usd=usd, **amounts)
        durable = self._run.make_durable()
        if in_step.get() is None:
            step = usage_step(name, usage, is_own=self._run.is_own_flow())
            self._perform_sync(self._prepare_usage, step, usage)
            return
        key = durable.step_usage_key()
        try:
            self._run.call_sync(lambda: durable.report_usage(usage, key))
        except CancelledError:
            # The handler is async and was cancelled: stop the function of its step, too.
            raise HandlerPaused from None

    def _prepare_usage(self, name: str, usage: Mapping[str, int]) -> StepCall:
        return UsageReport(self._run, self._run.begin("usage"), name, usage)

    @_awaited
    async def submit(self, task: Submittable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Submit a child once. A later run of the handler gets the same child back.

        `await run.result()` frees the worker's slot until the child has ended. When this execution
        ends, the child continues, unless it was submitted with `task.using(with_parent=True)`.
        """
        durable = self._run.begin(f"submit of {task.name}")
        if task.options.via is not None:
            raise InvalidInput(
                field="via",
                problem="cannot be used for a child: use task.submit(..., via=...)",
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
        increases by one. A handler that never ends should call this before its journal grows long.
        The arguments must fit the task. Code after this call does not run.
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

        A later run of the handler builds the flow again and gets the stored flow back.
        `await f.run.result()` frees the worker's slot until the flow has ended. A `def` handler
        uses `with` instead of `async with`.
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
        """Run the async form of a call on the worker's loop, and wait for it in this thread."""
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
    """The context of the current handler: `current.step(...)`, `current.attempt`.

    `current()` returns the context object itself.
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


def _check_loop(run: HandlerRun, call: str, instead: str, *, in_steps: bool = False) -> None:
    """Refuse an async call outside the worker's event loop."""
    loop = running_loop()
    if loop is not None and run.is_on_loop(loop):
        return
    if (step := in_step.get()) is not None and loop is None and not in_steps:
        raise RuntimeError(
            f"{call} inside the function of step {step!r} is not allowed: a step is one "
            "unit. Call it from the handler"
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
        raise step.durable.hold(record.name, f"its value no longer fits: {error}") from None


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
        raise InvalidInput(field="timeout", problem="must be greater than zero")
    return timeout


def _transaction_call(
    first: Any, args: tuple[Any, ...]
) -> tuple[str, Callable[..., Any], tuple[Any, ...]]:
    """Return the name of a step, its function and the function's arguments.

    The parameters are the arguments of a call of `ctx.transaction`. If the first of them is not a
    name, the step has the name of the function.
    """
    name = first if isinstance(first, str) else None
    function, *rest = (first, *args) if name is None else args or (None,)
    if not callable(function):
        raise InvalidInput(
            field="function", problem="must be a function: ctx.transaction(function, ...)"
        )
    return function_name(function) if name is None else name, function, tuple(rest)


def _title(question: str) -> str:
    """Return a text on one line, cut to 200 bytes, so that a step name can contain it."""
    words = " ".join(question.split())
    printable = "".join(ch for ch in words if ch >= " " and ch != "\x7f")
    return printable.encode()[:200].decode(errors="ignore")


def _step_name(name: str | None, default: str) -> str:
    if name is None:
        return default
    check_name(name)
    return name
