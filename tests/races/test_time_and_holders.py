"""Reconcilers against holders and against one another: every move happens once."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta

import pytest

from support.factories import TTL, Engine, Item

from .crowd import engines, fill, open_transaction, together

HOUR = timedelta(hours=1)


async def test_a_renewal_on_its_way_keeps_its_lease(db, engine, make, clock):
    execution = await make.execution("leased")
    holder, reconciler = await engines(db, 2)
    await clock.advance(TTL - timedelta(seconds=1))
    async with open_transaction(holder):
        assert (await holder.renew(execution.lease, HOUR)).word == "renewed"
        await clock.advance(seconds=2)
        assert (await reconciler.expire())[0] == 0
    # due_at was a lower bound: it is moved on, and nothing else happens
    assert (await reconciler.expire())[0] == 1
    assert (await reconciler.expire())[0] == 0
    row = await engine.row(execution.id)
    assert row["ownership"] == "leased"
    assert row["due_at"] == row["lease_expires_at"]
    assert await engine.kinds(execution.id) == ["submitted", "claimed"]


async def test_a_lease_renewed_for_a_shorter_time_expires_in_time(db, engine, make, clock):
    """due_at is a lower bound of the expiry, also when a renewal shortens the lease."""
    execution = await make.execution("leased", ttl=HOUR)
    assert (await engine.renew(execution.lease, TTL)).word == "renewed"
    row = await engine.row(execution.id)
    assert row["due_at"] <= row["lease_expires_at"]
    await clock.advance(TTL)
    assert (await engine.expire())[0] == 1
    assert (await engine.row(execution.id))["ownership"] == "lease_expired_reclaimable"


async def test_an_expiry_on_its_way_refuses_the_renewal(db, engine, make, clock):
    execution = await make.execution("leased")
    holder, reconciler = await engines(db, 2)
    await clock.advance(TTL)
    async with open_transaction(reconciler):
        assert (await reconciler.expire())[0] == 1
        assert (await holder.renew(execution.lease, HOUR)).word == "busy"
    assert (await holder.renew(execution.lease, HOUR)).word == "lease_expired"
    assert await engine.kinds(execution.id) == ["submitted", "claimed", "lease_expired"]


async def test_a_completion_on_its_way_is_not_expired(db, engine, make, clock):
    execution = await make.execution("leased")
    holder, reconciler = await engines(db, 2)
    async with open_transaction(holder):
        assert (await holder.complete(execution.lease, b"1")).word == "completed"
        await clock.advance(TTL)
        assert (await reconciler.expire())[0] == 0
    assert (await reconciler.expire())[0] == 0
    assert await engine.kinds(execution.id) == ["submitted", "claimed", "completed"]


async def test_an_expiry_on_its_way_refuses_the_completion(db, engine, make, clock):
    execution = await make.execution("leased")
    holder, reconciler = await engines(db, 2)
    await clock.advance(TTL)
    async with open_transaction(reconciler):
        assert (await reconciler.expire())[0] == 1
        assert (await holder.complete(execution.lease)).word == "busy"
    assert (await holder.complete(execution.lease)).word == "lease_expired"
    assert (await engine.row(execution.id))["outcome"] == "none"


async def test_a_release_on_its_way_is_not_expired(db, engine, make, clock):
    execution = await make.execution("leased")
    holder, reconciler = await engines(db, 2)
    async with open_transaction(holder):
        await holder.release(execution.lease)
        await clock.advance(TTL)
        assert (await reconciler.expire())[0] == 0
    assert (await reconciler.expire())[0] == 0
    assert (await engine.row(execution.id))["public_state"] == "waiting"


@pytest.mark.parametrize("name", ["complete", "renew"])
async def test_expiry_against_a_crowd_of_holders(db, engine, clock, name):
    """A lease is either saved by its holder or taken by the reconciler, and both agree which."""
    route = await engine.register()
    await fill(engine, [Item(route=route)] * 600)
    leases = await engine.claim(600)
    answers: dict[object, str] = {}
    crowd = await engines(db, 5)
    await clock.freeze(leases[0].lease_expires_at - timedelta(milliseconds=1))
    steps = iter(range(10**6))

    async def hold(engine, mine):
        while mine:
            batch, mine = mine[:10], mine[10:]
            if name == "complete":
                got = await engine.complete_many(batch, [b"1"] * len(batch))
            else:
                got = await engine.renew_many(batch, HOUR)
            for lease, answer in zip(batch, got, strict=True):
                if answer.word == "busy":
                    mine.append(lease)
                else:
                    answers[lease.execution_id] = answer.word
            if next(steps) == 20:
                await clock.advance(milliseconds=2)

    async def reconcile(engine):
        while len(answers) < len(leases):
            await engine.expire(limit=7)

    await together(
        *(hold(engine, leases[number::4]) for number, engine in enumerate(crowd[:4])),
        reconcile(crowd[4]),
    )
    good = "completed" if name == "complete" else "renewed"
    assert set(answers.values()) == {good, "lease_expired"}
    rows = {row["execution_id"]: row for row in await engine.rows()}
    for id_, word in answers.items():
        ownership = {"completed": "unowned", "renewed": "leased"}.get(
            word, "lease_expired_reclaimable"
        )
        assert rows[id_]["ownership"] == ownership
    assert (await engine.kinds()).count("lease_expired") == Counter(answers.values())[
        "lease_expired"
    ]


async def test_a_crowd_promotes_each_execution_once(db, engine, clock):
    route = await engine.register()
    late = [Item(route=route, delay=timedelta(minutes=n % 7 + 1)) for n in range(3000)]
    await fill(engine, late)
    assert (await engine.promote())[0] == 0
    await clock.advance(minutes=10)
    crowd = await engines(db, 8)

    async def promote(number, engine: Engine):
        total = 0
        while handled := (await engine.promote(limit=random.Random(number).randint(20, 90)))[0]:
            total += handled
        return total

    shares = await together(*(promote(number, engine) for number, engine in enumerate(crowd)))
    # A session that met only rows of others stopped early; what is left belongs to nobody.
    shares.append(await promote(8, engine))
    assert sum(shares) == 3000
    assert await db.fetchval(
        "select count(*) from ff.execution where public_state = 'waiting'"
    ) == (3000)
    assert await db.fetchval("select count(*) from ff.event") == 3000


async def test_a_promotion_on_its_way_is_not_made_twice(db, engine, make, clock):
    execution = await make.execution("delayed")
    await clock.advance(hours=2)
    first, second = await engines(db, 2)
    async with open_transaction(first):
        assert (await first.promote())[0] == 1
        assert (await second.promote())[0] == 0
        assert await second.claim() == []
    assert (await second.promote())[0] == 0
    assert (await second.take(execution.id)).attempt_type == "initial"


async def test_expiry_and_reclaim_at_once(db, engine, clock):
    """Four reconcilers and four workers over leases that all ran out: each is reclaimed once."""
    route = await engine.register()
    await fill(engine, [Item(route=route)] * 1000)
    old = {lease.execution_id: lease for lease in await engine.claim(1000)}
    await clock.advance(TTL)
    crowd = await engines(db, 8)
    claimed: list[object] = []

    async def reconcile(engine):
        while len(claimed) < len(old):
            await engine.expire(limit=25)

    async def work(number, engine):
        while len(claimed) < len(old):
            leases = await engine.claim(20, instance=f"worker-{number}", ttl=HOUR)
            for lease in leases:
                assert lease.claim_kind == "reclaimed"
                assert (lease.epoch, lease.attempt_index) == (2, 1)
                claimed.append(lease.execution_id)

    await together(
        *(reconcile(engine) for engine in crowd[:4]),
        *(work(number, engine) for number, engine in enumerate(crowd[4:])),
    )
    assert len(claimed) == len(set(claimed)) == 1000
    rows = await engine.rows()
    assert {(row["reclaim_count"], row["total_attempt_count"]) for row in rows} == {(1, 2)}
    words = Counter(await engine.kinds())
    assert words == {"submitted": 1000, "claimed": 1000, "lease_expired": 1000, "reclaimed": 1000}
    assert await db.fetchval("select count(*) from ff.attempt") == 1000


async def test_an_expiry_on_its_way_is_not_reclaimed_yet(db, engine, make, clock):
    execution = await make.execution("leased")
    await clock.advance(TTL)
    reconciler, worker = await engines(db, 2)
    async with open_transaction(reconciler):
        await reconciler.expire()
        assert await worker.claim() == []
    assert (await worker.take(execution.id)).claim_kind == "reclaimed"


async def test_a_reclaim_on_its_way_is_not_expired_again(db, engine, make, clock):
    execution = await make.execution("expired_lease")
    reconciler, worker = await engines(db, 2)
    async with open_transaction(worker):
        await worker.take(execution.id, instance="other")
        assert (await reconciler.expire())[0] == 0
        assert await reconciler.claim(instance="third") == []
    assert (await reconciler.expire())[0] == 0
    assert (await engine.row(execution.id))["worker_instance_id"] == "other"
