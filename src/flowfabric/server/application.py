"""The ASGI application: HTTP routes, errors, and the objects that HTTP routes share."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from importlib.metadata import version
from time import monotonic
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from flowfabric.app.app import App
from flowfabric.app.task import Task
from flowfabric.client import FlowFabric
from flowfabric.core.errors import FlowFabricError, Forbidden, InvalidInput
from flowfabric.core.task import TaskInfo
from flowfabric.doctor import Report
from flowfabric.server import (
    bulk,
    calls,
    dashboard,
    events,
    executions,
    flows,
    health,
    minutes,
    operating,
    streams,
    tokens,
    waitpoints,
    workers,
)
from flowfabric.server.dashboard.shared import Shared
from flowfabric.server.guard import Guard, request_id_of
from flowfabric.server.metrics import ServerMetrics
from flowfabric.server.principals import Auth, Authenticate, NoAuth, TokenAuth
from flowfabric.server.problems import Problem, answer, from_http, from_validation, status_of
from flowfabric.server.routing import GuardedRoute

LOGGER = logging.getLogger("flowfabric.server")
# How long the server remembers what is registered about a task, and for how many tasks.
TASK_SECONDS = 5.0
KNOWN_TASKS = 10_000
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
GROUPS = (
    executions.routes,
    bulk.routes,
    flows.routes,
    waitpoints.routes,
    operating.routes,
    minutes.routes,
    workers.routes,
    events.routes,
    streams.routes,
    tokens.routes,
    calls.routes,
    health.routes,
    *dashboard.GROUPS,
)


class Backend:
    """The objects that all HTTP routes share: the app, its tasks, and how to recognise callers."""

    def __init__(self, app: App, authenticate: Authenticate) -> None:
        self.app = app
        self.hides_payloads = app.settings.dashboard_hide_payloads
        self.authenticate = authenticate
        self.routes: list[GuardedRoute] = []
        self._tasks: dict[tuple[str, str], Task[..., Any, Any]] = {}
        self._feeds: dict[str, events.Feed] = {}
        self._lease_key: bytes | None = None
        self._sees_all: bool | None = None
        self._registered: dict[tuple[str, str], tuple[float, TaskInfo]] = {}
        self.metrics = ServerMetrics()
        # The reads that open pages share.
        self.shared = Shared()
        # The result of a test that finds out whether hints arrive. The test opens a connection, so
        # pages share its result.
        self.hearing = Shared(seconds=60.0)
        # The latest report of the doctor that a visitor of this process asked for.
        self.report: Report | None = None
        # The run of the doctor that is under way, or the last one.
        self.examination: asyncio.Task[Report] | None = None
        # How many streams each caller has open.
        self.open_streams: Counter[str] = Counter()
        # How many claims of each caller wait for work, by namespace and identity.
        self.long_polls: Counter[tuple[str, str]] = Counter()

    def task(self, name: str, namespace: str) -> Task[..., Any, Any] | None:
        """Return a task of the app for one namespace; None if the app has no task of this name."""
        task = self.app.tasks.get(name)
        if task is None:
            return None
        known = self._tasks.get((name, namespace))
        if known is None or known.spec is not task.spec:
            known = self._tasks[name, namespace] = task.within(namespace)
        return known

    async def registered_task(self, client: FlowFabric, name: str) -> TaskInfo:
        """Return what an app or a worker has registered about a task.

        The answer may be up to TASK_SECONDS old.
        """
        key = (client.namespace or "", name)
        until, known = self._registered.get(key, (0.0, None))
        if known is not None and monotonic() < until:
            return known
        found = await client.tasks.describe(name)
        if len(self._registered) >= KNOWN_TASKS:
            self._registered.clear()
        self._registered[key] = monotonic() + TASK_SECONDS, found
        return found

    async def any_namespace(self) -> FlowFabric:
        """Return a client that sees all namespaces.

        If the login is bound to one namespace, return a client of the app's namespace.
        """
        client = await self.app.client()
        if self._sees_all is None:
            try:
                await client.within(None).executions.list(limit=1)
                self._sees_all = True
            except Forbidden:
                self._sees_all = False
        return client.within(None) if self._sees_all else client

    async def lease_key(self) -> bytes:
        """Return the key with which the server signs the leases of workers that use HTTP."""
        if self._lease_key is None:
            self._lease_key = await (await self.app.client()).workers.server_key()
        return self._lease_key

    def feed(self, client: FlowFabric) -> events.Feed:
        """Return the reader of the event log that all event streams of a namespace share."""
        namespace = client.namespace or ""
        known = self._feeds.get(namespace)
        if known is None or known.client is not client:
            known = self._feeds[namespace] = events.Feed(client)
        return known


class Server(FastAPI):
    """The ASGI application: it adds all HTTP routes, and a `Guard` around every request."""

    def __init__(self, backend: Backend, guard: dict[str, Any], *, closes_app: bool) -> None:
        @asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncIterator[None]:
            yield
            if closes_app:
                await backend.app.close()

        super().__init__(
            title="flowfabric",
            version=version("flowfabric"),
            description="Durable execution on PostgreSQL, over HTTP.",
            openapi_url=None,
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
            lifespan=lifespan,
        )
        self.state.backend = backend
        for group in GROUPS:
            group.add_to(self.router)
        for route in self.router.routes:
            if not isinstance(route, GuardedRoute):
                raise TypeError(f"{route} has no scope")
            backend.routes.append(route)
        for kind, handler in (
            (FlowFabricError, _refused),
            (Problem, _problem),
            (HTTPException, _http),
            (RequestValidationError, _invalid),
            (Exception, _unexpected),
        ):
            self.add_exception_handler(kind, handler)
        self.add_middleware(GZipMiddleware, minimum_size=2048, compresslevel=3)
        self._guard = guard
        self._guarded: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._guarded is None:
            note = self.state.backend.metrics.note
            self._guarded = Guard(
                super().__call__, routes=self.router.routes, note=note, **self._guard
            )
        await self._guarded(scope, receive, send)


def server(
    app: App,
    *,
    auth: Auth = "tokens",
    hosts: Iterable[str] = (),
    cors_origins: Iterable[str] = (),
    closes_app: bool = False,
) -> Server:
    """Return the HTTP server of an app, as an ASGI application that can be mounted.

    `auth="tokens"` requires a token that `flowfabric token new` made. `auth="none"` accepts every
    request from this machine and refuses all others. If `auth` is an async function, it gets the
    request and returns its `Principal`.

    If `hosts` is given, the server accepts only requests with one of these Host headers. With
    `auth="none"`, localhost is accepted, too. `cors_origins` are the origins whose pages may call
    the server. If `closes_app` is true, the app is closed when the server stops.
    """
    if isinstance(hosts, str) or isinstance(cors_origins, str):
        raise InvalidInput(field="hosts", problem="must be a list of names, not one text")
    authenticate: Authenticate
    known = [*hosts]
    if auth == "none":
        authenticate = NoAuth(app.settings.namespace)
        known += LOOPBACK_HOSTS
    elif auth == "tokens":
        authenticate = TokenAuth(app.client)
    elif callable(auth):
        authenticate = auth
    else:
        raise InvalidInput(field="auth", problem='must be "tokens", "none" or a function')
    guard = {"hosts": known, "is_open": auth == "none", "cors_origins": [*cors_origins]}
    return Server(Backend(app, authenticate), guard, closes_app=closes_app)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, FlowFabricError)
    if status_of(error) >= 500:
        LOGGER.warning("request refused: %s, request=%s", error, request_id_of(request.scope))
    return _shown(request, error)


async def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return _shown(request, error)


def _shown(request: Request, error: FlowFabricError | Problem) -> Response:
    if dashboard.is_page(request):
        return dashboard.problem_page(request, error)
    return answer(error, request_id_of(request.scope))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return answer(from_http(error), request_id_of(request.scope))


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _shown(request, from_validation(error.errors()))


async def _unexpected(request: Request, error: Exception) -> Response:
    problem = Problem(500, "internal_error", "Something went wrong in the server.")
    return answer(problem, request_id_of(request.scope))
