"""Direct claims beside grants: what is promised to another worker is passed over, no longer."""

from __future__ import annotations

from datetime import timedelta

import pytest

from support.factories import Item, refused

TEN = timedelta(seconds=10)


async def test_a_granted_execution_can_be_claimed_and_an_expired_grant_hides_nothing(clock, engine):
    await clock.freeze()
    one, two = await engine.submit_many([Item()] * 2)
    await engine.grant(one.id, worker="other", ttl=TEN)
    grant = await engine.grant(two.id, worker="other", ttl=TEN)
    assert (await engine.row(one.id))["eligibility"] == "eligible_now"
    assert await engine.claim() == []
    assert (await engine.use(grant, worker="other")).execution_id == two.id
    await clock.advance(TEN)
    assert [lease.execution_id for lease in await engine.claim()] == [one.id]


async def test_a_worker_may_claim_directly_what_it_was_granted(engine):
    created = await engine.submit()
    grant = await engine.grant(created.id)
    assert (await engine.take(created.id, worker="pool")).claim_kind == "fresh"
    assert await engine.grants() == []
    with refused("WF404"):
        await engine.use(grant)


async def test_a_grant_hides_its_own_execution_and_no_other(engine):
    created = await engine.submit_many([Item(priority=n) for n in range(9, 0, -1)])
    for submitted in created[:5]:
        await engine.grant(submitted.id, worker="other")
    for submitted in created[5:7]:
        await engine.grant(submitted.id, worker="pool")
    got = await engine.claim(3)
    assert [lease.execution_id for lease in got] == [submitted.id for submitted in created[5:8]]
    assert {row["worker_id"] for row in await engine.grants()} == {"other"}
    assert [lease.execution_id for lease in await engine.claim(3)] == [created[8].id]


@pytest.mark.parametrize("lanes", [1, 3])
async def test_a_claim_gets_behind_any_number_of_granted_executions(engine, lanes):
    """Two thirds of three hundred are granted to others; the rest comes in order, in full."""
    routes = [await engine.register(lane=f"lane-{n}") for n in range(lanes)]
    created = await engine.submit_many([Item(route=routes[n % lanes]) for n in range(300)])
    for submitted in created[:200]:
        await engine.grant(submitted.id, worker="other", ttl=timedelta(minutes=1))
    got = await engine.claim(100)
    assert {lease.execution_id for lease in got} == {submitted.id for submitted in created[200:]}
    assert len(await engine.grants()) == 200


async def test_an_interrupted_execution_is_hidden_as_well(engine, make):
    execution = await make.execution("interrupted", lane="mine")
    grant = await engine.grant(execution.id, worker="other")
    assert await engine.claim(lanes=["mine"]) == []
    assert (await engine.use_resume(grant, worker="other")).claim_kind == "resumed"


async def test_what_is_claimed_loses_a_grant_that_is_over(clock, engine):
    created = await engine.submit()
    await engine.grant(created.id, worker="other", ttl=TEN)
    await clock.advance(TEN)
    await engine.take(created.id)
    assert await engine.grants() == []
