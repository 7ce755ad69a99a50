"""Many steps: the worker warns, refuses those beyond the limit, and lets others run meanwhile."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest

from flowfabric import Context, ExecutionFailed, Fixed, PublicState, Retry, TooManySteps
from flowfabric.handlers import durable_run
from steps.stage import HOUR, journal, skip, until
from worker.apps import working


async def number(n: int) -> int:
    return n


@pytest.fixture
def limits(monkeypatch):
    monkeypatch.setattr(durable_run, "MANY_STEPS", 5)
    monkeypatch.setattr(durable_run, "MAX_STEPS", 8)


def test_the_worker_warns_at_5_000_steps_and_refuses_more_than_50_000():
    assert (durable_run.MANY_STEPS, durable_run.MAX_STEPS) == (5_000, 50_000)


async def test_a_long_journal_is_warned_of_once(app, limits, caplog):
    @app.task
    async def long(ctx: Context) -> int:
        total = 0
        for n in range(7):
            total += await ctx.step("add", number, n)
        await ctx.sleep(0.05)
        return total

    with caplog.at_level(logging.WARNING, "flowfabric"):
        async with working(app):
            assert await (await long.submit()).result(timeout=60) == 21
    warnings = [one.getMessage() for one in caplog.records if "long journal" in one.getMessage()]
    assert len(warnings) == 1
    assert "ctx.continue_as" in warnings[0]


async def test_a_step_beyond_the_limit_fails_the_execution_for_good(app, db, limits):
    @app.task(retry=Retry(max_retries=3, backoff=Fixed(timedelta(0))))
    async def endless(ctx: Context) -> None:
        for n in range(20):
            await ctx.step("add", number, n)

    async with working(app):
        run = await endless.submit()
        with pytest.raises(ExecutionFailed, match=r"8 steps, which is the limit.*ctx\.continue_as"):
            await run.result(timeout=60)
    assert len(await journal(db, run)) == 8
    assert await db.fetchval("select total_attempt_count from ff.execution") == 1


async def test_a_handler_may_catch_the_limit(app, limits):
    @app.task
    async def careful(ctx: Context) -> int:
        try:
            for n in range(20):
                await ctx.step("add", number, n)
        except TooManySteps as error:
            return int(error.facts["limit"])
        return 0

    async with working(app):
        assert await (await careful.submit()).result(timeout=60) == 8


async def test_a_handler_that_goes_through_its_journal_lets_others_run(app, clock, monkeypatch):
    monkeypatch.setattr(durable_run, "_REPLAYED_AT_ONCE", 10)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    @app.task
    async def long(ctx: Context) -> int:
        nonlocal turns
        await ctx.step("first", number, 0)
        counting = asyncio.create_task(count_turns())
        turns = 0
        for n in range(40):
            await ctx.step("add", number, n)
        seen = turns
        counting.cancel()
        await ctx.sleep(HOUR)
        return seen

    async with working(app):
        run = await long.submit()
        await until(run, PublicState.DELAYED)
        await skip(app, clock, HOUR)
        seen = await run.result(timeout=60)
    assert 3 <= seen < 40, "the second run finds all steps recorded: one pause in ten of them"
