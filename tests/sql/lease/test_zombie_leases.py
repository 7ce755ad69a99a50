"""Whoever lost a lease changes nothing, whatever happened since and whatever it asks for: it is
refused, or gets the answer it got the first time. Nothing is written, no event."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import asyncpg
import pytest

from support.factories import TTL

OPERATIONS = (
    "start",
    "renew",
    "complete",
    "fail",
    "release",
    "progress",
    "delay",
    "wait_children",
    "hold",
    "continue_as",
    "cancel_held",
)

# What became of the execution: the word for every operation of the zombie, and those of its own
# that get their first answer again.
MATRIX = {
    "retry_delayed": ("not_active", {"fail": "retry_scheduled"}),
    "retry_waiting": ("not_active", {"fail": "retry_scheduled"}),
    "retried": ("stale_lease", {"fail": "retry_scheduled"}),
    "retried_and_completed": ("not_active", {"fail": "retry_scheduled"}),
    "interrupted": ("not_active", {"release": "released"}),
    "resumed": ("stale_lease", {"release": "released"}),
    "resumed_and_completed": ("not_active", {}),
    "expired": ("lease_expired", {}),
    "waiting_to_be_reclaimed": ("lease_expired", {}),
    "reclaimed": ("stale_lease", {}),
    "reclaimed_and_expired": ("stale_lease", {}),
    "reclaimed_and_completed": ("not_active", {}),
    "reclaimed_and_failed": ("not_active", {}),
    "revoked": ("lease_revoked", {}),
    "revoked_and_reclaimed": ("stale_lease", {}),
    "completed": ("not_active", {"complete": "completed"}),
    "failed": ("not_active", {"fail": "failed"}),
    "over_the_cap": ("not_active", {}),
    "delayed": ("not_active", {"delay": "delayed"}),
    "delayed_and_claimed": ("stale_lease", {"delay": "delayed"}),
    "waited": ("not_active", {"wait_children": "waiting"}),
    "waited_and_claimed": ("stale_lease", {"wait_children": "waiting"}),
    "held": ("not_active", {"hold": "held"}),
    "held_and_retried": ("not_active", {"hold": "held"}),
    "continued": ("not_active", {"continue_as": "continued"}),
    "continued_and_claimed": ("stale_lease", {"continue_as": "continued"}),
    "cancelled": ("not_active", {"cancel_held": "cancelled"}),
    "cancelled_by_its_holder": ("not_active", {"cancel_held": "cancelled"}),
    "timed_out": ("not_active", {}),
    "past_its_deadline": ("not_active", {}),
    "replayed": ("not_active", {"complete": "completed"}),
    "replayed_and_claimed": ("stale_lease", {"complete": "completed"}),
}
# An execution that ended otherwise says so to whoever wants to cancel it.
ENDED = {name for name in MATRIX if name.endswith(("_and_completed", "_and_failed"))} | {
    "completed",
    "failed",
    "over_the_cap",
    "past_its_deadline",
}


async def ask(engine, operation, zombie):
    """The word for one operation of a former holder."""
    try:
        answer = await getattr(engine, operation)(
            zombie, *((50,) if operation == "progress" else ())
        )
    except asyncpg.PostgresError as error:
        return {"WF204": "already_terminal"}[error.sqlstate]
    return answer.word


class Story:
    """Leads an execution on from its first lease, the zombie's."""

    def __init__(self, engine, clock, execution, ttl):
        self.engine, self.clock, self.execution, self.ttl = engine, clock, execution, ttl
        self.lease = execution.last_lease

    async def claim(self):
        self.lease = await self.engine.take(self.execution.id, instance="pool-2")

    async def fail(self):
        retry = await self.engine.fail(self.lease)
        assert retry.word == "retry_scheduled"
        return retry

    async def expire(self):
        await self.clock.advance(self.ttl)
        await self.engine.expire()

    async def wait(self):
        await self.clock.advance(minutes=5)
        await self.engine.promote()


