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


# Tests that let time pass, because what they show is that something does not happen, or a rate.
SLEEPING = {
    "cli/test_dev_command.py": "a worker that is not started again shows nothing",
    "cli/test_output.py": "progress that is not shown asks for no text",
    "faults/test_connections.py": "the network is away for longer than a pause between two tries",
    "faults/test_restarts.py": "the restarts are spread over a load",
    "server/test_scale.py": "processor time is measured over a while",
    "steps/test_waits.py": "a beat without a lease makes no call",
    "via/test_via.py": "a hint that is not sent shows nothing",
    "worker/test_claiming.py": "how much is asked in a second is the subject",
    "worker/test_reconciler_loop.py": "a pass that is not made shows nothing",
    "worker/test_suspects.py": "an execution that is not claimed shows nothing",
}
SLEEPS = ("asyncio.sleep", "time.sleep", "sleep")


def is_sleep(node: ast.AST) -> bool:
    """Return whether a statement only lets time pass. `sleep(0)` lets other tasks run."""
    value = node.value if isinstance(node, ast.Expr) else None
    call = value.value if isinstance(value, ast.Await) else value
    return (
        isinstance(call, ast.Call)
        and ast.unparse(call.func) in SLEEPS
        and ast.unparse(call.args[0]) != "0"
    )


def sleeps_of_tests(tree: ast.AST) -> list[int]:
    """Return the lines where a test itself sleeps.

    The handlers in it may sleep, and so may a loop that waits for a condition.
    """
    found: list[int] = []
    inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.While)

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if is_sleep(child):
                found.append(child.lineno)
            elif not isinstance(child, inner):
                visit(child)

    for node in ast.walk(tree):
        if isinstance(node, inner[:2]) and node.name.startswith("test_"):
            visit(node)
    return found


def sleeps_then_looks(tree: ast.AST) -> list[int]:
    """Return the lines where anybody sleeps and then asserts that a call is not done."""
    return [
        after.lineno
        for node in ast.walk(tree)
        if isinstance(body := getattr(node, "body", None), list)
        for before, after in pairwise(body)
        if is_sleep(before) and re.match(r"assert not .*\.done\(\)", ast.unparse(after))
    ]


@for_each("file", sorted(TESTS.rglob("*.py")))
def test_a_test_waits_for_a_state_and_does_not_sleep(file):
    """`db.until_waiting(call)` waits until a call waits for a lock, `Answers` until it was
    answered, `eventually` for anything that can be seen."""
    text = file.read_text(encoding="utf-8")
    tree = ast.parse(text if "sleep(" in text else "")
    assert sleeps_then_looks(tree) == []
    if file.relative_to(TESTS).as_posix() in SLEEPING:
        assert sleeps_of_tests(tree) != [], "it need not be in the list any more"
    else:
        assert sleeps_of_tests(tree) == []
