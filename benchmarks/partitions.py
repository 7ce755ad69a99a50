"""Compares several partitions with one, by CPU: `python benchmarks/partitions.py [--idle]`

Each run gets a fresh database; the numbers of partitions take turns. BENCH_N, BENCH_CONC and
BENCH_RUNS change the size. BENCH_NUMBERS changes the numbers of partitions (1,8,32). With --idle,
it measures the load of 100 idle workers instead.
"""

from __future__ import annotations

import asyncio
import os
import sys
from statistics import median
from typing import Any

from harness import ROOT, database, postmaster, say, server
from idle import measure_idle
from revisions import PHASES, run_once

NUMBERS = [int(one) for one in os.environ.get("BENCH_NUMBERS", "1,8,32").split(",")]


async def busy(runs: int) -> dict[int, list[dict[str, Any]]]:
    """Submit and drain with each number of partitions in turn."""
    figures: dict[int, list[dict[str, Any]]] = {number: [] for number in NUMBERS}
    async with server() as admin:
        size = {
            "BENCH_N": os.environ.get("BENCH_N", "20000"),
            "BENCH_CONC": os.environ.get("BENCH_CONC", "100"),
            "BENCH_LAT": "0",
            "BENCH_POSTMASTER": await postmaster(admin),
        }
        for run in range(runs):
            for number in NUMBERS if run % 2 == 0 else NUMBERS[::-1]:
                say(f"run {run + 1} of {runs}: {number} (load {os.getloadavg()[0]:.1f})")
                async with database(admin, "bench_partitions") as url:
                    one = {**size, "BENCH_PARTITIONS": str(number)}
                    figures[number].append(run_once(ROOT / "src", url, one))
    return figures


def main() -> int:
    if "--idle" in sys.argv:
        for number in NUMBERS:
            line = asyncio.run(
                measure_idle(seconds=20.0, warm_up=5.0, processes=10, workers=10, partitions=number)
            )
            print(line, flush=True)
        return 0
    figures = asyncio.run(busy(int(os.environ.get("BENCH_RUNS", "3"))))
    print(f"{'CPU us per execution':<24}" + "".join(f"{f'P = {n}':>24}" for n in NUMBERS))
    for phase in PHASES:
        cells = []
        for number in NUMBERS:
            ratios = [
                one[phase] / first[phase]
                for one, first in zip(figures[number], figures[NUMBERS[0]], strict=True)
            ]
            cells.append(
                f"{median(one[phase] for one in figures[number]):>15.1f} × {median(ratios):.3f}"
            )
        print(f"{phase:<24}" + "".join(f"{cell:>24}" for cell in cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
