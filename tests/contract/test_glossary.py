"""Public names are made of the words of docs/glossary.md, and of ordinary words listed here."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
import pkgutil
import re
from collections.abc import Iterable, Iterator
from enum import EnumMeta
from functools import cache
from itertools import product
from typing import Any

import pytest
import typer

import flowfabric
from flowfabric import core
from flowfabric.cli.main import app as command_line
from flowfabric.core import errors, states
from flowfabric.db import functions
from support.cases import for_each

from .sources import PACKAGE, ROOT, python_files

# Words that mean in a name what they mean in any program.
ORDINARY_TEXT = """
accepted add address admin after alike all allow already amounts and any are args as assert
assign at auth base64 batch before begin behind bulk by bytes callback capable change check
class clear close collision column conclude connect connection correlation cors count create
current day db dead decide declare decode default delete demo describe detail dev distinct
document downgrade dry due duration each edited empty error evaluate every evidence exception
exists expected explain exponential expression fabric factory facts fallback field file filter
find fixed folder for forbidden forget found from full function gap gather get graph handled
has hash header host hour how id if impossible index info infra init initial install interval
invalid is item jitter known kwargs last left length let level list locality locked log login
ls many match max maximum may message migrate mismatch missing moment month more most
multiplier name need networks never new newest next no number occurred of on once one only
open options origin other outgoing output overriding p50 p90 p95 p99 page parsed password
pending percent permanent plan pool port prefix prepare previous problem project psql random
reached read ready reassign record remaining report required respect rest retained return
reused rm role row same seconds seen sent sentence set show shutdown since size soon sql
stalled startup status stay stop stored subject succeeded summarise svg sync target test text
throwaway title to too tool total trace transient type tz unavailable unfinished unfold unique
unknown unsatisfied unsupported unused updated use uuid value view week what when where whole
why will with within word work yes zone
"""
ORDINARY = frozenset(ORDINARY_TEXT.split())

# Kinds of errors that keep the names of the reference (tools/mapping.toml). Users who know the
# reference find them by these names.
REFERENCE_TEXT = """
CycleDetected DepsNotSatisfied MaxReplaysExhausted NotBlockedByDeps PayloadTooLarge
ReclaimCapExceeded RetryExhausted SelfReferencingEdge StaleGraphRevision StaleLease
"""
REFERENCE = frozenset(REFERENCE_TEXT.split())


def words_of(name: str) -> set[str]:
    """Return the words of a name. A single letter is not a word."""
    words = re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)
    return {word.lower() for word in words if len(word) > 1}


def names_of_the_engine() -> Iterator[str]:
    """Functions with their arguments and columns, views and tables."""
    for folder in ("functions", "views"):
        for path in (PACKAGE / "sql" / folder).rglob("*.sql"):
            if not path.name.startswith("_"):
                yield path.stem
    for path in (PACKAGE / "sql" / "schema").rglob("*.sql"):
        yield from re.findall(r"^create table ff\.(\w+)", path.read_text(), re.MULTILINE)
    for function in functions.FUNCTIONS:
        yield from (*function.arguments, *function.columns)


def names_of_states() -> Iterator[str]:
    for kind in vars(states).values():
        if isinstance(kind, EnumMeta):
            yield from (str(member.value) for member in kind)


def names_of_python() -> Iterator[str]:
    """What can be imported, and what the reference shows: classes, methods and parameters."""
    for name in flowfabric.__all__:
        yield name
        if inspect.isclass(kind := getattr(flowfabric, name)):
            yield from (member for member in vars(kind) if not member.startswith("_"))
    for page in ("python.md", "client.md"):
        text = (ROOT / "docs" / "reference" / page).read_text()
        yield from re.findall(r"^## client\.(\w+)", text, re.MULTILINE)
        for block in re.findall(r"^```python\n(.+?)^```", text, re.DOTALL | re.MULTILINE):
            yield from names_of_block(block)


def names_of_block(block: str) -> Iterator[str]:
    """The name and the parameters of every signature in a block of the reference."""
    for signature in re.split(r"^(?=\S)(?![)@])", block, flags=re.MULTILINE):
        text = re.sub(r"^@.*\n", "", signature.strip())
        if not text:
            continue
        if re.match(r"\w+\(", text):
            text = f"def {text}"
        found = ast.parse(f"{text}: ..." if "def " in text else text).body[0]
        if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef):
            yield found.name
            given = found.args
            several = [one for one in (given.vararg, given.kwarg) if one is not None]
            for one in (*given.posonlyargs, *given.args, *given.kwonlyargs, *several):
                yield one.arg


def names_of_errors() -> Iterator[str]:
    for name, kind in vars(errors).items():
        if inspect.isclass(kind) and issubclass(kind, errors.FlowFabricError):
            yield name


def names_of_records() -> Iterator[str]:
    """The records that the client takes and returns, and their fields."""
    for module in pkgutil.iter_modules(core.__path__, f"{core.__name__}."):
        for name, kind in vars(importlib.import_module(module.name)).items():
            if inspect.isclass(kind) and dataclasses.is_dataclass(kind) and name[0] != "_":
                yield name
                yield from (one.name for one in dataclasses.fields(kind) if one.name[0] != "_")


def names_of_http() -> Iterator[str]:
    """The schemas of the HTTP API and their fields."""
    document = json.loads((ROOT / "docs" / "reference" / "openapi.json").read_text())
    for name, schema in document["components"]["schemas"].items():
        yield name
        yield from schema.get("properties", ())


def names_of_commands(command: Any) -> Iterator[str]:
    """Commands, arguments and long options."""
    for parameter in command.params:
        yield parameter.name
        for option in (*parameter.opts, *parameter.secondary_opts):
            if option.startswith("--"):
                yield option.removeprefix("--")
    for name, child in getattr(command, "commands", {}).items():
        yield name
        yield from names_of_commands(child)


@cache
def public_names() -> frozenset[str]:
    return frozenset(
        (
            *names_of_the_engine(),
            *names_of_states(),
            *names_of_python(),
            *(set(names_of_errors()) - REFERENCE),
            *names_of_records(),
            *names_of_http(),
            *names_of_commands(typer.main.get_command(command_line)),
        )
    )


@cache
def glossary() -> frozenset[str]:
    """Return the words of the terms that the glossary defines, which stand in bold or as code."""
    text = (ROOT / "docs" / "glossary.md").read_text().replace("back-off", "backoff")
    terms = re.findall(r"\*\*([^*]+)\*\*|`([a-z_]+)`", text)
    return frozenset().union(*(re.findall(r"[a-z]+", " ".join(term).lower()) for term in terms))


# The endings of a form of a word, with what they replace.
PLURALS = {"": ("",), "s": ("",), "es": ("",), "ies": ("y",)}
FORMS = {
    "": ("",),
    "d": ("",),
    "ed": ("",),
    "ied": ("y",),
    "er": ("", "e"),
    "or": ("e",),
    "ing": ("", "e"),
    "able": ("", "e"),
    "ion": ("", "e"),
    "ation": ("e", ""),
    "ition": ("",),
}


def stems(word: str) -> set[str]:
    """Return what a word may be a form of: cancelled of cancel, dependencies of dependency."""
    found = {word}
    for plurals, forms in product(PLURALS.items(), FORMS.items()):
        for ending, replaced in (plurals, forms):
            for stem in tuple(found):
                if ending and stem.endswith(ending) and len(stem) - len(ending) > 1:
                    short = stem.removesuffix(ending)
                    found |= {short + each for each in replaced}
                    if ending not in PLURALS and short[-1:] == short[-2:-1]:
                        found.add(short[:-1])
    return found


def strange(names: Iterable[str]) -> dict[str, set[str]]:
    """Return the names that have words which nobody has defined, with these words."""
    known = glossary() | ORDINARY
    return {
        name: unknown
        for name in names
        if (unknown := {word for word in words_of(name) if not stems(word) & known})
    }


def test_public_names_are_made_of_the_words_of_the_glossary():
    assert strange(public_names()) == {}


async def test_columns_of_views_are_made_of_the_words_of_the_glossary(catalogue):
    rows = await catalogue.fetch(
        "select a.attname from pg_attribute a join pg_class c on c.oid = a.attrelid "
        "where c.relnamespace = 'ff'::regnamespace and c.relname = any ($1) and a.attnum > 0",
        [path.stem for path in (PACKAGE / "sql" / "views").rglob("*.sql")],
    )
    assert len(rows) > 100
    assert strange(row["attname"] for row in rows) == {}


def test_a_word_that_nobody_defined_would_be_found():
    assert strange(["list_unfurled"]) == {"list_unfurled": {"unfurled"}}


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        ("argument of SQL", "on_timeout"),
        ("column of SQL", "grace_left"),
        ("method of the client", "assign_partitions"),
        ("parameter of the client", "patience"),
        ("parameter of App", "factory"),
        ("error", "StreamStalled"),
        ("record", "OperationAnswer"),
        ("field of a record", "graph_revision"),
        ("schema of HTTP", "GroupRule"),
        ("field of HTTP", "first_no"),
        ("command", "mark-dead"),
        ("option", "crash-looping"),
    ],
)
def test_every_layer_gives_its_names(layer, name):
    assert name in public_names(), layer


def test_an_error_that_keeps_the_name_of_the_reference_needs_it():
    kinds = re.findall(r'"(\w+)"', (ROOT / "tools" / "mapping.toml").read_text())
    assert set(strange(REFERENCE)) == REFERENCE
    assert set(kinds) >= REFERENCE


# Words that needed two readings, and were replaced.
REPLACED_TEXT = """
course caught fitting surroundings presence steering steered joining refusals errands departure
heirs leave leaving told untold
"""
REPLACED = frozenset(REPLACED_TEXT.split())


@for_each("file", python_files())
def test_no_name_brings_a_replaced_word_back(file):
    names = {file.stem}
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        found = (getattr(node, part, None) for part in ("name", "id", "attr", "arg"))
        names |= {name for name in found if isinstance(name, str)}
    assert {name for name in names if words_of(name) & REPLACED} == set()


def test_no_ordinary_word_is_listed_in_vain():
    used = set().union(*(stems(word) for name in public_names() for word in words_of(name)))
    defined = {word for word in ORDINARY if stems(word) & glossary()}
    assert (ORDINARY - used, defined) == (set(), set())
