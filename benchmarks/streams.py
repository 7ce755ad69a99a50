"""Measures streams: `python benchmarks/streams.py [--quick]`

1. 100 executions in one worker process send frames of 100 bytes as fast as they can. Each has a
   reader in another process. Measured: frames per second, from the first send until every reader
   has every frame; CPU per frame of worker and server; lost leases.
2. One execution sends 1 000 frames a second. A reader in another process notes when each arrives.
3. 1 000 readers in one process wait. Measured: the connections of the process, and the CPU of the
   server.

`revisions.py` compares executions that do not stream with an earlier revision.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import statistics
import sys
import time
from typing import Any

from flowfabric import App, Context, Frame
from flowfabric.db.connection import open_connection
from flowfabric.db.migrate import migrate
from harness import Rule, Verdict, conclude, database, say, server

EXECUTIONS, FRAMES_EACH, SIZE = 100, 1000, 100
RATE, RATE_SECONDS = 1000, 10
IDLE, IDLE_SECONDS = 1000, 10


def tasks(app: App) -> None:
    @app.task(name="bench.pour")
    async def pour(ctx: Context, frames: int, size: int) -> float:
        text = "x" * size
        started = time.perf_counter()
        for _ in range(frames):
            await ctx.stream.send(text)
            await asyncio.sleep(0)
        return time.perf_counter() - started

    @app.task(name="bench.drip")
    async def drip(ctx: Context, rate: int, seconds: int) -> int:
        """Send frames at an even rate. Each frame holds the time at which it was sent."""
        due = time.perf_counter()
        for _ in range(rate * seconds):
            await ctx.stream.send(f"{time.time():.6f}")
            due += 1 / rate
            if (pause := due - time.perf_counter()) > 0:
                await asyncio.sleep(pause)
        return rate * seconds

    @app.task(name="bench.idle")
    async def idle(ctx: Context) -> None:
        await asyncio.sleep(3600)


async def count(app: App, id: str) -> int:
    number = 0
    async for item in app.get(id).stream():
        number += isinstance(item, Frame)
    return number


def read_all(url: str, ids: list[str], answers: Any) -> None:
    """Follow every stream to its end, in a process of its own."""

    async def follow() -> tuple[list[int], float]:
        async with App(database_url=url) as app:
            answers.put("ready")
            numbers = await asyncio.gather(*(count(app, id) for id in ids))
        return list(numbers), time.process_time()

    answers.put(asyncio.run(follow()))


def read_times(url: str, id: str, answers: Any) -> None:
    """Note how long each frame took to arrive here."""

    async def follow() -> list[float]:
        async with App(database_url=url) as app:
            answers.put("ready")
            return [
                time.time() - float(item.text)
                async for item in app.get(id).stream()
                if isinstance(item, Frame)
            ]

    answers.put(asyncio.run(follow()))


def read_idle(url: str, ids: list[str], answers: Any) -> None:
    """Follow streams in which nothing happens."""

    async def follow() -> None:
        async with App(database_url=url) as app:
            readers = [asyncio.create_task(count(app, id)) for id in ids]
            await asyncio.sleep(3)
            answers.put("ready")
            await asyncio.sleep(IDLE_SECONDS + 1)
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)

    asyncio.run(follow())
    answers.put("done")


def server_cpu(pids: list[int]) -> float:
    """Return the CPU seconds of these backends."""
    ticks = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except FileNotFoundError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


async def backends(url: str) -> list[int]:
    async with open_connection(url) as connection:
        rows = await connection.fetch(
            "select pid from pg_stat_activity where datname = current_database()"
            " and pid <> pg_backend_pid()"
        )
    return [row["pid"] for row in rows]


async def throughput(url: str, app: App, frames: int) -> dict[str, Any]:
    runs = [await app.submit("bench.pour", frames, SIZE) for _ in range(EXECUTIONS)]
    answers: Any = multiprocessing.Queue()
    ids = [str(run.id) for run in runs]
    reader = multiprocessing.Process(target=read_all, args=(url, ids, answers))
    reader.start()
    assert await asyncio.to_thread(answers.get) == "ready"
    worker = await app.worker(concurrency=EXECUTIONS)
    cpu, started = time.process_time(), time.perf_counter()
    running = asyncio.create_task(worker.run())
    await asyncio.gather(*(run.result(timeout=600) for run in runs))
    sent = time.perf_counter() - started
    worker_cpu = time.process_time() - cpu
    pids = await backends(url)
    of_server = server_cpu(pids)
    numbers, reader_cpu = await asyncio.to_thread(answers.get)
    seconds = time.perf_counter() - started
    reader.join()
    worker.stop()
    await running
    assert set(numbers) == {frames}, f"lost or repeated frames: {sorted(set(numbers))}"
    lost = 0
    async with open_connection(url) as connection:
        lost = await connection.fetchval(
            "select count(*) from ff.event where kind in ('lease_expired', 'reclaimed')"
        )
    total = EXECUTIONS * frames
    return {
        "frames_per_s": round(total / seconds),
        "sent_per_s": round(total / sent),
        "worker_us_per_frame": round(1e6 * worker_cpu / total, 1),
        "reader_us_per_frame": round(1e6 * reader_cpu / total, 1),
        "server_us_per_frame": round(1e6 * of_server / total, 1),
        "leases_lost": lost,
    }


async def latency(url: str, app: App, seconds: int) -> dict[str, Any]:
    run = await app.submit("bench.drip", RATE, seconds)
    answers: Any = multiprocessing.Queue()
    reader = multiprocessing.Process(target=read_times, args=(url, str(run.id), answers))
    reader.start()
    assert await asyncio.to_thread(answers.get) == "ready"
    worker = await app.worker(concurrency=1)
    running = asyncio.create_task(worker.run())
    took = sorted(await asyncio.to_thread(answers.get))
    reader.join()
    worker.stop()
    await running
    return {
        "frames": len(took),
        "p50_ms": round(1000 * statistics.median(took), 1),
        "p99_ms": round(1000 * took[int(len(took) * 0.99)], 1),
    }


async def idle(url: str, app: App) -> dict[str, Any]:
    runs = await asyncio.gather(*(app.submit("bench.idle") for _ in range(IDLE)))
    before = set(await backends(url))
    answers: Any = multiprocessing.Queue()
    ids = [str(run.id) for run in runs]
    reader = multiprocessing.Process(target=read_idle, args=(url, ids, answers))
    reader.start()
    assert await asyncio.to_thread(answers.get) == "ready"
    pids = [pid for pid in await backends(url) if pid not in before]
    cpu = server_cpu(pids)
    await asyncio.sleep(IDLE_SECONDS)
    share = (server_cpu(pids) - cpu) / IDLE_SECONDS
    await asyncio.to_thread(answers.get)
    reader.join()
    return {"readers": IDLE, "connections": len(pids), "server_share_of_a_core": round(share, 4)}


async def measure(*, quick: bool = False) -> list[Verdict]:
    multiprocessing.set_start_method("spawn")
    frames = FRAMES_EACH // (10 if quick else 1)
    async with server() as admin, database(admin, "bench_streams") as url:
        async with open_connection(url) as connection:
            await migrate(connection)
        async with App(database_url=url) as app:
            tasks(app)
            say(f"{EXECUTIONS} executions of {frames} frames, a reader on each")
            line = await throughput(url, app, frames)
            say(f"{RATE} frames a second")
            drips = await latency(url, app, 2 if quick else RATE_SECONDS)
            say(f"{IDLE} idle readers")
            still = await idle(url, app)
    print(json.dumps({**line, **drips, **still}), flush=True)
    return [
        Rule("frames/s of 100 bytes, 100 executions", 10_000, 20_000, unit="").judge(
            line["frames_per_s"]
        ),
        Rule("append to reader, p50", 40, 30, at_most=True, unit="ms").judge(drips["p50_ms"]),
        Rule("append to reader, p99", 150, 80, at_most=True, unit="ms").judge(drips["p99_ms"]),
        Rule("1000 idle readers, share of a core", 0.02, 0.01, at_most=True, unit="").judge(
            still["server_share_of_a_core"]
        ),
        Rule("1000 idle readers, connections", 1, 1, at_most=True, unit="").judge(
            still["connections"]
        ),
        Rule("leases lost to streaming", 0, 0, at_most=True, unit="").judge(line["leases_lost"]),
    ]


if __name__ == "__main__":
    sys.exit(conclude(asyncio.run(measure(quick="--quick" in sys.argv))))
