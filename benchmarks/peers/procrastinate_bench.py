"""Procrastinate, over psycopg."""

# ruff: noqa: ASYNC110  all peers are polled in the same way

from __future__ import annotations

import asyncio
import contextlib
import time

import procrastinate
from common import CONC, DSN, LAT, N, concurrently, report

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=DSN, max_size=20))
done = 0
starts = {}


@app.task(name="noop")
async def noop(i):
    global done
    starts[i] = time.perf_counter()
    done += 1


async def drain(n):
    global done
    done = 0
    t = time.perf_counter()
    w = asyncio.create_task(
        app.run_worker_async(
            wait=True,
            concurrency=CONC,
            fetch_job_polling_interval=0.2,
            delete_jobs="never",
            install_signal_handlers=False,
        )
    )
    while done < n:
        await asyncio.sleep(0.005)
    d = time.perf_counter() - t
    return d, w


async def main():
    async with app.open_async():
        with contextlib.suppress(Exception):  # the schema may be applied already
            await app.schema_manager.apply_schema_async()
        t = time.perf_counter()
        await concurrently(lambda i: noop.defer_async(i=i), range(N))
        s = time.perf_counter() - t
        d, w = await drain(N)
        lats = []
        for i in range(LAT):
            k = 10**6 + i
            t = time.perf_counter()
            await noop.defer_async(i=k)
            while k not in starts:
                await asyncio.sleep(0.0005)
            lats.append(starts[k] - t)
        w.cancel()
        await asyncio.gather(w, return_exceptions=True)
        t = time.perf_counter()
        for i in range(0, N, 500):
            await noop.batch_defer_async(*[{"i": j} for j in range(i, min(N, i + 500))])
        b = time.perf_counter() - t
        report("procrastinate", s, d, lats, b)


asyncio.run(main())
