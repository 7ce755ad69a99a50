"""PgQueuer, over a pool of asyncpg connections. Batch size: BENCH_BATCH (default: BENCH_CONC)."""

# ruff: noqa: ASYNC110  all peers are polled in the same way

from __future__ import annotations

import asyncio
import contextlib
import time
from datetime import timedelta

import asyncpg
from common import BATCH, DSN, LAT, N, Phase, concurrently, report
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.queries import Queries

done = 0
starts = {}


async def main():
    pool = await asyncpg.create_pool(DSN, min_size=2, max_size=20)
    q = Queries(AsyncpgPoolDriver(pool))
    with contextlib.suppress(Exception):  # the schema may be installed already
        await q.install()
    phase = Phase()
    await concurrently(lambda i: q.enqueue("noop", str(i).encode()), range(N))
    s, s_cpu = phase.end()
    pgq = PgQueuer(AsyncpgPoolDriver(pool))

    @pgq.entrypoint("noop")
    async def noop(job):
        global done
        starts[int(job.payload)] = time.perf_counter()
        done += 1

    phase = Phase()
    w = asyncio.create_task(pgq.run(batch_size=BATCH, dequeue_timeout=timedelta(seconds=1)))
    while done < N:
        await asyncio.sleep(0.005)
    # The drain ends when all jobs have ended in the database, as in the benchmark of flowfabric.
    # PgQueuer moves ended jobs to its log in batches, some time after their handlers have returned.
    while await pool.fetchval("select exists (select from pgqueuer)"):
        await asyncio.sleep(0.001)
    d, d_cpu = phase.end()
    lats = []
    for i in range(LAT):
        k = 10**6 + i
        t = time.perf_counter()
        await q.enqueue("noop", str(k).encode())
        while k not in starts:
            await asyncio.sleep(0.0005)
        lats.append(starts[k] - t)
    w.cancel()
    await asyncio.gather(w, return_exceptions=True)
    phase = Phase()
    for i in range(0, N, 500):
        ks = [str(j).encode() for j in range(i, min(N, i + 500))]
        await q.enqueue(["noop"] * len(ks), ks, [0] * len(ks))
    b, b_cpu = phase.end()
    report(
        f"pgqueuer, batches of {BATCH}",
        s,
        d,
        lats,
        b,
        cpu={"single": s_cpu, "drain": d_cpu, "bulk": b_cpu},
    )


asyncio.run(main())
