"""Shared harness: every peer submits N no-op jobs, drains them with one worker process, then
measures submit -> start latency on an idle worker. Prints one JSON line."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

# For every side alike: nobody is measured by the size of what he imports.
gc.collect()
gc.freeze()

DSN = os.environ["BENCH_DSN"]
N = int(os.environ.get("BENCH_N", "5000"))
CONC = int(os.environ.get("BENCH_CONC", "50"))
LAT = int(os.environ.get("BENCH_LAT", "100"))
# Of the steps: so many in one execution, then so many executions of so many steps.
STEPS = int(os.environ.get("BENCH_STEPS", "1000"))
EXECUTIONS = int(os.environ.get("BENCH_EXECUTIONS", "100"))
STEPS_EACH = int(os.environ.get("BENCH_STEPS_EACH", "20"))


def report(
    name: str,
    submit_s: float | None,
    drain_s: float,
    lats: Sequence[float],
    bulk_s: float | None = None,
    n: int | None = None,
) -> None:
    """The one line of output."""
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
    }
    print(json.dumps(line), flush=True)


async def time_steps(run: Callable[[int, int], Awaitable[None]]) -> tuple[float, float]:
    """Seconds of one execution of STEPS steps, and of EXECUTIONS of STEPS_EACH steps at once.

    `run` takes the number of executions and the number of steps of each, submits them, runs at most
    CONC at a time and returns when all have ended in the database.
    """
    found = []
    await run(CONC, 1)  # connections, plans, threads
    for executions, steps in ((1, STEPS), (EXECUTIONS, STEPS_EACH)):
        t = time.perf_counter()
        await run(executions, steps)
        found.append(time.perf_counter() - t)
    return found[0], found[1]


def report_steps(name: str, single_s: float, many_s: float, **more: object) -> None:
    """The one line of output of a benchmark of steps; `more` stands beside the figures."""
    line = {
        "peer": name,
        "steps_single_per_s": round(STEPS / single_s),
        "steps_many_per_s": round(EXECUTIONS * STEPS_EACH / many_s),
        **more,
    }
    print(json.dumps(line), flush=True)


def check_steps(executions: int, steps: int, times: int = 1) -> None:
    """See that what `time_steps` has run is stored, each time."""
    wanted = (1 + CONC + EXECUTIONS, CONC + STEPS + EXECUTIONS * STEPS_EACH)
    if (executions, steps) != (times * wanted[0], times * wanted[1]):
        raise SystemExit(f"stored: {executions} executions, {steps} steps; {times} x {wanted} run")


async def concurrently(
    call: Callable[[Any], Awaitable[object]], items: Iterable[Any], callers: int = 16
) -> None:
    """Call for every item, from so many callers at once."""
    rest = iter(items)

    async def caller() -> None:
        for item in rest:
            await call(item)

    await asyncio.gather(*(caller() for _ in range(callers)))
