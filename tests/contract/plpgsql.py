"""A small reader of PL/pgSQL: tokens, statements, what a statement changes, and the operands of an
operator. It knows no grammar; it knows where parentheses, CASE and expressions end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal

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
_DEPTH = {"(": 1, "[": 1, "case": 1, ")": -1, "]": -1, "end": -1}
_NAME = re.compile(r'[a-z_][a-z_0-9]*|".*"')

# Words of SQL inside an operand of + and -, and words that end it.
_INNER_WORD = re.compile(
    "array|at|case|cast|double|end|false|interval|null|precision|time|timestamp|timestamptz|true|"
    "zone"
)
_OUTER_WORD = re.compile(
    "all|and|any|as|asc|between|by|conflict|cross|delete|desc|distinct|do|else|exists|filter|first|"
    "for|from|full|group|having|in|inner|insert|into|is|join|last|lateral|left|like|limit|"
    "materialized|not|nothing|nulls|offset|on|only|or|order|over|returning|right|row|select|set|"
    "some|then|union|update|using|values|when|where|with|within"
)
_TIGHT = frozenset({"+", "-", "*", "/", "%", "^", "::", "."})
_ENDINGS = frozenset({",", ";", "=>", ":=", ":", ".."})
_OPERATOR = re.compile(r"[-+*/%<>=&|^?@#!~:]+")

# A subquery with one of them stays a subquery.
_KEEPS = ("offset", "limit")

Kind = Literal["time", "local"] | None
"""What an expression is, by its names: a timestamptz, a timestamp without time zone, or neither."""
_TIME = re.compile(
    r"\w*(?:_ats?|_until|now)|(?:clock|transaction|statement)_timestamp|to_timestamp"
)
# Functions that answer with one of their arguments, or with a part of it.
_CHOOSING = frozenset({"greatest", "least", "coalesce", "nullif", "min", "max", "date_trunc"})


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
    """The place of the parenthesis, bracket or END that closes the one at `opening`."""
    depth = 0
    for place in range(opening, len(found)):
        depth += _DEPTH.get(found[place], 0)
        if depth == 0:
            return place
    raise AssertionError(found)


def split(found: list[str], *separators: str) -> list[list[str]]:
    """The parts between some tokens, outside parentheses and CASE."""
    parts: list[list[str]] = [[]]
    for token, depth in zip(found, _depths(found), strict=True):
        if depth == 0 and token in separators:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _depths(found: list[str]) -> list[int]:
    """How deep each token is. What opens and what closes are as deep as what is between them."""
    after = list(accumulate(_DEPTH.get(token, 0) for token in found))
    return [
        max(depth, depth - _DEPTH.get(token, 0)) for token, depth in zip(found, after, strict=True)
    ]


# What a statement changes


@dataclass(frozen=True)
class Change:
    """An INSERT, UPDATE or DELETE, or the DO UPDATE of an INSERT."""

    verb: str
    words: list[str]
    """All of it, up to RETURNING."""
    returned: list[str]
    """What stands behind RETURNING."""

    @cached_property
    def judged(self) -> list[str]:
        """What Citus judges: all but the subqueries of FROM and USING that stay as they are. The
        planner merges a subquery without OFFSET and LIMIT into the query around it."""
        found: list[str] = []
        is_source = False
        place = 0
        while place < len(self.words):
            word = self.words[place]
            if word in ("from", "using") and self.words[place - 1] != "distinct":
                is_source = True
            elif word in ("set", "where"):
                is_source = False
            end = closing(self.words, place) if word in ("(", "[", "case") else place
            inside = self.words[place + 1 : end]
            if not (is_source and inside[:1] == ["select"] and len(split(inside, *_KEEPS)) > 1):
                found += self.words[place : end + 1]
            place = end + 1
        return found


def changes(statement: list[str]) -> Iterator[Change]:
    for start, token in enumerate(statement):
        before = statement[start - 1] if start else ""
        if token not in ("insert", "update", "delete") or before in ("for", "key"):
            continue
        depth = 0
        end = returning = len(statement)
        for place in range(start, len(statement)):
            depth += _DEPTH.get(statement[place], 0)
            if depth == 0 and statement[place] == "returning":
                returning = place
            if depth < 0:
                end = place
                break
        returning = min(returning, end)
        if token == "update" and before == "do":
            # What the INSERT returns comes with the INSERT.
            yield Change("do update", statement[start:returning], [])
        else:
            yield Change(token, statement[start:returning], statement[returning + 1 : end])


# Expressions


def lazy_parts(found: list[str]) -> Iterator[tuple[int, int]]:
    """Where CASE and COALESCE begin and end."""
    for place, token in enumerate(found):
        if token == "case":
            yield place, closing(found, place)
        elif token == "coalesce":
            yield place, closing(found, place + 1)


def sums(found: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Every sum or difference as a whole, at any depth, with the place of its first operator."""
    seen = set()
    for place in range(1, len(found)):
        if _is_sign(found, place):
            start, end = _reach(found, place, -1), _reach(found, place, 1)
            if (start, end) not in seen:
                seen.add((start, end))
                yield place, found[start + 1 : end]


