"""Server CPU of a submit, a claim and a complete, by batch size: `calls.py [REV] [REV]`.

Counts the processor time of the one backend that serves the calls (/proc/PID/schedstat, in
nanoseconds), so other load on the machine has little effect. With two revisions (commits, or the
working tree), the revisions take turns. Prints the smallest of BENCH_RUNS rounds, in us per call.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import asyncpg

from flowfabric.client import FlowFabric
from flowfabric.core.execution import Alike, Claimed, Route, Submission
from flowfabric.core.ids import mint
from flowfabric.db.migrate import migrate
from harness import database, say, server
from revisions import WORKING_TREE, source

SIZES = tuple(map(int, os.environ.get("BENCH_SIZES", "1,16,100,500").split(",")))
# The number of calls in a round. With large batches it is lower: at most 20 000 executions a round.
CALLS = int(os.environ.get("BENCH_CALLS", "2000"))
OPERATIONS = ("submit", "claim", "complete")


def calls_of(size: int) -> int:
    return max(min(CALLS, 8000 // size), 8)


def backend_seconds(backends: list[int]) -> float:
    """Return the processor time of some backends."""
    nanoseconds = 0
    for backend in backends:
        with open(f"/proc/{backend}/schedstat") as file:
            nanoseconds += int(file.read().split()[0])
    return nanoseconds / 1e9


class Round:
    """Submits, claims and completes with every batch size in one backend, and counts its CPU."""

    def __init__(self, client: FlowFabric, watcher: asyncpg.Connection) -> None:
        self._client = client
        self._watcher = watcher

    async def seconds(self) -> float:
        """Return the processor time of the backends of the client."""
        rows = await self._watcher.fetch(
            "select pid from pg_stat_activity where pid <> pg_backend_pid() "
            "and datname = current_database() and backend_type = 'client backend'"
        )
        return backend_seconds([row["pid"] for row in rows])

    async def submit(self, lane: str, size: int, calls: int) -> None:
        route = Route("default", lane, "bench.work")
        shared = Submission(id=mint(), route=route, payload=b"null")
        for _ in range(calls):
            ids = [mint().uuid for _ in range(size)]
            await self._client.executions.submit_alike(
                Alike(shared, [*ids], [b'{"i": 12345}'] * size)
            )

    async def claim(self, lane: str, size: int, calls: int) -> list[list[Claimed]]:
        batches: list[list[Claimed]] = []
        floor = None
        for _ in range(calls):
            claimed = await self._client.executions.claim(
                worker_id="bench",
                worker_instance_id="bench-1",
                tasks=["bench.work"],
                lanes=[lane],
                limit=size,
                lease_ttl=timedelta(minutes=5),
                floor=floor,
                reports_starts=True,
            )
            if len(claimed) != size:
                raise SystemExit(f"claimed {len(claimed)} of {size}")
            floor = (claimed[-1].rank, claimed[-1].order_at, claimed[-1].execution_id)
            batches.append(claimed)
        return batches

    async def complete(self, batches: list[list[Claimed]]) -> None:
        for batch in batches:
            complete = self._client.executions.complete
            await asyncio.gather(*(complete(claimed, b"null") for claimed in batch))

    async def of_size(self, size: int, calls: int) -> dict[str, float]:
        """Return the microseconds per call, for each operation."""
        lane = f"size-{size}"
        times = [await self.seconds()]
        await self.submit(lane, size, calls)
        times.append(await self.seconds())
        batches = await self.claim(lane, size, calls)
        times.append(await self.seconds())
        await self.complete(batches)
        times.append(await self.seconds())
        return {
            f"{operation} {size}": 1e6 * (after - before) / calls
            for operation, before, after in zip(OPERATIONS, times, times[1:], strict=False)
        }


async def one_round(url: str) -> dict[str, float]:
    """Measure every batch size on one database."""
    watcher = await asyncpg.connect(url)
    await migrate(watcher)
    found: dict[str, float] = {}
    async with FlowFabric(url, pool_size=1) as client:
        for size in SIZES:
            one = Round(client, watcher)
            await one.of_size(size, 8)
            found |= await one.of_size(size, calls_of(size))
            await watcher.execute("vacuum analyze ff.execution")
    await watcher.close()
    return found


def run_once(src: Path, url: str) -> dict[str, float]:
    """Measure one revision in a process of its own."""
    finished = subprocess.run(
        [sys.executable, __file__, "--round"],
        env={**os.environ, "BENCH_DSN": url, "PYTHONPATH": str(src)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(finished.stdout.splitlines()[-1])
    return found


async def measure(revisions: list[str]) -> dict[str, list[float]]:
    """Print the figures of the revisions side by side, and return them."""
    runs = int(os.environ.get("BENCH_RUNS", "3"))
    found: dict[str, list[dict[str, float]]] = {revision: [] for revision in revisions}
    with tempfile.TemporaryDirectory(prefix="ffrev-") as folder:
        sources = {
            revision: source(revision, Path(folder, str(number)))
            for number, revision in enumerate(revisions)
        }
        async with server() as admin:
            for run in range(runs):
                for revision in revisions if run % 2 == 0 else revisions[::-1]:
                    say(f"run {run + 1} of {runs}: {revision} (load {os.getloadavg()[0]:.1f})")
                    async with database(admin, "bench_calls") as url:
                        found[revision].append(run_once(sources[revision], url))
    figures: dict[str, list[float]] = {}
    print(f"{'us of server CPU a call':<26}" + "".join(f"{revision:>16}" for revision in revisions))
    for operation in OPERATIONS:
        for size in SIZES:
            name = f"{operation} {size}"
            best = figures[name] = [
                min(one[name] for one in found[revision]) for revision in revisions
            ]
            ratio = f"{best[-1] / best[0]:>8.2f}" if len(best) > 1 else ""
            print(f"{name:<26}" + "".join(f"{value:>16.0f}" for value in best) + ratio)
    return figures


if __name__ == "__main__":
    if "--round" in sys.argv:
        print(json.dumps(asyncio.run(one_round(os.environ["BENCH_DSN"]))))
    else:
        asyncio.run(measure(sys.argv[1:] or [WORKING_TREE]))
