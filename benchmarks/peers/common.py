"""The shared harness of all peers.

Every peer submits N no-op jobs and drains them with one worker process. Then it measures the
latency from submit to start on an idle worker. It prints one JSON line.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

# Collect garbage now, on every side, so that large imports do not slow the collector later.
gc.collect()
gc.freeze()

DSN = os.environ["BENCH_DSN"]
POSTMASTER = os.environ.get("BENCH_POSTMASTER")
N = int(os.environ.get("BENCH_N", "5000"))
CONC = int(os.environ.get("BENCH_CONC", "50"))
LAT = int(os.environ.get("BENCH_LAT", "100"))
# How many jobs a peer takes at once, if it has such a setting.
BATCH = int(os.environ.get("BENCH_BATCH") or CONC)
# First, one execution runs STEPS steps. Then EXECUTIONS executions run STEPS_EACH steps each.
STEPS = int(os.environ.get("BENCH_STEPS", "1000"))
EXECUTIONS = int(os.environ.get("BENCH_EXECUTIONS", "100"))
STEPS_EACH = int(os.environ.get("BENCH_STEPS_EACH", "20"))


class Phase:
    """Measure one phase: seconds on the clock, and processor time of this process and the server.

    BENCH_POSTMASTER is the process id of the server. Without it, no processor time is reported.
    """

    def __init__(self) -> None:
        self._started, self._cpu = time.perf_counter(), cpu_seconds()

    def end(self, at: float | None = None) -> tuple[float, float | None]:
        """End the phase now or at `at`. Return its clock seconds and processor seconds."""
        seconds = (at or time.perf_counter()) - self._started
        return seconds, None if POSTMASTER is None else cpu_seconds() - self._cpu


def cpu_seconds() -> float:
    """Return the processor time used so far by this process and by all processes of the server."""
    return time.process_time() + (0.0 if POSTMASTER is None else _server_cpu(POSTMASTER))


def _server_cpu(postmaster: str) -> float:
    ticks = sum(_stat(postmaster)[2:4])  # children that have ended
    for folder in os.listdir("/proc"):
        if folder.isdigit():
            try:
                user, system, _, _, parent = _stat(folder)
            except (FileNotFoundError, ProcessLookupError):
                continue  # the process has just ended, and the postmaster counts it from now on
            if str(parent) == postmaster:
                ticks += user + system
    return ticks / os.sysconf("SC_CLK_TCK")


def _stat(pid: str) -> tuple[int, int, int, int, int]:
    """Return the ticks of a process and its ended children (user, system), and its parent's id."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (*map(int, fields[11:15]), int(fields[1]))  # type: ignore[return-value]


def dsn_with_host() -> str:
    """Return the DSN for a driver that refuses an empty host; the query still names the socket."""
    parts = urlsplit(DSN)
    if parts.hostname:
        return DSN
    return urlunsplit(parts._replace(netloc=f"{parts.netloc}localhost"))


def report(
    name: str,
    submit_s: float | None,
    drain_s: float,
    lats: Sequence[float],
    bulk_s: float | None = None,
    n: int | None = None,
    cpu: dict[str, float | None] | None = None,
) -> None:
    """Print the line of output. `cpu` holds the processor seconds of single, drain and bulk."""
    n = n or N
    lats = sorted(lats)

    def quantile(share: float) -> float | None:
        if not lats:
            return None
        return round(1000 * lats[min(len(lats) - 1, int(share * len(lats)))], 2)

    line = {
        "peer": name,
        "n": n,
        "submit_single_per_s": round(n / submit_s) if submit_s else None,
        "submit_bulk_per_s": round(n / bulk_s) if bulk_s else None,
        "drain_per_s": round(n / drain_s),
        "lat_p50_ms": quantile(0.5),
        "lat_p99_ms": quantile(0.99),
        **{
            f"{phase}_cpu_us": round(1e6 * seconds / n, 1)
            for phase, seconds in (cpu or {}).items()
            if seconds is not None
        },
    }
    print(json.dumps(line), flush=True)


async def time_steps(run: Callable[[int, int], Awaitable[None]]) -> tuple[float, float]:
    """Time one execution of STEPS steps, then EXECUTIONS of STEPS_EACH steps at once.

    `run` takes the number of executions and the number of steps of each, submits them, runs at most
    CONC at a time and returns when all have ended in the database.
    """
    found = []
    await run(CONC, 1)  # warms up connections, plans and threads
    for executions, steps in ((1, STEPS), (EXECUTIONS, STEPS_EACH)):
        t = time.perf_counter()
        await run(executions, steps)
        found.append(time.perf_counter() - t)
    return found[0], found[1]


def report_steps(name: str, single_s: float, many_s: float, **more: object) -> None:
    """Print the line of output of a steps benchmark. `more` is added to the figures."""
    line = {
        "peer": name,
        "steps_single_per_s": round(STEPS / single_s),
        "steps_many_per_s": round(EXECUTIONS * STEPS_EACH / many_s),
        **more,
    }
    print(json.dumps(line), flush=True)


def check_steps(executions: int, steps: int, times: int = 1) -> None:
    """Check that all executions and steps of `time_steps` are stored."""
    wanted = (1 + CONC + EXECUTIONS, CONC + STEPS + EXECUTIONS * STEPS_EACH)
    if (executions, steps) != (times * wanted[0], times * wanted[1]):
        raise SystemExit(f"stored: {executions} executions, {steps} steps; {times} x {wanted} run")


async def concurrently(
    call: Callable[[Any], Awaitable[object]], items: Iterable[Any], callers: int = 16
) -> None:
    """Call a function for every item, from several callers at once."""
    rest = iter(items)

    async def caller() -> None:
        for item in rest:
            await call(item)

    await asyncio.gather(*(caller() for _ in range(callers)))
