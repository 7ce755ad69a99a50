"""The whole way of an execution through PgBouncer in transaction mode, where no two statements
need meet the same server connection and LISTEN hears nothing."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from flowfabric import App, Context, Retry
from flowfabric.client import FlowFabric
from flowfabric.core.errors import ExecutionFailed, StaleLease
from flowfabric.core.execution import Failure, Route, Submission
from flowfabric.core.ids import mint
from flowfabric.core.policy import Fixed
from flowfabric.core.states import FailureClass
from flowfabric.db import session
from flowfabric.db.functions import Read
from support.clock import Clock
from support.database import Database
from support.timing import is_ever_within
from worker.apps import quick_beats, working
from worker.test_leases_kept import block_for_leases
from worker.waiting import eventually

from .load import tasks_on
from .pooler import PROGRAM, Pooler, pgbouncer
from .workers import Fleet

pytestmark = pytest.mark.skipif(
    PROGRAM is None and "CI" not in os.environ,
    reason="pgbouncer is not installed (Debian and Ubuntu: apt install pgbouncer)",
)

POOL_SIZE = 3
__all__ = ["quick_beats"]


@pytest.fixture
async def pooler(db: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pooler]:
    monkeypatch.setattr(session, "HEARING_SECONDS", 0.5)
    with pgbouncer(db.url, size=POOL_SIZE) as pooler:
        await pooler.until_ready()
        yield pooler


@pytest.fixture
async def app(pooler: Pooler) -> AsyncIterator[App]:
    app = App(database_url=pooler.url)
    yield app
    await asyncio.wait_for(app.close(), 60)


@pytest.fixture
async def client(pooler: Pooler) -> AsyncIterator[FlowFabric]:
    async with FlowFabric(pooler.url) as client:
        yield client


async def test_the_client_notices_the_pooler_and_prepares_nothing(
    client: FlowFabric, db: Database
) -> None:
    assert client.database.is_pooled
    await client.lanes.list()
    # A prepared statement would stay behind on a server connection that the next client gets.
    text = "select count(*) from pg_prepared_statements where name <> ''"
    prepared = Read("prepared", (), ("count",), text, "")
    assert (await client.database.call(prepared))[0][0] == 0
    async with FlowFabric(db.url) as direct:
        assert not direct.database.is_pooled


async def test_every_call_of_a_worker(client: FlowFabric) -> None:
    """Submit, claim, renew, release, resume, fail, retry, promote, complete, read: by hand."""
    executions, leases = client.executions, client.leases
    route = Route("default", "default", "by.hand")
    policy = '{"retry_policy":{"max_retries":1,"backoff":{"type":"fixed","delay_ms":1}}}'
    keyed: dict[str, Any] = {"policy": policy, "key": "once", "key_fingerprint": b"same"}
    submission = Submission(id=mint(), route=route, payload=b"{}", **keyed)
    assert (await executions.submit(submission)).id == submission.id
    again = Submission(id=mint(), route=route, payload=b"{}", **keyed)
    assert (await executions.submit(again)).id == submission.id

    async def claim() -> Any:
        return (await executions.claim(worker_id="w", worker_instance_id="w-1"))[0]

    first = await claim()
    assert await leases.renew([first], timedelta(seconds=60)) == ({}, [])
    assert await leases.release([first]) == {}
    second = await claim()
    assert (second.claim_kind, second.epoch) == ("resumed", 2)
    with pytest.raises(StaleLease):
        await executions.complete(first, b"late")
    answer = await executions.fail(second, Failure(FailureClass.TRANSIENT, "no luck"))
    assert answer.will_retry
    assert await eventually(lambda: _handled(executions.promote_delayed())) == 1
    third = await claim()
    assert third.attempt == 2
    await executions.complete(third, b"42")
    (ending,) = await executions.read_results(0, [submission.id.uuid])
    assert ending.result == b"42"
    assert await leases.expire() == (0, None)
    kinds = [event.kind.value for event in await executions.events(submission.id)]
    assert kinds == [
        *("submitted", "claimed", "released", "resumed", "retry_scheduled", "claimed", "completed")
    ]


async def _handled(sweep: Any) -> int:
    return (await sweep)[0]


@pytest.mark.slow(short=4, of="processes")
async def test_a_worker_and_its_submitter(
    app: App, db: Database, clock: Clock, quick_beats: None
) -> None:
    @app.task(retry=Retry(max_retries=2, backoff=Fixed(timedelta(milliseconds=20))))
    async def flaky(ctx: Context, n: int) -> int:
        if ctx.attempt < 3:
            raise RuntimeError("not yet")
        return n

    @app.task
    def blocking(n: int) -> int:
        return n * 2

    @app.task
    async def longer_than_the_lease(ctx: Context) -> int:
        await asyncio.to_thread(block_for_leases, db.url, ctx.execution_id, 2)
        return ctx.epoch

    @app.task
    async def wrong() -> None:
        raise ValueError("always")

    async with working(app) as worker:
        runs = [await flaky.submit(7), await blocking.submit(21)]
        failing = await wrong.submit()
        assert [await run.result(timeout=60) for run in runs] == [7, 42]
        with pytest.raises(ExecutionFailed, match="always"):
            await failing.result(timeout=60)
        await clock.freeze()
        kept = await longer_than_the_lease.submit()
        # The heartbeat kept the lease: it is still the first claim.
        assert await kept.result(timeout=60) == 1
        await clock.run()
        # Listening was tried, found deaf, and polling took its place.
        await eventually(lambda: worker._hints.are_missed)

        async def run() -> None:
            assert await (await blocking.submit(4)).result(timeout=60) == 8

        assert await is_ever_within(5, run)


async def test_what_a_stopping_worker_gives_back_is_resumed(pooler: Pooler) -> None:
    apps = [App(database_url=pooler.url, drain_timeout=timedelta(seconds=0.1)) for _ in range(2)]
    may_end = asyncio.Event()
    for app in apps:

        @app.task(name="patient")
        async def patient(ctx: Context) -> tuple[int, int]:
            await may_end.wait()
            return ctx.attempt, ctx.epoch

    run = await apps[0].submit("patient")
    client = await apps[0].client()
    async with working(apps[0]):
        await eventually(lambda: _is_active(client, run.id))
    may_end.set()
    async with working(apps[1]):
        assert await run.result(timeout=60) == (1, 2)
    for app in apps:
        await app.close()


async def _is_active(client: FlowFabric, id: Any) -> bool:
    return await client.executions.state(id) == "active"


async def test_many_callers_over_few_server_connections(
    app: App, client: FlowFabric, db: Database
) -> None:
    @app.task
    async def double(n: int) -> int:
        await asyncio.sleep(0.001)
        return 2 * n

    submitters = [App(database_url=app.settings.database_url) for _ in range(3)]
    for submitter in submitters:
        submitter.task(name=double.name)(double.spec.function)
    async with working(app, concurrency=50):

        async def call(n: int) -> None:
            run = await submitters[n % 3].submit(double.name, n)
            assert await run.result(timeout=60) == 2 * n

        await asyncio.gather(*(call(n) for n in range(300)))
    for submitter in submitters:
        await submitter.close()
    assert 2 <= await db.others() <= POOL_SIZE
    ends = await db.fetchval("select count(*) from ff.event where kind = 'completed'")
    assert ends == 300


async def test_events_are_followed_by_polling(app: App, client: FlowFabric) -> None:
    @app.task
    async def note(n: int) -> int:
        return n

    cursor = await client.events.open()
    seen: list[tuple[str, str]] = []

    async def follow() -> None:
        async for event in client.events.follow(cursor):
            seen.append((event.id, event.kind.value))  # noqa: PERF401 (it never ends)

    following = asyncio.create_task(follow())
    async with working(app):
        runs = [await note.submit(n) for n in range(20)]
        for run in runs:
            await run.result(timeout=60)
    await eventually(lambda: len(seen) >= 60, what="three events for each")
    following.cancel()
    await asyncio.wait([following])
    for run in runs:
        kinds = [kind for id, kind in seen if id == run.id]
        assert kinds == ["submitted", "claimed", "completed"]


@pytest.mark.slow(short=4, of="processes")
async def test_a_worker_process(pooler: Pooler, db: Database, tmp_path: Path) -> None:
    app, tasks = tasks_on(pooler.url)
    fleet = Fleet(tmp_path, pooler.url, 1, concurrency=4, lease=60)
    try:
        runs = [await tasks["quick"].submit(n) for n in range(50)]
        runs += [await tasks["flaky"].submit(n) for n in range(4)]
        results = [await run.result(timeout=60) for run in runs]
        assert results[:50] == [[n * 7 + 1, 1] for n in range(50)]
        assert results[50:] == [[n * 7 + 4, 2 + n % 2] for n in range(4)]
        assert fleet.close() == [0]
        assert "polling instead" in fleet.log()
    finally:
        fleet.destroy()
        await app.close()
