"""The plain and the distributed forms of the functions do the same: the same random calls on two
databases, one with each form, give the same answers, rows and events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from flowfabric.db import disposable
from support.clock import Clock
from support.database import Database
from support.factories import Engine, Item, Lease, Step
from support.forms import are_distributed, distributed_library, witness_of_pairs

START = datetime(2030, 1, 1, tzinfo=UTC)
LANES = ("slow", "fast")
POLICY = {"retry_policy": {"max_retries": 2, "backoff": {"type": "fixed", "delay_ms": 5000}}}
TIMED = POLICY | {"timeout_policy": {"attempt_timeout_ms": 20_000}}
LOOK = "select * from ff.find_work($1, null, null, '{}')"
CALLS = 60


@pytest.fixture
async def other(databases, template, db) -> AsyncIterator[Database]:
    """A second database, with the other form of every function that has two."""
    if are_distributed():
        pytest.skip("the first database has the distributed forms already")
    name = f"{template.name}_forms"
    administration = await asyncpg.connect(template.cluster.url)
    try:
        await disposable.clone(administration, template.name, name)
        url = template.cluster.url_of(name)
        connection = await asyncpg.connect(url)
        for text in (*distributed_library(), witness_of_pairs()):
            await connection.execute(text)
        await connection.close()
        database = await Database.open(url, name)
        try:
            yield database
            assert await database.broken_invariants() == []
        finally:
            database.close()
            await disposable.drop(administration, name)
    finally:
        await administration.close()


class Pair:
    """An engine on each database; what one answers the other must answer, too."""

    def __init__(self, plain: Engine, distributed: Engine) -> None:
        self.engines = (plain, distributed)

    async def ask(self, call: Callable[[Engine], Any]) -> Any:
        first, second = [await _answer(call(engine)) for engine in self.engines]
        assert first == second
        return first

    async def compare(self) -> None:
        first, second = [await _rows(engine) for engine in self.engines]
        for table, rows in first.items():
            assert rows == second[table], table


async def _answer(call: Any) -> Any:
    try:
        return await call
    except asyncpg.PostgresError as error:
        return error.sqlstate, error.message, error.detail


async def _rows(engine: Engine) -> dict[str, list[Any]]:
    """All rows. Events are in their order within each execution; transaction ids differ."""
    tables = await engine.connection.fetch(
        "select c.relname as name from pg_class c where c.relnamespace = 'ff'::regnamespace "
        "and c.relkind = 'r' and c.relname not in ('meta', 'schema_step', 'event') order by 1"
    )
    found = {
        name: [
            row[0]
            for row in await engine.connection.fetch(
                f"select (to_jsonb(t) - 'xid' - 'applied_at')::text from ff.\"{name}\" t order by 1"
            )
        ]
        for (name,) in tables
    }
    found["event"] = [
        row[0]
        for row in await engine.connection.fetch(
            "select (to_jsonb(v) - 'xid' - 'event_id')::text from ff.event v "
            "order by v.partition_key, v.execution_id, v.generation, v.event_id"
        )
    ]
    return found


class Caller:
    """Makes up calls from one seed: every id and every choice comes from it."""

    def __init__(self, pair: Pair, seed: int) -> None:
        self.pair = pair
        self.random = Random(seed)
        self.now = START
        self.ids: list[UUID] = []
        self.leases: list[Lease] = []
        self.routes: dict[str, int] = {}

    def id(self) -> UUID:
        milliseconds = int(self.now.timestamp() * 1000)
        low = self.random.getrandbits(62)
        return UUID(int=(milliseconds << 80) | (0x7 << 76) | (0b10 << 62) | low)

    def some(self, values: list[Any], most: int = 3) -> list[Any]:
        return self.random.sample(values, min(len(values), self.random.randint(1, most)))

    async def submit(self) -> None:
        routes = [self.routes[lane] for lane in LANES]
        alike = Item(
            route=self.random.choice(routes),
            payload=self.random.choice([b"1", None, b"x" * 300]),
            priority=self.random.choice([None, None, 5]),
            policy=self.random.choice([None, POLICY, TIMED]),
            tags=self.random.choice([None, {"team": "a"}]),
            deadline=self.random.choice([None, None, timedelta(seconds=40)]),
        )
        items = [replace(alike, id=self.id()) for _ in range(self.random.randint(1, 5))]
        for _ in range(self.random.choice([0, 0, 1, 2])):
            change = self.random.choice(
                [
                    {"priority": self.random.randint(0, 9)},
                    {"delay": timedelta(seconds=self.random.randint(0, 20))},
                    {"route": self.random.choice(routes)},
                    {"key": self.random.choice("ab"), "fingerprint": b"f"},
                    {"id": self.random.choice(self.ids) if self.ids else self.id()},
                    {"payload": b"y" * self.random.randint(200, 300), "trace": "00-t"},
                    {"parent": self.random.choice(self.ids) if self.ids else None},
                    {"creator": "me", "max_reclaims": 1},
                    {"route": 1},
                ]
            )
            place = self.random.randrange(len(items))
            items[place] = replace(items[place], **change)
        if self.random.random() < 0.2:
            items.append(items[0])
        await self.pair.ask(lambda engine: engine.submit_many(items))
        self.ids += [item.id for item in items]

    async def flow(self) -> None:
        nodes = [(self.id(), self.random.choice(LANES)) for _ in range(self.random.randint(2, 5))]
        document = {
            "flow_id": str(self.id()),
            "flow_kind": "test",
            "nodes": [
                {"execution_id": str(id_), "name": f"n{place}", "route_id": self.routes[lane],
                 "payload": None}
                for place, (id_, lane) in enumerate(nodes)
            ],
            "edges": [
                {"from": self.random.randrange(place), "to": place, "group": 0,
                 "ref": self.random.choice(["", "result"])}
                for place in range(1, len(nodes))
            ],
            "groups": [],
        }  # fmt: skip
        await self.pair.ask(
            lambda engine: engine.connection.fetchval(
                "select (ff.submit_flow($1, $2, $3)::jsonb - 'database')::text",
                engine.partition_key,
                engine.namespace,
                json.dumps(document),
            )
        )
        self.ids += [id_ for id_, _ in nodes]

    async def claim(self) -> None:
        claim_id, limit = self.id(), self.random.randint(1, 6)
        lanes = self.some(list(LANES), 2)
        self.leases += await self.pair.ask(
            lambda engine: engine.claim(
                limit, claim_id=claim_id, lanes=lanes, tasks=["tests.work"] * len(lanes)
            )
        )

    async def look(self) -> None:
        await self.pair.ask(lambda engine: engine.connection.fetch(LOOK, engine.namespace))

    async def end(self) -> None:
        if not self.leases:
            return
        leases = self.some(self.leases)
        match self.random.randrange(9):
            case 0 | 1 | 2:
                results = [self.random.choice([b"1", b"r" * 400]) for _ in leases]
                await self.pair.ask(lambda engine: engine.complete_many(leases, results))
            case 3 | 4:
                classes = [
                    self.random.choice(["transient", "permanent", "timeout", "what"])
                    for _ in leases
                ]
                await self.pair.ask(
                    lambda engine: engine.fail_many(leases, classes, ["no"] * len(leases))
                )
            case 5:
                await self.pair.ask(lambda engine: engine.release_many(leases))
            case 6:
                await self.pair.ask(lambda engine: engine.delay(leases[0], timedelta(seconds=9)))
            case 7:
                targets = self.some(self.ids)
                await self.pair.ask(lambda engine: engine.wait_for(leases[0], targets))
            case 8:
                await self.pair.ask(lambda engine: engine.hold(leases[0], "look"))

    async def work(self) -> None:
        if not self.leases:
            return
        leases = self.some(self.leases)
        if self.random.random() < 0.5:
            await self.pair.ask(lambda engine: engine.renew_many(leases))
            return
        steps = [
            (self.random.choice(leases), self.step()) for _ in range(self.random.choice([1, 2, 4]))
        ]
        await self.pair.ask(lambda engine: engine.record_many(steps))

    def step(self) -> Step:
        # A position belongs to one name and occurrence, as in a journal that a handler writes.
        place = self.random.randrange(5)
        return Step(
            name=("load", "load", "save", "save", "")[place],
            occurrence=place % 2,
            position=place,
            value=self.random.choice([None, b"1"]),
        )

    async def operate(self) -> None:
        if not self.ids:
            return
        id_ = self.random.choice(self.ids)
        match self.random.randrange(6):
            case 0:
                await self.pair.ask(lambda engine: engine.cancel(id_))
            case 1:
                await self.pair.ask(lambda engine: engine.replay(id_))
            case 2:
                await self.pair.ask(lambda engine: engine.revoke(id_))
            case 3:
                await self.pair.ask(lambda engine: engine.change_priority(id_, 7))
            case 4:
                ids = self.some(self.ids)
                await self.pair.ask(
                    lambda engine: engine.connection.fetch(
                        "select * from ff.set_tags($1, $2, $3::uuid[], $4)",
                        engine.partition_key,
                        engine.namespace,
                        ids,
                        '{"seen": "yes"}',
                    )
                )
            case 5:
                await self.pair.ask(lambda engine: engine.retry(id_))

    async def tick(self) -> None:
        self.now += timedelta(seconds=self.random.randint(1, 20))
        for engine in self.pair.engines:
            await engine.connection.fetchval("select ff_test.freeze_clock($1)", self.now)
        for name in self.some(["expire", "promote", "expire_executions", "resolve"], 4):
            await self.pair.ask(lambda engine, name=name: getattr(engine, name)())

    async def run(self, calls: int) -> None:
        for lane in LANES:
            self.routes[lane] = await self.pair.ask(
                lambda engine, lane=lane: engine.register(lane=lane)
            )
        weights = {
            self.submit: 5, self.flow: 1, self.claim: 6, self.end: 7, self.work: 4,
            self.operate: 3, self.tick: 2, self.look: 3,
        }  # fmt: skip
        for call in self.random.choices(list(weights), list(weights.values()), k=calls):
            await call()


async def compare(db: Database, other: Database, seed: int) -> None:
    pair = Pair(Engine(db.conn), Engine(other.conn))
    for database in (db, other):
        await Clock(database).freeze(START)
    caller = Caller(pair, seed)
    await caller.run(CALLS)
    await pair.compare()


@pytest.mark.parametrize("seed", range(2))
async def test_both_forms_do_the_same(db, other, seed):
    await compare(db, other, seed)


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_both_forms_do_the_same_for_many_seeds(db, other, sized):
    # One pair of databases for all: what an earlier seed left is there for the next.
    for seed in range(sized(100, short=6)):
        await compare(db, other, 1000 + seed)
