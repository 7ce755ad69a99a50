"""One row that somebody keeps locked holds up nothing else of its batch."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from support.factories import Engine, Item, refused

from .crowd import fill, holding, open_transaction, until_blocked

HOUR = timedelta(hours=1)


@pytest.fixture
async def leases(engine):
    route = await engine.register()
    await fill(engine, [Item(route=route)] * 60)
    return await engine.claim(60)


async def test_all_other_leases_are_renewed_meanwhile(db, engine, clock, leases):
    busy = leases[17]
    side = Engine(await db.connect())
    async with holding(db, busy.execution_id):
        for _ in range(3):
            answers = await side.renew_many(leases, HOUR)
            assert [answer.word for answer in answers] == [
                "busy" if lease is busy else "renewed" for lease in leases
            ]
        # seen from outside while the row is still locked
        renewed = await db.fetch(
            "select execution_id from ff.execution where lease_expires_at > ff.now() + $1",
            timedelta(minutes=59),
        )
        assert len(renewed) == 59
        assert busy.execution_id not in {row["execution_id"] for row in renewed}
    assert {answer.word for answer in await side.renew_many(leases, HOUR)} == {"renewed"}
    assert (await engine.row(busy.execution_id))["lease_expires_at"] > busy.lease_expires_at


@pytest.mark.parametrize("name", ["complete", "fail", "release"])
async def test_all_others_of_a_batch_are_settled_at_once(db, engine, leases, name):
    busy = leases[0]
    side = Engine(await db.connect())

    async def settle(batch):
        if name == "complete":
            return await side.complete_many(batch, [b"1"] * len(batch))
        if name == "fail":
            return await side.fail_many(batch, ["permanent"] * len(batch), ["no"] * len(batch))
        return await side.release_many(batch)

    word = {"complete": "completed", "fail": "failed", "release": "released"}[name]
    async with holding(db, busy.execution_id):
        answers = await settle(leases)
        assert [answer.word for answer in answers] == ["busy"] + [word] * 59
        kept = await db.fetch("select execution_id from ff.execution where phase = 'active'")
        assert [row["execution_id"] for row in kept] == [busy.execution_id]
    assert [answer.word for answer in await settle([busy])] == [word]


async def test_a_busy_row_is_told_from_a_missing_one(db, engine, leases):
    busy = leases[3]
    side = Engine(await db.connect()).within("somebody else")
    async with holding(db, busy.execution_id):
        # a foreign row is not found, locked or not: it must not give itself away
        assert (await side.complete(busy)).word == "not_found"
        assert (await side.renew(busy)).word == "not_found"


async def test_a_single_call_may_wait_for_its_row(db, engine, leases):
    busy = leases[5]
    side = Engine(await db.connect())
    holder = Engine(await db.connect())
    async with open_transaction(holder):
        await holder.renew(busy, HOUR)
        waiting = asyncio.create_task(side.complete(busy, wait=True))
        await until_blocked(db, side, waiting)
    assert (await waiting).word == "completed"


async def test_a_call_that_waits_gives_up_in_the_end(db, engine, leases):
    busy = leases[5]
    side = Engine(await db.connect())
    async with holding(db, busy.execution_id):
        waiting = asyncio.create_task(side.complete(busy, wait=True))
        await until_blocked(db, side, waiting)
        with refused("55P03"):
            await waiting
    assert (await side.complete(busy)).word == "completed"


async def test_a_row_that_comes_free_is_claimed_next(db, engine):
    """A claim passes over what others hold, and comes back for it."""
    route = await engine.register()
    ids = await fill(engine, [Item(route=route)] * 5)
    side = Engine(await db.connect())
    async with holding(db, ids[0]):
        assert [lease.execution_id for lease in await side.claim(2)] == ids[1:3]
    assert [lease.execution_id for lease in await side.claim(2)] == [ids[0], ids[3]]
