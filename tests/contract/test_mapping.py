"""What docs/internals/mapping.md says about our operations is what they do, on real rows.

The operations that are done are the functions of tests/contract/mapping, the rest of the page is
tools/mapping.toml. A line cannot be wrong, or name what is not there.
"""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from collections import Counter
from collections.abc import AsyncIterator
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

import asyncpg
import pytest

from flowfabric.client import FlowFabric
from flowfabric.client.events import Feed
from flowfabric.core import errors
from flowfabric.core.errors import InvalidInput
from flowfabric.db import functions
from flowfabric.db.functions import Function
from flowfabric.db.session import Database as ClientDatabase
from flowfabric.db.session import Session
from support.clock import Clock
from support.database import Database

from .mapping import LIMITS, OPERATIONS, World, text
from .sources import ROOT, SQL, public_functions, sql_files

MAPPING: dict[str, Any] = tomllib.loads((ROOT / "tools/mapping.toml").read_text(encoding="utf-8"))
UNDONE = {row["name"]: row for row in MAPPING["operation"]}
ERRORS: list[dict[str, Any]] = MAPPING["error"]
INNER: list[dict[str, Any]] = MAPPING["inner"]
DEFECTS: dict[str, list[str] | str] = MAPPING["defects"]
SIGNALS: dict[str, list[str] | str] = MAPPING["signals"]
STREAMS: dict[str, list[str] | str] = MAPPING["streams"]
ADMISSION: dict[str, list[str] | str] = MAPPING["admission"]
STATUSES = {"done", "later", "not offered"}
REASONS = {
    **{name: one.reasons for name, one in OPERATIONS.items()},
    **{name: row["reasons"] for name, row in UNDONE.items()},
}

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


@pytest.fixture(scope="module")
def lines(generate: ModuleType) -> dict[str, Any]:
    """The lines of the page by the names of their operations."""
    return {line.name: line for line in generate.operations()}


@pytest.mark.parametrize("name", OPERATIONS)
async def test_an_operation_does_what_its_line_says(world, lines, monkeypatch, name):
    one = OPERATIONS[name]
    called = spy(world.client, one.python, monkeypatch)
    seen = []

    def see(key: str, found: Any, expected: Any) -> None:
        assert text(found) == text(expected), key
        seen.append((key, expected))

    await one.check(world, see)
    assert called >= {*one.python, *one.sql}, "the check goes another way than its line"
    assert lines[name].facts == seen, "the page is written from literals, in their order"


@pytest.mark.parametrize("limit", LIMITS, ids=lambda one: f"{one.field} of {one.functions[0]}")
async def test_a_limit_is_where_the_table_says(world, limit):
    for value in limit.fits:
        assert await refusal(limit.call(world, value)) is None, value
    for value in limit.beyond:
        field, problem = await refusal(limit.call(world, value))
        assert field == limit.field, value
        assert limit.says in problem


async def refusal(call: Any) -> tuple[str, str] | None:
    """Field and problem of a call that is refused, by an error or as the outcome of its item."""
    try:
        answer = await call
    except InvalidInput as error:
        return error.field, error.problem
    except asyncpg.PostgresError as error:
        if error.sqlstate != InvalidInput.code:
            raise
        detail = json.loads(error.detail)
        return detail["field"], detail["problem"]
    if getattr(answer, "word", None) == "invalid":
        return answer.detail["field"], answer.detail["problem"]
    for row in answer if isinstance(answer, list) else ():
        if isinstance(row, asyncpg.Record) and row.get("outcome") == "invalid":
            detail = json.loads(row["detail"])
            return detail["field"], detail["problem"]
    return None