def adds_span_to_time(found: list[str]) -> bool:
    """Whether a sum adds a duration to a timestamptz, or takes one away, at any of its signs."""
    return any(total == 1 for total in _totals(found, "time")[1:])


def kind(found: list[str]) -> Kind:
    """The kind of an expression."""
    if not found or any(
        depth == 0 and _ends(token) for token, depth in zip(found, _depths(found), strict=True)
    ):
        return None
    if len(_terms(found)) > 1:
        if _totals(found, "time")[-1] == 1:
            return "time"
        return "local" if _totals(found, "local")[-1] == 1 else None
    if len(split(found, "*", "/", "%", "^")) > 1:
        return None
    return _kind_of_term(found)


def _kind_of_term(found: list[str]) -> Kind:
    *before, last = split(found, "zone")
    if before:
        base = kind(_join(before, "zone")[:-2])
        return "time" if base == "local" else "local"
    *before, last = split(found, "::")
    if before:
        return _kind_of_type(last)
    if found[0] == "(":
        inside = found[1:-1]
        if inside[:1] == ["select"]:
            inside = split(split(inside[1:], "from")[0], ",")[0]
        return kind(inside)
    if found[0] == "case":
        branches = split(found[1:-1], "when", "else")
        return _first_kind([split(branch, "then")[-1] for branch in branches])
    if found[-1] == "]":
        return kind(found[: _opening(found, len(found) - 1)])
    if found[-1] == ")":
        place = _opening(found, len(found) - 1)
        name = found[place - 1]
        if name == "cast":
            return _kind_of_type(split(found[place + 1 : -1], "as")[-1])
        if name in _CHOOSING:
            return _first_kind(split(found[place + 1 : -1], ","))
        return "time" if _TIME.fullmatch(name) else None
    if found[-1].startswith("'"):
        return _kind_of_type(found)
    return "time" if _TIME.fullmatch(found[-1]) else None


def columns(found: list[str]) -> list[str]:
    """The names that are neither parameters nor variables, nor a function, a type or a keyword."""
    return [token for place, token in enumerate(found) if _is_column(found, place)]


def calls(found: list[str]) -> Iterator[tuple[str, list[list[str]], int]]:
    """The functions that are called: the name (`ff.` in front of ours), arguments and place."""
    for place in range(len(found) - 1):
        name = found[place]
        if (
            found[place + 1] != "("
            or not _NAME.fullmatch(name)
            or name in ("array", "cast")
            or _OUTER_WORD.fullmatch(name)
            # `unnest(…) u(id)`, `generate_series(…) as g(n)`
            or (place and (found[place - 1] in (")", "as") or _is_name(found[place - 1])))
        ):
            continue
        is_ours = found[max(place - 2, 0) : place] == ["ff", "."]
        arguments = found[place + 2 : closing(found, place + 1)]
        yield ("ff." if is_ours else "") + name, split(arguments, ",", "from"), place


