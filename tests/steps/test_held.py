"""Code that does not fit its journal is held before it does anything new, and can be repaired."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from flowfabric import Context, InvalidInput, PublicState
from steps.stage import held_at, journal, skip, until, until_held
from worker.apps import working
from worker.waiting import eventually

HOUR = timedelta(hours=1)


class Shop:
    """A handler whose code can be changed while its execution sleeps."""

    def __init__(self, app: Any) -> None:
        self.calls: list[str] = []
        self.names = ["charge", "pack", "ship"]
        self.beside: list[str] = []
        self.task = app.task(name="order")(self.order)

    async def order(self, ctx: Context) -> list[str]:
        charge, pack, ship = self.names
        found = [await ctx.step(charge, self.do, charge), await ctx.step(pack, self.do, pack)]
        found += await asyncio.gather(*(ctx.step(name, self.do, name) for name in self.beside))
        await ctx.sleep(HOUR)
        return [*found, await ctx.step(ship, self.do, ship)]

    async def do(self, name: str) -> str:
        self.calls.append(name)
        return f"{name} {self.calls.count(name)}"


@pytest.fixture
def shop(app):
    return Shop(app)


async def held(app, db, clock, shop) -> Any:
    """An execution that slept while its second step was renamed."""
    run = await shop.task.submit()
    await until(run, PublicState.DELAYED)
    assert shop.calls == ["charge", "pack"]
    shop.names[1] = "wrap"
    await skip(app, clock, HOUR)
    detail = await until_held(db, run)
    assert detail.startswith("pack: the code runs 'wrap' where this was recorded")
    assert "--from-step" in detail
    assert "--fresh" in detail
    assert shop.calls == ["charge", "pack"], "nothing new was done"
    return run


async def test_a_renamed_step_is_held_before_it_runs_and_its_slot_is_free(
    app, db, clock, shop, caplog
):
    @app.task
    async def quick() -> int:
        return 1

    with caplog.at_level(logging.INFO, logger="flowfabric"):
        async with working(app, concurrency=1) as worker:
            run = await held(app, db, clock, shop)
            assert await (await quick.submit()).result(timeout=60) == 1
            assert not worker.has_stuck_handlers
            events = await db.fetch(
                "select kind::text, detail from ff.event where execution_id = $1 order by version",
                run.id.uuid,
            )
    assert events[-1]["kind"] == "held"
    assert '"step": "pack"' in events[-1]["detail"]
    warnings = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "held at step pack" in warnings[0]
    assert await db.fetchval("select count(*) from ff.attempt") == 0


async def test_retry_goes_on_when_the_code_is_restored_and_holds_again_when_not(
    app, db, clock, shop
):
    async with working(app):
        run = await held(app, db, clock, shop)
        client = await app.client()
        held_before = await db.fetchval("select version from ff.execution")
        await client.executions.retry(run.id)

        async def is_held_again() -> bool:
            version = await db.fetchval("select version from ff.execution")
            return version >= held_before + 3 and await held_at(db, run) is not None

        await eventually(is_held_again)
        assert shop.calls == ["charge", "pack"]
        shop.names[1] = "pack"
        await client.executions.retry(run.id)
        assert await run.result(timeout=60) == ["charge 1", "pack 1", "ship 1"]
    assert shop.calls == ["charge", "pack", "ship"]


async def test_replay_from_a_step_forgets_it_and_what_followed(app, db, clock, shop):
    async with working(app):
        run = await held(app, db, clock, shop)
        client = await app.client()
        await client.executions.replay(run.id, from_step="pack")
        await until(run, PublicState.DELAYED)
        assert list(await journal(db, run)) == [("charge", 0), ("wrap", 0), ("ff.sleep", 0)]
        await skip(app, clock, HOUR)
        assert await run.result(timeout=60) == ["charge 1", "wrap 1", "ship 1"]
    assert shop.calls == ["charge", "pack", "wrap", "ship"]


async def test_replay_fresh_forgets_everything(app, db, clock, shop):
    async with working(app):
        run = await held(app, db, clock, shop)
        client = await app.client()
        await client.executions.replay(run.id, fresh=True)
        await until(run, PublicState.DELAYED)
        await skip(app, clock, HOUR)
        assert await run.result(timeout=60) == ["charge 2", "wrap 1", "ship 1"]
    assert list(await journal(db, run)) == [
        ("charge", 0),
        ("wrap", 0),
        ("ff.sleep", 0),
        ("ship", 0),
    ]


async def test_steps_side_by_side_before_a_step_are_not_forgotten_with_it(app, db, clock, shop):
    shop.beside = ["x", "y"]
    async with working(app):
        run = await shop.task.submit()
        await until(run, PublicState.DELAYED)
        await skip(app, clock, HOUR)
        assert (await run.result(timeout=60))[-1] == "ship 1"
        client = await app.client()
        await client.executions.replay(run.id, from_step="ship")
        await until(run, PublicState.COMPLETED)
        found = await run.result(timeout=60)
    assert found == ["charge 1", "pack 1", "x 1", "y 1", "ship 2"]


async def test_a_finished_execution_replayed_keeps_its_steps(app, db, clock, shop):
    async with working(app):
        run = await shop.task.submit()
        await until(run, PublicState.DELAYED)
        await skip(app, clock, HOUR)
        first = await run.result(timeout=60)
        client = await app.client()
        await client.executions.replay(run.id)

        async def again() -> bool:
            return bool(
                await db.fetchval(
                    "select replay_count = 1 and public_state = 'completed' from ff.execution"
                )
            )

        await eventually(again)
        assert await run.result(timeout=60) == first
    assert shop.calls == ["charge", "pack", "ship"]


async def test_a_step_that_is_left_out_is_held_when_the_handler_returns(app, db, clock, shop):
    shop.beside = ["x", "y"]
    async with working(app):
        run = await shop.task.submit()
        await until(run, PublicState.DELAYED)
        shop.beside = ["y", "z"]
        await skip(app, clock, HOUR)
        detail = await until_held(db, run)
        assert detail.startswith("x: was recorded, but the handler returned without it")
        assert await db.fetchval("select result from ff.execution") is None


async def test_a_handler_that_has_no_steps_any_more_is_held(app, db, clock):
    has_steps = True

    @app.task
    async def work(ctx: Context) -> str:
        if has_steps:
            await ctx.step("only", lambda: 1)
            await ctx.sleep(HOUR)
        return "done"

    run = await work.submit()
    async with working(app):
        await until(run, PublicState.DELAYED)
        has_steps = False
        await skip(app, clock, HOUR)
        assert (await until_held(db, run)).startswith("only: was recorded")


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_value_that_no_longer_fits_its_type_is_held(app, db, clock, kind):
    async def old() -> str:
        return "seven"

    async def new() -> int:
        raise AssertionError("not to be called")

    function: Any = old
    seen: list[str] = []
    if kind == "async":

        @app.task
        async def work(ctx: Context) -> None:
            try:
                await ctx.step("count", function)
                await ctx.sleep(HOUR)
            except Exception:
                seen.append("an error")
    else:

        @app.task
        def work(ctx: Context) -> None:
            try:
                ctx.step_sync("count", function)
                ctx.sleep_sync(HOUR)
            except Exception:
                seen.append("an error")

    run = await work.submit()
    async with working(app):
        await until(run, PublicState.DELAYED)
        function = new
        await skip(app, clock, HOUR)
        detail = await until_held(db, run)
    assert detail.startswith("count: its value no longer fits")
    assert "seven" not in detail, "values are not shown"
    assert not seen


async def test_a_mismatch_in_a_branch_stops_the_others(app, db, clock):
    """A branch finds a sleep where a step was recorded: nothing else of the handler goes on."""
    is_new = False
    calls: list[str] = []

    async def note(name: str) -> str:
        calls.append(name)
        return name

    @app.task
    async def work(ctx: Context) -> None:
        async def first() -> None:
            if is_new:
                await ctx.sleep(HOUR, name="a")
            else:
                await ctx.step("a", note, "a")

        async def second() -> None:
            if is_new:
                await asyncio.sleep(0.05)
                await ctx.step("b", note, "b")

        await asyncio.gather(first(), second())
        await ctx.sleep(HOUR)

    run = await work.submit()
    async with working(app):
        await until(run, PublicState.DELAYED)
        is_new = True
        await skip(app, clock, HOUR)
        assert "recorded as a step" in await until_held(db, run)
    assert calls == ["a"]


async def test_an_error_before_the_recorded_steps_is_a_failure_not_a_hold(app, db, clock, shop):
    @app.task
    async def work(ctx: Context) -> None:
        await ctx.step("first", lambda: 1)
        if ctx.epoch == 1:
            await ctx.step("second", lambda: 2)
            await ctx.sleep(HOUR)
        raise ValueError("broken")

    run = await work.submit()
    async with working(app):
        await until(run, PublicState.DELAYED)
        await skip(app, clock, HOUR)
        await until(run, PublicState.FAILED)
    assert await held_at(db, run) is None


REPAIRS = {
    "retry": (["pack"], ["charge 1", "pack 1", "ship 1"]),
    "from_step": (["wrap"], ["charge 1", "wrap 1", "ship 1"]),
    "fresh": (["wrap"], ["charge 2", "wrap 1", "ship 1"]),
}


@pytest.mark.parametrize("repair", REPAIRS)
async def test_a_held_handler_in_a_thread_is_repaired_like_any_other(app, db, clock, repair):
    names, calls = ["charge", "pack"], []

    def do(name: str) -> str:
        calls.append(name)
        return f"{name} {calls.count(name)}"

    @app.task
    def order(ctx: Context) -> list[str]:
        found = [ctx.step_sync(name, do, name) for name in names]
        ctx.sleep_sync(HOUR)
        return [*found, ctx.step_sync("ship", do, "ship")]

    code, expected = REPAIRS[repair]
    async with working(app):
        run = await order.submit()
        await until(run, PublicState.DELAYED)
        names[1] = "wrap"
        await skip(app, clock, HOUR)
        assert (await until_held(db, run)).startswith("pack:")
        assert calls == ["charge", "pack"], "nothing new was done"
        names[1:] = code
        client = await app.client()
        if repair == "retry":
            await client.executions.retry(run.id)
        else:
            await client.executions.replay(
                run.id, **({"from_step": "pack"} if repair == "from_step" else {"fresh": True})
            )
            await until(run, PublicState.DELAYED)
            await skip(app, clock, HOUR)
        assert await run.result(timeout=60) == expected


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_task_may_begin_anew_instead_of_being_held(app, db, clock, caplog, is_async):
    calls: list[str] = []
    first = "charge"

    def do(name: str) -> str:
        calls.append(name)
        return name

    async def work(ctx: Context, order: int) -> list[str]:
        found = [await ctx.step(first, do, f"{first} {order}")]
        await ctx.sleep(HOUR)
        return [*found, await ctx.step("ship", do, f"ship {order}")]

    def work_sync(ctx: Context, order: int) -> list[str]:
        found = [ctx.step_sync(first, do, f"{first} {order}")]
        ctx.sleep_sync(HOUR)
        return [*found, ctx.step_sync("ship", do, f"ship {order}")]

    task = app.task(name="order", on_change="restart")(work if is_async else work_sync)
    with caplog.at_level(logging.WARNING, logger="flowfabric"):
        async with working(app):
            run = await task.submit(7)
            await until(run, PublicState.DELAYED)
            first = "bill"
            await skip(app, clock, HOUR)
            await eventually(lambda: _has(calls, "bill 7"), within=60)
            await until(run, PublicState.DELAYED)
            await skip(app, clock, HOUR)
            assert await run.result(timeout=60) == ["bill 7", "ship 7"]
    assert calls == ["charge 7", "bill 7", "ship 7"]
    warnings = [one.getMessage() for one in caplog.records]
    assert len(warnings) == 1
    assert "execution starts over, the code does not fit step charge" in warnings[0]
    kinds = [
        row["kind"] for row in await db.fetch("select kind::text from ff.event order by version")
    ]
    assert kinds.count("continued") == 1
    assert "held" not in kinds


async def _has(calls: list[str], name: str) -> bool:
    return name in calls


async def test_a_handler_that_never_fits_is_held_after_a_hundred_restarts(app, db, clock):
    names = iter(f"step {n}" for n in range(1000))

    @app.task(on_change="restart")
    async def work(ctx: Context) -> None:
        await ctx.step(next(names), len, "text")
        await ctx.sleep(HOUR)

    async with working(app):
        run = await work.submit()
        await until(run, PublicState.DELAYED)
        await db.execute(
            "insert into ff.execution_body (partition_key, execution_id, payload, generation)"
            " select partition_key, execution_id, payload, 99 from ff.execution"
        )
        await db.execute(
            "update ff.execution set has_body = true, payload = null, has_payload = true"
        )
        await skip(app, clock, HOUR)
        await until(run, PublicState.DELAYED)
        await skip(app, clock, HOUR)
        assert "where this was recorded" in await until_held(db, run)


def test_what_becomes_of_a_changed_execution_is_one_of_two(app):
    with pytest.raises(InvalidInput) as refused:
        app.task(on_change="ignore")(len)
    assert refused.value.field == "on_change"
