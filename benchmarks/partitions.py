"""Compares several partitions with one, by CPU: `python benchmarks/partitions.py [--idle]`

Each run gets a fresh database; the numbers of partitions take turns. Every number is compared with
the first one of the same round, and the median of the ratios must meet the bar. BENCH_N, BENCH_CONC
and BENCH_RUNS change the size. BENCH_NUMBERS changes the numbers of partitions (1,8,32). With
--idle, it measures the load of 100 idle workers instead.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from statistics import median
from typing import Any

from harness import ROOT, Rule, Verdict, conclude, database, postmaster, say, server
from idle import measure_idle
from revisions import PHASES, run_once

NUMBERS = [int(one) for one in os.environ.get("BENCH_NUMBERS", "1,8,32").split(",")]
RUNS = int(os.environ.get("BENCH_RUNS", "3"))
BUSY_BAR = 1.15
IDLE_BAR = 2.0
Figures = dict[int, list[dict[str, Any]]]


async def busy() -> Figures:
    """Submit and drain with each number of partitions in turn."""
    figures: Figures = {number: [] for number in NUMBERS}
    async with server() as admin:
        size = {
            "BENCH_N": os.environ.get("BENCH_N", "20000"),
            "BENCH_CONC": os.environ.get("BENCH_CONC", "100"),
            "BENCH_LAT": "0",
            "BENCH_POSTMASTER": await postmaster(admin),
        }
        for number in turns():
            async with database(admin, "bench_partitions") as url:
                one = {**size, "BENCH_PARTITIONS": str(number)}
                figures[number].append(run_once(ROOT / "src", url, one))
    return figures


async def idle() -> Figures:
    """Let 100 workers wait for work, with each number of partitions in turn."""
    figures: Figures = {number: [] for number in NUMBERS}
    for number in turns():
        line = await measure_idle(
            seconds=20.0, warm_up=5.0, processes=10, workers=10, partitions=number
        )
        print(line, flush=True)
        figures[number].append(line)
    return figures


def turns() -> Iterator[int]:
    """Yield the numbers of partitions for all rounds. Every second round is in reverse order."""
    for run in range(RUNS):
        for number in NUMBERS if run % 2 == 0 else NUMBERS[::-1]:
            say(f"run {run + 1} of {RUNS}: {number} (load {os.getloadavg()[0]:.1f})")
            yield number


def judge(figures: Figures, phase: str, bar: float) -> list[Verdict]:
    """Compare every number of partitions with the first one, round by round."""
    first, *others = NUMBERS
    return [
        Rule(f"{phase}: P = {number} against P = {first}", bar, None, at_most=True).judge(
            median(
                one[phase] / base[phase]
                for one, base in zip(figures[number], figures[first], strict=True)
            )
        )
        for number in others
    ]


def main() -> int:
    if "--idle" in sys.argv:
        figures, phases, bar = asyncio.run(idle()), ("server_percent",), IDLE_BAR
    else:
        figures, phases, bar = asyncio.run(busy()), tuple(PHASES), BUSY_BAR
    print(f"{'median':<24}" + "".join(f"{f'P = {n}':>12}" for n in NUMBERS))
    for phase in phases:
        medians = (median(one[phase] for one in figures[number]) for number in NUMBERS)
        print(f"{phase:<24}" + "".join(f"{one:>12.2f}" for one in medians))
    return conclude([verdict for phase in phases for verdict in judge(figures, phase, bar)])


if __name__ == "__main__":
    sys.exit(main())
