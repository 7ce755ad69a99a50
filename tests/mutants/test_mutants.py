"""Every mutant of the library is caught by the test that is named for it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from time import monotonic

import pytest

from support.cases import for_each
from support.cluster import VARIABLE as SERVER
from support.database import MUTANT

from .mutants import MUTANTS

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 180
BROKEN = re.compile(
    r"at setup of|SyntaxError|(Undefined|Ambiguous|Datatype|Invalid)\w+Error|UnboundLocalError"
)


def run(cluster, tests, mutated: Path | None = None, seconds=2 * LIMIT_SECONDS):
    """Tests in a process of their own, on databases with one file of the library replaced."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    environment[SERVER] = cluster.url
    environment.pop(MUTANT, None)
    if mutated is not None:
        environment[MUTANT] = str(mutated)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider",
         "--tb=line", *tests],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )  # fmt: skip


@pytest.mark.slow(short=5)
@pytest.mark.timeout(3 * LIMIT_SECONDS)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_caught(cluster, tmp_path, mutant, record_property):
    mutated = tmp_path / "mutant.sql"
    mutated.write_text(mutant.text(), encoding="utf-8")
    started = monotonic()
    ended = run(cluster, [mutant.caught_by], mutated)
    seconds = monotonic() - started
    record_property("seconds", round(seconds, 1))
    record_property("how", ended.stdout)
    assert ended.returncode == 1, f"it survives:\n{ended.stdout}{ended.stderr}"
    # A library that cannot be installed, or not be called, proves nothing.
    assert not BROKEN.search(ended.stdout), ended.stdout
    assert seconds < LIMIT_SECONDS


@pytest.mark.slow
@pytest.mark.timeout(10 * LIMIT_SECONDS)
def test_without_a_mutant_the_same_tests_pass(cluster, sized):
    some = MUTANTS[:: sized(1, short=8)]
    ended = run(cluster, sorted({mutant.caught_by for mutant in some}), seconds=8 * LIMIT_SECONDS)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_there_are_enough_mutants_and_no_two_of_a_name():
    assert len(MUTANTS) >= 20
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@for_each("mutant", MUTANTS, name=lambda mutant: mutant.name)
def test_a_mutant_changes_the_library_as_it_is(mutant):
    assert mutant.text()
