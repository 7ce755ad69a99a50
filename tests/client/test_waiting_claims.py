"""A claim may wait for work, and lanes are listed in pages."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from time import monotonic
from uuid import uuid4

import pytest

from flowfabric.client import FlowFabric
from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import Route, Submission
from flowfabric.core.ids import mint
from flowfabric.db import functions
from support.answers import Answers

WORKER = {"worker_id": "w", "worker_instance_id": "w-1"}
ROUTE = Route("default", "default", "tests.work")


@pytest.fixture
async def client(db):
    async with FlowFabric(db.url) as client:
        yield client


def submission(**options):
    return Submission(id=mint(), route=ROUTE, payload=b"null", **options)


async def test_a_claim_waits_for_work_that_comes(client, monkeypatch):
    await client.executions.submit(submission())
    await client.executions.claim(**WORKER)
    answers = Answers(monkeypatch)
    waiting = asyncio.create_task(client.executions.claim(**WORKER, max_wait=timedelta(minutes=5)))
    await answers.until(functions.CLAIM_EXECUTIONS, 2, waiting)
    assert not waiting.done()
    await client.executions.submit(submission())
    # far less than it would wait in vain
    assert len(await asyncio.wait_for(waiting, 60)) == 1


async def test_a_claim_that_waits_in_vain_ends_in_time(client):
    await client.lanes.register(ROUTE)
    started = monotonic()
    claim = client.executions.claim(**WORKER, max_wait=timedelta(milliseconds=300))
    assert await claim == []
    assert 0.25 < monotonic() - started < 60


async def test_what_is_there_is_claimed_without_waiting(client):
    await client.executions.submit(submission())
    started = monotonic()
    claimed = await client.executions.claim(**WORKER, max_wait=timedelta(minutes=5))
    assert len(claimed) == 1
    assert monotonic() - started < 60


CLAIM = (
    "select execution_ids from ff.claim_executions(p_partition_key => 0::smallint, "
    "p_namespace => 'default', p_worker_id => 'w', p_worker_instance_id => $1, "
    "p_claim_id => $2, p_lanes => null, p_tasks => null, p_capabilities => '{}', p_limit => 1, "
    "p_lease_ttl => '30 s', p_gives_way => $3)"
)


async def test_a_claim_gives_way_to_another_claim_and_at_last_claims_beside_it(client, db):
    first, second = submission(), submission()
    await client.executions.submit(first)
    await client.executions.submit(second)
    other = await db.connect()
    async with other.transaction():
        assert await other.fetchval(CLAIM, "w-2", uuid4(), True) == [first.id.uuid]
        assert await db.fetchval(CLAIM, "w-3", uuid4(), True) == []
        (beside,) = await client.executions.claim(**WORKER, gives_way=2)
    assert beside.id == second.id
    # Nothing is left: that is not the answer of a claim that gives way.
    assert await db.fetch(CLAIM, "w-3", uuid4(), True) == []
    assert await client.executions.claim(**WORKER, gives_way=2) == []


@pytest.mark.parametrize("wait", [timedelta(seconds=-1), 5, "long"])
async def test_a_wait_that_makes_no_sense_is_refused(client, wait):
    with pytest.raises(InvalidInput, match="max_wait"):
        await client.executions.claim(**WORKER, max_wait=wait)


async def test_lanes_come_in_pages(client):
    names = ["a", "b", "C", "d", "e"]
    for name in names:
        await client.lanes.register(Route("default", name, "tests.work"))
    first = await client.lanes.list(limit=2)
    rest = await client.lanes.list(after=first[-1].lane, limit=10)
    assert [one.lane for one in [*first, *rest]] == sorted(names)
    assert await client.lanes.list(limit=0) == []
    assert await client.lanes.list(after="zzz") == []
    with pytest.raises(InvalidInput, match="limit"):
        await client.lanes.list(limit=-1)
