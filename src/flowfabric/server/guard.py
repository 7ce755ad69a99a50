"""The layer around every request: it gives the request an id, checks host and origin, sets headers,
logs the request, and answers errors that no other code has caught.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any, TypeAlias
from urllib.parse import urlsplit
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flowfabric.server.problems import Problem, answer

LOGGER = logging.getLogger("flowfabric.server")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SAFE = {"GET", "HEAD", "OPTIONS"}
# In the metrics, all other methods share one label, because a caller can invent any number of
# methods.
_COUNTED = {*_SAFE, "POST", "PUT", "PATCH", "DELETE"}

Methods: TypeAlias = set[str]

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}


class Guard:
    """The outermost layer of the server. If hosts are given, it refuses requests for other hosts.

    If `is_open` is true, requests need no token, and the guard refuses requests from pages of other
    sites. It recognises such requests by the headers Origin, Sec-Fetch-Site and Content-Type.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Iterable[str] = (),
        is_open: bool = False,
        routes: list[BaseRoute] | None = None,
        note: Callable[[str, str, int, float], None] | None = None,
        cors_origins: Iterable[str] = (),
    ) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._is_open = is_open
        self._routes = routes or []
        self._cors = frozenset(cors_origins)
        self._note = note

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid4().hex
        scope["flowfabric.request_id"] = request_id
        started, status, is_begun = perf_counter(), 500, False
        is_head = scope["method"] == "HEAD"

        async def finish(message: Message) -> None:
            nonlocal status, is_begun
            if message["type"] == "http.response.start":
                status, is_begun = message["status"], True
                self._decorate(message, request_id, headers)
            elif is_head and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        try:
            if problem := self._refusal(scope, headers):
                await answer(problem, request_id)(scope, receive, finish)
            elif scope["method"] == "OPTIONS":
                await self._options(scope, receive, finish, headers)
            else:
                inner = {**scope, "method": "GET"} if is_head else scope
                await self._app(inner, receive, finish)
                scope["flowfabric.route"] = inner.get("flowfabric.route")
        except Exception:
            LOGGER.exception("request failed, request=%s", request_id)
            if not is_begun:
                problem = Problem(500, "internal_error", "Something went wrong in the server.")
                await answer(problem, request_id)(scope, receive, finish)
        finally:
            # Log the route and not the path, because a path may contain a token.
            route = scope.get("flowfabric.route") or "(no route)"
            seconds = perf_counter() - started
            if self._note is not None:
                method = scope["method"] if scope["method"] in _COUNTED else "other"
                self._note(method, route, status, seconds)
            LOGGER.info(
                "%s %s %d in %.1f ms, request=%s",
                scope["method"],
                route,
                status,
                seconds * 1000,
                request_id,
            )

    def _decorate(self, message: Message, request_id: str, given: Headers) -> None:
        headers = MutableHeaders(scope=message)
        for name, value in HEADERS.items():
            headers.setdefault(name, value)
        headers["X-Request-Id"] = request_id
        if (origin := given.get("origin")) in self._cors and origin:
            headers["Access-Control-Allow-Origin"] = origin
            headers["Access-Control-Expose-Headers"] = "ETag, Link, Location, X-Request-Id"
            headers.add_vary_header("Origin")

    def _refusal(self, scope: Scope, headers: Headers) -> Problem | None:
        hosts = headers.getlist("host")
        host = hosts[0].lower() if len(hosts) == 1 else ""
        name = _name(host)
        if len(hosts) > 1 or (self._hosts and name not in self._hosts):
            return Problem(
                421,
                "unknown_host",
                "This server is not known under this Host. Start it with --allow-host NAME.",
            )
        if not self._is_open:
            return None
        origin = headers.get("origin")
        site = headers.get("sec-fetch-site", "none")
        if (origin is not None and not self._is_same(origin, scope, host)) or site not in (
            "none",
            "same-origin",
        ):
            return Problem(403, "cross_origin", "A page of another site may not call this server.")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        # A browser sends the origin of a form. A form without an origin may come from another site.
        is_own_form = kind == "application/x-www-form-urlencoded" and origin is not None
        if scope["method"] not in _SAFE and kind != "application/json" and not is_own_form:
            return Problem(
                415, "unsupported_media_type", "Send JSON, with Content-Type: application/json."
            )
        return None

    def _is_same(self, origin: str, scope: Scope, host: str) -> bool:
        return origin in self._cors or origin.lower() == f"{scope['scheme']}://{host}"

    async def _options(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        methods: Methods = set()
        for route in self._routes:
            match, _ = route.matches(scope)
            if match.value:
                methods |= getattr(route, "methods", None) or set()
        if not methods:
            problem = Problem(404, "unknown_path", "There is no such path.")
            await answer(problem, scope["flowfabric.request_id"])(scope, receive, send)
            return
        allowed = ", ".join(sorted({*methods, "OPTIONS", *({"HEAD"} if "GET" in methods else ())}))
        lines = [(b"allow", allowed.encode())]
        if headers.get("origin") in self._cors:
            asked = "authorization, content-type, if-match, idempotency-key, last-event-id, prefer"
            lines += [
                (b"access-control-allow-methods", allowed.encode()),
                (b"access-control-allow-headers", asked.encode()),
                (b"access-control-max-age", b"600"),
            ]
        await send({"type": "http.response.start", "status": 204, "headers": lines})
        await send({"type": "http.response.body", "body": b""})


def _name(host: str) -> str:
    """Return a Host header without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def request_id_of(scope: Any) -> str:
    return str(scope.get("flowfabric.request_id", ""))
