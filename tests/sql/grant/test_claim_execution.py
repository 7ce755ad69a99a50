"""ff.claim_execution: a claim grant is used up, and a new attempt begins."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from support.database import home
from support.factories import TTL, Item, refused

TEN = timedelta(seconds=10)


async def unchanged(engine, code, call, **detail):
    before = await engine.snapshot()
    with refused(code, **detail):
        await call
    assert await engine.snapshot() == before


async def test_a_grant_becomes_a_lease_and_is_gone(clock, engine, make):
    now = await clock.freeze()
    execution = await make.execution("waiting", payload=b'{"a": 1}')
    grant = await engine.grant(execution.id)
    claim_id = uuid4()
    lease = await engine.use(grant, claim_id=claim_id)
    assert await engine.grants() == []
    assert (lease.execution_id, lease.claim_kind, lease.epoch) == (execution.id, "fresh", 1)
    assert (lease.attempt_index, lease.attempt_type) == (0, "initial")
    assert lease.lease_id == lease.attempt_id == claim_id
    assert (lease.lease_expires_at, lease.payload) == (now + TTL, b'{"a": 1}')
    row = await engine.row(execution.id)
    assert (row["phase"], row["ownership"], row["public_state"]) == ("active", "leased", "active")
    assert (row["worker_id"], row["worker_instance_id"]) == ("pool", "pool-2")
    assert (row["lease_id"], row["started_at"]) == (claim_id, now)
    event = (await engine.events(execution.id))[-1]
    assert (event["kind"], event["lease_id"], event["epoch"]) == ("claimed", claim_id, 1)


async def test_the_lease_of_a_grant_works_like_any_other(clock, engine, make):
    """Progress, renewal and completion: an active attempt that everybody finds."""
    execution = await make.execution("waiting")
    lease = await engine.use(await engine.grant(execution.id))
    await clock.advance(TTL / 2)
    assert (await engine.renew(lease)).word == "renewed"
    assert (await engine.progress(lease, 50)).word == "reported"
    assert (await engine.complete(lease, b"42")).word == "completed"
    assert await engine.kinds(execution.id) == ["submitted", "claimed", "completed"]


async def test_the_attempt_is_the_current_one_and_is_counted(engine, make):
    execution = await make.execution("retry_waiting")
    lease = await engine.use(await engine.grant(execution.id))
    assert (lease.attempt_index, lease.attempt_type, lease.epoch) == (1, "retry", 2)
    row = await engine.row(execution.id)
    assert (row["attempt_index"], row["total_attempt_count"]) == (1, 2)
    assert row["attempt_id"] == lease.attempt_id
    (past,) = await engine.attempts(execution.id)
    assert (past["attempt_index"], past["ended_as"]) == (0, "ended_failure")


async def test_the_attempt_timeout_is_armed(clock, engine, make):
    now = await clock.freeze()
    execution = await make.execution(
        "waiting", policy={"timeout_policy": {"attempt_timeout_ms": 5000}}
    )
    lease = await engine.use(await engine.grant(execution.id))
    assert lease.attempt_deadline_at == now + timedelta(seconds=5)
    assert (await engine.row(execution.id))["due_at"] == lease.attempt_deadline_at


async def test_a_grant_is_used_once(engine, make):
    execution = await make.execution("waiting")
    grant = await engine.grant(execution.id)
    await engine.use(grant)
    await unchanged(engine, "WF404", engine.use(grant), message="lease_conflict")


async def test_a_used_grant_does_not_come_back_with_the_execution(engine, make):
    execution = await make.execution("waiting", policy={"retry_policy": {"max_retries": 2}})
    grant = await engine.grant(execution.id, ttl=timedelta(minutes=1))
    lease = await engine.use(grant)
    await engine.release(lease)
    await unchanged(engine, "WF406", engine.use_resume(grant), message="invalid_grant")


async def test_without_a_grant_there_is_no_claim(engine, make):
    execution = await make.execution("waiting")
    other = await engine.grant((await make.execution("waiting")).id)
    forged = replace(other, execution_id=execution.id)
    await unchanged(engine, "WF406", engine.use(forged), message="invalid_grant")


async def test_another_key_does_not_open_a_grant(engine, make):
    execution = await make.execution("waiting")
    grant = await engine.grant(execution.id)
    await unchanged(engine, "WF406", engine.use(replace(grant, key=b"x" * 32)))
    assert (await engine.use(grant)).execution_id == execution.id


async def test_another_worker_cannot_use_a_grant(engine, make):
    execution = await make.execution("waiting")
    grant = await engine.grant(execution.id)
    await unchanged(engine, "WF406", engine.use(grant, worker="other"), message="invalid_grant")


async def test_another_process_of_the_same_worker_can(engine, make):
    execution = await make.execution("waiting")
    grant = await engine.grant(execution.id, instance="pool-1")
    await engine.use(grant, instance="pool-9")
    assert (await engine.row(execution.id))["worker_instance_id"] == "pool-9"


async def test_a_grant_that_is_over_is_refused_from_its_expiry_on(clock, engine, make):
    await clock.freeze()
    execution = await make.execution("waiting")
    grant = await engine.grant(execution.id, ttl=TEN)
    await clock.set(grant.expires_at)
    await unchanged(engine, "WF407", engine.use(grant), message="grant_expired")
    await clock.set(grant.expires_at - timedelta(microseconds=1))
    assert (await engine.use(grant)).execution_id == execution.id


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("delayed", "WF207"),
        ("retry_delayed", "WF207"),
        ("blocked", "WF207"),
        ("held", "WF207"),
        ("leased", "WF404"),
        ("expired_lease", "WF207"),
        ("revoked", "WF207"),
        ("completed", "WF207"),
        ("cancelled", "WF207"),
        ("interrupted", "WF208"),
    ],
)
async def test_the_state_is_looked_at_before_the_grant(engine, make, state, code):
    execution = await make.execution(state)
    other = await engine.grant((await make.execution("waiting")).id)
    await unchanged(engine, code, engine.use(replace(other, execution_id=execution.id)))


async def test_what_was_blocked_meanwhile_is_refused_and_keeps_its_grant(engine, make):
    execution = await make.execution("waiting")
    grant = await engine.grant(execution.id, ttl=timedelta(minutes=1))
    await engine.block(execution.id)
    await unchanged(engine, "WF207", engine.use(grant))
    await engine.unblock(execution.id)
    assert (await engine.use(grant)).execution_id == execution.id


async def test_what_was_cancelled_meanwhile_has_no_grant_any_more(engine, make):
    execution = await make.execution("waiting")
    grant = await engine.grant(execution.id)
    await engine.cancel(execution.id)
    assert await engine.grants() == []
    await unchanged(engine, "WF207", engine.use(grant), phase="terminal")


async def test_an_interrupted_execution_is_claimed_with_its_resume_grant_only(engine, make):
    execution = await make.execution("interrupted")
    grant = await engine.grant(execution.id)
    await unchanged(engine, "WF208", engine.use(grant), message="use_claim_resumed")
    assert (await engine.use_resume(grant)).claim_kind == "resumed"


async def test_the_expected_attempt_is_checked_when_given(engine, make):
    execution = await make.execution("retry_waiting")
    grant = await engine.grant(execution.id)
    call = engine.use(grant, expected_attempt_index=0)
    await unchanged(engine, "WF207", call, expected_attempt_index=0, next_attempt_index=1)
    assert (await engine.use(grant, expected_attempt_index=1)).attempt_index == 1


async def test_a_repeat_gets_the_same_lease(clock, engine, make):
    execution = await make.execution("waiting", payload=b"x" * 1000)
    grant = await engine.grant(execution.id)
    lease = await engine.use(grant)
    before = await engine.snapshot()
    await clock.advance(seconds=5)
    assert await engine.use(grant, claim_id=lease.lease_id) == lease
    assert await engine.snapshot() == before


async def test_the_id_of_a_lease_that_ended_is_not_given_again(engine, make):
    execution = await make.execution("retry_waiting")
    grant = await engine.grant(execution.id)
    old = execution.last_lease.lease_id
    call = engine.use(grant, claim_id=old)
    await unchanged(engine, "WF001", call, field="claim_id")
    lease = await engine.use(grant)
    assert lease.lease_id != old


async def test_a_foreign_execution_is_not_found(engine, make):
    execution = await make.execution("waiting")
    grant = await engine.grant(execution.id)
    await unchanged(engine, "WF301", engine.within("another").use(grant))
    await unchanged(engine, "WF301", engine.use(replace(grant, execution_id=UUID(int=1))))


@pytest.mark.parametrize(
    ("field", "change", "arguments"),
    [
        ("execution_id", {"execution_id": None}, {}),
        ("key", {"key": None}, {}),
        ("key", {"key": b"short"}, {}),
        ("worker_id", {}, {"worker": None}),
        ("worker_id", {}, {"worker": "a b"}),
        ("worker_instance_id", {}, {"instance": ""}),
        ("lease_ttl", {}, {"ttl": None}),
        ("lease_ttl", {}, {"ttl": timedelta(milliseconds=999)}),
        ("lease_ttl", {}, {"ttl": timedelta(days=2)}),
    ],
)
@pytest.mark.parametrize("how", ["use", "use_resume", "use_reclaim"])
async def test_what_makes_no_sense_is_refused_by_name(engine, make, how, field, change, arguments):
    execution = await make.execution("waiting")
    grant = replace(await engine.grant(execution.id), **change)
    call = getattr(engine, how)(grant, **arguments)
    await unchanged(engine, "WF001", call, message="invalid_input", field=field)


@pytest.mark.parametrize(
    "function", ["claim_execution", "claim_resumed_execution", "reclaim_execution"]
)
async def test_a_claim_without_an_id_is_refused(engine, make, conn, function):
    execution = await make.execution("waiting")
    with refused("WF001", field="claim_id"):
        await conn.fetch(
            f"select * from ff.{function}('{home()}', null, $1, $2, 'w', 'w-1', null, '30 s')",
            execution.id,
            b"x" * 32,
        )


async def test_a_batch_is_never_held_up_by_a_grant(engine, make):
    """The next claim in the lane goes on behind a granted execution."""
    first, second = await engine.submit_many([Item(priority=5), Item()])
    await engine.grant(first.id, worker="other")
    assert [lease.execution_id for lease in await engine.claim(10)] == [second.id]
