"""Nobody waits in a circle: many connections end upstreams of each other's downstreams at once.

All of them draw from the same leases in any order, so that two often end the same nodes, while
leases are renewed, nodes and whole flows cancelled, replayed and expired, and reconcilers run. A
deadlock would be told to one of the callers (40P01) and counted by the server.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random
from uuid import UUID

import asyncpg
import pytest

from support.database import Database, home
from support.factories import Engine, Lease, new_id

from .evaluator import random_graph
from .stage import DAY, Planted, plant, settle_all, siblings

CALLERS = 6
# There are never more flows than this to get in each other's way.
FLOWS = 4


class Hunt:
    def __init__(self, db: Database, calls: int, most: int) -> None:
        self.db = db
        self.left = calls
        self.most = most
        self.leases: dict[UUID, Lease] = {}
        self.flows: list[Planted] = []
        self.nodes: list[UUID] = []
        self.planted = 0
        self.counts: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()

    async def caller(self, number: int) -> None:
        engine = Engine(await self.db.connect())
        dice = Random(number)
        acts: list[tuple[Callable[[Engine, Random], Awaitable[object]], int]] = [
            (self.claim, 5),
            (self.complete, 8),
            (self.fail, 3),
            (self.renew, 5),
            (self.cancel, 2),
            (self.replay, 2),
            (self.tell, 3),
            (self.cancel_siblings, 3),
            (self.cancel_flow, 1),
            (self.cancel_members, 2),
            (self.link, 1),
            (self.more, 1),
        ]
        names, weights = zip(*acts, strict=True)
        while self.left > 0:
            self.left -= 1
            act = dice.choices(names, weights)[0]
            self.counts[act.__name__] += 1
            try:
                await act(engine, dice)
            except asyncpg.PostgresError as error:
                code = error.sqlstate or ""
                # A replay that met a change of its flow is to be asked again, as a client does; who
                # waited for two seconds, on a busy machine, did not wait in a circle: that is told
                # after one.
                is_late = code == "55P03" or (code == "40001" and act == self.replay)
                if not (code.startswith("WF") or is_late):
                    raise AssertionError(f"{act.__name__}: {code} {error}") from error
                self.refusals[f"{act.__name__}: {error.message}"] += 1

    def some(self, dice: Random, most: int) -> list[Lease]:
        """In any order: it is the engine that brings them into one."""
        there = list(self.leases.values())
        return dice.sample(there, min(len(there), dice.randint(1, most)))

    async def more(self, engine: Engine, dice: Random) -> None:
        graph = random_graph(dice, dice.randint(10, self.most), cancels=True, density=2)
        planted = await plant(engine, graph, {})
        self.planted += 1
        if self.planted in (5, 20, 80):
            # the watchers of a test database plan by what they know of it
            await engine.connection.execute(
                "analyze ff.execution, ff.event, ff.edge, ff.edge_group"
            )
        self.flows = [*self.flows, planted][-FLOWS:]
        self.nodes = [*self.nodes, *planted.ids][-60 * FLOWS :]

    async def claim(self, engine: Engine, dice: Random) -> None:
        leases = await engine.claim(dice.choice([5, 20]), ttl=DAY, instance=f"{id(engine)}")
        if len(leases) < 5:
            await self.more(engine, dice)
        self.leases |= {lease.execution_id: lease for lease in leases}

    async def complete(self, engine: Engine, dice: Random) -> None:
        leases = self.some(dice, 12)
        if leases:
            is_patient = len(leases) == 1 and dice.random() < 0.5
            answers = await engine.complete_many(leases, wait=is_patient)
            self._drop(leases, [answer.word for answer in answers])

    async def fail(self, engine: Engine, dice: Random) -> None:
        leases = self.some(dice, 4)
        n = len(leases)
        if leases:
            answers = await engine.fail_many(leases, ["permanent"] * n, ["it broke"] * n)
            self._drop(leases, [answer.word for answer in answers])

    def _drop(self, leases: list[Lease], words: list[str]) -> None:
        for lease, word in zip(leases, words, strict=True):
            if word != "busy" and self.leases.get(lease.execution_id) == lease:
                del self.leases[lease.execution_id]

    async def renew(self, engine: Engine, dice: Random) -> None:
        leases = self.some(dice, 60)
        if leases:
            await engine.renew_many(leases, DAY)

    async def cancel(self, engine: Engine, dice: Random) -> None:
        if self.nodes:
            await engine.cancel(dice.choice(self.nodes))

    async def replay(self, engine: Engine, dice: Random) -> None:
        if self.nodes:
            await engine.replay(dice.choice(self.nodes))

    async def tell(self, engine: Engine, dice: Random) -> None:
        await engine.resolve(dice.choice([3, 100]))

    async def cancel_siblings(self, engine: Engine, dice: Random) -> None:
        await siblings(engine, dice.choice([3, 100]))
        await engine._tick("ff.reconcile_siblings", 50)

    async def cancel_flow(self, engine: Engine, dice: Random) -> None:
        if self.flows:
            await engine.connection.fetch(
                f"select a.* from ff.cancel_flow_header(p_partition_key => '{home()}', "
                "p_namespace => 'test', p_flow_id => $1, p_policy => $2, p_reason => null, "
                "p_actor => null) a",
                dice.choice(self.flows).flow_id,
                dice.choice(["cancel_all", "cancel_pending", "flow_only"]),
            )

    async def cancel_members(self, engine: Engine, dice: Random) -> None:
        if self.flows:
            await engine.connection.fetch(
                f"select a.* from ff.cancel_members(p_partition_key => '{home()}', "
                "p_namespace => 'test', p_flow_id => $1, p_limit => $2) a",
                dice.choice(self.flows).flow_id,
                dice.choice([5, 100]),
            )

    async def link(self, engine: Engine, dice: Random) -> None:
        """One more edge, from any node to a later one."""
        planted = dice.choice(self.flows)
        upstream, downstream = sorted(dice.sample(range(planted.graph.size), 2))
        edge = {
            "flow_id": planted.flow_id,
            "edge_id": new_id(),
            "upstream_id": planted.ids[upstream],
            "downstream_id": planted.ids[downstream],
        }
        revision = await engine.connection.fetchval(
            f"select graph_revision from ff.flow where partition_key = {home()} and flow_id = $1",
            planted.flow_id,
        )
        given = ", ".join(f"p_{name} => ${n}" for n, name in enumerate(edge, 1))
        await engine.connection.fetch(
            f"select a.* from ff.stage_dependency_edge(p_partition_key => '{home()}', "
            f"p_namespace => 'test', p_expected_graph_revision => $5, {given}) a",
            *edge.values(),
            revision,
        )
        await engine.connection.fetch(
            f"select a.* from ff.apply_dependency_to_child(p_partition_key => '{home()}', "
            f"p_namespace => 'test', {given}) a",
            *edge.values(),
        )


async def _settle(db: Database, hunt: Hunt) -> None:
    """What reconcilers do; afterwards nobody is left behind in a cancelled flow."""
    engine = Engine(db.conn)
    await settle_all(engine)
    for flow_id, *_ in await db.fetch("select flow_id from ff.cancel_backlog"):
        await db.fetch(
            f"select a.* from ff.cancel_members(p_partition_key => '{home()}', "
            "p_namespace => 'test', p_flow_id => $1, p_limit => 1000) a",
            flow_id,
        )
    await settle_all(engine)
    stuck = await db.fetch(
        "select e.execution_id from ff.execution e join ff.flow f using (partition_key, flow_id) "
        "where f.cancel_policy = 'cancel_all' and e.phase <> 'terminal'"
    )
    assert not stuck, stuck


async def _hunt(db: Database, calls: int, most: int) -> Hunt:
    hunt = Hunt(db, calls, most)
    await hunt.more(Engine(db.conn), Random(0))
    async with asyncio.TaskGroup() as tasks:
        for number in range(CALLERS):
            tasks.create_task(hunt.caller(number))
    await _settle(db, hunt)
    await db.execute("select pg_stat_force_next_flush()")
    deadlocks = await db.fetchval(
        "select deadlocks from pg_stat_database where datname = current_database()"
    )
    assert deadlocks == 0
    assert all(hunt.counts[name] for name in ("complete", "renew", "cancel", "cancel_siblings"))
    ended = await db.fetchval("select count(*) from ff.execution where phase = 'terminal'")
    assert ended > calls / 10
    return hunt


async def test_nobody_meets_a_deadlock(db):
    await _hunt(db, 300, 24)


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_nobody_meets_a_deadlock_in_fifty_thousand_calls(db, record_property, sized):
    hunt = await _hunt(db, sized(50_000, short=3_000), 60)
    record_property("counts", dict(hunt.counts))
    record_property("refusals", dict(hunt.refusals))
