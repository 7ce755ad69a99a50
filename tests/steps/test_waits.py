"""Sleeping: the handler leaves, its slot is free, and any worker goes on when it is time."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from flowfabric import Context, ExecutionExpired, Fixed, PublicState, Retry, Run
from flowfabric.db import functions
from flowfabric.handlers.waits import QUIET_TURNS
from flowfabric.worker import runner as runner_module
from steps.stage import journal, skip, until
from support.answers import Answers
from support.database import Database
from worker.apps import working
from worker.waiting import eventually

HOUR = timedelta(hours=1)


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_sleep_frees_the_slot_and_ends_on_any_worker(make_app, db, clock, kind):
    app = make_app()
    runs: list[str] = []

    if kind == "async":

        @app.task(name="nap")
        async def nap(ctx: Context) -> int:
            runs.append("nap")
            await ctx.step("before", lambda: 1)
            await ctx.sleep(HOUR)
            return await ctx.step("after", lambda: 2)
    else:

        @app.task(name="nap")
        def nap(ctx: Context) -> int:
            runs.append("nap")
            ctx.step_sync("before", lambda: 1)
            ctx.sleep_sync(HOUR)
            return ctx.step_sync("after", lambda: 2)

    @app.task
    async def quick() -> str:
        return "done"

    run = await nap.submit()
    async with working(app, concurrency=1):
        await until(run, PublicState.DELAYED)
        assert await (await quick.submit()).result(timeout=60) == "done", "the slot is free"
        row = await db.fetchrow(
            "select attempt_state::text, ownership::text, delayed_until, retry_count,"
            " reclaim_count from ff.execution where execution_id = $1",
            run.id.uuid,
        )
        slept = await db.fetchval("select until_at from ff.step where kind = 'sleep'")
        assert dict(row) == {
            "attempt_state": "attempt_interrupted",
            "ownership": "unowned",
            "delayed_until": slept,
            "retry_count": 0,
            "reclaim_count": 0,
        }
        await skip(app, clock, timedelta(minutes=30))
        assert await run.state() == PublicState.DELAYED
    async with working(app, concurrency=1):  # another one
        await skip(app, clock, timedelta(minutes=31))
        assert await run.result(timeout=60) == 2
    assert runs == ["nap", "nap"]
    assert list(await journal(db, run)) == [("before", 0), ("ff.sleep", 0), ("after", 0)]
    assert await db.fetchval("select max(attempt_index) from ff.execution") == 0


async def test_sleeping_until_a_time_and_sleeping_no_time(app, db, clock):
    now = await clock.now()

    @app.task
    async def work(ctx: Context) -> list[datetime]:
        found = [await ctx.now()]
        await ctx.sleep(0)
        await ctx.sleep(timedelta(seconds=-5))
        await ctx.sleep_until(datetime(2020, 1, 1, tzinfo=UTC))
        await ctx.sleep_until(now + HOUR)
        return [*found, await ctx.now()]

    run = await work.submit()
    async with working(app):
        await until(run, PublicState.DELAYED)
        assert await db.fetchval("select delayed_until from ff.execution") == now + HOUR
        assert await db.fetchval("select epoch from ff.execution") == 1
        await skip(app, clock, HOUR)
        before, after = await run.result(timeout=60)
    assert after - before >= timedelta(minutes=59)


async def test_a_sleep_is_short_when_it_is_asked_to_be(app, db):
    """By the real clock: nothing but the reconcilers wakes it."""

    @app.task
    async def work(ctx: Context) -> float:
        before = await ctx.now()
        await ctx.sleep(0.05)
        return (await ctx.now(name="after") - before).total_seconds()

    run = await work.submit()
    async with working(app):
        assert await run.result(timeout=60) >= 0.05


async def test_an_operator_ends_a_sleep(app, db):
    @app.task
    async def work(ctx: Context) -> str:
        await ctx.sleep(timedelta(days=300))
        return "awake"

    run = await work.submit()
    async with working(app):
        await until(run, PublicState.DELAYED)
        await (await app.client()).executions.retry(run.id, actor="ann")
        assert await run.result(timeout=60) == "awake"


async def test_leaving_runs_what_is_in_finally_and_is_no_failure(app, db, clock, caplog):
    seen: list[str] = []

    @app.task(name="tidy")
    async def tidy(ctx: Context) -> str:
        seen.append("start")
        try:
            await ctx.sleep(HOUR)
        except Exception:
            seen.append("an error")
            raise
        finally:
            await asyncio.sleep(0)
            await asyncio.sleep(0.01)
            seen.append("finally")
        return "end"

    @app.task(name="tidy_plain")
    def tidy_plain(ctx: Context) -> str:
        seen.append("start")
        try:
            ctx.sleep_sync(HOUR)
        except Exception:
            seen.append("an error")
            raise
        finally:
            seen.append("finally")
        return "end"

    with caplog.at_level(logging.INFO, logger="flowfabric"):
        for task in (tidy, tidy_plain):
            seen.clear()
            run = await task.submit()
            async with working(app):
                await until(run, PublicState.DELAYED)
                assert seen == ["start", "finally"]
                await skip(app, clock, HOUR)
                assert await run.result(timeout=60) == "end"
            assert seen == ["start", "finally"] * 2
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert await db.fetchval("select count(*) from ff.attempt") == 0
    assert {row[0] for row in await db.fetch("select kind::text from ff.event")} == {
        *("submitted", "claimed", "delayed", "resumed", "completed")
    }


@pytest.mark.parametrize("kind", ["returns", "raises", "goes on"])
async def test_a_handler_that_swallows_its_leaving_does_no_harm(app, db, clock, kind):
    async def swallow(ctx: Context) -> str:
        try:
            await ctx.sleep(HOUR)
        except BaseException:
            if kind == "raises":
                raise ValueError("not this") from None
            if kind == "goes on":
                await ctx.step("forbidden", lambda: 1)
            return "too early"
        return "in time"

    task = app.task(swallow)
    run = await task.submit()
    async with working(app):
        await until(run, PublicState.DELAYED)
        assert list(await journal(db, run)) == [("ff.sleep", 0)]
        await skip(app, clock, HOUR)
        assert await run.result(timeout=60) == "in time"


async def test_a_handler_that_does_not_leave_is_left_behind(
    make_app, db, clock, monkeypatch, caplog
):
    monkeypatch.setattr(runner_module, "UNWIND_SECONDS", 0.2)
    app = make_app()
    let_go = threading.Event()
    late: list[str] = []

    @app.task
    def stubborn(ctx: Context) -> str:
        try:
            ctx.sleep_sync(HOUR)
        except BaseException:
            let_go.wait(60)
            late.append("late")
            return "too late"
        return "in time"

    run = await stubborn.submit()
    async with working(app, concurrency=2):
        await until(run, PublicState.DELAYED)
        await skip(app, clock, HOUR)
        assert await run.result(timeout=60) == "in time"
        let_go.set()
        await eventually(lambda: late)
    assert "handler does not stop" in caplog.text
    assert await run.result(timeout=60) == "in time"


async def test_the_lease_that_was_given_up_is_not_reported_lost(
    app, db, clock, caplog, quick_beats
):
    @app.task
    async def work(ctx: Context) -> int:
        for _ in range(3):
            await ctx.sleep(HOUR)
        return ctx.epoch

    run = await work.submit()
    with caplog.at_level(logging.WARNING, logger="flowfabric"):
        async with working(app):
            for sleeps in (1, 2, 3):
                # By its events: between two looks at its state it may wake and sleep again.
                await eventually(lambda sleeps=sleeps: has_slept(db, sleeps))
                await asyncio.sleep(0.2)  # a beat
                await skip(app, clock, HOUR)
            assert await run.result(timeout=60) == 4
    assert "lost" not in caplog.text


async def has_slept(db: Database, times: int) -> bool:
    found = await db.fetchval("select count(*) from ff.event where kind = 'delayed'")
    return bool(found == times)


async def test_a_handler_pauses_only_when_no_step_is_in_flight(app, db, clock, monkeypatch):
    release = asyncio.Event()
    calls: list[str] = []

    async def slow() -> int:
        calls.append("slow")
        await asyncio.wait_for(release.wait(), 60)
        return 7

    @app.task
    async def work(ctx: Context) -> list[Any]:
        async def nap() -> str:
            await ctx.sleep(HOUR)
            return "slept"

        return await asyncio.gather(nap(), ctx.step("slow", slow))

    run = await work.submit()
    answers = Answers(monkeypatch)
    async with working(app):
        await eventually(lambda: calls)
        await answers.until(functions.RECORD_STEPS, 1)
        # The sleep is recorded: this is how long a handler has that would pause now.
        for _ in range(3 * QUIET_TURNS):
            await asyncio.sleep(0)
        assert await run.state() == PublicState.ACTIVE
        release.set()
        await until(run, PublicState.DELAYED)
        assert list(await journal(db, run)) == [("ff.sleep", 0), ("slow", 0)]
        await skip(app, clock, HOUR)
        assert await run.result(timeout=60) == ["slept", 7]
    assert calls == ["slow"]


async def test_of_several_sleeps_the_earliest_wakes(app, db, clock):
    log: list[str] = []

    @app.task
    async def work(ctx: Context) -> list[str]:
        async def nap(hours: int) -> str:
            await ctx.sleep(timedelta(hours=hours), name=f"nap-{hours}")
            return await ctx.step(f"after-{hours}", note, hours)

        async def note(hours: int) -> str:
            log.append(f"{hours}")
            return f"{hours} h"

        return await asyncio.gather(*(nap(hours) for hours in (3, 1, 2)))

    run = await work.submit()
    async with working(app):
        for done in range(1, 4):
            await until(run, PublicState.DELAYED)
            await skip(app, clock, HOUR)
            await eventually(lambda done=done: len(log) == done)
        assert await run.result(timeout=60) == ["3 h", "1 h", "2 h"]
    assert log == ["1", "2", "3"]


async def test_a_sleep_ends_here_if_a_step_outlasts_it(app, db):
    @app.task
    async def work(ctx: Context) -> list[int]:
        order: list[int] = []
        has_slept = asyncio.Event()

        async def nap() -> None:
            await ctx.sleep(0.1)
            order.append(1)
            has_slept.set()

        async def slow() -> int:
            await asyncio.wait_for(has_slept.wait(), 60)
            order.append(2)
            return 0

        await asyncio.gather(nap(), ctx.step("slow", slow))
        return [*order, ctx.epoch]

    run = await work.submit()
    async with working(app):
        assert await run.result(timeout=60) == [1, 2, 1]


async def test_a_worker_that_stops_leaves_sleepers_asleep(make_app, db, clock):
    app = make_app()

    @app.task
    async def work(ctx: Context) -> int:
        await ctx.sleep(HOUR)
        return ctx.epoch

    run = await work.submit()
    async with working(app) as worker:
        await until(run, PublicState.DELAYED)
        assert not worker.has_stuck_handlers
    assert await run.state() == PublicState.DELAYED


async def test_what_a_handler_leaves_running_does_not_make_it_pause(app, db):
    """It has returned, and its journal is being read: its result counts."""
    left: list[asyncio.Task[None]] = []

    @app.task(retry=Retry(max_retries=1, backoff=Fixed(timedelta(0))))
    async def work(ctx: Context) -> str:
        if ctx.attempt == 1:
            raise RuntimeError("once more")
        left.append(asyncio.create_task(ctx.sleep(HOUR)))
        await asyncio.sleep(0)
        return "done"

    run = await work.submit()
    async with working(app):
        assert await run.result(timeout=60) == "done"
        await eventually(lambda: left[0].done())


async def test_the_timeout_of_an_attempt_does_not_count_sleeps_and_waits(app, db, clock):
    @app.task
    async def child() -> int:
        return 1

    @app.task(timeout=timedelta(seconds=30))
    async def work(ctx: Context) -> int:
        await ctx.sleep(HOUR)
        run = await ctx.submit(child.using(delay=HOUR))
        return await run.result() + ctx.attempt

    run = await work.submit()
    expire = (await app.client()).executions.expire
    async with working(app):
        for state in (PublicState.DELAYED, PublicState.WAITING_CHILDREN):
            await until(run, state)
            await clock.advance(HOUR)
            assert (await expire())[0] == 0
            await skip(app, clock, timedelta(0))
        assert await run.result(timeout=60) == 2
    left = await db.fetchval(
        "select detail from ff.event where execution_id = $1 and kind = 'expired'", run.id.uuid
    )
    assert left is None


async def test_a_deadline_ends_a_sleep_and_the_parent_of_who_slept_is_told(app, clock):
    @app.task
    async def child(ctx: Context) -> None:
        await ctx.sleep(HOUR)

    children: list[Run[None]] = []

    @app.task
    async def parent(ctx: Context) -> str:
        run = await ctx.submit(child.using(deadline=timedelta(minutes=1)))
        children.append(run)
        try:
            await run.result()
        except ExecutionExpired:
            return "told"
        return "it ended otherwise"

    run = await parent.submit()
    async with working(app):
        await until(run, PublicState.WAITING_CHILDREN)
        await until(children[0], PublicState.DELAYED)
        await clock.advance(minutes=1)
        await (await app.client()).executions.expire()
        assert await run.result(timeout=60) == "told"
