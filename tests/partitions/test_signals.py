"""Suspended executions with eight partitions: reached, listed, counted, and woken in time."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from flowfabric import Context
from flowfabric.client.events import SIGNAL_CHANNEL
from flowfabric.core.errors import InvalidInput, Unavailable
from flowfabric.core.signal import Signal, Wait
from flowfabric.worker.hints import Hints
from worker.apps import working
from worker.waiting import eventually

from .conftest import NUMBER
from .test_work import fail_calls, submission

HOUR = timedelta(hours=1)


async def suspend_in(client, partition: int, timeout: timedelta | None = HOUR):
    """Submit an execution to a partition, and suspend it with a wait and a waitpoint."""
    await client.executions.submit(submission(partition))
    (held,) = await client.executions.claim(worker_id="w", worker_instance_id="w-1")
    assert held.partition_key == partition
    wait = Wait(
        name="approve",
        occurrence=0,
        position=0,
        is_sequential=True,
        condition={"signal": "approve"},
        timeout=timeout,
    )
    await client.signals.ask(held, wait)
    assert await client.signals.suspend(held, waits=[("approve", 0)])
    return held


async def test_signals_and_tokens_reach_executions_of_all_partitions(app):
    tokens: dict[int, str] = {}

    @app.task
    async def work(ctx: Context, n: int) -> list[int]:
        waitpoint = await ctx.waitpoint("payment")
        tokens[n] = waitpoint.token
        approved = await ctx.wait_for_signal("approve", int)
        return [approved, await waitpoint.wait(int)]

    numbers = range(4 * NUMBER)
    runs = await work.submit_many([(n,) for n in numbers], keys=[f"key {n}" for n in numbers])
    assert len({run.id.partition_key for run in runs}) > 1
    async with working(app, concurrency=8):
        await eventually(lambda: len(tokens) == len(runs))
        for n, run in enumerate(runs):
            await run.signal("approve", n)
            await app.signal(tokens[n], 100 + n)
        results = await asyncio.wait_for(asyncio.gather(*(run.result() for run in runs)), 60)
    assert results == [[n, 100 + n] for n in range(len(runs))]


async def test_timeouts_of_all_partitions_are_applied_and_only_there(client, several, clock):
    for partition in (1, 6):
        await suspend_in(client, partition)
    calls = client.database.meter.operations
    handled, due_in = await client.signals.expire_suspensions()
    assert handled == 0
    assert timedelta(0) < due_in <= HOUR
    assert "expire_suspensions" not in calls
    await clock.advance(HOUR)
    assert await client.signals.expire_suspensions() == (2, None)
    assert calls["expire_suspensions"].calls == 2
    assert set(await client.executions.find_work()) == {1, 6}


async def test_a_signal_that_was_only_stored_is_noticed_in_its_partition(client, several):
    held = await suspend_in(client, 5)
    async with several.conn.transaction():
        await several.conn.execute(
            "select from ff.execution where execution_id = $1 for update", held.id.uuid
        )
        delivered = await client.signals.deliver(held.id, Signal(name="approve"))
        assert delivered.effect == "stored"

    async def is_woken() -> bool:
        await client.signals.notice()
        return set(await client.executions.find_work()) == {5}

    await eventually(is_woken)


async def test_a_hint_of_a_signal_is_heard_from_every_partition_there_can_be(client, several):
    heard: list[int | None] = []
    session = client.database.session("claims")
    await Hints(session, heard.append).listen()
    hints = [
        "0",
        "9999",
        "10000",
        "32767",
        "32768",
        "99999",
        "010000",
        "-1",
        "\u0661",
        "",
        "x",
        "1",
    ]
    for payload in hints:
        await several.execute("select pg_notify($1, $2)", SIGNAL_CHANNEL, payload)
    await eventually(lambda: 1 in heard)
    await session.close()
    assert [one for one in heard if one is not None] == [0, 9999, 10000, 32767, 1]


async def test_suspensions_of_all_partitions_are_listed_in_order(client, clock):
    held = []
    for partition in (6, 1, 3):
        held.append(await suspend_in(client, partition))
        await clock.advance(seconds=1)
    first = await client.signals.suspended(limit=2)
    rest = await client.signals.suspended(after=first[-1], limit=2)
    assert [one.id for one in (*first, *rest)] == [one.id for one in held]


async def test_open_waitpoints_of_all_partitions_are_counted_and_expire(client, clock):
    for partition in (2, 7):
        await client.executions.submit(submission(partition))
        (held,) = await client.executions.claim(worker_id="w", worker_instance_id="w-1")
        await client.signals.create_waitpoint(
            held, submission().id.uuid, "payment", expires_in=timedelta(seconds=5)
        )
    assert await client.signals.count_waitpoints() == {"k1": 2}
    await clock.advance(seconds=5)
    assert await client.signals.expire_waitpoints() == (2, None)
    assert await client.signals.count_waitpoints() == {}


async def test_the_feed_of_signals_has_those_of_all_partitions(client, monkeypatch):
    held = [await suspend_in(client, partition) for partition in (1, 4, 6)]
    _, now = await client.signals.feed("now")
    for one in held[:2]:
        await client.signals.deliver(one.id, Signal(name="approve"))
    first, cursor = await client.signals.feed()
    assert {one.execution_id for one in first} == {one.id for one in held[:2]}
    later, _ = await client.signals.feed(now)
    assert later == first
    await client.signals.deliver(held[2].id, Signal(name="approve"))
    with monkeypatch.context() as patch:
        await fail_calls(client, patch, 6)
        nothing, same = await client.signals.feed(cursor)
        assert (nothing, nothing.missing) == ([], (6,))
        with pytest.raises(Unavailable):
            await client.signals.feed("now")
    (last,), cursor = await client.signals.feed(same)
    assert last.execution_id == held[2].id
    assert (await client.signals.feed(cursor))[0] == []


@pytest.mark.parametrize(
    "cursor", ["", "0.3:3:", "0=0.3:3:/0=0.3:3:", "8=0.3:3:", "x=0.3:3:", "0=x", 7]
)
async def test_a_cursor_that_is_not_of_the_feed_is_refused(client, cursor):
    with pytest.raises(InvalidInput, match="cursor"):
        await client.signals.feed(cursor)
