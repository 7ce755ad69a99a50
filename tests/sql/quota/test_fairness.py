"""Fair order: keys of a lane take turns, however many executions each has."""

from __future__ import annotations

import pytest

from support.factories import Engine, Item


async def claimed_keys(engine, names, limit=100):
    return [names[lease.execution_id] for lease in await engine.claim(limit)]


async def submit(engine, key, count, names, **changes):
    for answer in await engine.submit_many([Item(fair_key=key, **changes)] * count):
        assert answer.word == "created"
        names[answer.id] = key


async def test_a_key_with_few_comes_between_those_of_a_key_with_many(engine):
    names = {}
    await submit(engine, "acme", 60, names)
    await submit(engine, "initech", 3, names)
    await submit(engine, "one", 1, names)

    keys = await claimed_keys(engine, names, 8)

    assert keys.count("one") == 1
    assert keys.count("initech") == 3


async def test_a_late_key_comes_next_and_not_first_of_all(engine):
    """It stands where the lane is served now, so that it cannot starve those before it."""
    names = {}
    await submit(engine, "acme", 60, names)
    assert await claimed_keys(engine, names, 20) == ["acme"] * 20
    await submit(engine, "late", 10, names)

    keys = await claimed_keys(engine, names, 10)

    assert 4 <= keys.count("late") <= 6


async def test_a_key_that_was_idle_saves_no_turns(engine, clock):
    names = {}
    await submit(engine, "acme", 30, names)
    await submit(engine, "idle", 1, names)
    await claimed_keys(engine, names, 21)
    await submit(engine, "idle", 20, names)
    keys = await claimed_keys(engine, names, 10)
    assert 4 <= keys.count("idle") <= 6


async def test_priority_goes_before_fairness(engine):
    names = {}
    await submit(engine, "acme", 10, names)
    await submit(engine, "acme", 1, names, priority=5)
    await submit(engine, "other", 1, names)
    first = (await engine.claim(1))[0]
    assert first.rank == 8995


async def test_executions_without_a_fair_key_keep_the_order_of_their_submit(engine):
    ids = [(await engine.submit()).id for _ in range(5)]
    assert [lease.execution_id for lease in await engine.claim(5)] == ids


async def test_an_open_transaction_holds_up_no_other_submit_of_its_key(db, engine):
    names = {}
    other = Engine(await db.connect())
    await engine.register()
    await other.register()
    async with engine.connection.transaction():
        await submit(engine, "acme", 2, names)
        await submit(other, "acme", 2, names)
    assert len(await engine.claim(10)) == 4


async def check_three_tenants(engine, many: int, some: int, batch: int) -> None:
    """Every claim leaves each tenant within one batch of its fair part, as long as it has work."""
    names = {}
    for start in range(0, many, 1000):
        await submit(engine, "many", min(1000, many - start), names)
    await submit(engine, "some", some, names)
    await submit(engine, "one", 1, names)
    served = {"many": 0, "some": 0, "one": 0}
    left = {"many": many, "some": some, "one": 1}
    while left["some"] or left["one"]:
        waiting = [key for key in left if left[key]]
        before = dict(served)
        for lease in await engine.claim(batch):
            served[names[lease.execution_id]] += 1
            left[names[lease.execution_id]] -= 1
        for key in waiting:
            got = served[key] - before[key]
            assert left[key] == 0 or got >= batch // len(waiting) - 1, (key, served)
    # Those with few had their turns among the first: "some" needs twice its number of turns.
    assert sum(served.values()) <= 2 * some + 1 + batch


async def test_three_tenants_are_served_within_a_batch_of_ideal(engine):
    await check_three_tenants(engine, 1000, 100, 20)


@pytest.mark.slow
async def test_three_tenants_one_of_them_with_a_hundred_thousand(engine, sized):
    await check_three_tenants(engine, sized(100_000, short=5_000), 100, 20)
