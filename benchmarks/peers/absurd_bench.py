"""Absurd, with four workers in one process."""

# ruff: noqa: ASYNC110  all peers are polled in the same way

from __future__ import annotations

import asyncio
import os
import time

from absurd_schema import install
from absurd_sdk import AsyncAbsurd
from common import CONC, DSN, LAT, N, report

done = 0
starts = {}


async def main():
    install(DSN)
    apps = [AsyncAbsurd(DSN, queue_name="default") for _ in range(8)]
    app = apps[0]
    try:
        await app.create_queue("default")
    except Exception as error:
        print(error)
    t = time.perf_counter()
    it = iter(range(N))

    async def sub(a):
        for i in it:
            await a.spawn("noop", {"i": i}, queue="default")

    await asyncio.gather(*(sub(a) for a in apps))
    s = time.perf_counter() - t

    async def noop(params, ctx):
        global done
        starts[params["i"]] = time.perf_counter()
        done += 1
        return {}

    ws = []
    t = time.perf_counter()
    for k in range(4):
        a = AsyncAbsurd(DSN, queue_name="default")
        a.register_task("noop", queue="default")(noop)
        worker = a.start_worker(worker_id=f"w{k}", concurrency=CONC, poll_interval=0.02)
        ws.append(asyncio.create_task(worker))
    while done < N:
        await asyncio.sleep(0.005)
    d = time.perf_counter() - t
    lats = []
    for i in range(LAT):
        k = 10**6 + i
        t = time.perf_counter()
        await app.spawn("noop", {"i": k}, queue="default")
        while k not in starts:
            await asyncio.sleep(0.0005)
        lats.append(starts[k] - t)
    report("absurd (4 workers, 20ms poll)", s, d, lats)
    for w in ws:
        w.cancel()
    os._exit(0)


asyncio.run(main())
