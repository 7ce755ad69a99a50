"""A server on the database of a test, and callers with tokens."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import httpx

from flowfabric import App, Retry
from flowfabric.client import FlowFabric
from flowfabric.server import server
from flowfabric.server.application import Server
from server.documented import problem_of

OURS, THEIRS = "ours", "theirs"


def make_tasks(app: App) -> None:
    @app.task(name="add", tags={"team.name": "sums"})
    async def add(x: int, y: int = 1) -> int:
        return x + y

    @app.task(name="echo")
    async def echo(value: Any) -> Any:
        return value

    @app.task(name="fail", retry=Retry(max_retries=0))
    async def fail() -> None:
        raise ValueError("no")


class Caller(httpx.AsyncClient):
    """Calls the server in this process, with a token or without.

    Every answer must be as the OpenAPI document says.
    """

    def __init__(self, served: Server, token: str | None = None, **headers: str) -> None:
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        super().__init__(
            transport=httpx.ASGITransport(app=served, client=("127.0.0.1", 40000)),
            base_url="http://127.0.0.1:9090",
            headers=headers,
            event_hooks={"response": [self._compare]},
        )
        self._served = served

    async def _compare(self, answer: httpx.Response) -> None:
        if "text/event-stream" in answer.headers.get("content-type", ""):
            return
        await answer.aread()
        problem = problem_of(self._served, answer)
        assert problem is None, problem


class World:
    """One server, and tokens by scope and namespace."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.served = server(app)
        # A test reads what it has just written.
        self.served.state.backend.shared.seconds = 0.0
        self._callers: list[Caller] = []

    async def client(self, namespace: str = OURS) -> FlowFabric:
        return (await self.app.client()).within(namespace)

    async def token(
        self,
        *scopes: str,
        namespace: str = OURS,
        expires: timedelta | None = None,
    ) -> str:
        made = await (await self.client(namespace)).tokens.create(
            "tests", scopes or ("admin",), expires=expires
        )
        return made.token

    async def caller(self, *scopes: str, namespace: str = OURS, **headers: str) -> Caller:
        return self.with_token(await self.token(*scopes, namespace=namespace), **headers)

    def with_token(self, token: str | None, **headers: str) -> Caller:
        self._callers.append(Caller(self.served, token, **headers))
        return self._callers[-1]

    async def close(self) -> None:
        for caller in self._callers:
            await caller.aclose()


def routes_of(served: Server, methods: Iterable[str] = ()) -> list[tuple[str, str, Any]]:
    """Return method, path and access of every route."""
    return [
        (method, route.path, route.access)
        for route in served.router.routes
        for method in sorted(route.methods)
        if not methods or method in methods
    ]
