"""What takes part in a test of random operations: workers, submitters, an operator.

`python -m support.gate_crowd URL SEED NUMBER` runs two workers in a process of its own until the
test kills it. It prints how many operations each round did.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from datetime import timedelta
from random import Random
from typing import Any

import asyncpg

from .admission import Admission
from .database import home
from .factories import Engine, Lease

KEYS = 24
BUDGETS = 4
# What a call may be refused with: the state has moved, or a row was locked for too long.
STATE = {"WF201", "WF204", "WF205", "WF206", "WF212", "WF301", "55P03", "40001"}
# A batch of a worker ends in one of these ways.
ENDS = ("complete",) * 6 + ("fail", "release", "vanish", "twice")
BUSY = timedelta(seconds=2)
ACTS = ("cancel", "revoke", "replay", "limit", "sweep", "expire", "raise", "reset")


class Crowd:
    """The shared facts of one run. Every execution that a call acts on is an operation."""

    def __init__(self, seed: int, operations: int) -> None:
        self.random = Random(seed)
        self.operations = operations
        self.done = 0
        self.is_calm = False

    @property
    def goes_on(self) -> bool:
        return self.done < self.operations

    def tell(self) -> None:
        """Say that a worker has done one round."""

    def note(self, error: asyncpg.PostgresError) -> None:
        assert (error.sqlstate or "") in STATE, error


async def work(crowd: Crowd, connection: asyncpg.Connection, instance: str) -> None:
    """Claim and settle as a worker does; some settle twice, or never."""
    engine = Engine(connection)
    admission = Admission(engine)
    while crowd.goes_on:
        try:
            leases = await engine.claim(
                crowd.random.choice((1, 20, 100)), instance=instance, ttl=BUSY
            )
            crowd.done += len(leases)
            if not leases:
                await asyncio.sleep(0.02)
            elif crowd.random.random() < 0.1:
                await engine.delay(leases.pop(), timedelta(milliseconds=20))
                crowd.done += 1
            for lease in leases[: crowd.random.choice((0, 0, 3))]:
                # One that finds no room in its budget loses its lease, and stands in line.
                await admission.report(lease, {"tokens": crowd.random.randint(1, 60)})
                crowd.done += 1
            await _settle(crowd, engine, leases)
        except asyncpg.PostgresError as error:
            crowd.note(error)
        crowd.tell()


async def _settle(crowd: Crowd, engine: Engine, leases: list[Lease]) -> None:
    middle = crowd.random.randint(0, len(leases))
    for part in (leases[:middle], leases[middle:]):
        end = crowd.random.choice(ENDS)
        if not part or end == "vanish":
            continue
        crowd.done += len(part)
        if end == "fail":
            await engine.fail_many(part, ["permanent"] * len(part), ["no"] * len(part))
        elif end == "release":
            await engine.release_many(part)
        else:
            await engine.complete_many(part)
        if end == "twice":
            crowd.done += len(part)
            await engine.complete_many(part)


async def submit(
    crowd: Crowd,
    connection: asyncpg.Connection,
    gates: list[int],
    shared: int,
    budgets: list[int],
    most: int,
) -> None:
    """Submit batches, some inside a transaction that stays open for a while."""
    engine = Engine(connection)
    admission = Admission(engine)
    while crowd.goes_on:
        waiting = await connection.fetchval(
            "select count(*) from (select from ff.execution where phase <> 'terminal' limit $1) w",
            most,
        )
        if waiting >= most:
            await asyncio.sleep(0.01)
            continue
        wanted = {crowd.random.choice(gates)}
        if crowd.random.random() < 0.5:
            wanted.add(shared)
        if crowd.random.random() < 0.2:
            wanted.add(crowd.random.choice(gates))
        spends = [crowd.random.choice(budgets)] if crowd.random.random() < 0.3 else []
        count, priority = crowd.random.randint(1, 60), crowd.random.choice((0, 0, 5))
        given: dict[str, Any] = {
            "quotas": sorted(wanted),
            "budgets": spends,
            "priority": priority,
        }
        if crowd.random.random() < 0.1:
            async with connection.transaction():
                await admission.submit(count, **given)
                await asyncio.sleep(0.05)
        else:
            await admission.submit(count, **given)
        crowd.done += count


async def operate(crowd: Crowd, connection: asyncpg.Connection) -> None:
    """Cancel, revoke, replay and change limits at random, and do what the reconcilers do."""
    engine = Engine(connection)
    admission = Admission(engine)
    while crowd.goes_on:
        await asyncio.sleep(0.01)
        crowd.done += 1
        act = crowd.random.choice(ACTS)
        id_ = await connection.fetchval(
            "select execution_id from ff.execution where (phase = 'terminal') = $1 "
            "offset $2 limit 1",
            act == "replay",
            crowd.random.randint(0, 30),
        )
        with suppress(asyncpg.exceptions.DataError):
            try:
                if act == "sweep":
                    await connection.fetch(f"select * from ff.sweep_gates('{home()}')")
                elif act == "expire":
                    await engine.expire()
                    await engine.promote()
                elif act == "limit":
                    # A limit is only raised: a lowered one stops nobody who runs.
                    await admission.one(
                        "set_quota",
                        quota="tenant",
                        key=f"k{crowd.random.randrange(KEYS)}",
                        concurrency=100,
                    )
                elif act == "raise":
                    budget = f"b{crowd.random.randrange(BUDGETS)}"
                    await admission.one(
                        "raise_budget",
                        budget=budget,
                        key=None,
                        dimensions=["tokens"],
                        hard_limits=[crowd.random.randint(500, 8000)],
                    )
                elif act == "reset":
                    budget = f"b{crowd.random.randrange(BUDGETS)}"
                    await admission.one("reset_budget", budget=budget, key=None)
                elif id_ is not None and act == "cancel":
                    await engine.cancel(id_)
                elif id_ is not None and act == "revoke":
                    await engine.revoke(id_)
                elif id_ is not None:
                    await engine.replay(id_)
            except asyncpg.PostgresError as error:
                crowd.note(error)


class _Process(Crowd):
    def tell(self) -> None:
        print(self.done, flush=True)
        self.done = 0


async def _main(url: str, seed: int, number: int) -> None:
    crowd = _Process(seed, sys.maxsize)
    connections = [await asyncpg.connect(url) for _ in range(2)]
    await asyncio.gather(*(work(crowd, one, f"i{number}-{n}") for n, one in enumerate(connections)))


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
