"""A running handler is stopped within a second when its lease is taken away."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from time import monotonic

import pytest

from flowfabric import Context, ExecutionCancelled, ExecutionExpired
from flowfabric.db import functions
from flowfabric.worker import heartbeat
from support.answers import Answers
from support.timing import is_ever_within
from worker.apps import working
from worker.waiting import eventually

LONG = timedelta(minutes=10)


class Probe:
    """When a handler began, and when it was stopped."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.stopped = asyncio.Event()

    async def work(self) -> None:
        self.began.set()
        try:
            await asyncio.sleep(60)
        finally:
            self.stopped.set()


@pytest.mark.parametrize(
    ("operation", "reason"),
    [("cancel", "cancelled by ann: stop"), ("revoke", "revoked by ann: stop")],
)
async def test_a_running_handler_is_stopped_within_a_second(make_app, caplog, operation, reason):
    """It is the hint that does it: a beat comes every 200 s."""
    app, probe = make_app(lease_ttl=LONG), Probe()

    @app.task(max_reclaims=0)
    async def work() -> None:
        await probe.work()

    client = await app.client()

    async def begin_and_stop() -> None:
        probe.began.clear()
        probe.stopped.clear()
        run = await work.submit()
        await asyncio.wait_for(probe.began.wait(), 60)
        if operation == "cancel":
            await client.executions.cancel(run.id, reason="stop", actor="ann")
        else:
            await client.leases.revoke(run.id, reason="stop", actor="ann")
        await asyncio.wait_for(probe.stopped.wait(), 60)
        if operation == "cancel":
            with pytest.raises(ExecutionCancelled):
                await run.result(timeout=60)

    async with working(app):
        assert await is_ever_within(1.0, begin_and_stop)
    lines = [line for line in caplog.messages if "lost the lease" in line]
    assert lines
    assert all(line.endswith(f"attempt 1: {reason}") for line in lines)


async def test_a_busy_worker_hears_it_as_well(make_app):
    """A worker that has no free slot does not listen for work, but for this it does."""
    app, probe = make_app(lease_ttl=LONG), Probe()

    @app.task
    async def work() -> None:
        await probe.work()

    runs = await work.submit_many([()] * 3)
    client = await app.client()
    async with working(app, concurrency=1):
        await asyncio.wait_for(probe.began.wait(), 60)
        await asyncio.gather(*(client.executions.cancel(run.id) for run in runs))
        await asyncio.wait_for(probe.stopped.wait(), 60)


async def test_a_plain_handler_sees_that_it_is_cancelled(make_app):
    app = make_app(lease_ttl=LONG)
    began, seen = asyncio.Event(), []
    loop = asyncio.get_running_loop()

    @app.task
    def work(ctx: Context) -> None:
        loop.call_soon_threadsafe(began.set)
        until = monotonic() + 60
        while not ctx.cancelled and monotonic() < until:
            time.sleep(0.01)
        seen.append(ctx.cancelled)

    run = await work.submit()
    client = await app.client()
    async with working(app):
        await asyncio.wait_for(began.wait(), 60)
        await client.executions.cancel(run.id)
        await eventually(lambda: seen == [True])


async def test_without_hints_the_heartbeat_finds_it(app, monkeypatch, quick_beats):
    monkeypatch.setattr(heartbeat, "LOST_CHANNEL", "ff_nobody_says_this")
    probe = Probe()

    @app.task
    async def work() -> None:
        await probe.work()

    run = await work.submit()
    client = await app.client()
    async with working(app):
        await asyncio.wait_for(probe.began.wait(), 60)
        await client.executions.cancel(run.id)
        await asyncio.wait_for(probe.stopped.wait(), 60)


async def test_an_attempt_that_takes_too_long_is_stopped(app, clock, caplog):
    probe = Probe()

    @app.task(timeout=timedelta(milliseconds=300))
    async def work() -> None:
        await probe.work()

    await clock.freeze()
    run = await work.submit()
    async with working(app):
        await asyncio.wait_for(probe.began.wait(), 60)
        await clock.advance(seconds=1)
        with pytest.raises(ExecutionExpired):
            await run.result(timeout=60)
        await asyncio.wait_for(probe.stopped.wait(), 60)
    (line,) = [one for one in caplog.records if "lost the lease" in one.getMessage()]
    assert line.getMessage().endswith("attempt 1: timed out after 0.3 s, no retry is left")
    assert line.levelname == "ERROR"


async def test_an_execution_past_its_deadline_is_over_wherever_it_is(make_app):
    app = make_app()

    @app.task(deadline=timedelta(milliseconds=200), lane="never-worked")
    async def work() -> None: ...

    @app.task
    async def other() -> None: ...

    run = await work.submit()
    async with working(app, lanes=["default"]):
        with pytest.raises(ExecutionExpired):
            await run.result(timeout=60)


async def test_a_false_hint_stops_nobody(make_app, db, monkeypatch):
    """Any login may send one: the worker asks the database, and goes on."""
    app, probe = make_app(), Probe()

    @app.task
    async def work() -> None:
        await probe.work()

    run = await work.submit()
    client = await app.client()
    async with working(app):
        await asyncio.wait_for(probe.began.wait(), 60)
        info = await client.executions.describe(run.id)
        answers = Answers(monkeypatch)
        # When the worker asks for the second time, it has read the first answer.
        for number in (1, 2):
            for text in (
                info.worker_instance_id,
                f"{info.worker_instance_id} 0 {run.id.uuid} {info.lease_id}",
                "nonsense",
                "",
            ):
                for channel in ("ff_lost", "ff_ready", "ff_ended"):
                    await db.execute("select pg_notify($1, $2)", channel, text)
            await answers.until(functions.RENEW_LEASES, number)
        assert not probe.stopped.is_set()
        await client.executions.cancel(run.id)
        await asyncio.wait_for(probe.stopped.wait(), 60)