async def tell(story, what):
    """Do to the execution what the name of the scenario says."""
    match what:
        case "retry_delayed":
            await story.fail()
        case "retry_waiting":
            await story.fail()
            await story.wait()
        case "retried" | "retried_and_completed":
            await story.fail()
            await story.wait()
            await story.claim()
        case "interrupted":
            await story.engine.release(story.lease)
        case "resumed" | "resumed_and_completed":
            await story.engine.release(story.lease)
            await story.claim()
        case "expired":
            await story.expire()
        case "waiting_to_be_reclaimed":
            raise AssertionError("needs two reclaims before the zombie's lease")
        case "reclaimed" | "reclaimed_and_completed" | "reclaimed_and_failed":
            await story.expire()
            await story.claim()
        case "reclaimed_and_expired":
            await story.expire()
            await story.claim()
            await story.expire()
        case "revoked":
            await story.engine.revoke(story.execution.id)
        case "revoked_and_reclaimed":
            await story.engine.revoke(story.execution.id)
            await story.claim()
        case "delayed":
            await story.engine.delay(story.lease)
        case "delayed_and_claimed":
            await story.engine.delay(story.lease, timedelta(0))
            await story.claim()
        case "waited":
            await story.engine.wait_children(story.lease)
        case "waited_and_claimed":
            await story.engine.wait_children(story.lease)
            await story.claim()
        case "held":
            await story.engine.hold(story.lease)
        case "held_and_retried":
            await story.engine.hold(story.lease)
            await story.engine.retry(story.execution.id)
        case "continued":
            await story.engine.continue_as(story.lease)
        case "continued_and_claimed":
            await story.engine.continue_as(story.lease)
            await story.claim()
        case "cancelled":
            await story.engine.cancel(story.execution.id)
        case "cancelled_by_its_holder":
            await story.engine.cancel_held(story.lease)
        case "timed_out" | "past_its_deadline":
            # renewed all along: it is not the lease that runs out
            await story.clock.advance(seconds=20)
            await story.engine.renew(story.lease)
            await story.clock.advance(seconds=20)
            assert (await story.engine.expire_executions())[0] == 1
        case "replayed":
            await story.engine.complete(story.lease)
            await story.engine.replay(story.execution.id)
        case "replayed_and_claimed":
            await story.engine.complete(story.lease)
            await story.engine.replay(story.execution.id)
            await story.claim()
        case "completed":
            await story.engine.complete(story.lease)
        case "failed":
            await story.engine.fail(story.lease, "permanent")
        case "over_the_cap":
            await story.expire()
            assert await story.engine.claim() == []
    if what.endswith("_and_completed"):
        assert (await story.engine.complete(story.lease)).word == "completed"
    if what.endswith("_and_failed"):
        assert (await story.engine.fail(story.lease, "permanent")).word == "failed"


@pytest.mark.parametrize("what", MATRIX)
async def test_a_zombie_is_refused_or_gets_its_first_answer(clock, engine, make, what):
    """Every operation, whatever became of the execution."""
    if what == "waiting_to_be_reclaimed":
        execution = await make.execution("reclaim_delayed")
        zombie = execution.last_lease
    else:
        policy = {"retry_policy": {"max_retries": 3}}
        if what == "timed_out":
            policy["timeout_policy"] = {"attempt_timeout_ms": 40_000}
        execution = await make.execution(
            "leased",
            policy=policy,
            max_reclaims=0 if what == "over_the_cap" else None,
            deadline=timedelta(seconds=40) if what == "past_its_deadline" else None,
        )
        zombie = execution.last_lease
        await tell(Story(engine, clock, execution, TTL), what)

    before = await engine.snapshot()
    word, own = MATRIX[what]
    expected = dict.fromkeys(OPERATIONS, word) | own
    if what in ENDED:
        expected["cancel_held"] = "already_terminal"
    for operation in OPERATIONS:
        assert await ask(engine, operation, zombie) == expected[operation], operation
        assert await engine.snapshot() == before, f"{operation} wrote something"
    # again, the other way round and in one batch with itself: still nothing
    for operation in reversed(OPERATIONS):
        await ask(engine, operation, zombie)
    await engine.renew_many([zombie, zombie])
    await engine.release_many([zombie, zombie])
    await engine.complete_many([zombie, zombie])
    assert await engine.snapshot() == before


@pytest.mark.parametrize("what", ["retried", "resumed", "reclaimed"])
async def test_the_new_holder_is_not_disturbed_by_the_zombie(clock, engine, make, what):
    execution = await make.execution("leased", policy={"retry_policy": {}})

    story = Story(engine, clock, execution, TTL)
    await tell(story, what)
    for operation in OPERATIONS:
        await ask(engine, operation, execution.last_lease)
    assert (await engine.renew(story.lease)).word == "renewed"
    assert (await engine.complete(story.lease, b"mine")).word == "completed"
    assert (await engine.row(execution.id))["result"] == b"mine"


async def test_a_zombie_that_was_never_told_learns_of_its_expiry_once(clock, engine, make):
    """The first late call marks the lease; those after it find it marked."""

    execution = await make.execution("leased")
    await clock.advance(TTL)
    for operation in OPERATIONS:
        assert await ask(engine, operation, execution.last_lease) == "lease_expired"
    assert await engine.kinds(execution.id) == ["submitted", "claimed", "lease_expired"]


@pytest.mark.parametrize("epoch", [1, 2, 3, 99])
async def test_an_old_lease_with_a_guessed_epoch_stays_an_old_lease(engine, make, epoch):

    execution = await make.execution("leased")
    await engine.release(execution.last_lease)
    new = await engine.take(execution.id)
    before = await engine.snapshot()
    forged = replace(execution.last_lease, epoch=epoch)
    for operation in ("renew", "complete", "fail"):
        assert (await getattr(engine, operation)(forged)).word == "stale_lease"
    # and the new lease with an old epoch is no better
    old = replace(new, epoch=1)
    for operation in OPERATIONS:
        assert await ask(engine, operation, old) == "stale_lease"
    assert await engine.snapshot() == before
