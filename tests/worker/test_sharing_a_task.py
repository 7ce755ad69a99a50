"""Handlers that do not suspend share an asyncio task, and none of them notices."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from flowfabric import Context, current
from flowfabric.telemetry import execution_in_log
from flowfabric.worker.driver import SLICE_SECONDS
from worker.apps import working
from worker.waiting import eventually

VAR: contextvars.ContextVar[str] = contextvars.ContextVar("VAR", default="unset")


async def test_each_handler_has_its_own_context_and_all_share_few_tasks(app):
    tasks: list[Any] = []
    logged: set[str] = set()

    @app.on_startup
    async def start() -> None:
        VAR.set("from the start")

    @app.task(name="shop.quick")
    async def quick(ctx: Context) -> list[str]:
        assert current() is ctx
        # Kept instead of the task: what keeps the task gets it for itself.
        tasks.append(asyncio.current_task().get_coro())
        seen = VAR.get()
        VAR.set("left behind")
        logged.add(execution_in_log.get().id)
        return [str(ctx.execution_id), seen]

    runs = await quick.submit_many([()] * 60)
    async with working(app, concurrency=20):
        found = await asyncio.wait_for(asyncio.gather(*(run.result() for run in runs)), 60)

    assert found == [[run.id, "from the start"] for run in runs]
    assert logged == {run.id for run in runs}
    assert len({id(task) for task in tasks}) < 60


async def test_what_ends_one_handler_reaches_no_other(app):
    client = await app.client()
    ended: dict[str, str] = {}

    async def end_as(name: str, work: Callable[[], Any]) -> str:
        try:
            await work()
        except BaseException as error:
            ended[name] = type(error).__name__
            raise
        ended[name] = "returned"
        return "done"

    @app.task(name="shop.quick")
    async def quick(name: str) -> str:
        return await end_as(name, nothing)

    @app.task(name="shop.cancels.itself")
    async def cancels_itself(name: str) -> str:
        asyncio.current_task().cancel()
        return await end_as(name, nothing)

    @app.task(name="shop.waits", timeout=timedelta(seconds=60))
    async def waits(name: str) -> str:
        return await end_as(name, lambda: asyncio.sleep(60))

    @app.task(name="shop.naps")
    async def naps(name: str) -> str:
        return await end_as(name, lambda: asyncio.sleep(0.01))

    @app.task(name="shop.fails")
    async def fails(name: str) -> str:
        raise ZeroDivisionError

    @app.task(name="shop.times.out")
    async def times_out(name: str) -> str:
        async with asyncio.timeout(0):
            return await end_as(name, lambda: asyncio.sleep(60))

    kinds = (quick, cancels_itself, waits, fails, times_out, naps, quick, waits, naps, quick)
    runs = [await kind.submit(f"{n} {kind.name}") for n, kind in enumerate(kinds)]
    async with working(app, concurrency=20) as worker:
        await eventually(lambda: len(ended) == 7 and len(worker.handlers) == 2)
        await client.executions.cancel(runs[2].id)
        await eventually(lambda: ended.get("2 shop.waits") == "CancelledError")
        assert [claimed.id for _, claimed in worker.handlers] == [runs[7].id]
        await client.executions.cancel(runs[7].id)
        outcomes = [await outcome(run) for run in runs]

    done, failed, cancelled = "done", "ExecutionFailed", "ExecutionCancelled"
    assert outcomes == [done, done, cancelled, failed, failed, done, done, cancelled, done, done]
    assert ended["4 shop.times.out"] == "CancelledError"


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_shared_task_that_ends_leaves_nothing_waiting(app, is_cancelled):
    """By an error that no handler can keep to itself, or because somebody cancels it."""

    @app.task(name="shop.quick")
    async def quick(n: int) -> int:
        if n == 0 and is_cancelled:
            # The loop gets a turn when this handler has ended.
            asyncio.get_running_loop().call_soon(cancel_shared_task)
            until = time.monotonic() + SLICE_SECONDS * 2
            while time.monotonic() < until:
                pass
        elif n == 0:
            raise GeneratorExit
        return n

    def cancel_shared_task() -> None:
        for task in asyncio.all_tasks():
            if task.get_coro().__qualname__ == "Driver._run":
                task.cancel()

    runs = await quick.submit_many([(n,) for n in range(40)])
    async with working(app, concurrency=20):
        found = await asyncio.wait_for(asyncio.gather(*(run.result() for run in runs[1:])), 60)

    assert found == list(range(1, 40))


async def nothing() -> None: ...


async def outcome(run: Any) -> str:
    try:
        return str(await run.result(timeout=60))
    except Exception as error:
        return type(error).__name__


async def test_handlers_that_do_not_suspend_let_the_loop_have_its_turns(app):
    """The worker's own calls are made meanwhile, as are other tasks of the program."""
    turns = 0

    @app.task(name="shop.busy")
    async def busy() -> int:
        until = time.monotonic() + 0.002
        while time.monotonic() < until:
            pass
        return turns

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    runs = await busy.submit_many([()] * 60)
    counting = asyncio.create_task(count())
    async with working(app, concurrency=60):
        seen = await asyncio.wait_for(asyncio.gather(*(run.result() for run in runs)), 60)
    counting.cancel()

    assert len(set(seen)) >= 60 // 4, "a turn after at most 5 ms, so after every third"
