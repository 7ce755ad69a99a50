"""Measure signals: deliveries per second, and the time from a signal to the running handler.

    python benchmarks/signals.py

Starts its own Postgres, or uses the server in BENCH_DSN. Prints one JSON line.
"""

from __future__ import annotations

import asyncio
import json
import statistics
from dataclasses import replace
from time import perf_counter
from typing import Any

from flowfabric import App, Context
from flowfabric.core.signal import Signal
from harness import database, server

app = App()
woken: dict[int, float] = {}


@app.task
async def wait(ctx: Context, number: int) -> None:
    await ctx.wait_for_signal("go")
    woken[number] = perf_counter()


async def deliveries(runs: list[Any], callers: int, each: int) -> float:
    """Send signals that nobody takes, from several callers. Return the signals per second."""
    client = await app.client()

    async def caller(number: int) -> None:
        for turn in range(each):
            run = runs[(number + turn * callers) % len(runs)]
            await client.signals.deliver(run.id, Signal(name="note", payload=b"1"))

    start = perf_counter()
    await asyncio.gather(*(caller(number) for number in range(callers)))
    return callers * each / (perf_counter() - start)


async def latency(count: int) -> list[float]:
    """Send a signal to each suspended execution in turn. Note when its handler continues."""
    times = []
    for number in range(count):
        run = await wait.submit(number)
        while str(await run.state()) != "suspended":  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        start = perf_counter()
        await run.signal("go")
        await run.result(timeout=60)
        times.append((woken[number] - start) * 1000)
    return sorted(times)


async def main() -> None:
    async with server() as admin, database(admin, "signals") as url:
        app.settings = replace(app.settings, database_url=url)
        await measure()


async def measure() -> None:
    async with app:
        await app.prepare()
        lane = wait.using(lane="nobody")
        runs = await lane.submit_many([(number,) for number in range(1000)])
        many = await deliveries(runs, 16, 500)
        one = await deliveries(runs[:1], 16, 100)
        worker = asyncio.create_task(app.run_worker(lanes=["default"]))
        times = await latency(100)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    print(
        json.dumps(
            {
                "deliver_per_s_1000_executions": round(many),
                "deliver_per_s_one_execution": round(one),
                "wake_p50_ms": round(statistics.median(times), 1),
                "wake_p99_ms": round(times[-2], 1),
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main())
