"""App: where tasks are registered and from which they are submitted and worked."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, overload

from flowfabric.app.portal import Portal
from flowfabric.app.process import Process
from flowfabric.app.run import Run
from flowfabric.app.task import Task
from flowfabric.client import FlowFabric
from flowfabric.config import Settings
from flowfabric.core.errors import InvalidInput, Unavailable
from flowfabric.core.execution import DEFAULT_LANE
from flowfabric.core.policy import TASK_MAX_RECLAIMS, Retry
from flowfabric.db.connection import open_connection
from flowfabric.db.migrate import migrate
from flowfabric.embedded import EmbeddedError, Server
from flowfabric.embedded import start as start_server
from flowfabric.worker.context import Context
from flowfabric.worker.task import TaskSpec, task_name
from flowfabric.worker.worker import Worker

P = ParamSpec("P")
T = TypeVar("T")

_Loops = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[FlowFabric]]


class App:
    """Tasks and the database they live in.

    Without `database_url` and without FLOWFABRIC_DATABASE_URL or DATABASE_URL in the environment,
    the app uses a Postgres of its own, started when first needed, in `.flowfabric/` of `project`
    (default: the current folder).
    """

    def __init__(
        self,
        *,
        database_url: str | None = None,
        namespace: str | None = None,
        lease_ttl: timedelta | None = None,
        drain_timeout: timedelta | None = None,
        project: Path | None = None,
    ) -> None:
        given = {
            "database_url": database_url,
            "namespace": namespace,
            "lease_ttl": lease_ttl,
            "drain_timeout": drain_timeout,
        }
        self.settings = replace(
            Settings.from_environment(),
            **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]
        )
        self.tasks: dict[str, Task[..., Any, Any]] = {}
        self.portal = Portal(self._close_here)
        self._project = project
        self._server: Server | None = None
        self._server_lock = threading.Lock()
        self._clients: _Loops = weakref.WeakKeyDictionary()
        self._processes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Process] = (
            weakref.WeakKeyDictionary()
        )
        self._pid = os.getpid()

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
    ) -> Any:
        """Register a function as a task: `@app.task` or `@app.task(lane="mail", ...)`.

        `timeout` bounds one attempt, `deadline` the whole execution from its submission on;
        `retention` is how long an execution stays after its end.
        """

        def register(function: Callable[..., Any]) -> Task[..., Any, Any]:
            spec = TaskSpec(
                function=function,
                name=name or task_name(function),
                lane=lane,
                priority=priority,
                needs=needs if isinstance(needs, str) else frozenset(needs),  # type: ignore[arg-type]
                retry=retry,
                timeout=timeout,
                deadline=deadline,
                max_reclaims=max_reclaims,
                retention=retention,
                tags=tags or {},
            )
            if spec.name in self.tasks:
                raise InvalidInput(
                    field="name", problem=f"a task named {spec.name} is registered already"
                )
            task: Task[..., Any, Any] = Task(self, spec)
            self.tasks[spec.name] = task
            return task

        return register if function is None else register(function)

    async def submit(self, name: str, /, *args: Any, **kwargs: Any) -> Run[Any]:
        """Submit a task by its name."""
        task = self.tasks.get(name)
        if task is None:
            known = ", ".join(sorted(self.tasks)) or "none"
            raise InvalidInput(
                field="task", problem=f"no task is named {name!r} here; known are: {known}"
            )
        return await task.submit(*args, **kwargs)

    async def run_worker(
        self,
        *,
        lanes: Sequence[str] | None = None,
        concurrency: int = 20,
        needs: Iterable[str] = (),
        worker_id: str | None = None,
    ) -> None:
        """Work on this app's tasks until cancelled; then finish or give back what is running."""
        worker = await self.worker(
            lanes=lanes, concurrency=concurrency, needs=needs, worker_id=worker_id
        )
        await worker.run()

    async def worker(
        self,
        *,
        lanes: Sequence[str] | None = None,
        concurrency: int = 20,
        needs: Iterable[str] = (),
        worker_id: str | None = None,
    ) -> Worker:
        """A worker that has not started yet: `run()` it, `stop()` it."""
        client = await self.client(pool_size=1)
        loop = asyncio.get_running_loop()
        process = self._processes.get(loop)
        if process is None:
            process = self._processes[loop] = Process(client, self.settings.lease_ttl)
            self.portal.host = loop
        return process.worker(
            {name: task.spec for name, task in self.tasks.items()},
            lanes=lanes,
            concurrency=concurrency,
            needs=needs,
            worker_id=worker_id,
            drain_timeout=self.settings.drain_timeout,
        )

    async def prepare(self) -> None:
        """Bring the database of this app to the schema of this release.

        The app's own server is always kept up to date; a database of yours only by this call or by
        `flowfabric db migrate`.
        """
        await self._migrate(self.settings.database_url or await self._own_server())

    async def client(self, *, pool_size: int = 4) -> FlowFabric:
        """The engine's operations, over a connection pool of the running event loop."""
        if self._pid != os.getpid():
            # Forked: the parent's connections are not ours.
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
        """Close the connections of the running event loop. The last loop to do so also ends the
        one in the background that synchronous callers use, and leaves the embedded server."""
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
        with self._server_lock:  # loops of several threads share one
            if self._server is None:
                self._server = start_server(self._project or Path.cwd())
            return self._server.url

    async def _migrate(self, url: str) -> None:
        async with open_connection(url) as connection:
            await migrate(connection)


class TaskDecorator(Protocol):
    """What `@app.task(...)` with options returns."""

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
