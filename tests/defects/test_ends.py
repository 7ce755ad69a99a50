"""Defects D-40 to D-42, D-47, D-61 and D-62: retries by the stored policy, and complete endings."""

from __future__ import annotations

from datetime import timedelta

import pytest

BACKOFF = {"type": "exponential", "initial_delay_ms": 1000, "max_delay_ms": 3000}


async def test_d40_retries_end_and_wait_longer_each_time(engine, clock):
    policy = {"retry_policy": {"max_retries": 3, "backoff": BACKOFF}}
    submitted = await engine.submit(policy=policy)
    await clock.freeze()
    waits = []
    for _ in range(3):
        answer = await engine.fail(await engine.take(submitted.id), "transient")
        assert answer.word == "retry_scheduled"
        assert await engine.claim() == []
        waits.append((answer.delayed_until - await clock.now()).total_seconds())
        await clock.set(answer.delayed_until)
        await engine.promote()
    assert waits == [1, 2, 3]
    assert (await engine.fail(await engine.take(submitted.id), "transient")).word == "failed"


@pytest.mark.parametrize(
    ("class_", "word"),
    [
        ("timeout", "retry_scheduled"),
        ("infra_crash", "retry_scheduled"),
        ("permanent", "failed"),
        ("cancelled", "failed"),
    ],
)
async def test_d40_the_class_decides_whether_there_is_a_retry(engine, make, class_, word):
    execution = await make.execution("leased", policy={"retry_policy": {}})
    assert (await engine.fail(execution.last_lease, class_)).word == word
    without = await make.execution("leased")
    assert (await engine.fail(without.last_lease, class_)).word == "failed"


async def test_d41_a_retry_is_due_at_its_own_time_and_not_at_the_deadline(engine, make, clock):
    execution = await make.execution(
        "leased",
        deadline=timedelta(hours=5),
        policy={"retry_policy": {"backoff": {"type": "fixed", "delay_ms": 60_000}}},
    )
    before = await engine.row(execution.id)
    await engine.fail(execution.last_lease)
    row = await engine.row(execution.id)
    assert row["delayed_until"] == row["transitioned_at"] + timedelta(minutes=1)
    await clock.advance(minutes=1)
    assert (await engine.promote())[0] == 1
    row = await engine.row(execution.id)
    assert (row["public_state"], row["deadline_at"]) == ("waiting", before["deadline_at"])
    assert (await engine.take(execution.id)).attempt_type == "retry"


@pytest.mark.parametrize(
    ("category", "word"), [("network", "retry_scheduled"), ("disk", "failed"), (None, "failed")]
)
async def test_d42_the_stored_policy_says_what_is_worth_a_retry(engine, make, category, word):
    """A caller gives a category; the policy it cannot touch decides."""
    execution = await make.execution(
        "leased", policy={"retry_policy": {"retryable_categories": ["network"]}}
    )
    assert (await engine.fail(execution.last_lease, category=category)).word == word


async def test_d42_jitter_shortens_the_wait_by_up_to_a_half(engine, make):
    waits = set()
    backoff = {"type": "fixed", "delay_ms": 100_000, "jitter": True}
    for _ in range(5):
        execution = await make.execution("leased", policy={"retry_policy": {"backoff": backoff}})
        answer = await engine.fail(execution.last_lease)
        waits.add(answer.delayed_until - (await engine.row(execution.id))["transitioned_at"])
    assert len(waits) > 1
    assert all(timedelta(seconds=50) <= wait <= timedelta(seconds=100) for wait in waits)


@pytest.mark.parametrize("state", ["waiting", "delayed", "leased", "expired_lease", "blocked"])
async def test_d61_a_cancellation_is_announced_as_an_end(db, engine, make, state):
    execution = await make.execution(state)
    await engine.cancel(execution.id)
    ends = await db.fetch(
        "select outcome, namespace from ff.completion_feed where execution_id = $1", execution.id
    )
    assert [tuple(end) for end in ends] == [("cancelled", "test")]


async def test_d61_a_holder_that_cancels_announces_it_too(db, engine, make):
    execution = await make.execution("leased")
    assert (await engine.cancel_held(execution.last_lease)).word == "cancelled"
    feed = "select outcome from ff.completion_feed where execution_id = $1"
    assert [end["outcome"] for end in await db.fetch(feed, execution.id)] == ["cancelled"]


async def test_d62_a_cancellation_takes_the_grant_along(engine, make):
    """Of all that an end has to close, this is what there is so far."""
    waiting, lost = await make.execution("waiting"), await make.execution("expired_lease")
    assert (await engine.grant(waiting.id)).word == "granted"
    assert (await engine.grant_reclaim(lost.id)).word == "granted"
    for execution in (waiting, lost):
        await engine.cancel(execution.id)
    assert await engine.grants() == []
