"""App: registers tasks, submits them, and creates workers for them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import weakref
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    contextmanager,
    nullcontext,
)
from dataclasses import replace
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    overload,
)

from flowfabric.app.flow import Flow
from flowfabric.app.flow_run import FlowRun
from flowfabric.app.hooks import EndHook, HookDecorator
from flowfabric.app.portal import Portal, in_turn
from flowfabric.app.process import Process
from flowfabric.app.run import Run
from flowfabric.app.schedules import (
    Schedule,
    ScheduleDecorator,
    Scheduler,
    check_arguments,
    check_schedule_name,
    home_name,
)
from flowfabric.app.task import Task
from flowfabric.app.webhooks import WebhookDelivery, is_installed
from flowfabric.client import (
    FlowFabric,
    SubscribedEvent,
    Subscription,
    Subscriptions,
    subscription,
)
from flowfabric.config import DATABASE_URL_VARIABLES, Settings
from flowfabric.core.code_version import CodeVersion
from flowfabric.core.ended_execution import Ended
from flowfabric.core.errors import ExecutionNotFound, InvalidInput, NotOverHttp, Unavailable
from flowfabric.core.execution import DEFAULT_LANE, check_lane, check_name
from flowfabric.core.ids import AnyId, ExecutionId, FlowId, bare_uuid
from flowfabric.core.lane import LaneOptions
from flowfabric.core.limit import Budget, Key, Limit, Rate, check_key, several
from flowfabric.core.policy import TASK_MAX_RECLAIMS, Retry, StreamPolicy
from flowfabric.core.schedule import Rule, cron_rule, every_rule, misfire_rule, version_numbers
from flowfabric.core.signal import Delivered, Signal, decision_name, encode_comment
from flowfabric.core.states import EventKind, HookKind
from flowfabric.core.subscription import DEFAULT_KEEP, OnExpiry
from flowfabric.core.webhook import Allowed
from flowfabric.db.connection import address_of, open_connection
from flowfabric.db.http import HttpDatabase
from flowfabric.db.migrate import migrate
from flowfabric.embedded import EmbeddedError, Server
from flowfabric.embedded import start as start_server
from flowfabric.handlers import Context, async_only
from flowfabric.tasks import (
    CallNext,
    Extensions,
    Hook,
    HookSpec,
    Limits,
    OnChange,
    TaskSpec,
    check_middleware,
    encode_signal,
    task_name,
)
from flowfabric.telemetry import ENGINE_LOGGER
from flowfabric.worker import JournalCheck, JournalVerdict, Lifespan, Worker

if TYPE_CHECKING:
    from flowfabric.app.instruments import Instruments

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")  # what a task streams as JSON
M = TypeVar("M", bound=Callable[[Context, CallNext], Awaitable[Any]])
H = TypeVar("H", bound=Hook)
# Returns a T, or a context manager that yields a T.
Factory = Callable[
    ...,
    T
    | Awaitable[T]
    | Iterator[T]
    | AsyncIterator[T]
    | AbstractContextManager[T]
    | AbstractAsyncContextManager[T],
]

_Loops = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[FlowFabric]]

apps: weakref.WeakSet[App] = weakref.WeakSet()
"""All apps of this process. Test tools use this set to point every app at a test database."""


class App:
    """A set of tasks, and the database that stores their executions.

    The database is `database_url`. The default comes from FLOWFABRIC_DATABASE_URL, then from
    DATABASE_URL, then from flowfabric.toml. If none of them names a database, the app starts an
    embedded server when it first needs a database. The data is in the folder `.flowfabric/` of
    `project` (default: the current folder).

    If `url` or FLOWFABRIC_URL is set, the app calls a server of flowfabric instead of a database.
    The app sends `token` or FLOWFABRIC_TOKEN to prove who it is. An app that calls a server needs
    no rights in the database, and cannot run workers.

    `name` is the name under which the database keeps the app's schedules (default: the name of the
    module that creates the app). `version` is a dotted number; the highest running version decides
    which schedules and hooks exist.

    `code_version` names the version of the code, for example a release or a commit. An execution
    belongs to the version that records its steps. `reads` lists other versions whose executions
    this code can run, too. If all workers that serve a version have been dead for `version_grace`,
    workers of any version run its executions.

    `connect` opens the connections of `ctx.transaction`. It is a function that returns a context
    manager (sync or async), which gives a connection or a session. Examples are `pool.acquire`, a
    `sessionmaker` and `engine.connect`. The default is an asyncpg connection to the app's own
    database.
    """

    def __init__(
        self,
        *,
        name: str | None = None,
        version: str = "0",
        database_url: str | None = None,
        url: str | None = None,
        token: str | None = None,
        namespace: str | None = None,
        lease_ttl: timedelta | None = None,
        drain_timeout: timedelta | None = None,
        code_version: str | None = None,
        reads: Iterable[str] = (),
        version_grace: timedelta | None = None,
        project: Path | None = None,
        connect: Callable[[], Any] | None = None,
    ) -> None:
        given = {
            "database_url": database_url,
            "url": url,
            "token": token,
            "namespace": namespace,
            "lease_ttl": lease_ttl,
            "drain_timeout": drain_timeout,
            "code_version": code_version,
            "version_grace": version_grace,
        }
        found = Settings.from_environment()
        # A database or a server given in code overrides one from the environment.
        if url is not None and database_url is None:
            found = replace(found, database_url=None)
        if database_url is not None and url is None:
            found = replace(found, url=None)
        self.settings = replace(
            found,
            **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]
        )
        self.name = home_name() if name is None else name
        check_name("name", self.name)
        self._code = CodeVersion.checked(
            self.settings.code_version, reads, self.settings.version_grace
        )
        self.version = version
        self._version = version_numbers(version)
        self.tasks: dict[str, Task[..., Any, Any]] = {}
        self.schedules: dict[str, Schedule] = {}
        self.hooks: list[EndHook] = []
        self.portal = Portal(self._close_here)
        # `_hook_changes` counts changes to hooks. `_declared` holds the count at each client's last
        # declaration.
        self._hook_changes = 0
        # The limits and budgets of the app by name, with their numbers.
        self.limits: dict[str, Limit] = {}
        self.budgets: dict[str, Budget] = {}
        # The options of lanes that the app declares, by lane.
        self.lanes: dict[str, LaneOptions] = {}
        # `_limit_changes` counts changes to limits, budgets and lanes. `_declared_limits` holds the
        # count at each client's last declaration.
        self._limit_changes = 0
        self._declared_limits: weakref.WeakKeyDictionary[FlowFabric, int] = (
            weakref.WeakKeyDictionary()
        )
        self._registered: weakref.WeakSet[FlowFabric] = weakref.WeakSet()
        self._declared: weakref.WeakKeyDictionary[FlowFabric, int] = weakref.WeakKeyDictionary()
        self._instruments: Instruments | None = None
        self._extensions = Extensions()
        self._extensions.connect = connect
        self._extensions.public_url = self.settings.public_url
        self._project = project
        self._server: Server | None = None
        self._server_lock = threading.Lock()
        self._clients: _Loops = weakref.WeakKeyDictionary()
        self._processes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Process] = (
            weakref.WeakKeyDictionary()
        )
        self._pid = os.getpid()
        apps.add(self)

    @overload
    def task(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, T]], /
    ) -> Task[P, Coroutine[Any, Any, T], T]: ...
    @overload
    def task(
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> Task[P, Coroutine[Any, Any, T], T]: ...
    @overload
    def task(self, function: Callable[Concatenate[Context, P], T], /) -> Task[P, T, T]: ...
    @overload
    def task(self, function: Callable[P, T], /) -> Task[P, T, T]: ...
    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        lane: str = DEFAULT_LANE,
        priority: int = 0,
        needs: Iterable[str] = (),
        retry: Retry | None = None,
        timeout: timedelta | None = None,
        deadline: timedelta | None = None,
        max_reclaims: int = TASK_MAX_RECLAIMS,
        retention: timedelta | None = None,
        tags: Mapping[str, str] | None = None,
        version: str | None = None,
        on_change: OnChange = "hold",
        signals: Mapping[str, Any] | None = None,
        streams: type[S],
        stream_policy: StreamPolicy | None = None,
        limit: Limit | Sequence[Limit] | None = None,
        budget: Budget | Sequence[Budget] | None = None,
        fair_by: Key = None,
    ) -> TaskDecorator[S]: ...
    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        lane: str = DEFAULT_LANE,
        priority: int = 0,
        needs: Iterable[str] = (),
        retry: Retry | None = None,
        timeout: timedelta | None = None,
        deadline: timedelta | None = None,
        max_reclaims: int = TASK_MAX_RECLAIMS,
        retention: timedelta | None = None,
        tags: Mapping[str, str] | None = None,
        version: str | None = None,
        on_change: OnChange = "hold",
        signals: Mapping[str, Any] | None = None,
        streams: Any = Any,
        stream_policy: StreamPolicy | None = None,
        limit: Limit | Sequence[Limit] | None = None,
        budget: Budget | Sequence[Budget] | None = None,
        fair_by: Key = None,
    ) -> TaskDecorator[Any]: ...

    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        lane: str = DEFAULT_LANE,
        priority: int = 0,
        needs: Iterable[str] = (),
        retry: Retry | None = None,
        timeout: timedelta | None = None,
        deadline: timedelta | None = None,
        max_reclaims: int = TASK_MAX_RECLAIMS,
        retention: timedelta | None = None,
        tags: Mapping[str, str] | None = None,
        version: str | None = None,
        on_change: OnChange = "hold",
        signals: Mapping[str, Any] | None = None,
        streams: Any = Any,
        stream_policy: StreamPolicy | None = None,
        limit: Limit | Sequence[Limit] | None = None,
        budget: Budget | Sequence[Budget] | None = None,
        fair_by: Key = None,
    ) -> Any:
        """Register a function as a task: `@app.task` or `@app.task(lane="mail", ...)`.

        `timeout` limits one attempt; `deadline` limits the whole execution, from its submission.
        `retention` is how long an execution is kept after its end. `version` is stored with every
        execution, to show later which code submitted it.

        `on_change` decides what happens if the code no longer fits the recorded steps of an
        execution. `hold` holds the execution; `restart` starts it again without the steps.

        `signals`, for example `{"approve": bool}`, declares the signals that the task takes, each
        with its type. Sending any other signal raises an error. `streams` is the type of the values
        that the task streams as JSON. `stream_policy` says how much of each stream is kept.

        `limit` limits how many executions of the task run at the same time or start in a window.
        `budget` limits what they can spend. `fair_by` names an argument: executions with different
        values of it take turns in their lane.
        """
        check_key("fair_by", fair_by)
        limits = Limits(several("limit", Limit, limit), several("budget", Budget, budget), fair_by)

        def register(function: Callable[..., Any]) -> Task[..., Any, Any]:
            spec = TaskSpec(
                function=function,
                name=task_name(function) if name is None else name,
                lane=lane,
                priority=priority,
                needs=needs,  # type: ignore[arg-type]
                retry=retry,
                timeout=timeout,
                deadline=deadline,
                max_reclaims=max_reclaims,
                retention=retention,
                tags={} if tags is None else tags,
                version=version,
                on_change=on_change,
                signals={} if signals is None else signals,
                streams=streams,
                stream_policy=stream_policy,
                limits=limits,
                providers=self._extensions.providers,
            )
            return self._add_task(spec)

        return register if function is None else register(function)

    def lane(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        rate: str | Rate | None = None,
        fair_by: str | None = None,
        weights: Mapping[str, int] | None = None,
    ) -> None:
        """Declare the options of a lane. Options that an operator sets override the declared ones.

        At most `concurrency` executions of the lane run at the same time. `rate` limits how many
        start, for example `100/min`. `fair_by` names an argument: executions with different values
        of this argument take turns. `fair_by` applies to tasks that have the argument and no
        `fair_by` of their own. `weights` says how many turns a value gets (1 to 100) for each turn
        of a value without a weight.
        """
        check_lane(name)
        options = LaneOptions(concurrency=concurrency, rate=rate, fair_by=fair_by, weights=weights)
        if self.lanes.get(name, options) != options:
            raise InvalidInput(
                field="lane", problem=f"{name} was declared before, with other options"
            )
        self.lanes[name] = options
        self._limit_changes += 1

    def _add_task(self, spec: TaskSpec) -> Task[..., Any, Any]:
        if spec.name in self.tasks:
            raise InvalidInput(
                field="name", problem=f"a task named {spec.name} is already registered"
            )
        self.declare_limits(spec.limits)
        task: Task[..., Any, Any] = Task(self, spec)
        self.tasks[spec.name] = task
        if self.hooks:
            self._hook_changes += 1
        return task

    def declare_limits(self, limits: Limits) -> None:
        """Declare more limits and budgets for this app.

        Raises InvalidInput if the app has already declared a limit of the same name with other
        numbers, or if only one of the two declarations has a key.
        """
        before = (dict(self.limits), dict(self.budgets))
        for limit in limits.limits:
            self.limits[limit.name] = _agreed("limit", self.limits.get(limit.name), limit)
        for budget in limits.budgets:
            self.budgets[budget.name] = _agreed("budget", self.budgets.get(budget.name), budget)
        if before != (self.limits, self.budgets):
            self._limit_changes += 1

    async def _declare_limits(self, client: FlowFabric) -> None:
        """Declare the limits, budgets and lanes of this app in the database, and register the tasks
        that have limits."""
        changes = self._limit_changes
        declared: list[Limit | Budget] = [*self.limits.values(), *self.budgets.values()]
        await client.lanes.gates.declare(
            self.settings.namespace, [one for one in declared if one.has_numbers]
        )
        # Over HTTP, declaring lanes would need the scope `operate`. The workers of the app declare
        # them.
        for lane, options in self.lanes.items() if self.settings.url is None else ():
            await client.lanes.declare(self.settings.namespace, lane, options)
        limited = [
            task.spec.declaration(with_schemas=False)
            for task in self.tasks.values()
            if task.spec.limits.all
        ]
        if limited:
            await client.tasks.register(self.settings.namespace, self._version, limited)
        self._declared_limits[client] = changes

    async def _register_tasks(self, client: FlowFabric) -> None:
        """Register every task of this app, with its schemas, as a worker does when it starts."""
        declarations = [task.spec.declaration() for task in self.tasks.values()]
        await client.tasks.register(self.settings.namespace, self._version, declarations)
        self._registered.add(client)

    @property
    def on_success(self) -> HookDecorator[Ended[Any]]:
        """Register a hook that runs after an execution of any task of this app has succeeded.

        The hook is a task named after the app (`shop.on_success`); see `Task.on_success`. A hook
        has no hooks.
        """
        return HookDecorator(self, HookKind.SUCCESS, None)

    @property
    def on_failure(self) -> HookDecorator[Ended[Any]]:
        """Register a hook that runs after an execution of any task has failed, expired or been
        skipped.
        """
        return HookDecorator(self, HookKind.FAILURE, None)

    @property
    def on_cancel(self) -> HookDecorator[Ended[Any]]:
        """Register a hook that runs after an execution of any task was cancelled."""
        return HookDecorator(self, HookKind.CANCEL, None)

    @property
    def on_end(self) -> HookDecorator[Ended[Any]]:
        """Register a hook that runs after an execution of any task has ended in any way."""
        return HookDecorator(self, HookKind.END, None)

    def add_hook(
        self,
        function: Callable[..., Any],
        kind: HookKind,
        of: TaskSpec | None,
        options: Mapping[str, Any],
    ) -> Task[..., Any, Any]:
        """Register a hook for one task (`of`), or for every task if `of` is None.

        Decorators such as `@task.on_failure` call this.
        """
        given: dict[str, Any] = {
            "name": f"{self.name if of is None else of.name}.on_{kind}",
            "lane": DEFAULT_LANE if of is None else of.lane,
            **options,
        }
        task = self._add_task(
            HookSpec(
                function=function,
                providers=self._extensions.providers,
                find_task=self._find_spec,
                **given,
            )
        )
        self.hooks.append(EndHook(task, kind, None if of is None else of.name))
        self._hook_changes += 1
        return task

    def _find_spec(self, name: str) -> TaskSpec | None:
        task = self.tasks.get(name)
        return None if task is None else task.spec

    async def _declare_hooks(self, client: FlowFabric) -> None:
        """Declare in the database which hooks exist for the tasks of this app."""
        changes = self._hook_changes
        known = [name for name, task in self.tasks.items() if not isinstance(task.spec, HookSpec)]
        await client.hooks.declare(
            self.settings.namespace,
            self._version,
            known,
            [
                hook.declaration(name)
                for name in known
                for hook in self.hooks
                if hook.of in (None, name)
            ],
        )
        self._declared[client] = changes

    def middleware(self, function: M, /) -> M:
        """Register an async function that wraps every run of a handler: `@app.middleware`.

        The function takes the context and `call_next`. `await call_next()` runs the handler and
        returns its result. What the function returns becomes the result. If several functions are
        registered, the first one is the outermost.
        """
        check_middleware(function)
        self._extensions.middleware.append(function)
        return function

    def provide(
        self,
        type: type[T],
        factory: Factory[T],
        /,
        *,
        scope: Literal["execution", "worker"] = "execution",
    ) -> None:
        """Register a factory for handler parameters that are annotated with `type`.

        The factory is a function or a generator function, async or not. It can return a context
        manager. By default, the factory is called once for each run of a handler, and its context
        manager exits when that run ends. With `scope="worker"`, the factory is called once for each
        worker process, and its context manager exits when the process ends. If the factory has
        parameters, other factories make their values.
        """
        self._extensions.providers.register(type, factory, scope)
        self._reset_tasks()

    @contextmanager
    def overriding(
        self, type: type[Any], value: Any = None, /, *, factory: Callable[..., Any] | None = None
    ) -> Iterator[None]:
        """Inside a `with` block, use this value or factory for parameters annotated with `type`."""
        if (value is None) == (factory is None):
            raise InvalidInput(field="value", problem="give either a value or a factory")
        # Pass the value itself, even if it is a context manager.
        replacement = factory or (lambda: nullcontext(value))
        try:
            with self._extensions.providers.overriding(type, replacement):
                self._reset_tasks()
                yield
        finally:
            self._reset_tasks()

    def on_startup(self, hook: H, /) -> H:
        """Register a function to call when a worker process starts: `@app.on_startup`.

        If the function raises, the worker does not start.
        """
        self._extensions.on_startup.append(hook)
        return hook

    def on_shutdown(self, hook: H, /) -> H:
        """Register a function to call when a worker process has drained: `@app.on_shutdown`.

        Several such functions run in reverse order of their registration. They also run if a
        startup hook has failed.
        """
        self._extensions.on_shutdown.append(hook)
        return hook

    def _reset_tasks(self) -> None:
        for task in self.tasks.values():
            task.spec.reset()

    def cron(
        self,
        expression: str,
        /,
        *,
        tz: str | tzinfo = "UTC",
        misfire: str = "once",
        name: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> ScheduleDecorator:
        """Submit a task at the times of a cron expression: `@app.cron("0 9 * * 1-5", tz=...)`.

        Put this decorator above a plain function or above `@app.task(...)`. `misfire` says what to
        submit for the times that passed while no worker was running: `once` is one execution for
        all of them, `skip` is none, and `all` is one for each.
        """
        return self._schedule(cron_rule(expression, tz), misfire, name, args, kwargs)

    def every(
        self,
        every: timedelta,
        /,
        *,
        start: datetime | None = None,
        misfire: str = "once",
        name: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> ScheduleDecorator:
        """Submit a task at a fixed interval: `@app.every(timedelta(minutes=5))`.

        The intervals are counted from `start` (default: the moment when a worker first declared the
        schedule). A restart of a worker does not shift the times.
        """
        return self._schedule(every_rule(every, start), misfire, name, args, kwargs)

    def _schedule(
        self,
        rule: Rule,
        misfire: str,
        name: str | None,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
    ) -> ScheduleDecorator:
        rule_for_misfires = misfire_rule(misfire)
        check_arguments(args, kwargs or {})

        def register(function: Any) -> Any:
            chosen = function.spec.name if isinstance(function, Task) else task_name(function)
            chosen = chosen if name is None else name
            check_schedule_name(chosen, self.schedules)
            task = function if isinstance(function, Task) else self.task(function)
            if task.app is not self:
                raise InvalidInput(field="task", problem=f"{task.name} is a task of another app")
            self.schedules[chosen] = Schedule(
                name=chosen,
                task=task,
                rule=rule,
                misfire=rule_for_misfires,
                args=args,
                kwargs=kwargs or {},
            )
            return task

        return register

    async def fire_schedules(self) -> int:
        """Declare the schedules of this app, and fire the due ones. Workers do this by themselves.

        Returns the number of executions that this call has submitted.
        """
        scheduler = self._scheduler(await self.client())
        await scheduler.declare()
        fired, _ = await scheduler.fire_due()
        return fired

    def _scheduler(self, client: FlowFabric) -> Scheduler:
        return Scheduler(
            client,
            self.name,
            self._version,
            [schedule.declaration() for schedule in self.schedules.values()],
            namespace=self.settings.namespace,
        )

    async def submit(self, name: str, /, *args: Any, **kwargs: Any) -> Run[Any]:
        """Submit a task by its name."""
        task = self.tasks.get(name)
        if task is None:
            known = ", ".join(sorted(self.tasks)) or "none"
            raise InvalidInput(
                field="task", problem=f"no task is named {name!r} here; known tasks: {known}"
            )
        return await task.submit(*args, **kwargs)

    def get(self, id: AnyId) -> Run[Any]:
        """Return the run of the execution that has this whole id or UUID.

        This makes no call to the database. If the task of the execution is registered in this app,
        the type hints of the task decode the result.
        """
        return self.find_run(id, "", _as_json, self._decoder)

    def find_run(
        self,
        id: AnyId,
        task: str,
        decode: Callable[[bytes | None], T],
        find_decoder: Callable[[str], Callable[[bytes | None], T]],
    ) -> Run[T]:
        """Return the run of the execution that has this whole id or UUID.

        If `id` is a UUID, the run looks up the partition when it first calls the database. `decode`
        decodes the result until the run has read the name of its task from the database. Then the
        decoder that `find_decoder` returns for that name replaces `decode`.
        """
        uuid = bare_uuid(id)

        async def client() -> FlowFabric:
            nonlocal uuid
            found = await self.client()
            if uuid is not None:
                run._id, uuid = await found.executions.find(uuid), None
            return found

        run = Run(
            ExecutionId.parse(str(id) if uuid is None else f"{{fp:0}}:{uuid}"),
            task,
            client,
            decode,
            is_stored=False,
            find_decoder=find_decoder,
            call=self.portal.call,
            find_spec=self._find_spec,
        )
        return run

    @async_only("app.signal_sync")
    async def signal(
        self, token: str, value: Any = None, /, *, by: str | None = None, key: str | None = None
    ) -> Delivered:
        """Answer a waitpoint. Its token is the complete address.

        Raises InvalidToken for every wrong token. Raises WaitpointClosed if a wait has already
        taken an answer, or if the time of the waitpoint is over. A second answer with the same
        `key` has no effect, and does not raise WaitpointClosed. `by` is a note for people: who
        answers.
        """
        payload = encode_signal("answer", value)
        signal = Signal(payload=payload, key=key, source_type="token", source_identity=by)
        return await (await self.client()).signals.deliver_by_token(token, signal)

    def signal_sync(
        self, token: str, value: Any = None, /, *, by: str | None = None, key: str | None = None
    ) -> Delivered:
        """`signal` for synchronous code."""
        return self.portal.call(
            lambda: self.signal(token, value, by=by, key=key), "app.signal(...)"
        )

    @async_only("app.approve_sync")
    async def approve(
        self, token: str, /, *, comment: str | None = None, by: str | None = None
    ) -> Delivered:
        """Answer an approval with "yes", as the approver to whom this token belongs.

        `by` is a note for people: who answers. Raises AlreadyAnswered if this approver has already
        denied.
        """
        return await self._answer(token, True, comment, by)

    def approve_sync(
        self, token: str, /, *, comment: str | None = None, by: str | None = None
    ) -> Delivered:
        """`approve` for synchronous code."""
        return self.portal.call(
            lambda: self.approve(token, comment=comment, by=by), "app.approve(...)"
        )

    @async_only("app.deny_sync")
    async def deny(
        self, token: str, /, *, comment: str | None = None, by: str | None = None
    ) -> Delivered:
        """Answer an approval with "no", as the approver to whom this token belongs.

        Works like `approve`. Raises AlreadyAnswered if this approver has already approved.
        """
        return await self._answer(token, False, comment, by)

    def deny_sync(
        self, token: str, /, *, comment: str | None = None, by: str | None = None
    ) -> Delivered:
        """`deny` for synchronous code."""
        return self.portal.call(lambda: self.deny(token, comment=comment, by=by), "app.deny(...)")

    async def _answer(
        self, token: str, is_approved: bool, comment: str | None, by: str | None
    ) -> Delivered:
        signal = Signal(
            name=decision_name(is_approved),
            payload=encode_comment(comment),
            source_type="token",
            source_identity=by,
        )
        return await (await self.client()).signals.deliver_by_token(token, signal)

    def subscribe(
        self,
        name: str,
        /,
        *,
        kinds: Iterable[EventKind | str] | None = None,
        task: str | Iterable[str] | None = None,
        lane: str | Iterable[str] | None = None,
        instance_tag: str | Iterable[str] | None = None,
        since: datetime | None = None,
        on_expiry: str = OnExpiry.STOP,
        keep: timedelta = DEFAULT_KEEP,
        lease_ttl: timedelta = timedelta(seconds=30),
        page_size: int = 500,
        follow: bool = True,
    ) -> Subscription:
        """Consume events: `async for event in app.subscribe("billing", kinds=["completed"])`.

        The database keeps the position of the subscription `name`. `await event.ack()` acknowledges
        an event. Every event comes at least once. After a restart, the loop repeats all events that
        were not acknowledged, and up to `page_size` events that were acknowledged. The events of
        one execution come in order. Only one consumer of the subscription reads at a time; the
        others wait.

        `task` is the name of a task, a pattern such as `shop.*`, or a list of these. A new
        subscription begins now or, if `since` is given, with the first event after that time. With
        `follow=False`, the loop ends when no event is left.

        If the subscription lags, the database keeps the events after its position for up to `keep`
        longer than usual. If such events are trimmed after all, `on_expiry` decides: `stop` raises
        CursorExpired, `resume` continues with the events that are left. If a consumer dies, the
        next one waits for up to `lease_ttl`.
        """
        return self._subscription(
            name,
            None,
            kinds=kinds,
            tasks=_listed(task),
            lanes=_listed(lane),
            instance_tags=_listed(instance_tag),
            since=since,
            on_expiry=on_expiry,
            keep=keep,
            lease_ttl=lease_ttl,
            page_size=page_size,
            follow=follow,
        )

    def subscribe_sync(
        self,
        name: str,
        /,
        *,
        kinds: Iterable[EventKind | str] | None = None,
        task: str | Iterable[str] | None = None,
        lane: str | Iterable[str] | None = None,
        instance_tag: str | Iterable[str] | None = None,
        since: datetime | None = None,
        on_expiry: str = OnExpiry.STOP,
        keep: timedelta = DEFAULT_KEEP,
        lease_ttl: timedelta = timedelta(seconds=30),
        page_size: int = 500,
        follow: bool = True,
    ) -> Iterator[SubscribedEvent]:
        """`subscribe` for synchronous code. Acknowledge with `event.ack_sync()`."""
        call = self.portal.call
        subscription = self._subscription(
            name,
            call,
            kinds=kinds,
            tasks=_listed(task),
            lanes=_listed(lane),
            instance_tags=_listed(instance_tag),
            since=since,
            on_expiry=on_expiry,
            keep=keep,
            lease_ttl=lease_ttl,
            page_size=page_size,
            follow=follow,
        )
        return in_turn(aiter(subscription), call, "app.subscribe(...)")

    def _subscription(
        self, name: str, call: Callable[..., Any] | None, **options: Any
    ) -> Subscription:
        async def connect() -> Subscriptions:
            return (await self.client()).subscriptions

        return subscription(connect, name, call=call, **options)

    async def get_by_key(self, key: str) -> Run[Any]:
        """Return the run of the execution that has this key in the namespace of the app.

        A submit with this key would return the same run. Raises ExecutionNotFound if no execution
        has the key now.
        """
        found = await (await self.client()).executions.find_by_key(key)
        if found is None:
            raise ExecutionNotFound(
                f"No execution has the key {key!r} in the namespace {self.settings.namespace}: the "
                "key was not used there, its time is over, or its execution was trimmed.",
                key=key,
            )
        return self.run_of(*found)

    def get_by_key_sync(self, key: str) -> Run[Any]:
        """`get_by_key` for synchronous code."""
        return self.portal.call(lambda: self.get_by_key(key), "app.get_by_key(...)")

    def flow(
        self, name: str, /, *, via: object = None, tags: Mapping[str, str] | None = None
    ) -> Flow:
        """Build a flow: `async with app.flow("report") as f: ...`.

        In the `async with` block, `f.add(task, ...)` adds nodes. At the end of the block, the whole
        flow is stored, before any node runs. `f.run` is then the run of the flow. If the block
        raises, nothing is stored. Synchronous code uses `with`. If `via` is a connection, the flow
        is stored in the transaction of that connection.

        In a handler, pass the flow to `ctx.flow`. Otherwise each run of the handler stores another
        flow.
        """
        return Flow(self, name, via=via, tags=tags)

    def get_flow(self, id: AnyId) -> FlowRun:
        """Return the run of the flow that has this whole id or UUID.

        This makes no call to the database.
        """
        uuid = bare_uuid(id)
        whole = FlowId.parse(str(id) if uuid is None else f"{{fp:0}}:{uuid}")
        return FlowRun(self, whole, is_stored=False, is_located=uuid is None)

    def run_of(self, id: ExecutionId, task: str, *, is_stored: bool = True) -> Run[Any]:
        """Return the run of an execution of this task.

        If `is_stored` is false, the run checks that the execution exists before it waits for the
        result.
        """
        return Run(
            id,
            task,
            self.client,
            self._decoder(task),
            is_stored=is_stored,
            call=self.portal.call,
            find_spec=self._find_spec,
        )

    def encode_signal(self, task: str, name: str, value: Any) -> bytes:
        """Encode the value of a signal by the type that the task declares for this signal.

        If this app does not have the task, the value is encoded without a check.
        """
        known = self.tasks.get(task)
        return (
            encode_signal(name, value) if known is None else known.spec.encode_signal(name, value)
        )

    def _decoder(self, task: str) -> Callable[[bytes | None], Any]:
        return self.tasks[task].spec.decode_result if task in self.tasks else _as_json

    async def run_worker(
        self,
        *,
        lanes: Sequence[str] | None = None,
        concurrency: int = 20,
        needs: Iterable[str] = (),
        worker_id: str | None = None,
        finish_only: bool = False,
    ) -> None:
        """Run a worker until this call is cancelled.

        The worker then finishes or releases its executions, before the call ends. If `finish_only`
        is true, the worker finishes executions that its code version has begun, and begins no new
        ones.
        """
        worker = await self.worker(
            lanes=lanes,
            concurrency=concurrency,
            needs=needs,
            worker_id=worker_id,
            finish_only=finish_only,
        )
        await worker.run()

    async def worker(
        self,
        *,
        lanes: Sequence[str] | None = None,
        concurrency: int = 20,
        needs: Iterable[str] = (),
        worker_id: str | None = None,
        finish_only: bool = False,
        is_paced: bool = False,
    ) -> Worker:
        """Return a new worker. Start it with `run()`, and end it with `stop()`.

        If `is_paced` is true, nothing happens in the background: the caller decides when the worker
        claims and when the reconcilers run.
        """
        if self.settings.url is not None:
            raise NotOverHttp(
                "A Python worker cannot run over HTTP. Connect it to the database: set "
                "FLOWFABRIC_DATABASE_URL instead of FLOWFABRIC_URL.",
                operation="run_worker",
            )
        client = await self.client(pool_size=1)
        self._record_metrics(client)
        if client not in self._registered:
            await self._register_tasks(client)
        if client not in self._declared:
            # Do this even if the app has no hooks: an earlier version of the app may have declared
            # some.
            await self._declare_hooks(client)
        loop = asyncio.get_running_loop()
        process = self._processes.get(loop)
        if process is None:
            if not is_paced:
                self._check_has_own_name()
            scheduler = self._scheduler(client)
            process = self._processes[loop] = Process(
                client, self.settings.lease_ttl, self._extensions, is_paced=is_paced
            )
            if not is_paced:
                process.keep_schedules(scheduler)
                self._serve_webhooks(process, client)
            self.portal.host = loop
        return process.worker(
            {name: task.spec for name, task in self.tasks.items()},
            lanes=lanes,
            concurrency=concurrency,
            needs=needs,
            worker_id=worker_id,
            drain_timeout=self.settings.drain_timeout,
            database=self._address(client),
            code=self._code,
            finish_only=finish_only,
        )

    def _record_metrics(self, client: FlowFabric) -> None:
        """Record metrics with OpenTelemetry, if the program has set a meter provider."""
        # A program that sets a meter provider has already imported opentelemetry.metrics. Other
        # programs must not pay for that import.
        if self._instruments is None and "opentelemetry.metrics" in sys.modules:
            from flowfabric.app import instruments

            if instruments.is_configured():
                self._instruments = instruments.Instruments()
                self.middleware(self._instruments.around)
        if self._instruments is not None:
            self._instruments.listen(client)

    def _serve_webhooks(self, process: Process, client: FlowFabric) -> None:
        """Let the process post events to the webhooks whose hosts are in the settings.

        By default no host is in the settings.
        """
        allowed = Allowed.parse(self.settings.webhook_hosts, self.settings.webhook_networks)
        if not allowed.hosts:
            return
        if not is_installed():
            ENGINE_LOGGER.warning(
                "webhooks are not served: FLOWFABRIC_WEBHOOK_HOSTS is set, but a library is "
                "missing; pip install 'flowfabric[webhooks]'"
            )
            return
        process.serve_webhooks(WebhookDelivery(client, allowed))

    def _address(self, client: FlowFabric) -> str:
        server = self._server
        return address_of(client.database.url) if server is None else f"embedded in {server.folder}"

    def _check_has_own_name(self) -> None:
        """Raise InvalidInput if another app of this name fires schedules in this process."""
        for other in list(apps) if self.schedules else ():
            if (
                other is not self
                and other.name == self.name
                and other.settings.namespace == self.settings.namespace
                and other.settings.database_url == self.settings.database_url
                and other.schedules
                and any(one.keeps_schedules for one in list(other._processes.values()))
            ):
                raise InvalidInput(
                    field="name",
                    problem=f"another app with schedules in this process is named {self.name!r}, "
                    "too; give each app its own name, App(name=...)",
                )

    @property
    def database_url(self) -> str | None:
        """The URL of the database, including its password.

        If the app uses an embedded server, this is None until that server has started.
        """
        server = self._server
        return self.settings.database_url or (None if server is None else server.url)

    @property
    def project(self) -> Path:
        """The project folder. Its folder `.flowfabric/` contains the data of an embedded server."""
        return self._project or Path.cwd()

    async def prepare(self) -> None:
        """Migrate the database of this app to the schema of this release.

        An embedded server is migrated automatically. For any other database, call this method or
        run `flowfabric db migrate`.
        """
        if self.settings.url is not None:
            raise NotOverHttp(operation="prepare")
        await self._migrate(self.settings.database_url or await self._own_server())

    async def check_journals(self) -> AsyncIterator[JournalVerdict]:
        """Check whether the code still fits the journal of each unfinished execution of this app.

        Each handler runs up to the first step that is not recorded. No new step runs, so a handler
        that does all its work in steps changes nothing. Startup hooks, middleware and providers run
        as in a worker.
        """
        client = await self._connect(4)
        # A check must not write, so do not declare hooks or limits.
        self._declared[client] = self._hook_changes
        self._declared_limits[client] = self._limit_changes
        specs = {name: task.spec for name, task in self.tasks.items()}
        lifespan = Lifespan(self._extensions)
        await lifespan.enter(specs.values())
        try:
            async for verdict in JournalCheck(client, specs, lifespan, self._code).check_all():
                yield verdict
        finally:
            self._declared.pop(client, None)
            self._declared_limits.pop(client, None)
            await lifespan.exit()

    async def client(self, *, pool_size: int = 4) -> FlowFabric:
        """Return the client of the engine for the running event loop, with its connection pool."""
        client = await self._connect(pool_size)
        if client.database.is_remote:
            # Declare nothing through a server: the workers of the app declare hooks and limits.
            return client
        if self._declared.get(client, 0) != self._hook_changes:
            await self._declare_hooks(client)
        if self._declared_limits.get(client, 0) != self._limit_changes:
            await self._declare_limits(client)
        return client

    async def _connect(self, pool_size: int) -> FlowFabric:
        if self._pid != os.getpid():
            # After a fork the connections belong to the parent process.
            self._pid = os.getpid()
            self._clients = weakref.WeakKeyDictionary()
            self._processes = weakref.WeakKeyDictionary()
            self._server = None
            self._server_lock = threading.Lock()
        loop = asyncio.get_running_loop()
        opening = self._clients.get(loop)
        if (
            opening is not None
            and opening.done()
            and not opening.cancelled()
            and not (opening.exception())
        ):
            return opening.result()
        if opening is None or opening.done():
            opening = self._clients[loop] = asyncio.create_task(self._open(pool_size))
        return await asyncio.shield(opening)

    async def close(self) -> None:
        """Close the connections of the running event loop.

        This also ends the background loop for synchronous callers, unless a third loop has
        connections. When no loop has connections any more, the embedded server is released.
        """
        await self._close_here()
        background = self.portal.loop
        if background is None or background is asyncio.get_running_loop():
            return
        if all(loop is background for loop in self._clients):
            await asyncio.to_thread(self.portal.stop)

    async def _close_here(self) -> None:
        loop = asyncio.get_running_loop()
        if (process := self._processes.pop(loop, None)) is not None:
            await process.close()
        if (opening := self._clients.pop(loop, None)) is not None:
            await asyncio.wait([opening])
            if not opening.cancelled() and opening.exception() is None:
                await opening.result().close()
        if not self._clients and (server := self._server) is not None:
            self._server = None
            await asyncio.to_thread(server.release)

    @property
    def loops(self) -> list[asyncio.AbstractEventLoop]:
        """The event loops on which the app has connections."""
        return list(self._clients)

    def use_database(self, database_url: str) -> Callable[[], None]:
        """Switch to another database, as tests do. Return a function that switches back.

        Close the app before you switch back. Otherwise its connections to `database_url` stay open.
        """
        before = {
            name: getattr(self, name)
            for name in ("settings", "portal", "_server", "_clients", "_processes")
        }
        self.settings = replace(self.settings, database_url=database_url, url=None)
        self.portal = Portal(self._close_here)
        self._server = None
        self._clients = weakref.WeakKeyDictionary()
        self._processes = weakref.WeakKeyDictionary()

        def go_back() -> None:
            self.portal.stop()
            vars(self).update(before)

        return go_back

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _open(self, pool_size: int) -> FlowFabric:
        if self.settings.url is not None:
            server = HttpDatabase(self.settings.url, self.settings.token)
            return await FlowFabric(server, namespace=self.settings.namespace).open()
        url = self.settings.database_url
        if url is None:
            url = await self._own_server()
            await self._migrate(url)
        client = FlowFabric(url, namespace=self.settings.namespace, pool_size=pool_size)
        return await client.open()

    async def _own_server(self) -> str:
        try:
            return await asyncio.to_thread(self._start_server)
        except EmbeddedError as error:
            raise Unavailable(str(error)) from error

    def _start_server(self) -> str:
        with self._server_lock:  # event loops of several threads share one server
            if self._server is None:
                self._server = start_server(self.project)
                if not self.settings.embedded:
                    _announce(self._server)
            return self._server.url

    async def _migrate(self, url: str) -> None:
        async with open_connection(url) as connection:
            await migrate(connection)


def _listed(value: str | Iterable[str] | None) -> Iterable[str] | None:
    """Return the given values. A single value becomes a list."""
    return [value] if isinstance(value, str) else value


def _announce(server: Server) -> None:
    """Tell the user that the app uses its own Postgres because no database is set."""
    if sys.stderr is not None:
        sys.stderr.write(
            f"flowfabric: no database is set, so this app uses a Postgres in {server.folder}. "
            f"To use yours, set {' or '.join(DATABASE_URL_VARIABLES)}.\n"
        )


L = TypeVar("L", Limit, Budget)


def _agreed(kind: str, known: L | None, given: L) -> L:
    """Return one of two declarations of the same limit: the declaration that has numbers.

    Raise InvalidInput if both have numbers and the numbers differ, or if only one has a key.
    """
    if known is None:
        return given
    if known.is_keyed != given.is_keyed:
        raise InvalidInput(
            field=f"{kind}.key",
            problem=f"{given.name!r} is declared once with a key and once without",
        )
    if not given.has_numbers:
        return known
    if known.has_numbers and replace(known, key=None) != replace(given, key=None):
        raise InvalidInput(
            field=f"{kind}.name",
            problem=f"{given.name!r} is declared twice, with different numbers; give the "
            f"numbers once, and use {type(given).__name__}({given.name!r}) elsewhere",
        )
    return given if not known.has_numbers else known


def _as_json(stored: bytes | None) -> Any:
    """Decode the result of a task that is not registered in this app."""
    return None if stored is None else json.loads(stored)


class TaskDecorator(Protocol[S]):
    """The decorator that `@app.task(...)` returns."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, T]], /
    ) -> Task[P, Coroutine[Any, Any, T], T, S]: ...
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> Task[P, Coroutine[Any, Any, T], T, S]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], T], /) -> Task[P, T, T, S]: ...
    @overload
    def __call__(self, function: Callable[P, T], /) -> Task[P, T, T, S]: ...
