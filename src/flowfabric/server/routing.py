"""HTTP routes that declare the scope of their callers and the largest body of a request.

Every HTTP route must declare a scope, or None for no scope. Otherwise its definition raises an
error.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

from fastapi import APIRouter, Depends
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from flowfabric.client import FlowFabric
from flowfabric.core.errors import Forbidden, InvalidInput
from flowfabric.core.json_text import NOT_FINITE, NotFinite, read_json
from flowfabric.core.token import Scope
from flowfabric.server.principals import Principal, unauthorized
from flowfabric.server.problems import Problem

if TYPE_CHECKING:
    from flowfabric.server.application import Backend

# The limits of bodies, in bytes: batches of submissions; submissions and results; signals and
# answers; everything else.
BATCH, LARGE, MEDIUM, CONTROL = 16 * 1_048_576, 1_048_576, 262_144, 65_536
# A body that takes longer than this to arrive is refused.
BODY_SECONDS = 30.0
# How many streams of server-sent events one caller may have open at a time, in one process.
MAX_STREAMS = 200
# How many claims may wait for work at a time, in one process. Each listens on its own connection.
LONG_POLLS = 32
JSON, FORM = "application/json", "application/x-www-form-urlencoded"
_WITH_BODY = {"POST", "PUT", "PATCH"}

_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Access:
    """What an HTTP route declares: its callers' scope, the largest request body, and its answers.

    If the scope is None, the route is public, or it checks its callers itself.
    """

    scope: Scope | None
    limit: int = CONTROL
    # The media type of the body.
    media_type: str = JSON
    # The shapes of the answers by status (server/shapes.py), and further statuses with which the
    # route may refuse.
    answers: Mapping[int, Any] = field(default_factory=dict)
    refuses: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """One request: who calls, and the client of the caller's namespace."""

    principal: Principal
    client: FlowFabric
    backend: Backend

    def check_sees_payloads(self) -> None:
        """Raise Forbidden if the server hides payloads from this caller."""
        if self.is_blind:
            raise Forbidden("This server hides payloads from callers who may only read.")

    @property
    def is_blind(self) -> bool:
        """Whether payloads, results and values are hidden from this caller."""
        return self.backend.hides_payloads and self.principal.scopes == {Scope.READ}

    def check_may_stream(self) -> None:
        """Raise a Problem if the caller already has as many open streams as are allowed."""
        if self.backend.open_streams[self.principal.identity] >= MAX_STREAMS:
            raise Problem(
                429,
                "too_many_streams",
                f"This token has {MAX_STREAMS} open streams. Close some.",
                limit=MAX_STREAMS,
            )

    async def counted(self, frames: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        """Yield the frames of a stream. Meanwhile the stream counts as open."""
        with self.streaming():
            async with aclosing(frames) as items:
                async for one in items:
                    yield one

    @contextmanager
    def streaming(self) -> Iterator[bool]:
        """Count an open stream, or a call that waits. Yield False if the caller has too many."""
        who, open_streams = self.principal.identity, self.backend.open_streams
        open_streams[who] += 1
        try:
            yield open_streams[who] <= MAX_STREAMS
        finally:
            open_streams[who] -= 1
            if not open_streams[who]:
                del open_streams[who]

    @contextmanager
    def polling(self) -> Iterator[None]:
        """Count a claim while it waits for work. Raise a Problem if too many claims wait already.

        At most LONG_POLLS claims can wait: at most half of them from one caller, and at most three
        quarters from one namespace. Otherwise an administrator of a namespace could make tokens
        until no other claim can wait.
        """
        space, polls = self.principal.namespace, self.backend.long_polls
        who, free = (space, self.principal.identity), LONG_POLLS - polls.total()
        together = sum(number for (other, _), number in polls.items() if other == space)
        if polls[who] >= free or together >= 3 * free:
            raise Problem(
                429,
                "too_many_polls",
                f"{polls[who]} claims of this token and {together} of its namespace are already "
                "waiting for work. Let fewer claims wait.",
                waiting=polls[who],
            )
        polls[who] += 1
        try:
            yield
        finally:
            polls[who] -= 1
            if not polls[who]:
                del polls[who]


class GuardedRoute(APIRoute):
    """An HTTP route that checks the caller and the body before the framework reads the request."""

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
                body = await _read_body(request, access)
                parsed = None if self.body_field is None else _json_in(body)
                request = _ReadRequest(request, body, parsed)
            return await handle(request)

        return guarded


class _ReadRequest(Request):
    """A request whose body has been read, and parsed if its route takes JSON.

    The framework reads a body through these methods, so it gets the body that was checked.
    """

    def __init__(self, request: Request, body: bytes, parsed: Any) -> None:
        super().__init__(request.scope, request.receive)
        self._checked_body = body
        self._parsed_body = parsed

    async def stream(self) -> AsyncGenerator[bytes, None]:
        yield self._checked_body
        yield b""  # This is how Starlette marks the end of a body.

    async def body(self) -> bytes:
        return self._checked_body

    async def json(self) -> Any:
        return self._parsed_body


def _access(endpoint: Callable[..., Any]) -> Access:
    access = getattr(endpoint, "flowfabric_access", None)
    if access is None:
        raise TypeError(f"{endpoint.__name__} declares no scope; use Routes.get and its siblings")
    return cast(Access, access)


class Routes:
    """A group of HTTP routes. Every method that declares a route takes the scope as an argument."""

    def __init__(self, tag: str) -> None:
        self._tag = tag
        self._made = APIRouter()

    def add_to(self, router: APIRouter) -> None:
        """Add the HTTP routes to a router, in the order in which they were declared.

        All servers of a process share the routes, because a route has no state and takes long to
        make.
        """
        router.routes.extend(self._made.routes)

    def get(self, path: str, scope: Scope | None, **more: Any) -> Callable[[_Endpoint], _Endpoint]:
        return self._add("GET", path, Access(scope), **more)

    def post(
        self,
        path: str,
        scope: Scope | None,
        *,
        limit: int = CONTROL,
        is_form: bool = False,
        **more: Any,
    ) -> Callable[[_Endpoint], _Endpoint]:
        return self._add("POST", path, Access(scope, limit, FORM if is_form else JSON), **more)

    def put(self, path: str, scope: Scope | None, **more: Any) -> Callable[[_Endpoint], _Endpoint]:
        return self._add("PUT", path, Access(scope), **more)

    def delete(
        self, path: str, scope: Scope | None, **more: Any
    ) -> Callable[[_Endpoint], _Endpoint]:
        return self._add("DELETE", path, Access(scope), **more)

    def _add(
        self,
        method: str,
        path: str,
        access: Access,
        *,
        answers: Any = None,
        status_code: int = 200,
        also: Mapping[int, Any] = MappingProxyType({}),
        refuses: tuple[int, ...] = (),
        include_in_schema: bool = True,
    ) -> Callable[[_Endpoint], _Endpoint]:
        """Declare an HTTP route.

        `answers` is the shape of its usual answer, which has the status `status_code`. `also` has
        the shapes of its other answers by status. `refuses` lists statuses with which the route
        refuses requests, in addition to the usual ones.
        """
        if include_in_schema and answers is None:
            raise TypeError(f"{method} {path} does not declare what it answers")
        shapes = {status_code: answers, **also}

        def add(endpoint: _Endpoint) -> _Endpoint:
            cast(Any, endpoint).flowfabric_access = replace(access, answers=shapes, refuses=refuses)
            self._made.add_api_route(
                path,
                endpoint,
                methods=[method],
                response_model=None,
                tags=[self._tag],
                status_code=status_code,
                include_in_schema=include_in_schema,
                route_class_override=GuardedRoute,
            )
            return endpoint

        return add


async def _read_body(request: Request, access: Access) -> bytes:
    """Return the request body. Refuse it if it is too large or has a wrong media type."""
    limit = access.limit
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise Problem(
            415, "unsupported_media_type", "Send the body as it is, without Content-Encoding."
        )
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
    return body


def _json_in(body: bytes) -> Any:
    """Return the JSON value of a request body; None if the body is empty."""
    try:
        return read_json(body) if body else None
    except NotFinite as error:
        field = ".".join(error.path)[:256] or "body"
        raise InvalidInput(field=field, problem=NOT_FINITE) from error
    except json.JSONDecodeError as error:
        where = f"{error.msg.lower()} at character {error.pos}"
        raise Problem(400, "invalid_json", f"The body is not JSON: {where}.") from error
    except (ValueError, RecursionError) as error:
        raise Problem(
            400, "invalid_json", "The body is not JSON, or it is nested too deeply."
        ) from error


def too_large(limit: int) -> Problem:
    return Problem(
        413,
        "body_too_large",
        f"The body may have at most {limit} bytes.",
        headers={"Connection": "close"},
        limit_bytes=limit,
    )


async def check_still_allowed(request: Request) -> None:
    """Raise a Problem if the token of a request no longer allows the request.

    The token may have expired, or may have been revoked, while the request waited.
    """
    call = cast(Call, request.state.call)
    principal = await call.backend.authenticate(request)
    if request.state.scope not in principal.scopes or (
        principal.namespace != call.principal.namespace
    ):
        raise unauthorized("The rights of the token have changed since the request began.")


async def may_still_read(request: Request) -> bool:
    """Return whether the token of a request still allows the request."""
    try:
        await check_still_allowed(request)
    except Problem:
        return False
    return True


async def _current(request: Request) -> Call:
    return cast(Call, request.state.call)


CurrentCall = Annotated[Call, Depends(_current)]
