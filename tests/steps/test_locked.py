"""A row that somebody else keeps locked delays the record of a step; it does not lose it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta

import asyncpg
import pytest

from flowfabric import Context
from steps.stage import journal
from worker.apps import working
from worker.waiting import eventually

# Longer than a call of the engine waits for a lock.
LOCKED_SECONDS = 3.0

Lock = Callable[[], Awaitable[None]]


@pytest.fixture
async def lock(db) -> AsyncIterator[Lock]:
    """Locks every execution, and lets go of them after a while."""
    connection = await asyncpg.connect(db.url)
    waiting: list[asyncio.Task[None]] = []

    async def lock() -> None:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("select from ff.execution for update")

        async def let_go() -> None:
            await asyncio.sleep(LOCKED_SECONDS)
            await transaction.rollback()

        waiting.append(asyncio.create_task(let_go()))

    yield lock
    await asyncio.gather(*waiting)
    await connection.close()


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_step_is_recorded_when_its_row_is_free_again(app, db, lock, kind):
    calls: list[int] = []

    async def charge() -> int:
        calls.append(1)
        await lock()
        return 7

    if kind == "async":

        @app.task
        async def work(ctx: Context) -> int:
            return await ctx.step("charge", charge)
    else:
        loop = asyncio.get_running_loop()

        def charge_sync() -> int:
            return asyncio.run_coroutine_threadsafe(charge(), loop).result()

        @app.task
        def work(ctx: Context) -> int:
            return ctx.step_sync("charge", charge_sync)

    async with working(app):
        run = await work.submit()
        assert await run.result(timeout=60) == 7
    assert calls == [1]
    assert await journal(db, run) == {("charge", 0): b"7"}


async def test_progress_is_told_when_the_row_is_free_again(app, db, lock):
    @app.task
    async def work(ctx: Context) -> int:
        await lock()
        await ctx.progress(50, "half")
        return ctx.attempt

    async with working(app):
        run = await work.submit()
        assert await run.result(timeout=60) == 1
    assert await db.fetchval("select progress_percent from ff.execution") == 50


async def test_a_step_is_given_up_when_the_lease_is_lost_meanwhile(make_app, db, lock):
    app = make_app(lease_ttl=timedelta(seconds=1))
    ended: list[BaseException] = []

    @app.task
    async def work(ctx: Context) -> int:
        try:
            return await ctx.step("charge", charge)
        except BaseException as error:
            ended.append(error)
            raise

    async def charge() -> int:
        if not ended:
            await lock()
        return 7

    async with working(app):
        run = await work.submit()
        await eventually(lambda: ended, what="the handler is stopped")
        assert isinstance(ended[0], asyncio.CancelledError)
        assert await run.result(timeout=60) == 7
