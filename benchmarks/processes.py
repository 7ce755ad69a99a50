"""Compares one, two and four workers on one backlog: `python benchmarks/processes.py [--quick]`

Every run gets a fresh database and new worker processes. To warm up, the processes first run some
executions. Then N executions of a no-op task are stored in a paused lane. The time counts from the
resume of the lane until all executions are terminal. The numbers of processes alternate. BENCH_N,
BENCH_CONC (of each process) and BENCH_RUNS change the size.
"""

# ruff: noqa: ASYNC110  this polls the database

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from statistics import median
from typing import Any

import asyncpg

from flowfabric import App
from flowfabric.db.connection import open_connection
from flowfabric.db.migrate import migrate
from harness import HERE, Rule, Verdict, conclude, database, postmaster, say, server

PROCESSES = tuple(map(int, os.environ.get("BENCH_PROCESSES", "1,2,4").split(",")))
N = int(os.environ.get("BENCH_N", "20000"))
WARM_UP = 1000
CONCURRENCY = int(os.environ.get("BENCH_CONC", "100"))


def bench_app(url: str) -> App:
    app = App(database_url=url)

    @app.task(name="bench.noop")
    async def noop(i: int) -> None: ...

    return app


async def work() -> None:
    """Run one worker process until a line arrives on stdin."""
    loop = asyncio.get_running_loop()
    async with bench_app(os.environ["BENCH_DSN"]) as app:
        worker = await app.worker(concurrency=CONCURRENCY)
        running = asyncio.create_task(worker.run())
        for _ in range(2):
            await loop.run_in_executor(None, sys.stdin.readline)
            print(time.process_time(), flush=True)
        worker.stop()
        await running


class Processes:
    """Worker processes on a database, and their processor time."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._started: list[asyncio.subprocess.Process] = []

    async def start(self, count: int) -> None:
        for _ in range(count):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, __file__, "--work"),
                env={**os.environ, "BENCH_DSN": self._url},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            self._started.append(process)

    async def cpu_seconds(self) -> float:
        seconds = 0.0
        for process in self._started:
            assert process.stdin
            assert process.stdout
            process.stdin.write(b"\n")
            seconds += float(await process.stdout.readline())
        return seconds

    async def ended(self) -> None:
        for process in self._started:
            await process.wait()


async def drain(url: str, count: int, postmaster_id: str) -> dict[str, Any]:
    """Drain a backlog with `count` warm processes. Return the rate and the CPU of each part."""
    from common import _server_cpu  # reads the environment when it is imported

    async with open_connection(url) as connection:
        await migrate(connection)
    watcher = await asyncpg.connect(url)
    processes = Processes(url)
    async with bench_app(url) as app:
        client = await app.client()
        await submit(app, WARM_UP * count)
        await processes.start(count)
        while await watcher.fetchval(_UNFINISHED) or await watcher.fetchval(_WORKERS) < count:
            await asyncio.sleep(0.05)
        await client.lanes.pause("default")
        await submit(app, N)
        await watcher.execute("checkpoint")
        worker_cpu = -await processes.cpu_seconds()
        server_cpu, began = -_server_cpu(postmaster_id), time.perf_counter()
        await client.lanes.resume("default")
        while await watcher.fetchval(_UNFINISHED):
            await asyncio.sleep(0.01)
        seconds = time.perf_counter() - began
        server_cpu += _server_cpu(postmaster_id)
        worker_cpu += await processes.cpu_seconds()
    await processes.ended()
    claims = await watcher.fetchval(_CLAIMS, WARM_UP * count)
    completes = await watcher.fetchval(_COMPLETES, WARM_UP * count)
    share = await watcher.fetchval(_SHARE, WARM_UP * count)
    await watcher.close()
    return {
        "processes": count,
        "drain_per_s": round(N / seconds),
        "python_cpu_us": round(1e6 * worker_cpu / N, 1),
        "postgres_cpu_us": round(1e6 * server_cpu / N, 1),
        "executions_per_claim": round(N / claims),
        "executions_per_complete": round(N / completes),
        "largest_share": round(share / N, 2),
    }


async def submit(app: App, count: int) -> None:
    for start in range(0, count, 500):
        await app.tasks["bench.noop"].submit_many([(i,) for i in range(start, start + 500)])


_WORKERS = "select count(*) from ff.worker"
_CLAIMS = """
    select count(distinct lease_id)
    from (select lease_id from ff.event where kind = 'claimed' order by event_id offset $1) e
    """
_COMPLETES = """
    select count(distinct xid::text)
    from (select xid from ff.event where kind = 'completed' order by event_id offset $1) e
    """
_SHARE = """
    select max(n) from (
      select count(*) as n
      from (select worker_instance_id from ff.event where kind = 'claimed'
            order by event_id offset $1) e
      group by e.worker_instance_id) g
    """
_UNFINISHED = """
    select exists (
      select from ff.execution where partition_key = 0 and phase = 'runnable'
        and eligibility = 'eligible_now')
      or exists (select from ff.execution where partition_key = 0 and due_at is not null)
    """


async def measure(*, quick: bool = False) -> list[Verdict]:
    sys.path.insert(0, str(HERE / "peers"))
    runs = int(os.environ.get("BENCH_RUNS", "2" if quick else "5"))
    found: dict[int, list[dict[str, Any]]] = {count: [] for count in PROCESSES}
    async with server() as admin:
        os.environ.setdefault("BENCH_DSN", admin)
        postmaster_id = await postmaster(admin)
        for run in range(runs):
            for count in PROCESSES if run % 2 == 0 else PROCESSES[::-1]:
                say(f"run {run + 1} of {runs}: {count} (load {os.getloadavg()[0]:.1f})")
                async with database(admin, "bench_processes") as url:
                    line = await drain(url, count, postmaster_id)
                print(json.dumps(line), flush=True)
                found[count].append(line)
    verdicts = []
    for count in PROCESSES:
        rates = [line["drain_per_s"] for line in found[count]]
        print(
            f"{count} processes: {median(rates):.0f}/s ({min(rates)} to {max(rates)}), CPU us "
            f"{median(line['python_cpu_us'] for line in found[count]):.1f} Python, "
            f"{median(line['postgres_cpu_us'] for line in found[count]):.1f} Postgres"
        )
        if count > 1:
            pairs = [
                more["drain_per_s"] / one["drain_per_s"]
                for one, more in zip(found[1], found[count], strict=True)
            ]
            verdicts.append(
                Rule(f"{count} worker processes against 1", 0.9, 1.1).judge(median(pairs))
            )
    return verdicts


if __name__ == "__main__":
    if "--work" in sys.argv:
        asyncio.run(work())
    else:
        sys.exit(conclude(asyncio.run(measure(quick="--quick" in sys.argv))))
