"""ff.issue_grant_and_claim: an operator takes one execution, and leaves no grant behind."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest

from support.factories import TTL, refused

TEN = timedelta(seconds=10)


async def unchanged(engine, code, call, **detail):
    before = await engine.snapshot()
    with refused(code, **detail):
        await call
    assert await engine.snapshot() == before


async def test_a_waiting_execution_is_leased_to_the_operator(engine, make):
    execution = await make.execution("waiting")
    lease = await engine.grant_and_claim(execution.id)
    assert (lease.claim_kind, lease.epoch, lease.attempt_index) == ("fresh", 1, 0)
    row = await engine.row(execution.id)
    assert (row["worker_id"], row["worker_instance_id"]) == ("operator", "operator")
    assert row["lease_id"] == lease.lease_id == lease.attempt_id
    assert await engine.grants() == []
    assert (await engine.kinds(execution.id))[-1] == "claimed"
    assert (await engine.complete(lease)).word == "completed"


async def test_an_interrupted_one_goes_on_with_its_attempt(engine, make):
    execution = await make.execution("interrupted")
    lease = await engine.grant_and_claim(execution.id)
    assert (lease.claim_kind, lease.epoch, lease.attempt_index) == ("resumed", 2, 0)
    assert lease.attempt_id == execution.last_lease.attempt_id


async def test_capabilities_and_lanes_do_not_matter(engine, make, conn):
    route = await engine.register(lane="off", capabilities="gpu")
    execution = await make.execution("waiting", route=route)
    await conn.execute("update ff.lane set state = 'disabled' where lane = 'off'")
    assert (await engine.grant_and_claim(execution.id)).lane == "off"


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("leased", "WF404"),
        ("delayed", "WF205"),
        ("blocked", "WF205"),
        ("held", "WF205"),
        ("delayed_by_worker", "WF205"),
        ("expired_lease", "WF205"),
        ("revoked", "WF205"),
        ("completed", "WF205"),
        ("cancelled", "WF205"),
    ],
)
async def test_a_refusal_leaves_nothing_behind(engine, make, state, code):
    execution = await make.execution(state)
    await unchanged(engine, code, engine.grant_and_claim(execution.id))
    assert await engine.grants() == []


async def test_what_is_granted_to_a_worker_is_left_to_it(clock, engine, make):
    await clock.freeze()
    execution = await make.execution("waiting")
    await engine.grant(execution.id, ttl=TEN)
    call = engine.grant_and_claim(execution.id)
    await unchanged(engine, "WF405", call, message="grant_exists", worker_id="pool")
    await clock.advance(TEN)
    await engine.grant_and_claim(execution.id)
    assert await engine.grants() == []


async def test_a_repeat_gets_the_same_lease(engine, make):
    execution = await make.execution("waiting")
    lease = await engine.grant_and_claim(execution.id)
    before = await engine.snapshot()
    assert await engine.grant_and_claim(execution.id, claim_id=lease.lease_id) == lease
    assert await engine.snapshot() == before


async def test_bad_input_is_refused_by_name(engine, make):
    execution = await make.execution("waiting")
    await unchanged(engine, "WF001", engine.grant_and_claim(None), field="execution_id")
    for ttl in (None, timedelta(), timedelta(days=2)):
        call = engine.grant_and_claim(execution.id, ttl=ttl)
        await unchanged(engine, "WF001", call, field="lease_ttl")
    await unchanged(engine, "WF301", engine.grant_and_claim(UUID(int=1)))
    await unchanged(engine, "WF301", engine.within("another").grant_and_claim(execution.id))


async def test_the_id_of_a_lease_that_ended_is_not_given_again(engine, make):
    execution = await make.execution("interrupted")
    call = engine.grant_and_claim(execution.id, claim_id=execution.last_lease.lease_id, ttl=TTL)
    await unchanged(engine, "WF001", call, field="claim_id")
