"""Whoever lost a lease changes nothing, whatever happened since and whatever it asks for: it is
refused, or gets the answer it got the first time. Nothing is written, no event."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.factories import TTL
from support.sabotage import revoke

OPERATIONS = ("renew", "complete", "fail", "release")

# What became of the execution, and the words for renew, complete, fail and release.
MATRIX = {
    "retry_delayed": ("not_active", "not_active", "retry_scheduled", "not_active"),
    "retry_waiting": ("not_active", "not_active", "retry_scheduled", "not_active"),
    "retried": ("stale_lease", "stale_lease", "retry_scheduled", "stale_lease"),
    "retried_and_completed": ("not_active", "not_active", "retry_scheduled", "not_active"),
    "interrupted": ("not_active", "not_active", "not_active", "released"),
    "resumed": ("stale_lease", "stale_lease", "stale_lease", "released"),
    "resumed_and_completed": ("not_active", "not_active", "not_active", "not_active"),
    "expired": ("lease_expired", "lease_expired", "lease_expired", "lease_expired"),
    "waiting_to_be_reclaimed": ("lease_expired", "lease_expired", "lease_expired", "lease_expired"),
    "reclaimed": ("stale_lease", "stale_lease", "stale_lease", "stale_lease"),
    "reclaimed_and_expired": ("stale_lease", "stale_lease", "stale_lease", "stale_lease"),
    "reclaimed_and_completed": ("not_active", "not_active", "not_active", "not_active"),
    "reclaimed_and_failed": ("not_active", "not_active", "not_active", "not_active"),
    "revoked": ("lease_revoked", "lease_revoked", "lease_revoked", "lease_revoked"),
    "revoked_and_reclaimed": ("stale_lease", "stale_lease", "stale_lease", "stale_lease"),
    "completed": ("not_active", "completed", "not_active", "not_active"),
    "failed": ("not_active", "not_active", "failed", "not_active"),
    "over_the_cap": ("not_active", "not_active", "not_active", "not_active"),
}


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
            await revoke(story.engine.connection, story.execution.id)
        case "revoked_and_reclaimed":
            await revoke(story.engine.connection, story.execution.id)
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

    if what == "waiting_to_be_reclaimed":
        execution = await make.execution("reclaim_delayed")
        zombie = execution.last_lease
    else:
        policy = {"retry_policy": {"max_retries": 3}}
        cap = 0 if what == "over_the_cap" else None
        execution = await make.execution("leased", policy=policy, max_reclaims=cap)
        zombie = execution.last_lease
        await tell(Story(engine, clock, execution, TTL), what)

    before = await engine.snapshot()
    words = []
    for operation in OPERATIONS:
        answer = await getattr(engine, operation)(zombie)
        words.append(answer.word)
        assert await engine.snapshot() == before, f"{operation} wrote something"
    assert tuple(words) == MATRIX[what]
    # again, the other way round and in one batch with itself: still nothing
    for operation in reversed(OPERATIONS):
        await getattr(engine, operation)(zombie)
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
        await getattr(engine, operation)(execution.last_lease)
    assert (await engine.renew(story.lease)).word == "renewed"
    assert (await engine.complete(story.lease, b"mine")).word == "completed"
    assert (await engine.row(execution.id))["result"] == b"mine"


async def test_a_zombie_that_was_never_told_learns_of_its_expiry_once(clock, engine, make):
    """The first late call marks the lease; those after it find it marked."""

    execution = await make.execution("leased")
    await clock.advance(TTL)
    for operation in OPERATIONS:
        assert (await getattr(engine, operation)(execution.last_lease)).word == "lease_expired"
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
        assert (await getattr(engine, operation)(old)).word == "stale_lease"
    assert await engine.snapshot() == before
