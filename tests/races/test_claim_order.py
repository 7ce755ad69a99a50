"""What a claim returns and what it leaves locked, whatever others are doing.

A claim returns min(limit, waiting) executions, exactly the first ones in the order of priority,
age and id, and keeps at most 2 x limit rows locked. `Waiting` are the rows that nobody has locked
or taken. Where others move at the same time, only rows that were free from before the call began
until after it ended are counted: those that a call claimed which began later. Nobody here rolls
back, so nobody else can have held them in between.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from time import monotonic
from typing import Any

import pytest

from support.admission import Admission
from support.database import Database
from support.factories import TTL, Engine, Item, Lease

from .crowd import engines, fill, position, together, until_blocked

LANES = ("a", "b", "c")
SLOW = pytest.mark.slow(short=1)
IN_ORDER = "select execution_id from ff.execution order by rank, created_at, execution_id"


async def register(engine: Engine, number: int) -> list[int]:
    """Routes spread over three lanes."""
    return [
        await engine.register(lane=LANES[n % len(LANES)], task=f"tests.work_{n}")
        for n in range(number)
    ]


def scattered(routes: list[int], number: int, *, skewed: bool, seed: int) -> list[Item]:
    """Executions of mixed priority; skewed: nearly all on one route, most routes have none."""
    dice = random.Random(seed)
    few = routes[: max(1, len(routes) // 10)]
    return [
        Item(
            route=dice.choice(few if skewed and dice.random() < 0.1 else routes)
            if not skewed or dice.random() < 0.1
            else routes[-1],
            priority=dice.choice([0, 0, 0, 1, 7, 9000]),
        )
        for _ in range(number)
    ]


async def locked_by(db: Database, xid: int) -> int:
    """How many rows a transaction that is still open has locked or changed."""
    return await db.fetchval(
        "select count(*) from ff.execution where xmax::text = ($1::bigint % 4294967296)::text",
        xid,
    )


async def xid_of(engine: Engine) -> int:
    return await engine.connection.fetchval("select pg_current_xact_id()::text::bigint")


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(0, id="free head", marks=SLOW),
        pytest.param(1000, id="head of 1000 locked rows"),
    ],
)
@pytest.mark.parametrize(
    "skewed", [pytest.param(False, id="even", marks=SLOW), pytest.param(True, id="skewed")]
)
@pytest.mark.parametrize("routes", [pytest.param(1, marks=SLOW), 20, pytest.param(200, marks=SLOW)])
async def test_claims_held_open_take_exactly_the_next(db, engine, routes, skewed, head):
    """Claimers that keep their transaction open, one after the other: nothing moves meanwhile, so
    what is waiting is known to the row."""
    number = 2600
    items = scattered(await register(engine, routes), number, skewed=skewed, seed=routes)
    await fill(engine, items)
    order = [row["execution_id"] for row in await db.fetch(IN_ORDER)]
    if head:
        blocker = await db.connect()
        await blocker.execute("begin")
        await blocker.execute(
            "select from ff.execution where execution_id = any($1) for update", order[:head]
        )
    rest = iter(order[head:])

    limits = [1, 7, 100, 250, 30, 500, 1000, 1000, 20]
    for number, (limit, claimer) in enumerate(zip(limits, await engines(db, 9), strict=True)):
        await claimer.connection.execute("begin")
        xid = await xid_of(claimer)
        leases = await claimer.claim(limit, instance=f"worker-{number}")
        assert [lease.execution_id for lease in leases] == list(islice(rest, limit))
        assert len(leases) <= await locked_by(db, xid) <= 2 * limit
    assert leases == []


async def test_a_claim_looks_behind_a_window_that_others_hold(db, engine):
    ids = [one.id for one in await engine.submit_many([Item()] * 9)]
    order = [row["execution_id"] for row in await db.fetch(IN_ORDER)]
    assert sorted(order) == sorted(ids)
    blocker = await db.connect()
    await blocker.execute("begin")
    await blocker.execute(
        "select from ff.execution where execution_id = any($1) for update", order[:5]
    )
    assert [lease.execution_id for lease in await engine.claim(3)] == order[5:8]


@pytest.mark.parametrize("first_lane", LANES)
async def test_a_first_lane_goes_first_among_equal_priorities(db, engine, first_lane):
    items = scattered(await register(engine, 20), 1000, skewed=False, seed=3)
    await fill(engine, items)
    order = await db.fetch(
        "select e.execution_id from ff.execution e join ff.route r using (route_id) "
        "order by e.rank, r.lane <> $1, e.created_at, e.execution_id",
        first_lane,
    )
    rest = iter([row["execution_id"] for row in order])
    for limit in (1, 60, 333, 7, 500, 500):
        leases = await engine.claim(limit, first_lane=first_lane)
        assert [lease.execution_id for lease in leases] == list(islice(rest, limit))


@dataclass(frozen=True, slots=True)
class Call:
    began: float
    ended: float
    limit: int
    leases: list[Lease]
    locked: int | None


@pytest.mark.parametrize(
    ("routes", "number"),
    [
        (20, 1_500),
        *(pytest.param(*size, marks=SLOW) for size in [(1, 8_000), (20, 20_000), (200, 8_000)]),
    ],
)
async def test_eight_claimers_at_once(db, engine, routes, number):
    """No call comes back short while rows are free, passes one over or locks too many."""
    items = scattered(await register(engine, routes), number, skewed=False, seed=8)
    await fill(engine, items)
    calls: list[Call] = []

    async def work(number: int, engine: Engine, inspector: Any) -> None:
        dice = random.Random(number)
        empty_handed = 0
        while empty_handed < 2:
            limit = dice.choice([5, 60, 100, 200])
            transaction = engine.connection.transaction()
            await transaction.start()
            xid = await xid_of(engine)
            began = monotonic()
            leases = await engine.claim(limit, instance=f"worker-{number}")
            ended = monotonic()
            locked = await locked_by(inspector, xid) if len(calls) % 4 == 0 else None
            await transaction.commit()
            calls.append(Call(began, ended, limit, leases, locked))
            empty_handed = 0 if leases else empty_handed + 1

    crowd = await engines(db, 8)
    inspectors = [await db.connect() for _ in crowd]
    await together(
        *(
            work(number, engine, inspector)
            for number, (engine, inspector) in enumerate(zip(crowd, inspectors, strict=True))
        )
    )
    await work(8, engine, db)
    assert len({lease.execution_id for call in calls for lease in call.leases}) == number

    problems: dict[str, list[str]] = {}
    for call in calls:
        got = len(call.leases)
        positions = [position(lease) for lease in call.leases]
        later = [other for other in calls if other.began > call.ended and other.leases]
        waiting = sum(len(other.leases) for other in later)
        if got < min(call.limit, got + waiting):
            problems.setdefault("short", []).append(f"{got} of {call.limit}, {waiting} free")
        if call.locked is not None and not got <= call.locked <= 2 * call.limit:
            problems.setdefault("locked", []).append(f"{call.locked} for a limit of {call.limit}")
        if positions != sorted(positions):
            problems.setdefault("out of order", []).append(str(positions))
        if positions and later:
            first_free = min(position(other.leases[0]) for other in later)
            if positions[-1] > first_free:
                problems.setdefault("passed over", []).append(str(first_free))
    assert not problems, {
        name: f"{len(found)} of {len(calls)} calls, such as {found[:3]}"
        for name, found in problems.items()
    }


async def lay_out(engine: Engine, clock: Any, kinds: list[str]) -> list[Any]:
    """Executions of these kinds in claim order: free, reclaimable, over the limit of reclaims, or
    free and to be locked by the caller. Returns their ids."""
    route = await engine.register()
    ids: dict[int, Any] = {}

    async def submit(wanted: set[str]) -> None:
        places = [n for n, kind in enumerate(kinds) if kind in wanted]
        if places:
            made = await fill(
                engine,
                [
                    Item(
                        route=route,
                        priority=9000 - n,
                        policy={"max_reclaim_count": 0 if kinds[n] == "capped" else 5},
                    )
                    for n in places
                ],
            )
            ids.update(zip(places, made, strict=True))

    await submit({"capped", "reclaimable"})
    if ids:
        assert len(await engine.claim(1000)) == len(ids)
        await clock.advance(TTL)
        assert (await engine.expire(10_000))[0] == len(ids)
    await submit({"free", "locked"})
    return [ids[n] for n in range(len(kinds))]


async def claimed_past(
    db: Database, engine: Engine, clock: Any, kinds: list[str], limit: int
) -> tuple[list[int], int]:
    """The places of what a claim takes from such a row of executions, and how many it locked."""
    ids = await lay_out(engine, clock, kinds)
    blocker = await db.connect()
    claimer = Engine(await db.connect())
    async with blocker.transaction(), claimer.connection.transaction():
        await blocker.execute(
            "select from ff.execution where execution_id = any($1) for update",
            [id_ for id_, kind in zip(ids, kinds, strict=True) if kind == "locked"],
        )
        xid = await xid_of(claimer)
        leases = await claimer.claim(limit, instance="claimer")
        return [ids.index(lease.execution_id) for lease in leases], await locked_by(db, xid)


async def test_rows_over_the_limit_of_reclaims_hide_nothing(db, engine, clock):
    """They are ended on the way (T22); the claim goes on to what can be claimed."""
    kinds = ["capped", "free", "capped", "free", "free"]
    places, locked = await claimed_past(db, engine, clock, kinds, limit=2)
    assert places == [1, 3]
    assert locked <= 4


async def test_rows_over_the_limit_behind_locked_ones_hide_nothing(db, engine, clock):
    kinds = ["locked"] * 5 + ["capped"] + ["free"] * 9
    places, locked = await claimed_past(db, engine, clock, kinds, limit=5)
    assert places == [6, 7, 8, 9, 10]
    assert locked <= 10


async def test_rows_over_the_limit_never_make_a_claim_lock_too_many(db, engine, clock):
    places, locked = await claimed_past(db, engine, clock, ["free"] + ["capped"] * 200, limit=50)
    assert places == [0]
    assert locked <= 100


async def test_rows_that_come_before_locked_ones_meanwhile_are_left_to_the_next_claim(
    db, engine, clock
):
    """The quick claim has locked its rows and waits for their gate. Meanwhile rows arrive that come
    before them. If the claim took those as well, it would keep three times its limit locked."""
    # On a busy machine, this test may take longer than the two seconds of the function.
    await db.execute("alter function ff.claim_executions set lock_timeout = '60s'")
    await clock.freeze()
    gate = await Admission(engine).quota("few", concurrency=4)
    waiting = await fill(engine, [Item(quotas=(gate,))] * 5)
    claimer, keeper = Engine(await db.connect()), await db.connect()
    async with claimer.connection.transaction():
        xid = await xid_of(claimer)
        async with keeper.transaction():
            await keeper.execute("select from ff.gate for update")
            claiming = asyncio.create_task(claimer.claim(5, instance="claimer"))
            await until_blocked(db, claimer, claiming)
            # A claim ends executions that are past their deadline.
            await fill(engine, [Item(priority=9, deadline=timedelta(seconds=1))] * 10)
            await clock.advance(seconds=2)
        leases = await claiming
        assert [lease.execution_id for lease in leases] == sorted(waiting)[:4]
        assert await locked_by(db, xid) <= 10
    assert await engine.claim(5) == []
    ended = await db.fetchval("select count(*) from ff.execution where public_state = 'expired'")
    assert ended == 10


@pytest.mark.parametrize("seed", range(20))
async def test_any_mixture_of_rows(db, engine, clock, seed):
    """Unless it would have to lock more than 2 x limit rows, a claim takes just the first free."""
    dice = random.Random(seed)
    weights = [dice.random() for _ in range(4)]
    kinds = dice.choices(
        ["free", "reclaimable", "locked", "capped"], weights, k=dice.randint(5, 120)
    )
    limit = dice.choice([1, 2, 5, 20, 50])
    claimable = [n for n, kind in enumerate(kinds) if kind in ("free", "reclaimable")]
    expected = claimable[:limit]
    on_the_way = kinds[: expected[-1] + 1].count("capped") if len(expected) == limit else 0
    places, locked = await claimed_past(db, engine, clock, kinds, limit)
    assert places == sorted(places)
    assert locked <= 2 * limit
    if len(expected) == limit and limit + on_the_way <= 2 * limit:
        assert places == expected, kinds
    else:
        assert places == expected[: len(places)], kinds
