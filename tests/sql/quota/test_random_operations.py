"""Random operations on executions under one to three gates and a budget, by several connections.

At every snapshot no gate has more leases than its limit, and every counter is exact (Q01). In the
end everything drains: no line keeps an execution back (Q08), and no call met a deadlock.

An operation is one execution that a call acts on: submitted, leased, or settled. Calls act on up to
a hundred, as those of real workers do.
"""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import timedelta
from pathlib import Path
from time import monotonic

import pytest

from flowfabric.doctor import find_check
from support import gate_crowd
from support.admission import Admission
from support.database import PARTITIONS, home, partitions
from support.factories import Engine
from support.gate_crowd import BUDGETS, KEYS, Crowd, operate, submit, work
from support.proofs import drawn

OVER = (
    "select g.quota, g.key, g.max_running, count(*) from ff.execution e, "
    "unnest(e.quota_ids) q(id) join ff.gate g on g.gate_id = q.id "
    "where e.ownership = 'leased' group by 1, 2, 3 having count(*) > g.max_running"
)


async def watch(crowd: Crowd, db) -> int:
    """Look at one snapshot after another."""
    connection = await db.connect()
    looks = 0
    while not crowd.is_calm:
        for name in ("Q01", "B01", "B02"):
            assert await connection.fetch(find_check(name).text) == []
        # Raised limits are read in the same snapshot as the leases.
        assert await connection.fetch(OVER) == []
        looks += 1
        await asyncio.sleep(0.25)
    return looks


async def drain(db, clock) -> None:
    """Work until everything has ended, as calm workers do."""
    engine = Engine(await db.connect())
    idle = 0
    while idle < 3:
        leases = await engine.claim(100, instance="calm", ttl=timedelta(minutes=5))
        if leases:
            await engine.complete_many(leases)
            idle = 0
            continue
        idle += 1
        await clock.advance(minutes=10)
        await engine.expire()
        await engine.promote()
        await engine.connection.fetch(f"select * from ff.sweep_gates('{home()}')")
        for n in range(BUDGETS):
            await Admission(engine).one("reset_budget", budget=f"b{n}", key=None)


async def run(db, clock, engine, operations: int, *workers) -> Crowd:
    """Let workers, two submitters and an operator act at once, then drain and look."""
    admission = Admission(engine, has_all=True)
    # Every third quota also has a rate. While it has no room, executions can still resume.
    rate = {"rate": 100, "rate_window_ms": 1000}
    gates = [
        await admission.quota(
            "tenant", f"k{n}", concurrency=1 + n % 5 * 20, **({} if n % 3 else rate)
        )
        for n in range(KEYS)
    ]
    shared = await admission.quota("shared", concurrency=200)
    budgets = [
        await admission.budget(f"b{n}", on_exceed="suspend", tokens=2000) for n in range(BUDGETS)
    ]
    await engine.register()
    crowd = Crowd(drawn("operations").randrange(2**32), operations)
    watching = asyncio.create_task(watch(crowd, db))
    try:
        await asyncio.gather(
            *(worker(crowd) for worker in workers),
            submit(crowd, await db.connect(), gates, shared, budgets, 1500),
            submit(crowd, await db.connect(), gates, shared, budgets, 1500),
            operate(crowd, await db.connect()),
        )
    finally:
        crowd.is_calm = True
    assert await watching > 1
    await drain(db, clock)
    left = await engine.connection.fetch(
        "select quota_ids, phase::text, ownership::text, eligibility::text, line_id "
        "from ff.execution where phase <> 'terminal' limit 5"
    )
    assert left == [], left
    assert await engine.connection.fetch(find_check("Q01").text) == []
    assert (await admission.gate("shared"))["running"] == 0
    return crowd


async def test_random_operations_never_pass_a_limit_and_everything_drains(db, clock, engine):
    async def worker(number: int, crowd: Crowd) -> None:
        await work(crowd, await db.connect(), f"i{number}")

    workers = [lambda crowd, n=n: worker(n, crowd) for n in range(4)]
    crowd = await run(db, clock, engine, 10_000, *workers)
    assert crowd.done >= 10_000


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
async def test_a_million_random_operations_by_processes_that_are_killed(db, clock, engine, sized):
    """Eight workers in four processes. One process after the other is killed and started again."""
    operations = sized(1_000_000, short=5_000)
    chance = drawn("kills")

    async def process(number: int, crowd: Crowd) -> None:
        while crowd.goes_on:
            started = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "support.gate_crowd",
                db.url,
                str(chance.randrange(2**32)),
                str(number),
                stdout=asyncio.subprocess.PIPE,
                env={
                    **os.environ,
                    PARTITIONS: str(partitions()),
                    "PYTHONPATH": str(Path(gate_crowd.__file__).parents[1]),
                },
            )
            assert started.stdout is not None
            until = 0.0
            async for line in started.stdout:
                crowd.done += int(line)
                # From its first words on: a busy machine takes long to start it.
                until = until or monotonic() + chance.uniform(2, 10)
                if monotonic() > until or not crowd.goes_on:
                    break
            started.kill()
            # It ended by the kill, not by an error.
            assert await started.wait() == -9

    workers = [lambda crowd, n=n: process(n, crowd) for n in range(4)]
    crowd = await run(db, clock, engine, operations, *workers)
    assert crowd.done >= operations
