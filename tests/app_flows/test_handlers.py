"""Flows that a handler stores: once, however often it starts again."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from flowfabric import Context, ExecutionFailed, Fixed, PublicState, Retry, first_of, gather
from steps.stage import journal, skip, until
from worker.apps import working
from worker.waiting import eventually

AGAIN = Retry(max_retries=3, backoff=Fixed(timedelta(0)))


@pytest.fixture
def add(app):
    @app.task
    async def add(a: int, b: int = 0) -> int:
        return a + b

    return add


async def flows(db) -> int:
    return await db.fetchval("select count(*) from ff.flow")


async def kinds(db, run) -> list[str]:
    return [
        row[0]
        for row in await db.fetch(
            "select kind::text from ff.event where execution_id = $1 order by version", run.id.uuid
        )
    ]


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_waiting_for_a_flow_frees_the_slot(app, db, add, kind):
    if kind == "async":

        @app.task
        async def parent(ctx: Context) -> list[Any]:
            async with ctx.flow(app.flow("sums")) as f:
                a = f.add(add, 1, name="a")
                b = f.add(add, a.result, 2, name="b")
            return [await f.run.result(), await f.run.result(b), f.run.is_duplicate]
    else:

        @app.task
        def parent(ctx: Context) -> list[Any]:
            with ctx.flow(app.flow("sums")) as f:
                a = f.add(add, 1, name="a")
                b = f.add(add, a.result, 2, name="b")
            return [f.run.result_sync(), f.run.result_sync(b), f.run.is_duplicate]

    run = await parent.submit()
    async with working(app, concurrency=1):
        assert await run.result(timeout=60) == [3, 3, True]
    assert await flows(db) == 1
    assert await kinds(db, run) == ["submitted", "claimed", "waiting", "resumed", "completed"]
    assert list(await journal(db, run)) == [("ff.flow sums", 0)]
    assert {row[0] for row in await db.fetch("select parent_id from ff.execution")} == {
        None,
        run.id.uuid,
    }


async def test_all_results_are_waited_for_once(app, db, add):
    @app.task
    async def parent(ctx: Context) -> dict[str, int]:
        async with ctx.flow(app.flow("sums")) as f:
            for n in range(5):
                f.add(add, n, name=f"n{n}")
        return await f.run.results()

    run = await parent.submit()
    async with working(app, concurrency=1):
        assert await run.result(timeout=60) == {f"n{n}": n for n in range(5)}
    assert (await kinds(db, run)).count("waiting") == 1


async def test_a_run_that_failed_behind_it_finds_its_flow_again(app, db, add):
    ids: list[list[str]] = []

    @app.task(retry=AGAIN)
    async def parent(ctx: Context) -> int:
        async with ctx.flow(app.flow("sums")) as f:
            f.add(add, f.add(add, 1).result, 2)
        ids.append([f.run.id, *(node.id for node in f.nodes.values())])
        if ctx.attempt < 3:
            raise ConnectionError
        return await f.run.result()

    run = await parent.submit()
    async with working(app):
        assert await run.result(timeout=60) == 3
    assert await flows(db) == 1
    assert await db.fetchval("select count(*) from ff.execution") == 3
    assert len(ids) > 2
    assert all(one == ids[0] for one in ids)


async def test_a_crash_between_storing_it_and_recording_that_stores_it_once(app, db, add):
    stored: list[bool] = []

    @app.task(retry=AGAIN)
    async def parent(ctx: Context) -> int:
        async with ctx.flow(app.flow("sums")) as f:
            f.add(add, 1)
        return await f.run.result()

    client = await app.client()
    record = client.steps.record

    async def failing(*args: Any) -> Any:
        stored.append(await flows(db) == 1)
        if len(stored) == 1:
            raise ConnectionError("gone")
        return await record(*args)

    client.steps.record = failing  # type: ignore[method-assign]
    run = await parent.submit()
    async with working(app):
        assert await run.result(timeout=60) == 1
    assert stored == [True, True]
    assert await db.fetchval("select count(*) from ff.execution") == 2


@pytest.mark.parametrize("way", ["flow", "results", "submit", "many", "gather"])
async def test_what_is_submitted_past_the_context_is_waited_for_in_place(app, db, way):
    @app.task
    async def short() -> int:
        await asyncio.sleep(0.5)
        return 5

    @app.task
    async def parent(ctx: Context) -> int:
        if way in ("flow", "results"):
            async with app.flow("another in every run") as f:
                f.add(short)
            return (await f.run.results())["short"] if way == "results" else await f.run.result()
        if way == "submit":
            return await (await short.submit()).result()
        runs = await short.submit_many([()])
        return (await gather(runs))[0] if way == "gather" else await runs[0].result()

    run = await parent.submit()
    async with working(app):
        assert await run.result(timeout=60) == 5
    assert await db.fetchval("select count(*) from ff.execution") == 2
    assert await kinds(db, run) == ["submitted", "claimed", "completed"]


async def test_waiting_for_a_plain_submit_in_a_thread_ends(app, db):
    @app.task
    async def short() -> int:
        await asyncio.sleep(0.5)
        return 5

    @app.task
    def parent() -> int:
        with app.flow("another in every run") as f:
            f.add(short)
        return f.run.result_sync() + short.submit_sync().result_sync()

    run = await parent.submit()
    async with working(app):
        assert await run.result(timeout=60) == 10
    assert await db.fetchval("select count(*) from ff.execution") == 3


async def test_a_run_that_a_key_leads_to_again_frees_the_slot(app, db):
    go = asyncio.Event()

    @app.task
    async def short() -> int:
        await asyncio.wait_for(go.wait(), 60)
        return 5

    @app.task
    async def parent() -> int:
        return await (await short.submit(key="once")).result()

    run = await parent.submit()

    async def is_waiting() -> bool:
        # A run of another partition is looked for again after a delay.
        return bool({"waiting", "delayed"} & set(await kinds(db, run)))

    async with working(app):
        await eventually(is_waiting)
        go.set()
        assert await run.result(timeout=60) == 5
    assert await db.fetchval("select count(*) from ff.execution") == 2


async def test_a_name_where_a_flow_is_meant(app):
    @app.task
    async def parent(ctx: Context) -> None:
        ctx.flow("report")  # type: ignore[type-var]

    run = await parent.submit()
    async with working(app):
        with pytest.raises(ExecutionFailed, match=r"must be a flow, not str: ctx\.flow\(app\.flow"):
            await run.result(timeout=60)


async def test_two_of_one_name_are_two(app, db, add):
    @app.task
    async def parent(ctx: Context) -> list[int]:
        found = []
        for n in range(2):
            async with ctx.flow(app.flow("sums")) as f:
                f.add(add, n)
            found.append(await f.run.result())
        return found

    run = await parent.submit()
    async with working(app):
        assert await run.result(timeout=60) == [0, 1]
    assert await flows(db) == 2


async def test_a_replay_stores_another(app, db, add):
    @app.task
    async def parent(ctx: Context) -> str:
        async with ctx.flow(app.flow("sums")) as f:
            f.add(add, 1)
        await f.run.result()
        return str(f.run.id)

    run = await parent.submit()
    async with working(app):
        before = await run.result(timeout=60)
        await (await app.client()).executions.replay(run.id)

        async def is_another() -> bool:
            return await run.state() == "completed" and await run.result() != before

        await eventually(is_another)
    assert await flows(db) == 2


async def test_the_nodes_of_a_flow_can_be_joined(app, add):
    @app.task
    async def parent(ctx: Context) -> list[int]:
        async with ctx.flow(app.flow("sums")) as f:
            a, b = f.add(add, 1), f.add(add, 2)
            f.add(add, first_of(a, b))
        return await gather([f.run.node(b), f.run.node(a)])

    run = await parent.submit()
    async with working(app, concurrency=1):
        assert await run.result(timeout=60) == [2, 1]


async def test_a_failure_reaches_the_handler(app):
    @app.task
    async def broken() -> int:
        raise LookupError("no such thing")

    @app.task
    async def after(n: int) -> int:
        return n

    @app.task
    async def parent(ctx: Context) -> str:
        async with ctx.flow(app.flow("bad")) as f:
            f.add(after, f.add(broken).result)
        try:
            return str(await f.run.result())
        except ExecutionFailed as error:
            return error.message

    run = await parent.submit()
    async with working(app, concurrency=1):
        assert await run.result(timeout=60) == "no such thing"


async def test_nothing_is_stored_when_the_block_raises(app, db, add):
    @app.task
    async def parent(ctx: Context) -> None:
        async with ctx.flow(app.flow("sums")) as f:
            f.add(add, 1 // 0)

    run = await parent.submit()
    async with working(app):
        with pytest.raises(ExecutionFailed, match="ZeroDivisionError"):
            await run.result(timeout=60)
    assert await flows(db) == 0


async def test_what_a_handler_cannot_store(app, db, add):
    @app.task
    async def parent(ctx: Context) -> list[str]:
        problems = []
        try:
            ctx.flow(app.flow("sums", via=object()))
        except Exception as error:
            problems.append(str(error))

        def inside() -> str:
            try:
                ctx.flow(app.flow("sums"))
            except Exception as error:
                return str(error)
            return ""

        problems.append(await ctx.step("inside", inside))
        try:
            async with ctx.flow(app.flow("x" * 256)) as f:
                f.add(add, 1)
        except Exception as error:
            problems.append(str(error))
        return problems

    run = await parent.submit()
    async with working(app):
        via, inside, name = await run.result(timeout=60)
    assert "cannot be used with ctx.flow" in via
    assert "inside the function of step 'inside'" in inside
    assert "name: " in name
    assert await flows(db) == 0


async def test_a_handler_that_waits_for_a_flow_goes_on_in_another_worker(app, make_app, db, add):
    go_on = asyncio.Event()

    @app.task
    async def slow(n: int) -> int:
        await go_on.wait()
        return n

    @app.task
    async def parent(ctx: Context) -> int:
        async with ctx.flow(app.flow("sums")) as f:
            f.add(slow, 4)
        return await f.run.result()

    run = await parent.submit()
    async with working(app):
        await until(run, "waiting_children")
        go_on.set()
    async with working(app):
        assert await run.result(timeout=60) == 4
    assert await flows(db) == 1


async def test_a_flow_stays_as_long_as_the_handler_that_stored_it_goes_on(app, db, clock, add):
    """Else a later run of the handler would not find what it stored."""

    @app.task
    async def parent(ctx: Context) -> int:
        async with ctx.flow(app.flow("sums")) as f:
            f.add(add, 1, 2)
        await ctx.sleep(timedelta(days=60))
        return await f.run.result()

    async def trim() -> int:
        handled, _ = await (await app.client()).retention.trim()
        return handled

    async with working(app):
        run = await parent.submit()
        await until(run, PublicState.DELAYED)
        await eventually(lambda: ended(db, 1))
        await clock.advance(days=60, seconds=-1)
        assert await trim() == 0
        await skip(app, clock, timedelta(seconds=2))
        assert await run.result(timeout=60) == 3
        await clock.advance(days=31)
        assert await trim() + await trim() == 2
    assert await flows(db) == 0


async def ended(db, number: int) -> bool:
    return await db.fetchval("select count(*) from ff.execution where phase = 'terminal'") == number
