"""A field of a submission is added in few places, and the architecture page names them."""

from __future__ import annotations

import ast
import re

from .sources import PACKAGE, ROOT, python_files

MOST = 6
# Where a stored execution is read and shown: nothing that a submit passes.
READING = ("views/", "describe_execution.sql", "drawing/", "db/functions.py")


def mentioning(word: str) -> set[str]:
    """The files of the package that mention a word on the way of a submission."""
    return {
        name
        for file in (*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.sql"))
        if re.search(rf"\b{word}", file.read_text(encoding="utf-8"))
        and not any(part in (name := file.relative_to(PACKAGE).as_posix()) for part in READING)
    }


def test_a_rare_field_of_a_submission_stands_in_six_files_and_the_page_names_them():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.partition("## Adding a field to a submission\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"^- `([\w/]+[.]\w+)`: ", section, re.MULTILINE))
    found = mentioning("task_version")
    assert found == named
    assert len(found) <= MOST


def test_one_plan_looks_up_unknown_routes_again_for_all_kinds_of_submissions():
    looks = [
        f"{file.relative_to(PACKAGE)}:{node.lineno}"
        for file in python_files()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Yield) and "Find(" in ast.unparse(node)
        if "has_moved" not in ast.unparse(node)
    ]
    assert len(looks) == 1, looks
