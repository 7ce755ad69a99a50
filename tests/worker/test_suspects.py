"""An execution with which two workers in a row vanished runs alone; the rest goes on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from datetime import timedelta

import psycopg
import pytest

from flowfabric import App, Context, Retry, gather
from flowfabric.core.ids import mint_in
from flowfabric.core.policy import Fixed
from flowfabric.worker import runner as runner_module
from flowfabric.worker import suspects as suspects_module
from support.factories import TTL, Engine
from worker.apps import working
from worker.waiting import eventually


async def crash(db, clock, times: int) -> None:
    """Let workers vanish with all that waits, and the waits before the next reclaim pass."""
    engines = await Engine(db.conn, namespace="default").everywhere()
    for _ in range(times):
        taken = [await engine.claim(worker="gone", instance="gone-1") for engine in engines]
        assert any(taken)
        await clock.advance(TTL)
        for engine in engines:
            await engine.expire()
        await clock.advance(minutes=5)
        for engine in engines:
            await engine.promote()


async def submit_beside(app: App, task, run):
    """Submit a task in the partition of a run, so that one claim takes both."""
    submission = task.node_submission(mint_in(run.id.partition_key), b"{}", None, {})
    await (await app.client()).executions.submit(submission)
    return task.get(submission.id)


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
        starts = await asyncio.gather(*(run.result(timeout=60) for run in suspects))
        assert await asyncio.gather(*(run.result(timeout=60) for run in others)) == ["waiting"] * 3
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
        starts = await asyncio.gather(*(run.result(timeout=60) for run in runs))
    assert starts == ["beside"] * 3


async def test_a_suspect_that_finds_no_quiet_time_is_put_off_and_runs_beside_others_in_the_end(
    app, db, clock, monkeypatch, caplog
):
    monkeypatch.setattr(suspects_module, "QUIET_SECONDS", 0.05)
    monkeypatch.setattr(suspects_module, "POSTPONE", timedelta(milliseconds=1))
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
    other = await submit_beside(app, endless, suspect)
    async with working(app):
        await asyncio.wait_for(began.wait(), 60)
        with caplog.at_level(logging.WARNING, "flowfabric.worker"):
            assert await suspect.result(timeout=60) == "beside"
        go.set()
        await other.result(timeout=60)
    assert sum("suspect postponed" in line for line in caplog.messages) == 3
    assert any("runs beside others" in line for line in caplog.messages)


async def test_other_work_is_let_in_beside_a_suspect_that_runs_for_long(
    app, db, clock, monkeypatch
):
    monkeypatch.setattr(suspects_module, "ALONE_SECONDS", 0.1)
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
        await asyncio.wait_for(began.wait(), 60)
        other = await work.submit(False)
        assert await other.result(timeout=60) == "waiting"
        go.set()
        assert await suspect.result(timeout=60) == "beside"


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
    other = await submit_beside(app, first, suspect)
    async with working(app) as worker:
        await asyncio.wait_for(began.wait(), 60)
        await eventually(lambda: suspect.id.uuid in [one.execution_id for one in worker.claimed])
        worker.stop()
        go.set()
    assert await other.state() == "completed"
    assert await suspect.state() == "waiting"
    assert await db.fetchval("select max(crash_count) from ff.execution") == 2


async def test_the_end_of_the_loop_gives_a_waiting_suspect_back(app, db, clock):
    """All tasks of the loop are cancelled at once, as at the end of `asyncio.run`."""

    def tasks_of(app: App):
        @app.task(name="work")
        async def work() -> None: ...

        @app.task(name="long")
        async def long() -> None:
            await asyncio.sleep(60)

        return work, long

    work, long = tasks_of(app)
    suspect = await work.submit()
    await crash(db, clock, 2)
    other = await submit_beside(app, long, suspect)

    async def main() -> asyncio.Task[None]:
        program = App(database_url=db.url)
        tasks_of(program)
        worker = await program.worker()
        running = asyncio.create_task(worker.run())
        await eventually(lambda: len(worker.claimed) == 2 and len(worker.handlers) == 1)
        return running

    await asyncio.to_thread(asyncio.run, main())
    assert (await other.state(), await suspect.state()) == ("waiting", "waiting")


@pytest.mark.parametrize("kind", ["async", "def"])
async def test_a_suspect_without_a_free_slot_is_put_off(app, db, clock, monkeypatch, caplog, kind):
    monkeypatch.setattr(suspects_module, "QUIET_SECONDS", 0.02)
    monkeypatch.setattr(suspects_module, "POSTPONE", timedelta(milliseconds=1))
    monkeypatch.setattr(suspects_module, "MAX_POSTPONES", 0)
    go, began, started = threading.Event(), threading.Event(), []

    async def wait() -> None:
        began.set()
        await asyncio.to_thread(go.wait, 30)

    def block() -> None:
        began.set()
        go.wait(60)

    endless = app.task(wait if kind == "async" else block, name="endless")

    @app.task
    async def work() -> None:
        started.append(go.is_set())

    suspect = await work.submit()
    await crash(db, clock, 2)
    other = await endless.using(priority=1000).submit()
    async with working(app, concurrency=1) as worker:
        await eventually(began.is_set)
        worker._runner.pace._per_second = 40.0  # as after quick ones: it claims ahead
        worker.notify_room()
        await eventually(lambda: sum("suspect postponed" in line for line in caplog.messages) >= 2)
        go.set()
        await asyncio.gather(suspect.result(timeout=60), other.result(timeout=60))
    assert started == [True]


async def test_a_suspect_that_does_not_stop_costs_a_slot_and_not_its_worker(
    app, db, clock, monkeypatch
):
    monkeypatch.setattr(runner_module, "UNWIND_SECONDS", 0.1)
    over, began = asyncio.Event(), asyncio.Event()

    @app.task
    async def stubborn() -> None:
        began.set()
        while not over.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    @app.task
    async def work() -> str:
        return "done"

    suspect = await stubborn.submit()
    await crash(db, clock, 2)
    async with working(app):
        await asyncio.wait_for(began.wait(), 60)
        await (await app.client()).executions.cancel(suspect.id)
        assert await (await work.submit()).result(timeout=60) == "done"
        over.set()


@pytest.mark.parametrize("how", ["result", "timed", "gather"])
async def test_a_suspect_that_waits_in_its_handler_lets_other_work_in(app, db, clock, how):
    @app.task
    async def child() -> int:
        return 7

    @app.task
    async def parent() -> int:
        run = await child.submit()
        if how == "gather":
            return (await gather([run]))[0]
        return await run.result(timeout=20 if how == "timed" else None)

    run = await parent.submit()
    await crash(db, clock, 2)
    async with working(app):
        assert await run.result(timeout=60) == 7


async def test_a_suspect_is_alone_in_its_process_and_not_only_in_its_worker(app, db, clock):
    go, began, seen = asyncio.Event(), asyncio.Event(), []

    @app.task(lane="a")
    async def other() -> None:
        began.set()
        await go.wait()
        seen.append("other")

    @app.task(lane="b")
    async def work(ctx: Context) -> str:
        seen.append("suspect")
        late.append(await other.submit())
        await asyncio.sleep(0.2)
        seen.append("suspect ends")
        return start_of(db, ctx)

    late: list = []
    suspect = await work.submit()
    await crash(db, clock, 2)
    await other.submit()
    async with working(app, lanes=["a"]):
        await asyncio.wait_for(began.wait(), 60)
        async with working(app, lanes=["b"]) as worker:
            await eventually(lambda: worker.claimed)
            go.set()
            assert await suspect.result(timeout=60) == "alone"
            await late[0].result(timeout=60)
    assert seen == ["other", "suspect", "suspect ends", "other"]


async def test_a_suspect_is_not_alone_beside_a_thread_that_was_left(app, db, clock, monkeypatch):
    monkeypatch.setattr(runner_module, "UNWIND_SECONDS", 0.1)
    monkeypatch.setattr(suspects_module, "QUIET_SECONDS", 0.05)
    monkeypatch.setattr(suspects_module, "MAX_POSTPONES", 0)
    over, began = threading.Event(), threading.Event()

    @app.task(lane="a")
    def left() -> None:
        began.set()
        over.wait(60)

    @app.task(lane="b")
    async def work(ctx: Context) -> str:
        return start_of(db, ctx)

    suspect = await work.submit()
    await crash(db, clock, 2)
    run = await left.submit()
    async with working(app, lanes=["a"]) as worker:
        await eventually(began.is_set)
        await (await app.client()).executions.cancel(run.id)
        await eventually(lambda: not worker.claimed)
        async with working(app, lanes=["b"]):
            assert await suspect.result(timeout=60) == "beside"
            over.set()


async def test_what_is_more_urgent_does_not_wait_for_the_whole_turn_of_the_others(
    app, db, clock, monkeypatch
):
    monkeypatch.setattr(suspects_module, "ORDINARY_SECONDS", 0.1)
    order: list[str] = []
    go, began = asyncio.Event(), asyncio.Event()

    @app.task
    async def suspect() -> None:
        began.set()
        await go.wait()

    @app.task
    async def work(name: str) -> None:
        order.append(name)
        await asyncio.sleep(0.05)

    await suspect.submit()
    await crash(db, clock, 2)
    async with working(app, concurrency=1):
        await asyncio.wait_for(began.wait(), 60)
        runs = await work.submit_many([(f"low {n}",) for n in range(15)])
        runs.append(await work.using(priority=1000).submit("urgent"))
        await asyncio.sleep(1)
        go.set()
        await asyncio.gather(*(run.result(timeout=60) for run in runs))
    assert order.index("urgent") < 8


LATE = {
    "deadline": (
        {"deadline": timedelta(seconds=2)},
        "expired",
        "deadline passed",
        "the execution expired",
    ),
    "the last attempt": (
        {"timeout": timedelta(seconds=2)},
        "expired",
        "timed out after 2 s",
        ", no retry is left",
    ),
    "an attempt with a retry": (
        {"timeout": timedelta(seconds=2), "retry": Retry(1, Fixed(timedelta(days=1)))},
        "delayed",
        "timed out after 2 s",
        ", retry at ",
    ),
}


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("how", ["completes", "fails"])
async def test_a_handler_that_blocks_the_loop_past_its_time_is_late(
    app, db, clock, caplog, late, how
):
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

    await clock.freeze()
    run = await block.submit()
    with caplog.at_level(logging.WARNING, "flowfabric.worker"):
        async with working(app):
            await eventually(lambda: any(lines[0] in line for line in caplog.messages))
    assert await run.state() == state
    (line,) = [line for line in caplog.messages if lines[0] in line]
    assert lines[1] in line
    assert str(run.id) in line
