"""Leases are kept while a handler works, and a handler whose lease is lost is stopped."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from flowfabric import Context
from flowfabric.core.errors import LeaseExpired, Unavailable
from flowfabric.core.execution import Claimed
from flowfabric.core.ids import ExecutionId
from flowfabric.worker import claims as claims_module
from flowfabric.worker import loop_watch
from flowfabric.worker.heartbeat import Heartbeat
from support.factories import Engine, Lease
from worker.apps import working
from worker.waiting import eventually


async def steal(db, clock, run) -> Lease:
    """Take the one execution over, as another worker would after a long silence of its holder.

    In one transaction, so that the holder cannot be quicker: its renewal waits for the lock.
    """
    async with db.conn.transaction():
        await db.execute("select from ff.execution for no key update")
        await clock.advance(minutes=10)
        engine = Engine.of(db.conn, run.id, namespace="default")
        await engine.expire()
        return await engine.take(worker="thief", instance="thief-1")


def block_for_leases(url: str, id: ExecutionId, number: int) -> None:
    """Block the calling thread for as long as some leases of half a minute last.

    The clock is frozen: a lease that is renewed late has not expired, one that is not has.
    """
    query = "select lease_expires_at from ff.execution where execution_id = %s"
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(2 * number):
            before = connection.execute(query, [id.uuid]).fetchone()
            connection.execute("select ff_test.advance_clock('20 seconds')")
            deadline = time.monotonic() + 60
            while connection.execute(query, [id.uuid]).fetchone() == before:
                assert time.monotonic() < deadline, "nobody renews the lease"
                time.sleep(0.01)


async def test_the_lease_is_kept_while_a_handler_blocks_the_event_loop(app, db, clock, quick_beats):
    @app.task
    async def block(ctx: Context) -> str:
        block_for_leases(db.url, ctx.execution_id, 2)
        return f"attempt {ctx.attempt}, epoch {ctx.epoch}"

    await clock.freeze()

    run = await block.submit()
    async with working(app):
        assert await run.result(timeout=60) == "attempt 1, epoch 1"
    assert await db.fetchval("select reclaim_count from ff.execution") == 0


async def test_the_heartbeat_leaves_signals_to_the_main_thread(make_app):
    app = make_app()

    @app.task
    async def idle() -> None: ...

    # The heartbeat of an earlier test may not have come to its end.
    earlier = set(threading.enumerate())
    async with working(app):
        [thread] = [
            one
            for one in threading.enumerate()
            if one.name == "flowfabric-heartbeat" and one not in earlier
        ]
        blocked = blocked_signals(thread)
    for number in (signal.SIGINT, signal.SIGTERM):
        assert blocked >> (number - 1) & 1, f"{number.name} may reach the heartbeat"


def blocked_signals(thread: threading.Thread) -> int:
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    [mask] = [line.split()[1] for line in status.splitlines() if line.startswith("SigBlk:")]
    return int(mask, 16)


@pytest.mark.parametrize("culprit", ["the handler", "a task of the handler"])
async def test_a_loop_that_does_not_move_is_told_of_with_the_task(
    make_app, monkeypatch, caplog, culprit
):
    monkeypatch.setattr(loop_watch, "BLOCKED_SECONDS", 0.1)
    app = make_app()

    def told() -> list[str]:
        """The lines about the handler: a busy machine blocks the loop by itself, too."""
        blocked = "event loop blocked for 0.1 s"
        return [one for one in caplog.messages if blocked in one and "shop.hog" in one]

    async def block() -> None:
        until = time.monotonic() + 60
        while not told() and time.monotonic() < until:
            time.sleep(0.01)  # noqa: ASYNC251 - a handler that blocks the loop is the subject

    @app.task(name="shop.hog")
    async def hog() -> None:
        await (block() if culprit == "the handler" else asyncio.create_task(block()))

    with caplog.at_level(logging.WARNING):
        run = await hog.submit()
        async with working(app):
            await run.result(timeout=60)
            await eventually(lambda: "event loop runs again after" in caplog.text)
    line = told()[0]
    # Before Python 3.12 a task that a handler has started cannot be told from others.
    if culprit == "the handler" or sys.version_info >= (3, 12):
        assert f"by shop.hog {run.id}" in line
    else:
        assert f"one of shop.hog ({run.id})" in line


async def test_the_lease_is_kept_while_a_plain_handler_works(app, db, clock, quick_beats):
    @app.task
    def work(ctx: Context) -> int:
        block_for_leases(db.url, ctx.execution_id, 2)
        return ctx.epoch

    await clock.freeze()
    run = await work.submit()
    async with working(app):
        assert await run.result(timeout=60) == 1


async def test_a_lost_lease_cancels_an_async_handler(app, db, clock, caplog, quick_beats):
    started, cancelled = asyncio.Event(), asyncio.Event()

    @app.task
    async def work() -> str:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return "mine"

    run = await work.submit()
    with caplog.at_level(logging.WARNING):
        async with working(app):
            await asyncio.wait_for(started.wait(), 60)
            theft = await steal(db, clock, run)
            await asyncio.wait_for(cancelled.wait(), 60)
            engine = Engine.of(db.conn, run.id, namespace="default")
            assert (await engine.complete(theft, b'"theirs"')).word == "completed"
            assert await run.result(timeout=60) == "theirs"

    (line,) = [line for line in caplog.messages if "lost the lease" in line]
    assert line.endswith(": lease expired, another worker has the execution")
    events = [event["kind"] for event in await engine.events(run.id.uuid)]
    assert events == ["submitted", "claimed", "lease_expired", "reclaimed", "completed"]


async def test_a_late_result_is_refused_and_the_other_one_stands(
    app, db, clock, caplog, quick_beats
):
    started, ended = asyncio.Event(), asyncio.Event()

    @app.task
    async def stubborn() -> str:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.set()  # it does not stop: it returns as if nothing had happened
        return "mine"

    run = await stubborn.submit()
    with caplog.at_level(logging.WARNING):
        async with working(app):
            await asyncio.wait_for(started.wait(), 60)
            theft = await steal(db, clock, run)
            await asyncio.wait_for(ended.wait(), 60)
            await eventually(lambda: "its result does not count" in caplog.text)
            engine = Engine.of(db.conn, run.id, namespace="default")
            assert (await engine.complete(theft, b'"theirs"')).word == "completed"
            assert await run.result(timeout=60) == "theirs"


async def test_a_plain_handler_sees_that_its_lease_is_lost(app, db, clock, quick_beats):
    started, seen = threading.Event(), threading.Event()

    @app.task
    def work(ctx: Context) -> str:
        started.set()
        for _ in range(3000):
            if ctx.cancelled:
                seen.set()
                break
            time.sleep(0.01)
        return "mine"

    run = await work.submit()
    async with working(app):
        await eventually(started.is_set)
        theft = await steal(db, clock, run)
        await eventually(seen.is_set)
        engine = Engine.of(db.conn, run.id, namespace="default")
        assert (await engine.complete(theft, b'"theirs"')).word == "completed"
        assert await run.result(timeout=60) == "theirs"


async def test_a_buffered_execution_whose_lease_is_lost_is_not_started(
    app, db, clock, monkeypatch, quick_beats
):
    monkeypatch.setattr(claims_module, "AHEAD_SECONDS", 60.0)
    go = asyncio.Event()
    calls: list[int] = []

    @app.task
    async def work(n: int) -> None:
        calls.append(n)
        if n >= 0:
            await go.wait()

    warm_up = await work.submit_many([(-1,) for _ in range(40)])
    async with working(app, concurrency=1) as worker:
        await asyncio.wait_for(asyncio.gather(*(run.result() for run in warm_up)), 60)
        worker._runner.pace._per_second = 200.0  # it claims ahead
        first = await work.submit(0)
        await eventually(lambda: 0 in calls)
        second = await work.submit(1)
        await eventually(
            lambda: second.id.uuid in [one.execution_id for one in worker._claimer.waiting]
        )
        async with db.conn.transaction():
            await db.execute("select from ff.execution for no key update")
            await clock.advance(minutes=10)
            thefts = {}
            for engine in await Engine(db.conn, namespace="default").everywhere():
                await engine.expire()
                thefts[engine] = await engine.claim(2, worker="thief", instance="thief-1")
        stolen = {theft.execution_id for some in thefts.values() for theft in some}
        assert stolen == {first.id.uuid, second.id.uuid}
        await eventually(lambda: not worker._claimer.waiting and not worker._runner.running)
        for engine, some in thefts.items():
            if some:
                await engine.complete_many(some)
        await asyncio.wait_for(second.result(), 60)

    assert 1 not in calls


# The heartbeat alone, with leases that exist only here


def claim() -> Claimed:
    now = datetime.now(UTC)
    return Claimed(
        execution_id=uuid4(),
        namespace="default",
        lane="default",
        task="t",
        claim_kind="new",
        rank=0,
        order_at=now,
        epoch=1,
        attempt=1,
        attempt_id=uuid4(),
        attempt_type="initial",
        lease_expires_at=now,
        attempt_deadline_at=None,
        deadline_at=None,
        retry_count=0,
        payload_encoding=None,
        payload=None,
        replay_count=0,
        trace_context=None,
        crash_count=0,
        generation=0,
        partition_key=0,
        lease_id=uuid4(),
    )


class Renewals:
    """Answers renewals as it is told to."""

    def __init__(self) -> None:
        self.calls: list[list[Claimed]] = []
        self.times: list[float] = []
        self.error: Exception | None = None
        self.lost: list[Claimed] = []
        self.busy: list[Claimed] = []

    async def renew(self, held: list[Claimed], ttl: timedelta, *, caller: Any) -> Any:
        self.calls.append(list(held))
        self.times.append(time.monotonic())
        if self.error is not None:
            raise self.error
        lost = {c: LeaseExpired() for c in held if c in self.lost}
        return lost, [c for c in held if c in self.busy]

    async def call(self, *_: Any, **__: Any) -> Any: ...

    async def listen(self, *_: Any, **__: Any) -> None: ...

    async def close(self) -> None: ...


async def beating(renewals: Renewals, seconds: float = 30.0) -> Heartbeat:
    heartbeat = Heartbeat(renewals, lambda: renewals, timedelta(seconds=seconds))
    heartbeat.start()
    return heartbeat


async def test_all_leases_are_renewed_in_one_call_a_beat(quick_beats):
    renewals = Renewals()
    others = set(threading.enumerate())
    heartbeat = await beating(renewals)
    (thread,) = [
        thread
        for thread in threading.enumerate()
        if thread.name == "flowfabric-heartbeat" and thread not in others
    ]
    held = [claim() for _ in range(100)]
    try:
        heartbeat.keep(held, time.monotonic(), lambda _: None)
        await eventually(lambda: len(renewals.calls) >= 3)
        assert all(call == held for call in renewals.calls)
        for one in held[:50]:
            heartbeat.drop(one)
        before = len(renewals.calls)
        await eventually(lambda: len(renewals.calls) >= before + 2)
        assert renewals.calls[-1] == held[50:]
    finally:
        heartbeat.stop()
    assert not thread.is_alive()


async def test_a_lost_lease_is_told_once(quick_beats):
    renewals, told = Renewals(), []
    heartbeat = await beating(renewals)
    held = [claim(), claim()]
    renewals.lost = [held[0]]
    try:
        heartbeat.keep(held, time.monotonic(), told.extend)
        await eventually(lambda: told)
        before = len(renewals.calls)
        await eventually(lambda: len(renewals.calls) >= before + 3)
    finally:
        heartbeat.stop()
    assert told == [held[0]]
    assert renewals.calls[-1] == [held[1]]


async def test_beats_come_faster_while_a_row_is_busy_and_the_lease_is_given_up_in_the_end():
    renewals, told = Renewals(), []
    heartbeat = await beating(renewals, 1.5)
    held = [claim(), claim()]
    renewals.busy = [held[0]]
    try:
        heartbeat.keep(held, time.monotonic() + 3600, told.extend)
        # A regular beat comes every 0.5 s. While a row is busy, beats come at least every 0.1 s.
        await eventually(lambda: any(b - a < 0.4 for a, b in pairwise(renewals.times)))
        assert told == []
        heartbeat.keep(held, time.monotonic() - 1.5, told.extend)
        await eventually(lambda: told)
    finally:
        heartbeat.stop()
    assert told == [held[0]]


async def test_a_row_that_is_busy_for_a_moment_is_renewed_at_once_even_under_a_long_lease():
    """A hint of a revoked lease often comes while a claim locks the row."""
    renewals, told = Renewals(), []
    heartbeat = await beating(renewals, 600)
    held = [claim()]
    renewals.busy = held
    try:
        heartbeat.keep(held, time.monotonic(), told.extend)
        heartbeat._wake()
        await eventually(lambda: renewals.calls)
        renewals.busy, renewals.lost = [], held
        # A fifteenth of the lease is 40 s.
        await eventually(lambda: told, within=20)
    finally:
        heartbeat.stop()
    assert told == held


async def test_a_silent_database_makes_the_leases_lost_by_our_own_clock():
    renewals, told = Renewals(), []
    renewals.error = Unavailable("no database")
    heartbeat = await beating(renewals, 0.3)
    held = [claim()]
    try:
        heartbeat.keep(held, time.monotonic(), told.extend)
        await eventually(lambda: told)
    finally:
        heartbeat.stop()
    assert told == held


async def test_an_odd_error_does_not_end_the_heartbeat(quick_beats):
    renewals, told = Renewals(), []
    renewals.error = ZeroDivisionError("odd")
    heartbeat = await beating(renewals)
    held = [claim()]
    try:
        heartbeat.keep(held, time.monotonic(), told.extend)
        await eventually(lambda: renewals.calls)
        renewals.error = None
        await eventually(lambda: len(renewals.calls) >= 3)
    finally:
        heartbeat.stop()
    assert told == []


async def test_an_error_of_a_listener_does_not_end_the_heartbeat(quick_beats):
    renewals, told = Renewals(), []
    heartbeat = await beating(renewals)
    held = [claim(), claim()]
    renewals.lost = list(held)

    def lost(several: dict[Claimed, str]) -> None:
        told.extend(several)
        raise RuntimeError("Event loop is closed")

    later = claim()
    try:
        heartbeat.keep(held, time.monotonic(), lost)
        await eventually(lambda: len(told) == 2)
        heartbeat.keep([later], time.monotonic(), lost)
        await eventually(lambda: renewals.calls[-1] == [later])
    finally:
        heartbeat.stop()
