"""What broke the obvious design (counters, and a wake by each release), one test each.

Other traps have their tests beside what they are about: a row of two gates leaves none idle, a
paused lane holds no slot, a saturated key delays no other, a clock that goes back, usage just below
a limit, and a late fair key.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from flowfabric.core.limit import gate_id
from flowfabric.doctor import find_check
from support.admission import Admission
from support.database import home
from support.factories import Engine

SWEEP = f"select * from ff.sweep_gates('{home()}')"


@pytest.fixture
def admission(engine):
    return Admission(engine, has_all=True)


async def second(db):
    other = Engine(await db.connect())
    await other.connection.execute("set lock_timeout = '1s'")
    return other


async def test_a_submit_that_meets_the_last_release_is_not_lost(db, admission, engine):
    gate = await admission.quota(concurrency=1)
    await admission.submit(2, quotas=[gate])
    lease = await engine.take()
    assert await engine.claim(10) == []
    submitter = Admission(await second(db))
    async with submitter.engine.connection.transaction():
        (late,) = await submitter.submit(1, quotas=[gate], route=await engine.register())
        # The line drains, opens and is empty, and the submit is not committed yet.
        await engine.complete(lease)
        await engine.complete(await engine.take())
        assert await engine.claim(10) == []
        await engine.connection.fetch(SWEEP)
    await engine.take(late.id)


async def test_an_open_submit_holds_up_nobody(db, admission, engine):
    gate = await admission.quota(concurrency=1)
    await admission.submit(3, quotas=[gate])
    lease = await engine.take()
    assert await engine.claim(10) == []
    await engine.connection.execute("set lock_timeout = '1s'")
    submitter = Admission(await second(db))
    async with submitter.engine.connection.transaction():
        await submitter.submit(1, quotas=[gate], route=await engine.register())
        await engine.complete(lease)
        await engine.complete(await engine.take())
        await engine.connection.fetch(SWEEP)
        await admission.one("set_quota", quota="api", concurrency=2)


async def test_the_end_of_a_lease_waits_for_no_gate(db, admission, engine):
    gate = await admission.quota(concurrency=2)
    await admission.submit(2, quotas=[gate])
    lease = await engine.take()
    claiming = await second(db)
    async with claiming.connection.transaction():
        assert len(await claiming.claim(1, instance="other")) == 1
        # The other claim holds the gate.
        await asyncio.wait_for(engine.complete(lease), 60)
    assert (await admission.gate())["running"] == 1


async def test_a_claim_never_waits_for_a_report_of_usage(db, admission, engine):
    budget = await admission.budget(tokens=100)
    await admission.submit(2, budgets=[budget])
    lease = await engine.take()
    reporting = Admission(await second(db))
    async with reporting.engine.connection.transaction():
        await reporting.report(lease, {"tokens": 100})
        await engine.connection.execute("set lock_timeout = '1s'")
        assert len(await engine.claim(10, instance="other")) == 1


async def test_two_claims_with_gates_in_other_orders_meet_no_deadlock(db, admission, engine):
    gates = [await admission.quota("tenant", f"k{n}", concurrency=50) for n in range(6)]
    for n in range(120):
        pair = (gates[n % 6], gates[(n * 5 + 1) % 6])
        await admission.submit(1, quotas=sorted(set(pair)))
    others = [Engine(await db.connect()) for _ in range(4)]

    async def drain(number, worker):
        found = 0
        for _ in range(20):
            for lease in await worker.claim(7, instance=f"w{number}"):
                await worker.complete(lease)
                found += 1
        return found

    found = await asyncio.gather(*(drain(n, worker) for n, worker in enumerate(others)))
    assert sum(found) == 120


async def test_a_change_of_two_quotas_and_a_claim_meet_no_deadlock(db, admission, engine):
    """The quota that comes first by name has the gate that comes last by id."""
    names = [f"q{n}" for n in range(9)]
    ids = {name: gate_id("quota", engine.namespace, name, "") for name in names}
    first, last = next((a, b) for a in names for b in names if a < b and ids[a] > ids[b])
    for name in (first, last):
        await admission.quota(name, concurrency=5)
    await admission.submit(1, quotas=sorted([ids[first], ids[last]]))
    changing = Admission(Engine(await db.connect()))
    claiming, keeping = Engine(await db.connect()), await db.connect()
    async with keeping.transaction():
        await keeping.execute("select from ff.quota where quota = $1 for update", last)
        change = asyncio.create_task(
            changing.register(
                *({"kind": "quota", "name": name, "concurrency": 6} for name in (first, last))
            )
        )
        await db.until_waiting(change)
        claim = asyncio.create_task(claiming.claim(1))
        # It takes its gates, or waits for one of them.
        await asyncio.wait({claim}, timeout=0.2)
    answers = await asyncio.wait_for(change, 60)
    assert [row["outcome"] for row in answers] == ["registered"] * 2
    assert len(await asyncio.wait_for(claim, 60)) == 1


async def test_operators_who_change_one_quota_at_once_meet_no_deadlock(db, admission, engine):
    """They set, lift and declare limits of two keys and of all, while executions run under them."""
    gates = [await admission.quota("tenant", key, concurrency=5) for key in ("a", "b")]
    await engine.register()

    async def operate(number: int) -> None:
        mine = Admission(Engine(await db.connect()))
        for turn in range(8):
            key = ("a", "b", None)[(number + turn) % 3]
            match (number * 7 + turn) % 4:
                case 0:
                    await mine.one("set_quota", quota="tenant", key=key, concurrency=1 + turn)
                case 1:
                    await mine.one("lift_quota", quota="tenant", key=key)
                case 2:
                    await mine.quota("tenant", "ab"[turn % 2], concurrency=3 + number)
                case _:
                    window = timedelta(seconds=1 + turn)
                    given = {"key": key, "rate": 100, "rate_window": window}
                    await mine.one("set_quota", quota="tenant", **given)

    async def work(number: int) -> None:
        mine = Engine(await db.connect())
        for turn in range(10):
            await Admission(mine).submit(2, quotas=sorted(gates[: 1 + turn % 2]))
            leases = await mine.claim(5, instance=f"w{number}")
            while leases:
                answers = await mine.complete_many(leases)
                # An operator may have locked a row for a moment.
                leases = [
                    lease
                    for lease, answer in zip(leases, answers, strict=True)
                    if answer.word == "busy"
                ]

    await asyncio.gather(*(operate(n) for n in range(4)), *(work(n) for n in range(2)))
    for name in ("Q01", "Q02", "Q03"):
        assert await engine.connection.fetch(find_check(name).text) == []
    await admission.one("delete_quota", quota="tenant")
    while leases := await engine.claim(50):
        await engine.complete_many(leases)
    assert {row["phase"] for row in await engine.rows()} == {"terminal"}


async def test_the_loser_of_a_cancelled_parent_gives_its_slot_back(admission, engine):
    gate = await admission.quota(concurrency=2)
    (parent,) = await admission.submit(1, quotas=[gate])
    lease = await engine.take()
    (child,) = await admission.submit(1, quotas=[gate], parent=parent.id, with_parent=True)
    await engine.take(child.id)
    assert (await admission.gate())["running"] == 2
    await engine.complete(lease)
    assert (await admission.gate())["running"] == 0


async def test_a_crash_between_claim_and_settle_leaks_no_slot(admission, engine, clock):
    await clock.freeze()
    gate = await admission.quota(concurrency=1)
    await admission.submit(3, quotas=[gate])
    for _ in range(3):
        (lease,) = await engine.claim(10, ttl=timedelta(seconds=10))
        await clock.advance(minutes=20)
        await engine.expire()
        await engine.promote()
    for _ in range(3):
        await clock.advance(minutes=20)
        await engine.expire()
        await engine.promote()
        (lease,) = await engine.claim(10)
        await engine.complete(lease)
    assert (await admission.gate())["running"] == 0
