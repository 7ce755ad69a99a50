"""block_execution_for_admission and unblock_execution."""

from __future__ import annotations

import pytest

from support.factories import Engine, new_id, refused

MAP = {
    "waiting_for_budget": ("blocked_by_budget", "rate_limited"),
    "waiting_for_quota": ("blocked_by_quota", "rate_limited"),
    "waiting_for_capable_worker": ("blocked_by_route", "waiting"),
    "paused_by_operator": ("blocked_by_operator", "waiting"),
    "paused_by_policy": ("blocked_by_operator", "waiting"),
}


@pytest.mark.parametrize("reason", MAP)
async def test_a_block_shows_as_what_it_is(engine, make, reason):
    execution = await make.execution("waiting", lane="a")
    answer = await engine.block(execution.id, reason, detail="tokens", actor="ann")
    row = await engine.row(execution.id)
    assert answer.word == "blocked"
    assert (row["eligibility"], row["public_state"]) == MAP[reason]
    assert (row["blocking_reason"], row["blocking_detail"]) == (reason, "tokens")
    assert row["blocked_at"] is not None
    assert await engine.claim(1, lanes=["a"]) == []
    assert (await engine.kinds(execution.id))[-1] == "blocked"


@pytest.mark.parametrize("reason", MAP)
async def test_unblocking_puts_it_back_into_the_line(engine, make, reason):
    execution = await make.execution("waiting", lane="a")
    await engine.block(execution.id, reason, detail="why")
    assert (await engine.unblock(execution.id, expected_reason=reason)).word == "unblocked"
    row = await engine.row(execution.id)
    assert (row["blocking_detail"], row["blocked_at"]) == (None, None)
    assert (await engine.take(execution.id, lanes=["a"])).attempt_index == 0


async def test_without_an_actor_both_are_quiet(engine, make):
    execution = await make.execution("waiting")
    await engine.block(execution.id, "waiting_for_budget")
    await engine.unblock(execution.id)
    assert await engine.kinds(execution.id) == ["submitted"]
    assert (await engine.row(execution.id))["version"] == 1


async def test_unblocking_for_another_reason_changes_nothing(engine, make):
    execution = await make.execution("waiting")
    await engine.block(execution.id, "waiting_for_budget")
    before = await engine.snapshot()
    with refused("WF205"):
        await engine.unblock(execution.id, expected_reason="waiting_for_quota")
    assert await engine.snapshot() == before


async def test_blocking_again_for_the_same_reason_changes_nothing(engine, make):
    execution = await make.execution("waiting")
    await engine.block(execution.id, actor="ann")
    before = await engine.snapshot()
    assert (await engine.block(execution.id, actor="ann")).word == "blocked"
    assert await engine.snapshot() == before


async def test_one_admission_block_may_take_the_place_of_another(engine, make):
    execution = await make.execution("waiting")
    await engine.block(execution.id, "waiting_for_budget")
    await engine.block(execution.id, "waiting_for_quota")
    assert (await engine.row(execution.id))["eligibility"] == "blocked_by_quota"


@pytest.mark.parametrize("state", ["delayed", "retry_delayed", "leased", "expired_lease", "held"])
async def test_what_cannot_be_claimed_now_cannot_be_blocked(engine, make, state):
    execution = await make.execution(state)
    before = await engine.snapshot()
    with refused("WF205"):
        await engine.block(execution.id, "waiting_for_budget")
    assert await engine.snapshot() == before


@pytest.mark.parametrize("state", ["completed", "cancelled"])
async def test_an_ended_execution_is_not_active(engine, make, state):
    execution = await make.execution(state)
    with refused("WF201"):
        await engine.block(execution.id)
    with refused("WF205"):
        await engine.unblock(execution.id)


@pytest.mark.parametrize("reason", [None, "", "none", "waiting_for_worker", "nonsense"])
async def test_an_unknown_reason_is_refused(engine, make, reason):
    execution = await make.execution("waiting")
    with refused("WF001", field="blocking_reason"):
        await engine.block(execution.id, reason)


async def test_an_unknown_or_foreign_execution_is_not_found(db, engine, make):
    execution = await make.execution("blocked")
    before = await engine.snapshot()
    for other in (engine, Engine(db.conn, namespace="other")):
        target = new_id() if other is engine else execution.id
        with refused("WF301"):
            await other.block(target)
        with refused("WF301"):
            await other.unblock(target)
    assert await engine.snapshot() == before


async def test_the_deadline_stays_armed_under_a_block(engine, make, clock):
    execution = await make.execution("blocked", deadline_at=await clock.now())
    assert (await engine.expire_executions())[0] == 1
    assert (await engine.row(execution.id))["public_state"] == "expired"
