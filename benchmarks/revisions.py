"""Compares two revisions of flowfabric by processor time: `revisions.py REV [REV]`.

The default for the second revision is the working tree. Each run gets a fresh database. The two
revisions alternate, and the order of a pair alternates too. BENCH_N, BENCH_CONC and BENCH_RUNS
change the size.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from harness import HERE, ROOT, database, postmaster, say, server

PHASES = ("single_cpu_us", "bulk_cpu_us", "drain_cpu_us")
WORKING_TREE = "working tree"


def source(revision: str, folder: Path) -> Path:
    """Return the `src` folder of a revision. A commit is exported below `folder`."""
    if revision == WORKING_TREE:
        return ROOT / "src"
    archive = subprocess.run(
        ["git", "archive", revision, "src"], cwd=ROOT, check=True, stdout=subprocess.PIPE
    )
    folder.mkdir()
    subprocess.run(["tar", "-x"], cwd=folder, input=archive.stdout, check=True)
    return folder / "src"


def run_once(src: Path, url: str, size: dict[str, str]) -> dict[str, Any]:
    """Run the benchmark of one revision in its own process."""
    finished = subprocess.run(
        [sys.executable, str(HERE / "flowfabric_bench.py")],
        env={**os.environ, **size, "BENCH_DSN": url, "PYTHONPATH": str(src)},
        capture_output=True,
        text=True,
    )
    lines = [line for line in finished.stdout.splitlines() if line.startswith('{"peer"')]
    if finished.returncode != 0 or not lines:
        raise SystemExit(f"{src} failed:\n{finished.stdout[-1000:]}{finished.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


async def measure(revisions: list[str], runs: int) -> dict[str, list[dict[str, Any]]]:
    """Run the revisions in turn and return the figures of each."""
    figures: dict[str, list[dict[str, Any]]] = {revision: [] for revision in revisions}
    with tempfile.TemporaryDirectory(prefix="ffrev-") as folder:
        sources = {
            revision: source(revision, Path(folder, str(number)))
            for number, revision in enumerate(revisions)
        }
        async with server() as admin:
            size = {
                "BENCH_N": os.environ.get("BENCH_N", "20000"),
                "BENCH_CONC": os.environ.get("BENCH_CONC", "100"),
                "BENCH_LAT": "0",
                "BENCH_POSTMASTER": await postmaster(admin),
            }
            for run in range(runs):
                for revision in revisions if run % 2 == 0 else revisions[::-1]:
                    say(f"run {run + 1} of {runs}: {revision} (load {os.getloadavg()[0]:.1f})")
                    async with database(admin, "bench_revision") as url:
                        figures[revision].append(run_once(sources[revision], url, size))
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", help="Measure this commit.")
    parser.add_argument("after", nargs="?", default=WORKING_TREE, help="Compare with this commit.")
    arguments = parser.parse_args()
    runs = int(os.environ.get("BENCH_RUNS", "5"))
    figures = asyncio.run(measure([arguments.before, arguments.after], runs))
    before, after = figures[arguments.before], figures[arguments.after]
    print(f"{'CPU us per execution':<24}{arguments.before:>16}{arguments.after:>16}{'ratio':>8}")
    for phase in PHASES:
        ratios = [new[phase] / old[phase] for old, new in zip(before, after, strict=True)]
        print(
            f"{phase:<24}{median(one[phase] for one in before):>16.1f}"
            f"{median(one[phase] for one in after):>16.1f}{median(ratios):>8.3f}"
            f"  ({min(ratios):.3f} to {max(ratios):.3f})"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
