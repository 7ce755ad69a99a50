"""Measures whether the drain slows down over time: `python benchmarks/sustained.py [--quick]`

Each round submits 20 000 executions in bulk, then a worker drains them. The drain is timed until
the last result is acknowledged. All rounds use one database, which is never truncated, with
Postgres' own autovacuum.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from statistics import median

import asyncpg

from flowfabric import App
from flowfabric.db.connection import open_connection
from flowfabric.db.migrate import migrate
from harness import Rule, Verdict, conclude, database, say, server

CONCURRENCY = int(os.environ.get("BENCH_CONC", "100"))
NEIGHBOURS = 3


async def drain(app: App, size: int) -> float:
    """Return executions per second, from the start of a worker until all are terminal."""
    noop = app.tasks["bench.noop"]
    for start in range(0, size, 500):
        await noop.submit_many([(i,) for i in range(start, min(size, start + 500))])
    counted.clear()
    worker = await app.worker(concurrency=CONCURRENCY)
    started = time.perf_counter()
    running = asyncio.create_task(worker.run())
    while len(counted) < size:  # noqa: ASYNC110  polled, so that the handler stays empty
        await asyncio.sleep(0.005)
    # When the worker has stopped, every result is acknowledged.
    worker.stop()
    await running
    return size / (time.perf_counter() - started)


counted: list[int] = []


async def measure(*, quick: bool = False) -> list[Verdict]:
    rounds, size = (8, 5_000) if quick else (50, 20_000)
    rates = []
    async with server() as admin, database(admin, "bench_sustained") as url:
        async with open_connection(url) as connection:
            await migrate(connection)
        watcher = await asyncpg.connect(url)
        async with App(database_url=url) as app:

            @app.task(name="bench.noop")
            async def noop(i: int) -> None:
                counted.append(i)

            say("warming up")
            await drain(app, 1_000)
            for number in range(1, rounds + 1):
                rate = await drain(app, size)
                rates.append(rate)
                line = {"round": number, "drain_per_s": round(rate), **await state(watcher)}
                print(json.dumps(line), flush=True)
            ended = await watcher.fetchval(
                "select count(*) from ff.execution where phase = 'terminal'"
            )
            if ended != rounds * size + 1_000:
                raise SystemExit(f"only {ended} executions ended")
        await watcher.close()
    first, last = median(rates[:NEIGHBOURS]), median(rates[-NEIGHBOURS:])
    rule = Rule(f"sustained: drain of round {rounds} vs 1 (medians of {NEIGHBOURS})", 0.8, 0.95)
    return [rule.judge(last / first)]


async def state(watcher: asyncpg.Connection) -> dict[str, int]:
    """Return the dead rows and sizes after the rounds."""
    row = await watcher.fetchrow(
        """
        select n_dead_tup as dead, autovacuum_count as autovacuums,
               (pg_total_relation_size('ff.execution') / 1048576)::integer as execution_mb,
               (pg_total_relation_size('ff.event') / 1048576)::integer as event_mb
        from pg_stat_user_tables where relid = 'ff.execution'::regclass
        """
    )
    return dict(row)


if __name__ == "__main__":
    sys.exit(conclude(asyncio.run(measure(quick="--quick" in sys.argv))))
