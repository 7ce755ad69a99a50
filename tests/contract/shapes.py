"""The statement shapes that Citus needs, read from the source of a function (sql/README.md).

A small reader of PL/pgSQL: tokens, statements, and the part of a statement that an UPDATE rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from flowfabric.db.citus import COORDINATOR_TABLES

_TOKEN = re.compile(
    r"""(?P<noise>\s+|--[^\n]*|/\*.*?\*/)
      | (?P<text>\b[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*')
      | (?P<name>"(?:[^"]|"")*"|[a-z_][a-z_0-9]*)
      | (?P<number>\d+(?:\.\d+)?)
      | (?P<operator>:=|=>|::|<=|>=|<>|!=|\|\||@>|<@|->>|->|\#>>|\.\.|!~\*?|~\*?|[-+*/%<>=&|^?@\#])
      | (?P<mark>[(),;.\[\]:$])""",
    re.DOTALL | re.VERBOSE,
)
# Words that end what stands before them, outside parentheses and CASE.
_BREAKS = {"then", "else", "elsif", "loop", "begin", "declare", "exception"}
_TIME = re.compile(r"\w*(?:_at|_until|now)")


def tokens(code: str) -> list[str]:
    """The words, texts, numbers and operators, without blanks and comments; texts keep quotes."""
    found: list[str] = []
    place = 0
    while place < len(code):
        match = _TOKEN.match(code, place)
        assert match, code[place : place + 40]
        if not match["noise"]:
            found.append(match[0])
        place = match.end()
    return found


def body_of(text: str) -> str:
    """What stands between the dollar signs."""
    parts = text.split("$$")
    assert len(parts) == 3, text[:200]
    return parts[1]


def statements(code: str) -> Iterator[list[str]]:
    """The statements of a PL/pgSQL body. A condition (`if …`) is one of its own."""
    statement: list[str] = []
    parentheses = cases = 0
    for token in tokens(code):
        if token == "(":
            parentheses += 1
        elif token == ")":
            parentheses -= 1
        elif token == "case":
            cases += 1
        is_end_of_case = token == "end" and cases > 0
        if is_end_of_case:
            cases -= 1
        is_break = token == ";" or token in _BREAKS
        if is_break and not parentheses and not cases and not is_end_of_case:
            if statement:
                yield statement
            statement = []
        else:
            statement.append(token)
    if statement:
        yield statement


def closing(found: list[str], opening: int) -> int:
    """The place of the parenthesis that closes the one at `opening`."""
    depth = 0
    for place in range(opening, len(found)):
        depth += {"(": 1, ")": -1}.get(found[place], 0)
        if depth == 0:
            return place
    raise AssertionError(found)


def opening(found: list[str], closed: int) -> int:
    """The place of the parenthesis that the one at `closed` closes."""
    depth = 0
    for place in range(closed, -1, -1):
        depth += {"(": -1, ")": 1}.get(found[place], 0)
        if depth == 0:
            return place
    raise AssertionError(found)


@dataclass(frozen=True)
class Library:
    """What the rules need to know of all functions."""

    partitioned: frozenset[str]
    """The tables with a partition_key."""
    querying: frozenset[str]
    """The functions that read or write a table."""
    composites: frozenset[str] = field(default=frozenset({"verdict"}))
    """The row types, beside those of the tables."""
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


def updates(statement: list[str]) -> Iterator[list[str]]:
    """The part of every UPDATE from its SET to its end or its RETURNING, and so for DO UPDATE."""
    for start, token in enumerate(statement):
        if token != "update" or (start and statement[start - 1] in ("for", "key")):
            continue
        depth = 0
        end = len(statement)
        for place in range(start, len(statement)):
            depth += {"(": 1, ")": -1}.get(statement[place], 0)
            if depth < 0 or (depth == 0 and statement[place] == "returning"):
                end = place
                break
        yield statement[start:end]


# The rules. Each yields what is wrong.


def rule_1(statement: list[str], library: Library) -> Iterator[str]:
    """The partition is the parameter."""
    for place, token in enumerate(statement[:-2]):
        if token == "partition_key" and statement[place + 1] == "=":
            if statement[place + 2] != "p_partition_key":
                yield _words(statement, place - 2, place + 5)
        elif statement[place + 1 : place + 3] == ["=", "partition_key"]:
            yield _words(statement, place, place + 5)
    for place in library.mentions(statement):
        if statement[place - 3] != "into":
            continue
        columns = statement.index("(", place)
        assert statement[columns + 1] == "partition_key", _words(statement, place, place + 6)
        after = closing(statement, columns) + 1
        if statement[after] == "overriding":
            after += 3
        if statement[after] == "values":
            after += 1
        if statement[after + 1] != "p_partition_key":
            yield _words(statement, after, after + 4)


def rule_2(statement: list[str], library: Library) -> Iterator[str]:
    """In UPDATE, no `timestamptz + interval` over columns; in DO UPDATE, none at all."""
    for update in updates(statement):
        is_of_conflict = update[1] == "set"
        for place, token in enumerate(update):
            if token not in ("+", "-"):
                continue
            left, right = _left(update, place), _right(update, place)
            if left[-4:-1] == ["at", "time", "zone"]:
                continue
            is_time = any(_TIME.fullmatch(word) for word in left)
            is_span = token == "-" and any(_TIME.fullmatch(word) for word in right)
            is_over_columns = "." in left or "." in right
            if is_time and not is_span and (is_over_columns or is_of_conflict):
                yield " ".join([*left, token, *right])


def rule_3(statement: list[str], library: Library) -> Iterator[str]:
    """In UPDATE, searched CASE, no enum cast inside COALESCE, and only immutable functions."""
    for update in updates(statement):
        if "session_user" in update:
            yield "session_user in UPDATE"
        for place in range(len(update) - 3):
            name = update[place + 2]
            if (
                update[place : place + 2] == ["ff", "."]
                and update[place + 3] == "("
                and name not in library.immutable
                and update[place - 1] not in ("from", "join", "using", ",", "into")
            ):
                yield f"ff.{name}(…) in UPDATE"
        for place, token in enumerate(update[:-1]):
            if token == "case" and update[place + 1] != "when":
                yield _words(update, place, place + 6)
            if token == "coalesce" and update[place + 1] == "(":
                inside = update[place : closing(update, place + 1)]
                for cast in range(len(inside) - 2):
                    if inside[cast : cast + 2] == ["::", "ff"]:
                        yield " ".join(inside)


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
    start = declaration.index("(")
    types = "|".join(library.composites | library.partitioned)
    declared = " ".join(declaration[start : closing(declaration, start)])
    for match in re.finditer(rf"\b(p_\w+) ff \. (?:{types}) \[ \]", declared):
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
    if made not in (["drop function", "create function"], ["create or"]):
        found.append(f"8: {made}")
    found += [
        f"8: {' '.join(statement[:3])}"
        for statement in statements(body_of(text))
        if statement[0] in ("create", "alter", "drop", "truncate")
    ]
    return found


def _words(statement: list[str], start: int, end: int) -> str:
    return " ".join(statement[max(start, 0) : end])


def _left(found: list[str], place: int) -> list[str]:
    """The operand before an operator."""
    start = place - 1
    if found[start].startswith("'") and found[start - 3 : start] == ["at", "time", "zone"]:
        return found[start - 3 : place]
    if found[start] == ")":
        start = opening(found, start)
        if re.fullmatch(r"\w+", found[start - 1]):
            start -= 1
    elif found[start] == "end":
        depth = 0
        while True:
            depth += {"end": 1, "case": -1}.get(found[start], 0)
            if depth == 0:
                break
            start -= 1
    while found[start - 1] == ".":
        start -= 2
    return found[start:place]


def _right(found: list[str], place: int) -> list[str]:
    """The operand after an operator."""
    end = place + 1
    if found[end] == "case":
        depth = 0
        while True:
            depth += {"case": 1, "end": -1}.get(found[end], 0)
            if depth == 0:
                break
            end += 1
    while end + 1 < len(found) and found[end + 1] == ".":
        end += 2
    if found[end] == "(":
        end = closing(found, end)
    elif end + 1 < len(found) and found[end + 1] == "(":
        end = closing(found, end + 1)
    return found[place + 1 : end + 1]
