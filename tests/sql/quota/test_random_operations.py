"""Random operations on executions under one to three gates, by several connections at once.

At every snapshot no gate has more leases than its limit, and every counter is exact (Q01). In the
end everything drains: no line keeps an execution back, and no call met a deadlock.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from random import Random

import asyncpg
import pytest

from flowfabric.doctor import find_check
from support.admission import Admission
from support.factories import Engine
from support.proofs import drawn

KEYS = 8
OVER = (
    "select g.quota, g.key, g.max_running, count(*) from ff.execution e, "
    "unnest(e.quota_ids) q(id) join ff.gate g on g.gate_id = q.id "
    "where e.ownership = 'leased' group by 1, 2, 3 having count(*) > g.max_running"
)
# What a call may be refused with: the state has moved, or a row was locked for too long.
STATE = {"WF212", "WF201", "WF204", "WF205", "WF206", "WF301", "55P03", "40001"}


class Crowd:
    """The shared facts of one run."""

    def __init__(self, seed: int, operations: int) -> None:
        self.random = Random(seed)
        self.left = operations
        self.done = 0
        self.is_calm = False
        self.refused: dict[str, int] = {}

    def next(self) -> bool:
        self.left -= 1
        self.done += 1
        return self.left >= 0

    def note(self, error: asyncpg.PostgresError) -> None:
        state = error.sqlstate or ""
        assert state in STATE, error
        self.refused[state] = self.refused.get(state, 0) + 1


async def work(crowd: Crowd, db, number: int) -> None:
    """Claim and settle as a worker does; some settle twice, late, or never."""
    engine = Engine(await db.connect())
    while crowd.next():
        try:
            leases = await engine.claim(
                crowd.random.choice((1, 3, 10)),
                instance=f"i{number}",
                ttl=timedelta(seconds=2),
            )
            if not leases:
                await asyncio.sleep(0.005)
            for lease in leases:
                crowd.done += 1
                end = crowd.random.choice(
                    ("complete",) * 6 + ("fail", "release", "delay", "vanish", "twice")
                )
                if end == "complete":
                    await engine.complete(lease)
                elif end == "fail":
                    await engine.fail(lease, "permanent")
                elif end == "release":
                    await engine.release(lease)
                elif end == "delay":
                    await engine.delay(lease, timedelta(milliseconds=20))
                elif end == "twice":
                    await engine.complete(lease)
                    await engine.complete(lease)
        except asyncpg.PostgresError as error:
            crowd.note(error)


async def submit(crowd: Crowd, db, gates: list[int], shared: int) -> None:
    """Submit batches, some inside a transaction that stays open for a while."""
    engine = Engine(await db.connect())
    admission = Admission(engine)
    while crowd.next():
        wanted = {crowd.random.choice(gates)}
        if crowd.random.random() < 0.5:
            wanted.add(shared)
        if crowd.random.random() < 0.2:
            wanted.add(crowd.random.choice(gates))
        count, priority = crowd.random.randint(1, 4), crowd.random.choice((0, 0, 5))
        if crowd.random.random() < 0.1:
            async with engine.connection.transaction():
                await admission.submit(count, quotas=sorted(wanted), priority=priority)
                await asyncio.sleep(0.05)
        else:
            await admission.submit(count, quotas=sorted(wanted), priority=priority)
        crowd.done += count


async def operate(crowd: Crowd, db) -> None:
    """Cancel, revoke, replay and change limits at random, and do what the reconcilers do."""
    engine = Engine(await db.connect())
    admission = Admission(engine)
    while crowd.next():
        await asyncio.sleep(0.002)
        act = crowd.random.choice(("cancel", "revoke", "replay", "limit", "sweep", "expire"))
        id_ = await engine.connection.fetchval(
            "select execution_id from ff.execution where (phase = 'terminal') = $1 "
            "offset $2 limit 1",
            act == "replay",
            crowd.random.randint(0, 30),
        )
        with suppress(asyncpg.exceptions.DataError):
            try:
                if act == "sweep":
                    await engine.connection.fetch("select * from ff.sweep_gates(0::smallint)")
                elif act == "expire":
                    await engine.expire()
                    await engine.promote()
                elif act == "limit":
                    await admission.one(
                        "set_quota",
                        quota="tenant",
                        key=f"k{crowd.random.randrange(KEYS)}",
                        # A limit is only raised: a lowered one stops nobody who runs.
                        concurrency=6,
                    )
                elif id_ is not None and act == "cancel":
                    await engine.cancel(id_)
                elif id_ is not None and act == "revoke":
                    await engine.revoke(id_)
                elif id_ is not None:
                    await engine.replay(id_)
            except asyncpg.PostgresError as error:
                crowd.note(error)


async def watch(crowd: Crowd, db) -> int:
    """Look at one snapshot after another."""
    connection = await db.connect()
    q01 = find_check("Q01").text
    looks = 0
    while not crowd.is_calm:
        assert await connection.fetch(q01) == []
        # Raised limits are read in the same snapshot as the leases.
        assert await connection.fetch(OVER) == []
        looks += 1
        await asyncio.sleep(0.02)
    return looks


async def drain(crowd: Crowd, db, clock) -> None:
    """Work until everything has ended, as calm workers do."""
    engine = Engine(await db.connect())
    idle = 0
    while idle < 3:
        leases = await engine.claim(50, instance="calm", ttl=timedelta(minutes=5))
        for lease in leases:
            await engine.complete(lease)
        if leases:
            idle = 0
            continue
        idle += 1
        await clock.advance(minutes=10)
        await engine.expire()
        await engine.promote()
        await engine.connection.fetch("select * from ff.sweep_gates(0::smallint)")


async def run(db, clock, engine, seed: int, operations: int, workers: int) -> Crowd:
    admission = Admission(engine)
    gates = [await admission.quota("tenant", f"k{n}", concurrency=1 + n % 5) for n in range(KEYS)]
    shared = await admission.quota("shared", concurrency=6)
    await engine.register()
    crowd = Crowd(seed, operations)
    watching = asyncio.create_task(watch(crowd, db))
    try:
        await asyncio.gather(
            *(work(crowd, db, number) for number in range(workers)),
            submit(crowd, db, gates, shared),
            submit(crowd, db, gates, shared),
            operate(crowd, db),
        )
    finally:
        crowd.is_calm = True
    assert await watching > 3
    await drain(crowd, db, clock)
    left = await engine.connection.fetch(
        "select quota_ids, phase::text, ownership::text, eligibility::text, line_id "
        "from ff.execution where phase <> 'terminal' limit 5"
    )
    assert left == [], left
    assert await engine.connection.fetch(find_check("Q01").text) == []
    assert (await admission.gate("shared"))["running"] == 0
    return crowd


async def test_random_operations_never_pass_a_limit_and_everything_drains(db, clock, engine):
    crowd = await run(
        db, clock, engine, seed=drawn("operations").randrange(2**32), operations=1500, workers=4
    )
    assert crowd.done >= 1500


@pytest.mark.slow
async def test_a_million_random_operations(db, clock, engine, sized):
    await run(
        db,
        clock,
        engine,
        seed=drawn("operations").randrange(2**32),
        operations=sized(1_000_000, short=5_000),
        workers=8,
    )
