"""Routes that say who may call them, and how large a body they take.

A route without a scope cannot be made: access is denied unless it is declared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

from fastapi import APIRouter, Depends
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from flowfabric.client import FlowFabric
from flowfabric.core.token import Scope
from flowfabric.server.principals import Principal
from flowfabric.server.problems import Problem

if TYPE_CHECKING:
    from flowfabric.server.application import Backend

# Bodies, in bytes: submissions, signals, everything else. A batch holds many submissions.
BATCH, LARGE, MEDIUM, CONTROL = 16 * 1_048_576, 1_048_576, 262_144, 65_536
# A client that sends its body slower than this gives up its request.
BODY_SECONDS = 30.0
JSON, FORM = "application/json", "application/x-www-form-urlencoded"
_WITH_BODY = {"POST", "PUT", "PATCH"}

_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Access:
    """Who may call a route (None: everybody, the route checks by itself), and its body limit."""

    scope: Scope | None
    limit: int = CONTROL
    # The media type of the body.
    media_type: str = JSON


@dataclass(frozen=True, slots=True)
class Call:
    """One request: who calls, and the client of the caller's namespace."""

    principal: Principal
    client: FlowFabric
    backend: Backend


class GuardedRoute(APIRoute):
    """Checks the caller and the body before the framework reads anything."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **settings: Any) -> None:
        self.access = _access(endpoint)
        super().__init__(path, endpoint, **settings)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        access = self.access

        async def guarded(request: Request) -> Response:
            request.scope["flowfabric.route"] = self.path
            backend = cast("Backend", request.app.state.backend)
            if access.scope is not None:
                principal = await backend.authenticate(request)
                if access.scope not in principal.scopes:
                    raise Problem(
                        403,
                        "missing_scope",
                        f"This needs a token with the scope {access.scope}.",
                        scope=str(access.scope),
                    )
                client = (await backend.app.client()).within(principal.namespace)
                request.state.call = Call(principal, client, backend)
                request.state.scope = access.scope
            if request.method in _WITH_BODY:
                await _read_body(request, access)
            return await handle(request)

        return guarded


def _access(endpoint: Callable[..., Any]) -> Access:
    access = getattr(endpoint, "flowfabric_access", None)
    if access is None:
        raise TypeError(f"{endpoint.__name__} declares no scope; use Routes.get and its siblings")
    return cast(Access, access)


class Routes:
    """A group of routes. Every method wants the scope that the route needs."""

    def __init__(self, tag: str) -> None:
        self._tag = tag
        self._routes: list[tuple[str, Callable[..., Any], dict[str, Any]]] = []

    def add_to(self, router: APIRouter) -> None:
        """Add the routes to a router, in the order in which they were declared."""
        for path, endpoint, settings in self._routes:
            router.add_api_route(path, endpoint, route_class_override=GuardedRoute, **settings)

    def get(self, path: str, scope: Scope | None, **more: Any) -> Callable[[_Endpoint], _Endpoint]:
        return self._add("GET", path, scope, CONTROL, more)

    def post(
        self,
        path: str,
        scope: Scope | None,
        *,
        limit: int = CONTROL,
        is_form: bool = False,
        **more: Any,
    ) -> Callable[[_Endpoint], _Endpoint]:
        return self._add("POST", path, scope, limit, more, FORM if is_form else JSON)

    def put(self, path: str, scope: Scope | None, **more: Any) -> Callable[[_Endpoint], _Endpoint]:
        return self._add("PUT", path, scope, CONTROL, more)

    def delete(
        self, path: str, scope: Scope | None, **more: Any
    ) -> Callable[[_Endpoint], _Endpoint]:
        return self._add("DELETE", path, scope, CONTROL, more)

    def _add(
        self,
        method: str,
        path: str,
        scope: Scope | None,
        limit: int,
        more: dict[str, Any],
        media_type: str = JSON,
    ) -> Callable[[_Endpoint], _Endpoint]:
        def add(endpoint: _Endpoint) -> _Endpoint:
            cast(Any, endpoint).flowfabric_access = Access(scope, limit, media_type)
            settings = {"methods": [method], "response_model": None, "tags": [self._tag], **more}
            self._routes.append((path, endpoint, settings))
            return endpoint

        return add


async def _read_body(request: Request, access: Access) -> None:
    """Read the body up to the limit, before anything else does; refuse another media type."""
    limit = access.limit
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdecimal() and int(length[:18]) > limit:
        raise too_large(limit)
    chunks, size = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit:
                    raise too_large(limit)
                chunks.append(chunk)
    except TimeoutError as error:
        raise Problem(408, "slow_body", "The body did not arrive in time.") from error
    except ClientDisconnect as error:
        raise Problem(400, "disconnected", "The client went away.") from error
    body = b"".join(chunks)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if body and kind != access.media_type:
        raise Problem(
            415, "unsupported_media_type", f"Send it with Content-Type: {access.media_type}."
        )
    request._body = body


def too_large(limit: int) -> Problem:
    return Problem(
        413,
        "body_too_large",
        f"The body may have at most {limit} bytes.",
        headers={"Connection": "close"},
        limit_bytes=limit,
    )


async def may_go_on(request: Request) -> bool:
    """Return whether a caller still may have what it began to get. A stream asks before it sends:
    the token may have been revoked, or may have expired."""
    call = cast(Call, request.state.call)
    try:
        principal = await call.backend.authenticate(request)
    except Problem:
        return False
    return request.state.scope in principal.scopes and (
        principal.namespace == call.principal.namespace
    )


async def _current(request: Request) -> Call:
    return cast(Call, request.state.call)


CurrentCall = Annotated[Call, Depends(_current)]
