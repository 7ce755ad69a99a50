"""Server CPU of claims and completes under quotas and budgets: `admission.py`.

Four scenarios take turns, for BENCH_RUNS rounds: no limits; all executions in one hot bucket; each
execution in one of 1 000 buckets; each in one of 1 000 buckets and one of 1 000 budgets. Then it
measures how long another tenant waits for its first start behind 100 000 executions of a full
bucket. Last it measures how much 100 000 waiting executions slow down a claim that finds nothing:
claims of their lane and of an empty lane take turns. Prints one JSON line. The time of a scenario
is the smallest of its rounds; the times of claims that find nothing are medians.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from statistics import mean, median, stdev
from uuid import UUID, uuid4

import asyncpg

from flowfabric.db.migrate import migrate
from harness import database, say, server

RUNS = int(os.environ.get("BENCH_RUNS", "3"))
SIZE = int(os.environ.get("BENCH_SIZE", "100"))
EXECUTIONS = int(os.environ.get("BENCH_EXECUTIONS", "5000"))
SATURATED = int(os.environ.get("BENCH_SATURATED", "100000"))
IDLE_TURNS = int(os.environ.get("BENCH_IDLE_TURNS", "200"))
SCENARIOS = ("ungated", "one bucket", "1 of 1000 buckets", "1 of 1000 buckets and budgets")


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
) -> None:
    for start in range(0, len(options), 1000):
        part = options[start : start + 1000]
        rows = await connection.fetch(
            "select * from ff.submit_executions(0::smallint, 'bench', $1::uuid[], $2, $3, "
            "p_options => $4::jsonb[], p_hint => false)",
            [uuid4() for _ in part],
            [route_id],
            [b"1"],
            [json.dumps(one) for one in part] if any(part) else None,
        )
        if rows:
            raise SystemExit(f"not stored: {rows[0]}")


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
    """Return the CPU of all claims and of all completes."""
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


async def measure(connection: asyncpg.Connection) -> dict[str, list[float]]:
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
    return found


async def saturated(connection: asyncpg.Connection) -> dict[str, float]:
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
    backend = connection.get_server_pid()
    started = cpu(backend)
    start = time.perf_counter()
    tries = 0
    while True:
        tries += 1
        _, ids, _ = await claim(connection, "front", 1)
        if ids:
            break
    waited = time.perf_counter() - start
    spent = cpu(backend) - started
    while await connection.fetchval(
        "select exists (select from ff.execution where eligibility = 'eligible_now')"
    ):
        await claim(connection, "front", 1)
    await connection.execute("vacuum analyze ff.execution")
    await route(connection, "empty")
    with_lines, without = await in_turn(connection, "front", "empty")
    differences = [a - b for a, b in zip(with_lines, without, strict=True)]
    return {
        "first_start_ms": waited * 1000,
        "first_start_cpu_ms": spent * 1000,
        "claims_until_first_start": tries,
        "idle_claim_us_with_lines": median(with_lines) * 1e6,
        "idle_claim_us_without": median(without) * 1e6,
        "idle_claim_us_difference": mean(differences) * 1e6,
        # Half of the interval in which the mean difference is with a confidence of 95 %.
        "idle_claim_us_plus_minus": 1.96 * stdev(differences) / len(differences) ** 0.5 * 1e6,
    }


async def in_turn(
    connection: asyncpg.Connection, first: str, second: str
) -> tuple[list[float], list[float]]:
    """Return the CPU of claims that find nothing, of two lanes that take turns, ten claims each."""
    backend = connection.get_server_pid()
    found: dict[str, list[float]] = {first: [], second: []}
    for turn in range(IDLE_TURNS + 5):
        for lane in (first, second) if turn % 2 else (second, first):
            start = cpu(backend)
            for _ in range(10):
                await claim(connection, lane, 10)
            # The first turns are not counted: plans are made in them.
            if turn >= 5:
                found[lane].append((cpu(backend) - start) / 10)
    return found[first], found[second]


async def main() -> None:
    async with server() as url, database(url, "bench_admission") as dsn:
        connection = await asyncpg.connect(dsn)
        await migrate(connection)
        found = await measure(connection)
        figures: dict[str, object] = {name: round(min(times), 1) for name, times in found.items()}
        base = min(found["ungated"])
        figures |= {f"{name}, ratio": round(min(t) / base, 2) for name, t in found.items()}
        figures |= {name: round(value, 1) for name, value in (await saturated(connection)).items()}
        await connection.close()
        print(json.dumps(figures))


if __name__ == "__main__":
    asyncio.run(main())
