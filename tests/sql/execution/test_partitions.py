"""Any partition works alike, and one that is not there is refused."""

from __future__ import annotations

from uuid import uuid4

import pytest

from flowfabric.client import FlowFabric
from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import Route, Submission
from flowfabric.core.ids import ExecutionId
from support.factories import Engine


@pytest.fixture
async def client(db):
    async with FlowFabric(db.url, namespace="test") as client:
        yield client


@pytest.mark.parametrize("number", [0, 255, 32_766])
async def test_a_high_partition_works_like_the_first(db, number):
    await db.execute("update ff.meta set value = $1 where name = 'partitions'", str(number + 1))
    engine = Engine(db.conn, partition_key=number)
    submitted = await engine.submit()
    assert (await engine.row(submitted.id))["partition_key"] == number
    async with FlowFabric(db.url, namespace="test") as client:
        (held,) = await client.executions.claim(
            worker_id="w", worker_instance_id="w-1", partition=number
        )
        assert held.id == ExecutionId.of(number, submitted.id)
        await client.executions.complete(held, b"1")
        assert await client.executions.result(held.id) == b"1"


async def test_a_partition_beyond_what_is_stored_is_refused_by_name(client):
    """It is read from the id as it is; the range is a matter of the call."""
    id = ExecutionId.parse(f"{{fp:40000}}:{uuid4()}")
    assert id.partition_key == 40000
    route = Route("test", "default", "tests.work")
    for call in (
        client.executions.submit(Submission(id=id, route=route, payload=b"")),
        client.executions.describe(id),
        client.executions.cancel(id),
    ):
        with pytest.raises(InvalidInput):
            await call


@pytest.mark.parametrize("partition", [255, -1])
async def test_a_partition_that_does_not_exist_is_refused(db, partition):
    """No worker and no reconciler would ever look there."""
    async with FlowFabric(db.url, namespace="test") as client:
        route = Route("test", "default", "tests.work")
        submission = Submission(id=ExecutionId.of(partition, uuid4()), route=route, payload=b"")
        with pytest.raises(InvalidInput):
            await client.executions.submit(submission)
