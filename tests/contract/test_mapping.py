"""What the mapping says about our operations is what they do, on real rows.

The table is tools/mapping.toml, the page docs/reference/mapping.md. A line cannot be wrong, lack
its check, or name what is not there.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from collections import Counter
from collections.abc import AsyncIterator
from pkgutil import resolve_name
from typing import Any

import pytest

from defects.test_catalogue import DEFECTS
from flowfabric.client import FlowFabric
from flowfabric.core import errors
from flowfabric.db import functions
from flowfabric.db.functions import Function
from support.clock import Clock
from support.database import Database

from .mapping_checks import CHECKS, World, text
from .sources import ROOT, sql_files

MAPPING: dict[str, Any] = tomllib.loads((ROOT / "tools/mapping.toml").read_text(encoding="utf-8"))
OPERATIONS = {row["name"]: row for row in MAPPING["operation"]}
DONE = {name: row for name, row in OPERATIONS.items() if row["status"] == "done"}
ERRORS: list[dict[str, Any]] = MAPPING["error"]
INNER: list[dict[str, Any]] = MAPPING["inner"]
STATUSES = {"done", "later", "not offered"}

CODED = {
    name
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, errors.FlowFabricError) and kind.code
}


@pytest.fixture
async def world(db: Database, clock: Clock) -> AsyncIterator[World]:
    await clock.freeze()
    async with FlowFabric(db.url, namespace="test") as client:
        yield World(client, db, clock)


@pytest.mark.parametrize("name", DONE)
async def test_an_operation_does_what_its_line_says(world, monkeypatch, name):
    row = DONE[name]
    called = spy(world.client, row["python"], monkeypatch)
    seen = await CHECKS[name](world)
    assert text(seen) == text(row["facts"])
    assert called >= {*row["python"], *row["sql"]}, "the check goes another way than its line"


def spy(client: FlowFabric, methods: list[str], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Notes which of our methods are called, and which functions and views of the engine."""
    called: set[str] = set()
    call = client.database.call

    async def noted(statement: Any, *args: Any, **options: Any) -> Any:
        called.add(statement.name if isinstance(statement, Function) else statement.function)
        return await call(statement, *args, **options)

    monkeypatch.setattr(client.database, "call", noted)
    for path in methods:
        noun, verb = path.split(".")
        owner = getattr(client, noun)
        monkeypatch.setattr(owner, verb, _noted(path, getattr(owner, verb), called))
    return called


def _noted(path: str, method: Any, called: set[str]) -> Any:
    def noted(*args: Any, **options: Any) -> Any:
        called.add(path)
        return method(*args, **options)

    return noted


def test_every_line_that_is_done_has_its_check_and_every_check_its_line():
    assert CHECKS.keys() == DONE.keys()


def test_no_name_is_there_twice():
    names = Counter(row["name"] for row in MAPPING["operation"])
    names.update(name for row in INNER for name in row["names"])
    assert [name for name, times in names.items() if times > 1] == []
    kinds = Counter((row["group"], kind) for row in ERRORS for kind in row["kinds"])
    assert [kind for kind, times in kinds.items() if times > 1] == []


def test_every_line_is_whole():
    keys = {"name", "source", "status", "difference", "reasons"}
    for name, row in OPERATIONS.items():
        assert row["status"] in STATUSES, name
        more = {
            "done": {"sql", "python", "facts"},
            "later": {"area"},
            "not offered": set(),
        }[row["status"]]
        assert row.keys() == keys | more, name
        assert row["difference"].strip().endswith("."), name
        assert row["reasons"], f"{name} has no reason"
        if row["status"] == "done":
            assert row["facts"], name
            assert row["sql"], name
            assert row["python"], name


def test_a_reason_is_a_decision_a_defect_or_a_ruling():
    decisions = {path.name[:4] for path in (ROOT / "docs/decisions").glob("0*.md")}
    for name, row in OPERATIONS.items():
        for reason in row["reasons"]:
            assert (
                reason in decisions
                or (reason.startswith("D-") and int(reason[2:]) in DEFECTS)
                or re.fullmatch(r"ruling: .{10,}", reason)
            ), (name, reason)


