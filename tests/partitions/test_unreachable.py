"""A partition that cannot be reached holds up only itself, whether its calls fail or hang."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from flowfabric.client import executions as executions_module
from flowfabric.client import partitions as partitions_module
from flowfabric.client import workers as workers_module
from flowfabric.core.errors import ConnectionLost, Unavailable
from flowfabric.core.ids import uuid7
from flowfabric.db.partitions import KnownPartitions, Numbers
from flowfabric.worker import rotation as rotation_module
from flowfabric.worker.rotation import PartitionRotation

from .conftest import NUMBER
from .test_work import impatient_with, submission

WHO = {"worker_id": "w", "worker_instance_id": "w-1"}
# ff.find_work and the like ask all partitions, so they fail when one is away.
LOOKS = {"find_work", "find_claim", "find_due"}


class Node:
    """The node of one partition. While it is away, its calls fail, or hang."""

    def __init__(self, client, partition: int, hangs: bool) -> None:
        self.partition, self.hangs = partition, hangs
        self.is_away = False
        self.asked: list[int] = []
        self._call = client.database.call

    async def call(self, statement: Any, *, patience: float = 10.0, **arguments: Any) -> Any:
        partition = arguments.get("partition_key")
        if statement.name == "claim_executions":
            self.asked.append(partition)
        if self.is_away and (partition == self.partition or statement.name in LOOKS):
            if self.hangs:
                await asyncio.Event().wait()
            raise ConnectionLost(f"no answer of {statement.name}")
        return await self._call(statement, patience=patience, **arguments)


@pytest.fixture(params=["fails", "hangs"])
def node(request, client, monkeypatch) -> Node:
    """The node of partition 3. Only its answers are awaited for a short time."""
    node = Node(client, 3, request.param == "hangs")
    monkeypatch.setattr(client.database, "call", node.call)
    monkeypatch.setattr(partitions_module, "LOOK_SECONDS", 0.1 if node.hangs else 60.0)
    wait = impatient_with(3)
    for module in (executions_module, partitions_module, workers_module):
        monkeypatch.setattr(module, "within_time", wait)
    return node


async def test_a_claim_returns_the_executions_of_the_other_partitions(client, node):
    await client.executions.submit_many([submission(partition) for partition in range(NUMBER)])
    node.is_away = True
    claimed = await client.executions.claim(**WHO, limit=100)
    assert sorted(one.partition_key for one in claimed) == [0, 1, 2, 4, 5, 6, 7]
    # The next claim does not wait for the partition again, nor for the query over all partitions.
    node.asked.clear()
    assert await client.executions.claim(**WHO, limit=100) == []
    assert sorted(node.asked) == [0, 1, 2, 4, 5, 6, 7]


async def test_a_claim_that_reaches_no_work_says_so(client, node):
    await client.executions.submit(submission(3))
    node.is_away = True
    with pytest.raises(Unavailable):
        await client.executions.claim(**WHO)


async def test_a_partition_that_is_back_is_claimed_from_again(client, node, monkeypatch):
    await client.executions.submit(submission(3))
    node.is_away = True
    with pytest.raises(Unavailable):
        await client.executions.claim(**WHO)
    node.is_away = False
    monkeypatch.setattr(client.executions._unreached, "_failed", {})  # the pause is over
    assert [one.partition_key for one in await client.executions.claim(**WHO)] == [3]


async def test_a_repeated_claim_returns_its_leases_before_more_urgent_work(client):
    await client.executions.submit(submission(5))
    claim_id = uuid7()
    (first,) = await client.executions.claim(**WHO, claim_id=claim_id)
    for partition in (0, 2, 7):
        await client.executions.submit(submission(partition, priority=9))
    (again,) = await client.executions.claim(**WHO, claim_id=claim_id)
    assert again.execution_id == first.execution_id


async def test_a_claim_with_its_own_id_begins_with_the_most_urgent_work(client):
    for partition in range(NUMBER):
        await client.executions.submit(submission(partition, priority=partition))
    claimed = await client.executions.claim(**WHO, limit=3, claim_id=uuid7())
    assert [one.partition_key for one in claimed] == [7, 6, 5]


async def test_a_query_over_all_partitions_that_hangs_is_given_up_and_asked_less_often(monkeypatch):
    now, looks = 1000.0, 0

    async def read() -> Numbers:
        return Numbers(4, 4, 4)

    async def hang() -> dict[int, int]:
        nonlocal looks
        looks += 1
        await asyncio.Event().wait()
        raise AssertionError

    partitions = KnownPartitions(read)
    partitions.note(await read())
    monkeypatch.setattr(partitions_module, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(rotation_module, "monotonic", lambda: now)
    rotation = PartitionRotation(partitions, hang)
    asked = set()
    times = []
    for _ in range(200):
        before = looks
        turn = await rotation.next()
        assert turn is not None
        asked.add(turn.partition)
        if looks > before:
            times.append(now)
        now += 0.2
    assert asked == {0, 1, 2, 3}
    pauses = [round(b - a) for a, b in pairwise(times)]
    assert pauses == sorted(pauses)
    assert pauses[0] == 1
    assert pauses[-1] >= 10


async def test_a_list_of_expired_leases_names_the_missing_partition(client, node, clock):
    await client.executions.submit_many([submission(partition) for partition in range(NUMBER)])
    await client.executions.claim(**WHO, limit=100)
    await clock.advance(seconds=60)
    node.is_away = True
    found = await client.executions.expired_leases()
    assert (found.missing, len(found)) == ((3,), NUMBER - 1)


async def test_old_executions_of_the_other_partitions_are_trimmed(client, node, clock):
    await client.executions.submit_many([submission(partition) for partition in range(NUMBER)])
    for one in await client.executions.claim(**WHO, limit=100):
        await client.executions.complete(one)
    await clock.advance(seconds=60)
    node.is_away, node.hangs = True, False
    handled, _ = await client.retention.trim(retention=timedelta(seconds=1))
    assert handled == NUMBER - 1


async def test_unserved_routes_of_the_other_partitions_are_found(client, node):
    node.is_away = True
    assert await client.workers.unserved(["w-1"]) == {}
    assert not client.workers._unreached.is_over(3)
    assert client.workers._unreached.is_over(4)


async def test_a_transactional_submit_does_not_need_partition_0(app, db, monkeypatch):
    @app.task
    async def work(n: int) -> int:
        return n

    client = await app.client()
    node = Node(client, 0, False)
    node.is_away = True
    monkeypatch.setattr(client.database, "call", node.call)
    async with db.conn.transaction():
        run = await work.using(via=db.conn).submit(1, key="not in partition 0")
    assert run.id.partition_key != 0
    assert await run.state() == "waiting"
