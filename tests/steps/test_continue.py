"""continue_as: the same execution goes on with other arguments and a fresh journal."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from flowfabric import Context, ExecutionFailed, Fixed, PublicState, Retry
from steps.stage import journal, skip, until, until_held
from worker.apps import working

HOUR = timedelta(hours=1)
AT_ONCE = Retry(max_retries=1, backoff=Fixed(timedelta(0)))


async def double(n: int) -> int:
    return 2 * n


async def events(db: Any, run: Any) -> list[tuple[str, Any]]:
    rows = await db.fetch(
        "select kind::text, detail - 'open' - 'needed' as detail from ff.event"
        " where execution_id = $1 order by event_id",
        run.id.uuid,
    )
    return [(row["kind"], row["detail"]) for row in rows]


async def test_a_handler_continues_with_other_arguments_and_a_fresh_journal(app, db):
    seen: list[tuple[int, int, int]] = []

    @app.task
    async def grow(ctx: Context, n: int, *, until: int) -> int:
        seen.append((ctx.generation, ctx.attempt, n))
        n = await ctx.step("double", double, n)
        if n < until:
            await ctx.continue_as(n, until=until)
        return n

    async with working(app):
        run = await grow.submit(1, until=8)
        assert await run.result(timeout=60) == 8
    assert seen == [(0, 1, 1), (1, 1, 2), (2, 1, 4)]
    assert await journal(db, run) == {("double", 0): b"8"}
    kinds = [kind for kind, _ in await events(db, run)]
    assert kinds == [
        *("submitted", "claimed", "continued", "resumed", "continued", "resumed", "completed")
    ]
    details = [detail for kind, detail in await events(db, run) if kind == "continued"]
    assert [str(one).replace(" ", "") for one in details] == [
        f'{{"generation":{n},"dropped_steps":1}}' for n in (1, 2)
    ]


async def test_a_plain_handler_continues_as_well(app):
    @app.task
    def grow(ctx: Context, n: int) -> list[int]:
        n = ctx.step_sync("double", double, n)
        if ctx.generation < 2:
            ctx.continue_as_sync(n)
        return [ctx.generation, n]

    async with working(app):
        assert await (await grow.submit(1)).result(timeout=60) == [2, 8]


async def test_each_generation_has_children_and_random_numbers_of_its_own(app, db):
    @app.task
    async def child(n: int) -> int:
        return n

    @app.task
    async def parent(ctx: Context, seen: list[float]) -> list[float]:
        run = await ctx.submit(child, ctx.generation)
        seen = [*seen, await run.result() + ctx.random.random() / 2]
        if ctx.generation < 2:
            await ctx.continue_as(seen)
        return seen

    async with working(app):
        run = await parent.submit([])
        seen = await run.result(timeout=60)
    assert [int(one) for one in seen] == [0, 1, 2]
    assert len({one % 1 for one in seen}) == 3
    children = await db.fetchval(
        "select count(*) from ff.execution where parent_id = $1", run.id.uuid
    )
    assert children == 3


async def test_a_bound_child_outlives_the_generation_and_ends_with_the_execution(app, db):
    held = asyncio.Event()

    @app.task
    async def child() -> None:
        await held.wait()

    @app.task
    async def parent(ctx: Context) -> str:
        if ctx.generation == 0:
            await ctx.submit(child.using(with_parent=True))
            await ctx.continue_as()
        return str(
            await db.fetchval("select public_state::text from ff.execution where ends_with_parent")
        )

    async with working(app, concurrency=5):
        run = await parent.submit()
        assert await run.result(timeout=60) not in ("cancelled", "failed")
    assert await db.fetchval(
        "select public_state = 'cancelled' from ff.execution where ends_with_parent"
    )
    held.set()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("many",), "n: .* valid integer"),
        ((), "n: "),
        ((1, 2), "arguments: |too many|takes"),
        (("x" * 2_000_000,), "n: "),
    ],
)
async def test_the_arguments_are_checked_at_the_call(app, arguments, problem):
    @app.task
    async def grow(ctx: Context, n: int) -> int:
        await ctx.continue_as(*arguments)
        return n

    async with working(app):
        run = await grow.submit(1)
        with pytest.raises(ExecutionFailed, match=problem):
            await run.result(timeout=60)


async def test_a_payload_of_more_than_1_mib_is_refused_at_the_call(app):
    @app.task
    async def grow(ctx: Context, text: str) -> None:
        await ctx.continue_as("x" * 1_100_000)

    async with working(app):
        run = await grow.submit("")
        with pytest.raises(ExecutionFailed, match=r"payload: .*1 MiB"):
            await run.result(timeout=60)


async def test_retries_are_counted_anew_in_each_generation(app, db):
    @app.task(retry=AT_ONCE)
    async def fragile(ctx: Context) -> int:
        if ctx.attempt <= 2 * ctx.generation + 1:
            raise ValueError("not yet")
        if ctx.generation < 2:
            await ctx.continue_as()
        return ctx.attempt

    async with working(app):
        # Attempts are numbered on: generation 1 has two more, if its first fails.
        run = await fragile.submit()
        with pytest.raises(ExecutionFailed):
            await run.result(timeout=60)
    row = await db.fetchrow("select attempt_index, retry_count from ff.execution")
    assert (row["attempt_index"], row["retry_count"]) == (2, 1)


@pytest.mark.parametrize("fresh", [False, True])
async def test_a_replay_starts_from_the_newest_arguments(app, db, fresh):
    calls: list[int] = []

    async def note(n: int) -> int:
        calls.append(n)
        return n

    @app.task
    async def grow(ctx: Context, n: int) -> list[int]:
        n = await ctx.step("note", note, n)
        if n < 2:
            await ctx.continue_as(n + 1)
        return [ctx.generation, n]

    async with working(app):
        run = await grow.submit(0)
        assert await run.result(timeout=60) == [2, 2]
        client = await app.client()
        await client.executions.replay(run.id, fresh=fresh)
        assert await run.result(timeout=60) == [2, 2]
    assert calls == [0, 1, 2, *([2] if fresh else [])]


async def test_each_generation_belongs_to_the_code_version_that_begins_it(make_app, db):
    app = make_app(code_version="1")
    seen: list[tuple[str | None, str | None]] = []

    async def version() -> str | None:
        found: str | None = await db.fetchval(
            "select r.code_version from ff.execution e join ff.route r on r.route_id = e.route_id"
        )
        return found

    @app.task
    async def grow(ctx: Context) -> None:
        before = await version()
        await ctx.step("double", double, 1)
        seen.append((before, await version()))
        if ctx.generation < 1:
            await ctx.continue_as()

    async with working(app):
        await (await grow.submit()).result(timeout=60)
    assert seen == [(None, "1"), (None, "1")]


async def test_a_key_still_means_the_same_run(app):
    @app.task
    async def grow(ctx: Context, n: int) -> int:
        if n < 2:
            await ctx.continue_as(n + 1)
        return n

    async with working(app):
        run = await grow.submit(0, key="one")
        assert await run.result(timeout=60) == 2
        again = await grow.submit(0, key="one")
        assert again.id == run.id


async def test_a_handler_that_left_a_recorded_step_out_is_held(app, db, clock):
    is_changed = False

    @app.task
    async def grow(ctx: Context) -> None:
        if not is_changed:
            await ctx.step("double", double, 1)
            await ctx.sleep(HOUR)
        await ctx.continue_as()

    async with working(app):
        run = await grow.submit()
        await until(run, PublicState.DELAYED)
        is_changed = True
        await skip(app, clock, HOUR)
        assert "the handler continued without it" in await until_held(db, run)


async def test_steps_beside_it_have_to_be_awaited_first(app):
    started = asyncio.Event()

    async def slow() -> None:
        started.set()
        await asyncio.sleep(10)

    @app.task
    async def hasty(ctx: Context) -> None:
        beside = asyncio.create_task(ctx.step("slow", slow))
        await started.wait()
        try:
            await ctx.continue_as()
        finally:
            beside.cancel()

    async with working(app):
        run = await hasty.submit()
        with pytest.raises(ExecutionFailed, match="await them first"):
            await run.result(timeout=60)


async def test_it_is_not_for_the_function_of_a_step(app):
    @app.task
    async def nested(ctx: Context) -> None:
        async def inner() -> None:
            await ctx.continue_as()

        await ctx.step("inner", inner)

    async with working(app):
        run = await nested.submit()
        with pytest.raises(ExecutionFailed, match="inside the function of step 'inner'"):
            await run.result(timeout=60)
