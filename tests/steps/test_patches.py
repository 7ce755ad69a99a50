"""`ctx.patched`: runs in flight keep the old code, new ones take the new code."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from flowfabric import Context, ExecutionFailed, Fixed, PublicState, Retry
from steps.stage import journal, skip, until, until_held
from worker.apps import working
from worker.waiting import eventually

HOUR = timedelta(hours=1)
PATCH = "ff.patch fraud"


class Shop:
    """A handler whose code is patched while its execution sleeps."""

    def __init__(self, app: Any, is_async: bool) -> None:
        self.calls: list[str] = []
        # where `fraud` stands: before or after the sleep, or nowhere
        self.patch_at: str | None = None
        self.is_deprecated = False
        self.task = app.task(name="order")(self.order if is_async else self.order_sync)

    async def order(self, ctx: Context) -> list[str]:
        await ctx.step("charge", self.do, "charge")
        await self.check_fraud(ctx, "before")
        await ctx.step("pack", self.do, "pack")
        await ctx.sleep(HOUR)
        await self.check_fraud(ctx, "after")
        await ctx.sleep(HOUR)
        await ctx.step("ship", self.do, "ship")
        return self.calls

    async def check_fraud(self, ctx: Context, where: str) -> None:
        if self.patch_at == where:
            if self.is_deprecated:
                await ctx.deprecate_patch("fraud")
            elif not await ctx.patched("fraud"):
                return
            await ctx.step("fraud", self.do, "fraud")

    def order_sync(self, ctx: Context) -> list[str]:
        ctx.step_sync("charge", self.do, "charge")
        self.check_fraud_sync(ctx, "before")
        ctx.step_sync("pack", self.do, "pack")
        ctx.sleep_sync(HOUR)
        self.check_fraud_sync(ctx, "after")
        ctx.sleep_sync(HOUR)
        ctx.step_sync("ship", self.do, "ship")
        return self.calls

    def check_fraud_sync(self, ctx: Context, where: str) -> None:
        if self.patch_at == where:
            if self.is_deprecated:
                ctx.deprecate_patch_sync("fraud")
            elif not ctx.patched_sync("fraud"):
                return
            ctx.step_sync("fraud", self.do, "fraud")

    def do(self, name: str) -> None:
        self.calls.append(name)


async def sleep_through(app, clock, run, times: int) -> None:
    for _ in range(times):
        await until(run, PublicState.DELAYED)
        await skip(app, clock, HOUR)


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    ("patch_at", "is_old", "calls"),
    [
        ("before", True, ["charge", "pack", "ship"]),
        ("after", True, ["charge", "pack", "fraud", "ship"]),
        ("before", False, ["charge", "fraud", "pack", "ship"]),
        ("after", False, ["charge", "pack", "fraud", "ship"]),
    ],
)
async def test_a_run_keeps_the_old_code_only_if_it_is_past_the_patch(
    app, db, clock, patch_at, is_old, calls, is_async
):
    shop = Shop(app, is_async)
    async with working(app):
        if not is_old:
            shop.patch_at = patch_at
        run = await shop.task.submit()
        await until(run, PublicState.DELAYED)
        shop.patch_at = patch_at
        await sleep_through(app, clock, run, 2)
        assert await run.result(timeout=60) == calls
    recorded = await journal(db, run)
    assert recorded[PATCH, 0] == (b"true" if "fraud" in calls else b"false")


async def test_each_round_of_a_loop_gets_an_answer_of_its_own(app, db, clock):
    is_patched, found = False, []

    @app.task
    async def work(ctx: Context) -> None:
        found.clear()
        for _ in range(3):
            await ctx.step("item", len, "text")
            found.append(await ctx.patched("tax") if is_patched else None)
            await ctx.sleep(HOUR)

    async with working(app):
        run = await work.submit()
        await until(run, PublicState.DELAYED)
        is_patched = True
        await sleep_through(app, clock, run, 3)
        await run.result(timeout=60)
    assert found == [False, True, True]


@pytest.mark.parametrize(
    ("is_old", "patch_at", "is_deprecated", "problem"),
    [
        (False, "before", True, None),
        (False, None, False, f"{PATCH}: an earlier run took the new code of this patch"),
        (True, "before", True, f"{PATCH}: an earlier run took the old code of this patch"),
        (True, None, False, None),
    ],
)
async def test_the_old_code_may_go_when_no_run_needs_it(
    app, db, clock, is_old, patch_at, is_deprecated, problem
):
    shop = Shop(app, True)
    async with working(app):
        shop.patch_at = None if is_old else "before"
        run = await shop.task.submit()
        await until(run, PublicState.DELAYED)
        shop.patch_at = "before"
        await sleep_through(app, clock, run, 1)
        await until(run, PublicState.DELAYED)
        shop.patch_at, shop.is_deprecated = patch_at, is_deprecated
        await skip(app, clock, HOUR)
        if problem is None:
            await run.result(timeout=60)
            return
        if "new code" in problem:
            await until_passed_on(db, run)
            await skip(app, clock, timedelta(minutes=10))
        assert (await until_held(db, run)).startswith(problem)


async def test_an_answer_that_was_not_awaited_is_an_error(app):
    @app.task
    async def work(ctx: Context) -> str:
        return "new" if ctx.patched("x") else "old"

    run = await work.submit()
    async with working(app):
        with pytest.raises(ExecutionFailed, match=r"write `if await ctx.patched"):
            await run.result(timeout=60)


async def test_a_patch_has_the_name_of_a_step(app):
    @app.task
    async def work(ctx: Context) -> bool:
        return await ctx.patched("x" * 256)

    run = await work.submit()
    async with working(app):
        with pytest.raises(ExecutionFailed, match="name: must be"):
            await run.result(timeout=60)


async def test_a_run_that_slept_through_the_patch_does_not_silently_take_the_new_code(
    app, db, clock
):
    shop = Shop(app, True)
    async with working(app):
        run = await shop.task.submit()
        await until(run, PublicState.DELAYED)
        shop.patch_at, shop.is_deprecated = "before", True
        await skip(app, clock, HOUR)
        assert (await until_held(db, run)).startswith(f"{PATCH}: an earlier run took the old code")


async def until_passed_on(db, run) -> None:
    """Wait until a worker has left a run to newer code."""

    async def is_passed_on() -> bool:
        return await db.fetchval(
            "select attempt_pause_cause = 'older_code' and public_state = 'delayed'"
            " from ff.execution where execution_id = $1",
            run.id.uuid,
        )

    await eventually(is_passed_on, what=f"{run} is left to newer code")


@pytest.mark.parametrize("is_async", [True, False])
async def test_old_code_leaves_a_run_that_took_the_new_path_to_newer_code(
    make_app, db, clock, is_async
):
    old_app, new_app = make_app(), make_app()
    old, new = Shop(old_app, is_async), Shop(new_app, is_async)
    new.patch_at = "before"
    run = await new.task.submit()
    async with working(new_app):
        await until(run, PublicState.DELAYED)
    async with working(old_app):
        await skip(old_app, clock, HOUR)
        await until_passed_on(db, run)
        client = await old_app.client()
        why = await client.executions.why(run.id)
        assert why.code == "waiting_for_newer_code"
        assert f"does not know its step {PATCH}" in str(why)
        await skip(old_app, clock, timedelta(minutes=9))
        await until_passed_on(db, run)
    async with working(new_app):
        await skip(new_app, clock, HOUR)
        await sleep_through(new_app, clock, run, 1)
        assert await run.result(timeout=60) == ["charge", "fraud", "pack", "ship"]
    assert old.calls == []
    assert await db.fetchval("select count(*) from ff.event where kind = 'held'") == 0
    assert await db.fetchval("select total_attempt_count from ff.execution") == 1


@pytest.mark.parametrize("follows", ["step", "sleep", "now", "patch", "child", "continue", "end"])
async def test_old_code_does_nothing_new_on_the_new_path(app, db, clock, follows):
    """The run has recorded nothing behind its patch yet: the failure is in the new code."""
    is_new, calls = True, []

    @app.task(name="child")
    async def child() -> None:
        calls.append("child")

    def note() -> None:
        calls.append("step")

    @app.task(retry=Retry(1, Fixed(HOUR)))
    async def work(ctx: Context) -> str:
        await ctx.step("one", len, "text")
        if is_new and await ctx.patched("x"):
            raise ValueError("new code")
        match follows:
            case "step":
                await ctx.step("old", note)
            case "sleep":
                await ctx.sleep(HOUR)
            case "now":
                await ctx.now()
            case "patch":
                await ctx.patched("y")
            case "child":
                await ctx.submit(child)
            case "continue":
                await ctx.continue_as()
        return "old"

    async with working(app):
        run = await work.submit()
        await until(run, PublicState.DELAYED)
        is_new = False
        await skip(app, clock, HOUR)
        await until_passed_on(db, run)
        assert calls == []
        assert list(await journal(db, run)) == [("one", 0), ("ff.patch x", 0)]
        await skip(app, clock, timedelta(minutes=10))
        assert (await until_held(db, run)).startswith(
            "ff.patch x: an earlier run took the new code"
        )


@pytest.mark.parametrize(
    "first", ["child", "patch", "deprecated", "deprecated and step", "newer patch"]
)
async def test_what_stands_in_front_of_a_patch_does_not_look_like_old_code(app, db, clock, first):
    """Nothing that takes a position is between the two."""
    answers: list[bool] = []
    is_newer = False

    @app.task(name="child")
    async def child() -> None: ...

    @app.task
    async def work(ctx: Context) -> None:
        match first:
            case "child":
                await ctx.submit(child)
            case "patch":
                await ctx.patched("first")
            case "deprecated":
                await ctx.deprecate_patch("first")
            case "deprecated and step":
                await ctx.deprecate_patch("first")
                await ctx.step("one", len, "text")
            case "newer patch" if is_newer:
                answers.append(await ctx.patched("first"))
        assert await ctx.patched("x")
        await ctx.sleep(HOUR)
        await ctx.step("two", len, "text")
        await ctx.sleep(HOUR)

    async with working(app):
        run = await work.submit()
        await until(run, PublicState.DELAYED)
        is_newer = True
        await sleep_through(app, clock, run, 2)
        await run.result(timeout=60)
    assert not any(answers)
    assert await db.fetchval("select count(*) from ff.event where detail ? 'newer_step'") == 0
    assert await db.fetchval("select count(*) from ff.execution") == 1 + (first == "child")


@pytest.mark.parametrize("then", ["deleted", "asked"])
async def test_a_run_that_began_after_the_deprecation_fits_code_before_and_after(
    app, db, clock, then
):
    code, found = "deprecated", []

    @app.task
    async def work(ctx: Context) -> None:
        if code == "deprecated":
            await ctx.deprecate_patch("x")
        elif code == "asked":
            found.append(await ctx.patched("x"))
        await ctx.step("one", len, "text")
        await ctx.sleep(HOUR)
        await ctx.step("two", len, "text")

    async with working(app):
        run = await work.submit()
        await until(run, PublicState.DELAYED)
        code = then
        await sleep_through(app, clock, run, 1)
        await run.result(timeout=60)
    assert all(found)


async def test_a_patch_beside_steps_that_run_side_by_side_is_met_again(app, db, clock):
    """A branch may begin its next step before the handler asks again."""
    fail = True

    @app.task(retry=Retry(1, Fixed(HOUR)))
    async def work(ctx: Context) -> bool:
        async def branch(name: str) -> None:
            await ctx.step(name, len, name)
            if fail:
                raise ValueError("once")
            await ctx.step(f"{name} 2", len, name)

        async def asking() -> bool:
            await asyncio.sleep(0)
            return await ctx.patched("x")

        found = await asyncio.gather(branch("a"), branch("b"), asking(), return_exceptions=True)
        if fail:
            raise ValueError("once")
        return bool(found[-1])

    async with working(app):
        run = await work.submit()
        await until(run, PublicState.DELAYED)
        fail = False
        await skip(app, clock, HOUR)
        assert await run.result(timeout=60)


async def test_a_patch_between_steps_side_by_side_is_passed_on_too(app, db, clock):
    is_new = True

    @app.task
    async def work(ctx: Context) -> None:
        await asyncio.gather(ctx.step("a", len, "text"), ctx.step("b", len, "text"))
        if is_new and await ctx.patched("x"):
            await asyncio.gather(ctx.step("c", len, "text"), ctx.step("d", len, "text"))
        await ctx.sleep(HOUR)

    async with working(app):
        run = await work.submit()
        await until(run, PublicState.DELAYED)
        is_new = False
        await skip(app, clock, HOUR)
        await until_passed_on(db, run)
    assert await db.fetchval("select count(*) from ff.event where kind = 'held'") == 0


async def test_a_task_that_begins_anew_is_left_to_newer_code_first(app, db, clock):
    is_new = True

    @app.task(on_change="restart")
    async def work(ctx: Context) -> str:
        path = "new" if is_new and await ctx.patched("x") else "old"
        await ctx.step(path, len, path)
        await ctx.sleep(HOUR)
        return path

    async with working(app):
        run = await work.submit()
        await until(run, PublicState.DELAYED)
        is_new = False
        await skip(app, clock, HOUR)
        await until_passed_on(db, run)
        assert ("new", 0) in await journal(db, run)
        await skip(app, clock, timedelta(minutes=10))
        await eventually(lambda: _has_begun_anew(db, run))
        await sleep_through(app, clock, run, 1)
        assert await run.result(timeout=60) == "old"


async def _has_begun_anew(db, run) -> bool:
    return ("old", 0) in await journal(db, run)


async def test_a_sleep_beside_others_is_past_the_patch_too(app, clock):
    is_patched, found = False, []

    @app.task
    async def work(ctx: Context) -> None:
        await ctx.step("one", len, "text")
        if is_patched:
            found.append(await ctx.patched("x"))
        await asyncio.gather(ctx.sleep(HOUR, name="a"), ctx.sleep(HOUR, name="b"))

    async with working(app):
        run = await work.submit()
        await until(run, PublicState.DELAYED)
        is_patched = True
        await skip(app, clock, HOUR)
        await run.result(timeout=60)
    assert found == [False]
