"""What a handler began in one process goes on in another; two versions of an app side by side."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator

import pytest

from flowfabric import App
from flowfabric.client import FlowFabric
from flowfabric.core.states import PublicState
from worker.waiting import eventually

SHOP = """
import os
from datetime import timedelta
from flowfabric import App, Context

app = App()

@app.task
async def rest(ctx: Context) -> list[int]:
    before = await ctx.step("before", os.getpid)
    await ctx.sleep(timedelta(hours=1))
    return [before, os.getpid()]

@app.task(lane="children")
async def child() -> int:
    return os.getpid()

@app.task
async def parent(ctx: Context) -> list[int]:
    before = await ctx.step("before", os.getpid)
    run = await ctx.submit(child)
    return [before, await run.result(), os.getpid()]

@app.task
def wait_in_a_thread(ctx: Context) -> list[int]:
    before = ctx.step_sync("before", os.getpid)
    run = ctx.submit_sync(child)
    return [before, run.result_sync(), os.getpid()]
"""


@pytest.fixture
async def client(db) -> AsyncIterator[FlowFabric]:
    async with FlowFabric(db.url) as client:
        yield client


@pytest.fixture
async def shop(db) -> AsyncIterator[App]:
    """The same tasks, to submit them from here."""
    app = App(database_url=db.url)
    for name in ("rest", "parent", "wait_in_a_thread"):

        async def task() -> list[int]: ...

        app.task(name=f"shop.{name}")(task)
    yield app
    await app.close()


async def until(client, run, state: PublicState) -> None:
    async def is_so() -> bool:
        return await client.executions.state(run.id) is state

    await eventually(is_so)


@pytest.mark.slow
async def test_a_sleep_begun_in_one_process_ends_in_another(shop, client, clock, start_worker):
    first = await start_worker(SHOP)
    run = await shop.submit("shop.rest")
    await until(client, run, PublicState.DELAYED)
    assert await first.end(signal.SIGTERM) == 0

    second = await start_worker(SHOP)
    await clock.advance(hours=1)

    assert await run.result(timeout=60) == [first.pid, second.pid]


@pytest.mark.parametrize(
    "task", ["parent", pytest.param("wait_in_a_thread", marks=pytest.mark.slow)]
)
async def test_a_wait_begun_in_one_process_ends_in_another(shop, client, start_worker, task):
    first = await start_worker(SHOP, "--lanes", "default")
    run = await shop.submit(f"shop.{task}")
    await until(client, run, PublicState.WAITING_CHILDREN)
    assert await first.end(signal.SIGTERM) == 0

    children = await start_worker(SHOP, "--lanes", "children")
    await until(client, run, PublicState.WAITING)
    second = await start_worker(SHOP, "--lanes", "default")

    assert await run.result(timeout=60) == [first.pid, children.pid, second.pid]


VERSION = """
from flowfabric import App

app = App(name="shop", version={version!r})

@app.cron({cron!r}, name="tick")
@app.task
async def tick() -> None: ...
{more}
"""
GONE = """
@app.cron("0 1 * * *", name="gone")
@app.task
async def gone() -> None: ...
"""


async def listed(client) -> dict[str, tuple[str | None, str]]:
    return {found.name: (found.cron, found.state) for found in await client.schedules.list()}


@pytest.mark.slow(short=1)
@pytest.mark.parametrize("newest_first", [False, True])
async def test_of_two_versions_in_two_processes_the_newest_says_which_schedules_there_are(
    client, start_worker, newest_first
):
    texts = [
        VERSION.format(version="1.9", cron="0 5 * * *", more=GONE),
        VERSION.format(version="1.10", cron="0 6 * * *", more=""),
    ]
    if newest_first:
        await start_worker(texts[1])
        await eventually(lambda: listed(client))
        older = await start_worker(texts[0])
        await older.logged("declared by version 1.10")
    else:
        await start_worker(texts[0])
        await eventually(lambda: listed(client))
        await start_worker(texts[1])
    expected = {"tick": ("0 6 * * *", "active")}
    if not newest_first:
        expected["gone"] = ("0 1 * * *", "orphaned")

    async def is_newest() -> bool:
        return await listed(client) == expected

    await eventually(is_newest)
