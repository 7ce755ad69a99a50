"""Grants when several sessions want the same execution: one of them gets it, always."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from support.factories import TTL, Engine, Item, Lease

from .crowd import engines, open_transaction, together, until_blocked

MINUTE = timedelta(minutes=1)
USES = {"waiting": "use", "interrupted": "use_resume", "expired_lease": "use_reclaim"}
ISSUES = {"waiting": "grant", "interrupted": "grant", "expired_lease": "grant_reclaim"}


async def answer_of(call):
    """A lease, or the word or code of the refusal."""
    try:
        answer = await call
    except asyncpg.PostgresError as error:
        return error.sqlstate
    if isinstance(answer, tuple):
        word, lease, _ = answer
        return lease or word
    return answer


@pytest.mark.parametrize("state", USES)
async def test_two_consumers_of_one_grant_one_wins(db, engine, make, state):
    execution = await make.execution(state)
    grant = await getattr(engine, ISSUES[state])(execution.id)
    one, two = await engines(db, 2)
    async with open_transaction(one):
        won = await answer_of(getattr(one, USES[state])(grant, instance="one"))
        late = asyncio.create_task(answer_of(getattr(two, USES[state])(grant, instance="two")))
        await until_blocked(db, two, late)
    assert isinstance(won, Lease)
    assert await late == ("not_reclaimable" if state == "expired_lease" else "WF404")
    assert (await engine.row(execution.id))["worker_instance_id"] == "one"
    assert await engine.grants() == []


@pytest.mark.parametrize("state", USES)
async def test_a_crowd_of_consumers_one_wins(db, engine, make, state):
    execution = await make.execution(state)
    grant = await getattr(engine, ISSUES[state])(execution.id)
    crowd = await engines(db, 6)
    answers = await together(
        *(answer_of(getattr(member, USES[state])(grant, instance=f"i{n}"))
          for n, member in enumerate(crowd))
    )  # fmt: skip
    (lease,) = [answer for answer in answers if isinstance(answer, Lease)]
    assert (await engine.row(execution.id))["lease_id"] == lease.lease_id


@pytest.mark.parametrize("state", USES)
async def test_two_grants_at_once_one_is_issued(db, engine, make, state):
    execution = await make.execution(state)
    one, two = await engines(db, 2)
    issue = ISSUES[state]
    async with open_transaction(one):
        assert (await getattr(one, issue)(execution.id)).word == "granted"
        late = asyncio.create_task(answer_of(getattr(two, issue)(execution.id, worker="late")))
        await until_blocked(db, two, late)
    assert await late == "WF405"
    (row,) = await engine.grants()
    assert row["worker_id"] == "pool"


async def test_a_repeat_of_an_issue_that_still_runs_gets_its_answer(db, engine, make):
    execution = await make.execution("waiting")
    one, two = await engines(db, 2)
    async with open_transaction(one):
        first = await one.grant(execution.id)
        late = asyncio.create_task(two.grant(execution.id, key=first.key))
        await until_blocked(db, two, late)
    assert await late == first


async def test_a_direct_claim_passes_by_what_is_being_granted(db, engine):
    first, second = await engine.submit_many([Item()] * 2)
    one, two = await engines(db, 2)
    async with open_transaction(one):
        await one.grant(first.id, worker="other")
        got = await two.claim(2)
        assert [lease.execution_id for lease in got] == [second.id]
    assert await two.claim(2) == []


async def test_a_grant_waits_for_a_direct_claim_and_is_then_refused(db, engine, make):
    execution = await make.execution("waiting", lane="mine")
    one, two = await engines(db, 2)
    async with open_transaction(one):
        await one.take(execution.id, lanes=["mine"])
        late = asyncio.create_task(answer_of(two.grant(execution.id)))
        await until_blocked(db, two, late)
    assert await late == "WF205"
    assert await engine.grants() == []


@pytest.mark.parametrize("form", ["_claim_fresh", "_pick_candidates"])
@pytest.mark.parametrize("worker", ["pool", "other"])
async def test_a_grant_between_the_look_and_the_lock_of_a_claim_is_seen(
    db, engine, make, worker, form
):
    """The claim has seen that nothing is granted; then somebody grants the first in line."""
    if form == "_pick_candidates":
        # If there is something to reclaim, a claim goes in rounds.
        await make.execution("expired_lease", lane="default")
    first, second = await engine.submit_many([Item(priority=2), Item(priority=1)])
    source = await db.fetchval(
        "select pg_get_functiondef(p.oid) from pg_proc p where p.proname = $1", form
    )
    head = "\nbegin\n"
    assert source.count(head) == 1
    pause = "  perform pg_advisory_lock_shared(77); perform pg_advisory_unlock_shared(77);\n"
    await db.execute(source.replace(head, head + pause))
    claimer, gate = await engines(db, 2)
    await gate.connection.execute("select pg_advisory_lock(77)")
    running = asyncio.create_task(claimer.claim(1, worker="pool", lanes=["default"]))
    await until_blocked(db, claimer, running)
    await engine.grant(first.id, worker=worker)
    await gate.connection.execute("select pg_advisory_unlock(77)")

    expected = first if worker == "pool" else second
    assert [lease.execution_id for lease in await running] == [expected.id]
    grants = [row["execution_id"] for row in await engine.grants()]
    assert grants == ([] if worker == "pool" else [first.id])


async def test_a_grant_and_a_cancel_at_once_leave_no_grant(db, engine, make):
    execution = await make.execution("waiting")
    one, two = await engines(db, 2)
    async with open_transaction(one):
        await one.cancel(execution.id)
        late = asyncio.create_task(answer_of(two.grant(execution.id)))
        await until_blocked(db, two, late)
    assert await late == "WF205"

    other = await make.execution("waiting")
    async with open_transaction(one):
        await one.grant(other.id)
        cancel = asyncio.create_task(two.cancel(other.id))
        await until_blocked(db, two, cancel)
    assert (await cancel).word == "cancelled"
    assert await engine.grants() == []


async def test_a_reaper_leaves_a_grant_alone_that_was_just_renewed(db, clock, engine, make):
    execution = await make.execution("waiting")
    await engine.grant(execution.id, ttl=timedelta(seconds=1))
    await clock.advance(seconds=1)
    one, two = await engines(db, 2)
    async with open_transaction(one):
        fresh = await one.grant(execution.id, ttl=MINUTE)
        assert (await two.reap())[0] == 0
    assert (await two.reap())[0] == 0
    assert (await engine.use(fresh)).execution_id == execution.id


async def test_reapers_share_the_work_and_nobody_waits(db, clock, engine):
    for submitted in await engine.submit_many([Item()] * 20):
        await engine.grant(submitted.id, ttl=timedelta(seconds=1))
    await clock.advance(seconds=1)
    one, two = await engines(db, 2)
    async with open_transaction(one):
        assert (await one.reap(12))[0] == 12
        assert (await two.reap(12))[0] == 8
    assert await engine.grants() == []


async def test_a_reclaim_and_a_direct_claim_never_share_an_execution(db, clock, engine, make):
    execution = await make.execution("leased", lane="mine")
    await clock.advance(TTL)
    grant = await engine.grant_reclaim(execution.id)
    one, two = await engines(db, 2)
    async with open_transaction(one):
        await one.take(execution.id, lanes=["mine"], instance="direct")
        late = asyncio.create_task(answer_of(two.use_reclaim(grant)))
        await until_blocked(db, two, late)
    assert await late == "not_reclaimable"
    assert (await engine.row(execution.id))["worker_instance_id"] == "direct"


async def test_grants_claims_and_reapers_in_a_crowd(db, engine):
    """Schedulers, consumers, direct claimers and a reaper at once: each execution is held once."""
    ids = [submitted.id for submitted in await engine.submit_many([Item()] * 200)]
    held: dict[object, str] = {}

    async def scheduler(member: Engine, part: list[object]) -> None:
        for execution_id in part:
            grant = await answer_of(member.grant(execution_id, worker="granted", ttl=MINUTE))
            if isinstance(grant, str):
                assert grant in ("WF205", "WF405")
                continue
            lease = await member.use(grant, worker="granted")
            assert held.setdefault(lease.execution_id, "granted") == "granted"
            assert lease.epoch == 1

    async def claimer(member: Engine, number: int) -> None:
        for _ in range(40):
            for lease in await member.claim(3, worker="direct", instance=f"direct-{number}"):
                assert lease.execution_id not in held
                held[lease.execution_id] = "direct"

    async def reaper(member: Engine) -> None:
        for _ in range(40):
            await member.reap()

    crowd = await engines(db, 5)
    await together(
        scheduler(crowd[0], ids[::2]),
        scheduler(crowd[1], ids[::-1]),
        claimer(crowd[2], 1),
        claimer(crowd[3], 2),
        reaper(crowd[4]),
    )
    rows = {row["execution_id"]: row["worker_id"] for row in await engine.rows()}
    assert rows == held
    assert set(held.values()) == {"granted", "direct"}
    assert await engine.grants() == []
