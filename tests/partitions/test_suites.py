"""The suites of the client and of everything above it pass on databases with eight partitions.

A few tests of each suite also run so in `make test`: those with `several_partitions`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.cluster import VARIABLE as SERVER
from support.database import PARTITIONS
from support.proofs import few_files

ROOT = Path(__file__).parents[2]
SECONDS = 1500
SUITES = (
    "sql",
    "client",
    "worker",
    "app",
    "app_flows",
    "flows",
    "steps",
    "events",
    "cli",
    "schedules",
    "hooks",
    "via",
    "signals",
    "streams",
    "subscriptions",
    "doctor",
)
CHAOS = "chaos/test_chaos.py::test_a_short_chaos_breaks_no_promise"


def run(cluster, *paths: str, mark: str = "not slow") -> None:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    environment[SERVER] = cluster.url
    environment[PARTITIONS] = "8"
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider",
         "--tb=short", "-m", mark, *paths],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-20_000:] + ended.stderr[-2_000:]


@pytest.mark.slow(short=2)
@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_passes_with_eight_partitions(cluster, suite, sized):
    run(cluster, *sized([f"tests/{suite}"], short=few_files(f"tests/{suite}", 2)))


@pytest.mark.slow(short=1)
@pytest.mark.timeout(SECONDS)
def test_chaos_breaks_no_promise_with_eight_partitions(cluster):
    run(cluster, f"tests/{CHAOS}", mark="slow")
