"""A handler that does not stop costs its slot, not the worker; without a slot the worker ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading

import pytest

from flowfabric import App, Context
from flowfabric.core.errors import SlotsLost
from flowfabric.worker import runner as runner_module
from worker.apps import working
from worker.waiting import eventually


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that was told to stop gets this instead of 5 s."""
    monkeypatch.setattr(runner_module, "UNWIND_SECONDS", 0.1)


class Stubborn:
    """Tasks that go on when they are told to stop, until the test lets them end."""

    def __init__(self, app: App) -> None:
        self.started = 0
        self.over = threading.Event()

        @app.task(name="stubborn.async")
        async def swallows() -> None:
            self.started += 1
            while not self.over.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.01)

        @app.task(name="stubborn.plain")
        def waits() -> None:
            self.started += 1
            self.over.wait(60)

        @app.task(name="stubborn.step")
        async def waits_in_a_step(ctx: Context) -> None:
            def step() -> None:
                self.started += 1
                self.over.wait(60)

            await ctx.step("wait", step)

        self.app = app

    async def lose_a_slot(self, name: str) -> None:
        """Start one, and take its lease away as a timeout would."""
        before = self.started
        run = await self.app.tasks[name].submit()
        await eventually(lambda: self.started == before + 1)
        await (await self.app.client()).executions.cancel(run.id)


@pytest.mark.parametrize("name", ["stubborn.async", "stubborn.plain", "stubborn.step"])
async def test_the_slot_of_a_handler_that_does_not_stop_is_lost_and_another_opened(
    app, caplog, name
):
    stubborn = Stubborn(app)
    meeting = threading.Barrier(2)

    @app.task(name="healthy")
    def healthy() -> str:
        meeting.wait(60)  # the two slots work at the same time
        return "done"

    with caplog.at_level(logging.INFO):
        async with working(app, concurrency=2):
            await stubborn.lose_a_slot(name)
            await eventually(lambda: "(1 of 2 lost)" in caplog.text)
            runs = [await healthy.submit() for _ in range(2)]
            assert [await run.result(timeout=60) for run in runs] == ["done", "done"]

            stubborn.over.set()
            await eventually(
                lambda: f"lost slot recovered, its handler has stopped: {name}" in caplog.text
            )
            runs = [await healthy.submit() for _ in range(2)]
            assert [await run.result(timeout=60) for run in runs] == ["done", "done"]

    assert f"its handler does not stop; another slot opens: {name} " in caplog.text


async def test_a_handler_that_stops_in_time_costs_no_slot(app, monkeypatch, caplog):
    monkeypatch.setattr(runner_module, "UNWIND_SECONDS", 60.0)
    stubborn = Stubborn(app)

    @app.task(name="healthy")
    def healthy() -> str:
        return "done"

    async with working(app, concurrency=1):
        await stubborn.lose_a_slot("stubborn.plain")
        run = await healthy.submit()
        stubborn.over.set()  # its thread ends, and nothing was said about it
        assert await run.result(timeout=60) == "done"
    assert "does not stop" not in caplog.text


async def test_a_worker_without_a_slot_left_lets_the_rest_finish_and_ends(app, caplog):
    stubborn = Stubborn(app)
    finish = asyncio.Event()

    @app.task(name="healthy")
    async def healthy() -> str:
        await finish.wait()
        return "done"

    worker = await app.worker(concurrency=2)
    working_on = asyncio.create_task(worker.run())
    await stubborn.lose_a_slot("stubborn.async")
    await eventually(lambda: "(1 of 2 lost)" in caplog.text)
    run = await healthy.submit()
    await eventually(lambda: any(claimed.task == "healthy" for _, claimed in worker.handlers))
    await stubborn.lose_a_slot("stubborn.plain")
    await eventually(lambda: "worker drains and ends" in caplog.text)
    finish.set()

    with pytest.raises(SlotsLost, match=r"All 2 slots are lost.*stubborn\.async.*stubborn\.plain"):
        await asyncio.wait_for(working_on, 60)
    assert await run.result(timeout=60) == "done"
    stubborn.over.set()


STUBBORN = """
import asyncio, logging
from flowfabric import App
from flowfabric.worker import runner

runner.UNWIND_SECONDS = 0.1
app = App()


@app.task(name="stubborn")
async def stubborn() -> None:
    logging.getLogger("shop").info("stubborn")
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass
"""


async def test_a_worker_process_without_a_slot_left_ends_with_six(make_app, start_worker):
    app = make_app()

    @app.task(name="stubborn")
    async def stubborn() -> None: ...

    process = await start_worker(STUBBORN, "-c", "1")
    run = await stubborn.submit()
    await process.logged("stubborn  [")
    await (await app.client()).executions.cancel(run.id)

    assert await process.ended() == 6
    log = await process.log()
    assert f"another slot opens: stubborn {run.id.uuid}" in log
    assert "All 1 slots are lost" in log
