"""SQL lives in sql/, and the calls of it in db/. Nowhere else is a statement spelled out."""

from __future__ import annotations

import ast
import re

from flowfabric.db import functions
from support.cases import for_each

from .sources import PACKAGE, python_files

STATEMENT = re.compile(
    r"\bff\.[a-z_]+|\bpg_[a-z]+_?[a-z_]*\("
    r"|^\s*(select|insert\s+into|update\s+[\w.]+\s+set|delete\s+from|truncate|listen|notify"
    r"|alter\s+\w+|drop\s+\w+\s|create\s+(table|index|view|function|role|user|database|schema)"
    r"|grant\s+\w+\s+(on|to)|revoke|begin;|commit;|set\s+local)\b",
    re.IGNORECASE,
)


# A server in single-user mode, before anybody can connect: db has nothing to talk to yet. And the
# name of a command and its help, which only begin like a statement.
ALLOWED = {
    "embedded/cluster.py": ["CREATE DATABASE "],
    "cli/actions.py": ["revoke-lease"],
    "server/bulk.py": ["revoke-lease"] * 3,
    "server/dashboard/executions.py": [
        *["revoke-lease", "Revoke lease"],
        *["revoke-lease"] * 2,
        "Revoke lease",
    ],
    # A test to copy: its fixture is named ff.
    "dashboard/details.py": [
        "(ff: Harness) -> None:\n    run = await ff.submit(",
        ")\n    await ff.run(run)",
    ],
    "cli/main.py": ["revoke-lease", "Revoke the leases of running executions."],
}


def docstrings(tree: ast.AST) -> set[int]:
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, owners) and node.body and isinstance(node.body[0], ast.Expr)
    }


def sql_texts(source: str) -> list[str]:
    tree = ast.parse(source)
    skip = docstrings(tree)
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in skip
        and STATEMENT.search(node.value)
    ]


@for_each("file", [file for file in python_files() if file.relative_to(PACKAGE).parts[0] != "db"])
def test_no_statement_outside_db(file):
    allowed = ALLOWED.get(str(file.relative_to(PACKAGE)), [])
    assert sql_texts(file.read_text(encoding="utf-8")) == allowed


def test_the_check_would_notice():
    assert sql_texts('"""select 1"""\nx = "update ff.execution set rank = 1"')
    assert sql_texts('f"select * from {table}"')
    assert not sql_texts('"""select in a docstring"""\nx = "The order of ff."')


def test_no_view_or_table_is_written_through_a_binding():
    """Bindings call functions and read views; only functions write."""
    for statement in (*functions.FUNCTIONS, *functions.READS):
        assert re.match(r"\s*select\b", statement.text), statement.name
        assert not re.search(r"\b(insert|update|delete|truncate)\b", statement.text)
