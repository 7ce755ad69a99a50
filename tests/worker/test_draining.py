"""How a worker ends: it finishes, gives back, or dies, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from datetime import timedelta

import pytest

from flowfabric import App, Context, Fixed, Retry
from flowfabric.worker import claims as claims_module
from worker.apps import working
from worker.waiting import eventually

SHOP = """
import asyncio, logging, os, time
from datetime import timedelta
from flowfabric import App, Context, Fixed, Retry

app = App()


@app.task(name="shop.sleep")
async def sleep(ctx: Context, seconds: float) -> str:
    logging.getLogger("shop").info("sleeping")
    await asyncio.sleep(seconds if ctx.attempt == 1 else 0)
    return f"attempt {ctx.attempt}, epoch {ctx.epoch}"


@app.task(name="shop.wait")
async def wait(ctx: Context) -> str:
    logging.getLogger("shop").info("waiting")
    while not os.path.exists("go"):
        await asyncio.sleep(0.01)
    return f"attempt {ctx.attempt}, epoch {ctx.epoch}"


@app.task(name="shop.block")
def block(seconds: float) -> str:
    time.sleep(seconds)
    return "done"


@app.task(name="shop.hog")
async def hog(seconds: float) -> str:
    logging.getLogger("shop").info("sleeping")
    time.sleep(seconds)  # and nothing else runs
    return "done"


@app.task(name="shop.stubborn")
async def stubborn(seconds: float) -> str:
    logging.getLogger("shop").info("sleeping")
    while True:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            pass


@app.task(name="shop.shaky", retry=Retry(5, Fixed(timedelta(milliseconds=10))))
async def shaky(ctx: Context, secret: str) -> int:
    if ctx.attempt == 1:
        raise ValueError("not yet")
    return ctx.attempt


@app.task(name="shop.parent")
def parent(n: int) -> str:
    return shaky.submit_sync(f"child {n}").id
