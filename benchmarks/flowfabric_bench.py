"""Measures flowfabric by the same protocol as the peers in `peers/`, through its public API only.

The drain ends when the last of the N rows is terminal in the database, as for PgQueuer. The drain
of the other peers ends when their last handler has started, which is to their advantage.
"""

# ruff: noqa: ASYNC110  this polls in the same way as every peer

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import asyncpg

from flowfabric import App
from flowfabric.core.errors import Unavailable
from flowfabric.db.connection import open_connection
from flowfabric.db.migrate import migrate

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from common import CONC, DSN, LAT, N, Phase, concurrently, report

BULK = 500
PARTITIONS = int(os.environ.get("BENCH_PARTITIONS", "1"))

app = App(database_url=DSN)
done = 0
starts: dict[int, float] = {}


@app.task
async def noop(i: int) -> None:
    global done
    starts[i] = time.perf_counter()
    done += 1


async def all_terminal(connection: asyncpg.Connection, expected: int) -> float:
    """Wait until all expected rows are terminal, and return the time of the last one.

    Only a running execution has a due_at (the end of its lease), so each poll reads one entry of a
    small index. A final count proves the answer.
    """
    while await connection.fetchval(
        "select exists (select from unnest($1::smallint[]) p(n) cross join lateral (select "
        "from ff.execution e where e.partition_key = p.n and e.due_at is not null limit 1) d)",
        range(PARTITIONS),
    ):
        await asyncio.sleep(0.001)
    ended = time.perf_counter()
    found = await connection.fetchval(
        "select count(*) from ff.execution where outcome = 'success' and phase = 'terminal'"
    )
    if found != expected:
        raise SystemExit(f"only {found} of {expected} executions succeeded")
    return ended


async def count_minutes() -> None:
    """Count the events of the drain by minute now, instead of in the background of a later phase.

    Workers count in the background at a random time. A phase that contained the counting took up to
    twice as long.
    """
    minutes = getattr(await app.client(), "minutes", None)  # an older revision has none
    while minutes is not None:
        try:
            if not (await minutes.roll_up())[0]:
                return
        except Unavailable:
            continue  # A pass of the worker had the lock for longer than a call may take.


async def main() -> None:
    async with open_connection(DSN) as connection:
        await migrate(connection)
        if PARTITIONS > 1:
            await connection.execute(f"select ff.raise_partitions({PARTITIONS})")
    watcher = await asyncpg.connect(DSN)

    phase = Phase()
    await concurrently(noop.submit, range(N))
    submit, submit_cpu = phase.end()

    phase = Phase()
    worker = asyncio.create_task(app.run_worker(concurrency=CONC))
    while done < N:
        await asyncio.sleep(0.005)
        if worker.done():
            await worker
    ended = await all_terminal(watcher, N)
    await count_minutes()
    drain, drain_cpu = phase.end(ended)

    lats = []
    for i in range(LAT):
        k = 10**6 + i
        t = time.perf_counter()
        await noop.submit(k)
        while k not in starts:
            await asyncio.sleep(0.0005)
        lats.append(starts[k] - t)
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    await count_minutes()

    phase = Phase()
    for i in range(0, N, BULK):
        await noop.submit_many([(j,) for j in range(i, min(N, i + BULK))])
    bulk, bulk_cpu = phase.end()

    cpu = {"single": submit_cpu, "drain": drain_cpu, "bulk": bulk_cpu}
    report("flowfabric", submit, drain, lats, bulk, cpu=cpu)
    await watcher.close()
    await app.close()


asyncio.run(main())
