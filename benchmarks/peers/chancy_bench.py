"""Chancy, with its asyncio executor."""

# ruff: noqa: ASYNC110  all peers are polled in the same way

from __future__ import annotations

import asyncio
import time

from chancy import Chancy, Queue, Worker, job
from common import CONC, DSN, LAT, N, concurrently, report

done = 0
starts = {}


@job(queue="default")
async def noop(*, i: int):
    global done
    starts[i] = time.perf_counter()
    done += 1


async def main():
    async with Chancy(DSN) as ch:
        await ch.migrate()
        queue = Queue(
            "default",
            concurrency=CONC,
            executor="chancy.executors.asyncex.AsyncExecutor",
            polling_interval=1,
        )
        await ch.declare(queue, upsert=True)
        t = time.perf_counter()
        await concurrently(lambda i: ch.push(noop.job.with_kwargs(i=i)), range(N))
        s = time.perf_counter() - t
        async with Worker(ch):
            t = time.perf_counter()
            while done < N and time.perf_counter() - t < 120:
                await asyncio.sleep(0.005)
            n = done
            d = time.perf_counter() - t
            lats = []
            for i in range(LAT):
                k = 10**6 + i
                t = time.perf_counter()
                await ch.push(noop.job.with_kwargs(i=k))
                while k not in starts and time.perf_counter() - t < 5:
                    await asyncio.sleep(0.0005)
                lats.append(starts.get(k, time.perf_counter()) - t)
        report("chancy", s, d * N / max(1, n), lats)


asyncio.run(main())
