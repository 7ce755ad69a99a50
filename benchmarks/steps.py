"""Measures the cost of a step: `python benchmarks/steps.py [--quick] [--peers]`

First, one execution runs 1 000 no-op steps, one after another. A step is one round trip with a
commit. Then 100 executions of 20 steps run at once, and their records share transactions. Then one
execution runs 20 000 steps, timed by tenths. Its handler starts over, finds all steps recorded, and
is timed again.

With `--peers`, DBOS and Absurd run the same on one server, in turn, with at most 20 executions at a
time. The time counts from the first submission until all executions have ended in the database.
Then a proxy counts the round trips of a step of each side. BENCH_STEPS, BENCH_EXECUTIONS,
BENCH_STEPS_EACH, BENCH_CONC and BENCH_RUNS change the size.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time

from flowfabric import App, Context
from flowfabric.db.connection import open_connection
from flowfabric.db.migrate import migrate
from harness import Rule, Verdict, conclude, database, say, server
from roundtrips import counted
from run import Line, middle, python_of, run_once, side_by_side, unsteady

STEPS = 1000
RUNS, STEPS_OF_RUN = 100, 20
LONG_STEPS, PARTS = 20_000, 10
SIDES = ["flowfabric", "dbos", "absurd"]
FIGURES = ("steps_single_per_s", "steps_many_per_s")


async def nothing() -> None: ...


def tasks(app: App) -> None:
    @app.task(name="bench.row")
    async def row(ctx: Context, steps: int) -> float:
        started = time.perf_counter()
        for n in range(steps):
            await ctx.step(f"step-{n}", nothing)
        return time.perf_counter() - started

    @app.task(name="bench.long")
    async def long(ctx: Context, steps: int) -> list[float]:
        """Return the seconds of each tenth of the steps, then the seconds of the second run, which
        finds all steps recorded.
        """
        took = []
        started = time.perf_counter()
        for part in range(PARTS):
            for n in range(steps // PARTS):
                await ctx.step(f"step-{part}-{n}", nothing)
            took.append(time.perf_counter() - started)
            started = time.perf_counter()
        live = await ctx.step("took", lambda: took)
        await ctx.sleep(0.1)
        return [*live, sum(took)]

    @app.task(name="bench.side_by_side")
    async def side_by_side(ctx: Context, steps: int) -> float:
        started = time.perf_counter()
        await asyncio.gather(*(ctx.step(f"step-{n}", nothing) for n in range(steps)))
        return time.perf_counter() - started


async def rounds(app: App, task: str, runs: int, steps: int, number: int) -> list[float]:
    """Return the seconds from the first submission to the last result, per round."""
    found = []
    for _ in range(number):
        started = time.perf_counter()
        submitted = await asyncio.gather(*(app.submit(task, steps) for _ in range(runs)))
        await asyncio.gather(*(run.result(timeout=120) for run in submitted))
        found.append(time.perf_counter() - started)
    return found


async def measure(*, quick: bool = False) -> list[Verdict]:
    number = 1 if quick else 5
    async with server() as admin, database(admin, "bench_steps") as url:
        async with open_connection(url) as connection:
            await migrate(connection)
        async with App(database_url=url) as app:
            tasks(app)
            worker = await app.worker(concurrency=RUNS)
            running = asyncio.create_task(worker.run())
            await rounds(app, "bench.row", 1, 20, 1)
            say(f"{STEPS} steps in a row, {number} times")
            in_a_row = []
            for _ in range(number):
                run = await app.submit("bench.row", STEPS)
                in_a_row.append(float(await run.result(timeout=120)))
            say(f"{STEPS} steps side by side")
            run = await app.submit("bench.side_by_side", STEPS)
            beside = float(await run.result(timeout=120))
            say(f"{RUNS} executions of {STEPS_OF_RUN} steps, {number} times")
            crowd = await rounds(app, "bench.row", RUNS, STEPS_OF_RUN, number)
            long_steps = LONG_STEPS // (10 if quick else 1)
            say(f"{long_steps} steps in one execution, twice: live and recorded")
            run = await app.submit("bench.long", long_steps)
            *parts, replayed = await run.result(timeout=600)
            worker.stop()
            await running
    rates = [long_steps / PARTS / part for part in parts]
    seconds = statistics.median(in_a_row)
    line = {
        "steps_in_a_row": STEPS,
        "seconds": round(seconds, 3),
        "ms_per_step": round(1000 * seconds / STEPS, 3),
        "side_by_side_seconds": round(beside, 3),
        "executions": RUNS,
        "steps_each": STEPS_OF_RUN,
        "steps_per_s": round(RUNS * STEPS_OF_RUN / statistics.median(crowd)),
        "long_steps": long_steps,
        "long_steps_per_s_by_tenths": [round(rate) for rate in rates],
        "recorded_steps_per_s": round(long_steps / replayed),
    }
    print(json.dumps(line), flush=True)
    last = statistics.median(parts[-3:]) / statistics.median(parts[:3])
    verdicts = [
        Rule("1000 no-op steps in one execution", 2.0, 1.0, at_most=True, unit="s").judge(seconds),
        Rule("steps/s, slowest tenth of a long execution", 800, 1000, unit="").judge(min(rates)),
        Rule("steps/s, recorded, handler starts over", 800, 5000, unit="").judge(
            long_steps / replayed
        ),
    ]
    if not quick:
        rule = Rule("cost of a step: last tenths of 20000 / first", 1.2, 1.1, at_most=True)
        verdicts.append(rule.judge(last))
    return verdicts


async def round_trips(admin: str, side: str, quick: bool) -> float | None:
    """Return the round trips that a side needs for one more step of an execution."""
    python, steps = python_of(side), (20, 120 if quick else 520)
    found = []
    for number in steps:
        size = {"BENCH_STEPS": f"{number}", "BENCH_EXECUTIONS": "1", "BENCH_STEPS_EACH": "1"}
        async with database(admin, f"bench_{side}") as url, counted(url) as counter:
            line = await asyncio.to_thread(
                run_once, side, python, counter.url, {**size, "BENCH_CONC": "2"}, "steps_bench"
            )
        if line is None:
            return None
        found.append(counter.round_trips / line.get("measurements", 1))
    return (found[1] - found[0]) / (steps[1] - steps[0])


def compare(lines: dict[str, list[Line]], trips: dict[str, float | None]) -> None:
    """Print the medians, and the ratios of flowfabric to its peers."""
    print(f"\n{'medians':<34}" + "".join(f"{figure:>22}" for figure in FIGURES), end="")
    print(f"{'round_trips_of_a_step':>24}")
    for side, of_side in lines.items():
        name = of_side[0]["peer"] if of_side else f"{side} (did not run)"
        cells = "".join(f"{middle(of_side, figure)!s:>22}" for figure in FIGURES)
        of_step = trips[side]
        print(f"{name:<34}{cells}{'-' if of_step is None else f'{of_step:.2f}':>24}")
    for side in SIDES[1:]:
        for figure in FIGURES:
            ratios = [
                mine[figure] / other[figure]
                for mine, other in zip(lines["flowfabric"], lines[side], strict=False)
            ]
            if ratios:
                of_medians = middle(lines["flowfabric"], figure) / middle(lines[side], figure)
                print(
                    f"{figure}, ours / {side}: of medians {of_medians:.2f}, of neighbouring runs "
                    f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
                )


async def beside_peers(*, quick: bool = False) -> list[Verdict]:
    size = {
        "BENCH_STEPS": "100" if quick else f"{STEPS}",
        "BENCH_EXECUTIONS": "40" if quick else f"{RUNS}",
        "BENCH_STEPS_EACH": f"{STEPS_OF_RUN}",
        "BENCH_CONC": "20",
    }
    size = {name: os.environ.get(name, value) for name, value in size.items()}
    runs = int(os.environ.get("BENCH_RUNS", "1" if quick else "3"))
    async with server() as admin:
        lines = await side_by_side(admin, SIDES, runs, size, "steps_bench")
        say("counting round trips through a proxy: ignore the rates of these lines")
        trips = {side: await round_trips(admin, side, quick) for side in SIDES}
    compare(lines, trips)
    if moved := unsteady(lines, FIGURES):
        print("\nUNSTEADY, do not quote: " + "; ".join(moved))
    if quick or int(size["BENCH_STEPS"]) < STEPS:
        return []  # the work around the steps would dominate
    seconds = STEPS / middle(lines["flowfabric"], FIGURES[0])
    return [
        Rule("1000 no-op steps in one execution", 2.0, 1.0, at_most=True, unit="s").judge(seconds),
        # The figure includes calls that the worker makes for itself, such as claims.
        Rule("round trips of a step", 1.1, None, at_most=True, unit="").judge(trips["flowfabric"]),
    ]


if __name__ == "__main__":
    chosen = beside_peers if "--peers" in sys.argv else measure
    sys.exit(conclude(asyncio.run(chosen(quick="--quick" in sys.argv))))
