"""The way of an execution with eight partitions: submitted, claimed, completed, read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from flowfabric import App, Context, gather
from flowfabric.cli import top
from flowfabric.cli.demo.command import Scene, read_endings
from flowfabric.client import FlowFabric
from flowfabric.client import leases as leases_module
from flowfabric.client import partitions as partitions_module
from flowfabric.core.errors import ConnectionLost, InvalidInput, Unavailable
from flowfabric.core.execution import DEFAULT_NAMESPACE, Claimed, ExecutionFilter, Route, Submission
from flowfabric.core.ids import bare_uuid, key_partition, mint, mint_in
from flowfabric.core.lane import LaneTraffic
from flowfabric.drawing.text import Screen
from flowfabric.handlers import run_ends
from flowfabric.worker import rotation as rotation_module
from support.admission import Admission
from support.factories import NAMESPACE, Engine, Item
from worker.apps import working
from worker.waiting import eventually

from .conftest import NUMBER

LANE, TASK = "default", "tests.work"


def submission(partition: int | None = None, **facts: Any) -> Submission:
    id = mint() if partition is None else mint_in(partition)
    route = Route(NAMESPACE, LANE, TASK, frozenset())
    return Submission(id=id, route=route, payload=b"[]", **facts)


async def fail_calls(client, monkeypatch, *partitions: int) -> None:
    """Let every call in some partitions fail, as if their node were away."""
    call = client.database.call

    async def failing(statement, *, patience=10.0, **arguments):
        if arguments.get("partition_key") in partitions:
            raise ConnectionLost(f"no answer of {statement.name}")
        return await call(statement, patience=patience, **arguments)

    monkeypatch.setattr(client.database, "call", failing)


async def test_work_is_spread_and_all_of_it_is_done(app):
    @app.task
    async def work(n: int) -> int:
        return n

    many = await work.submit_many([(n,) for n in range(4000)])
    singles = await asyncio.gather(*(work.submit(n) for n in range(4000, 4010)))
    keyed = await work.submit_many(
        [(n,) for n in range(4010, 4040)], keys=[f"key {n}" for n in range(30)]
    )
    assert len({run.id.partition_key for run in many}) == NUMBER
    assert len({run.id.partition_key for run in keyed}) > 1
    async with working(app, concurrency=100):
        runs = [*many, *singles, *keyed]
        assert await asyncio.wait_for(asyncio.gather(*(run.result() for run in runs)), 60) == list(
            range(4040)
        )
    client = await app.client()
    assert (await client.executions.count(ExecutionFilter(states=["completed"]))).number == 4040


async def test_a_key_is_one_execution_whoever_submits_it(app):
    @app.task
    async def work(n: int) -> int:
        return n

    first = [await work.submit(n, key=f"k{n}") for n in range(20)]
    again = [await work.submit(n, key=f"k{n}") for n in range(20)]
    assert [run.id for run in again] == [run.id for run in first]
    assert all(run.is_duplicate for run in again)
    assert (await app.get_by_key("k7")).id == first[7].id
    assert len({run.id.partition_key for run in first}) > 1


@pytest.mark.usefixtures("look_of_each_form")
async def test_urgent_work_of_any_partition_comes_first(client):
    for partition in range(NUMBER):
        await client.executions.submit(submission(partition, priority=partition))
    who = {"worker_id": "w", "worker_instance_id": "w-1"}
    ranks = await client.executions.find_work(tasks=[TASK])
    assert ranks == {partition: 9000 - partition for partition in range(NUMBER)}
    claimed = await client.executions.claim(**who, limit=3)
    assert [one.partition_key for one in claimed] == [7, 6, 5]
    assert await client.executions.find_work(tasks=["tests.other"]) == {}
    assert await client.executions.find_work(lanes=["other"]) == {}
    assert set(await client.executions.find_work(finish_only=True)) == set()
    assert set(await client.executions.find_work()) == set(range(5))


async def test_a_repeated_claim_returns_what_it_leased_in_all_partitions(client):
    for partition in (1, 4, 6):
        await client.executions.submit(submission(partition))
    who = {"worker_id": "w", "worker_instance_id": "w-1"}
    first = await client.executions.claim(**who, limit=10)
    again = await client.executions.claim(**who, limit=10, claim_id=first[0].lease_id)
    assert {one.execution_id for one in again} == {one.execution_id for one in first}
    assert len(again) == 3


@pytest.mark.usefixtures("look_of_each_form")
async def test_the_look_over_the_partitions_finds_leases_that_ran_out(client, several, clock):
    await client.executions.submit(submission(5))
    engine = Engine(several.conn, partition_key=5)
    await engine.claim()
    assert await client.executions.find_work() == {}
    await clock.advance(minutes=1)
    assert (await client.leases.expire())[0] == 1
    await clock.advance(minutes=10)
    await client.executions.promote_delayed()
    assert set(await client.executions.find_work()) == {5}


async def test_submits_of_other_partitions_are_stored_when_one_refuses(client, monkeypatch):
    await client.lanes.register(Route(NAMESPACE, LANE, TASK, frozenset()))
    await fail_calls(client, monkeypatch, 3)
    several = [submission(partition) for partition in range(NUMBER)]
    answers = await client.executions.submit_each(several)
    assert [isinstance(one, Unavailable) for one in answers] == [n == 3 for n in range(NUMBER)]
    with pytest.raises(Unavailable):
        await client.executions.submit_many([submission(3), submission(4)])
    page = await client.executions.list()
    assert page.missing == (3,)
    assert sorted(one.id.partition_key for one in page.executions) == [0, 1, 2, 4, 4, 5, 6, 7]


def impatient_with(silent: int) -> Callable[..., Any]:
    """Return a `within_time` that waits long for every partition but one."""
    within_time = partitions_module.within_time

    def wait(partition: int, count: int, answer: Any, seconds: float | None = None) -> Any:
        return within_time(partition, count, answer, 0.1 if partition == silent else 60.0)

    return wait


@pytest.mark.parametrize("is_silent", [False, True])
async def test_lists_and_counts_name_the_partition_that_does_not_answer(
    client, monkeypatch, is_silent
):
    await client.executions.submit_many([submission(partition) for partition in range(NUMBER)])
    if is_silent:
        monkeypatch.setattr(partitions_module, "within_time", impatient_with(3))
        call = client.database.call

        async def hanging(statement, **arguments):
            if arguments.get("partition_key") == 3:
                await asyncio.Event().wait()
            return await call(statement, **arguments)

        monkeypatch.setattr(client.database, "call", hanging)
    else:
        await fail_calls(client, monkeypatch, 3)
    page = await client.executions.list()
    assert (page.missing, len(page.executions)) == ((3,), NUMBER - 1)
    ids = await client.executions.list_ids()
    assert (ids.missing, len(ids.ids)) == ((3,), NUMBER - 1)
    count = await client.executions.count()
    assert (count.number, count.missing, str(count)) == (NUMBER - 1, (3,), "7+")


async def test_pages_over_all_partitions_are_in_order_and_complete(client):
    made = [submission(n % NUMBER) for n in range(60)]
    await client.executions.submit_many(made)
    newest = sorted((one.id.uuid for one in made), reverse=True)
    found, cursor = [], None
    while True:
        page = await client.executions.list(cursor=cursor, limit=7)
        found += [one.id.uuid for one in page.executions]
        cursor = page.cursor
        if cursor is None:
            break
    assert found == newest
    ids, after = [], None
    while True:
        some = await client.executions.list_ids(after=after, limit=9)
        ids += [id.uuid for id in some.ids]
        after = some.cursor
        if after is None:
            break
    assert ids == newest[::-1]
    assert (await client.executions.count()).number == 60


async def test_the_depth_of_a_lane_counts_all_partitions(client, several):
    for partition in (0, 2, 7):
        engine = Engine(several.conn, partition_key=partition)
        admission = Admission(engine)
        await engine.submit_many([Item()] * (partition + 1))
        gate = await admission.quota(concurrency=NUMBER)
        limited = await engine.register(task="limited")
        await admission.submit(3, quotas=[gate], route=limited)
        # One of the three has the share of the partition; the others stand in line.
        await engine.claim(3, tasks=["limited"])
    found = await client.lanes.get(LANE)
    assert (found.waiting, found.in_line) == (1 + 3 + 8, 6)
    assert [(one.waiting, one.in_line) for one in await client.lanes.list()] == [(12, 6)]


async def test_flows_of_all_partitions_are_listed_in_order(client):
    made = [(await client.flows.create("demo")).id for _ in range(20)]
    assert len({id.partition_key for id in made}) > 1
    for newest in (True, False):
        found, after = [], None
        while True:
            page = await client.flows.list(after=after, limit=3, newest=newest)
            found += [flow.id for flow in page.flows]
            after = page.after
            if after is None:
                break
        assert found == sorted(made, key=lambda id: id.uuid, reverse=newest)


async def test_a_bare_uuid_finds_its_partition(client, monkeypatch):
    made = [submission(partition) for partition in range(NUMBER)]
    await client.executions.submit_many(made)
    for one in made:
        assert bare_uuid(str(one.id.uuid)) == one.id.uuid
        assert await client.executions.find(str(one.id.uuid)) == one.id
        assert await client.executions.find(one.id.uuid.hex[-12:]) == one.id
        assert (await client.executions.state(one.id.uuid)) == "waiting"
    await fail_calls(client, monkeypatch, 2)
    assert await client.executions.find(str(made[5].id.uuid)) == made[5].id
    with pytest.raises(Unavailable, match="no answer from 2"):
        await client.executions.find(str(made[2].id.uuid))


async def test_a_partition_that_fails_holds_up_only_itself_in_a_worker(app, monkeypatch, caplog):
    monkeypatch.setattr(rotation_module, "BLIND_SECONDS", (0.01,))

    @app.task
    async def work(n: int) -> int:
        return n

    client = await app.client()
    runs = await work.submit_many([(n,) for n in range(500)])
    more = await work.submit_many([(n,) for n in range(500, 1000)])
    dead, alive = runs[0].id.partition_key, more[0].id.partition_key
    assert dead != alive
    claim = client.executions.claim
    is_back = asyncio.Event()

    async def claiming(**options: Any) -> list[Claimed]:
        if options["partition"] == dead and not is_back.is_set():
            raise ConnectionLost("the node is away")
        return await claim(**options)

    monkeypatch.setattr(client.executions, "claim", claiming)
    async with working(app, concurrency=50):
        await asyncio.wait_for(asyncio.gather(*(run.result() for run in more)), 60)
        assert (await runs[0].state()) == "waiting"
        is_back.set()
        await asyncio.wait_for(asyncio.gather(*(run.result() for run in runs)), 60)


async def test_leases_of_other_partitions_are_renewed_when_one_hangs(
    client, several, clock, monkeypatch
):
    for partition in (2, 5):
        await client.executions.submit(submission(partition))
    held = await client.executions.claim(worker_id="w", worker_instance_id="w-1", limit=10)

    class Caller:
        async def call(self, statement, *, patience=0.0, **arguments):
            if arguments["partition_key"] == 2:
                await asyncio.sleep(3600)
            return await client.database.call(statement, patience=patience, **arguments)

    ttl = timedelta(seconds=30)
    await clock.advance(seconds=20)
    monkeypatch.setattr(leases_module, "within_time", impatient_with(2))
    lost, busy = await client.leases.renew(held, ttl, caller=Caller())
    assert lost == {}
    assert [one.partition_key for one in busy] == [2]
    rows = await several.fetch("select partition_key, lease_expires_at from ff.execution")
    ends = {row["partition_key"]: row["lease_expires_at"] for row in rows}
    assert ends[5] > ends[2]


async def test_reconcilers_call_only_partitions_with_something_due(client, several, clock):
    for partition in (1, 6):
        await client.executions.submit(submission(partition, delay=timedelta(seconds=10)))
    calls = client.database.meter.operations
    handled, due_in = await client.executions.promote_delayed()
    assert handled == 0
    assert timedelta(0) < due_in <= timedelta(seconds=10)
    assert "promote_delayed" not in calls
    await clock.advance(seconds=11)
    assert await client.executions.promote_delayed() == (2, None)
    assert calls["promote_delayed"].calls == 2


async def test_a_reconciler_goes_on_when_a_partition_fails(client, several, clock, monkeypatch):
    for partition in (1, 6):
        await client.executions.submit(submission(partition, delay=timedelta(seconds=10)))
    await clock.advance(seconds=11)
    await fail_calls(client, monkeypatch, 1)
    assert (await client.executions.promote_delayed())[0] == 1
    rest = client.database.partitions.rest
    assert not rest.is_over(1)
    assert rest.is_over(6)


async def test_children_live_with_their_parent_and_a_keyed_child_with_its_key(app):
    places: list[tuple[int, int, int]] = []

    @app.task
    async def child(n: int) -> int:
        return n

    @app.task
    async def parent(ctx: Context) -> int:
        plain = await ctx.submit(child, 1)
        keyed = await ctx.submit(child.using(key=f"of {ctx.execution_id.uuid}"), 2)
        places.append(
            (ctx.execution_id.partition_key, plain.id.partition_key, keyed.id.partition_key)
        )
        return await plain.result() + await keyed.result()

    runs = [await parent.submit() for _ in range(8)]
    async with working(app, concurrency=20):
        assert (
            await asyncio.wait_for(asyncio.gather(*(run.result() for run in runs)), 60) == [3] * 8
        )
    assert all(own == plain for own, plain, _ in places)
    assert any(own != keyed for own, _, keyed in places)


async def test_a_child_with_a_key_cannot_end_with_its_parent(app):
    @app.task
    async def child() -> None: ...

    @app.task
    async def parent(ctx: Context) -> str:
        with pytest.raises(InvalidInput) as caught:
            await ctx.submit(child.using(key="k", with_parent=True))
        return str(caught.value.field)

    run = await parent.submit()
    async with working(app):
        assert await run.result(timeout=60) == "with_parent"


async def test_traffic_and_workers_are_of_all_partitions(app):
    go = asyncio.Event()

    @app.task
    async def work() -> None:
        await go.wait()

    client = await app.client()
    await client.executions.submit_many(
        [
            Submission(
                id=mint_in(n % NUMBER), route=work._route("default", "default"), payload=b"{}"
            )
            for n in range(40)
        ]
    )
    (lane,) = await client.lanes.traffic()
    assert (lane.waiting, lane.submitted) == (40, 40)
    async with working(app, concurrency=12):
        lanes = await reached(client, 12)
        assert (lanes[0].active, sum(lanes[0].running)) == (12, 12)
        go.set()


async def reached(client, active: int) -> Sequence[LaneTraffic]:
    """The traffic when so many run."""
    while True:
        lanes = await client.lanes.traffic()
        if lanes[0].active >= active:
            return lanes
        await asyncio.sleep(0.02)


async def test_an_app_opened_before_the_number_was_raised_works_in_all_partitions(db):
    async with App(database_url=db.url) as app:

        @app.task
        async def work(n: int) -> int:
            return n

        client = await app.client()
        async with working(app, concurrency=20):
            await client.partitions.raise_to(max(4, client.database.partitions.numbers.partitions))
            await client.executions.submit_many(
                [
                    Submission(
                        id=mint_in(n), route=work._route("default", "default"), payload=b'{"n":1}'
                    )
                    for n in range(4)
                ]
            )
            for one in (await client.executions.list()).executions:
                await asyncio.wait_for(client.results.wait(one.id), 60)


async def test_a_handler_gives_its_slot_back_while_it_waits_for_runs_of_other_partitions(
    app, monkeypatch
):
    """The worker has one slot, so the others run only while the handler is away from it."""
    monkeypatch.setattr(run_ends, "MOMENT_SECONDS", 0.05)
    monkeypatch.setattr(run_ends, "_FIRST_POLL", timedelta(milliseconds=50))

    @app.task
    async def child(n: int) -> int:
        return n

    @app.task
    async def parent(ctx: Context) -> list[Any]:
        away = [await ctx.submit(child.using(key=f"k{n}"), n) for n in range(NUMBER)]
        assert len({run.id.partition_key for run in away}) > 1
        here = await ctx.submit(child, 100)
        one = await away[0].result()
        return [one, await gather([*away, here]), await here.result()]

    run = await parent.submit()
    async with working(app, concurrency=1):
        assert await run.result(timeout=120) == [0, [*range(NUMBER), 100], 100]
    kinds = [event.kind for event in await (await app.client()).executions.events(run.id)]
    assert kinds.count("claimed") == 1
    assert kinds.count("resumed") > 0


async def test_the_wait_for_a_run_of_another_partition_goes_with_signals_and_sleeps(
    app, monkeypatch
):
    monkeypatch.setattr(run_ends, "MOMENT_SECONDS", 0.05)
    monkeypatch.setattr(run_ends, "_FIRST_POLL", timedelta(milliseconds=50))
    keys = {key_partition(DEFAULT_NAMESPACE, f"k{n}", NUMBER): f"k{n}" for n in range(99)}

    @app.task
    async def child(n: int) -> int:
        return n

    @app.task
    async def parent(ctx: Context) -> list[Any]:
        key = keys[(ctx.execution_id.partition_key + 1) % NUMBER]
        run = await ctx.submit(child.using(key=key, delay=timedelta(milliseconds=500)), 7)
        found = await asyncio.gather(
            run.result(), ctx.sleep(timedelta(milliseconds=200)), ctx.wait_for_signal("go", int)
        )
        return [found[0], found[2]]

    run = await parent.submit()
    await run.signal("go", 3)
    async with working(app, concurrency=1):
        assert await run.result(timeout=120) == [7, 3]


async def test_top_and_lists_of_waiting_executions_name_the_partition_that_does_not_answer(
    app, monkeypatch
):
    @app.task
    async def ask(ctx: Context) -> bool:
        return bool((await ctx.approval("Go on?", approvers=["ann"])).is_approved)

    runs = [await ask.submit(key=f"k{n}") for n in range(3 * NUMBER)]
    places = {run.id.partition_key for run in runs}
    assert len(places) > 1
    client = await app.client()
    async with working(app, concurrency=50):
        await eventually(lambda: _are_suspended(client, len(runs)))
    silent = min(places)
    left = sum(run.id.partition_key != silent for run in runs)
    assert (await client.lanes.traffic()).missing == ()
    await fail_calls(client, monkeypatch, silent)
    for found in (
        await client.signals.suspended(limit=100),
        await client.approvals.list(limit=100),
    ):
        assert (found.missing, len(found)) == ((silent,), left)
    assert (await client.lanes.traffic()).missing == (silent,)
    snapshot = await top._read(client)
    assert top._facts(snapshot)["missing"] == [silent]
    lines = top._lines(snapshot, client, Screen())
    assert f"not everything is shown: no answer from partition {silent}" in lines[1]


async def test_the_demo_reads_the_ends_of_all_partitions(app):
    @app.task
    async def work(n: int) -> int:
        return n

    scene = Scene(runs=[await work.submit(n, key=f"k{n}") for n in range(NUMBER)])
    assert len({run.id.partition_key for run in scene.runs}) > 1
    async with working(app):
        await asyncio.gather(*(run.result() for run in scene.runs))
    await read_endings(scene, await app.client())
    assert scene.endings.keys() == {run.id.uuid for run in scene.runs}


async def _are_suspended(client: FlowFabric, number: int) -> bool:
    return len(await client.signals.suspended(limit=100)) == number
