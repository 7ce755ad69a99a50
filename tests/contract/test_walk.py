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
