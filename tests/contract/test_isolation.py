"""No test depends on the folder it is started in, nor on the settings of whoever starts it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from support.cases import for_each
from support.cluster import VARIABLE as SERVER
from support.isolation import KEPT, is_setting

TESTS = Path(__file__).parents[1]
# The first asks for the database of the folder, the second imports an app.
CHOSEN = (
    "migrations/test_db_command.py::test_no_database_at_all_is_a_usage_error_that_says_what_to_do",
    "testing/test_flows.py::test_a_flow_runs_to_its_end",
)


@pytest.mark.slow
def test_tests_pass_in_a_folder_with_a_server_and_settings(tmp_path, cluster):
    """As in a clone after `make demo`."""
    (tmp_path / ".flowfabric").mkdir()
    (tmp_path / "flowfabric.toml").write_text('namespace = "trap"\nlog_format = "nonsense"\n')
    plain = {
        name: value
        for name, value in os.environ.items()
        if not is_setting(name) and not name.startswith("PYTEST_")
    }
    trap = {"FLOWFABRIC_NAMESPACE": "trap", "DATABASE_URL": "mysql://trap", "PGPORT": "none"}
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider",
         *(str(TESTS / name) for name in CHOSEN)],
        cwd=tmp_path,
        env=plain | trap | {SERVER: cluster.url},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert {path.name for path in tmp_path.iterdir()} == {".flowfabric", "flowfabric.toml"}
    assert not any((tmp_path / ".flowfabric").iterdir())


def test_this_test_sees_nothing_of_where_it_was_started():
    here = Path.cwd()
    assert not any(here.iterdir())
    assert not here.is_relative_to(TESTS.parent)
    assert {name for name in os.environ if is_setting(name)} <= set(KEPT)


def sleeps_then_looks(tree: ast.AST) -> list[int]:
    """The lines where a test sleeps and then asserts that a call is not done."""
    return [
        after.lineno
        for node in ast.walk(tree)
        if isinstance(body := getattr(node, "body", None), list)
        for before, after in pairwise(body)
        if ast.unparse(before).startswith("await asyncio.sleep(")
        and re.match(r"assert not .*\.done\(\)", ast.unparse(after))
    ]


@for_each("file", sorted((TESTS / "sql").rglob("*.py")))
def test_a_test_of_the_engine_waits_for_a_lock_and_does_not_sleep(file):
    """`db.until_waiting(call)` sees in `pg_stat_activity` that the call waits."""
    assert sleeps_then_looks(ast.parse(file.read_text(encoding="utf-8"))) == []
