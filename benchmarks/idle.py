"""Measures the load of idle workers on the database: `python benchmarks/idle.py [--quick]`

There are 1 000 workers, 100 in each of 10 processes, with nothing to do. The processor time of
every process of the server is read from /proc before and after. The load of the server without
workers is measured first. It is shown too, but not subtracted.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import asyncpg

from flowfabric import App
from flowfabric.db.connection import open_connection
from flowfabric.db.migrate import migrate
from harness import Rule, Verdict, conclude, database, say, server

PROCESSES = 10
WORKERS = 100
_TICK = os.sysconf("SC_CLK_TCK")


def processor_seconds(postmaster: int) -> float:
    """Return the processor time of the postmaster, its children and its former children."""
    ticks = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # the process has just ended
            continue
        parent, user, system, of_ended = int(fields[1]), *map(int, fields[11:13]), fields[13:15]
        if int(entry.name) == postmaster:
            ticks += user + system + sum(map(int, of_ended))
        elif parent == postmaster:
            ticks += user + system
    return ticks / _TICK


async def load(postmaster: int, seconds: float) -> float:
    """Return the share of one core that the server uses, in percent."""
    before, started = processor_seconds(postmaster), time.monotonic()
    await asyncio.sleep(seconds)
    return 100 * (processor_seconds(postmaster) - before) / (time.monotonic() - started)


def parent_of(backend: int) -> int:
    status = Path(f"/proc/{backend}/stat")
    if not status.exists():
        raise SystemExit("the server must run on this machine: its processes are measured")
    return int(status.read_text().rpartition(")")[2].split()[1])


async def idle_process(url: str, workers: int) -> None:
    """Run one process of workers without work."""
    async with App(database_url=url) as app:

        @app.task(name="bench.noop")
        async def noop(i: int) -> None: ...

        made = [await app.worker(worker_id=f"idle-{n}") for n in range(workers)]
        running = [asyncio.create_task(worker.run()) for worker in made]
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        for worker in made:
            worker.stop()
        await asyncio.gather(*running)


async def measure(*, quick: bool = False) -> list[Verdict]:
    line = await measure_idle(seconds=15.0 if quick else 60.0, warm_up=5.0 if quick else 15.0)
    print(json.dumps(line), flush=True)
    rule = Rule("1000 idle workers: Postgres, of one core", 10, 5, at_most=True, unit="%")
    return [rule.judge(line["server_percent"])]


async def measure_idle(
    *,
    seconds: float,
    warm_up: float,
    processes: int = PROCESSES,
    workers: int = WORKERS,
    partitions: int = 1,
) -> dict[str, float]:
    """Return what idle workers cost, in `processes` processes with `workers` workers each."""
    running = []
    async with server() as admin, database(admin, "bench_idle") as url:
        async with open_connection(url) as connection:
            await migrate(connection)
            if partitions > 1:
                await connection.execute(f"select ff.raise_partitions({partitions})")
        watcher = await asyncpg.connect(url)
        postmaster = parent_of(await watcher.fetchval("select pg_backend_pid()"))
        say(f"the server alone, {seconds:g} s")
        alone = await load(postmaster, seconds)
        async with App(database_url=url) as app:

            @app.task(name="bench.noop")
            async def noop(i: int) -> None: ...

            # Register a route, so that claims search it.
            await noop.submit(1)
            say(f"starting {processes} processes of {workers} workers, {partitions} partitions")
            for _ in range(processes):
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    __file__,
                    "--workers",
                    str(workers),
                    url,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                )
                running.append(process)
            for process in running:
                await process.stdout.readline()
        await asyncio.sleep(warm_up)
        calls = await transactions(watcher)
        connections = await watcher.fetchval(
            "select count(*) from pg_stat_activity where application_name like 'flowfabric%'"
        )
        say(f"measuring for {seconds:g} s")
        busy = await load(postmaster, seconds)
        calls = await transactions(watcher) - calls
        for process in running:
            process.stdin.write_eof()
        await asyncio.gather(*(process.wait() for process in running))
        await watcher.close()
    return {
        "idle_workers": processes * workers,
        "processes": processes,
        "partitions": partitions,
        "connections": connections,
        "transactions_per_s": round(calls / seconds, 1),
        "server_alone_percent": round(alone, 2),
        "server_percent": round(busy, 2),
    }


async def transactions(watcher: asyncpg.Connection) -> int:
    return await watcher.fetchval(
        "select xact_commit + xact_rollback from pg_stat_database"
        " where datname = current_database()"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--workers"]:
        asyncio.run(idle_process(sys.argv[3], int(sys.argv[2])))
    else:
        sys.exit(conclude(asyncio.run(measure(quick="--quick" in sys.argv))))