def casts(found: list[str]) -> Iterator[tuple[list[str], list[str], int]]:
    """The casts: the operand, the type and the place."""
    for place, token in enumerate(found):
        if token == "::":
            end = place + 2
            while end + 1 < len(found) and found[end] == ".":
                end += 2
            yield found[_start_of_operand(found, place) : place], found[place + 1 : end], place
        elif token == "cast" and found[place + 1] == "(":
            operand, type_ = split(found[place + 2 : closing(found, place + 1)], "as")
            yield operand, type_, place


def _start_of_operand(found: list[str], place: int) -> int:
    """Where the operand starts that a cast at `place` ends."""
    start = place - 1
    while True:
        if found[start] in (")", "]", "end"):
            start = _opening(found, start)
            if start and found[start] in "([" and _is_name(found[start - 1]):
                start -= 1
        if start and found[start - 1] in (".", "::"):
            start -= 2
        else:
            return start


def _opening(found: list[str], closed: int) -> int:
    depth = 0
    for place in range(closed, -1, -1):
        depth += _DEPTH.get(found[place], 0)
        if depth == 0:
            return place
    raise AssertionError(found)


def _is_name(token: str) -> bool:
    is_word = _OUTER_WORD.fullmatch(token) or _INNER_WORD.fullmatch(token)
    return bool(_NAME.fullmatch(token)) and not is_word


def _is_column(found: list[str], place: int) -> bool:
    before = found[place - 1] if place else ""
    after = found[place + 1] if place + 1 < len(found) else ""
    if not _is_name(found[place]) or after in ("(", ".", "=>") or after.startswith("'"):
        return False
    if before == "::" or before == "as" or found[max(place - 2, 0) : place] == ["extract", "("]:
        return False
    head = found[place - 2] if before == "." else found[place]
    return head != "ff" and not head.startswith(("p_", "v_"))


def _ends(token: str) -> bool:
    """Whether a token is outside the operands of + and -, left and right of it."""
    if _NAME.fullmatch(token):
        return bool(_OUTER_WORD.fullmatch(token))
    return token in _ENDINGS or (bool(_OPERATOR.fullmatch(token)) and token not in _TIGHT)


def _reach(found: list[str], place: int, step: Literal[-1, 1]) -> int:
    """The first place behind the operands, to the left or to the right."""
    depth = 0
    while 0 <= place < len(found):
        depth += step * _DEPTH.get(found[place], 0)
        if depth < 0 or (depth == 0 and _ends(found[place])):
            break
        place += step
    return place


def _is_sign(found: list[str], place: int) -> bool:
    """Whether a + or - stands between two operands."""
    before = found[place - 1] if place else "("
    return found[place] in ("+", "-") and (
        before in (")", "]", "end") or not (_ends(before) or before in _TIGHT | {"(", "[", "case"})
    )


def _terms(found: list[str]) -> list[tuple[int, list[str]]]:
    """The operands of a sum, with their signs."""
    terms: list[tuple[int, list[str]]] = [(1, [])]
    for place, (token, depth) in enumerate(zip(found, _depths(found), strict=True)):
        if depth == 0 and _is_sign(found, place):
            terms.append((1 if token == "+" else -1, []))
        else:
            terms[-1][1].append(token)
    return terms


def _totals(found: list[str], wanted: Kind) -> list[int]:
    """How many operands of a kind are in the sum, less those taken away, after each operand."""
    return list(accumulate(sign * (kind(term) == wanted) for sign, term in _terms(found)))


def _first_kind(found: list[list[str]]) -> Kind:
    kinds = [kind(one) for one in found]
    return "time" if "time" in kinds else "local" if "local" in kinds else None


def _kind_of_type(found: list[str]) -> Kind:
    return {"timestamptz": "time", "timestamp": "local"}.get(found[0])  # type: ignore[return-value]


def _join(parts: list[list[str]], separator: str) -> list[str]:
    joined = parts[0]
    for part in parts[1:]:
        joined = [*joined, separator, *part]
    return joined
