"""Whoever has lost the lease records nothing, and stops; whoever is merely slow keeps it."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from flowfabric import Context, LeaseLost
from flowfabric.core.errors import ExecutionNotActive
from flowfabric.core.step import Step
from flowfabric.worker import heartbeat
from steps.stage import journal
from worker.apps import working
from worker.test_leases_kept import block_for_leases, steal
from worker.waiting import eventually


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_step_of_a_zombie_is_refused_and_its_handler_stops(
    make_app, db, clock, kind, caplog
):
    """Its heartbeat is half a minute away: it is the write itself that is refused."""
    app = make_app()
    began, go_on = threading.Event(), threading.Event()
    seen: list[str] = []
    kept: list[Context] = []

    def slow() -> int:
        began.set()
        assert go_on.wait(60)
        return 7

    if kind == "async":

        @app.task
        async def work(ctx: Context) -> str:
            kept.append(ctx)
            try:
                await ctx.step("slow", slow)
                seen.append("went on")
            except Exception:
                seen.append("an error")
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise
            finally:
                await asyncio.sleep(0.01)
                seen.append("finally")
            return "mine"
    else:

        @app.task
        def work(ctx: Context) -> str:
            kept.append(ctx)
            try:
                ctx.step_sync("slow", slow)
                seen.append("went on")
            except Exception:
                seen.append("an error")
            finally:
                seen.append("finally")
            return "mine"

    run = await work.submit()
    with caplog.at_level(logging.INFO, logger="flowfabric"):
        async with working(app):
            await eventually(began.is_set)
            thief = await steal(db, clock, run)
            go_on.set()
            await eventually(lambda: "finally" in seen)
    assert seen == (["cancelled", "finally"] if kind == "async" else ["finally"])
    assert kept[0].cancelled
    assert await journal(db, run) == {}
    assert "lost the lease" in caplog.text
    assert "failed" not in caplog.text
    row = await db.fetchrow("select lease_id, attempt_index from ff.execution")
    assert row["lease_id"] == thief.lease_id


async def test_a_zombie_can_do_nothing_else_either(make_app, db, clock):
    app = make_app()
    began, go_on = asyncio.Event(), asyncio.Event()
    told: dict[str, str] = {}

    @app.task
    async def child() -> None: ...

    @app.task
    async def work(ctx: Context) -> None:
        began.set()
        await go_on.wait()
        calls: dict[str, Any] = {
            "step": lambda: ctx.step("s", lambda: 1),
            "sleep": lambda: ctx.sleep(60),
            "now": ctx.now,
            "progress": lambda: ctx.progress(5),
        }
        for name, call in calls.items():
            try:
                await call()
                told[name] = "done"
            except BaseException as error:
                told[name] = type(error).__name__

    run = await work.submit()
    async with working(app):
        await asyncio.wait_for(began.wait(), 60)
        await steal(db, clock, run)
        go_on.set()
        await eventually(lambda: len(told) == 4)
    assert set(told.values()) == {"CancelledError"}
    assert await journal(db, run) == {}


async def test_a_handler_that_blocks_the_loop_for_three_leases_keeps_its_own(
    app, db, clock, quick_beats
):
    @app.task
    async def block(ctx: Context) -> int:
        await ctx.step("before", lambda: 1)
        block_for_leases(db.url, ctx.execution_id, 3)
        await ctx.step("after", lambda: 2)
        return ctx.epoch

    await clock.freeze()
    run = await block.submit()
    async with working(app):
        assert await run.result(timeout=60) == 1
    assert list(await journal(db, run)) == [("before", 0), ("after", 0)]
    assert await db.fetchval("select reclaim_count from ff.execution") == 0


async def test_a_revoked_lease_stops_its_handler_within_a_beat_and_nothing_is_written(
    app, db, monkeypatch, quick_beats
):
    """Without the hint, so that it is the heartbeat that finds it."""
    monkeypatch.setattr(heartbeat, "LOST_CHANNEL", "ff_nobody_says_this")
    began, stopped = asyncio.Event(), asyncio.Event()
    told: list[str] = []
    kept: list[Context] = []

    @app.task(max_reclaims=0)
    async def work(ctx: Context) -> None:
        await ctx.step("before", lambda: 1)
        kept.append(ctx)
        began.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.set()
            try:
                await ctx.step("after", lambda: 2)
            except BaseException as error:
                told.append(type(error).__name__)
            raise

    run = await work.submit()
    client = await app.client()
    async with working(app):
        await asyncio.wait_for(began.wait(), 60)
        await client.leases.revoke(run.id, reason="stop", actor="ann")
        await asyncio.wait_for(stopped.wait(), 60)
        await eventually(lambda: told)
        with pytest.raises((LeaseLost, ExecutionNotActive)):
            await client.steps.record(
                kept[0]._run.claimed, Step(name="late", occurrence=0, position=5, value=b"1")
            )
    assert told == ["CancelledError"]
    assert list(await journal(db, run)) == [("before", 0)]


async def test_a_sleeping_thread_of_a_worker_that_stops_is_let_go(make_app, db):
    """A plain handler that waits here beside a step is told when its worker gives up on it."""
    app = make_app(drain_timeout=timedelta(seconds=0.2))
    began = threading.Event()
    ended: list[str] = []

    @app.task
    def work(ctx: Context) -> None:
        def nap() -> None:
            ctx.sleep_sync(3600)

        napping = threading.Thread(target=nap_quietly, args=(nap, ended), daemon=True)

        def slow() -> None:
            napping.start()
            began.set()
            while not ctx.cancelled:
                time.sleep(0.01)

        ctx.step_sync("slow", slow)

    await work.submit()
    async with working(app):
        await eventually(began.is_set)
        await eventually(lambda: db.fetchval("select count(*) = 1 from ff.step"))
    await eventually(lambda: ended == ["HandlerPaused"])


def nap_quietly(nap: Any, ended: list[str]) -> None:
    try:
        nap()
    except BaseException as error:
        ended.append(type(error).__name__)
