"""Measures quotas, budgets and fairness: `admission.py [cost | first-start | idle | fairness]`.

Without an argument, all four benchmarks run, one after the other. A fifth benchmark runs only on
request: `admission.py ungated [REV]`. Each benchmark prints its figures as a JSON line, and a table
of limits ("bars") and verdicts. The exit code is 1 if a figure misses its bar. A "bucket" is one
key of a quota.

cost         Server CPU of a claim and a complete. Four scenarios take turns, for BENCH_RUNS rounds:
             no limits; all executions in one hot bucket; each in one of 1 000 buckets; each in one
             of 1 000 buckets and one of 1 000 budgets. A figure is the smallest of its rounds.
first-start  How long another tenant waits for its first start behind 100 000 executions of a full
             bucket: the median of BENCH_RUNS databases.
idle         How much a claim that finds nothing is slowed down by 100 000 executions that wait in
             its lane for a full bucket. Claims of this lane and claims of an empty lane take turns.
             The sweep of gates is measured before and after the executions are submitted.
fairness     Three tenants submit 100 000, 100 and 1 executions: first all at the same time, then
             the two small tenants after a thousand starts of the large tenant. The figure is how
             many starts each tenant is behind its turn.
ungated      Claims and completes by batch size, and drains of a worker, for executions without
             limits. Compares this tree with the commit before admission was added (or with REV).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from statistics import mean, median, stdev
from typing import TypeVar
from uuid import UUID, uuid4

import asyncpg

import calls
import revisions
from flowfabric.db.migrate import migrate
from harness import Rule, Verdict, conclude, database, say, server

RUNS = int(os.environ.get("BENCH_RUNS", "3"))
SIZE = int(os.environ.get("BENCH_SIZE", "100"))
EXECUTIONS = int(os.environ.get("BENCH_EXECUTIONS", "5000"))
SATURATED = int(os.environ.get("BENCH_SATURATED", "100000"))
IDLE_TURNS = int(os.environ.get("BENCH_IDLE_TURNS", "200"))
SCENARIOS = ("ungated", "one bucket", "1 of 1000 buckets", "1 of 1000 buckets and budgets")
# The most that each scenario may cost, as a multiple of the first.
COSTS = {"one bucket": 1.25, "1 of 1000 buckets": 1.5, "1 of 1000 buckets and budgets": 1.5}
BEFORE_ADMISSION = "f26af537^"
# The largest allowed uncertainty of the difference between two idle claims, in percent of a claim.
MOST_BLUR = 5
T = TypeVar("T")

TENANTS = {"large": SATURATED, "middle": 100, "small": 1}


def cpu(backend: int) -> float:
    """Return the processor seconds of a backend."""
    with open(f"/proc/{backend}/schedstat") as file:
        return int(file.read().split()[0]) / 1e9


async def route(connection: asyncpg.Connection, lane: str) -> int:
    return await connection.fetchval(
        "select route_id from ff.register_routes('{bench}', $1::text[], '{work}', '{\"\"}')", [lane]
    )


async def register(connection: asyncpg.Connection, gates: list[dict[str, object]]) -> list[int]:
    rows = await connection.fetch(
        "select gate_id from ff.register_gates(0::smallint, 'bench', $1) order by item",
        json.dumps(gates),
    )
    return [row["gate_id"] for row in rows]


async def submit(
    connection: asyncpg.Connection, route_id: int, options: list[dict[str, object]]
) -> list[UUID]:
    ids = [uuid4() for _ in options]
    for start in range(0, len(options), 1000):
        part = options[start : start + 1000]
        rows = await connection.fetch(
            "select * from ff.submit_executions(0::smallint, 'bench', $1::uuid[], $2, $3, "
            "p_options => $4::jsonb[], p_hint => false)",
            ids[start : start + 1000],
            [route_id],
            [b"1"],
            [json.dumps(one) for one in part] if any(part) else None,
        )
        if rows:
            raise SystemExit(f"not stored: {rows[0]}")
    return ids


async def claim(
    connection: asyncpg.Connection, lane: str, size: int
) -> tuple[UUID, list[UUID], list[int]]:
    claim_id = uuid4()
    row = await connection.fetchrow(
        "select execution_ids, epochs from ff.claim_executions(0::smallint, 'bench', 'w', 'w-1', "
        "$1, $2::text[], null, '{}', $3, '5 min')",
        claim_id,
        [lane],
        size,
    )
    if row is None:
        return claim_id, [], []
    ids = row["execution_ids"]
    return claim_id, ids, row["epochs"] or [1] * len(ids)


async def complete(
    connection: asyncpg.Connection, claim_id: UUID, ids: list[UUID], epochs: list[int]
) -> None:
    rows = await connection.fetch(
        "select * from ff.complete_executions(0::smallint, 'bench', $1::uuid[], null, $2::bigint[],"
        " null, null, p_hint => false, p_lease_id => $3, p_attempt_id => $3, p_result => '1')",
        ids,
        epochs,
        claim_id,
    )
    if rows:
        raise SystemExit(f"not completed: {rows[0]}")


async def drain(connection: asyncpg.Connection, lane: str) -> tuple[float, float]:
    """Drain a lane. Return the CPU of all claims, and the CPU of all completes."""
    backend = connection.get_server_pid()
    claims = completes = 0.0
    while True:
        start = cpu(backend)
        claim_id, ids, epochs = await claim(connection, lane, SIZE)
        while not ids and await connection.fetchval("select exists (select from ff.gate_release)"):
            # Do the work that the claims left to the reconciler.
            await connection.fetch("select * from ff.sweep_gates(0::smallint)")
        claims += cpu(backend) - start
        if not ids:
            return claims, completes
        start = cpu(backend)
        await complete(connection, claim_id, ids, epochs)
        completes += cpu(backend) - start


async def cost(connection: asyncpg.Connection) -> list[Verdict]:
    hot = await register(connection, [{"kind": "quota", "name": "hot", "concurrency": 10**6}])
    buckets = await register(
        connection,
        [
            {"kind": "quota", "name": "tenant", "key": f"t{n}", "concurrency": 10**6}
            for n in range(1000)
        ],
    )
    budgets = await register(
        connection,
        [
            {"kind": "budget", "name": "spend", "key": f"t{n}", "limits": {"usd": {"hard": 10**9}}}
            for n in range(1000)
        ],
    )
    found: dict[str, list[float]] = {name: [] for name in SCENARIOS}
    for turn in range(RUNS + 1):
        for number, name in enumerate(SCENARIOS):
            lane = f"lane{number}"
            options: list[dict[str, object]] = [
                [
                    {},
                    {"quotas": [str(hot[0])]},
                    {"quotas": [str(buckets[n % 1000])]},
                    {"quotas": [str(buckets[n % 1000])], "budgets": [str(budgets[n % 1000])]},
                ][number]
                for n in range(EXECUTIONS)
            ]
            await submit(connection, await route(connection, lane), options)
            claims, completes = await drain(connection, lane)
            if turn:
                found[name].append((claims + completes) / EXECUTIONS * 1e6)
            say(
                f"{name}: claim {claims / EXECUTIONS * 1e6:.1f} us, "
                f"complete {completes / EXECUTIONS * 1e6:.1f} us"
            )
    base = min(found["ungated"])
    ratios = {name: min(times) / base for name, times in found.items()}
    print(json.dumps({f"{name}, us": round(min(times), 1) for name, times in found.items()}))
    return [
        Rule(f"claim and complete, {name}", bar, None, at_most=True).judge(ratios[name])
        for name, bar in COSTS.items()
    ]


async def stand_in_line(connection: asyncpg.Connection) -> None:
    """Fill a bucket and its line with executions, then submit one execution of another tenant."""
    full, free = await register(
        connection,
        [
            {"kind": "quota", "name": "full", "key": key, "concurrency": 1}
            for key in ("acme", "other")
        ],
    )
    route_id = await route(connection, "front")
    await submit(connection, route_id, [{"quotas": [str(full)]}] * SATURATED)
    await submit(connection, route_id, [{"quotas": [str(free)]}])
    # The first claim takes the one slot of the full bucket.
    await claim(connection, "front", 1)


async def first_start(connection: asyncpg.Connection) -> list[float]:
    """Claim until the other tenant starts. Return milliseconds, CPU and number of claims."""
    await stand_in_line(connection)
    backend = connection.get_server_pid()
    started, start, tries, ids = cpu(backend), time.perf_counter(), 0, []
    while not ids:
        tries += 1
        _, ids, _ = await claim(connection, "front", 1)
    return [(time.perf_counter() - start) * 1000, (cpu(backend) - started) * 1000, tries]


async def first_starts(url: str) -> list[Verdict]:
    found = []
    for _ in range(RUNS):
        found.append(await in_new_database(url, first_start))
        say(f"first start after {found[-1][0]:.0f} ms")
    waited, spent, tries = (median(one) for one in zip(*found, strict=True))
    print(json.dumps({"ms": round(waited, 1), "cpu_ms": round(spent, 1), "claims": tries}))
    subject = f"first start behind {SATURATED} executions of a full bucket"
    return [Rule(subject, 200, None, at_most=True, unit="ms").judge(waited)]


async def idle(connection: asyncpg.Connection) -> list[Verdict]:
    sweep_before = await sweep(connection)
    await stand_in_line(connection)
    while await connection.fetchval(
        "select exists (select from ff.execution where eligibility = 'eligible_now')"
    ):
        await claim(connection, "front", 1)
    await connection.execute("vacuum analyze ff.execution")
    await route(connection, "empty")
    with_lines, without = await in_turn(connection, "front", "empty")
    differences = [(a - b) * 1e6 for a, b in zip(with_lines, without, strict=True)]
    # Half the width of the 95 % confidence interval of the mean difference.
    blur = 1.96 * stdev(differences) / len(differences) ** 0.5
    figures = {
        "claim_us_with_lines": median(with_lines) * 1e6,
        "claim_us_without": median(without) * 1e6,
        "difference_us": mean(differences),
        "plus_minus_us": blur,
        "sweep_us_with_lines": await sweep(connection),
        "sweep_us_without": sweep_before,
    }
    print(json.dumps({name: round(value, 1) for name, value in figures.items()}))
    return [
        Rule("idle claim beside lines: least difference", 0, None, at_most=True, unit="us").judge(
            mean(differences) - blur
        ),
        Rule("its uncertainty, of a claim", MOST_BLUR, None, at_most=True, unit="%").judge(
            100 * blur / (median(without) * 1e6)
        ),
    ]


async def sweep(connection: asyncpg.Connection) -> float:
    """Return the CPU of a sweep that finds nothing, in us."""
    backend = connection.get_server_pid()
    times = []
    for _ in range(50):
        start = cpu(backend)
        await connection.fetch("select * from ff.sweep_gates(0::smallint)")
        times.append(cpu(backend) - start)
    return median(times) * 1e6


async def fairness(connection: asyncpg.Connection) -> list[Verdict]:
    verdicts = []
    for lane, before in (("together", 0), ("late", 1000)):
        behind = most_behind(await take_turns(connection, lane, before))
        print(json.dumps({"lane": lane, "starts behind": behind}))
        verdicts += [
            Rule(
                f"{lane}: {tenant} ({TENANTS[tenant]}) behind its turn", SIZE, None, True, ""
            ).judge(n)
            for tenant, n in behind.items()
        ]
    return verdicts


async def take_turns(connection: asyncpg.Connection, lane: str, before: int) -> list[str]:
    """Let the large tenant start `before` times, then submit the others. Return the tenants of the
    starts after that, in order.
    """
    route_id = await route(connection, lane)
    tenants: dict[UUID, str] = {}

    async def add(tenant: str) -> None:
        ids = await submit(connection, route_id, [{"fair_key": tenant}] * TENANTS[tenant])
        tenants.update(dict.fromkeys(ids, tenant))

    async def start(number: int) -> list[str]:
        order: list[str] = []
        while len(order) < number:
            claim_id, ids, epochs = await claim(connection, lane, SIZE)
            if not ids:
                raise SystemExit(f"nothing to claim after {len(order)} of {number}")
            await complete(connection, claim_id, ids, epochs)
            order += [tenants[one] for one in ids]
        return order

    await add("large")
    await start(before)
    await add("middle")
    await add("small")
    return await start(10 * SIZE)


def most_behind(order: list[str]) -> dict[str, int]:
    """Return, for each tenant, the most starts that it was behind an order of strict turns."""
    left, ideal = dict(TENANTS), []
    while len(ideal) < len(order):
        for tenant in [one for one, number in left.items() if number]:
            ideal.append(tenant)
            left[tenant] -= 1
    behind = dict.fromkeys(TENANTS, 0)
    for tenant in TENANTS:
        wanted = [place for place, one in enumerate(ideal) if one == tenant]
        got = [place for place, one in enumerate(order) if one == tenant]
        # Count executions that have not started as if they started right after the last start.
        got += [len(order)] * (len(wanted) - len(got))
        behind[tenant] = max(b - a for a, b in zip(wanted, got, strict=False))
    return behind


async def in_turn(
    connection: asyncpg.Connection, first: str, second: str
) -> tuple[list[float], list[float]]:
    """Return the CPU of claims that find nothing. Two lanes take turns, ten claims a turn."""
    backend = connection.get_server_pid()
    found: dict[str, list[float]] = {first: [], second: []}
    for turn in range(IDLE_TURNS + 5):
        for lane in (first, second) if turn % 2 else (second, first):
            start = cpu(backend)
            for _ in range(10):
                await claim(connection, lane, 10)
            # Leave out the first turns, in which Postgres makes its plans.
            if turn >= 5:
                found[lane].append((cpu(backend) - start) / 10)
    return found[first], found[second]


async def in_new_database(url: str, work: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
    async with database(url, "bench_admission") as dsn:
        connection = await asyncpg.connect(dsn)
        try:
            await migrate(connection)
            return await work(connection)
        finally:
            await connection.close()


async def ungated(before: str) -> list[Verdict]:
    both = [before, revisions.WORKING_TREE]
    figures = await calls.measure(both)
    drains = await revisions.measure(both, RUNS)
    old, new = (drains[revision] for revision in both)
    pairs = [b["drain_cpu_us"] / a["drain_cpu_us"] for a, b in zip(old, new, strict=True)]
    print(json.dumps({"drain_ratios": [round(pair, 3) for pair in pairs]}))
    ratios = {
        name: after / earlier
        for name, (earlier, after) in figures.items()
        if not name.startswith("submit")
    }
    return [
        Rule(f"{name}, without limits", 1.03, None, at_most=True).judge(ratio)
        for name, ratio in {**ratios, "drain": median(pairs)}.items()
    ]


async def main(arguments: list[str]) -> int:
    if arguments[:1] == ["ungated"]:
        return conclude(await ungated((arguments[1:] or [BEFORE_ADMISSION])[0]))
    parts = {"cost": cost, "idle": idle, "fairness": fairness}
    names = arguments or ["cost", "first-start", "idle", "fairness"]
    if unknown := set(names) - {*parts, "first-start"}:
        raise SystemExit(f"no such figure: {', '.join(unknown)}")
    verdicts = []
    async with server() as url:
        for name in names:
            say(f"{name} (load {os.getloadavg()[0]:.1f})")
            if name == "first-start":
                verdicts += await first_starts(url)
            else:
                verdicts += await in_new_database(url, parts[name])
    return conclude(verdicts)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
