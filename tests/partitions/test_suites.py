"""The suites of the client and of everything above it pass on databases with eight partitions."""

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
    "doctor",
)
# A little of each, for every run of CI. The other files of this folder have their own partitions.
SAMPLE = (
    "client/test_group_commit.py::test_concurrent_submits_share_statements",
    "client/test_group_commit.py::test_a_key_names_the_first_execution_that_used_it",
    "worker/test_results.py::test_many_callers_may_wait_for_one_execution_and_leave_again",
    "app/test_runs.py::test_events_come_in_order_and_end_with_the_execution",
    "app/test_runs.py::test_a_run_is_found_again_by_its_id",
    "app_flows/test_flow_runs.py::TestResults::test_values_pass_from_node_to_node",
    "steps/test_children.py::test_a_later_run_finds_its_children_again",
    "steps/test_children.py::test_keys_of_children_are_honoured_and_tell_them_apart",
    "events/test_follow.py::test_following_gives_what_was_and_what_happens",
    "cli/test_looking_commands.py::test_ls_prints_a_line_of_json_for_each_newest_first",
    "signals/test_waiting.py::test_a_signal_before_the_wait_counts",
    "cli/test_looking_commands.py::test_ls_goes_on_page_by_page_to_the_limit_or_the_end",
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
def test_a_sample_passes_with_eight_partitions(cluster):
    run(cluster, *(f"tests/{path}" for path in SAMPLE))


@pytest.mark.slow(short=1)
@pytest.mark.timeout(SECONDS)
def test_chaos_breaks_no_promise_with_eight_partitions(cluster):
    run(cluster, f"tests/{CHAOS}", mark="slow")
