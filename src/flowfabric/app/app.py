"""App: registers tasks, submits them, and makes their workers."""

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
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, Self, TypeVar, overload

from flowfabric.app.flow import Flow
from flowfabric.app.flow_run import FlowRun
from flowfabric.app.hooks import EndHook, HookDecorator
from flowfabric.app.portal import Portal
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
from flowfabric.client import FlowFabric
from flowfabric.config import DATABASE_URL_VARIABLES, Settings
from flowfabric.core.code_version import CodeVersion
from flowfabric.core.ended import Ended
from flowfabric.core.errors import ExecutionNotFound, InvalidInput, Unavailable
from flowfabric.core.execution import DEFAULT_LANE, check_name
from flowfabric.core.ids import AnyId, ExecutionId, FlowId, bare_uuid
from flowfabric.core.policy import TASK_MAX_RECLAIMS, Retry
from flowfabric.core.schedule import Rule, cron_rule, every_rule, misfire_rule, version_numbers
from flowfabric.core.states import HookKind
from flowfabric.db.connection import open_connection, place
from flowfabric.db.migrate import migrate
from flowfabric.embedded import EmbeddedError, Server
from flowfabric.embedded import start as start_server
from flowfabric.handlers import Context
from flowfabric.tasks import (
    CallNext,
    Extensions,
    Hook,
    HookSpec,
    OnChange,
    TaskSpec,
    check_middleware,
    task_name,
)
from flowfabric.worker import JournalCheck, JournalVerdict, Lifespan, Worker

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M", bound=Callable[[Context, CallNext], Awaitable[Any]])
H = TypeVar("H", bound=Hook)
# Makes a T, or a context manager that gives one.
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
"""Every app of this process. Tests point them at a database of their own."""


