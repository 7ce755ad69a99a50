"""What the machine of test_machine.py found, each as the few calls it takes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from support.admission import Admission, in_one_partition
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


@pytest.mark.parametrize("round_", ["_pick_candidates", "_pick_one_by_one"])
async def test_a_round_of_a_claim_ends_no_more_executions_than_it_may_lease(
    db, engine, make, clock, round_
):
    """One by one too: that is how a claim goes on behind rows that others have just taken."""
    for _ in range(3):
        await make.execution("waiting", lane="a", deadline=timedelta(minutes=1))
    await clock.advance(minutes=1)
    most_vain = ", p_most_vain => 1" if round_ == "_pick_one_by_one" else ""
    found = await db.fetchrow(
        f"select * from ff.{round_}(p_partition_key => 0::smallint, "
        "p_routes => array(select route_id from ff.route), p_turns => null, "
        "p_reclaiming => false, p_from_rank => -1::smallint, p_from_turn => 0::smallint, "
        "p_from_at => '-infinity', p_from_id => '00000000-0000-0000-0000-000000000000', "
        f"p_size => 20, p_need => 2{most_vain}, p_worker_id => null, p_now => ff.now())"
    )
    assert (found["picked"], len(found["capped"]), found["is_cut"]) == ([], 2, True)


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


@in_one_partition
async def test_an_execution_that_runs_is_not_blocked_since_it_stood_in_line(engine):
    admission = Admission(engine)
    gates = sorted([await admission.quota(name, concurrency=1) for name in ("a", "b")])
    (first,) = await admission.submit(1, quotas=gates[:1])
    lease = await engine.take(first.id)
    (second,) = await admission.submit(1, quotas=gates)
    assert await engine.claim(1) == []
    assert (await engine.row(second.id))["blocked_at"] is not None
    await engine.complete(lease)
    await engine.take(second.id)
    row = await engine.row(second.id)
    assert (row["blocked_at"], row["line_id"], row["refusal_count"]) == (None, None, None)


@in_one_partition
async def test_what_ended_in_line_has_no_refusals(engine):
    """One claim may put a child into line, and then end it with its parent."""
    admission = Admission(engine)
    gates = sorted([await admission.quota(name, concurrency=1) for name in ("a", "b")])
    (first,) = await admission.submit(1, quotas=gates[:1])
    await engine.take(first.id)
    (second,) = await admission.submit(1, quotas=gates)
    assert await engine.claim(1) == []
    assert (await engine.row(second.id))["refusal_count"] == 1
    await engine.cancel(second.id)
    assert (await engine.row(second.id))["refusal_count"] is None


async def _child(engine, parent, *, lane, **item):
    """A child that ends with its parent."""
    route = await engine.register(lane=lane)
    child = await engine.submit(route=route, parent=parent.id, with_parent=True, **item)
    assert child.word == "created"
    return child.id
