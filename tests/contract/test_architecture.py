"""The layers hold: import-linter agrees, and each part can be imported without the others."""

from __future__ import annotations

import ast
import asyncio
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from .sources import PACKAGE, ROOT, python_files

PACKAGES = (
    "core",
    "drawing",
    "db",
    "client",
    "doctor",
    "tasks",
    "handlers",
    "worker",
    "reconcilers",
    "embedded",
    "app",
    "cli",
    "testing",
)
EDGES = {"worker", "reconcilers", "embedded"}
LAYERS = (
    {"core"},
    {"telemetry", "tracing", "config", "drawing"},
    {"db"},
    {"client", "doctor"},
    {"tasks"},
    {"handlers"},
    EDGES,
    {"app"},
    {"dashboard"},
    {"server"},
    {"cli", "testing"},
)

# Imports every module of one package in a fresh interpreter, without the face of the whole
# (`flowfabric/__init__.py`), and prints what came along. The terminal alone uses that face.
ALONE = """
import importlib, pkgutil, sys, types
if {name!r} != "cli":
    root = types.ModuleType("flowfabric")
    root.__path__ = [{folder!r}]
    sys.modules["flowfabric"] = root
package = importlib.import_module("flowfabric.{name}")
for module in pkgutil.walk_packages(getattr(package, "__path__", []), package.__name__ + "."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print("\\n".join(sorted(sys.modules)))
"""


@cache
def modules_with(name: str) -> set[str]:
    program = ALONE.format(folder=str(PACKAGE), name=name)
    finished = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, cwd="/"
    )
    assert finished.returncode == 0, finished.stderr
    return set(finished.stdout.split())


def test_the_import_contracts_hold():
    program = Path(sys.executable).parent / "lint-imports"
    finished = subprocess.run(
        [str(program), "--no-cache"], cwd=ROOT, capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr


# import-linter reads all of them in `make check`: these also see what an import brings along.
IMPORTED = ("core", "client", "worker", "cli")


@pytest.mark.parametrize(
    "name",
    [
        name if name in IMPORTED else pytest.param(name, marks=pytest.mark.slow(short=3))
        for name in (*PACKAGES, "config", "telemetry", "tracing")
    ],
)
def test_a_part_imports_alone(name):
    """With what is below it, and nothing from beside or above."""
    parts = {
        module.split(".")[1] for module in modules_with(name) if module.startswith("flowfabric.")
    }
    level = next(n for n, layer in enumerate(LAYERS) if name in layer)
    below = set().union(*LAYERS[:level])
    assert parts <= below | {name}


def test_core_needs_nothing_but_the_standard_library():
    bare = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.modules, sep='\\n')"],
        capture_output=True,
        text=True,
        check=True,
    )
    came = modules_with("core") - set(bare.stdout.split())
    foreign = {module for module in came if module.split(".")[0] not in sys.stdlib_module_names}
    assert {module for module in foreign if not module.startswith("flowfabric")} == set()


@pytest.mark.parametrize("name", ["core", "config", "telemetry"])
def test_the_words_come_without_the_driver(name):
    assert not {"asyncpg", "pydantic", "typer"} & modules_with(name)


@pytest.mark.parametrize("name", ["client", "reconcilers", "embedded"])
def test_only_the_parts_that_run_handlers_need_pydantic(name):
    assert not {"pydantic", "typer"} & modules_with(name)


def imports_of(file: Path) -> set[str]:
    """The modules that a file imports, by their full names."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


def test_only_db_imports_the_driver():
    importers = {
        file.relative_to(PACKAGE).parts[0]
        for file in python_files()
        if any(name.split(".")[0] == "asyncpg" for name in imports_of(file))
    }
    assert importers == {"db"}


@pytest.mark.parametrize("user", ["app", "cli", "testing", "__init__.py"])
def test_tasks_handlers_and_worker_are_used_through_their_roots(user):
    """What a package exports is in its `__init__`; its modules are its own."""
    inner = tuple(f"flowfabric.{name}." for name in ("tasks", "handlers", "worker"))
    reached = {
        f"{file.relative_to(PACKAGE)}: {name}"
        for file in python_files()
        if file.relative_to(PACKAGE).parts[0] == user
        for name in imports_of(file)
        if name.startswith(inner)
    }
    assert reached == set()


# The parts of db that an app needs: reach a database or a server, and install the schema.
DB_FOR_APPS = {"flowfabric.db.connection", "flowfabric.db.http", "flowfabric.db.migrate"}


def test_app_imports_no_internals():
    """It uses the layers below through their roots. `core`, `drawing` and the single modules are
    vocabulary, and have no internals."""
    rooted = tuple(f"flowfabric.{name}." for name in ("client", "reconcilers", "embedded", "db"))
    reached = {
        f"{file.relative_to(PACKAGE)}: {name}"
        for file in python_files()
        if file.relative_to(PACKAGE).parts[0] == "app"
        for name in imports_of(file) - DB_FOR_APPS
        if name.startswith(rooted) or name == "flowfabric.db"
    }
    assert reached == set()


# Private names of asyncio that code could read from a task, a future or a loop.
PRIVATE = {
    name
    for kind in (asyncio.Task, asyncio.Future, asyncio.SelectorEventLoop)
    for name in dir(kind)
    if name.startswith("_") and not name.startswith("__")
}


def private_names_of_asyncio(text: str) -> set[str]:
    """The private names of asyncio that a text reads from an object other than `self`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls"):
            found.add(node.attr)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
            found.add(str(getattr(node.args[1], "value", "")))
    return found & PRIVATE


def test_private_names_of_asyncio_are_read_only_where_a_decision_says_so():
    found = {
        (str(file.relative_to(PACKAGE)), name)
        for file in python_files()
        for name in private_names_of_asyncio(file.read_text(encoding="utf-8"))
    }
    assert found == {("handlers/step_failures.py", "_log_traceback")}


def test_no_private_name_of_a_request_is_used():
    """FastAPI and Starlette rename such attributes without notice."""
    found = {
        f"{file.relative_to(PACKAGE)}: {ast.unparse(node)}"
        for file in python_files()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and ast.unparse(node.value) in ("request", "response")
    }
    assert found == set()


def test_every_module_belongs_to_a_layer():
    known = set().union(*LAYERS) | {"__init__", "__main__", "sql"}
    assert {file.relative_to(PACKAGE).parts[0].removesuffix(".py") for file in python_files()} <= (
        known
    )


MOST_LINES = 80
# Long by their signature and docstring alone.
LONG_SIGNATURES = {"client/executions.py: claim"}


def lengths(file: Path) -> list[tuple[str, int, int]]:
    """The functions of a file: the lines of each, and the lines without signature and docstring."""
    found = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            end = node.end_lineno or 0
            inner = end - body[0].lineno + 1 if body else 0
            name = f"{file.relative_to(PACKAGE).as_posix()}: {node.name}"
            found.append((name, end - node.lineno + 1, inner))
    return found


def test_no_function_is_longer_than_eighty_lines():
    found = [one for file in python_files() for one in lengths(file)]
    assert {name for name, _, inner in found if inner > MOST_LINES} == set()
    assert {name for name, whole, _ in found if whole > MOST_LINES} == LONG_SIGNATURES
