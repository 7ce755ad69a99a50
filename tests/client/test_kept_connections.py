"""Connections are kept between calls: at once there for the next one, never in anybody's way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from flowfabric.db.kept_connections import KeptConnections, _is_open
from support.database import Database
from worker.waiting import eventually

SIZE = 2


@pytest.fixture
async def pool(db: Database) -> AsyncIterator[asyncpg.Pool[Any]]:
    async with asyncpg.create_pool(db.url, min_size=0, max_size=SIZE) as pool:
        yield pool


@pytest.fixture
async def kept(pool: asyncpg.Pool[Any]) -> AsyncIterator[KeptConnections]:
    kept = KeptConnections(pool, timeout=60)
    yield kept
    await asyncio.wait_for(kept.close(), 60)
    assert pool.get_idle_size() == pool.get_size()


async def ask(kept: KeptConnections, question: str = "select pg_backend_pid()") -> Any:
    connection = await kept.take()
    answer = await connection.fetchval(question)
    await kept.keep(connection)
    return answer


async def test_the_next_call_gets_the_connection_of_the_last_one(kept):
    assert await ask(kept) == await ask(kept)


async def test_callers_beyond_the_size_of_the_pool_wait_for_their_turn(kept, pool):
    found = await asyncio.wait_for(asyncio.gather(*(ask(kept) for _ in range(20))), 60)
    assert len(set(found)) == pool.get_size() == SIZE


async def test_a_kept_connection_that_broke_is_replaced(kept, conn):
    first = await ask(kept)
    await conn.fetchval("select pg_terminate_backend($1, 10000)", first)
    await eventually(lambda: not _is_open(kept._kept[0]))
    assert await ask(kept) != first


async def test_kept_connections_return_to_the_pool_after_a_while(kept, pool, monkeypatch):
    monkeypatch.setattr("flowfabric.db.kept_connections.KEEP_SECONDS", 0.01)
    await asyncio.gather(ask(kept), ask(kept))
    await eventually(lambda: pool.get_idle_size() == SIZE)
    assert await ask(kept)


async def test_nothing_is_kept_after_the_close(kept, pool):
    connection = await kept.take()
    await kept.close()
    await kept.keep(connection)
    assert pool.get_idle_size() == pool.get_size() == 1
