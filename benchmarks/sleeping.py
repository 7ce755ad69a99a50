"""Measures the load and the lateness of sleepers: `python benchmarks/sleeping.py [--quick]`

10 000 executions sleep for a day while a worker with a single slot does other work. No sleeper may
hold the slot. The processor time of the server and of the worker is read from /proc while all
sleep. The load without sleepers is measured first, and subtracted for the verdict. Then 1 000 more
executions sleep until the same second. Their lateness is the time from that second to their last
commit, by the clock of the database.
"""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import sys
import time
from datetime import datetime, timedelta

import asyncpg

from flowfabric import App, Context
from flowfabric.db.connection import open_connection
from flowfabric.db.migrate import migrate
from harness import Rule, Verdict, conclude, database, say, server
from idle import parent_of, processor_seconds

ASLEEP = 10_000
WOKEN = 1_000
WAKE_IN = timedelta(seconds=15)


def tasks(app: App) -> None:
    @app.task(name="bench.sleep")
    async def sleep(ctx: Context, seconds: float) -> None:
        await ctx.sleep(timedelta(seconds=seconds))

    @app.task(name="bench.sleep_until")
    async def sleep_until(ctx: Context, when: datetime) -> None:
        await ctx.sleep_until(when)

    @app.task(name="bench.quick")
    async def quick() -> None: ...


def own_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def load(postmaster: int, seconds: float) -> tuple[float, float]:
    """Return the shares of one core that the server and this process use, in percent."""
    before, own, started = processor_seconds(postmaster), own_seconds(), time.monotonic()
    await asyncio.sleep(seconds)
    passed = time.monotonic() - started
    return (
        100 * (processor_seconds(postmaster) - before) / passed,
        100 * (own_seconds() - own) / passed,
    )


async def until_asleep(watcher: asyncpg.Connection, number: int) -> None:
    while True:
        found = await watcher.fetchval(
            "select count(*) from ff.execution where public_state = 'delayed'"
        )
        if found >= number:
            return
        await asyncio.sleep(0.2)


async def measure(*, quick: bool = False) -> list[Verdict]:
    seconds = 10.0 if quick else 30.0
    asleep = ASLEEP // 10 if quick else ASLEEP
    async with server() as admin, database(admin, "bench_sleeping") as url:
        async with open_connection(url) as connection:
            await migrate(connection)
        watcher = await asyncpg.connect(url)
        postmaster = parent_of(await watcher.fetchval("select pg_backend_pid()"))
        async with App(database_url=url) as app:
            tasks(app)
            sleep, quick_task = app.tasks["bench.sleep"], app.tasks["bench.quick"]
            worker = await app.worker(concurrency=1)
            running = asyncio.create_task(worker.run())
            await (await quick_task.submit()).result(timeout=60)
            say(f"no sleepers, {seconds:g} s")
            server_before, own_before = await load(postmaster, seconds)
            say(f"putting {asleep} to sleep, one slot")
            started = time.monotonic()
            await sleep.submit_many([(86_400.0,)] * asleep)
            await until_asleep(watcher, asleep)
            fell_asleep = time.monotonic() - started
            started = time.monotonic()
            await (await quick_task.submit()).result(timeout=60)
            slot_ms = 1000 * (time.monotonic() - started)
            await asyncio.sleep(seconds / 5)
            say(f"{asleep} asleep, {seconds:g} s")
            server_after, own_after = await load(postmaster, seconds)
            worker.stop()
            await running

            worker = await app.worker(concurrency=100)
            running = asyncio.create_task(worker.run())
            say(f"waking {WOKEN} in one second")
            began: datetime = await watcher.fetchval("select clock_timestamp()")
            when = began + WAKE_IN
            await app.tasks["bench.sleep_until"].submit_many([(when,)] * WOKEN)
            await until_asleep(watcher, asleep + WOKEN)
            late = await lateness(watcher, WOKEN)
            worker.stop()
            await running
        await watcher.close()
    late.sort()
    p99 = late[int(len(late) * 0.99) - 1]
    line = {
        "asleep": asleep,
        "put_to_sleep_per_s": round(asleep / fell_asleep),
        "quick_task_beside_them_ms": round(slot_ms, 1),
        "server_percent_without": round(server_before, 2),
        "server_percent": round(server_after, 2),
        "worker_percent_without": round(own_before, 2),
        "worker_percent": round(own_after, 2),
        "woken": WOKEN,
        "woken_at": when.isoformat(timespec="seconds"),
        "late_p50_s": round(statistics.median(late), 3),
        "late_p99_s": round(p99, 3),
        "late_max_s": round(late[-1], 3),
    }
    print(json.dumps(line), flush=True)
    cost = max(server_after - server_before, 0.0) + max(own_after - own_before, 0.0)
    return [
        Rule(
            "10 000 asleep: server and worker, of one core", 1.0, None, at_most=True, unit="%"
        ).judge(cost),
        Rule("1 000 waking at once: p99 lateness", 1.0, 0.5, at_most=True, unit="s").judge(p99),
    ]


async def lateness(watcher: asyncpg.Connection, number: int) -> list[float]:
    """Return the seconds from the end of each sleep to the end of its execution."""
    while True:
        rows = await watcher.fetch(
            "select extract(epoch from e.terminal_at - s.until_at)::float8 as late"
            " from ff.execution e join ff.step s using (partition_key, execution_id)"
            " where e.public_state = 'completed'"
        )
        if len(rows) >= number:
            return [row["late"] for row in rows]
        await asyncio.sleep(0.5)


if __name__ == "__main__":
    sys.exit(conclude(asyncio.run(measure(quick="--quick" in sys.argv))))
