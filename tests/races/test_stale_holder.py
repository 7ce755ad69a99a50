"""A holder that lost its lease changes nothing any more, also when its call comes at the very
moment the lease is taken away."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from support.factories import TTL, Engine

from .crowd import open_transaction, until_blocked

CALLS = {
    "complete": lambda engine, lease, **how: engine.complete(lease, b'"late"', **how),
    "fail": lambda engine, lease, **how: engine.fail(lease, "transient", **how),
    "renew": lambda engine, lease: engine.renew(lease, timedelta(hours=1)),
    "release": lambda engine, lease, **how: engine.release(lease, **how),
}


async def unchanged(engine, execution_id, call):
    """The answer of a call that must not write anything."""
    before = await engine.snapshot()
    answer = await call
    assert await engine.snapshot() == before
    return answer.word


@pytest.mark.parametrize("name", CALLS)
async def test_after_expiry(engine, make, clock, name):
    execution = await make.execution("expired_lease")
    call = CALLS[name](engine, execution.lease)
    assert await unchanged(engine, execution.id, call) == "lease_expired"


@pytest.mark.parametrize("name", CALLS)
async def test_after_an_expiry_nobody_noticed(engine, make, clock, name):
    """The expiry was due and is recorded; nothing else happens."""
    execution = await make.execution("leased")
    await clock.advance(TTL)
    assert (await CALLS[name](engine, execution.lease)).word == "lease_expired"
    assert await engine.kinds(execution.id) == ["submitted", "claimed", "lease_expired"]
    row = await engine.row(execution.id)
    assert (row["ownership"], row["lease_id"]) == (
        "lease_expired_reclaimable",
        execution.lease.lease_id,
    )


@pytest.mark.parametrize("name", CALLS)
async def test_after_a_reclaim(db, engine, make, name):
    execution = await make.execution("expired_lease", lane="shared")
    other = Engine(await db.connect())
    new = await other.take(execution.id, lanes=["shared"], instance="other")
    call = CALLS[name](engine, execution.lease)
    assert await unchanged(engine, execution.id, call) == "stale_lease"
    assert (await other.complete(new, b'"mine"')).word == "completed"
    assert (await engine.row(execution.id))["result"] == b'"mine"'
    call = CALLS[name](engine, execution.lease)
    assert await unchanged(engine, execution.id, call) == "not_active"


@pytest.mark.parametrize("name", CALLS)
async def test_after_a_retry(engine, make, name):
    """The lease that failed may ask again what became of it; it can do nothing else."""
    execution = await make.execution("retry_delayed")
    word = "retry_scheduled" if name == "fail" else "not_active"
    call = CALLS[name](engine, execution.lease)
    assert await unchanged(engine, execution.id, call) == word

    execution = await make.execution("retried")
    first = (await engine.attempts(execution.id))[0]
    old = replace(
        execution.lease,
        lease_id=first["last_lease_id"],
        attempt_id=first["attempt_id"],
        epoch=first["epoch"],
    )
    word = "retry_scheduled" if name == "fail" else "stale_lease"
    assert await unchanged(engine, execution.id, CALLS[name](engine, old)) == word


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("thief", ["expire", "reclaim"])
async def test_while_the_lease_is_being_taken_away(db, engine, make, clock, name, thief):
    """Uncommitted: the holder is told that the row is busy. Committed: that it lost."""
    lane = {"lane": "shared"}
    execution = await make.execution("leased" if thief == "expire" else "expired_lease", **lane)
    await clock.advance(TTL)
    other = Engine(await db.connect())
    async with open_transaction(other):
        if thief == "expire":
            assert (await other.expire())[0] == 1
        else:
            await other.take(execution.id, lanes=["shared"], instance="other")
        call = CALLS[name](engine, execution.lease)
        assert await unchanged(engine, execution.id, call) == "busy"
    call = CALLS[name](engine, execution.lease)
    word = "lease_expired" if thief == "expire" else "stale_lease"
    assert await unchanged(engine, execution.id, call) == word


@pytest.mark.parametrize("name", ["complete", "fail", "release"])
@pytest.mark.parametrize("thief", ["expire", "reclaim"])
async def test_a_call_that_waits_for_the_thief(db, engine, make, clock, name, thief):
    """The fence is read after the wait, on the row as the other transaction left it."""
    lane = {"lane": "shared"}
    execution = await make.execution("leased" if thief == "expire" else "expired_lease", **lane)
    await clock.advance(TTL)
    other = Engine(await db.connect())
    side = Engine(await db.connect())
    async with open_transaction(other):
        if thief == "expire":
            await other.expire()
        else:
            await other.take(execution.id, lanes=["shared"], instance="other")
        waiting = asyncio.create_task(CALLS[name](side, execution.lease, wait=True))
        await until_blocked(db, side, waiting)
    assert (await waiting).word == ("lease_expired" if thief == "expire" else "stale_lease")
    row = await engine.row(execution.id)
    assert row["phase"] == "active"
    assert row["version"] == (3 if thief == "expire" else 4)


async def test_the_clock_is_read_after_the_wait(db, engine, make, clock):
    """A lease that runs out while its holder waits for the row is not honoured."""
    execution = await make.execution("leased")
    side = Engine(await db.connect())
    blocker = await db.connect()
    async with blocker.transaction():
        await blocker.execute("select from ff.execution for update")
        waiting = asyncio.create_task(side.complete(execution.lease, wait=True))
        await until_blocked(db, side, waiting)
        await clock.advance(TTL)
    assert (await waiting).word == "lease_expired"
    assert (await engine.row(execution.id))["ownership"] == "lease_expired_reclaimable"