def spy(client: FlowFabric, methods: list[str], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Notes which of our methods are called, and which functions and views of the engine."""
    called: set[str] = set()

    def note_calls(kind: type[ClientDatabase] | type[Session]) -> None:
        call = kind.call

        async def noted(self: Any, statement: Any, **arguments: Any) -> Any:
            called.add(statement.name if isinstance(statement, Function) else statement.function)
            return await call(self, statement, **arguments)

        monkeypatch.setattr(kind, "call", noted)

    note_calls(ClientDatabase)
    note_calls(Session)
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


def test_no_name_is_there_twice():
    names = Counter([*OPERATIONS, *(row["name"] for row in MAPPING["operation"])])
    names.update(name for row in INNER for name in row["names"])
    assert [name for name, times in names.items() if times > 1] == []
    kinds = Counter((row["group"], kind) for row in ERRORS for kind in row["kinds"])
    assert [kind for kind, times in kinds.items() if times > 1] == []


def test_every_line_is_whole(generate, lines):
    for line in lines.values():
        assert line.source in generate.SOURCES, line.name
        assert line.difference.endswith("."), line.name
        assert line.sql, line.name
        assert line.python, line.name
        assert line.facts, line.name
    keys = {"name", "source", "status", "difference", "reasons"}
    for name, row in UNDONE.items():
        assert row["status"] in STATUSES - {"done"}, name
        assert row.keys() == keys | ({"area"} if row["status"] == "later" else set()), name
        assert row["difference"].strip().endswith("."), name


def test_a_reason_is_a_decision_a_defect_or_a_ruling():
    decisions = {path.name[:4] for path in (ROOT / "docs/decisions").glob("0*.md")}
    for name, reasons in REASONS.items():
        assert reasons, f"{name} has no reason"
        for reason in reasons:
            assert (
                reason in decisions or reason in DEFECTS or re.fullmatch(r"ruling: .{10,}", reason)
            ), (name, reason)


def test_a_defect_is_kept_away_by_tests_that_are_there_or_belongs_to_what_is_not_built():
    assert all(re.fullmatch(r"D-\d\d", number) for number in DEFECTS)
    assert {f"C{n}" for n in range(1, 22)} | {str(n) for n in range(82, 132)} <= SIGNALS.keys()
    streams = {f"D{n}" for n in range(1, 13)} | {f"E{n}" for n in range(1, 12)}
    assert streams | {str(n) for n in range(132, 148)} <= STREAMS.keys()
    assert {f"F{n}" for n in range(1, 18)} | {str(n) for n in range(148, 162)} <= ADMISSION.keys()
    assert sum(number.startswith("trap: ") for number in ADMISSION) == 9
    tables = (DEFECTS, SIGNALS, STREAMS, ADMISSION)
    for number, kept in [row for table in tables for row in table.items()]:
        if isinstance(kept, str):
            assert len(kept) > 20, number
            continue
        assert kept, number
        for test in kept:
            path, _, name = test.partition("::")
            assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.M), test


def test_the_feeds_are_views_and_filters():
    feeds = MAPPING["feed"]
    assert {row["feed"] for row in feeds if "feed" in row} == set(Feed)
    assert {row["view"] for row in feeds} == {file.stem for file in SQL.glob("views/*_feed.sql")}


def test_every_function_of_a_limit_has_its_words():
    """Itself, or one it calls."""
    for limit in LIMITS:
        for name in limit.functions:
            assert limit.says in "".join(texts(name)), (limit.says, name)


def texts(name: str) -> list[str]:
    """The text of a function and of those it calls, theirs included."""
    files = {file.name: file for file in sql_files("functions", "shared")}
    found, left = {}, [name]
    while left:
        one = left.pop()
        if one in files and one not in found:
            found[one] = files[one].statements
            left += re.findall(r"\bff\.(\w+)\(", found[one])
    return list(found.values())


def test_an_operation_names_functions_views_and_methods_that_are_there():
    engine = {function.name for function in functions.FUNCTIONS}
    engine |= {read.function for read in functions.READS}
    client = FlowFabric("postgresql://nowhere")
    for name, one in OPERATIONS.items():
        assert set(one.sql) <= engine, name
        for path in one.python:
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
    assert public == {file.name for file in public_functions()}
    mapped = {name for one in OPERATIONS.values() for name in one.sql}
    own = MAPPING["ours_only"]["functions"]
    assert public - mapped == own.keys()
    assert all(len(reason) > 20 for reason in own.values())


def test_an_error_names_classes_that_are_there_and_are_met(lines):
    met = {
        kind
        for name in re.findall(r"\b[A-Z]\w+", text([line.facts for line in lines.values()]))
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
