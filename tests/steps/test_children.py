"""Children: submitted once, waited for without a slot."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from flowfabric import (
    Context,
    ExecutionCancelled,
    ExecutionFailed,
    Fixed,
    InvalidInput,
    NotFound,
    PublicState,
    ResultTimeout,
    Retry,
)
from flowfabric.core.ids import mint
from steps.stage import skip, until
from support.database import partitions, several_partitions
from worker.apps import working
from worker.waiting import eventually

AT_ONCE = Fixed(timedelta(0))
HOUR = timedelta(hours=1)


async def children(db) -> list[Any]:
    return await db.fetch(
        "select execution_id, parent_id, ends_with_parent, public_state::text from ff.execution"
        " where parent_id is not null order by created_at, execution_id"
    )


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_waiting_for_a_child_frees_the_slot(app, db, kind):
    @app.task
    async def child(n: int) -> int:
        return n * 2

    if kind == "async":

        @app.task
        async def parent(ctx: Context) -> list[int]:
            run = await ctx.submit(child, 4)
            assert not run.is_duplicate
            return [await run.result(), ctx.attempt]
    else:

        @app.task
        def parent(ctx: Context) -> list[int]:
            run = ctx.submit_sync(child, 4)
            return [run.result_sync(), ctx.attempt]

    run = await parent.submit()
    async with working(app, concurrency=1):
        assert await run.result(timeout=60) == [8, 1]
    (row,) = await children(db)
    assert row["parent_id"] == run.id.uuid
    kinds = [
        row[0]
        for row in await db.fetch(
            "select kind::text from ff.event where execution_id = $1 order by version", run.id.uuid
        )
    ]
    assert kinds == ["submitted", "claimed", "waiting", "resumed", "completed"]


@several_partitions
async def test_a_later_run_finds_its_children_again(app, db):
    ran: list[int] = []

    @app.task
    async def child(n: int) -> int:
        ran.append(n)
        return n

    @app.task(retry=Retry(max_retries=2, backoff=AT_ONCE))
    async def parent(ctx: Context) -> list[Any]:
        runs = [await ctx.submit(child, n) for n in range(3)]
        runs += await asyncio.gather(*(ctx.submit(child, n) for n in range(3, 6)))
        if ctx.attempt < 3:
            raise RuntimeError("once more")
        assert not any(run.is_duplicate for run in runs)
        return [await run.result() for run in runs]

    run = await parent.submit()
    async with working(app):
        assert await run.result(timeout=60) == list(range(6))
    assert sorted(ran) == list(range(6))
    assert len(await children(db)) == 6


async def test_children_awaited_together_take_no_slot(app, db):
    @app.task
    async def child(n: int) -> int:
        if n % 2:
            raise ValueError(f"{n} is odd")
        return n

    @app.task
    async def parent(ctx: Context) -> list[str]:
        runs = [await ctx.submit(child, n) for n in range(6)]
        found = await asyncio.gather(*(run.result() for run in runs), return_exceptions=True)
        return [type(one).__name__ if isinstance(one, Exception) else str(one) for one in found]

    run = await parent.submit()
    async with working(app, concurrency=1):
        found = await run.result(timeout=60)
    assert found == ["0", "ExecutionFailed", "2", "ExecutionFailed", "4", "ExecutionFailed"]


async def test_the_tenth_wait_works_like_the_first(app, db):
    @app.task
    async def child(n: int) -> int:
        return n + 1

    @app.task
    async def parent(ctx: Context) -> int:
        n = 0
        for _ in range(10):
            n = await (await ctx.submit(child, n)).result()
        return n

    run = await parent.submit()
    async with working(app, concurrency=1):
        assert await run.result(timeout=60) == 10
    assert await db.fetchval("select wait_no from ff.execution where parent_id is null") == 10


async def test_a_failed_child_raises_and_stays_failed_until_it_is_replayed(app, db):
    calls: list[str] = []

    @app.task
    async def child() -> str:
        calls.append("child")
        if len(calls) == 1:
            raise ValueError("not yet")
        return "at last"

    @app.task(retry=Retry(max_retries=1, backoff=Fixed(HOUR)))
    async def parent(ctx: Context) -> str:
        return await (await ctx.submit(child)).result()

    run = await parent.submit()
    async with working(app):
        await until(run, PublicState.DELAYED)
        assert calls == ["child"]
        client = await app.client()
        await client.executions.retry(run.id)
        await until(run, PublicState.FAILED)
        assert calls == ["child"], "it stays failed for the retries of its parent"
        with pytest.raises(ExecutionFailed, match="not yet"):
            await run.result(timeout=60)
        # The parent is replayed with its replay count raised: it has new children then.
        await client.executions.replay(run.id)
        assert await run.result(timeout=60) == "at last"
    assert len(await children(db)) == 2


async def test_a_child_that_is_replayed_ends_otherwise_for_its_parent(app, db):
    calls: list[str] = []

    @app.task
    async def child() -> str:
        calls.append("child")
        if len(calls) == 1:
            raise ValueError("not yet")
        return "at last"

    @app.task(retry=Retry(max_retries=1, backoff=Fixed(HOUR)))
    async def parent(ctx: Context) -> str:
        run = await ctx.submit(child)
        handles.append(run)
        return await run.result()

    handles: list[Any] = []
    run = await parent.submit()
    async with working(app):
        await until(run, PublicState.DELAYED)
        client = await app.client()
        await client.executions.replay(handles[0].id)
        assert await handles[0].result(timeout=60) == "at last"
        await client.executions.retry(run.id)
        assert await run.result(timeout=60) == "at last"
    assert len(await children(db)) == 1


async def test_children_live_on_unless_they_end_with_their_parent(app, db):
    @app.task
    async def child() -> None: ...

    @app.task
    async def parent(ctx: Context) -> list[str]:
        plain = await ctx.submit(child.using(delay=HOUR))
        bound = await ctx.submit(child.using(delay=HOUR, with_parent=True))
        return [plain.id, bound.id]

    run = await parent.submit()
    async with working(app):
        plain, bound = await run.result(timeout=60)

        async def states() -> dict[str, str]:
            return {
                run.id.of(run.id.partition_key, row["execution_id"]): row["public_state"]
                for row in await children(db)
            }

        async def is_cancelled() -> bool:
            return (await states())[bound] == "cancelled"

        await eventually(is_cancelled)
        assert (await states())[plain] == "delayed"


async def test_a_cancelled_child_raises_in_its_parent(app, db):
    @app.task
    async def child() -> None: ...

    @app.task
    async def parent(ctx: Context) -> str:
        run = await ctx.submit(child.using(delay=HOUR))
        try:
            await run.result()
        except ExecutionCancelled:
            return "cancelled"
        return "done"

    run = await parent.submit()
    async with working(app):
        await until(run, PublicState.WAITING_CHILDREN)
        (row,) = await children(db)
        client = await app.client()
        child_id = run.id.of(run.id.partition_key, row["execution_id"])
        await client.executions.cancel(child_id)
        assert await run.result(timeout=60) == "cancelled"


async def test_keys_of_children_are_honoured_and_tell_them_apart(app, db):
    @app.task
    async def child(n: int) -> int:
        return n

    taken = await child.using(key="taken").submit(7)

    @app.task(retry=Retry(max_retries=1, backoff=AT_ONCE))
    async def parent(ctx: Context) -> list[Any]:
        order = [1, 2, 3] if ctx.attempt == 1 else [3, 1, 2]
        runs = {n: await ctx.submit(child.using(key=f"k{n}"), n) for n in order}
        if ctx.attempt == 1:
            raise RuntimeError("once more")
        other = await ctx.submit(child.using(key="taken"), 7)
        return [[await runs[n].result() for n in (1, 2, 3)], str(other.id), other.is_duplicate]

    run = await parent.submit()
    async with working(app):
        assert await run.result(timeout=60) == [[1, 2, 3], taken.id, True]
    if partitions() == 1:  # otherwise they live in the partitions of their keys
        assert len(await children(db)) == 3


async def test_any_run_can_be_waited_for_and_one_that_is_not_there_cannot(app, db):
    @app.task
    async def other(n: int) -> int:
        return n

    @app.task
    async def parent(ctx: Context) -> list[Any]:
        run = await other.using(key="one").submit(3)
        missing = type(run)(mint(), "x", run._client, run._decode, call=run._call)
        own = type(run)(ctx.execution_id, "x", run._client, run._decode, call=run._call)
        told = []
        for one in (missing, own):
            try:
                await one.result()
            except (NotFound, InvalidInput) as error:
                told.append(type(error).__name__)
        return [await run.result(), *told]

    run = await parent.submit()
    async with working(app, concurrency=1):
        assert await run.result(timeout=60) == [3, "ExecutionNotFound", "InvalidInput"]


async def test_with_a_timeout_or_inside_a_step_the_handler_waits_where_it_is(app, db):
    @app.task
    async def child() -> int:
        return 5

    @app.task
    async def parent(ctx: Context) -> list[Any]:
        run = await ctx.submit(child.using(delay=HOUR))
        with pytest.raises(ResultTimeout):
            await run.result(timeout=0.05)
        quick = await ctx.submit(child)
        return [await ctx.step("wait", quick.result), await quick.result(timeout=60), ctx.epoch]

    run = await parent.submit()
    async with working(app, concurrency=2):
        assert await run.result(timeout=60) == [5, 5, 1]


async def test_a_child_and_a_sleep_side_by_side(app, db, clock):
    """The pattern of a time limit: whichever is first."""

    @app.task
    async def child(n: int) -> int:
        return n

    @app.task
    async def parent(ctx: Context, delay: float) -> str:
        run = await ctx.submit(child.using(delay=timedelta(seconds=delay)), 1)
        tasks = {
            asyncio.ensure_future(run.result()): "child",
            asyncio.ensure_future(ctx.sleep(HOUR)): "sleep",
        }
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        return ", ".join(sorted(tasks[task] for task in done))

    slow, quick = await parent.submit(7200.0), await parent.submit(0.3)
    async with working(app):
        assert await quick.result(timeout=60) == "child"
        await until(slow, PublicState.SUSPENDED)
        await skip(app, clock, HOUR)
        assert await slow.result(timeout=60) == "sleep"


async def test_a_run_that_ends_while_a_step_is_in_flight_is_seen_here(app, db):
    @app.task
    async def child() -> str:
        return "child"

    @app.task
    async def parent(ctx: Context) -> list[str]:
        order: list[str] = []
        run = await ctx.submit(child)

        async def wait() -> None:
            order.append(await run.result())

        async def slow() -> None:
            async with asyncio.timeout(60):
                while not order:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            order.append("slow")

        await asyncio.gather(wait(), ctx.step("slow", slow))
        return [*order, str(ctx.epoch)]

    run = await parent.submit()
    async with working(app, concurrency=2):
        assert await run.result(timeout=60) == ["child", "slow", "1"]


async def test_a_child_that_joins_a_transaction_is_refused(app):
    @app.task
    async def child() -> None: ...

    @app.task
    async def parent(ctx: Context) -> str:
        try:
            await ctx.submit(child.using(via=object()))
        except InvalidInput as error:
            return error.field
        return "stored"

    run = await parent.submit()
    async with working(app):
        assert await run.result(timeout=60) == "via"
