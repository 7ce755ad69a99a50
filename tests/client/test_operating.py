"""Lanes, workers and retention through the client."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest

from flowfabric.client import FlowFabric
from flowfabric.core.errors import InvalidInput, LaneClosed, LaneNotFound
from flowfabric.core.execution import Route, Submission
from flowfabric.core.ids import mint
from flowfabric.core.worker import Asked
from support.factories import Item

HOUR = timedelta(hours=1)
ROUTE = Route("default", "mail", "mail.send")


@pytest.fixture
async def client(db):
    async with FlowFabric(db.url) as client:
        yield client


def submission() -> Submission:
    return Submission(id=mint(), route=ROUTE, payload=b"null")


async def claim(client: FlowFabric) -> int:
    return len(await client.executions.claim(worker_id="w", worker_instance_id="w-1", limit=10))


async def test_a_lane_is_paused_resumed_drained_and_disabled(client, clock):
    await client.executions.submit(submission())
    paused = await client.lanes.pause("mail", reason="flood", actor="ann")
    assert (paused.state, paused.reason, paused.changed_by) == ("paused", "flood", "ann")
    assert paused.waiting == 1
    assert await claim(client) == 0
    await client.executions.submit(submission())
    assert (await client.lanes.resume("mail")).state == "active"
    assert await claim(client) == 2
    assert (await client.lanes.drain("mail")).state == "draining"
    with pytest.raises(LaneClosed):
        await client.executions.submit(submission())
    assert (await client.lanes.disable("mail")).state == "disabled"
    with pytest.raises(LaneClosed):
        await client.executions.submit(submission())
    assert [lane.state for lane in await client.lanes.list()] == ["disabled"]


async def test_a_pause_has_an_end(client, clock):
    await client.executions.submit(submission())
    until = await clock.now() + HOUR
    assert (await client.lanes.pause("mail", until=until)).resumes_at == until
    assert await claim(client) == 0
    await clock.advance(HOUR)
    assert await claim(client) == 1
    with pytest.raises(InvalidInput, match="resumes_at"):
        await client.lanes.pause("mail", until=until - HOUR)


async def test_the_retention_of_a_lane_is_set_and_cleared(client, clock):
    await client.executions.submit(submission())
    assert (await client.lanes.set_retention("mail", HOUR)).retention == HOUR
    assert (await client.lanes.get("mail")).retention == HOUR
    (claimed,) = await client.executions.claim(worker_id="w", worker_instance_id="w-1")
    await client.executions.complete(claimed)
    await clock.advance(HOUR)
    assert (await client.retention.trim_executions())[0] == 1
    assert await client.executions.describe(claimed.id) is None
    await clock.advance(days=1)
    assert await client.retention.trim_events() == (1, None)
    assert await client.retention.trim_keys() == (0, None)
    assert (await client.lanes.set_retention("mail", None)).retention is None


async def test_what_ended_is_trimmed_by_namespace_lane_and_tags(client):
    ended = []
    for tags in ({"team.name": "a"}, {"team.name": "b"}, {}):
        one = replace(submission(), tags=tags)
        await client.executions.submit(one)
        await client.executions.cancel(one.id)
        ended.append(one.id)
    trim = partial(client.retention.trim, retention=timedelta(0))
    assert await trim(namespace="other") == (0, None)
    assert await trim(lane="other") == (0, None)
    assert await trim(tags={"team.name": "b"}) == (1, None)
    assert [id for id in ended if await client.executions.describe(id)] == [ended[0], ended[2]]
    assert await trim(lane="mail", limit=1) == (1, timedelta(0))
    assert await trim(lane="mail", limit=1) == (1, timedelta(0))
    assert await trim(lane="mail", limit=1) == (0, None)
    for field, value in (("lane", []), ("lane", ""), ("tags", {"bad": "key"}), ("namespace", "")):
        with pytest.raises(InvalidInput) as refusal:
            await trim(**{field: value})
        assert refusal.value.field == field


@pytest.mark.parametrize("operation", ["get", "pause", "resume", "drain", "disable"])
async def test_a_lane_nobody_knows_is_not_found(client, operation):
    with pytest.raises(LaneNotFound, match="nowhere"):
        await getattr(client.lanes, operation)("nowhere")
    with pytest.raises(InvalidInput, match="lane"):
        await getattr(client.lanes, operation)("")


async def test_workers_are_registered_listed_and_signed_off(client):
    await client.workers.register(worker_id="w", worker_instance_id="w-1", tasks=["a"])
    answer = await client.workers.register(worker_id="w", worker_instance_id="w-1", lanes=["mail"])
    assert answer == "refreshed"
    (info,) = await client.workers.list()
    assert (info.namespace, info.lanes, info.tasks) == ("default", ["mail"], None)
    assert await client.workers.heartbeat(["w-1", "w-2"]) == Asked(["w-2"], [])
    assert await client.workers.heartbeat([]) == Asked([], [])
    assert (await client.workers.sweep())[0] == 0
    assert await client.workers.mark_dead("w-1", "gone") is True
    assert await client.workers.mark_dead("w-1", "gone") is False


async def test_marking_a_worker_dead_may_end_its_leases_at_once(client):
    await client.executions.submit(submission())
    (claimed,) = await client.executions.claim(worker_id="w", worker_instance_id="w-1")
    await client.workers.mark_dead("w-1", "gone")
    assert await claim(client) == 0
    await client.workers.mark_dead("w-1", "gone", expire_leases=True)
    (again,) = await client.executions.claim(worker_id="w", worker_instance_id="w-2")
    assert (again.id, again.claim_kind) == (claimed.id, "reclaimed")


async def test_a_client_of_one_namespace_sees_its_own_workers_only(db, client):
    async with FlowFabric(db.url, namespace="other") as other:
        await other.workers.register(worker_id="w", worker_instance_id="w-1")
    async with FlowFabric(db.url, namespace=None) as operator:
        await operator.workers.register(worker_id="w", worker_instance_id="w-2")
        found = await operator.workers.list(limit=1)
        found += await operator.workers.list(after=found[-1])
        assert [info.namespace for info in found] == ["", "other"]
        assert await operator.workers.mark_dead("w-1", "gone") is False
        assert await operator.workers.mark_dead("w-1", "gone", namespace="other") is True
    assert await client.workers.list() == []
    with pytest.raises(InvalidInput, match="namespace"):
        await client.workers.list(namespace="other")
    with pytest.raises(InvalidInput, match="namespace"):
        await client.workers.mark_dead("w-1", "gone", namespace="other")


@pytest.mark.parametrize("name", ["", "a b", "x" * 300])
async def test_a_worker_with_a_bad_name_is_refused(client, name):
    with pytest.raises(InvalidInput, match="worker_instance_id"):
        await client.workers.register(worker_id="w", worker_instance_id=name)


async def test_the_leases_of_a_dead_worker_end_in_its_namespace_only(db):
    """Two tenants whose workers happen to have the same name."""
    held = {}
    for tenant in ("a", "b"):
        async with FlowFabric(db.url, namespace=tenant) as client:
            route = Route(tenant, "mail", "mail.send")
            await client.executions.submit(Submission(id=mint(), route=route, payload=b""))
            (held[tenant],) = await client.executions.claim(
                worker_id="w", worker_instance_id="same", lease_ttl=HOUR
            )
    async with FlowFabric(db.url, namespace=None) as operator:
        await operator.workers.mark_dead("same", "gone", namespace="a", expire_leases=True)
        states = {
            tenant: (await operator.executions.describe(one.id)).ownership
            for tenant, one in held.items()
        }
    assert states == {"a": "lease_expired_reclaimable", "b": "leased"}


async def test_a_lease_behind_many_timers_is_found(db, engine):
    """The timers before it are many; the worker is dead all the same."""
    route = await engine.register(lane="mail")
    await engine.submit(route=route)
    lease = await engine.take(instance="gone", ttl=timedelta(hours=2))
    for _ in range(11):
        await engine.submit_many([Item(route=route, delay=HOUR)] * 1000)
    async with FlowFabric(db.url, namespace="test") as client:
        await client.workers.mark_dead("gone", "gone", expire_leases=True)
    row = await engine.row(lease.execution_id)
    assert row["ownership"] == "lease_expired_reclaimable"
