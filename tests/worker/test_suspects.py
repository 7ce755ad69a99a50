"""An execution with which two workers in a row vanished runs alone; the rest goes on."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import psycopg
import pytest

from flowfabric import Context, Retry
from flowfabric.core.policy import Fixed
from flowfabric.worker import worker as worker_module
from support.factories import TTL, Engine
from worker.apps import working
from worker.waiting import eventually


async def crash(db, clock, times: int) -> None:
    """Let workers vanish with all that waits, and the waits before the next reclaim pass."""
    engine = Engine(db.conn, namespace="default")
    for _ in range(times):
        assert await engine.claim(worker="gone", instance="gone-1")
        await clock.advance(TTL)
        await engine.expire()
        await clock.advance(minutes=5)
        await engine.promote()


def start_of(db, ctx: Context) -> str:
    """What the database knows of the start of a run; asked over a connection of its own."""
    with psycopg.connect(db.url) as connection:
        row = connection.execute(
            "select lease_start::text from ff.execution where execution_id = %s",
            [ctx.execution_id.uuid],
        ).fetchone()
    assert row is not None
    return row[0]


async def test_suspects_run_one_at_a_time_and_alone(app, db, clock):
    running: set[str] = set()
    seen: dict[str, set[str]] = {}

    @app.task
    async def work(ctx: Context, name: str) -> str:
        running.add(name)
        await asyncio.sleep(0.05)
        seen[name] = set(running)
        running.discard(name)
        return start_of(db, ctx)

    suspects = await work.submit_many([(f"suspect {n}",) for n in range(3)])
    await crash(db, clock, 2)
    others = await work.submit_many([(f"other {n}",) for n in range(3)])
    async with working(app):
        starts = await asyncio.gather(*(run.result(timeout=20) for run in suspects))
        assert await asyncio.gather(*(run.result(timeout=20) for run in others)) == ["waiting"] * 3
    assert starts == ["alone"] * 3
    assert all(seen[name] == {name} for name in seen if name.startswith("suspect"))
    counts = await db.fetch("select crash_count, reclaim_count from ff.execution")
    assert {tuple(row) for row in counts} == {(0, 2), (0, 0)}


async def test_what_has_crashed_once_is_said_to_start_beside_others(app, db, clock):
    @app.task
    async def work(ctx: Context) -> str:
        return start_of(db, ctx)

    runs = await work.submit_many([() for _ in range(3)])
    await crash(db, clock, 1)
    async with working(app):
        starts = await asyncio.gather(*(run.result(timeout=20) for run in runs))
    assert starts == ["beside"] * 3


async def test_a_suspect_that_finds_no_quiet_time_is_put_off_and_runs_beside_others_in_the_end(
    app, db, clock, monkeypatch, caplog
):
    monkeypatch.setattr(worker_module, "QUIET_SECONDS", 0.05)
    monkeypatch.setattr(worker_module, "PUT_OFF", timedelta(milliseconds=1))
    go, began = asyncio.Event(), asyncio.Event()

    @app.task
    async def endless() -> None:
        began.set()
        await go.wait()

    @app.task
    async def work(ctx: Context) -> str:
        return start_of(db, ctx)

    suspect = await work.submit()
    await crash(db, clock, 2)
    other = await endless.submit()
    async with working(app):
        await asyncio.wait_for(began.wait(), 10)
        with caplog.at_level(logging.WARNING, "flowfabric.worker"):
            assert await suspect.result(timeout=20) == "beside"
        go.set()
        await other.result(timeout=20)
    assert sum("is put off" in line for line in caplog.messages) == 3
    assert any("runs beside others" in line for line in caplog.messages)


async def test_other_work_is_let_in_beside_a_suspect_that_runs_for_long(
    app, db, clock, monkeypatch
):
    monkeypatch.setattr(worker_module, "ALONE_SECONDS", 0.1)
    go, began = asyncio.Event(), asyncio.Event()

    @app.task
    async def work(ctx: Context, is_long: bool) -> str:
        if is_long:
            began.set()
            await go.wait()
        return start_of(db, ctx)

    suspect = await work.submit(True)
    await crash(db, clock, 2)
    async with working(app):
        await asyncio.wait_for(began.wait(), 10)
        other = await work.submit(False)
        assert await other.result(timeout=20) == "waiting"
        go.set()
        assert await suspect.result(timeout=20) == "beside"


async def test_a_worker_that_stops_gives_a_waiting_suspect_back(app, db, clock):
    go, began = asyncio.Event(), asyncio.Event()

    @app.task
    async def first() -> None:
        began.set()
        await go.wait()

    @app.task
    async def work() -> None: ...

    suspect = await work.submit()
    await crash(db, clock, 2)
    other = await first.submit()
    async with working(app) as worker:
        await asyncio.wait_for(began.wait(), 10)
        await eventually(lambda: suspect.id.uuid in [one.execution_id for one in worker.held])
        worker.stop()
        go.set()
    assert await other.state() == "completed"
    assert await suspect.state() == "waiting"
    assert await db.fetchval("select max(crash_count) from ff.execution") == 2


LATE = {
    "deadline": ({"deadline": timedelta(seconds=2)}, "expired", "deadline passed", "it expired"),
    "the last attempt": (
        {"timeout": timedelta(seconds=2)},
        "expired",
        "attempt timed out",
        "no retry is left, it expired",
    ),
    "an attempt with a retry": (
        {"timeout": timedelta(seconds=2), "retry": Retry(1, Fixed(timedelta(days=1)))},
        "delayed",
        "attempt timed out",
        "it will be tried again at",
    ),
}


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("how", ["completes", "fails"])
async def test_a_handler_that_blocks_the_loop_past_its_time_is_late(app, db, caplog, late, how):
    """With a single worker nobody else could notice: its own call does."""
    options, state, *lines = LATE[late]

    @app.task(**options)
    async def block() -> str:
        # a blocking driver: no reconciler of this process gets a turn
        with psycopg.connect(db.url) as connection:
            connection.execute("select ff_test.advance_clock('5 seconds')")
        if how == "fails":
            raise ValueError("too late to matter")
        return "late"

    run = await block.submit()
    with caplog.at_level(logging.WARNING, "flowfabric.worker"):
        async with working(app):
            await eventually(lambda: any(lines[0] in line for line in caplog.messages))
    assert await run.state() == state
    (line,) = [line for line in caplog.messages if lines[0] in line]
    assert lines[1] in line
    assert str(run.id) in line
