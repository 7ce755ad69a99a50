"""Defects D-01 to D-10: what is submitted, and who gets to claim it."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest

from flowfabric.client import FlowFabric
from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import Route, Submission
from flowfabric.core.ids import ExecutionId, mint
from support.factories import Item

HOUR = timedelta(hours=1)


@pytest.fixture
async def client(db):
    async with FlowFabric(db.url, namespace="test") as client:
        yield client


async def test_d01_what_is_submitted_can_be_claimed_as_it_is(engine):
    submitted = await engine.submit()
    row = await engine.row(submitted.id)
    assert (row["phase"], row["eligibility"]) == ("runnable", "eligible_now")
    assert row["attempt_state"] == "pending_first_attempt"
    lease = await engine.take(submitted.id)
    assert (await engine.complete(lease)).word == "completed"


async def test_d02_a_required_capability_keeps_other_workers_away(client, engine):
    route = Route("test", "default", "tests.work", frozenset({"gpu"}))
    await client.executions.submit(Submission(id=mint(), route=route, payload=b"null"))
    assert await engine.claim() == []
    assert await engine.claim(capabilities=["gpus", "cpu"]) == []
    assert await engine.take(capabilities=["cpu", "gpu"])


@pytest.mark.parametrize("needs", [",", "gpu,", "a b", "a\tb", "\x7f"])
async def test_d02_a_requirement_that_cannot_be_read_does_not_become_none(engine, needs):
    """Fail closed: what needs nothing may be claimed by anybody."""
    (answer,) = await engine.register_many([("test", "default", "tests.work", needs)])
    assert (answer["outcome"], answer["route_id"]) == ("invalid", None)


@pytest.mark.parametrize(("asked", "stored"), [(10_000, 9000), (-5, 0), (50, 50)])
async def test_d03_a_priority_is_clamped_when_it_is_submitted(engine, asked, stored):
    submitted = await engine.submit(priority=asked)
    assert 9000 - (await engine.row(submitted.id))["rank"] == stored


async def test_d04_a_delay_is_kept_and_ends(engine, clock):
    submitted = await engine.submit(delay=HOUR)
    row = await engine.row(submitted.id)
    assert (row["public_state"], row["blocking_reason"]) == ("delayed", "waiting_for_delay")
    assert row["delayed_until"] == row["created_at"] + HOUR
    await engine.promote()
    assert await engine.claim() == []
    await clock.advance(HOUR)
    await engine.promote()
    assert await engine.take(submitted.id)


async def test_d05_the_same_key_is_told_the_first_execution(engine, clock):
    first = await engine.submit(key="order-1", fingerprint=b"f")
    again = await engine.submit(key="order-1", fingerprint=b"f")
    assert (again.word, again.id) == ("duplicate", first.id)
    assert len(await engine.rows()) == 1
    await clock.advance(hours=25)
    assert (await engine.submit(key="order-1", fingerprint=b"f")).word == "created"


async def test_d05_the_same_id_is_not_said_to_be_created_twice(engine):
    first = await engine.submit(payload=b"1")
    again = await engine.submit(id=first.id, payload=b"2")
    assert (again.word, again.id) == ("duplicate", first.id)
    assert (await engine.row(first.id))["payload"] == b"1"
    assert await engine.kinds(first.id) == ["submitted"]


@pytest.mark.parametrize("lane", ["", "x" * 65, "one\ntwo", "a\tb", "ü"])
async def test_d06_a_lane_that_is_no_name_is_refused(client, engine, lane):
    submission = Submission(id=mint(), route=Route("test", lane, "tests.work"), payload=b"")
    with pytest.raises(InvalidInput) as caught:
        await client.executions.submit(submission)
    assert caught.value.field == "lane"
    assert await engine.rows() == []


@pytest.mark.parametrize("key", ["cairn", "Cairn.x", "cairn.", "cairn..x", "ca-irn.x", ""])
async def test_d06_a_tag_key_of_another_form_is_refused(engine, key):
    answer = await engine.submit(tags={key: "x"})
    assert (answer.word, answer.detail["field"]) == ("invalid", "tags")
    assert await engine.rows() == []


async def test_d07_an_empty_poll_is_one_statement(client):
    await client.lanes.register(Route("test", "default", "tests.work"))
    meter = client.database.meter
    before = sum(operation.calls for operation in meter.operations.values())
    assert await client.executions.claim(worker_id="w", worker_instance_id="w-1") == []
    assert sum(operation.calls for operation in meter.operations.values()) == before + 1


async def test_d07_priority_counts_over_the_whole_lane(engine):
    """Twenty routes, the best of them last: one claim takes them in order of priority alone."""
    routes = [await engine.register(task=f"tests.work{n}") for n in range(20)]
    answers = await engine.submit_many(
        [Item(route=route, priority=n) for n, route in enumerate(routes)]
    )
    leases = await engine.claim(20)
    assert [lease.execution_id for lease in leases] == [answer.id for answer in reversed(answers)]


async def test_d08_a_head_that_nobody_can_run_hides_nothing(engine):
    picky = await engine.register(capabilities="quantum")
    await engine.submit_many([Item(route=picky, priority=9000)] * 50)
    plain = await engine.submit(priority=0)
    assert await engine.take(plain.id)


async def test_d10_a_claim_reads_by_its_index_what_it_takes(db, engine):
    """Behind ten thousand delayed and finished rows a claim of ten reads some ten entries."""
    await db.execute("alter table ff.execution disable trigger user")
    await db.execute("alter table ff.event disable trigger user")
    for _ in range(10):
        await engine.submit_many([Item(delay=HOUR)] * 500, hint=False)
        await engine.submit_many([Item()] * 500, hint=False)
        assert len(await engine.complete_many(await engine.claim(500))) == 500
    await db.execute("vacuum ff.execution")
    await engine.submit_many([Item(priority=n) for n in range(10)])
    before = await _rows_read(db)
    assert len(await engine.claim(10)) == 10
    after = await _rows_read(db)
    assert after["whole table"] == before["whole table"]
    assert after["by index"] - before["by index"] <= 100


async def _rows_read(db):
    """What Postgres counted so far, in this session and before."""
    await db.execute("select pg_stat_force_next_flush()")
    return await db.fetchrow(
        'select seq_tup_read as "whole table", (select sum(i.idx_tup_read) '
        "  from pg_stat_user_indexes i where i.relid = t.relid "
        "    and i.indexrelname in ('execution_ready', 'execution_reclaim')) as \"by index\" "
        "from pg_stat_user_tables t where t.schemaname = 'ff' and t.relname = 'execution'"
    )


async def test_d91_a_partition_beyond_what_is_stored_is_refused_by_name(client):
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
