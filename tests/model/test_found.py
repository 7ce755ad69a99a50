"""What the machine of test_machine.py found, each as the few calls it takes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from support.factories import TTL, Step

FAILURE = b'{"trace": "line 1"}'


async def test_a_cancel_that_marks_the_lease_expired_answers_the_version_that_made(
    engine, make, clock
):
    execution = await make.execution("leased")
    await clock.advance(TTL)
    answer = await engine.cancel_held(execution.lease)
    row = await engine.row(execution.id)
    assert (answer.word, answer.version) == ("lease_expired", row["version"])
    assert await engine.kinds(execution.id) == ["submitted", "claimed", "lease_expired"]


@pytest.mark.parametrize("is_claimed_again", [False, True])
async def test_a_holder_whose_cancel_was_replayed_since_is_told_that_it_cancelled(
    engine, make, is_claimed_again
):
    execution = await make.execution("leased", lane="a")
    assert (await engine.cancel_held(execution.lease)).word == "cancelled"
    await engine.replay(execution.id)
    if is_claimed_again:
        await engine.take(execution.id, lanes=["a"])
    before = await engine.snapshot()
    assert (await engine.cancel_held(execution.lease)).word == "cancelled"
    assert await engine.snapshot() == before


async def test_a_deadline_leaves_the_failure_of_an_attempt_whole(engine, make, clock):
    execution = await make.execution(
        "leased", deadline=timedelta(hours=1), policy={"retry_policy": {}}
    )
    await engine.fail(execution.lease, "transient", "it broke", detail=FAILURE)
    await clock.advance(hours=1)
    assert (await engine.expire_executions())[0] == 1
    row = await engine.row(execution.id)
    assert (row["failure_class"], row["failure_reason"]) == ("transient", "it broke")
    assert (row["failure_detail"], row["outcome"]) == (FAILURE, "expired")


async def test_a_replay_after_a_deadline_without_attempt_begins_without_its_failure(engine, make):
    execution = await make.execution("expired", lane="a")
    assert (await engine.row(execution.id))["failure_category"] == "execution_deadline"
    await engine.replay(execution.id)
    lease = await engine.take(execution.id, lanes=["a"])
    await engine.complete(lease)
    row = await engine.row(execution.id)
    assert (row["outcome"], row["failure_class"], row["failure_reason"]) == ("success", None, None)


async def test_a_claim_leases_no_child_whose_parent_it_ends(engine, make, clock):
    """The parent has lost too many leases and the child waits: one claim meets both."""
    parent = await make.execution("leased", lane="a", policy={"max_reclaim_count": 0}, priority=9)
    child = await _child(engine, parent, lane="a")
    await clock.advance(TTL)
    assert (await engine.expire())[0] == 1
    assert await engine.claim(5, lanes=["a"]) == []
    row = await engine.row(child)
    assert (row["outcome"], row["cancelled_by"], row["epoch"]) == ("cancelled", "parent", 0)
    assert await engine.kinds(child) == ["submitted", "cancelled"]


async def test_a_claim_ends_a_child_over_the_cap_once(engine, make, clock):
    """Parent and child have both lost too many leases: the child ends with the parent."""
    parent = await make.execution("leased", lane="a", policy={"max_reclaim_count": 0}, priority=9)
    child = await _child(engine, parent, lane="a", policy={"max_reclaim_count": 0})
    await engine.take(child, lanes=["a"])
    await clock.advance(TTL)
    assert (await engine.expire())[0] == 2
    assert await engine.claim(5, lanes=["a"]) == []
    assert await engine.kinds(child) == ["submitted", "claimed", "lease_expired", "cancelled"]


@pytest.mark.parametrize("policy", [{}, {"retry_policy": {}}])
async def test_an_attempt_out_of_time_is_not_settled_after_its_parent_ended_it(
    engine, make, clock, policy
):
    parent = await make.execution("waiting", lane="a", deadline=timedelta(hours=1))
    timeout = {"timeout_policy": {"attempt_timeout_ms": 3_600_000}}
    child = await _child(engine, parent, lane="b", policy={**policy, **timeout})
    await engine.take(child, lanes=["b"], ttl=timedelta(hours=2))
    await clock.advance(hours=1)
    assert (await engine.expire_executions())[0] == 1
    row = await engine.row(child)
    assert (row["outcome"], row["cancelled_by"], row["failure_class"]) == (
        "cancelled",
        "parent",
        None,
    )
    assert await engine.kinds(child) == ["submitted", "claimed", "cancelled"]


async def test_a_step_is_not_said_to_exist_because_a_zombie_asked_for_it(engine, make):
    """Both have the step in one batch; the zombie's is not recorded and stands for nothing."""
    execution = await make.execution("leased", lane="a")
    zombie = execution.lease
    await engine.release(zombie)
    lease = await engine.take(execution.id, lanes=["a"])
    answers = await engine.record_many(
        [
            (lease, Step(name="other", value=b"1")),
            (zombie, Step(name="load", position=1, value=b"old")),
            (lease, Step(name="load", position=1, value=b"new")),
        ]
    )
    assert [answer.word for answer in answers] == ["recorded", "busy", "recorded"]
    assert [(s["name"], s["value"]) for s in await engine.steps(execution.id)] == [
        ("other", b"1"),
        ("load", b"new"),
    ]


async def test_a_broken_fence_does_not_spoil_a_good_one_of_the_same_execution(engine, make):
    execution = await make.execution("leased")
    broken = replace(execution.lease, lease_id=None)
    step = Step(value=b"1")
    answers = await engine.record_many([(broken, step), (execution.lease, step)])
    assert [answer.word for answer in answers] == ["invalid", "busy"]
    assert (await engine.record(execution.lease, step)).word == "recorded"


async def _child(engine, parent, *, lane, **item):
    """A child that ends with its parent."""
    route = await engine.register(lane=lane)
    child = await engine.submit(route=route, parent=parent.id, with_parent=True, **item)
    assert child.word == "created"
    return child.id