def test_an_operation_names_functions_views_and_methods_that_are_there():
    engine = {function.name for function in functions.FUNCTIONS}
    engine |= {read.function for read in functions.READS}
    client = FlowFabric("postgresql://nowhere")
    for name, row in DONE.items():
        assert set(row["sql"]) <= engine, name
        for path in row["python"]:
            noun, verb = path.split(".")
            assert callable(getattr(getattr(client, noun), verb)), (name, path)


async def test_what_took_the_place_of_an_inner_function_is_there(catalogue):
    for row in INNER:
        assert row["note"], row["names"]
        assert row["through"] in OPERATIONS, row["names"]
        for ours in row["ours"]:
            if ours.startswith("ff."):
                assert await in_the_catalogue(catalogue, ours[3:]), ours
            else:
                assert in_python(ours), ours


async def in_the_catalogue(catalogue: Any, name: str) -> bool:
    table, _, column = name.partition(".")
    if column:
        query = """select count(*) > 0 from pg_attribute
                   where attrelid = to_regclass('ff.' || $1) and attname = $2"""
        return bool(await catalogue.fetchval(query, table, column))
    query = """select count(*) > 0 from pg_proc
               where pronamespace = 'ff'::regnamespace and proname = $1"""
    return bool(await catalogue.fetchval(query, name))


def in_python(path: str) -> bool:
    """Whether a dotted name leads somewhere."""
    try:
        return resolve_name(path) is not None
    except (ImportError, AttributeError):
        return False


async def test_every_function_of_ours_is_in_the_table_or_ours_only_with_a_reason(catalogue):
    rows = await catalogue.fetch(
        "select proname from pg_proc where pronamespace = 'ff'::regnamespace "
        "and proname !~ '^_' and proname <> 'now'"
    )
    public = {row["proname"] for row in rows}
    assert public == {file.name for file in sql_files("functions")}
    mapped = {name for row in DONE.values() for name in row["sql"]}
    own = MAPPING["ours_only"]["functions"]
    assert public - mapped == own.keys()
    assert all(len(reason) > 20 for reason in own.values())


def test_an_error_names_classes_that_are_there_and_are_met():
    met = {
        kind
        for name in re.findall(r"\b[A-Z]\w+", text({n: row["facts"] for n, row in DONE.items()}))
        if inspect.isclass(kind := getattr(errors, name, None))
    }
    for row in ERRORS:
        assert row["status"] in STATUSES, row["kinds"]
        more = {"done": {"classes"}, "later": {"area"}, "not offered": set()}[row["status"]]
        assert row.keys() - {"shown_by"} == {"kinds", "group", "status", "note"} | more, row
        assert row["note"] or row["status"] == "later", row["kinds"]
        for name in row.get("classes", ()):
            kind = getattr(errors, name)
            assert issubclass(kind, errors.FlowFabricError)
            assert any(issubclass(leaf, kind) for leaf in met) or shows(row["shown_by"], kind), name


def shows(path: str, kind: type[errors.FlowFabricError]) -> bool:
    """Whether a test file, or one in a folder, has this error in it, by class, code or word."""
    place = ROOT / path
    words = [word for word in (kind.__name__, kind.code, kind.name) if word]
    files = place.rglob("*.py") if place.is_dir() else [place]
    pattern = re.compile(rf"\b({'|'.join(words)})\b")
    return any(pattern.search(file.read_text(encoding="utf-8")) for file in files)


def test_every_error_with_a_code_is_in_the_table_or_ours_only_with_a_reason():
    mapped = {name for row in ERRORS for name in row.get("classes", ())}
    own = MAPPING["ours_only"]["errors"]
    assert CODED - mapped == own.keys()
    assert all(len(reason) > 20 for reason in own.values())
