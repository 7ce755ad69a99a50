"""The tests of the functions pass over the distributed forms, too, on plain PostgreSQL."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.cluster import VARIABLE as SERVER
from support.forms import FORMS
from support.isolation import KEPT
from support.proofs import few_files

ROOT = Path(__file__).parents[2]
# A few files, for every run of CI. test_both_forms.py compares the forms in every run of the tests.
SAMPLE = (
    "tests/sql/execution/test_submit_executions.py",
    "tests/sql/execution/test_fail_executions.py",
    "tests/sql/test_witness.py",
    "tests/forms/test_template.py",
    # Submits under limits: the distributed form does not put them into a line.
    "tests/sql/quota/test_claims_admit.py::test_no_more_run_than_the_limit",
    "tests/sql/quota/test_claims_admit.py::test_a_freed_slot_admits_the_first_in_line",
    "tests/sql/quota/test_claims_admit.py::test_a_submit_joins_a_closed_line",
    "tests/sql/quota/test_fairness.py::test_a_key_with_few_comes_between_those_of_a_key_with_many",
)
# The whole suites that look at what functions do.
SUITES = (
    "tests/sql",
    "tests/flows",
    "tests/steps",
    "tests/signals",
    "tests/streams",
    "tests/subscriptions",
    "tests/schedules",
    "tests/client",
    "tests/server",
    "tests/races",
    "tests/model",
)


def run(cluster, tests, seconds):
    assert FORMS in KEPT, "the other process would forget it and test the plain forms"
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    environment |= {SERVER: cluster.url, FORMS: "distributed"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider",
         "-m", "not slow", "--tb=short", *tests],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )  # fmt: skip


@pytest.mark.slow(short=1)
@pytest.mark.timeout(180)
def test_a_sample_passes_over_the_distributed_forms(cluster):
    ended = run(cluster, SAMPLE, 170)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.slow(short=1)
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_passes_over_the_distributed_forms(cluster, suite, sized):
    ended = run(cluster, sized([suite], short=few_files(suite, 3)), 1790)
    assert ended.returncode == 0, ended.stdout + ended.stderr
