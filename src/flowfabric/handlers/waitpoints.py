"""Waitpoints in a handler: a token to send now, and a wait for its answer later."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, overload
from uuid import UUID

from flowfabric.core.errors import InvalidInput
from flowfabric.handlers.signals import NO_DEFAULT

T = TypeVar("T")
D = TypeVar("D")

Waiter = Callable[[str, UUID, Any, Any, Any], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Waitpoint:
    """An address for one answer. Everybody who has the token can answer: do not log the token."""

    key: str
    id: UUID
    token: str
    public_url: str | None
    _wait: Waiter
    _wait_sync: Callable[[Callable[[], Any]], Any]

    def __repr__(self) -> str:
        return f"Waitpoint({self.key!r}, {self.id})"

    @property
    def url(self) -> str:
        """The link to the page where the waitpoint is answered.

        It consists of FLOWFABRIC_PUBLIC_URL, `/w/` and the token.
        """
        return link_of(self.public_url, self.token)

    @overload
    async def wait(self, type: type[T], /, *, timeout: timedelta | float | None = None) -> T: ...
    @overload
    async def wait(
        self, type: type[T], /, *, timeout: timedelta | float | None, default: D
    ) -> T | D: ...
    @overload
    async def wait(
        self,
        type: Any = ...,
        /,
        *,
        timeout: timedelta | float | None = None,
        default: Any = ...,
    ) -> Any: ...

    async def wait(
        self,
        type: Any = Any,
        /,
        *,
        timeout: timedelta | float | None = None,
        default: Any = NO_DEFAULT,
    ) -> Any:
        """Wait for the answer, as `ctx.wait_for_signal` does.

        After the wait, the token is refused. If the waitpoint is closed without an answer, the wait
        times out immediately.
        """
        return await self._wait(self.key, self.id, type, timeout, default)

    def wait_sync(
        self,
        type: Any = Any,
        /,
        *,
        timeout: timedelta | float | None = None,
        default: Any = NO_DEFAULT,
    ) -> Any:
        """`wait` for a `def` handler."""
        return self._wait_sync(lambda: self._wait(self.key, self.id, type, timeout, default))


def link_of(public_url: str | None, token: str) -> str:
    """Return the link to the page where a waitpoint is answered."""
    if public_url is None:
        raise InvalidInput(
            field="public_url",
            problem="is not set: set FLOWFABRIC_PUBLIC_URL, or use the token of the waitpoint",
        )
    return f"{public_url.rstrip('/')}/w/{token}"