"""


def shop(make_app) -> App:
    """The submitting side of the module above."""
    app = make_app()

    @app.task(name="shop.sleep")
    async def sleep(seconds: float) -> str: ...

    @app.task(name="shop.wait")
    async def wait() -> str: ...

    @app.task(name="shop.block")
    async def block(seconds: float) -> str: ...

    @app.task(name="shop.hog")
    async def hog(seconds: float) -> str: ...

    @app.task(name="shop.stubborn")
    async def stubborn(seconds: float) -> str: ...

    @app.task(name="shop.shaky", retry=Retry(5, Fixed(timedelta(milliseconds=10))))
    async def shaky(secret: str) -> int: ...

    @app.task(name="shop.parent")
    async def parent(n: int) -> str: ...

    return app


async def kinds(app: App, run) -> list[str]:
    client = await app.client()
    return [str(event.kind) for event in await client.executions.events(run.id)]


async def test_a_worker_that_stops_finishes_what_runs(make_app):
    app = make_app(drain_timeout=timedelta(seconds=60))
    started, go = asyncio.Event(), asyncio.Event()

    @app.task
    async def work() -> str:
        started.set()
        await go.wait()
        return "finished"

    run = await work.submit()
    worker = await app.worker()
    task = asyncio.create_task(worker.run())
    await asyncio.wait_for(started.wait(), 60)
    late = await work.submit()
    worker.stop()
    waiting = await work.submit()
    go.set()
    await asyncio.wait_for(task, 60)

    assert await run.state() == "completed"
    assert await waiting.state() == "waiting"
    assert await late.state() in ("waiting", "completed")


async def test_a_cancelled_worker_drains_as_well(make_app):
    app = make_app(drain_timeout=timedelta(seconds=60))
    started, go = asyncio.Event(), asyncio.Event()

    @app.task
    async def work() -> str:
        started.set()
        await go.wait()
        return "finished"

    run = await work.submit()
    task = asyncio.create_task(app.run_worker())
    await asyncio.wait_for(started.wait(), 60)
    task.cancel()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 60)

    assert await run.state() == "completed"


async def test_what_is_not_finished_in_time_is_given_back_and_resumed(make_app, monkeypatch):
    monkeypatch.setattr(claims_module, "AHEAD_SECONDS", 60.0)
    app = make_app(drain_timeout=timedelta(seconds=0.2))
    hang = asyncio.Event()
    started: list[int] = []

    @app.task(name="shop.work")
    async def work(ctx: Context, n: int) -> str:
        if n >= 0 and not hang.is_set():
            started.append(n)
            await asyncio.sleep(60)
        return f"attempt {ctx.attempt}, epoch {ctx.epoch}"

    warm_up = await work.submit_many([(-1,) for _ in range(40)])
    worker = await app.worker(concurrency=2)
    task = asyncio.create_task(worker.run())
    await asyncio.wait_for(asyncio.gather(*(run.result() for run in warm_up)), 60)
    worker._runner.pace._per_second = 200.0  # it claims ahead
    runs = await work.submit_many([(n,) for n in range(4)])
    await eventually(lambda: len(started) == 2 and len(worker._claimer.waiting) == 2)
    worker.stop()
    await asyncio.wait_for(task, 60)

    client = await app.client()
    for run in runs:
        info = await client.executions.describe(run.id)
        assert info.public_state == "waiting"
        assert info.attempt_state == "attempt_interrupted"
        assert (info.retry_count, info.reclaim_count, info.attempt) == (0, 0, 1)
        assert await kinds(app, run) == ["submitted", "claimed", "released"]

    hang.set()
    async with working(app):
        for run in runs:
            # The same attempt goes on, under a new lease.
            assert await run.result(timeout=60) == "attempt 1, epoch 2"
            assert await kinds(app, run) == [
                *("submitted", "claimed", "released", "resumed", "completed")
            ]


async def test_a_plain_handler_that_does_not_end_is_given_back_and_told(make_app):
    app = make_app(drain_timeout=timedelta(seconds=0.2))
    started, go, told = threading.Event(), threading.Event(), threading.Event()

    @app.task
    def work(ctx: Context) -> str:
        started.set()
        go.wait(60)
        if ctx.cancelled:
            told.set()
        return "late"

    run = await work.submit()
    worker = await app.worker()
    task = asyncio.create_task(worker.run())
    await eventually(started.is_set)
    worker.stop()
    await asyncio.wait_for(task, 60)
    assert await run.state() == "waiting"
    assert await kinds(app, run) == ["submitted", "claimed", "released"]
    go.set()
    await eventually(told.is_set)

    assert await run.state() == "waiting"


async def test_all_connections_may_break_and_the_worker_goes_on(make_app, db):
    app = make_app()

    @app.task
    async def work(n: int) -> int:
        await asyncio.sleep(0.05)
        return n

    async with working(app, concurrency=10):
        for _ in range(3):
            runs = await work.submit_many([(n,) for n in range(30)])
            await asyncio.gather(*(run.result(timeout=60) for run in runs[:10]))
            broken = await db.fetchval(
                "select count(pg_terminate_backend(pid)) from pg_stat_activity "
                "where application_name like 'flowfabric%' and datname = current_database()"
            )
            assert broken >= 2
            more = await work.submit_many([(n,) for n in range(30)])
            done = await asyncio.wait_for(
                asyncio.gather(*(run.result() for run in [*runs, *more])), 60
            )
            assert done == [*range(30), *range(30)]


async def test_a_worker_process_drains_on_sigterm_and_ends_with_zero(
    make_app, start_worker, folder
):
    app = shop(make_app)
    process = await start_worker(SHOP)
    run = await app.tasks["shop.wait"].submit()
    await process.logged("waiting")

    process.process.send_signal(signal.SIGTERM)
    await process.logged("draining after SIGTERM")
    await process.logged("draining: 1 executions still running")
    (folder / "go").touch()

    assert await process.ended() == 0
    assert await run.state() == "completed"
    assert await run.result(timeout=60) == "attempt 1, epoch 1"


async def test_a_worker_process_gives_back_what_does_not_end_and_ends_with_zero(
    make_app, start_worker
):
    app = shop(make_app)
    process = await start_worker(SHOP, FLOWFABRIC_DRAIN_TIMEOUT="0.3")
    runs = [
        await app.tasks["shop.sleep"].submit(300.0),
        await app.tasks["shop.block"].submit(300.0),  # a thread that nobody can stop
    ]
    for run in runs:
        await eventually(lambda run=run: _is(run, "active"), within=60)

    # far less than they would take
    assert await process.end(signal.SIGTERM) == 0

    for run in runs:
        assert await kinds(app, run) == ["submitted", "claimed", "released"]


@pytest.mark.parametrize(
    ("task", "signals", "told"),
    [
        *(
            pytest.param(*case, marks=pytest.mark.slow(short=1))
            for case in (
                ("shop.sleep", (signal.SIGINT, signal.SIGINT), "did not finish: shop.sleep ("),
                ("shop.sleep", (signal.SIGTERM, signal.SIGTERM), "did not finish: shop.sleep ("),
                (
                    "shop.stubborn",
                    (signal.SIGTERM, signal.SIGINT),
                    "did not finish: shop.stubborn (",
                ),
            )
        ),
        # It is deaf to the first; the second interrupts the handler.
        ("shop.hog", (signal.SIGINT, signal.SIGTERM), "KeyboardInterrupt in shop.hog "),
    ],
)
async def test_a_second_signal_gives_back_at_once_and_names_the_task(
    make_app, start_worker, task, signals, told
):
    app = shop(make_app)
    process = await start_worker(SHOP)
    run = await app.tasks[task].submit(300.0)
    await process.logged("sleeping")

    await process.asleep()
    process.process.send_signal(signals[0])
    if task == "shop.hog":
        await process.asleep()  # a blocked loop cannot say that it drains
    else:
        await process.logged("draining after")
    assert await process.end(signals[1]) == 128 + signals[1]

    assert await kinds(app, run) == ["submitted", "claimed", "released"]
    log = await process.log()
    assert told in log
    assert str(run.id.uuid) in log


async def test_a_killed_worker_is_recovered_by_another_with_a_higher_epoch(
    make_app, start_worker, clock
):
    app = shop(make_app)
    first = await start_worker(SHOP, "--worker-id", "ada")
    run = await app.tasks["shop.sleep"].submit(300.0)
    await eventually(lambda: _is(run, "active"), within=60)
    second = await start_worker(SHOP, "--worker-id", "bob")

    assert await first.end(signal.SIGKILL) == -signal.SIGKILL
    await clock.advance(minutes=1)

    assert await run.result(timeout=60) == "attempt 2, epoch 2"
    client = await app.client()
    attempts = await client.executions.attempts(run.id)
    assert [attempt.worker_id for attempt in attempts] == ["ada", "bob"]
    assert [attempt.epoch for attempt in attempts] == [1, 2]
    assert await kinds(app, run) == [
        *("submitted", "claimed", "lease_expired", "reclaimed", "completed")
    ]
    assert await second.end() == 0


async def _is(run, state: str) -> bool:
    return await run.state() == state


@pytest.mark.slow(short=4, of="processes")
async def test_a_worker_process_holds_at_most_three_connections(make_app, start_worker, db):
    app = shop(make_app)
    process = await start_worker(SHOP, "-c", "8")
    runs = await app.tasks["shop.parent"].submit_many([(n,) for n in range(100)])
    runs += await app.tasks["shop.shaky"].submit_many([(str(n),) for n in range(200)])
    runs += await app.tasks["shop.sleep"].submit_many([(0.01,) for n in range(200)])
    most, ours = 0, await db.fetchval("select pg_backend_pid()")
    names: set[str] = set()

    async def look() -> bool:
        nonlocal most
        rows = await db.fetch(
            "select pid, application_name as name from pg_stat_activity "
            "where datname = current_database() and pid <> $1 and application_name like 'flow%'",
            ours,
        )
        mine = [row for row in rows if row["pid"] not in known]
        most = max(most, len(mine))
        names.update(row["name"] for row in mine)
        ended: int = await db.fetchval("select count(*) from ff.execution where phase = 'terminal'")
        return ended == 600

    known = {
        row["pid"]
        for row in await db.fetch(
            "select pid from pg_stat_activity "
            "where datname = current_database() and application_name = 'flowfabric'"
        )
    }
    await app.close()  # only the process is left
    await eventually(look, within=120)

    assert most <= 3, names
    assert names <= {"flowfabric", "flowfabric claims", "flowfabric heartbeat"}
    assert await process.end() == 0


@pytest.mark.slow(short=1)
async def test_logs_are_lines_of_text(make_app, start_worker):
    app = shop(make_app)
    process = await start_worker(SHOP, "--worker-id", "ada")
    await (await app.tasks["shop.shaky"].submit("secret-4711")).result(timeout=60)
    run = await app.tasks["shop.sleep"].submit(0.0)
    await run.result(timeout=60)
    assert await process.end() == 0

    log = await process.log()
    assert "worker started: ada-" in log
    assert f"sleeping  [shop.sleep {run.id.uuid}]" in log
    assert ", attempt 1: ValueError: not yet" in log
    assert "secret-4711" not in log


async def test_logs_are_lines_of_json_and_carry_no_payload(make_app, start_worker):
    app = shop(make_app)
    process = await start_worker(
        SHOP,
        FLOWFABRIC_LOG_FORMAT="json",
        FLOWFABRIC_LOG_LEVEL="DEBUG",
        FLOWFABRIC_LEASE_TLL="5",
        FLOWFABRIC_UNHEARD_OF="1",
    )
    await (await app.tasks["shop.shaky"].submit("secret-4711")).result(timeout=60)
    run = await app.tasks["shop.sleep"].submit(0.0)
    await run.result(timeout=60)
    assert await process.end() == 0

    log = await process.log()
    lines = [json.loads(line) for line in log.splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    (said,) = [line for line in lines if line["message"] == "sleeping"]
    assert (said["execution_id"], said["task"], said["logger"]) == (run.id, "shop.sleep", "shop")
    assert "secret-4711" not in log
    warnings = [line["message"] for line in lines if line["level"] == "warning"]
    assert (
        "FLOWFABRIC_LEASE_TLL is not a variable of flowfabric; did you mean FLOWFABRIC_LEASE_TTL?"
        in warnings
    )
    assert any(warning.startswith("FLOWFABRIC_UNHEARD_OF is not") for warning in warnings)