class App:
    """Tasks and the database they live in.

    Without `database_url`, FLOWFABRIC_DATABASE_URL and DATABASE_URL, the app starts a Postgres of
    its own when it first needs one, in `.flowfabric/` of `project` (default: the current folder).

    `name` owns the schedules, by default the module that makes the app. `version` is a dotted
    number; the highest running version decides which schedules and hooks exist.

    `code_version` names the version of the code, as a release or a commit. An execution belongs to
    the version that records its steps: workers of other versions leave it alone, unless they name
    the version in `reads`, or no worker that serves it has been alive for `version_grace`.

    `connect` gives the connections of `ctx.transaction`: a function whose result is a block (`with`
    or `async with`) of a connection or a session, for example `pool.acquire`, a `sessionmaker` or
    `engine.connect`. By default they are asyncpg connections to the app's own database.
    """

    def __init__(
        self,
        *,
        name: str | None = None,
        version: str = "0",
        database_url: str | None = None,
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
            "namespace": namespace,
            "lease_ttl": lease_ttl,
            "drain_timeout": drain_timeout,
            "code_version": code_version,
            "version_grace": version_grace,
        }
        self.settings = replace(
            Settings.from_environment(),
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
        # How often hooks or the tasks that have them changed; what each client has declared.
        self._hook_changes = 0
        self._declared: weakref.WeakKeyDictionary[FlowFabric, int] = weakref.WeakKeyDictionary()
        self._extensions = Extensions()
        self._extensions.connect = connect
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
    ) -> TaskDecorator: ...

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
    ) -> Any:
        """Register a function as a task: `@app.task` or `@app.task(lane="mail", ...)`.

        `timeout` limits one attempt, `deadline` the whole execution from its submission.
        `retention` is how long an execution is kept after its end. `version` is stored with every
        execution, to show later which code submitted it. `on_change` says what becomes of an
        execution whose recorded steps the code no longer fits: it is held, or begins anew.
        """

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
                providers=self._extensions.providers,
            )
            return self._add_task(spec)

        return register if function is None else register(function)

    def _add_task(self, spec: TaskSpec) -> Task[..., Any, Any]:
        if spec.name in self.tasks:
            raise InvalidInput(
                field="name", problem=f"a task named {spec.name} is registered already"
            )
        task: Task[..., Any, Any] = Task(self, spec)
        self.tasks[spec.name] = task
        if self.hooks:
            self._hook_changes += 1
        return task

    @property
    def on_success(self) -> HookDecorator[Ended[Any]]:
        """Register a hook for executions of every task of this app that succeeded.

        It is a task named after the app (`shop.on_success`), as `Task.on_success` explains. Hooks
        have no hooks.
        """
        return HookDecorator(self, HookKind.SUCCESS, None)

    @property
    def on_failure(self) -> HookDecorator[Ended[Any]]:
        """Register a hook for executions of every task that failed, expired or were skipped."""
        return HookDecorator(self, HookKind.FAILURE, None)

    @property
    def on_cancel(self) -> HookDecorator[Ended[Any]]:
        """Register a hook for executions of every task that were cancelled."""
        return HookDecorator(self, HookKind.CANCEL, None)

    @property
    def on_end(self) -> HookDecorator[Ended[Any]]:
        """Register a hook for every end of every task."""
        return HookDecorator(self, HookKind.END, None)

    def add_hook(
        self,
        function: Callable[..., Any],
        kind: HookKind,
        of: TaskSpec | None,
        options: Mapping[str, Any],
    ) -> Task[..., Any, Any]:
        """Register a hook of one task, or of every task, as `@task.on_failure(...)` does."""
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
        """Tell the database which tasks the ends of this app's executions submit."""
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
        """Register an async function that is called around every run of a task: `@app.middleware`.

        It takes the context and `call_next`, and returns the result: usually that of
        `await call_next()`. The first registered function is the outermost.
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
        """Provide what the factory makes to every parameter annotated with a type.

        The factory is a function or a generator function, async or not, and may return a context
        manager. A context manager exits when the execution ends, or with `scope="worker"` when the
        worker ends. The parameters of the factory are provided in the same way.
        """
        self._extensions.providers.register(type, factory, scope)
        self._reset_tasks()

    @contextmanager
    def overriding(
        self, type: type[Any], value: Any = None, /, *, factory: Callable[..., Any] | None = None
    ) -> Iterator[None]:
        """Replace what is provided for a type by a value or a factory, during a `with` block."""
        if (value is None) == (factory is None):
            raise InvalidInput(field="value", problem="give either a value or a factory")
        # A value is passed as it is, even if it is a context manager.
        replacement = factory or (lambda: nullcontext(value))
        try:
            with self._extensions.providers.overriding(type, replacement):
                self._reset_tasks()
                yield
        finally:
            self._reset_tasks()

    def on_startup(self, hook: H, /) -> H:
        """Register a function to call when a worker process starts: `@app.on_startup`.

        If it raises, the worker does not start.
        """
        self._extensions.on_startup.append(hook)
        return hook

    def on_shutdown(self, hook: H, /) -> H:
        """Register a function to call when a worker process has drained: `@app.on_shutdown`.

        The last registered function is called first, even if the start or the work failed.
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

        Put it above a plain function or above `@app.task(...)`. `misfire` decides about times that
        passed while no worker ran: submit `once` for all of them, `skip` them, or submit `all`.
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

        The interval counts from `start`, or from the time a worker first declared the schedule.
        Restarts of workers do not move the times.
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
        """Declare this app's schedules, submit what is due now, and return how many were submitted.

        Workers do this by themselves.
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
        """Return the run of an execution by its whole id or its UUID, without asking the database.

        Its result has the type of its task if the task is registered here.
        """
        return self.find_run(id, "", _as_json, self._decoder)

    def find_run(
        self,
        id: AnyId,
        task: str,
        decode: Callable[[bytes | None], T],
        find_decoder: Callable[[str], Callable[[bytes | None], T]],
    ) -> Run[T]:
        """Return a run by any id. A UUID alone gets its partition when the run is first asked."""
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
        )
        return run

    async def get_by_key(self, key: str) -> Run[Any]:
        """Return the run that a submit with this key would get, in the namespace of the app.

        Raises ExecutionNotFound if no execution has the key now.
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

        In the block, `f.add(task, ...)` adds nodes. The end of the block stores the whole flow,
        before any node runs, and `f.run` is its run. If the block raises, nothing is stored.
        Synchronous code uses `with`. With `via`, a connection, the flow joins its transaction.

        A handler stores the flow again in every run, unless it passes the flow to `ctx.flow`.
        """
        return Flow(self, name, via=via, tags=tags)

    def get_flow(self, id: AnyId) -> FlowRun:
        """Return the run of a flow by its whole id or its UUID, without asking the database."""
        uuid = bare_uuid(id)
        whole = FlowId.parse(str(id) if uuid is None else f"{{fp:0}}:{uuid}")
        return FlowRun(self, whole, is_stored=False, is_located=uuid is None)

    def run_of(self, id: ExecutionId, task: str, *, is_stored: bool = True) -> Run[Any]:
        """Return the run of an execution whose task is known."""
        return Run(
            id,
            task,
            self.client,
            self._decoder(task),
            is_stored=is_stored,
            call=self.portal.call,
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
        """Run a worker until cancelled; then finish or release what runs.

        With `finish_only` it finishes what its code version has begun, and begins nothing new.
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
        """Return a worker that has not started: call its `run()` and `stop()`.

        With `is_paced` this process does nothing by itself: the caller decides when the worker
        claims and when the reconcilers run.
        """
        client = await self.client(pool_size=1)
        if client not in self._declared:
            # Without hooks, too: an earlier version of the app may have declared some.
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
            self.portal.host = loop
        return process.worker(
            {name: task.spec for name, task in self.tasks.items()},
            lanes=lanes,
            concurrency=concurrency,
            needs=needs,
            worker_id=worker_id,
            drain_timeout=self.settings.drain_timeout,
            database=self._place(client),
            code=self._code,
            finish_only=finish_only,
        )

    def _place(self, client: FlowFabric) -> str:
        server = self._server
        return place(client.database.url) if server is None else f"embedded in {server.folder}"

    def _check_has_own_name(self) -> None:
        """Refuse to work beside another app of the same name that has schedules."""
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
                    "too; give each app a name of its own, App(name=...)",
                )

    @property
    def database_url(self) -> str | None:
        """The URL of the database, with its password. None before the app's own server starts."""
        server = self._server
        return self.settings.database_url or (None if server is None else server.url)

    @property
    def project(self) -> Path:
        """The folder whose `.flowfabric/` contains the app's own server, if it has one."""
        return self._project or Path.cwd()

    async def prepare(self) -> None:
        """Migrate the database of this app to the schema of this release.

        The app's own server is always migrated; your database only by this call or by
        `flowfabric db migrate`.
        """
        await self._migrate(self.settings.database_url or await self._own_server())

    async def check_journals(self) -> AsyncIterator[JournalVerdict]:
        """Check today's code against the journals of the unfinished executions of its tasks.

        Each handler runs up to its first step without a record. No step runs and nothing is
        written, if the handlers do their work in steps. Startup hooks, middleware and providers
        run as in a worker.
        """
        client = await self._connect(4)
        # A check writes nothing, so it declares no hooks.
        self._declared[client] = self._hook_changes
        specs = {name: task.spec for name, task in self.tasks.items()}
        lifespan = Lifespan(self._extensions)
        await lifespan.enter(specs.values())
        try:
            async for verdict in JournalCheck(client, specs, lifespan, self._code).check_all():
                yield verdict
        finally:
            self._declared.pop(client, None)
            await lifespan.exit()

    async def client(self, *, pool_size: int = 4) -> FlowFabric:
        """Return the client of the engine, with a connection pool for the running event loop."""
        client = await self._connect(pool_size)
        if self._declared.get(client, 0) != self._hook_changes:
            await self._declare_hooks(client)
        return client

    async def _connect(self, pool_size: int) -> FlowFabric:
        if self._pid != os.getpid():
            # Forked: the connections belong to the parent.
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

        The last loop also ends the background loop of synchronous callers, and releases the
        embedded server.
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
        """Use another database from now on, as tests do. Returns a function that goes back.

        Open connections stay with their database: close the app before you go back.
        """
        before = {
            name: getattr(self, name)
            for name in ("settings", "portal", "_server", "_clients", "_processes")
        }
        self.settings = replace(self.settings, database_url=database_url)
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
        with self._server_lock:  # loops of several threads share one server
            if self._server is None:
                self._server = start_server(self.project)
                if not self.settings.embedded:
                    _announce(self._server)
            return self._server.url

    async def _migrate(self, url: str) -> None:
        async with open_connection(url) as connection:
            await migrate(connection)


def _announce(server: Server) -> None:
    """Say that nobody named a database: the work may be meant for another one."""
    if sys.stderr is not None:
        sys.stderr.write(
            f"flowfabric: no database is set, so this app uses a Postgres in {server.folder}. "
            f"To use yours, set {' or '.join(DATABASE_URL_VARIABLES)}.\n"
        )


def _as_json(stored: bytes | None) -> Any:
    """Decode a result of a task that is not registered here."""
    return None if stored is None else json.loads(stored)


class TaskDecorator(Protocol):
    """The decorator that `@app.task(...)` returns."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, T]], /
    ) -> Task[P, Coroutine[Any, Any, T], T]: ...
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> Task[P, Coroutine[Any, Any, T], T]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], T], /) -> Task[P, T, T]: ...
    @overload
    def __call__(self, function: Callable[P, T], /) -> Task[P, T, T]: ...
