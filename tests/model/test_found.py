"""What the machine of test_machine.py found, each as the few calls it takes."""

from __future__ import annotations

from datetime import timedelta

import pytest

from support.factories import TTL

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
