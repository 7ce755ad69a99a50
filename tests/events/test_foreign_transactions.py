"""Readers of events do not mind what happens in other databases of the server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.cluster import VARIABLE as SERVER
from support.foreign import FOREIGN_TRANSACTIONS
from support.isolation import KEPT
from support.proofs import few_files

ROOT = Path(__file__).parents[2]
SECONDS = 900
# The suites that read events by cursors, or trim events.
SUITES = ("events", "subscriptions", "doctor", "sql/event", "sql/minute", "server", "app")


@pytest.mark.slow(short=1)
@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_passes_beside_transactions_of_another_database(cluster, suite, sized):
    assert FOREIGN_TRANSACTIONS in KEPT, "the other process would forget it"
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    paths = sized([f"tests/{suite}"], short=few_files(f"tests/{suite}", 1))
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider",
         "-m", "not slow", "--tb=short", *paths],
        cwd=ROOT,
        env=environment | {SERVER: cluster.url, FOREIGN_TRANSACTIONS: "8"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-20_000:] + ended.stderr[-2_000:]
