"""ff.issue_reclaim_grant and ff.reclaim_execution: taking over what a lost holder left."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest

from support.database import home
from support.factories import TTL, refused
from support.hints import hints

TEN = timedelta(seconds=10)


async def unchanged(engine, call):
    """The answer of a call that must not write anything."""
    before = await engine.snapshot()
    answer = await call
    assert await engine.snapshot() == before
    return answer


async def refused_unchanged(engine, code, call, **detail):
    before = await engine.snapshot()
    with refused(code, **detail):
        await call
    assert await engine.snapshot() == before


@pytest.mark.parametrize("state", ["expired_lease", "revoked", "reclaim_delayed"])
async def test_an_execution_whose_lease_was_lost_is_granted(clock, engine, make, state):
    """Also long after the expiry was noticed; and a grant need not wait for the pause."""
    execution = await make.execution(state)
    now = await clock.freeze()
    before = await engine.row(execution.id)
    grant = await engine.grant_reclaim(execution.id, ttl=TEN)
    assert (grant.word, grant.kind, grant.expires_at) == ("granted", "reclaim", now + TEN)
    assert await engine.row(execution.id) == before
    (row,) = await engine.grants()
    assert (row["kind"], row["worker_id"], row["expires_at"]) == ("reclaim", "pool", now + TEN)
    word, lease, _ = await engine.use_reclaim(grant)
    assert (word, lease.attempt_type) == ("reclaimed", "reclaim")


async def test_a_lease_that_ran_out_unnoticed_is_marked_first(db, clock, engine, make):
    execution = await make.execution("leased", lane="a")
    await clock.advance(TTL)
    grants = []

    async def issue():
        grants.append(await engine.grant_reclaim(execution.id))

    assert await hints(db, "ff_ready", issue) == [f"{home()} test a"]
    assert grants[0].word == "granted"
    assert (await engine.row(execution.id))["ownership"] == "lease_expired_reclaimable"
    assert await engine.kinds(execution.id) == ["submitted", "claimed", "lease_expired"]


async def test_a_live_lease_cannot_be_taken_over(clock, engine, make):
    execution = await make.execution("leased")
    await clock.advance(TTL - timedelta(seconds=5))
    await engine.renew(execution.last_lease)
    await clock.advance(TTL - timedelta(seconds=5))
    answer = await unchanged(engine, engine.grant_reclaim(execution.id))
    assert (answer.word, answer.kind, answer.expires_at) == ("not_reclaimable", None, None)
    assert answer.detail["ownership"] == "leased"


@pytest.mark.parametrize(
    "state",
    ["waiting", "delayed", "interrupted", "held", "completed", "failed", "cancelled", "leased"],
)
async def test_what_has_no_lost_lease_is_not_reclaimable(engine, make, state):
    execution = await make.execution(state)
    assert (await unchanged(engine, engine.grant_reclaim(execution.id))).word == "not_reclaimable"
    lost = await make.execution("revoked")
    grant = replace(await engine.grant_reclaim(lost.id), execution_id=execution.id)
    word, lease, detail = await unchanged(engine, engine.use_reclaim(grant))
    assert (word, lease) == ("not_reclaimable", None)
    assert detail["phase"] == (await engine.row(execution.id))["phase"]


async def test_a_worker_that_lacks_something_is_not_granted(engine, make):
    route = await engine.register(lane="heavy", capabilities="gpu,zip")
    execution = (await engine.submit(route=route)).id
    lease = await engine.take(execution, capabilities=["gpu", "zip"])
    await engine.revoke(execution)
    answer = await unchanged(engine, engine.grant_reclaim(execution, capabilities=["cpu"]))
    assert answer.word == "not_reclaimable"
    assert answer.detail == {"problem": "capability_mismatch", "missing": "gpu,zip"}
    answer = await engine.grant_reclaim(execution, capabilities=["gpu", "zip"])
    assert answer.word == "granted"
    assert lease.epoch == 1


async def test_a_second_grant_is_refused_while_the_first_lives(clock, engine, make):
    await clock.freeze()
    execution = await make.execution("expired_lease")
    first = await engine.grant_reclaim(execution.id, ttl=TEN)
    call = engine.grant_reclaim(execution.id)
    await refused_unchanged(engine, "WF405", call, message="grant_exists")
    again = await unchanged(engine, engine.grant_reclaim(execution.id, key=first.key))
    assert again == first
    await clock.advance(TEN)
    assert (await engine.grant_reclaim(execution.id)).word == "granted"
    assert (await engine.use_reclaim(first))[0] == "invalid_grant"


@pytest.mark.parametrize("state", ["expired_lease", "revoked"])
async def test_a_reclaim_starts_a_new_attempt_and_keeps_the_old_one(clock, engine, make, state):
    now = await clock.freeze()
    execution = await make.execution(state)
    old = execution.last_lease
    row = await engine.row(execution.id)
    now = await clock.now()
    claim_id = uuid4()
    grant = await engine.grant_reclaim(execution.id)
    word, lease, detail = await engine.use_reclaim(grant, claim_id=claim_id)
    assert (word, detail) == ("reclaimed", None)
    assert lease.lease_id == lease.attempt_id == claim_id
    assert (lease.claim_kind, lease.attempt_type, lease.attempt_index) == (
        "reclaimed",
        "reclaim",
        1,
    )
    assert lease.epoch == row["epoch"] + 1
    assert await engine.grants() == []
    (past,) = await engine.attempts(execution.id)
    assert (past["attempt_id"], past["ended_as"]) == (old.attempt_id, "interrupted_reclaimed")
    assert (past["ended_at"], past["last_lease_id"]) == (now, old.lease_id)
    after = await engine.row(execution.id)
    assert (after["reclaim_count"], after["total_attempt_count"]) == (1, 2)
    assert (after["previous_attempt_index"], after["started_at"]) == (0, row["started_at"])
    assert after["attempt_reason"] == row["ownership"]
    # nothing of the old holder is left where a sweep would find it
    assert (after["worker_instance_id"], after["lease_expires_at"]) == ("pool-2", now + TTL)
    assert after["last_lease_id"] is after["last_worker_id"] is None
    assert (await engine.kinds(execution.id))[-1] == "reclaimed"


async def test_sweeps_after_a_reclaim_leave_the_new_attempt_alone(clock, engine, make):
    execution = await make.execution(
        "leased", policy={"timeout_policy": {"attempt_timeout_ms": 60_000}}
    )
    await clock.advance(TTL)
    grant = await engine.grant_reclaim(execution.id)
    _, lease, _ = await engine.use_reclaim(grant, ttl=timedelta(minutes=1))
    await clock.advance(TTL + timedelta(seconds=5))
    await engine.expire()
    await engine.expire_executions()
    assert (await engine.row(execution.id))["lease_id"] == lease.lease_id
    assert (await engine.complete(lease)).word == "completed"


async def test_the_old_holder_changes_nothing_after_a_reclaim(engine, make):
    execution = await make.execution("expired_lease")
    await engine.use_reclaim(await engine.grant_reclaim(execution.id))
    old = execution.last_lease
    for call in (engine.renew, engine.complete, engine.fail, engine.release):
        assert (await unchanged(engine, call(old))).word == "stale_lease"


async def test_epochs_rise_over_successive_reclaims(clock, engine, make):
    execution = await make.execution("leased")
    epochs = [execution.last_lease.epoch]
    for number in range(1, 6):
        await clock.advance(TTL)
        word, lease, _ = await engine.use_reclaim(await engine.grant_reclaim(execution.id))
        assert (word, lease.attempt_index) == ("reclaimed", number)
        epochs.append(lease.epoch)
    assert epochs == [1, 2, 3, 4, 5, 6]
    assert (await engine.row(execution.id))["reclaim_count"] == 5
    assert len(await engine.attempts(execution.id)) == 5


async def test_a_reclaim_grant_is_used_once(engine, make):
    execution = await make.execution("revoked")
    grant = await engine.grant_reclaim(execution.id, ttl=timedelta(minutes=1))
    await engine.use_reclaim(grant)
    assert (await unchanged(engine, engine.use_reclaim(grant)))[0] == "not_reclaimable"
    await engine.revoke(execution.id)
    assert (await unchanged(engine, engine.use_reclaim(grant)))[0] == "invalid_grant"


async def test_without_a_grant_nothing_is_reclaimed_but_the_expiry_is_noticed(clock, engine, make):
    execution = await make.execution("leased")
    other = await engine.grant((await make.execution("waiting")).id)
    forged = replace(other, execution_id=execution.id)
    await clock.advance(TTL)
    assert (await engine.use_reclaim(forged))[0] == "invalid_grant"
    assert (await engine.row(execution.id))["ownership"] == "lease_expired_reclaimable"
    assert (await unchanged(engine, engine.use_reclaim(forged)))[0] == "invalid_grant"


async def test_another_worker_s_grant_is_bad_input(engine, make):
    execution = await make.execution("revoked")
    grant = await engine.grant_reclaim(execution.id)
    call = engine.use_reclaim(grant, worker="other")
    await refused_unchanged(engine, "WF001", call, field="worker_id")


async def test_a_grant_that_is_over_is_refused(clock, engine, make):
    await clock.freeze()
    execution = await make.execution("revoked")
    grant = await engine.grant_reclaim(execution.id, ttl=TEN)
    await clock.advance(TEN)
    assert (await unchanged(engine, engine.use_reclaim(grant)))[0] == "grant_expired"


async def test_a_claim_grant_does_not_reclaim(clock, engine, make):
    """Granted while it waited, claimed directly, lost: the old grant is worth nothing."""
    execution = await make.execution("waiting", lane="mine")
    grant = await engine.grant(execution.id, ttl=timedelta(minutes=1))
    await engine.take(execution.id, lanes=["mine"], ttl=timedelta(seconds=1))
    await clock.advance(seconds=1)
    assert (await engine.use_reclaim(grant))[0] == "invalid_grant"


async def test_a_repeat_gets_the_same_lease(engine, make):
    execution = await make.execution("expired_lease")
    grant = await engine.grant_reclaim(execution.id)
    first = await engine.use_reclaim(grant)
    again = await unchanged(engine, engine.use_reclaim(grant, claim_id=first[1].lease_id))
    assert again == first


async def test_the_id_of_the_lost_lease_is_not_given_again(engine, make):
    execution = await make.execution("expired_lease")
    grant = await engine.grant_reclaim(execution.id)
    call = engine.use_reclaim(grant, claim_id=execution.last_lease.lease_id)
    await refused_unchanged(engine, "WF001", call, field="claim_id")


@pytest.mark.parametrize("cap", [0, 2])
@pytest.mark.parametrize("is_marked", [True, False])
async def test_over_its_limit_the_execution_ends_when_a_grant_is_asked_for(
    clock, engine, make, cap, is_marked
):
    execution = await make.execution("leased", policy={"max_reclaim_count": cap})
    for _ in range(cap):
        await clock.advance(TTL)
        assert (await engine.use_reclaim(await engine.grant_reclaim(execution.id)))[1]
    await clock.advance(TTL)
    if is_marked:
        await engine.expire()
    answer = await engine.grant_reclaim(execution.id)
    assert answer.word == "reclaim_cap_exceeded"
    assert (answer.detail["reclaim_count"], answer.detail["max_reclaims"]) == (cap, cap)
    row = await engine.row(execution.id)
    assert (row["phase"], row["outcome"]) == ("terminal", "failed")
    assert row["failure_category"] == "reclaim_cap_exceeded"
    assert (await engine.kinds(execution.id))[-2:] == ["lease_expired", "failed"]
    assert (await unchanged(engine, engine.grant_reclaim(execution.id))).word == answer.word
    assert await engine.grants() == []


async def test_the_limit_counts_when_the_grant_is_used_as_well(clock, engine, make, conn):
    execution = await make.execution("expired_lease")
    grant = await engine.grant_reclaim(execution.id)
    await conn.execute("update ff.execution set max_reclaims = 0")
    word, lease, detail = await engine.use_reclaim(grant)
    assert (word, lease, detail["reclaim_count"]) == ("reclaim_cap_exceeded", None, 0)
    assert (await engine.row(execution.id))["outcome"] == "failed"
    assert await engine.grants() == []
    assert (await unchanged(engine, engine.use_reclaim(grant)))[0] == "reclaim_cap_exceeded"


async def test_a_direct_claim_of_another_worker_passes_a_granted_reclaim_by(clock, engine, make):
    await clock.freeze()
    execution = await make.execution("expired_lease", lane="mine")
    await engine.grant_reclaim(execution.id, ttl=TEN)
    assert await engine.claim(lanes=["mine"], worker="other") == []
    await clock.advance(TEN)
    lease = await engine.take(execution.id, lanes=["mine"], worker="other")
    assert lease.claim_kind == "reclaimed"
    assert await engine.grants() == []
