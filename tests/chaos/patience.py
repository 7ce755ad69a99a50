"""What the tests with a fleet of workers share: calls and waits that outlast the faults."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

import asyncpg

from faults.server import Server
from faults.workers import Fleet
from flowfabric.core.errors import TargetNotSignalable, Unavailable

STUCK_SECONDS = 120.0
AWAY = (
    Unavailable,
    OSError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)


async def insist(call: Callable[[], Awaitable[Any]]) -> Any:
    """Call again until the server answers; a signal that was sent twice has the same key."""
    while True:
        try:
            return await call()
        except TargetNotSignalable:
            # The other copy of the signal was taken, and the execution has ended.
            return None
        except AWAY:
            await asyncio.sleep(0.05)
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                # The end of a lost transaction has swallowed the cancellation.
                raise asyncio.CancelledError from None


async def until_all_ended(server: Server, fleet: Fleet) -> None:
    """Wait until every execution has ended, and replace workers that were killed."""
    left, moved = -1, monotonic()
    while True:
        ((now_left,),) = await server.fetch(
            "select count(*) from ff.execution where phase <> 'terminal'"
        )
        if now_left == 0:
            return
        if now_left != left:
            left, moved = now_left, monotonic()
        assert monotonic() - moved < STUCK_SECONDS, f"{left} executions do not end"
        fleet.supervise()
        await asyncio.sleep(0.1)
