"""Reads of the database that many open pages share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, TypeVar, cast

from flowfabric.client import FlowFabric

T = TypeVar("T")

# How old a shared read may be.
SECONDS = 2.0
# The reads of at most this many namespaces are kept. A process serves few namespaces with open
# pages.
MOST = 1000


class Shared:
    """Keeps the result of a read for a moment, so that fifty open pages cost as much as one.

    Only reads that are the same for all visitors of a namespace may be shared.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self._known: dict[tuple[str, str], tuple[float, asyncio.Future[Any]]] = {}

    async def read(self, name: str, client: FlowFabric, read: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a read. It may be a moment old, and concurrent callers share it."""
        key = (name, client.namespace or "")
        until, found = self._known.get(key, (0.0, None))
        if found is None or monotonic() >= until or (found.done() and found.exception()):
            found = asyncio.ensure_future(read())
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[key] = monotonic() + self.seconds, found
        return cast(T, await asyncio.shield(found))
