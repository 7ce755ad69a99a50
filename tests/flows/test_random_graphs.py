"""Random graphs, run to their end in random ways: what the evaluator says, and nothing else.

A quiet run makes one call after the other, as a client does that is never disturbed: after every
call the engine must stand where the evaluator stands. A rough run drops what a client does after
its calls, holds rows that a call would like to touch, rolls calls back, repeats them, tells of ends
again and lets several connections end nodes at once: there every end must have been allowed by the
ends before it, and in the end the states and counters of all groups follow from the outcomes.

A failure names the number of its graph; FLOWFABRIC_GRAPHS=17 runs only that one.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from contextlib import AsyncExitStack
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from support.clock import Clock
from support.database import Database, home, several_partitions
from support.factories import Engine, Lease
from support.proofs import drawn

from .evaluator import (
    CANCELLED,
    SKIPPED,
    SUCCESS,
    Graph,
    Simulation,
    audit,
    random_graph,
    settle,
    unneeded,
)
from .stage import (
    DAY,
    Planted,
    compare_groups,
    doctor,
    groups,
    history,
    leftovers,
    locked,
    look,
    outcomes,
    plant,
    settle_all,
    siblings,
)

if TYPE_CHECKING:
    from support.database import Connection

CHOSEN = "FLOWFABRIC_GRAPHS"
MINUTE = timedelta(minutes=1)
PLANS = ["success"] * 14 + ["failed"] * 3 + ["cancelled"] * 3 + ["timeout"] * 2 + ["deadline"]


class Run:
    """One graph from its planting to its end."""

    def __init__(self, ring: Ring, number: int, size: int, *, is_rough: bool) -> None:
        self.ring = ring
        self.dice = Random(f"graph {number}")
        self.graph: Graph = random_graph(
            self.dice, size, cancels=bool(number % 3), density=1.4 if not is_rough else 4
        )
        self.plan = {node: self.dice.choice(PLANS) for node in range(size)}
        self.is_rough = is_rough
        self.simulation = Simulation(self.graph)
        self.leases: dict[int, Lease] = {}
        self.completed: set[int] = set()
        self.calls: list[str] = []
        self.ready: set[int] = set()
        self.planted: Planted

    async def go(self) -> None:
        self.planted = await plant(self.ring.engine, self.graph, self._items())
        ended: dict[int, str] = {}
        for _ in range(60 * self.graph.size + 100):
            if len(ended) == self.graph.size:
                break
            if self.is_rough:
                await self._rough_step(ended)
                ended = await outcomes(self.ring.engine, self.planted)
            else:
                ended = await self._quiet_step()
        else:
            raise AssertionError(f"it does not end: {await self._left()}")
        await settle_all(self.ring.engine)
        await self._compare()

    def _items(self) -> dict[int, dict[str, Any]]:
        items: dict[int, dict[str, Any]] = {}
        for node, plan in self.plan.items():
            if plan == "timeout":
                items[node] = {"policy": {"timeout_policy": {"attempt_timeout_ms": 60_000}}}
            elif plan == "deadline":
                items[node] = {"deadline": self.dice.randint(1, 4) * MINUTE}
        return items

    # Calls

    async def claim(self, engine: Engine) -> None:
        limit = self.dice.choice([1, 3, 100])
        leases = await engine.claim(limit, ttl=DAY, instance=f"{id(engine)}")
        self.note("claim", [self.node(lease) for lease in leases])
        for lease in leases:
            self.leases[self.node(lease)] = lease

    def node(self, lease: Lease) -> int:
        return self.planted.numbers[lease.execution_id]

    def pick(self, *plans: str) -> list[int]:
        """Some of those that run and are to end so."""
        there = [node for node in self.leases if self.plan[node] in plans]
        if not there:
            return []
        return self.dice.sample(there, self.dice.randint(1, min(len(there), 8)))

    async def complete(self, engine: Engine, nodes: list[int]) -> dict[int, str]:
        """Those that could be completed; whose lease is gone is let go."""
        if not nodes:
            return {}
        leases = [self.leases[node] for node in nodes]
        answers = await engine.complete_many(leases, [b"%d" % node for node in nodes])
        self.note("complete", dict(zip(nodes, (a.word for a in answers), strict=True)))
        return self._took(leases, answers, "completed", SUCCESS)

    async def fail(self, engine: Engine, nodes: list[int]) -> dict[int, str]:
        if not nodes:
            return {}
        n = len(nodes)
        leases = [self.leases[node] for node in nodes]
        answers = await engine.fail_many(leases, ["permanent"] * n, ["it broke"] * n)
        self.note("fail", dict(zip(nodes, (a.word for a in answers), strict=True)))
        return self._took(leases, answers, "failed", "failed")

    def _took(self, leases: list[Lease], answers: Any, word: str, outcome: str) -> dict[int, str]:
        ends = {}
        for lease, answer in zip(leases, answers, strict=True):
            if answer.word != "busy":
                self._let_go(lease)
            if answer.word == word:
                ends[self.node(lease)] = outcome
        return ends

    def _let_go(self, lease: Lease) -> None:
        """Unless it has been claimed again meanwhile."""
        if self.leases.get(self.node(lease)) == lease:
            del self.leases[self.node(lease)]

    async def cancel(self, engine: Engine, node: int) -> dict[int, str]:
        try:
            answer = await engine.cancel(self.planted.ids[node])
        except asyncpg.PostgresError as error:
            if error.message != "already_terminal":
                raise
            self.note("cancel", (node, "already_terminal"))
            return {}
        self.note("cancel", (node, answer.word))
        self.leases.pop(node, None)
        return {node: CANCELLED}

    async def tick(self, engine: Engine) -> None:
        self.note("a minute passes")
        await engine.connection.fetchval("select ff_test.advance_clock($1)", MINUTE)
        await engine.expire_executions()

    async def release(self, engine: Engine) -> None:
        lease = self.dice.choice(list(self.leases.values()))
        answer = await engine.release(lease)
        self.note("release", (self.node(lease), answer.word))
        if answer.word != "busy":
            self._let_go(lease)

    def note(self, what: str, facts: Any = "") -> None:
        self.calls.append(f"{what} {facts}")

    # Without disturbance

    async def _quiet_step(self) -> dict[int, str]:
        engine, simulation = self.ring.engine, self.simulation
        act = self.dice.choice(self._possible())
        match act:
            case "claim":
                await self.claim(engine)
                early = self.leases.keys() - simulation.ready
                assert not early, f"{early} can run too early"
                return simulation.outcomes
            case "release":
                await self.release(engine)
                return simulation.outcomes
            case "complete":
                simulation.end(await self.complete(engine, self.pick("success")))
            case "fail":
                simulation.end(await self.fail(engine, self.pick("failed")))
            case "tick":
                await self.tick(engine)
                await self._expired()
            case _:
                simulation.end(await self.cancel(engine, act))
        ended, is_open = await look(engine, self.planted)
        if is_open:
            await settle_all(engine)
            ended = await outcomes(engine, self.planted)
        assert ended == simulation.outcomes, (
            f"engine and evaluator differ: {_differences(ended, simulation.outcomes)}"
        )
        self.leases = {n: lease for n, lease in self.leases.items() if n not in ended}
        if self.dice.random() < 0.2:
            stored = await groups(engine, self.planted)
            assert stored == simulation.groups, _differences(stored, simulation.groups)
        return ended

    def _possible(self) -> list[Any]:
        """What there is to do next, what brings it on more often."""
        simulation, plans = self.simulation, {self.plan[node] for node in self.leases}
        acts: list[Any] = []
        acts += ["claim"] * (2 if simulation.ready - self.leases.keys() else 0)
        acts += ["complete"] * (3 if "success" in plans else 0)
        acts += ["fail"] * (2 if "failed" in plans else 0)
        acts += ["tick"] * (plans & {"timeout", "deadline"} != set())
        acts += ["release"] * (len(self.leases) > 0 and self.dice.random() < 0.2)
        left = set(self.plan) - simulation.outcomes.keys()
        acts += [
            node
            for node in left
            if self.plan[node] == "cancelled"
            and (node in simulation.ready or self.dice.random() < 0.02)
        ]
        if any(self.plan[node] == "deadline" for node in left) and self.dice.random() < 0.05:
            acts.append("tick")
        return acts

    async def _expired(self) -> None:
        """Deadlines first, then attempts that ran out of time and were not ended by those."""
        rows = await self.ring.engine.connection.fetch(
            f"select execution_id, cause from ff.execution where partition_key = {home()} "
            "and execution_id = any ($1) and outcome = 'expired'",
            self.planted.ids,
        )
        for cause in ("expire", "time_out"):
            self.simulation.end(
                {
                    self.planted.numbers[row["execution_id"]]: "expired"
                    for row in rows
                    if row["cause"] == cause
                }
            )

    # With it

    async def _rough_step(self, ended: dict[int, str]) -> None:
        dice, ring = self.dice, self.ring
        # who can be claimed; the engine may not know of all yet
        self.ready = settle(self.graph, ended).ready - self.leases.keys()
        roll = dice.random()
        if roll < 0.08:
            return await self._follow(ring.engine)
        if roll < 0.12:
            return await self._tell_again()
        if roll < 0.16 and self.leases:
            return await self._crash()
        if roll < 0.20:
            return await self._settled()
        calls = [self._some_call() for _ in range(dice.choice([1, 1, 2, 3]))]
        engines = dice.sample(ring.engines, len(calls))
        touched = {node for _, nodes in calls for node in nodes}
        free = [node for node in range(self.graph.size) if node not in touched]
        held = dice.sample(free, min(len(free), dice.choice([0, 0, 1, 2, 5])))
        async with AsyncExitStack() as stack:
            if held:
                self.note("held by another:", held)
                await stack.enter_async_context(locked(ring.other, self.planted.ids_of(held)))
            await asyncio.gather(
                *(call(engine) for (call, _), engine in zip(calls, engines, strict=True))
            )
        if dice.random() < 0.4:
            await self._follow(ring.engine)
        return None

    def _some_call(self) -> tuple[Any, list[int]]:
        """A call, and the nodes that it must not wait for."""
        dice, plans = self.dice, {self.plan[node] for node in self.leases}
        acts = ["claim"] * (3 if self.ready else not self.leases)
        acts += ["complete"] * (4 if "success" in plans else 0)
        acts += ["fail"] * (2 if "failed" in plans else 0)
        acts += ["cancel"] * ("cancelled" in plans)
        acts += ["tick"] * (plans & {"timeout", "deadline"} != set())
        acts += ["renew"] * (len(self.leases) > 0)
        acts += ["release"] * (len(self.leases) > 0 and dice.random() < 0.3)
        if dice.random() < 0.02:
            acts = ["tick"]
        match dice.choice(acts):
            case "complete":
                nodes = self.pick("success")
                return (lambda engine: self._complete_and_repeat(engine, nodes)), nodes
            case "fail":
                nodes = self.pick("failed")
                return (lambda engine: self.fail(engine, self._still(nodes))), nodes
            case "cancel":
                (chosen,) = self.pick("cancelled")[:1]
                return (lambda engine: self.cancel(engine, chosen)), [chosen]
            case "renew":
                nodes = list(self.leases)
                return (lambda engine: self._renew(engine, nodes)), []
            case "tick":
                return self.tick, []
            case "release":
                return self.release_some, []
        if dice.random() < 0.03:
            doomed = [node for node, plan in self.plan.items() if plan == "cancelled"]
            if doomed:
                early = dice.choice(doomed)
                return (lambda engine: self.cancel(engine, early)), [early]
        return self.claim, []

    def _still(self, nodes: list[int]) -> list[int]:
        return [node for node in nodes if node in self.leases]

    async def _complete_and_repeat(self, engine: Engine, nodes: list[int]) -> None:
        nodes = self._still(nodes)
        leases = [self.leases[node] for node in nodes]
        ended = await self.complete(engine, nodes)
        self.completed |= ended.keys()
        if ended and self.dice.random() < 0.3:
            again = await engine.complete_many(leases, [b"again"] * len(nodes))
            for node, answer in zip(nodes, again, strict=True):
                if node in ended:
                    assert answer.word in ("completed", "busy"), (node, answer)
                elif answer.word == "completed":
                    self.completed.add(node)
            self._took(leases, again, "completed", SUCCESS)

    async def _renew(self, engine: Engine, nodes: list[int]) -> None:
        nodes = self._still(nodes)
        if nodes:
            await engine.renew_many([self.leases[node] for node in nodes], DAY)

    async def release_some(self, engine: Engine) -> None:
        if self.leases:
            await self.release(engine)

    async def _follow(self, engine: Engine) -> None:
        """Some of what the client or a reconciler does after an end."""
        for _ in range(self.dice.randint(1, 3)):
            limit = self.dice.choice([1, 2, 5, 100])
            if self.dice.random() < 0.6:
                self.note("resolve_wakes", await engine.resolve(limit))
            elif self.dice.random() < 0.8:
                self.note("cancel_siblings", await siblings(engine, limit))
            else:
                self.note("reconcile_siblings", await engine._tick("ff.reconcile_siblings", limit))

    async def _tell_again(self) -> None:
        """As if the end of some had not been told: nothing may happen twice."""
        ended = list(await outcomes(self.ring.engine, self.planted))
        some = self.dice.sample(ended, min(len(ended), 4))
        self.note("tell again of", some)
        await self.ring.engine.connection.execute(
            f"update ff.execution set wakes_pending = true where partition_key = {home()} "
            "and execution_id = any ($1) and is_awaited",
            self.planted.ids_of(some),
        )
        await self._follow(self.ring.engine)

    async def _crash(self) -> None:
        """Whoever calls dies before it commits."""
        nodes = self.pick("success")
        kept = dict(self.leases)
        transaction = self.ring.engine.connection.transaction()
        await transaction.start()
        await self.complete(self.ring.engine, nodes)
        self.note("all of it rolled back")
        await transaction.rollback()
        self.leases = kept

    async def _settled(self) -> None:
        """All is told: whoever is not needed is gone, and nobody who could run waits."""
        self.note("all is told")
        await settle_all(self.ring.engine)
        ended = await outcomes(self.ring.engine, self.planted)
        problems = await leftovers(self.ring.engine, self.planted)
        problems += await compare_groups(self.ring.engine, self.planted, ended)
        alive = unneeded(self.graph, ended)
        if alive:
            problems.append(f"{alive} should have been cancelled")
        waiting = await self.ring.engine.connection.fetch(
            f"select execution_id from ff.execution where partition_key = {home()} "
            "and execution_id = any ($1) and eligibility = 'blocked_by_dependencies'",
            self.planted.ids,
        )
        follows = settle(self.graph, ended)
        wanted = follows.waiting
        got = {self.planted.numbers[row["execution_id"]] for row in waiting}
        if got != wanted:
            problems.append(f"{got} wait, not {wanted}")
        assert not problems, "\n".join(problems)

    # The end

    async def _compare(self) -> None:
        engine = self.ring.engine
        ended = await outcomes(engine, self.planted)
        past = await history(engine, self.planted)
        problems = audit(self.graph, past)
        problems += await compare_groups(engine, self.planted, ended)
        problems += await leftovers(engine, self.planted)
        if {end.node: end.outcome for end in past} != ended:
            problems.append("the events tell of other ends than the rows")
        wrong = {node for node in self.completed if ended[node] != SUCCESS}
        if wrong:
            problems.append(f"{wrong} were completed and are something else now")
        given = {end.node: end.outcome for end in past if end.by != "skip"}
        follows = settle(self.graph, given).outcomes
        if follows != ended:
            problems.append(f"other ends follow: {_differences(ended, follows)}")
        for end in past:
            self.ring.met[end.by, end.outcome] += 1
            if end.by == "skip" and end.outcome != SKIPPED:
                problems.append(f"{end} is no skip")
        assert not problems, "\n".join(problems)

    async def _left(self) -> str:
        rows = await self.ring.engine.connection.fetch(
            "select execution_id, phase, ownership, eligibility from ff.execution "
            f"where partition_key = {home()} and execution_id = any ($1) and phase <> 'terminal'",
            self.planted.ids,
        )
        return str([(self.planted.numbers[row[0]], *row[1:]) for row in rows])


def _differences(got: dict[Any, Any], wanted: dict[Any, Any]) -> str:
    return "; ".join(
        f"{key}: engine {got.get(key)}, evaluator {wanted.get(key)}"
        for key in sorted(got.keys() | wanted.keys())
        if got.get(key) != wanted.get(key)
    )


class Ring:
    """The connections of a test, and what it met."""

    def __init__(self, db: Database, clock: Clock, connections: list[Connection]) -> None:
        self.db = db
        self.clock = clock
        self.engine = Engine(db.conn)
        self.other = connections[0]
        self.engines = [self.engine, *(Engine(connection) for connection in connections[1:])]
        self.met: Counter[tuple[str, str]] = Counter()

    @classmethod
    async def open(cls, db: Database, clock: Clock) -> Ring:
        await clock.freeze()
        return cls(db, clock, [await db.connect() for _ in range(3)])

    async def run(self, numbers: range, *, is_rough: bool) -> None:
        chosen = os.environ.get(CHOSEN)
        for at, number in enumerate(numbers if chosen is None else [int(chosen)]):
            run = Run(self, number, _size(number), is_rough=is_rough)
            try:
                await run.go()
                if at % 25 == 24:
                    rows = await self.db.broken_invariants()
                    assert not rows, "\n".join(str(dict(row)) for row in rows)
                    await self._forget()
            except (AssertionError, asyncpg.PostgresError) as error:
                self.db.leave_broken("it failed")
                calls = "\n".join(run.calls)
                raise AssertionError(
                    f"{error}\n{CHOSEN}={number}\n{run.graph}\n{run.plan}\n{calls}"
                ) from error
        assert not await doctor(self.db)

    async def _forget(self) -> None:
        """Old graphs only cost time."""
        await self.db.execute(
            "truncate ff.execution, ff.execution_body, ff.attempt, ff.event, ff.claim_slot, "
            "ff.flow, ff.edge, ff.edge_group, ff.kept_result"
        )


def _size(number: int) -> int:
    """Small ones come first: what fails there is easier to read."""
    most = min(4 + number % 1000, 60)
    return Random(f"size {number}").randint(2, most)


def _check(ring: Ring) -> None:
    """A test that quietly stops testing fails here."""
    if CHOSEN not in os.environ:
        for by, outcome in [
            ("ours", "success"),
            ("ours", "failed"),
            ("ours", "cancelled"),
            ("ours", "expired"),
            ("skip", "skipped"),
            ("sibling", "cancelled"),
        ]:
            assert ring.met[by, outcome] > 5, ring.met


SOME = pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.slow(short=0))])


@several_partitions
@SOME
async def test_a_graph_ends_as_the_evaluator_says(db, clock, part):
    ring = await Ring.open(db, clock)
    await ring.run(range(part * 1000, part * 1000 + 30), is_rough=False)
    _check(ring)


@SOME
async def test_a_graph_ends_well_whatever_gets_in_its_way(db, clock, part):
    ring = await Ring.open(db, clock)
    await ring.run(range(part * 1000, part * 1000 + 30), is_rough=True)
    _check(ring)


@pytest.mark.slow(short=2)
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("is_rough", [False, True], ids=["quiet", "rough"])
async def test_thousands_of_graphs_end_as_they_should(db, clock, is_rough, part, sized):
    """New ones every time."""
    first = drawn("graphs").getrandbits(32) * 1000
    print(f"from graph {first} on")
    ring = await Ring.open(db, clock)
    await ring.run(range(first, first + sized(1500, short=60)), is_rough=is_rough)
    _check(ring)
