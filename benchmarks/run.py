"""Compares flowfabric with its peers on one server: `python benchmarks/run.py [--quick] [--all]`.

Every run of every side gets a fresh database. The sides alternate, and the order alternates too.
BENCH_N, BENCH_CONC, BENCH_LAT and BENCH_RUNS change the size. BENCH_DSN names a server to use
instead of a temporary one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from harness import (
    HERE,
    Rule,
    Verdict,
    conclude,
    database,
    environment,
    postmaster,
    say,
    server,
)

FIGURES = (
    "submit_single_per_s",
    "submit_bulk_per_s",
    "drain_per_s",
    "lat_p50_ms",
    "lat_p99_ms",
)
# The processor time of client and server together, per execution.
CPU_FIGURES = ("single_cpu_us", "bulk_cpu_us", "drain_cpu_us")

# `pgqueuer-500` is PgQueuer with batches of 500 instead of 100.
PEERS = {
    "pgqueuer": (".venv-bench", ["pgqueuer", "asyncpg"]),
    "pgqueuer-500": (".venv-bench", ["pgqueuer", "asyncpg"]),
    "procrastinate": (".venv-bench-procrastinate", ["procrastinate"]),
    "absurd": (".venv-bench-absurd", ["absurd-sdk", "absurdctl"]),
    "awa": (".venv-bench-awa", ["awa-pg"]),
    "chancy": (".venv-bench-chancy", ["chancy"]),
    "dbos": (".venv-bench-dbos", ["dbos"]),
}

Line = dict[str, Any]


def python_of(side: str) -> str:
    if side == "flowfabric":
        return sys.executable
    name, packages = PEERS[side]
    return str(environment(name, packages))


def run_once(
    side: str, python: str, url: str, size: dict[str, str], kind: str = "bench"
) -> Line | None:
    """Run one side in its own process; return None if the peer does not work here."""
    name, _, batch = side.partition("-")
    script = HERE / ("" if side == "flowfabric" else "peers") / f"{name}_{kind}.py"
    found = subprocess.run(
        [python, str(script)],
        env={**os.environ, **size, "BENCH_DSN": url, "BENCH_BATCH": batch},
        capture_output=True,
        text=True,
    )
    lines = [line for line in found.stdout.splitlines() if line.startswith('{"peer"')]
    if found.returncode == 0 and lines:
        print(lines[-1], flush=True)
        return json.loads(lines[-1])
    say(f"{side} failed ({found.returncode}):\n{found.stdout[-1000:]}{found.stderr[-2000:]}")
    if side == "flowfabric" or name == "pgqueuer":
        raise SystemExit(2)
    return None


async def side_by_side(
    admin: str, sides: list[str], runs: int, size: dict[str, str], kind: str = "bench"
) -> dict[str, list[Line]]:
    pythons = {side: python_of(side) for side in sides}
    size = {**size, "BENCH_POSTMASTER": await postmaster(admin)}
    lines: dict[str, list[Line]] = {side: [] for side in sides}
    for run in range(runs):
        for side in sides if run % 2 == 0 else sides[::-1]:
            say(f"run {run + 1} of {runs}: {side} (load {os.getloadavg()[0]:.1f})")
            async with database(admin, f"bench_{side}") as url:
                line = run_once(side, pythons[side], url, size, kind)
            if line is not None:
                lines[side].append(line)
    return lines


def unsteady(lines: dict[str, list[Line]], figures: Sequence[str] = FIGURES[:3]) -> list[str]:
    """Return the figures that varied by more than half between runs. They allow no verdict."""
    found = []
    for side, of_side in lines.items():
        for figure in figures:
            values = [line[figure] for line in of_side if line[figure] is not None]
            if values and max(values) > 1.5 * min(values):
                found.append(f"{side} {figure} {min(values)} to {max(values)}")
    return found


def middle(lines: list[Line], figure: str) -> float | None:
    values = [line[figure] for line in lines if line.get(figure) is not None]
    return median(values) if values else None


def compare(lines: dict[str, list[Line]]) -> list[Verdict]:
    """Print the medians, and compare ours with the bars."""
    found = {
        side: {figure: middle(of_side, figure) for figure in (*FIGURES, *CPU_FIGURES)}
        for side, of_side in lines.items()
    }
    print(f"\n{'medians':<34}" + "".join(f"{figure:>22}" for figure in (*FIGURES, *CPU_FIGURES)))
    for side, values in found.items():
        name = lines[side][0]["peer"] if lines[side] else f"{side} (did not run)"
        cells = "".join(f"{v if v is None else round(v, 2)!s:>22}" for v in values.values())
        print(f"{name:<34}{cells}")
    ours = found["flowfabric"]
    verdicts = []

    def against(
        side: str, figure: str, subject: str, bar: float, goal: float, at_most: bool = False
    ) -> None:
        theirs = found.get(side, {}).get(figure)
        if theirs:
            rule = Rule(f"{subject}, against {side}", bar, goal, at_most)
            # Under a changing load, neighbouring runs compare better than medians of all runs; the
            # worse of the two results counts.
            pairs = [
                mine[figure] / other[figure]
                for mine, other in zip(lines["flowfabric"], lines[side], strict=False)
            ]
            worse = max if at_most else min
            verdicts.append(rule.judge(worse(ours[figure] / theirs, median(pairs))))
            print(
                f"{subject}, against {side}: of medians {ours[figure] / theirs:.2f}, of "
                f"neighbouring runs {median(pairs):.2f} ({min(pairs):.2f} to {max(pairs):.2f})"
            )

    def best(figure: str, better: Callable[..., str] = max) -> str:
        """Return the batch size at which PgQueuer does better."""
        sides = [side for side in found if side.startswith("pgqueuer") and found[side][figure]]
        return better(sides or ["pgqueuer"], key=lambda side: found[side][figure])

    against(best("drain_per_s"), "drain_per_s", "drain", 1.7, 2.2)
    against(
        best("drain_cpu_us", min), "drain_cpu_us", "CPU of a drained execution", 0.55, 0.45, True
    )
    against(
        best("submit_single_per_s"), "submit_single_per_s", "single submits, 16 callers", 4.5, 6.0
    )
    against("absurd", "submit_single_per_s", "single submits, 16 callers", 3.0, 4.0)
    against(best("submit_bulk_per_s"), "submit_bulk_per_s", "bulk submit", 1.1, 1.5)
    for figure, bar, goal in (("lat_p50_ms", 2.5, 1.5), ("lat_p99_ms", 8, 5)):
        rule = Rule(f"idle pickup latency {figure[4:7]}", bar, goal, at_most=True, unit="ms")
        verdicts.append(rule.judge(ours[figure]))
    return verdicts


async def jobs_side_by_side(
    sides: list[str], runs: int, size: dict[str, str]
) -> dict[str, list[Line]]:
    async with server() as admin:
        return await side_by_side(admin, sides, runs, size)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="Run a short version, about 20 s.")
    parser.add_argument(
        "--all", action="store_true", help="Run the long benchmarks too (half an hour)."
    )
    parser.add_argument(
        "--peers",
        default="",
        help=f"Add all peers, or some, separated by commas: {', '.join(list(PEERS)[2:])}",
    )
    arguments = parser.parse_args()
    asked = list(PEERS) if arguments.peers == "all" else arguments.peers.split(",")
    more = [peer for peer in asked if peer and not peer.startswith("pgqueuer")]
    if unknown := set(more) - set(PEERS):
        parser.error(f"no such peer: {', '.join(sorted(unknown))}")
    size = {"BENCH_N": "20000", "BENCH_CONC": "100", "BENCH_LAT": "1000"}
    if arguments.quick:
        size = {"BENCH_N": "5000", "BENCH_CONC": "100", "BENCH_LAT": "100"}
    size = {name: os.environ.get(name, value) for name, value in size.items()}
    runs = int(os.environ.get("BENCH_RUNS", "2" if arguments.quick else "5"))
    sides = ["flowfabric", "pgqueuer", "pgqueuer-500", *more]
    lines = asyncio.run(jobs_side_by_side(sides, runs, size))
    verdicts = compare(lines)
    if arguments.all:
        import idle
        import reconcilers
        import scale
        import sustained

        for module in (scale, idle, reconcilers, sustained):
            verdicts += asyncio.run(module.measure(quick=arguments.quick))
    code = conclude(verdicts)
    if moved := unsteady(lines):
        print("\nUNSTEADY, do not quote: " + "; ".join(moved))
    return code


if __name__ == "__main__":
    sys.exit(main())
