"""ff.claim_resumed_execution: a resume grant is used up, and the attempt goes on."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest

from support.factories import TTL, refused

TEN = timedelta(seconds=10)


async def unchanged(engine, code, call, **detail):
    before = await engine.snapshot()
    with refused(code, **detail):
        await call
    assert await engine.snapshot() == before


async def test_an_interrupted_attempt_goes_on_under_a_new_lease(clock, engine, make):
    await clock.freeze()
    execution = await make.execution("interrupted")
    started = (await engine.row(execution.id))["attempt_started_at"]
    now = await clock.advance(minutes=1)
    grant = await engine.grant(execution.id)
    claim_id = uuid4()
    lease = await engine.use_resume(grant, claim_id=claim_id)
    assert (lease.claim_kind, lease.attempt_index, lease.epoch) == ("resumed", 0, 2)
    assert lease.attempt_id == execution.last_lease.attempt_id != claim_id
    assert (lease.lease_id, lease.lease_expires_at) == (claim_id, now + TTL)
    assert await engine.grants() == []
    row = await engine.row(execution.id)
    assert (row["phase"], row["ownership"]) == ("active", "leased")
    assert (row["total_attempt_count"], row["attempt_started_at"]) == (1, started)
    assert row["attempt_paused_at"] is row["attempt_pause_cause"] is None
    assert (await engine.kinds(execution.id))[-1] == "resumed"
    assert (await engine.renew(lease)).word == "renewed"
    assert (await engine.complete(lease)).word == "completed"


@pytest.mark.parametrize("how", ["delay", "wait"])
async def test_so_does_one_that_waited_for_a_time(clock, engine, make, how):
    execution = await make.execution("leased")
    if how == "delay":
        await engine.delay(execution.last_lease, timedelta(minutes=1))
        await clock.advance(minutes=1)
        await engine.promote()
    else:
        await engine.delay(execution.last_lease, timedelta())
        await engine.promote()
    grant = await engine.grant(execution.id)
    assert grant.kind == "resume"
    assert (await engine.use_resume(grant)).attempt_index == 0


async def test_the_attempt_has_the_time_it_had_left(clock, engine, make):
    await clock.freeze()
    execution = await make.execution(
        "leased", policy={"timeout_policy": {"attempt_timeout_ms": 20_000}}
    )
    await clock.advance(seconds=5)
    await engine.release(execution.last_lease)
    now = await clock.advance(minutes=1)
    lease = await engine.use_resume(await engine.grant(execution.id))
    assert lease.attempt_deadline_at == now + timedelta(seconds=15)


async def test_a_short_grant_that_is_used_at_once_works(clock, engine, make):
    await clock.freeze()
    execution = await make.execution("interrupted")
    grant = await engine.grant(execution.id, ttl=timedelta(milliseconds=1))
    assert (await engine.use_resume(grant)).execution_id == execution.id


async def test_a_grant_that_is_over_is_refused(clock, engine, make):
    await clock.freeze()
    execution = await make.execution("interrupted")
    grant = await engine.grant(execution.id, ttl=TEN)
    await clock.advance(TEN)
    await unchanged(engine, "WF407", engine.use_resume(grant), message="grant_expired")


async def test_another_worker_cannot_use_it(engine, make):
    execution = await make.execution("interrupted")
    grant = await engine.grant(execution.id)
    await unchanged(engine, "WF406", engine.use_resume(grant, worker="other"))


async def test_a_resume_grant_is_used_once(engine, make):
    execution = await make.execution("interrupted")
    grant = await engine.grant(execution.id)
    lease = await engine.use_resume(grant)
    await unchanged(engine, "WF404", engine.use_resume(grant), message="lease_conflict")
    await engine.release(lease)
    await unchanged(engine, "WF406", engine.use_resume(grant), message="invalid_grant")


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("waiting", "WF209"),
        ("retry_waiting", "WF209"),
        ("delayed", "WF207"),
        ("delayed_by_worker", "WF207"),
        ("held", "WF207"),
        ("leased", "WF404"),
        ("expired_lease", "WF207"),
        ("completed", "WF207"),
        ("cancelled", "WF207"),
    ],
)
async def test_nothing_but_a_resumable_execution_can_be_seized(engine, make, state, code):
    execution = await make.execution(state)
    other = await engine.grant((await make.execution("interrupted")).id)
    await unchanged(engine, code, engine.use_resume(replace(other, execution_id=execution.id)))


async def test_a_claim_grant_does_not_resume(engine, make):
    execution = await make.execution("waiting")
    grant = await engine.grant(execution.id)
    await unchanged(engine, "WF209", engine.use_resume(grant), message="not_resumed")


async def test_the_expected_attempt_is_checked_when_given(engine, make):
    execution = await make.execution("interrupted")
    grant = await engine.grant(execution.id)
    await unchanged(engine, "WF207", engine.use_resume(grant, expected_attempt_index=1))
    assert (await engine.use_resume(grant, expected_attempt_index=0)).attempt_index == 0


async def test_a_repeat_gets_the_same_lease(engine, make):
    execution = await make.execution("interrupted")
    grant = await engine.grant(execution.id)
    lease = await engine.use_resume(grant)
    before = await engine.snapshot()
    assert await engine.use_resume(grant, claim_id=lease.lease_id) == lease
    assert await engine.snapshot() == before


async def test_the_id_of_the_attempt_is_not_given_to_a_second_lease(engine, make):
    execution = await make.execution("interrupted")
    grant = await engine.grant(execution.id)
    call = engine.use_resume(grant, claim_id=execution.last_lease.lease_id)
    await unchanged(engine, "WF001", call, field="claim_id")
