"""Handlers that wait for several signals at once."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from flowfabric import (
    Context,
    ExecutionFailed,
    InvalidInput,
    PublicState,
    answer,
    at_least,
    every,
    signal,
)
from steps.stage import until, until_held
from worker.apps import working

HOUR = timedelta(hours=1)


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_the_values_have_the_shape_of_the_condition(app, kind):
    asked = every(signal("a", int), at_least(1, signal("b", str), signal("c")))

    if kind == "async":

        @app.task(name="both")
        async def both(ctx: Context) -> list[Any]:
            one, some = await ctx.wait_for(asked, timeout=HOUR)
            more = await ctx.wait_for_signal("more", int)
            return [one, some, more]
    else:

        @app.task(name="both")
        def both(ctx: Context) -> list[Any]:
            one, some = ctx.wait_for_sync(asked, timeout=HOUR)
            more = ctx.wait_for_signal_sync("more", int)
            return [one, some, more]

    run = await both.submit()
    async with working(app, concurrency=1):
        await until(run, PublicState.SUSPENDED)
        await run.signal("c", [1])
        await run.signal("a", 7)
        await until(run, PublicState.SUSPENDED)
        await run.signal("more", 9)
        assert await run.result(timeout=60) == [7, [[1]], 9]


async def test_the_answers_of_several_waitpoints(app):
    tokens: list[str] = []

    @app.task
    async def team(ctx: Context) -> list[Any]:
        points = [await ctx.waitpoint(name) for name in ("legal", "finance", "ops")]
        if not tokens:
            tokens.extend(one.token for one in points)
        asked = at_least(2, *(answer(one, bool) for one in points), distinct="waitpoints")
        return await ctx.wait_for(asked)

    run = await team.submit()
    async with working(app, concurrency=1):
        await until(run, PublicState.SUSPENDED)
        await app.signal(tokens[2], True)
        await app.signal(tokens[2], False)
        await app.signal(tokens[0], False)
        assert await run.result(timeout=60) == [True, False]


async def test_a_condition_that_can_never_hold_ends_with_its_default(app, db):
    """One of its waitpoints is answered in another branch, or closed before the wait or after."""

    @app.task
    async def team(ctx: Context, how: str) -> list[Any]:
        legal, ops = [await ctx.waitpoint(name) for name in ("legal", "ops")]
        if how == "before":
            await ctx.wait_for_signal("go")
        both = ctx.wait_for(every(answer(legal), answer(ops)), timeout=None, default="nobody")
        if how == "answered":
            return list(await asyncio.gather(both, legal.wait(int)))
        return [await both]

    client = await app.client()
    async with working(app, concurrency=1):
        for how in ("before", "after", "answered"):
            run = await team.submit(how)
            await until(run, PublicState.SUSPENDED)
            if how == "answered":
                await run.signal("legal", 7)
            else:
                points = await client.signals.waitpoints(run.id)
                await client.signals.close_waitpoint(run.id, points[0].waitpoint_id)
            if how == "before":
                await run.signal("go")
            expected = ["nobody", 7] if how == "answered" else ["nobody"]
            assert await run.result(timeout=60) == expected


async def test_a_condition_that_times_out_returns_its_default(app, clock):
    @app.task
    async def both(ctx: Context) -> str:
        asked = every(signal("a"), signal("b"))
        found = await ctx.wait_for(asked, timeout=timedelta(0), default="nobody")
        return str(found)

    run = await both.submit()
    async with working(app, concurrency=1):
        assert await run.result(timeout=60) == "nobody"


async def test_a_condition_without_a_default_says_what_did_not_come(app):
    @app.task
    async def both(ctx: Context) -> None:
        await ctx.wait_for(every(signal("a"), signal("b")), timeout=timedelta(0))

    run = await both.submit()
    async with working(app, concurrency=1):
        with pytest.raises(ExecutionFailed, match=r"No complete answer to ctx\.wait_for: none"):
            await run.result(timeout=60)


async def test_a_value_that_does_not_fit_holds_the_execution(app, db):
    @app.task
    async def both(ctx: Context) -> None:
        await ctx.wait_for(every(signal("a", int), signal("b", int)))

    run = await both.submit()
    await run.signal("a", "text")
    await run.signal("b", 1)
    async with working(app, concurrency=1):
        assert "signal a" in await until_held(db, run)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: every(), "1 to 64 members"),
        (lambda: at_least(0, signal("a")), "1 or more"),
        (lambda: at_least(1), "1 to 64 members"),
        (lambda: at_least(1, every(signal("a"))), "signals or waitpoints"),
        (lambda: at_least(2, signal("a"), distinct="waitpoints"), "there are 1 different members"),
        (lambda: at_least(1, signal("a"), distinct="days"), "distinct"),
        (lambda: every("a"), "must be conditions"),
        (lambda: every(every(every(every(every(signal("a")))))), "deeper than 4"),
        (lambda: signal(""), "name"),
    ],
)
def test_a_bad_condition_is_refused_where_it_is_made(make, problem):
    with pytest.raises(InvalidInput, match=problem):
        make()
