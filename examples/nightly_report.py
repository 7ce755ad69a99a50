"""Schedules: send a report every weekday at six, and a beat every two seconds.

python examples/nightly_report.py
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from flowfabric import App, Context

app = App(name="reports", version="1")
seen = asyncio.Queue[str]()


async def figures() -> dict[str, int]:
    return {"orders": 41, "refunds": 1}


@app.cron("0 6 * * 1-5", tz="Europe/Berlin", misfire="once")
async def nightly(ctx: Context) -> str:
    """Send the report.

    If times were missed because no worker was running, send one report for all.
    """
    found = await ctx.step("figures", figures)
    return f"{found['orders']} orders, {found['refunds']} refunds"


@app.every(timedelta(seconds=2), misfire="skip")
async def beat() -> None:
    """Record a beat. Missed times are skipped."""
    seen.put_nowait("beat")


async def main() -> None:
    async with app:
        await app.prepare()
        worker = asyncio.create_task(app.run_worker())
        async with asyncio.timeout(60):
            for _ in range(2):
                print(await seen.get())
        for schedule in await (await app.client()).schedules.list():
            print(schedule.name, "next at", schedule.next_at)
        # A scheduled task is an ordinary task, so it can also be submitted by hand.
        print(await (await nightly.submit()).result(timeout=60))
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
