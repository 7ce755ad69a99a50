"""Several connections on one test database, and ways to see what they are waiting for.

Nothing here sleeps for time to pass: a test holds a transaction open, watches the server until
another session is where it should be, then lets go. Every watch gives up after a minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any, TypeVar
from uuid import UUID

from support.database import Database
from support.factories import Engine, Item, Lease

T = TypeVar("T")
PATIENCE_SECONDS = 60.0


async def engines(db: Database, number: int) -> list[Engine]:
    """As many engines, each on a connection of its own."""
    return [Engine(await db.connect()) for _ in range(number)]


@asynccontextmanager
async def holding(db: Database, execution_id: UUID) -> AsyncIterator[None]:
    """Another transaction keeps the row of an execution locked for the length of the block."""
    connection = await db.connect()
    async with connection.transaction():
        await connection.execute(
            "select from ff.execution where partition_key = 0 and execution_id = $1 for update",
            execution_id,
        )
        yield


@asynccontextmanager
async def open_transaction(engine: Engine) -> AsyncIterator[None]:
    """What the block does stays uncommitted until it ends."""
    async with engine.connection.transaction():
        yield


async def until_blocked(db: Database, engine: Engine, running: asyncio.Task[Any]) -> None:
    """Return when the engine's session waits for a lock; fail if its call ends before."""
    pid = engine.connection.get_server_pid()
    deadline = monotonic() + PATIENCE_SECONDS
    while monotonic() < deadline:
        if await db.fetchval("select cardinality(pg_blocking_pids($1)) > 0", pid):
            return
        assert not running.done(), f"it did not wait: {running}"
        await asyncio.sleep(0.002)
    raise AssertionError("it never came to wait")


async def together(*calls: Awaitable[T]) -> list[T]:
    """Run calls at once and wait for all; the first error is raised when all have ended."""
    answers = await asyncio.gather(*calls, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return [answer for answer in answers if not isinstance(answer, BaseException)]


async def fill(engine: Engine, items: Sequence[Item]) -> list[UUID]:
    """Submit any number of executions, quietly, a thousand a call."""
    ids: list[UUID] = []
    for start in range(0, len(items), 1000):
        answers = await engine.submit_many(items[start : start + 1000], hint=False)
        assert {answer.word for answer in answers} == {"created"}
        ids += [answer.id for answer in answers if answer.id is not None]
    return ids


def position(lease: Lease) -> tuple[Any, ...]:
    """Where a lease stands in the order of claims: priority, age, id."""
    return (lease.rank, lease.order_at, lease.execution_id)
