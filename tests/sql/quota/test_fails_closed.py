"""A gate or budget that is missing or cannot be read lets nobody through."""

from __future__ import annotations

import pytest

from support.admission import Admission
from support.factories import refused

NEWEST = "floor(extract(epoch from ff.now()) * 60 / extract(epoch from rate_window))"
CORRUPTIONS = {
    "a missing gate": "delete from ff.gate",
    "slices without counts": "update ff.gate set slices = array_fill(null::integer, array[62]), "
    f"slice_base = {NEWEST}",
    "too few slices": f"update ff.gate set slices = '{{0}}', slice_base = {NEWEST}",
    "a missing budget": "delete from ff.budget",
}


@pytest.fixture
def admission(engine):
    return Admission(engine, has_all=True)


@pytest.mark.parametrize("corruption", CORRUPTIONS)
async def test_what_cannot_be_judged_does_not_start(admission, engine, corruption):
    gate = await admission.quota(concurrency=5, rate=5, rate_window_ms=3_600_000)
    budget = await admission.budget(tokens=100)
    fresh, again = await admission.submit(2, quotas=[gate], budgets=[budget])
    # Of these two, an interrupted one is claimed in rounds.
    await engine.release(await engine.take(fresh.id))
    grant = await engine.grant(again.id)
    transaction = engine.connection.transaction()
    await transaction.start()
    await engine.connection.execute(CORRUPTIONS[corruption])
    async with engine.connection.transaction():
        with refused("WF205"):
            async with engine.connection.transaction():
                await engine.use(grant)
    # A resumed attempt is no start, so a rate does not concern it.
    resumed = [] if "missing" in corruption else [fresh.id]
    assert [one.execution_id for one in await engine.claim(10)] == resumed
    assert await engine.claim(10) == []
    if "slices" in corruption:
        answer = await admission.one(
            "check_admission",
            partition_key=engine.partition_key,
            quota="api",
            key=None,
            ticket_id="11111111-1111-4111-8111-111111111111",
        )
        assert answer["outcome"] == "rate_exceeded"
    await transaction.rollback()


@pytest.mark.parametrize("corruption", CORRUPTIONS)
async def test_a_first_attempt_that_cannot_be_judged_does_not_start(admission, engine, corruption):
    gate = await admission.quota(concurrency=5, rate=5, rate_window_ms=3_600_000)
    budget = await admission.budget(tokens=100)
    await admission.submit(3, quotas=[gate], budgets=[budget])
    transaction = engine.connection.transaction()
    await transaction.start()
    await engine.connection.execute(CORRUPTIONS[corruption])
    assert await engine.claim(10) == []
    await transaction.rollback()
    assert len(await engine.claim(10)) == 3
