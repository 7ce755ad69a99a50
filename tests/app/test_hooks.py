"""Hooks: once before the first claim of a process, once after its last execution."""

from __future__ import annotations

import asyncio
import logging
from contextvars import ContextVar

import pytest

from worker.apps import working
from worker.waiting import eventually

place: ContextVar[str] = ContextVar("place", default="nowhere")


async def test_they_run_in_order_and_in_reverse(app):
    seen = []

    @app.on_startup
    async def first():
        await asyncio.sleep(0)
        seen.append("up 1")

    @app.on_startup
    def second():
        seen.append("up 2")

    @app.on_shutdown
    def third():
        seen.append("down 1")

    @app.on_shutdown
    async def fourth():
        await asyncio.sleep(0)
        seen.append("down 2")

    @app.task
    async def work() -> None:
        seen.append("work")

    run = await work.submit()
    async with working(app):
        await run.result(timeout=60)

    assert seen == ["up 1", "up 2", "work", "down 2", "down 1"]


async def test_the_shutdown_waits_for_what_is_running(app, caplog):
    started, go = asyncio.Event(), asyncio.Event()
    seen = []

    @app.on_shutdown
    def closed():
        seen.append("closed")

    @app.task
    async def slow() -> None:
        started.set()
        await go.wait()
        seen.append("worked")

    run = await slow.submit()
    with caplog.at_level(logging.INFO, logger="flowfabric"):
        async with working(app) as worker:
            await started.wait()
            worker.stop()
            await eventually(lambda: "draining: 1 executions still running" in caplog.text)
            assert seen == []
            go.set()
    assert seen == ["worked", "closed"]
    assert await run.state() == "completed"


async def test_several_workers_of_a_process_share_them(app):
    seen = []
    app.on_startup(lambda: seen.append("up"))
    app.on_shutdown(lambda: seen.append("down"))

    @app.task
    async def work() -> None: ...

    async with working(app):
        async with working(app):
            await (await work.submit()).result(timeout=60)
        assert seen == ["up"]
    assert seen == ["up", "down"]

    async with working(app):
        await (await work.submit()).result(timeout=60)
    assert seen == ["up", "down", "up", "down"]


async def test_a_failing_startup_stops_the_worker_with_its_error(app):
    seen = []

    @app.on_startup
    def up():
        seen.append("up")

    @app.on_startup
    async def broken():
        raise ConnectionError("no licence server")

    @app.on_startup
    def never():
        seen.append("never")

    @app.on_shutdown
    def down():
        seen.append("down")

    @app.task
    async def work() -> None:
        seen.append("work")

    run = await work.submit()
    with pytest.raises(ConnectionError, match="no licence server"):
        await asyncio.wait_for(app.run_worker(), 60)

    assert seen == ["up", "down"]
    assert await run.state() == "waiting"


async def test_a_failing_shutdown_does_not_keep_the_others_from_running(app, caplog):
    seen = []

    @app.on_shutdown
    def last():
        seen.append("last")

    @app.on_shutdown
    def broken():
        raise OSError("disk full")

    @app.task
    async def work() -> None: ...

    worker = await app.worker()
    running = asyncio.create_task(worker.run())
    await (await work.submit()).result(timeout=60)
    worker.stop()
    with pytest.raises(OSError, match="disk full"):
        await asyncio.wait_for(running, 60)

    assert seen == ["last"]
    assert "shutdown hook failed" in caplog.text


async def test_the_shutdown_runs_when_the_worker_is_cancelled(app):
    seen = []
    app.on_shutdown(lambda: seen.append("down"))
    up = asyncio.Event()
    app.on_startup(up.set)

    @app.task
    async def work() -> None: ...

    running = asyncio.create_task(app.run_worker())
    await up.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 60)
    assert seen == ["down"]


async def test_a_worker_cancelled_while_it_starts_shuts_down(app):
    seen = []
    entered = asyncio.Event()

    @app.on_startup
    async def waits():
        entered.set()
        await asyncio.Event().wait()

    app.on_shutdown(lambda: seen.append("down"))

    @app.task
    async def work() -> None: ...

    running = asyncio.create_task(app.run_worker())
    await entered.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 60)
    assert seen == ["down"]


async def test_closing_the_app_waits_for_a_shutdown_that_uses_it(app):
    seen = []

    @app.task
    async def work() -> None: ...

    @app.on_shutdown
    async def farewell():
        seen.append((await work.submit()).id)

    worker = await app.worker()
    running = asyncio.create_task(worker.run())
    await eventually(lambda: worker.is_idle)
    await app.close()
    await running
    assert len(seen) == 1


async def test_handlers_see_what_a_hook_set_in_contextvars(app):
    @app.on_startup
    async def settle():
        place.set("Berlin")

    @app.task
    async def where() -> str:
        return place.get()

    async with working(app):
        assert await (await where.submit()).result(timeout=60) == "Berlin"


async def test_a_worker_process_runs_them(start_worker):
    process = await start_worker(
        """
from __future__ import annotations
import logging
from flowfabric import App

app = App()

@app.on_startup
async def up() -> None:
    logging.getLogger("shop").warning("doors open")

@app.on_shutdown
def down() -> None:
    logging.getLogger("shop").warning("doors closed")

@app.task
async def work() -> None: ...
"""
    )
    await process.logged("doors open")
    assert await process.end() == 0
    assert "doors closed" in await process.log()


async def test_a_worker_process_that_cannot_start_says_why_and_exits(start_worker):
    process = await start_worker(
        """
from __future__ import annotations
from flowfabric import App

app = App()

@app.on_startup
async def up() -> None:
    raise ConnectionError("no licence server")

@app.task
async def work() -> None: ...
"""
    )
    assert await process.ended() != 0
    assert "no licence server" in await process.log()
