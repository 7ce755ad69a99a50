"""Lines of the test catalogue that cross several nouns."""

from __future__ import annotations

from datetime import timedelta

import pytest

from flowfabric.client import FlowFabric
from flowfabric.client.events import Feed
from flowfabric.core.execution import Failure, Route, Submission
from flowfabric.core.ids import mint
from flowfabric.core.states import FailureClass
from support.factories import TTL


@pytest.fixture
async def client(db):
    async with FlowFabric(db.url, namespace="test") as client:
        yield client


async def submitted(client, lane="default", **options):
    route = Route("test", lane, "tests.work")
    submission = Submission(id=mint(), route=route, payload=b"null", **options)
    return (await client.executions.submit(submission)).id


async def test_from_claim_over_progress_to_its_only_end(client):
    cursor = await client.events.open()
    id = await submitted(client)
    (held,) = await client.executions.claim(worker_id="w", worker_instance_id="w-1")
    assert (await client.executions.describe(id)).public_state == "active"
    assert (held.epoch, held.attempt_index) == (1, 0)
    assert held.lease_expires_at > await client.executions.server_time()
    await client.executions.report_progress(held, 30, "read")
    await client.executions.report_progress(held, 60)
    info = await client.executions.describe(id)
    assert (info.progress_percent, info.progress_message) == (60, "read")
    await client.executions.complete(held, b"\x00\xff")
    info = await client.executions.info(id)
    assert (info.phase, info.outcome, info.public_state) == ("terminal", "success", "completed")
    assert await client.executions.result(id) == b"\x00\xff"
    ends = (await client.events.read(cursor, feed=Feed.COMPLETION)).events
    assert [(event.id, event.outcome) for event in ends] == [(id, "success")]


async def test_the_leases_of_a_life_are_read_in_order_and_resumed_from_a_cursor(client, clock):
    cursor = await client.events.open()
    id = await submitted(client)
    (held,) = await client.executions.claim(worker_id="w", worker_instance_id="w-1", lease_ttl=TTL)
    assert await client.leases.renew([held], TTL) == ([], [])
    page = await client.events.read(cursor, feed=Feed.LEASE)
    assert [event.kind for event in page.events] == ["claimed"]
    await clock.advance(TTL)
    await client.leases.expire()
    (held,) = await client.executions.claim(worker_id="w", worker_instance_id="w-2")
    await client.executions.complete(held, b"")
    page = await client.events.read(page.cursor, feed=Feed.LEASE)
    assert [event.kind for event in page.events] == ["lease_expired", "reclaimed", "completed"]
    assert {event.id for event in page.events} == {id}
    assert [event.epoch for event in page.events] == [1, 2, 2]


async def test_subscribers_of_different_tags_see_nothing_of_each_other(db, client):
    await db.execute("update ff.meta set value = 'app.instance' where name = 'instance_tag_key'")
    cursor = await client.events.open()
    ids = {
        tag: await submitted(client, tags={"app.instance": tag} if tag else {})
        for tag in ("blue", "red", "")
    }
    for tag in ("blue", "red"):
        page = await client.events.read(cursor, instance_tags=[tag])
        assert [event.id for event in page.events] == [ids[tag]]
    assert len((await client.events.read(cursor)).events) == 3


async def test_a_short_policy_gets_the_usual_backoff(engine, clock):
    await clock.freeze()
    execution = await engine.submit(policy={"retry_policy": {"max_retries": 8}})
    waits = []
    for _ in range(8):
        answer = await engine.fail(await engine.take(execution.id))
        waits.append((answer.delayed_until - await clock.now()).total_seconds())
        await clock.set(answer.delayed_until)
        await engine.promote()
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]


async def test_lanes_are_listed_in_the_order_of_their_bytes(client):
    for lane in ("b", "B", "a", "~", "a b", "Z"):
        await submitted(client, lane=lane)
    assert [info.lane for info in await client.lanes.list()] == ["B", "Z", "a", "a b", "b", "~"]


async def test_a_deadline_ends_what_never_ran_and_nobody_can_claim_it(engine, clock):
    submitted = await engine.submit(deadline=timedelta(minutes=1))
    await clock.advance(minutes=1)
    await engine.expire_executions()
    row = await engine.row(submitted.id)
    assert (row["outcome"], row["attempt_state"]) == ("expired", "pending_first_attempt")
    assert row["failure_category"] == "execution_deadline"
    assert await engine.claim() == []
    assert await engine.kinds(submitted.id) == ["submitted", "expired"]


async def test_the_schema_brings_its_indexes_and_its_settings(db):
    indexes = {
        row["indexname"]
        for row in await db.fetch("select indexname from pg_indexes where schemaname = 'ff'")
    }
    assert {
        "execution_pkey",
        "execution_ready",
        "execution_reclaim",
        "execution_due",
        "execution_attention",
        "execution_trim",
        "grant_expiry",
    } <= indexes
    assert await db.fetchval("select value from ff.meta where name = 'partitions'") == "1"
    assert await db.fetchval("select count(*) from ff.transition") > 30


async def test_a_retry_is_kept_when_everybody_who_knew_of_it_is_gone(db, clock):
    """The wait is a row: another client promotes it and goes on."""
    async with FlowFabric(db.url, namespace="test") as first:
        id = await submitted(first, policy='{"retry_policy": {}}')
        (held,) = await first.executions.claim(worker_id="w", worker_instance_id="w-1")
        answer = await first.executions.fail(held, Failure(FailureClass.TRANSIENT, "it broke"))
        assert answer.will_retry
    await db.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where datname = current_database() and pid <> pg_backend_pid()"
    )
    await clock.advance(seconds=1)
    async with FlowFabric(db.url, namespace="test") as second:
        assert (await second.executions.promote_delayed())[0] == 1
        (held,) = await second.executions.claim(worker_id="w", worker_instance_id="w-2")
        assert (held.id, held.attempt_type, held.epoch) == (id, "retry", 2)
