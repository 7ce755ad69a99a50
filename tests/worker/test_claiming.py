"""What a worker takes: its lanes, its capabilities, its concurrency, and in which order."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from flowfabric.core.errors import SchemaMismatch
from flowfabric.core.execution import Claimed
from flowfabric.worker import claims as claims_module
from support.database import partitions
from support.timing import is_ever_within
from worker.apps import working
from worker.waiting import eventually


async def leased(db) -> int:
    count: int = await db.fetchval("select count(*) from ff.execution where ownership = 'leased'")
    return count


async def test_a_worker_takes_only_its_lanes(app):
    @app.task(name="shop.work")
    async def work(n: int) -> int:
        return n

    mail = await work.using(lane="mail").submit(1)
    print_ = await work.using(lane="print").submit(2)
    async with working(app, lanes=["mail"]):
        assert await mail.result(timeout=60) == 1
        assert await print_.state() == "waiting"
    async with working(app):  # all lanes of its tasks
        assert await print_.result(timeout=60) == 2


async def test_a_worker_takes_only_what_it_has_the_capabilities_for(app):
    @app.task(name="shop.plain")
    async def plain() -> str:
        return "plain"

    @app.task(name="shop.render", needs={"gpu", "linux"})
    async def render() -> str:
        return "rendered"

    runs = await render.submit(), await plain.submit()
    async with working(app, needs={"linux"}):
        assert await runs[1].result(timeout=60) == "plain"
        assert await runs[0].state() == "waiting"
    async with working(app, needs={"gpu", "linux", "more"}):
        assert await runs[0].result(timeout=60) == "rendered"


async def test_a_worker_takes_only_tasks_it_knows_and_its_namespace(make_app):
    ours, theirs, stranger = make_app(), make_app(), make_app(namespace="other")

    @ours.task(name="shop.ours")
    async def known() -> str:
        return "ours"

    @theirs.task(name="shop.theirs")
    async def unknown() -> str:
        return "theirs"

    foreign = stranger.task(name="shop.ours")(known.spec.function)
    left = [await unknown.submit(), await foreign.submit()]
    run = await known.submit()
    async with working(ours):
        assert await run.result(timeout=60) == "ours"
        assert [await other.state() for other in left] == ["waiting", "waiting"]


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_no_more_run_at_once_than_the_concurrency_allows(app, kind):
    lock = threading.Lock()
    now = most = 0

    def enter(change: int) -> None:
        nonlocal now, most
        with lock:
            now += change
            most = max(most, now)

    if kind == "async":

        @app.task(name="shop.work")
        async def work() -> None:
            enter(1)
            await asyncio.sleep(0.005)
            enter(-1)

    else:

        @app.task(name="shop.work")
        def work() -> None:
            enter(1)
            time.sleep(0.005)
            enter(-1)

    runs = await work.submit_many([() for _ in range(60)])
    async with working(app, concurrency=4):
        await asyncio.wait_for(asyncio.gather(*(run.result() for run in runs)), 60)

    assert most == 4


async def test_slow_handlers_get_nothing_claimed_ahead_of_a_free_slot(app, db):
    go, started = asyncio.Event(), 0

    @app.task
    async def slow() -> None:
        nonlocal started
        started += 1
        await go.wait()

    runs = await slow.submit_many([() for _ in range(10)])
    async with working(app, concurrency=2):
        await eventually(lambda: started == 2)
        client = await app.client()
        claims = client.database.meter.operations["claim_executions"]
        await eventually(lambda: claims.calls >= 1)
        # The rest is free for any other worker.
        assert await leased(db) == 2
        go.set()
        await asyncio.wait_for(asyncio.gather(*(run.result() for run in runs)), 60)


async def test_nothing_waits_for_a_slot_while_attempts_have_little_time(app, monkeypatch):
    """Their time begins with the claim: they would time out before their handlers start."""
    monkeypatch.setattr("flowfabric.worker.claims.SHORT_ATTEMPT", timedelta(hours=2))
    most = 0

    @app.task(name="shop.work", timeout=timedelta(hours=1))
    async def work() -> None:
        nonlocal most
        worker._runner.pace._per_second = 400.0  # whatever the load of the machine
        most = max(most, len(worker.claimed))

    runs = await work.submit_many([() for _ in range(60)])
    async with working(app, concurrency=3) as worker:
        await asyncio.wait_for(asyncio.gather(*(run.result() for run in runs)), 60)

    assert most <= 3


@pytest.mark.parametrize("how", ["suspends", "blocks the loop", "in threads"])
async def test_fast_handlers_get_work_claimed_ahead_until_they_turn_slow(app, db, how):
    go = threading.Event()
    slow = 0

    async def work(is_slow: bool) -> None:
        nonlocal slow
        slow += is_slow
        if is_slow and how == "suspends":
            await asyncio.to_thread(go.wait, 60)
        if is_slow and how == "blocks the loop" and slow < 3:
            time.sleep(0.3)  # noqa: ASYNC251 - a handler that blocks the loop is the subject

    def work_in_a_thread(is_slow: bool) -> None:
        nonlocal slow
        slow += is_slow
        if is_slow:
            go.wait(60)

    task = app.task(name="shop.work")(work_in_a_thread if how == "in threads" else work)
    warm_up = await task.submit_many([(False,) for _ in range(300)])
    async with working(app, concurrency=3) as worker:
        await asyncio.wait_for(asyncio.gather(*(run.result() for run in warm_up)), 60)
        await eventually(lambda: worker.is_idle)
        worker._runner.pace._per_second = 400.0  # whatever the load of the machine
        runs = await task.submit_many([(True,) for _ in range(20)])
        await eventually(lambda: _is_some(given_back(db)), what="some are given back")
        if how != "blocks the loop":
            await eventually(lambda: _is(leased(db), 3), what="only what runs is leased")
            assert slow == 3
        go.set()
        await asyncio.wait_for(asyncio.gather(*(run.result() for run in runs)), 60)

    assert slow == 20
    assert await db.fetchval("select max(crash_count) from ff.execution") == 0


async def given_back(db) -> int:
    query = "select count(*) from ff.event where detail->>'cause' = 'claimed_ahead'"
    count: int = await db.fetchval(query)
    return count


async def _is_some(coroutine) -> bool:
    return await coroutine > 0


async def _is(coroutine, expected) -> bool:
    return await coroutine == expected


async def test_lanes_take_turns_behind_an_old_backlog(app):
    order: list[str] = []

    @app.task(name="shop.work")
    async def work(lane: str) -> None:
        order.append(lane)

    await work.using(lane="old").submit_many([("old",) for _ in range(300)])
    run = await work.using(lane="new").submit("new")
    async with working(app, lanes=["old", "new"], concurrency=2):
        await run.result(timeout=60)

    # Between partitions, a worker takes turns by time.
    if partitions() == 1:
        assert order.index("new") <= 30


async def test_a_lane_that_only_submits_name_is_not_starved(app):
    order: list[str] = []

    @app.task(name="shop.a", lane="a")
    async def a(lane: str) -> None:
        order.append(lane)

    @app.task(name="shop.b", lane="b")
    async def b(lane: str) -> None:
        order.append(lane)

    run = await a.using(lane="c").submit("c")  # the oldest of all
    await a.submit_many([("a",) for _ in range(300)])
    await b.submit_many([("b",) for _ in range(300)])
    async with working(app, concurrency=2):
        await run.result(timeout=60)

    # Between partitions, a worker takes turns by time.
    if partitions() == 1:
        assert order.index("c") <= 30


async def test_priorities_go_first(app):
    order: list[int] = []

    @app.task(name="shop.work")
    async def work(priority: int) -> None:
        order.append(priority)

    for priority in (0, 5, 1, 9000, 5):
        await work.using(priority=priority).submit(priority)
    async with working(app, concurrency=1):
        await eventually(lambda: len(order) == 5)

    assert order == [9000, 5, 5, 1, 0]


async def test_an_idle_worker_hears_of_new_work_at_once_and_of_delayed_work_in_time(app):
    @app.task
    async def work() -> None: ...

    async with working(app) as worker:
        await eventually(lambda: worker.is_idle)
        for options in ({}, {"delay": timedelta(milliseconds=100)}):

            async def run(options=options) -> None:
                await (await work.using(**options).submit()).result(timeout=60)

            # Far less than the ten seconds after which an idle worker would look by itself.
            assert await is_ever_within(4, run)


async def test_an_idle_worker_asks_for_nothing(app):
    @app.task
    async def work() -> None: ...

    async with working(app) as worker:
        await eventually(lambda: worker.is_idle)
        client = await app.client()
        operations = client.database.meter.operations
        asked = [
            operations[name] for name in ("claim_executions", "find_work") if name in operations
        ]
        before = sum(one.calls for one in asked)
        await asyncio.sleep(1.0)  # how much is asked in a second is the subject
        calls = sum(one.calls for one in asked) - before
        print(f"an idle worker: {calls} claims in a second")
        assert calls <= 1


@pytest.mark.parametrize("when", ["idle", "claiming"])
async def test_what_was_locked_when_its_hint_came_is_claimed_soon(app, db, monkeypatch, when):
    """A claim skips a row that another transaction has locked, and no second hint comes."""
    monkeypatch.setattr(claims_module, "IDLE_POLL_SECONDS", 3600.0)

    @app.task
    async def work() -> str:
        return "done"

    run = await work.submit()
    executions = (await app.client()).executions
    claim = executions.claim
    side = await db.connect()
    transaction = side.transaction()
    await transaction.start()
    await side.execute("select from ff.execution for no key update")
    claims_left = 0

    async def claim_and_unlock(**options: Any) -> list[Claimed]:
        nonlocal claims_left
        claimed = await claim(**options)
        if claims_left:
            assert claimed == []
            if claims_left == 2:
                worker.wake()  # a hint while this claim is under way
            else:
                await transaction.rollback()
            claims_left -= 1
        return claimed

    monkeypatch.setattr(executions, "claim", claim_and_unlock)
    async with working(app) as worker:
        await eventually(lambda: worker.is_idle)
        claims_left = 1 if when == "idle" else 2
        await db.execute("select pg_notify('ff_ready', '0 default default')")
        assert await run.result(timeout=60) == "done"


async def test_two_workers_share_the_work_and_never_an_execution(make_app):
    seen: list[tuple[str, int]] = []
    apps = [make_app(), make_app()]
    for name, one in zip("ab", apps, strict=True):

        @one.task(name="shop.work")
        async def work(n: int, name: str = name) -> None:
            seen.append((name, n))
            await asyncio.sleep(0.002)

    runs = await apps[0].tasks["shop.work"].submit_many([(n,) for n in range(400)])
    async with working(apps[0], concurrency=5), working(apps[1], concurrency=5):
        await asyncio.wait_for(asyncio.gather(*(run.result() for run in runs)), 60)

    assert sorted(n for _, n in seen) == list(range(400))


async def test_a_worker_that_may_no_longer_claim_ends_with_the_reason_and_drains(make_app, db):
    app = make_app(drain_timeout=timedelta(seconds=60))
    go, started = asyncio.Event(), asyncio.Event()

    @app.task
    async def work() -> str:
        started.set()
        await go.wait()
        return "finished"

    run = await work.submit()
    worker = await app.worker(concurrency=5)
    task = asyncio.create_task(worker.run())
    await asyncio.wait_for(started.wait(), 60)
    await db.execute("alter function ff.claim_executions rename to gone")
    await db.execute("alter function ff.find_work rename to gone_too")
    worker.wake()
    await eventually(lambda: worker._stopping.is_set())
    go.set()

    with pytest.raises(SchemaMismatch, match="flowfabric db migrate"):
        await asyncio.wait_for(task, 60)
    assert await run.state() == "completed"
