"""ff.reap_grants: grants that are over go, and whoever waited for them is told."""

from __future__ import annotations

from datetime import timedelta

import pytest

from support.database import home
from support.factories import Item, refused
from support.hints import hints

SECOND = timedelta(seconds=1)


async def granted(engine, *ttls, **more):
    created = await engine.submit_many([Item()] * len(ttls))
    for submitted, ttl in zip(created, ttls, strict=True):
        await engine.grant(submitted.id, ttl=timedelta(seconds=ttl), **more)
    return [submitted.id for submitted in created]


async def test_grants_that_are_over_go_and_live_ones_stay(clock, engine):
    await clock.freeze()
    ids = await granted(engine, 1, 2, 3)
    assert await engine.reap() == (0, SECOND)
    await clock.advance(2 * SECOND)
    assert await engine.reap() == (2, SECOND)
    assert [row["execution_id"] for row in await engine.grants()] == [ids[2]]
    await clock.advance(SECOND)
    assert await engine.reap() == (1, None)
    assert await engine.reap() == (0, None)


async def test_the_executions_do_not_change(clock, engine):
    await granted(engine, 1)
    before = (await engine.rows(), await engine.events())
    await clock.advance(SECOND)
    assert (await engine.reap())[0] == 1
    assert (await engine.rows(), await engine.events()) == before


async def test_the_longest_over_go_first_up_to_the_limit(clock, engine):
    ids = await granted(engine, 5, 4, 3, 2, 1)
    await clock.advance(minutes=1)
    assert (await engine.reap(2))[0] == 2
    assert {row["execution_id"] for row in await engine.grants()} == set(ids[:3])
    assert (await engine.reap(2))[0] == 2
    assert (await engine.reap(2))[0] == 1


async def test_what_others_have_locked_is_skipped(db, clock, engine):
    ids = await granted(engine, 1, 1)
    await clock.advance(SECOND)
    other = await db.connect()
    async with other.transaction():
        await other.execute('select from ff."grant" where execution_id = $1 for update', ids[0])
        assert (await engine.reap())[0] == 1
    assert (await engine.reap())[0] == 1


async def test_workers_are_told_what_can_be_claimed_again(db, clock, engine, make):
    seen = []
    for state in ("waiting", "expired_lease", "reclaim_delayed", "waiting", "interrupted"):
        execution = await make.execution(state, lane=f"{state}-{len(seen)}")
        seen.append(execution.id)
    await clock.freeze()
    for id_ in seen:
        reclaims = (await engine.row(id_))["phase"] == "active"
        await (engine.grant_reclaim if reclaims else engine.grant)(id_)
    await engine.block(seen[3])
    assert await hints(db, "ff_ready", engine.reap) == []
    await clock.advance(seconds=10)
    assert sorted(await hints(db, "ff_ready", engine.reap)) == [
        f"{home()} test expired_lease-1",
        f"{home()} test interrupted-4",
        f"{home()} test waiting-0",
    ]


@pytest.mark.parametrize("limit", [None, 0, -1, 10001])
async def test_the_limit_is_one_to_ten_thousand(engine, limit):
    with refused("WF001", message="invalid_input", field="limit"):
        await engine.reap(limit)


async def test_the_limit_has_a_default(db):
    row = await db.fetchrow(f"select * from ff.reap_grants(p_partition_key => '{home()}')")
    assert (row["handled"], row["due_in"]) == (0, None)
