"""The statement shapes that Citus needs, read from the source of a function (sql/README.md)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from flowfabric.db.citus import COORDINATOR_TABLES

from .plpgsql import (
    adds_span_to_time,
    body_of,
    calls,
    casts,
    changes,
    closing,
    columns,
    kind,
    lazy_parts,
    split,
    statements,
    sums,
    tokens,
)

# Forms of SQL that look like a function.
_FORMS = frozenset({"coalesce", "greatest", "least", "nullif"})
# Functions of PostgreSQL that are immutable, whatever the types of their arguments.
IMMUTABLE = frozenset(
    {
        "array_agg",
        "array_fill",
        "cardinality",
        "ceil",
        "count",
        "floor",
        "get_byte",
        "max",
        "min",
        "num_nonnulls",
        "octet_length",
        "power",
        "row_number",
        "sum",
        "unnest",
        "uuid_send",
    }
)
# They read the time zone of the session if an argument is a timestamptz.
_OF_TIME = frozenset({"date_part", "date_trunc", "extract"})
# Casts to these types read settings of the session, or the labels of an enum.
_UNSURE_TYPE = re.compile("date|ff|interval|regclass|time|timestamp|timestamptz")
# What may stand before and behind the condition on the partition.
_BEFORE = re.compile("where|and|on")
_BEHIND = re.compile(
    r"\)|and|cross|for|group|join|left|limit|offset|on|order|returning|union|where"
)


@dataclass(frozen=True)
class Library:
    """What the rules need to know of all functions."""

    partitioned: frozenset[str]
    """The tables with a partition_key."""
    querying: frozenset[str]
    """The functions that read or write a table."""
    composites: frozenset[str]
    """The row types, with those of the tables."""
    immutable: frozenset[str] = frozenset()
    """The functions that are declared immutable."""

    def is_touched(self, statement: list[str]) -> bool:
        """Whether the statement names a partitioned table."""
        return any(True for _ in self.mentions(statement))

    def mentions(self, statement: list[str]) -> Iterator[int]:
        """Where the statement reads or writes a partitioned table, by the place of its name."""
        for place in range(3, len(statement)):
            if (
                statement[place - 3] in ("from", "join", "update", "into", "using", "only", ",")
                and statement[place - 2 : place] == ["ff", "."]
                and statement[place].strip('"') in self.partitioned
            ):
                yield place


def querying_functions(bodies: dict[str, str]) -> frozenset[str]:
    """The functions that read or write a table, or call one that does."""
    found = {
        name
        for name, body in bodies.items()
        if re.search(r"\b(?:from|join|update|into|only)\s+ff\.\w+\b(?!\()", body)
    }
    while True:
        more = {
            name
            for name, body in bodies.items()
            if name not in found and found & set(re.findall(r"\bff\.(\w+)\(", body))
        }
        if not more:
            return frozenset(found)
        found |= more


def immutable_functions(texts: Iterable[str]) -> frozenset[str]:
    """The functions that are declared immutable."""
    return frozenset(
        match[1]
        for text in texts
        if (match := re.search(r"create (?:or replace )?function ff\.(\w+)", text))
        and re.search(r"^immutable$", text.split("$$")[0], re.MULTILINE)
    )


def row_types(texts: Iterable[str]) -> frozenset[str]:
    """The composite types and the tables that some SQL creates."""
    made = re.compile(
        r'^create (?:table (?:if not exists )?ff\.("?\w+"?)|type ff\.(\w+) as \()', re.MULTILINE
    )
    return frozenset(
        (match[1] or match[2]).strip('"') for text in texts for match in made.finditer(text)
    )


# The rules. Each yields what is wrong.


def rule_1(statement: list[str], library: Library) -> Iterator[str]:
    """The partition is the parameter."""
    if not library.is_touched(statement):
        return
    if "natural" in statement:
        yield "natural join"
    targets = set(_key_columns(statement))
    for place, token in enumerate(statement):
        if token.strip('"') != "partition_key" or place in targets:
            continue
        start = place - 2 if statement[place - 1] == "." else place
        if statement[start].startswith(("p_", "v_")):
            continue
        is_sound = (
            statement[place + 1 : place + 3] == ["=", "p_partition_key"]
            and _BEFORE.fullmatch(statement[start - 1])
            and (place + 3 == len(statement) or _BEHIND.fullmatch(statement[place + 3]))
        )
        if not is_sound:
            yield _words(statement, start - 2, place + 5)
    for place in library.mentions(statement):
        if statement[place - 3] == "into":
            yield from _other_partitions(statement, place)


def _key_columns(statement: list[str]) -> Iterator[int]:
    """Where the first column of an INSERT, or of its ON CONFLICT, is named."""
    for place, token in enumerate(statement):
        if token == "into" and statement[place - 1] == "insert":
            yield statement.index("(", place) + 1
        elif statement[place : place + 3] == ["on", "conflict", "("]:
            yield place + 3


def _other_partitions(statement: list[str], table: int) -> Iterator[str]:
    """Yield what an INSERT writes as the partition besides the parameter."""
    opened = statement.index("(", table)
    if statement[opened + 1] != "partition_key":
        yield _words(statement, table, opened + 4)
        return
    source = statement[closing(statement, opened) + 1 :]
    if source[0] == "overriding":
        source = source[3:]
    if source[0] == "values":
        rows = [one[1:-1] for one in split(split(source[1:], "on", "returning")[0], ",")]
    else:
        rows = [part[part.index("select") + 1 :] for part in split(source, "union")]
    for row in rows:
        value = split(row, ",", "from", "on", "where", ")")[0]
        if value != ["p_partition_key"]:
            yield " ".join(value)


def rule_2(statement: list[str], library: Library) -> Iterator[str]:
    """In UPDATE and DELETE, no `timestamptz + interval` over columns, nor in CASE and COALESCE; in
    DO UPDATE and RETURNING, none at all."""
    for part, is_strict in _judged(statement):
        for place, found in sums(part):
            if adds_span_to_time(found) and (is_strict or columns(found) or _is_lazy(part, place)):
                yield " ".join(found)


def rule_3(statement: list[str], library: Library) -> Iterator[str]:
    """In UPDATE, DELETE and RETURNING, searched CASE, only immutable functions, and no cast to an
    enum, a time or a text where it may depend on more than its operand."""
    for part, is_strict in _judged(statement):
        if "session_user" in part:
            yield "session_user"
        for place, token in enumerate(part[:-1]):
            if token == "case" and part[place + 1] != "when":
                yield _words(part, place, place + 6)
        for name, arguments, place in calls(part):
            before = part[place - (3 if name.startswith("ff.") else 1)] if place else ""
            is_read = before in ("from", "join", "lateral", "using")
            if not _is_immutable(name, arguments, library) and not is_read:
                yield f"{name}(…)"
        for operand, type_, place in casts(part):
            is_stored = bool(columns(operand))
            if operand[0].startswith("'"):
                continue
            if (
                _UNSURE_TYPE.fullmatch(type_[0])
                and (is_strict or is_stored or _is_lazy(part, place))
            ) or (type_ == ["text"] and (is_stored or kind(operand) == "time")):
                yield f"{' '.join(operand)} :: {' '.join(type_)}"


def _judged(statement: list[str]) -> Iterator[tuple[list[str], bool]]:
    """The expressions that Citus judges, and whether it refuses every mutable one: otherwise only
    those over columns and those in CASE and COALESCE."""
    for change in changes(statement):
        if change.verb != "insert":
            yield change.judged, change.verb == "do update"
        yield change.returned, True


def _is_lazy(part: list[str], place: int) -> bool:
    return any(start < place < end for start, end in lazy_parts(part))


def _is_immutable(name: str, arguments: list[list[str]], library: Library) -> bool:
    if name.startswith("ff."):
        return name[3:] in library.immutable
    if name in _OF_TIME:
        return "time" not in map(kind, arguments)
    return name in IMMUTABLE | _FORMS or (name == "to_timestamp" and len(arguments) == 1)


def rule_4(statement: list[str], library: Library) -> Iterator[str]:
    """An INSERT into a partitioned table is the outermost statement."""
    for place in library.mentions(statement):
        before = statement[: place - 3]
        if statement[place - 4 : place - 2] == ["insert", "into"] and before.count(
            "("
        ) > before.count(")"):
            yield _words(statement, place - 4, place + 1)


def rule_5(statement: list[str], library: Library) -> Iterator[str]:
    """No function that queries is called inside a query on partitioned tables."""
    if not library.is_touched(statement):
        return
    for place in range(2, len(statement) - 1):
        if (
            statement[place - 2 : place] == ["ff", "."]
            and statement[place + 1] == "("
            and statement[place] in library.querying
            and statement[place - 3] != "into"
        ):
            yield f"ff.{statement[place]}(…) in a query on partitioned tables"


def rule_9(statement: list[str], library: Library) -> Iterator[str]:
    """The VALUES of an INSERT contain no subquery."""
    for place in range(len(statement) - 1):
        if statement[place : place + 2] != ["values", "("] or "insert" not in statement[:place]:
            continue
        inside = statement[place : closing(statement, place + 1)]
        if "select" in inside:
            yield _words(inside, inside.index("select") - 1, len(inside))


def rule_10(statement: list[str], library: Library) -> Iterator[str]:
    """A query on the tables of the coordinator touches no partitioned table, unless it reads them
    first, in a materialized CTE."""
    names = {
        statement[place]
        for place in range(3, len(statement))
        if statement[place - 2 : place] == ["ff", "."]
        and statement[place - 3] in ("from", "join", "update", "into", "using", ",")
        and statement[place] in COORDINATOR_TABLES
    }
    if names and library.is_touched(statement) and "materialized" not in statement:
        yield f"ff.{', ff.'.join(sorted(names))} with partitioned tables"


RULES = {
    "1": rule_1,
    "2": rule_2,
    "3": rule_3,
    "4": rule_4,
    "5": rule_5,
    "9": rule_9,
    "10": rule_10,
}


def empty_tests(text: str, library: Library) -> Iterator[str]:
    """Rule 11, for a function over all partitions: EXISTS selects something."""
    for statement in statements(body_of(text)):
        if not library.is_touched(statement):
            continue
        for place in range(len(statement) - 3):
            if statement[place : place + 4] == ["exists", "(", "select", "from"]:
                yield f"11: {_words(statement, place, place + 8)}"


def rowless_laterals(text: str, library: Library) -> Iterator[str]:
    """Rule 13, for a function over all partitions: a lateral subquery reads a table."""
    for statement in statements(body_of(text)):
        if not library.is_touched(statement):
            continue
        for place in range(len(statement) - 2):
            if statement[place : place + 3] != ["lateral", "(", "select"]:
                continue
            depth = 0
            for token in statement[place + 1 : closing(statement, place + 1)]:
                depth += (token == "(") - (token == ")")
                if depth == 1 and token == "from":
                    break
            else:
                yield f"13: {_words(statement, place, place + 8)}"


def reached(names: Iterable[str], bodies: dict[str, str]) -> frozenset[str]:
    """The functions that some functions call, directly or through others, and these themselves."""
    found = set(names)
    while True:
        called = {one for name in found for one in re.findall(r"\bff\.(\w+)\(", bodies[name])}
        if not (more := (called & bodies.keys()) - found):
            return frozenset(found)
        found |= more


def mixed_reads(text: str, library: Library) -> Iterator[str]:
    """Rule 12, for what is always delegated: a query on partitioned tables reads no other table."""
    for statement in statements(body_of(text)):
        if not library.is_touched(statement):
            continue
        for place in range(3, len(statement)):
            name = statement[place].strip('"')
            is_called = statement[place + 1 : place + 2] == ["("] and statement[place - 3] != "into"
            if (
                statement[place - 3] in ("from", "join", "update", "into", "using", "only", ",")
                and statement[place - 2 : place] == ["ff", "."]
                and name not in library.partitioned
                and not is_called
            ):
                yield f"12: ff.{name} with partitioned tables"


def composite_parameters(text: str, library: Library) -> Iterator[str]:
    """Rule 6: no parameter is an array of rows."""
    declaration = tokens(text.split("$$")[0])
    if declaration == ["do"]:
        return
    start = declaration.index("(")
    types = "|".join(sorted(library.composites))
    declared = " ".join(declaration[start : closing(declaration, start)])
    for match in re.finditer(rf'\b(p_\w+) ff \. "?(?:{types})"? (?:\[|array\b)', declared):
        yield match[1]


def problems(text: str, library: Library) -> list[str]:
    """What is wrong with a function file, each as `rule: what`."""
    found = [
        f"{number}: {problem}"
        for statement in statements(body_of(text))
        for number, rule in RULES.items()
        for problem in rule(statement, library)
    ]
    found += [f"6: {name} is an array of rows" for name in composite_parameters(text, library)]
    declaration = tokens(text.split("$$")[0])
    if "plan_cache_mode" in declaration:
        found.append("7: plan_cache_mode is set")
    made = [" ".join(declaration[:2])] + [
        " ".join(declaration[place + 1 : place + 3])
        for place, token in enumerate(declaration[:-2])
        if token == ";"
    ]
    if made not in (["drop function", "create function"], ["create or"], ["do"]):
        found.append(f"8: {made}")
    found += [
        f"8: {' '.join(statement[:3])}"
        for statement in statements(body_of(text))
        if statement[0] in ("create", "alter", "drop", "truncate")
    ]
    return found


def _words(statement: list[str], start: int, end: int) -> str:
    return " ".join(statement[max(start, 0) : end])
