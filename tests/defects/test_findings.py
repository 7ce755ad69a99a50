"""What a reading of the rules of part 3 found, and what was put right."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest

from flowfabric.client import FlowFabric
from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import Route, Submission
from flowfabric.core.ids import ExecutionId
from support.factories import TTL


@pytest.mark.parametrize("partition", [255, -1])
async def test_a_partition_that_does_not_exist_is_refused(db, partition):
    """No worker and no reconciler would ever look there."""
    async with FlowFabric(db.url, namespace="test") as client:
        route = Route("test", "default", "tests.work")
        submission = Submission(id=ExecutionId.of(partition, uuid4()), route=route, payload=b"")
        with pytest.raises(InvalidInput):
            await client.executions.submit(submission)


@pytest.mark.parametrize(
    "policy",
    [
        {"routing_requirements": {"required_capabilities": ["gpu"]}},
        {"routing_requirements": "x"},
        {"delay_until": 4102444800000},
        {"timeout_policy": {"execution_deadline_ms": 1000}},
        {"timeout_policy": {"max_reclaim_count": 1}},
        {"dedup_window_ms": 1},
    ],
)
async def test_a_policy_field_that_nobody_obeys_is_refused(engine, policy):
    """Stored and without effect it would be a promise that is not kept."""
    answer = await engine.submit(policy=policy)
    assert (answer.word, answer.detail["field"]) == ("invalid", "policy")
    (key,) = policy
    assert key in answer.detail["problem"]
    assert await engine.rows() == []


@pytest.mark.parametrize("view", ["execution_view", "execution_list"])
async def test_a_replay_clears_the_failure_of_the_execution(engine, make, view):
    """The attempt keeps it; the execution that waits again does not show it."""
    execution = await make.execution("failed")
    await engine.replay(execution.id)
    shown = await engine.connection.fetchrow(
        f"select failure_reason from ff.{view} where execution_id = $1", execution.id
    )
    assert shown["failure_reason"] is None
    attempt = await engine.connection.fetchrow(
        "select failure_reason from ff.attempt_view where execution_id = $1", execution.id
    )
    assert attempt["failure_reason"] == "it broke"


async def test_an_ended_attempt_keeps_its_failure_when_a_deadline_comes(engine, make, clock):
    """What went wrong is what an operator wants to know."""
    policy = {"retry_policy": {"backoff": {"type": "fixed", "delay_ms": 36_000_000}}}
    execution = await make.execution("leased", deadline=timedelta(hours=1), policy=policy)
    await engine.fail(execution.last_lease, "transient", "smtp down", detail=b"trace of smtp")
    await clock.advance(hours=1)
    await engine.expire_executions()
    row = await engine.row(execution.id)
    assert (row["failure_reason"], row["failure_detail"]) == ("smtp down", b"trace of smtp")
    assert row["public_state"] == "expired"


async def test_an_attempt_timeout_is_judged_by_the_category_it_is_stored_with(engine, make, clock):
    policy = {
        "retry_policy": {"retryable_categories": ["attempt_timeout"]},
        "timeout_policy": {"attempt_timeout_ms": 1000},
    }
    execution = await make.execution("leased", ttl=timedelta(hours=2), policy=policy)
    await clock.advance(seconds=2)
    await engine.expire_executions()
    row = await engine.row(execution.id)
    assert (row["phase"], row["failure_category"]) == ("runnable", "attempt_timeout")


async def test_expiry_is_told_before_a_wrong_epoch(engine, make, clock):
    execution = await make.execution("leased")
    await clock.advance(TTL)
    assert (await engine.complete(replace(execution.last_lease, epoch=9))).word == "lease_expired"
    assert (await engine.row(execution.id))["ownership"] == "lease_expired_reclaimable"
