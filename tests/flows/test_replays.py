"""Replays of completed, failed, skipped and cancelled nodes in random graphs, between any two
calls: a node starts only with what it was promised, and every attempt of it sees the same.

A quiet run makes one call after the other: after every call the engine stands where the evaluator
stands, and a node is given what the evaluator says. A rough run holds rows that a call would like
to touch, tells of ends late and makes several calls at once: there a node must have a result of
every upstream that counted, one that this upstream really had, and the same at every start; and
whoever has not started is given the newest, once all is told.

A failure names the number of its graph; FLOWFABRIC_GRAPHS=17 runs only that one.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from contextlib import AsyncExitStack
from random import Random
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from support.clock import Clock
from support.database import Database, home
from support.factories import Engine, Lease
from support.proofs import drawn

from .evaluator import CANCELLED, SKIPPED, SUCCESS, Lives, random_graph
from .stage import DAY, locked, outcomes, plant, settle_all

CHOSEN = "FLOWFABRIC_GRAPHS"
OFTEN = {"policy": {"max_replay_count": 1000}}


class Run:
    def __init__(self, ring: Ring, number: int, *, is_rough: bool) -> None:
        self.ring = ring
        self.is_rough = is_rough
        self.dice = Random(f"replays {number}")
        size = self.dice.randint(2, 4 + number % 12)
        self.graph = random_graph(self.dice, size, cancels=is_rough and bool(number % 2), density=4)
        self.lives = Lives(self.graph)
        self.leases: dict[int, Lease] = {}
        self.given: dict[int, dict[UUID, bytes | None]] = {}
        self.had: dict[int, list[bytes]] = {node: [] for node in range(size)}
        self.ended: dict[int, str] = {}
        self.number = 0
        self.calls: list[str] = []

    async def go(self) -> None:
        engine = self.ring.engine
        self.planted = await plant(engine, self.graph, dict.fromkeys(range(self.graph.size), OFTEN))
        rows = await engine.connection.fetch(
            "select edge_id from ff.edge where flow_id = $1 order by edge_id",
            self.planted.flow_id,
        )
        self.edge_ids = [row["edge_id"] for row in rows]
        for _ in range(self.graph.size * 6):
            if self.is_rough:
                await self._rough_step()
            else:
                await self._quiet_step()
        await settle_all(engine)
        await self._untouched_are_up_to_date()

    # Calls

    async def claim(self, engine: Engine) -> None:
        leases = await engine.claim(self.dice.choice([1, 3]), ttl=DAY, instance=f"{id(engine)}")
        nodes = [self.planted.numbers[lease.execution_id] for lease in leases]
        self.calls.append(f"claim {nodes}")
        for node, lease in zip(nodes, leases, strict=True):
            self.leases[node] = lease
            self.ring.met["started again" if node in self.given else "started"] += 1
        for node, given in (await self.inputs(engine, nodes)).items():
            self._check_given(node, given)

    def _check_given(self, node: int, given: dict[UUID, bytes | None]) -> None:
        if not self.is_rough:
            wanted = {self.edge_ids[at]: result for at, result in self.lives.start(node).items()}
            assert given == wanted, f"{node} is given {given}, not {wanted}"
        assert self.given.setdefault(node, given) == given, f"{node} saw {self.given[node]} before"
        for key in self.graph.keys_of[node]:
            members = [at for at, edge in enumerate(self.graph.edges) if edge.key == key]
            got = [at for at in members if self.edge_ids[at] in given]
            assert len(got) >= self.graph.rule(key).needed(len(members)), f"{node} lacks {key}"
        for id_, result in given.items():
            upstream = self.graph.edges[self.edge_ids.index(id_)].upstream
            assert result in self.had[upstream], f"{node} is given {result!r} by {upstream}"

    async def inputs(self, engine: Engine, nodes: list[int]) -> dict[int, dict[UUID, bytes | None]]:
        """What counts for each of these, by edge."""
        found: dict[int, dict[UUID, bytes | None]] = {node: {} for node in nodes}
        if nodes:
            rows = await engine.connection.fetch(
                f"select execution_id, edge_id, result from ff.read_inputs('{home()}', $1, $2) "
                "where is_counted",
                engine.namespace,
                self.planted.ids_of(nodes),
            )
            for row in rows:
                found[self.planted.numbers[row["execution_id"]]][row["edge_id"]] = row["result"]
        return found

    async def finish(self, engine: Engine, node: int) -> None:
        lease = self.leases.pop(node)
        roll = self.dice.random()
        if roll < 0.7:
            self.number += 1
            result = b"%d" % self.number
            # it may be read before the answer is here
            self.had[node].append(result)
            answer = await engine.complete(lease, result)
            outcome = SUCCESS
        elif roll < 0.9:
            answer = await engine.fail(lease, "permanent")
            outcome = "failed"
        else:
            answer = await engine.release(lease)
            outcome = ""
        self.calls.append(f"{outcome or 'release'} {node} {self.had[node][-1:]}: {answer.word}")
        if answer.word == "busy":
            self.leases[node] = lease
        elif outcome and not self.is_rough:
            self.lives.end(node, outcome, b"%d" % self.number)

    async def cancel(self, engine: Engine, node: int) -> None:
        try:
            await engine.cancel(self.planted.ids[node])
        except asyncpg.PostgresError as error:
            if error.message != "already_terminal":
                raise
            return
        self.calls.append(f"cancel {node}")
        self.leases.pop(node, None)
        # whoever was cancelled may be cancelled again
        if not self.is_rough and node not in self.lives.outcomes:
            self.lives.end(node, CANCELLED)

    async def replay(self, engine: Engine, node: int) -> None:
        try:
            await engine.replay(self.planted.ids[node])
        except asyncpg.PostgresError as error:
            # somebody is busy, or it runs already
            if error.sqlstate not in ("40001", "55P03", "WF206") or not self.is_rough:
                raise
            self.calls.append(f"replay {node}: {error.message}")
            return
        self.calls.append(f"replay {node}, which was {self.ended[node]}")
        self.ring.met[f"replayed {self.ended[node]}"] += 1
        self.leases.pop(node, None)
        if not self.is_rough:
            self.lives.replay(node)

    def _some_call(self) -> tuple[Any, int]:
        acts: list[tuple[Any, int]] = [(self.claim, -1)] * 3
        acts += [(self.finish, node) for node in self.leases] * 2
        acts += [(self.replay, node) for node in self.ended]
        if self.dice.random() < 0.1:
            acts.append((self.cancel, self.dice.randrange(self.graph.size)))
        return self.dice.choice(acts)

    # Steps

    async def _quiet_step(self) -> None:
        engine = self.ring.engine
        call, node = self._some_call()
        await (call(engine) if node < 0 else call(engine, node))
        await settle_all(engine)
        self.ended = await outcomes(engine, self.planted)
        assert self.ended == self.lives.outcomes, (self.ended, self.lives.outcomes)
        self.leases = {n: lease for n, lease in self.leases.items() if n not in self.ended}
        early = self.leases.keys() - self.lives.ready
        assert not early, f"{early} run too early"

    async def _rough_step(self) -> None:
        dice, ring = self.dice, self.ring
        calls: dict[int, Any] = {}
        for _ in range(dice.choice([1, 2, 3])):
            call, node = self._some_call()
            calls.setdefault(node, call)
        free = [node for node in range(self.graph.size) if node not in calls]
        held = dice.sample(free, min(len(free), dice.choice([0, 0, 1, 3])))
        async with AsyncExitStack() as stack:
            if held and not any(call == self.replay for call in calls.values()):
                self.calls.append(f"held by another: {held}")
                await stack.enter_async_context(locked(ring.other, self.planted.ids_of(held)))
            await asyncio.gather(
                *(
                    call(engine) if node < 0 else call(engine, node)
                    for (node, call), engine in zip(calls.items(), ring.engines, strict=False)
                )
            )
        if dice.random() < 0.3:
            await ring.engine.resolve(dice.choice([1, 100]))
        self.ended = await outcomes(ring.engine, self.planted)
        self.leases = {n: lease for n, lease in self.leases.items() if n not in self.ended}

    async def _untouched_are_up_to_date(self) -> None:
        """Whoever has not started is given the newest results; whoever has, what it saw."""
        newest = {}
        rows = await self.ring.engine.connection.fetch(
            "select execution_id, result from ff.execution where flow_id = $1 "
            "and outcome = 'success'",
            self.planted.flow_id,
        )
        for row in rows:
            newest[self.planted.numbers[row["execution_id"]]] = row["result"]
        for node, given in (
            await self.inputs(self.ring.engine, list(range(self.graph.size)))
        ).items():
            if node in self.given:
                assert given == self.given[node], f"{node} would see {given} now"
                continue
            for id_, result in given.items():
                upstream = self.graph.edges[self.edge_ids.index(id_)].upstream
                # while it runs again it is the one before
                assert result == newest.get(upstream, result), (node, upstream)


class Ring:
    def __init__(self, db: Database, connections: list[Any]) -> None:
        self.db = db
        self.engine = Engine(db.conn)
        self.other = connections[0]
        self.engines = [self.engine, *(Engine(connection) for connection in connections[1:])]
        self.met: Counter[str] = Counter()

    @classmethod
    async def open(cls, db: Database, clock: Clock) -> Ring:
        await clock.freeze()
        return cls(db, [await db.connect() for _ in range(3)])

    async def run(self, numbers: range, *, is_rough: bool) -> None:
        chosen = os.environ.get(CHOSEN)
        for number in numbers if chosen is None else [int(chosen)]:
            run = Run(self, number, is_rough=is_rough)
            try:
                await run.go()
                rows = await self.db.broken_invariants()
                assert not rows, "\n".join(str(dict(row)) for row in rows)
                await self.db.execute(
                    "truncate ff.execution, ff.execution_body, ff.attempt, ff.event, "
                    "ff.claim_slot, ff.flow, ff.edge, ff.edge_group, ff.kept_result"
                )
            except (AssertionError, asyncpg.PostgresError) as error:
                self.db.leave_broken("it failed")
                calls = "\n".join(run.calls)
                raise AssertionError(f"{error}\n{CHOSEN}={number}\n{run.graph}\n{calls}") from error
        if chosen is None:
            # In a rough run, chance decides what a few graphs meet.
            for what in (
                (SUCCESS,) if is_rough and len(numbers) < 20 else (SUCCESS, "failed", SKIPPED)
            ):
                assert self.met[f"replayed {what}"] > 0, self.met
            assert self.met["started again"] > 0, self.met


@pytest.mark.parametrize("is_rough", [False, True], ids=["quiet", "rough"])
async def test_a_node_sees_what_it_was_promised_whoever_is_replayed(db, clock, is_rough):
    ring = await Ring.open(db, clock)
    await ring.run(range(6), is_rough=is_rough)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("is_rough", [False, True], ids=["quiet", "rough"])
async def test_hundreds_of_graphs_with_replays(db, clock, is_rough, sized):
    """New ones every time."""
    first = drawn("replays").getrandbits(32) * 1000
    print(f"from graph {first} on")
    ring = await Ring.open(db, clock)
    await ring.run(range(first, first + sized(800, short=20)), is_rough=is_rough)
