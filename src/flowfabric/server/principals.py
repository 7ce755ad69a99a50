"""Principals: who calls, with which scopes, in which namespace. No request chooses a namespace."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic
from typing import Literal, TypeAlias

from starlette.requests import Request

from flowfabric.client import FlowFabric
from flowfabric.core.token import Scope, TokenUse, is_token, token_hash
from flowfabric.server.problems import Problem

# A revoked token is accepted for at most this long.
CACHE_SECONDS = 4.0
_CACHED = 10_000
# After this many wrong tokens within a minute, an address has to wait.
FAILURES = 20
WINDOW_SECONDS = 60.0
_ADDRESSES = 10_000
# The paths of the dashboard, and the cookie that holds the token of its visitor. Browsers take a
# cookie with the prefix __Host- only from this host over https, for all its paths.
PAGES = "/dashboard"
COOKIE = "flowfabric_token"
HOST_COOKIE = f"__Host-{COOKIE}"


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller of a request."""

    name: str
    scopes: frozenset[Scope]
    namespace: str
    # The id of the token; None for a caller without a token.
    token_id: str | None = None
    # When the token expires, by the clock of this process (time.monotonic); None means never.
    expires_at: float | None = None

    @property
    def identity(self) -> str:
        """A name for this caller that no other caller has."""
        return self.token_id or f"{self.namespace} {self.name}"


Authenticate: TypeAlias = Callable[[Request], Awaitable[Principal]]
Auth: TypeAlias = Literal["tokens", "none"] | Authenticate


def bearer(request: Request) -> str:
    """Return the token of a request; refuse a request without one.

    Pages of the dashboard also accept the token in a cookie. All other paths ignore the cookie.
    """
    path = str(request.scope.get("flowfabric.route") or "")
    if path.startswith(PAGES) and (token := request.cookies.get(cookie_of(request))):
        return token
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not token.strip():
        raise unauthorized("Send a token in the header: Authorization: Bearer ffp_...")
    return token.strip()


def cookie_of(request: Request) -> str:
    """Return the name of the cookie that contains the token of a visitor."""
    return HOST_COOKIE if request.url.scheme == "https" else COOKIE


def unauthorized(detail: str) -> Problem:
    return Problem(
        401, "unauthorized", detail, headers={"WWW-Authenticate": 'Bearer realm="flowfabric"'}
    )


class TokenAuth:
    """Looks up tokens in the database, and remembers valid ones for a few seconds."""

    def __init__(self, client: Callable[[], Awaitable[FlowFabric]]) -> None:
        self._client = client
        self._known: OrderedDict[bytes, tuple[float, Principal]] = OrderedDict()
        self._failures: OrderedDict[str, tuple[float, int]] = OrderedDict()

    async def __call__(self, request: Request) -> Principal:
        token = bearer(request)
        digest = token_hash(token)
        until, principal = self._known.get(digest, (0.0, None))
        if principal is not None and monotonic() < until:
            return principal
        address = request.client.host if request.client else ""
        if principal is None:
            # Behind a proxy all callers may have the same address. Known tokens are exempt, so that
            # a stranger cannot lock them out.
            self._check_failures(address)
        found = None
        if is_token(token):
            found = await (await self._client()).within(None).tokens.use(token)
        if found is None:
            self._known.pop(digest, None)
            self._note_failure(address)
            raise unauthorized("The token is unknown, expired or revoked.")
        return self._remember(digest, found)

    def _remember(self, digest: bytes, found: TokenUse) -> Principal:
        principal = Principal(
            f"token {found.name} ({found.prefix}…)",
            found.scopes,
            found.namespace,
            str(found.token_id),
            None if found.expires_in is None else monotonic() + found.expires_in,
        )
        valid = CACHE_SECONDS if found.expires_in is None else min(CACHE_SECONDS, found.expires_in)
        self._known[digest] = monotonic() + valid, principal
        self._known.move_to_end(digest)
        if len(self._known) > _CACHED:
            self._known.popitem(last=False)
        return principal

    def _check_failures(self, address: str) -> None:
        since, number = self._failures.get(address, (0.0, 0))
        left = since + WINDOW_SECONDS - monotonic()
        if number >= FAILURES and left > 0:
            raise Problem(
                429,
                "too_many_failures",
                f"{number} requests from this address had no valid token. Try again later.",
                headers={"Retry-After": str(int(left) + 1)},
            )

    def _note_failure(self, address: str) -> None:
        since, number = self._failures.get(address, (0.0, 0))
        now = monotonic()
        if now - since > WINDOW_SECONDS:
            since, number = now, 0
        self._failures[address] = since, number + 1
        self._failures.move_to_end(address)
        if len(self._failures) > _ADDRESSES:
            self._failures.popitem(last=False)


class NoAuth:
    """Accepts every request from this machine, with all scopes. For development only."""

    def __init__(self, namespace: str) -> None:
        self._principal = Principal("anonymous", frozenset(Scope), namespace)

    async def __call__(self, request: Request) -> Principal:
        server = request.scope.get("server")
        client = request.client
        if not (client and is_loopback(client.host) and server and is_loopback(server[0])):
            raise Problem(
                403,
                "loopback_only",
                'With auth="none" the server accepts requests from its own machine only. '
                "Make a token: flowfabric token new",
            )
        return self._principal


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is this machine's own."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
