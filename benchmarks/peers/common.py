"""Shared harness: every peer submits N no-op jobs, drains them with one worker process, then
measures submit -> start latency on an idle worker. Prints one JSON line."""

from __future__ import annotations

import asyncio
import gc
import json
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

# For every side alike: nobody is measured by the size of what he imports.
gc.collect()
gc.freeze()

DSN = os.environ["BENCH_DSN"]
N = int(os.environ.get("BENCH_N", "5000"))
CONC = int(os.environ.get("BENCH_CONC", "50"))
LAT = int(os.environ.get("BENCH_LAT", "100"))


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


async def concurrently(
    call: Callable[[Any], Awaitable[object]], items: Iterable[Any], callers: int = 16
) -> None:
    """Call for every item, from so many callers at once."""
    rest = iter(items)

    async def caller() -> None:
        for item in rest:
            await call(item)

    await asyncio.gather(*(caller() for _ in range(callers)))
