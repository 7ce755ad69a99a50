"""flowfabric, by the same protocol as the peers in `peers/`, through its public API only.

One difference, to our disadvantage: a peer's drain ends when the last handler has started, ours
when the last of the N rows is terminal in the database.
"""

# ruff: noqa: ASYNC110  polled in the same way as every peer

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import asyncpg

from flowfabric import App
from flowfabric.db.connection import open_connection
from flowfabric.db.migrate import migrate

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from common import CONC, DSN, LAT, N, Phase, concurrently, report

BULK = 500

app = App(database_url=DSN)
done = 0
starts: dict[int, float] = {}


@app.task
async def noop(i: int) -> None:
    global done
    starts[i] = time.perf_counter()
    done += 1


async def all_terminal(connection: asyncpg.Connection, expected: int) -> float:
    """Wait until all expected rows are terminal, and return when the last one was.

    Only a running execution has a due_at (the end of its lease), so each poll reads one entry of a
    small index. A final count proves the answer.
    """
    while await connection.fetchval(
        "select exists (select from ff.execution where partition_key = 0 and due_at is not null)"
    ):
        await asyncio.sleep(0.001)
    ended = time.perf_counter()
    found = await connection.fetchval(
        "select count(*) from ff.execution where outcome = 'success' and phase = 'terminal'"
    )
    if found != expected:
        raise SystemExit(f"{found} of {expected} executions ended well")
    return ended


async def main() -> None:
    async with open_connection(DSN) as connection:
        await migrate(connection)
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
    drain, drain_cpu = phase.end(await all_terminal(watcher, N))

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

    phase = Phase()
    for i in range(0, N, BULK):
        await noop.submit_many([(j,) for j in range(i, min(N, i + BULK))])
    bulk, bulk_cpu = phase.end()

    cpu = {"single": submit_cpu, "drain": drain_cpu, "bulk": bulk_cpu}
    report("flowfabric", submit, drain, lats, bulk, cpu=cpu)
    await watcher.close()
    await app.close()


asyncio.run(main())
