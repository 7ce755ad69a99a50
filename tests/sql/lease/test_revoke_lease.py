"""revoke_lease: takes a lease away from whoever has it, or from the one that is meant."""

from __future__ import annotations

from uuid import uuid4

import pytest

from support.factories import TTL, Engine, new_id, refused


async def test_a_lease_is_revoked_and_the_next_claim_reclaims(engine, make):
    """The execution stays active, the epoch rises, who and why is kept."""
    execution = await make.execution("leased", lane="a")
    answer = await engine.revoke(execution.id, reason="stuck", actor="ann")
    assert answer.word == "revoked"
    assert answer.detail["lease_id"] == str(execution.lease.lease_id)
    assert answer.detail["epoch"] == execution.lease.epoch + 1
    row = await engine.row(execution.id)
    assert (row["phase"], row["ownership"]) == ("active", "lease_revoked")
    assert row["lease_id"] is None
    event = (await engine.events(execution.id))[-1]
    assert (event["kind"], event["actor"]) == ("lease_revoked", "ann")
    assert event["lease_id"] == execution.lease.lease_id
    lease = await engine.take(execution.id, lanes=["a"])
    assert (lease.claim_kind, lease.attempt_index) == ("reclaimed", 1)
    assert lease.epoch == execution.lease.epoch + 2


@pytest.mark.parametrize(
    "operation", ["complete", "fail", "renew", "release", "delay", "hold", "continue_as"]
)
async def test_the_old_holder_is_told_and_changes_nothing(engine, make, operation):
    execution = await make.execution("revoked")
    before = await engine.snapshot()
    answer = await getattr(engine, operation)(execution.lease)
    assert answer.word == "lease_revoked"
    assert await engine.snapshot() == before


@pytest.mark.parametrize(
    "state",
    ["waiting", "delayed", "expired_lease", "revoked", "completed", "delayed_by_worker", "held"],
)
async def test_without_a_live_lease_there_is_nothing_to_revoke(engine, make, state):
    execution = await make.execution(state)
    before = await engine.snapshot()
    answer = await engine.revoke(execution.id)
    assert (answer.word, answer.detail) == ("already_satisfied", {"reason": "no_active_lease"})
    assert await engine.snapshot() == before


async def test_a_lease_that_ran_out_unmarked_is_no_live_one(engine, make, clock):
    execution = await make.execution("leased")
    await clock.advance(TTL)
    assert (await engine.revoke(execution.id)).word == "already_satisfied"


async def test_it_can_be_aimed_at_one_lease(engine, make):
    execution = await make.execution("leased")
    answer = await engine.revoke(execution.id, expected_lease_id=uuid4())
    assert (answer.word, answer.detail) == ("already_satisfied", {"reason": "lease_id_mismatch"})
    answer = await engine.revoke(execution.id, expected_lease_id=execution.lease.lease_id)
    assert answer.word == "revoked"


async def test_it_can_be_aimed_at_one_worker_instance(engine, make):
    execution = await make.execution("leased")
    answer = await engine.revoke(execution.id, worker_instance_id="another")
    assert answer.detail == {"reason": "different_worker_instance_id"}
    holder = (await engine.row(execution.id))["worker_instance_id"]
    assert (await engine.revoke(execution.id, worker_instance_id=holder)).word == "revoked"


async def test_an_empty_worker_instance_means_any(engine, make):
    execution = await make.execution("leased")
    assert (await engine.revoke(execution.id, worker_instance_id="")).word == "revoked"


async def test_a_version_that_has_moved_is_not_acted_on(engine, make):
    execution = await make.execution("leased")
    version = (await engine.row(execution.id))["version"]
    assert (await engine.revoke(execution.id, if_version=version)).word == "revoked"
    again = await engine.revoke(execution.id, if_version=version)
    assert (again.word, again.version) == ("already_applied", version + 1)


async def test_revoked_leases_count_towards_the_limit_of_reclaims(engine, make):
    execution = await make.execution("leased", lane="a", max_reclaims=1)
    await engine.revoke(execution.id)
    await engine.take(execution.id, lanes=["a"])
    await engine.revoke(execution.id)
    assert await engine.claim(1, lanes=["a"]) == []
    assert (await engine.row(execution.id))["public_state"] == "failed"


async def test_an_unknown_execution_and_a_foreign_one_are_not_found(db, engine, make):
    execution = await make.execution("leased")
    with refused("WF301"):
        await engine.revoke(new_id())
    with refused("WF301"):
        await Engine(db.conn, namespace="other").revoke(execution.id)
    assert (await engine.row(execution.id))["ownership"] == "leased"


async def test_words_that_cannot_be_stored_are_refused(engine, make):
    execution = await make.execution("leased")
    with refused("WF001", field="reason"):
        await engine.revoke(execution.id, reason="r" * 257)
    assert (await engine.row(execution.id))["ownership"] == "leased"
