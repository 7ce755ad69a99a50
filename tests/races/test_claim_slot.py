"""A claim may be repeated while the first call still runs, and two claims of one process never
lose one another's answer."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from uuid import uuid4

import asyncpg
import pytest

from support.factories import Engine, Item, refused

from .crowd import engines, fill, open_transaction, together, until_blocked


@pytest.fixture(params=["first claim of the process", "later claim"])
async def waiting_ids(request, engine):
    """Twenty executions that wait; the process has claimed before, or not."""
    route = await engine.register()
    if request.param == "later claim":
        await fill(engine, [Item(route=route)])
        await engine.claim(1, instance="me")
    return await fill(engine, [Item(route=route)] * 20)


async def test_a_repeat_gets_the_same_executions_while_the_first_runs(db, waiting_ids):
    first, second = await engines(db, 2)
    claim_id = uuid4()
    async with open_transaction(first):
        original = await first.claim(5, claim_id=claim_id, instance="me")
        repeat = asyncio.create_task(second.claim(5, claim_id=claim_id, instance="me"))
        await until_blocked(db, second, repeat)
    with refused("40001"):
        await repeat
    again = await second.claim(5, claim_id=claim_id, instance="me")
    assert again == original
    assert [lease.execution_id for lease in again] == waiting_ids[:5]
    leased = await db.fetchval("select count(*) from ff.execution where lease_id = $1", claim_id)
    assert leased == 5


async def test_a_repeat_is_not_told_that_there_is_nothing(db, engine):
    """The first call took all there is and has not committed: the repeat must not answer 'none',
    or the executions stay leased to a process that does not know it (decision 0010)."""
    route = await engine.register()
    ids = await fill(engine, [Item(route=route)] * 3)
    first, second = await engines(db, 2)
    claim_id = uuid4()
    async with open_transaction(first):
        original = await first.claim(5, claim_id=claim_id, instance="me")
        assert [lease.execution_id for lease in original] == ids
        repeat = asyncio.create_task(second.claim(5, claim_id=claim_id, instance="me"))
        await until_blocked(db, second, repeat)
    with refused("40001"):
        await repeat
    assert await second.claim(5, claim_id=claim_id, instance="me") == original


async def test_a_repeat_of_a_claim_that_was_rolled_back_claims_anew(db, waiting_ids):
    first, second = await engines(db, 2)
    claim_id = uuid4()
    transaction = first.connection.transaction()
    await transaction.start()
    await first.claim(5, claim_id=claim_id, instance="me")
    repeat = asyncio.create_task(second.claim(5, claim_id=claim_id, instance="me"))
    await until_blocked(db, second, repeat)
    await transaction.rollback()
    leases = await repeat
    # It had passed over the rows that the first call held; they wait for the next claim.
    assert [lease.execution_id for lease in leases] == waiting_ids[5:10]
    assert await second.claim(5, claim_id=claim_id, instance="me") == leases


async def test_of_two_claims_of_one_process_the_later_is_sent_back(db, waiting_ids):
    first, second = await engines(db, 2)
    async with open_transaction(first):
        mine = await first.claim(5, instance="me")
        other = asyncio.create_task(second.claim(5, instance="me"))
        await until_blocked(db, second, other)
    with refused("40001"):
        await other
    # nothing of the refused call is left, and trying again works
    assert await db.fetchval("select count(*) from ff.execution where phase = 'active'") in (5, 6)
    again = await second.claim(5, instance="me")
    assert [lease.execution_id for lease in mine + again] == waiting_ids[:10]


async def test_two_processes_do_not_meet_in_the_slot(db, waiting_ids):
    first, second = await engines(db, 2)
    async with open_transaction(first):
        mine = await first.claim(5, instance="me")
        yours = await second.claim(5, instance="you")
    assert [lease.execution_id for lease in mine + yours] == waiting_ids[:10]


async def test_many_repeats_at_once_lease_once(db, engine):
    """Six sessions repeat the same claims, each until it is answered: all get the same answer."""
    route = await engine.register()
    await fill(engine, [Item(route=route)] * 400)
    crowd = await engines(db, 6)

    async def insist(engine: Engine, claim_id):
        for _ in range(50):
            with suppress(asyncpg.SerializationError):
                return await engine.claim(10, claim_id=claim_id, instance="me")
        raise AssertionError("never answered")

    seen = set()
    for _ in range(25):
        claim_id = uuid4()
        answers = await together(*(insist(engine, claim_id) for engine in crowd))
        assert len(answers[0]) == 10
        assert all(answer == answers[0] for answer in answers)
        ids = {lease.execution_id for lease in answers[0]}
        assert not ids & seen
        seen |= ids
    assert await db.fetchval("select count(*) from ff.execution where phase = 'active'") == 250
