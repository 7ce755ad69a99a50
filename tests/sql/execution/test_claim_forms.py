"""The quick claim and the claim in rounds lease the same rows of the same tables, in the same
order, with the same events and the same answer."""

from __future__ import annotations

import random
from datetime import timedelta
from importlib.resources import files
from uuid import uuid4

import asyncpg
import pytest

from flowfabric.db.library import form_of
from support.factories import TTL, Item
from support.proofs import some_of

TASKS = ("tests.one", "tests.two", "tests.three")
LANES = ("default", "mail")
FRESH = ("waiting",) * 8
# Which of these need rounds: retries, resumed and replayed attempts, late and reclaimable ones.
MIXED = (*FRESH, "retry_waiting", "resumable", "late", "lease_expired")


class Undo(Exception):
    """Ends a transaction without a trace."""


def random_item(chance: random.Random, route: int) -> Item:
    policy = {"timeout_policy": {"attempt_timeout_ms": 60_000}} if chance.random() < 0.3 else None
    return Item(
        route=route,
        priority=chance.choice([None, None, 0, 5, 9]),
        payload=chance.choice([b"null", b"[1]", b"x" * 256, b"y" * 3000]),
        encoding=chance.choice([None, None, "json"]),
        deadline=chance.choice([None, None, timedelta(hours=5), timedelta(days=1)]),
        trace=chance.choice([None, None, '{"traceparent": "00-1-2-01"}']),
        policy=policy,
    )


async def fill(chance, engine, clock, states, routes, count):
    """Executions in random states on random routes, in a random order of ages."""
    for _ in range(count):
        state, route = chance.choice(states), chance.choice(routes)
        item = random_item(chance, route)
        if state == "retry_waiting":
            item = Item(route=route, policy={"retry_policy": {"max_retries": 3}})
        elif state == "late":
            item = Item(route=route, deadline=timedelta(milliseconds=1))
        submitted = await engine.submit_many([item])
        await clock.advance(milliseconds=chance.choice([0, 1, 7]))
        if state in ("retry_waiting", "resumable", "lease_expired"):
            await start(engine, clock, submitted[0].id, state)


async def start(engine, clock, execution_id, state):
    """Begin an attempt of one execution and end it as its state asks."""
    lease = await engine.grant_and_claim(execution_id, ttl=timedelta(seconds=1))
    if state == "retry_waiting":
        await engine.fail(lease, retry_delay=timedelta(0))
    elif state == "resumable":
        await engine.release(lease)
    else:
        await clock.advance(seconds=2)
        await engine.expire()


async def outcome(connection, engine, arguments, prepare):
    """What one claim answers and stores, undone afterwards."""
    found = []
    try:
        async with connection.transaction():
            await connection.execute(prepare)
            answer = await engine.claim(**arguments)
            found += [answer]
            found += await connection.fetch(
                "select e.*, e.xmin::text = pg_current_xact_id()::xid::text as is_written "
                "from ff.execution e order by e.execution_id"
            )
            found += await connection.fetch(
                "select (to_jsonb(v) - 'event_id' - 'xid')::text from ff.event v "
                "order by v.execution_id, v.version"
            )
            found += await connection.fetch("select s.* from ff.claim_slot s order by s::text")
            found += await connection.fetch("select t.* from ff.attempt t order by t::text")
            raise Undo
    except Undo:
        return answer, [tuple(row) if isinstance(row, asyncpg.Record) else row for row in found]


async def add_strangers(engine, make, lane):
    """Work that no claim of the test covers: to be reclaimed, and granted to others."""
    await make.execution("expired_lease", lane=lane)
    granted = await make.execution("waiting", lane=lane)
    await engine.grant(granted.id, worker="other")


# The distributed form leaves every claim to the rounds.
ROUNDS = form_of(
    files("flowfabric").joinpath("sql/functions/execution/_claim_fresh.sql").read_text(),
    distributed=True,
)
NO_ROUNDS = "alter function ff._claim_in_rounds rename to _claim_in_rounds_hidden"


@pytest.mark.parametrize("seed", some_of(range(12), turn=0))
@pytest.mark.parametrize("states", [FRESH, MIXED], ids=["fresh", "mixed"])
async def test_both_claims_lease_the_same_with_the_same_answer(clock, engine, make, states, seed):
    chance = random.Random(seed)
    await clock.freeze()
    routes = [
        await engine.register(lane=lane, task=task)
        for task in TASKS[: chance.choice([1, 1, 3])]
        for lane in LANES[: chance.choice([1, 2])]
    ]
    await fill(chance, engine, clock, states, routes, chance.randint(1, 40))
    await add_strangers(engine, make, "strangers")
    await clock.advance(milliseconds=5)
    for _ in range(3):
        arguments = {
            "limit": chance.choice([1, 3, 10, 50, 100]),
            "claim_id": uuid4(),
            "lanes": list(LANES),
            "ttl": chance.choice([TTL, timedelta(hours=6)]),
            "tasks": chance.choice([None, list(TASKS), list(TASKS[:1])]),
            "first_lane": chance.choice([None, *LANES]),
            "reports_starts": chance.random() < 0.5,
        }
        prepare = NO_ROUNDS if states is FRESH else "select"
        quick = await outcome(engine.connection, engine, arguments, prepare)
        slow = await outcome(engine.connection, engine, arguments, ROUNDS)
        assert quick[0] == slow[0]
        assert quick == slow
        # Go on from there.
        leases = await engine.claim(**arguments)
        assert leases == quick[0]
