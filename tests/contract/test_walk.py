"""The walk of one execution in docs/architecture.md names functions that exist."""

from __future__ import annotations

import ast
import re

import pytest

from .sources import PACKAGE, ROOT

HOP = re.compile(r"^\| (\d+) \| [^|]+ \| `([^`]+)` \| (?:`([^`]+)`)? ?\|$", re.MULTILINE)


def walks() -> list[list[tuple[str, str]]]:
    """Return the hops of each table, as file and function."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    found: list[list[tuple[str, str]]] = []
    for number, file, function in HOP.findall(text):
        if number == "1":
            found.append([])
        assert int(number) == len(found[-1]) + 1
        found[-1].append((file, function))
    return found


def test_the_walk_has_two_parts_of_at_most_twelve_hops():
    assert len(walks()) == 2
    assert all(5 < len(hops) <= 12 for hops in walks())


@pytest.mark.parametrize(("file", "function"), [hop for hops in walks() for hop in hops])
def test_every_hop_exists(file, function):
    text = (PACKAGE / file).read_text()
    if file.endswith(".sql"):
        assert f"create function ff.{(PACKAGE / file).stem}(" in text
        return
    *owner, name = function.split(".")
    nodes: list[ast.stmt] = ast.parse(text).body
    for part in owner:
        (cls,) = [node for node in nodes if isinstance(node, ast.ClassDef) and node.name == part]
        nodes = cls.body
    functions = [n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert name in {node.name for node in functions}


STEPS = ("decode", "prepare", "call", "encode", "settle")


def test_running_one_execution_is_a_pipeline_of_five_named_steps():
    """Each step is a method, or the call that the step before it has prepared."""
    assert f"run one execution: {', '.join(STEPS)} |" in (
        ROOT / "docs" / "architecture.md"
    ).read_text(encoding="utf-8")
    runner = ast.parse((PACKAGE / "worker" / "runner.py").read_text(encoding="utf-8"))
    (run,) = [
        node
        for node in ast.walk(runner)
        if isinstance(node, ast.AsyncFunctionDef) and node.name == "_run"
    ]
    taken = [
        (node.lineno, node.col_offset, str(name).removeprefix("_"))
        for node in ast.walk(run)
        if (name := getattr(node, "attr", getattr(node, "id", None))) is not None
        and isinstance(getattr(node, "ctx", None), ast.Load)
    ]
    assert tuple(name for _, _, name in sorted(taken) if name in STEPS) == STEPS
    assert run.end_lineno - run.lineno < 50, "more than one screen"


def test_the_page_lists_every_table():
    text = (ROOT / "docs" / "architecture.md").read_text()
    listed = {
        name
        for row in re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }
    steps = (ROOT / "src/flowfabric/sql/schema").rglob("*.sql")
    tables = {
        name
        for step in steps
        for name in re.findall(r"^create table ff\.(\w+)", step.read_text(), re.MULTILINE)
    }
    assert len(tables) > 40
    assert tables - listed == set()
