"""Awa, with its segmented queue storage. On a fresh install, the first worker prepares it."""

# ruff: noqa: ASYNC110  all peers are polled in the same way

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import awa
from common import CONC, LAT, N, concurrently, dsn_with_host, report

done = 0
starts = {}


@dataclass
class Noop:
    i: int


def client():
    c = awa.AsyncClient(dsn_with_host())

    @c.task(Noop, queue="bench")
    async def noop(job):
        global done
        starts[job.args.i] = time.perf_counter()
        done += 1

    return c


async def main():
    c = client()
    await c.migrate()
    await c.start([("bench", CONC)])
    await asyncio.sleep(2)
    await c.shutdown()
    c = client()
    t = time.perf_counter()
    await concurrently(lambda i: c.insert(Noop(i), queue="bench"), range(N))
    s = time.perf_counter() - t
    t = time.perf_counter()
    await c.start([("bench", CONC)])
    while done < N and time.perf_counter() - t < 100:
        await asyncio.sleep(0.005)
    d = time.perf_counter() - t
    n = done
    lats = []
    for i in range(LAT):
        k = 10**6 + i
        t = time.perf_counter()
        await c.insert(Noop(k), queue="bench")
        while k not in starts and time.perf_counter() - t < 5:
            await asyncio.sleep(0.0005)
        lats.append(starts.get(k, time.perf_counter()) - t)
    await c.shutdown()
    b = None
    try:
        t = time.perf_counter()
        await c.enqueue_many_copy([Noop(i) for i in range(N)], queue="bulk")
        b = time.perf_counter() - t
    except Exception as error:
        print("bulk:", error)
    report("awa-pg", s, d * N / max(1, n), lats, b)


asyncio.run(main())
