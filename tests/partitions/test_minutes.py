"""Counts by minute with eight partitions: every event once, and sums over all of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

from flowfabric.client import FlowFabric
from flowfabric.core.ids import mint_in
from flowfabric.core.minute import together
from flowfabric.core.states import EventKind
from flowfabric.reconcilers.loop import run_reconcilers
from flowfabric.reconcilers.table import RECONCILERS
from support.factories import NAMESPACE, Engine
from support.proofs import drawn
from worker.waiting import eventually

from .conftest import NUMBER

DAY = timedelta(days=1)
ROLL_UP = [one for one in RECONCILERS if one.name == "event_roll_up"]


def engines(connection) -> list[Engine]:
    return [Engine(connection, namespace=NAMESPACE, partition_key=one) for one in range(NUMBER)]


async def run_one(engine: Engine) -> None:
    await engine.submit(id=mint_in(engine.partition_key).uuid)
    for held in await engine.claim():
        await engine.complete(held)


async def count(client: FlowFabric) -> int:
    total = 0
    while True:
        handled, due_in = await client.minutes.roll_up()
        total += handled
        if not handled and (due_in is None or due_in > timedelta(0)):
            return total


async def kinds(client: FlowFabric) -> Counter[str]:
    found = await client.minutes.read(DAY)
    return Counter({one.kind: one.event_count for one in found})


async def test_events_of_all_partitions_are_counted_once_and_read_as_one(client, several):
    connection = await several.connect()
    for turn, engine in enumerate(engines(connection)):
        for _ in range(turn + 1):
            await run_one(engine)
    assert await count(client) == 3 * 36
    found = await client.minutes.read(DAY)
    assert {one.kind: one.event_count for one in found} == dict.fromkeys(
        (EventKind.SUBMITTED, EventKind.CLAIMED, EventKind.COMPLETED), 36
    )
    assert sum(together([one for one in found if one.kind == "completed"]).counts) == 36


async def test_a_partition_with_an_unfinished_transaction_is_counted_further(client, several):
    """The position names the open transaction, and new events of the partition are still due."""
    connection, other = await several.connect(), await several.connect()
    everywhere, late = engines(connection), engines(other)
    # An open transaction must not hold the registration of the route.
    for engine in everywhere:
        await engine.register()
    transaction = other.transaction()
    await transaction.start()
    for engine in late:
        await engine.submit(id=mint_in(engine.partition_key).uuid)
    for engine in everywhere:
        await engine.submit(id=mint_in(engine.partition_key).uuid)
    assert await count(client) == NUMBER
    for engine in everywhere:
        await engine.submit(id=mint_in(engine.partition_key).uuid)
    assert await count(client) == NUMBER
    await transaction.commit()
    assert await count(client) == NUMBER
    assert await kinds(client) == {"submitted": 3 * NUMBER}


async def test_reconcilers_of_three_processes_catch_up_while_work_goes_on(several):
    """Each event is counted once, and the counts reach the log although nobody waits for them."""
    chance = drawn("work in eight partitions")
    connection = await several.connect()
    everywhere = engines(connection)
    async with (
        FlowFabric(several.url, namespace=None) as one,
        FlowFabric(several.url, namespace=None) as two,
        FlowFabric(several.url, namespace=None) as three,
    ):
        running = [
            asyncio.create_task(run_reconcilers(client, ROLL_UP)) for client in (one, two, three)
        ]
        for _ in range(40):
            await run_one(chance.choice(everywhere))

        async def is_done() -> bool:
            return await kinds(one) == dict.fromkeys(("submitted", "claimed", "completed"), 40)

        await eventually(is_done, what="all events are counted")
        for task in running:
            assert not task.done()
            task.cancel()
        await asyncio.wait(running)
    rows = await several.fetch(
        "select kind::text, count(*)::integer from ff.event group by 1 order by 1"
    )
    assert {row[0]: row[1] for row in rows} == dict.fromkeys(
        ("submitted", "claimed", "completed"), 40
    )
