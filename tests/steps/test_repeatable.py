"""What a later run of a handler sees is what the first one saw, also where nothing was recorded."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from flowfabric import Context, PublicState
from steps.stage import held_at, skip, until
from worker.apps import working
from worker.waiting import eventually

HOUR = timedelta(hours=1)


async def identity(n: int) -> int:
    return n


async def test_random_numbers_survive_a_replay_as_the_steps_do(app, db):
    @app.task
    async def work(ctx: Context) -> str:
        name = f"step {ctx.random.random()}"
        await ctx.step(name, identity, 1)
        return name

    run = await work.submit()
    async with working(app):
        name = await run.result(timeout=60)
        await (await app.client()).executions.replay(run.id)

        async def has_ended() -> bool:
            assert await held_at(db, run) is None
            return await run.state() is PublicState.COMPLETED

        await eventually(has_ended, what="it has ended again")
        assert await run.result(timeout=60) == name


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_branches_find_their_own_children_in_whatever_order_they_come(app, db, kind):
    """In the first run the last branch is the first to submit, later the first one is."""

    @app.task
    async def child(n: int, words: set[str]) -> int:
        return n

    async def slow(n: int) -> int:
        await asyncio.sleep(0.05 * (3 - n))
        return n

    if kind == "async":

        @app.task
        async def parent(ctx: Context) -> list[int]:
            async def branch(n: int) -> int:
                await ctx.step(f"slow {n}", slow, n)
                run = await ctx.submit(child, n, {"a", "b", "c"})
                return await run.result()

            return await asyncio.gather(*map(branch, range(3)))
    else:

        @app.task
        async def parent(ctx: Context) -> list[int]:
            def branch(n: int) -> int:
                ctx.step_sync(f"slow {n}", slow, n)
                run = ctx.submit_sync(child, n, {"a", "b", "c"})
                return run.result_sync()

            return await asyncio.gather(*(asyncio.to_thread(branch, n) for n in range(3)))

    run = await parent.submit()
    async with working(app, concurrency=1):
        assert await run.result(timeout=60) == [0, 1, 2]
    assert await db.fetchval("select count(*) from ff.execution") == 4


@pytest.mark.parametrize("delay", [0.0, 7200.0])
async def test_whichever_of_a_child_and_a_sleep_was_first_is_first_again(app, clock, delay):
    seen: list[str] = []

    @app.task
    async def child() -> int:
        return 1

    @app.task
    async def parent(ctx: Context) -> str:
        await ctx.step("before", identity, 1)
        run = await ctx.submit(child.using(delay=timedelta(seconds=delay)))
        tasks = {
            asyncio.ensure_future(ctx.sleep(HOUR, name="limit")): "sleep",
            asyncio.ensure_future(run.result()): "child",
        }
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        seen.append(", ".join(sorted(tasks[task] for task in done)))
        await ctx.sleep(timedelta(hours=5), name="long")
        return seen[-1]

    run = await parent.submit()
    async with working(app):
        if delay:
            await until(run, PublicState.SUSPENDED)
            await skip(app, clock, HOUR)
        await eventually(lambda: seen, what="one was first")
        await until(run, PublicState.DELAYED)
        await skip(app, clock, timedelta(hours=3))
        await skip(app, clock, timedelta(hours=3))
        first = "sleep" if delay else "child"
        assert await run.result(timeout=60) == first
        assert set(seen) == {first}
