"""Generate docs/reference and docs/internals/mapping.md from the sources.

    python tools/generate.py            write the pages
    python tools/generate.py --check    list outdated pages, and exit with 1

Functions come from the headers and signatures of the SQL files, errors from core/errors.py, the
mapping from tests/contract/mapping and tools/mapping.toml, the Python API from docstrings, and the
command line from its help. The table of transitions is computed by a schema step, so it is read
from a temporary database.
"""

from __future__ import annotations

import ast
import asyncio
import difflib
import inspect
import json
import re
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias

from flowfabric import embedded
from flowfabric.core import errors, states
from flowfabric.core.errors import FlowFabricError
from flowfabric.db.connection import open_connection
from flowfabric.db.library import package_source
from flowfabric.db.migrate import migrate
from flowfabric.doctor import Check, installation_checks, invariants

sys.path.insert(0, str(Path(__file__).parent))
from cli_reference import cli_page
from python_reference import client_page, python_page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MAPPING = Path(__file__).with_name("mapping.toml")
OPERATIONS = ROOT / "tests" / "contract" / "mapping"
NOTE = "<!-- Written by tools/generate.py (make generate). Edit the sources, not this page. -->"
FIELDS = ("Moves", "Refuses", "Locks", "Repeat", "Rights")

# The columns of ff.transition as transitions() reads them.
DIMENSIONS = ("phase", "ownership", "eligibility", "attempt_state")


@dataclass(frozen=True, slots=True)
class Transition:
    """One row of ff.transition.

    Without an event the move is quiet. Without an origin the execution is new.
    """

    number: str
    cause: str
    origin: tuple[str | None, ...]
    target: tuple[str, ...]
    event: str | None


# Values by phase and dimension.
Known: TypeAlias = dict[tuple[str | None, int], set[str]]

READ_TRANSITIONS = """
select number, cause::text,
       from_phase::text, from_ownership::text, from_eligibility::text, from_attempt_state::text,
       to_phase::text, to_ownership::text, to_eligibility::text, to_attempt_state::text,
       event_kind::text
from ff.transition
"""


def transitions(rows: Iterable[Sequence[str | None]]) -> list[Transition]:
    """Return the rows of READ_TRANSITIONS in a fixed order."""
    found = [
        Transition(
            number=str(row[0]),
            cause=str(row[1]),
            origin=tuple(row[2:6]),
            target=tuple(str(value) for value in row[6:10]),
            event=row[10],
        )
        for row in map(tuple, rows)
    ]
    return sorted(
        found,
        key=lambda t: (int(t.number[1:]), t.cause, str(t.origin), str(t.target), t.event or ""),
    )


def pages(moves: list[Transition]) -> dict[str, str]:
    """Return every page by its path below docs."""
    found = {
        "reference/python.md": python_page(NOTE),
        "reference/client.md": client_page(NOTE),
        "reference/cli.md": cli_page(NOTE),
        "reference/functions.md": functions_page(),
        "reference/states.md": states_page(moves),
        "reference/errors.md": errors_page(),
        "reference/events.md": events_page(moves),
        "reference/checks.md": checks_page(),
    }
    return {
        "reference/README.md": contents_page(found),
        **found,
        "internals/mapping.md": mapping_page(),
        "reference/openapi.json": openapi_text(),
    }


def openapi_text() -> str:
    """Return the description of the HTTP API, as the server serves it."""
    from flowfabric import App
    from flowfabric.server import server
    from flowfabric.server.openapi import document

    made = document(server(App(database_url="postgresql://nowhere/x", name="reference")))
    return json.dumps(made, indent=1, sort_keys=True) + "\n"


def contents_page(pages: dict[str, str]) -> str:
    lines = ["# Reference", "", NOTE, "", "These pages are generated from the sources.", ""]
    for name, text in pages.items():
        title, _, first = (part.replace("\n", " ") for part in text.split("\n\n")[:3])
        told = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", re.split(r"(?<=[.:;]) ", first)[0]).rstrip(
            ":;"
        )
        lines.append(f"- [{title.removeprefix('# ')}]({Path(name).name}): {told.rstrip('.')}.")
    return "\n".join(lines) + "\n"


# Functions


@dataclass(frozen=True, slots=True)
class FunctionText:
    """One public function: its header and its signature."""

    name: str
    group: str
    prose: list[str]
    fields: dict[str, str]
    arguments: list[tuple[str, str, str]]
    returns: list[tuple[str, str]]


def functions_page() -> str:
    groups: dict[str, list[FunctionText]] = defaultdict(list)
    for file in package_source().library().files:
        if file.path.startswith("functions/") and "/_" not in file.path:
            function = _function(file.path, file.text)
            groups[function.group].append(function)
    lines = [
        "# Functions",
        "",
        NOTE,
        "",
        "All public functions of the engine; [views](../architecture.md#tables) are for",
        "operators. Call a function with named arguments, and name the columns you want: a later",
        "release may add arguments and columns. A function for many items returns an outcome for",
        "each item; the state of one item never makes the call fail. [Errors](errors.md) lists",
        "the outcomes and codes, [states](states.md) the T-numbers.",
    ]
    for group in sorted(groups):
        lines += ["", f"## {group.capitalize()}"]
        for function in sorted(groups[group], key=lambda f: f.name):
            lines += ["", *_function_section(function)]
    return "\n".join(lines) + "\n"


def _function(path: str, text: str) -> FunctionText:
    header = [line[2:].removeprefix(" ") for line in text.splitlines() if line.startswith("--")]
    prose: list[str] = []
    fields: dict[str, str] = {}
    field = None
    for line in header:
        if match := re.match(rf"({'|'.join(FIELDS)}):\s+(.*)", line):
            field = match[1]
            fields[field] = match[2]
        elif field is not None and line.startswith("  "):
            fields[field] += " " + line.strip()
        elif field is None:
            prose.append(line)
    signature = re.search(
        r"create function ff\.(\w+)\((.*?)\)\s*returns (table \((.*?)\)|\S+)\s*\nlanguage",
        text,
        re.DOTALL,
    )
    assert signature, path
    arguments = [_argument(part) for part in _split(signature[2])]
    returns = (
        [(part.split()[0].strip('"'), " ".join(part.split()[1:])) for part in _split(signature[4])]
        if signature[4]
        else [(signature[1], signature[3])]
    )
    return FunctionText(
        name=signature[1],
        group=path.split("/")[1],
        prose=_paragraphs(prose),
        fields=fields,
        arguments=arguments,
        returns=returns,
    )


def _split(text: str) -> list[str]:
    return [" ".join(part.split()) for part in text.split(",") if part.strip()]


def _argument(text: str) -> tuple[str, str, str]:
    declared, _, default = text.partition(" default ")
    name, kind = declared.split(" ", 1)
    return name, kind, default


def _paragraphs(lines: list[str]) -> list[str]:
    return [" ".join(part.split()) for part in "\n".join(lines).split("\n\n") if part.strip()]


def _function_section(function: FunctionText) -> list[str]:
    lines = [f"### {function.name}", ""]
    for paragraph in function.prose:
        lines += [paragraph, ""]
    for field in FIELDS:
        lines += [f"- **{field}**: {function.fields[field]}"]
    lines += ["", "| argument | type | default |", "|---|---|---|"]
    for name, kind, default in function.arguments:
        lines.append(f"| `{name}` | `{kind}` | {f'`{default}`' if default else ''} |")
    lines += ["", "| returns | type |", "|---|---|"]
    lines += [f"| `{name}` | `{kind}` |" for name, kind in function.returns]
    return lines


# States


def states_page(moves: list[Transition]) -> str:
    lines = [
        "# States",
        "",
        NOTE,
        "",
        "An execution has six independent dimensions; the database derives `public_state` from",
        "them. The values are the same in SQL and in `flowfabric.core.states`.",
        "",
        "| dimension | values |",
        "|---|---|",
    ]
    for name, kind in _enums():
        if name not in ("event_kind",):
            lines.append(f"| `{name}` | {', '.join(f'`{member}`' for member in kind)} |")
    lines += [
        "",
        "## Transitions",
        "",
        f"All {len(moves)} moves that `ff.transition` allows; similar moves share a line.",
        "A state is written phase / ownership / eligibility / attempt state. A list means any of",
        "its values, `any` means every value of an unfinished execution in that phase, `=` means",
        "unchanged, a dash means that the execution does not exist yet. A quiet move has no event",
        "and keeps the version.",
    ]
    by_number: dict[str, list[Transition]] = defaultdict(list)
    for move in moves:
        by_number[move.number].append(move)
    known = _known_origins(moves)
    for number, group in by_number.items():
        causes = ", ".join(sorted({move.cause for move in group}))
        lines += ["", f"### {number}: {causes}", ""]
        lines += [
            "| cause | from | to | event |",
            "|---|---|---|---|",
            *_transition_lines(group, known),
        ]
    return "\n".join(lines) + "\n"


def _transition_lines(group: list[Transition], known: Known) -> list[str]:
    lines = []
    by_cause: dict[str, list[Transition]] = defaultdict(list)
    for move in group:
        by_cause[move.cause].append(move)
    for cause, moves in sorted(by_cause.items()):
        kept = [all(m.origin[n] == m.target[n] for m in moves) for n in range(len(DIMENSIONS))]
        # Similar moves: the same phase and ownership before the move, and the same state after it.
        looks: dict[tuple[object, ...], list[Transition]] = defaultdict(list)
        for move in moves:
            after = tuple(
                "=" if keep else value for keep, value in zip(kept, move.target, strict=True)
            )
            looks[(move.origin[0], move.origin[1], after)].append(move)
        merged: dict[tuple[object, ...], set[str]] = defaultdict(set)
        for (_, _, after), alike in looks.items():
            before = tuple(
                _values({m.origin[n] or "—" for m in alike}, known[(alike[0].origin[0], n)])
                for n in range(len(DIMENSIONS))
            )
            events = {m.event or "quiet" for m in alike}
            merged[(before, after)] |= events
        for (before, after), events in merged.items():
            lines.append(
                f"| {cause} | {_state(before)} | {_state(after)} | {' or '.join(sorted(events))} |"
            )
    return lines


def _known_origins(moves: list[Transition]) -> Known:
    """Return the values that each dimension can have in each phase before a move."""
    known: Known = defaultdict(set)
    for move in moves:
        for n, value in enumerate(move.origin):
            known[(move.origin[0], n)].add(value or "—")
    return known


def _values(values: set[str], known: set[str]) -> str:
    missing = known - values
    if len(known) > 3 and len(missing) < 2:
        return " but ".join(["any", *missing])
    return ", ".join(sorted(values))


def _state(parts: Iterable[object]) -> str:
    texts = [str(part) for part in parts]
    if set(texts) in ({"—"}, {"="}):
        return texts[0]
    return " / ".join(texts)


def _enums() -> list[tuple[str, type[StrEnum]]]:
    return [
        (re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(), kind)
        for name, kind in vars(states).items()
        if inspect.isclass(kind) and issubclass(kind, StrEnum) and kind is not StrEnum
    ]


# Errors


def errors_page() -> str:
    tree = (errors.__doc__ or "").strip().split("\n\n")
    lines = [
        "# Errors",
        "",
        NOTE,
        "",
        "Every error is a `FlowFabricError`. Catch a group to decide what to do:",
        "",
        "```",
        *next(part for part in tree if part.startswith("FlowFabricError")).splitlines(),
        "```",
        "",
        "A code is the SQLSTATE that refuses a whole call; its detail is JSON. A word is the",
        "outcome of one item of a batch. The client raises the same class for both.",
        "",
        "| error | code | word | kind of | meaning |",
        "|---|---|---|---|---|",
    ]
    for kind in _error_classes():
        code, name = (f"`{text}`" if text else "" for text in (kind.code, kind.name))
        parent = "" if kind is FlowFabricError else f"`{kind.__mro__[1].__name__}`"
        meaning = " ".join((kind.__doc__ or "").split())
        lines.append(f"| `{kind.__name__}` | {code} | {name} | {parent} | {meaning} |")
    return "\n".join(lines) + "\n"


def _error_classes() -> list[type[FlowFabricError]]:
    return [
        kind
        for kind in vars(errors).values()
        if inspect.isclass(kind) and issubclass(kind, FlowFabricError)
    ]


# Events

WHEN = {
    "submitted": "An execution was stored; it is eligible or delayed.",
    "claimed": "A worker got a lease and started a new attempt.",
    "resumed": "A worker got a lease and resumed the interrupted attempt.",
    "reclaimed": "A worker reclaimed an execution whose lease was lost, with a new attempt.",
    "released": "A worker released the execution unfinished.",
    "lease_expired": "A lease expired; the execution can be reclaimed.",
    "lease_revoked": "An operator revoked a lease; the execution can be reclaimed.",
    "completed": "The execution ended with a result.",
    "failed": "The execution failed: no retry was left, or it lost too many leases.",
    "retry_scheduled": "An attempt failed; a retry follows at `delayed_until`.",
    "delayed": "The holder delayed the execution.",
    "waiting": "The holder released the execution until other executions have ended.",
    "suspended": "The holder released the execution until a signal arrives.",
    "woken": "A suspension ended by its signal, an operator or its timeout.",
    "escalated": "A suspension timed out and needs an operator.",
    "continued": "The handler continued the execution with new input and a fresh journal.",
    "held": "The execution does not match its journal and waits for an operator.",
    "cancelled": "The execution was cancelled.",
    "expired": "The execution expired: its deadline passed, or its last attempt timed out.",
    "skipped": "The execution was skipped: its dependencies cannot be satisfied.",
    "priority_changed": "An operator changed the priority.",
    "replayed": "An ended execution runs again.",
    "flow_cancel_requested": "A flow was cancelled; its members follow.",
    "webhook_disabled": "A webhook was disabled after too many failures.",
    "blocked": "An operator, a budget, a quota or a route blocks the execution.",
    "unblocked": "The execution is no longer blocked.",
    "promoted": "An actor made a delayed execution eligible before its time.",
    "budget_exceeded": "The execution used more than its budget allows; this budget only warns.",
}


def events_page(moves: list[Transition]) -> str:
    by_kind: dict[str, set[tuple[str, str]]] = defaultdict(set)
    quiet: set[tuple[str, str]] = set()
    for move in moves:
        (quiet if move.event is None else by_kind[move.event]).add((move.number, move.cause))
    lines = [
        "# Events",
        "",
        NOTE,
        "",
        "Every transition that is not quiet appends one row to `ff.event`, in the same statement,",
        "and raises the `version` of its execution by one. The events of one execution are",
        "numbered 1, 2, 3 without a gap. T-numbers refer to [states](states.md). The list",
        "includes causes that the state model allows but no function uses yet.",
        "",
        "| kind | when | written by |",
        "|---|---|---|",
    ]
    lines += [
        f"| `{kind}` | {WHEN[kind]} | {_written_by(by_kind.get(kind, set()))} |"
        for kind in states.EventKind
    ]
    lines += [
        "",
        f"Quiet unless an actor asked: {_written_by(quiet)}.",
        "",
        "## Columns",
        "",
        "| column | type |",
        "|---|---|",
        *(f"| `{name}` | `{kind}` |" for name, kind in _event_columns()),
    ]
    return "\n".join(lines) + "\n"


def _written_by(moves: set[tuple[str, str]]) -> str:
    ordered = sorted(moves, key=lambda move: (int(move[0][1:]), move[1]))
    return ", ".join(f"{number} {cause}" for number, cause in ordered)


def _event_columns() -> list[tuple[str, str]]:
    for step in package_source().steps():
        if match := re.search(r"create table ff\.event \((.*?)\n\)", step.text, re.DOTALL):
            columns = []
            for line in match[1].strip().splitlines():
                name, kind = line.strip().rstrip(",").split(None, 1)
                if name not in ("primary", "constraint"):
                    columns.append((name, " ".join(kind.split()).split(" generated")[0]))
            return [(name, kind.removesuffix(" not null")) for name, kind in columns]
    raise LookupError("no schema step creates ff.event")


# Mapping

SOURCES = {
    "attempt.rs": "attempt.rs: what a worker does",
    "exec_core.rs": "exec_core.rs: creating, reading, cancelling, trimming",
    "operator.rs": "operator.rs: what an operator does",
    "contract": "Other files: the rest of the engine's lifecycle",
}


@dataclass(frozen=True, slots=True)
class OperationText:
    """One operation of the reference that flowfabric has: the text of its check, and the facts that
    the check expects."""

    name: str
    source: str
    difference: str
    sql: list[str]
    python: list[str]
    reasons: list[str]
    facts: list[tuple[str, object]]


@dataclass(frozen=True, slots=True)
class LimitText:
    """One limit: its field, the functions that check it, and the text of the refusal."""

    field: str
    functions: list[str]
    says: str
    paths: list[str] = dataclass_field(default_factory=list)


def operations() -> list[OperationText]:
    """Return every `@operation` in tests/contract/mapping. The files are parsed, not run."""
    found = []
    for source, function, arguments in _decorated("operation"):
        facts = [
            (ast.literal_eval(call.args[0]), ast.literal_eval(call.args[2]))
            for call in ast.walk(function)
            if isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and call.func.id == "see"
        ]
        found.append(
            OperationText(
                source=source,
                difference=" ".join((ast.get_docstring(function) or "").split()),
                facts=facts,
                **arguments,
            )
        )
    return found


def limits() -> list[LimitText]:
    """Return every `@limit` of tests/contract/mapping/limits.py."""
    return [LimitText(**arguments) for _, _, arguments in _decorated("limit")]


def _decorated(decorator: str) -> Iterable[tuple[str, ast.AsyncFunctionDef, dict[str, Any]]]:
    """Yield the SOURCE of each file, each decorated function, and the literal arguments of its
    decorator."""
    for file in sorted(OPERATIONS.glob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        source = ""
        for node in tree.body:
            match node:
                case ast.Assign(
                    targets=[ast.Name(id="SOURCE")], value=ast.Constant(value=str(text))
                ):
                    source = text
                case ast.AsyncFunctionDef(
                    decorator_list=[ast.Call(func=ast.Name(id=name), args=[first], keywords=given)]
                ) if name == decorator:
                    named = {key.arg: key.value for key in given if key.arg not in _UNREAD}
                    arguments = {str(key): ast.literal_eval(value) for key, value in named.items()}
                    label = "name" if decorator == "operation" else "field"
                    yield source, node, {label: ast.literal_eval(first), **arguments}


# The values that a limit is tested with. They need not be literals.
_UNREAD = ("fits", "beyond")


def mapping_page() -> str:
    mapping = tomllib.loads(MAPPING.read_text(encoding="utf-8"))
    done = operations()
    lines = [
        "# Mapping",
        "",
        NOTE,
        "",
        "This page lists the operations and errors of the reference, the FlowFabric backend for",
        "Postgres (`ff_backend_postgres`, 0.10 and 0.11), and their counterparts here. Its names",
        "are taken from its source files, without the suffix `_impl`.",
        "",
        "Every operation that exists here has one test function in `tests/contract/mapping`. This",
        "page is generated from these test functions. Each calls the functions and methods of its",
        "line on real rows. The last column lists the values that it expects; an error is shown",
        "by its class. D-numbers are [defects of the reference](#defects-of-the-reference), four",
        "digits are [decisions](../decisions/README.md).",
        "",
        *_mapping_counts(mapping, len(done)),
    ]
    for source, title in SOURCES.items():
        lines += [
            "",
            f"## {title}",
            "",
            "| theirs | SQL | Python | what differs | why | seen |",
            "|---|---|---|---|---|---|",
            *(_operation_line(each) for each in done if each.source == source),
            *(_undone_line(row) for row in mapping["operation"] if row["source"] == source),
        ]
    lines += [
        *_inner_section(mapping),
        *_feed_section(mapping),
        *_limit_section(),
        *_error_section(mapping),
    ]
    return "\n".join(lines) + "\n"


def _inner_section(mapping: dict[str, Any]) -> list[str]:
    return [
        "",
        "## Inner functions",
        "",
        "The other functions of the three files, and the code that does the same work here.",
        "",
        "| theirs | file | ours | how | tested through |",
        "|---|---|---|---|---|",
        *(
            f"| {_ticked(row['names'])} | {row['source']} | {_ticked(row['ours']) or 'nothing'} "
            f"| {row['note']} | `{row['through']}` |"
            for row in mapping["inner"]
        ),
    ]


def _code(word: str | None) -> str:
    return f"`{word}`" if word else ""


def _feed_section(mapping: dict[str, Any]) -> list[str]:
    return [
        "",
        "## Feeds",
        "",
        "Three of their outboxes are views of one event log. `events.read` and `events.follow`",
        "take the feed as a filter; the views themselves are for operators. Signals have a table",
        "of their own, and `signals.feed` reads it.",
        "",
        "| theirs | view | `Feed` | what it holds |",
        "|---|---|---|---|",
        *(
            f"| `{row['name']}` | `ff.{row['view']}` | {_code(row.get('feed'))} | {row['note']} |"
            for row in mapping["feed"]
        ),
    ]


def _limit_section() -> list[str]:
    return [
        "",
        "## Limits",
        "",
        "A value beyond a limit raises `InvalidInput` with this field, and nothing changes.",
        "The text is the engine's; the client may refuse the value first, with its own text.",
        "`tests/contract/test_mapping.py` tests each limit through one function, with a value just",
        "within the limit and a value just beyond it. The other functions use the same text.",
        "",
        "| field | functions | refusal |",
        "|---|---|---|",
        *(
            f"| `{limit.field}` | {_ticked(limit.functions)} "
            f"| {_ticked(limit.paths)}{': ' if limit.paths else ''}{limit.says} |"
            for limit in limits()
        ),
    ]


def _error_section(mapping: dict[str, Any]) -> list[str]:
    return [
        "",
        "## Errors",
        "",
        "| theirs | kind | ours | code | |",
        "|---|---|---|---|---|",
        *(_error_line(row) for row in mapping["error"]),
        "",
        "## Defects of the reference",
        "",
        "The tests that prevent each defect, or the reason why it cannot occur here yet.",
        "",
        "| number | prevented by |",
        "|---|---|",
        *(f"| {number} | {_defect(tests)} |" for number, tests in mapping["defects"].items()),
        "",
        "## Suspension and signals",
        "",
        "The tests for each defect (C), each line of the test catalogue (82 to 131), each race and",
        "each trap.",
        "",
        "| number or race | shown by |",
        "|---|---|",
        *(f"| {number} | {_defect(tests)} |" for number, tests in mapping["signals"].items()),
        "",
        "## Streams and subscriptions",
        "",
        "The tests for each defect (D and E), each line of the test catalogue (132 to 147), each",
        "race and each trap.",
        "",
        "| number, race or trap | shown by |",
        "|---|---|",
        *(f"| {number} | {_defect(tests)} |" for number, tests in mapping["streams"].items()),
        "",
        "## Admission",
        "",
        "The tests for each defect (F), each line of the test catalogue (148 to 161) and each",
        "trap.",
        "",
        "| number or trap | shown by |",
        "|---|---|",
        *(f"| {number} | {_defect(tests)} |" for number, tests in mapping["admission"].items()),
        "",
        "## Only here",
        "",
        "| function or error | why |",
        "|---|---|",
        *(
            f"| `{name}` | {reason} |"
            for group in mapping["ours_only"].values()
            for name, reason in group.items()
        ),
    ]


def _defect(tests: str | list[str]) -> str:
    if isinstance(tests, str):
        return tests
    return "<br>".join(f"`{test}`" for test in tests)


def _mapping_counts(mapping: dict[str, Any], done: int) -> list[str]:
    counts: dict[str, list[int]] = {name: [0, 0] for name in ("done", "later", "not offered")}
    counts["done"][0] = done
    for row in mapping["operation"]:
        counts[row["status"]][0] += 1
    for row in mapping["error"]:
        counts[row["status"]][1] += len(row["kinds"])
    return [
        "| | operations | kinds of errors |",
        "|---|---|---|",
        *(f"| {name} | {calls} | {kinds} |" for name, (calls, kinds) in counts.items()),
    ]


def _operation_line(operation: OperationText) -> str:
    sql = "<br>".join(f"`{name}`" for name in operation.sql)
    python = "<br>".join(f"`{name}`" for name in operation.python)
    reasons = ", ".join(_reason(reason) for reason in operation.reasons)
    facts = operation.facts
    seen = "<br>".join(f"{key.replace('_', ' ')}: {_fact(value)}" for key, value in facts)
    head = f"| `{operation.name}` | {sql} | {python}"
    return f"{head} | {operation.difference} | {reasons} | {seen} |"


def _undone_line(row: dict[str, Any]) -> str:
    reasons = ", ".join(_reason(reason) for reason in row["reasons"])
    return f"| `{row['name']}` | {_status(row)} |  | {row['difference']} | {reasons} |  |"


def _error_line(row: dict[str, Any]) -> str:
    classes = [getattr(errors, name) for name in row.get("classes", ())]
    ours = _ticked(kind.__name__ for kind in classes) or _status(row)
    codes = _ticked(kind.code for kind in classes if kind.code)
    return f"| {_ticked(row['kinds'])} | {row['group']} | {ours} | {codes} | {row['note']} |"


def _status(row: dict[str, Any]) -> str:
    return f"later: {row['area']}" if row["status"] == "later" else str(row["status"])


def _reason(reason: str) -> str:
    if not reason.isdigit():
        return reason
    (page,) = (DOCS / "decisions").glob(f"{reason}-*.md")
    return f"[{reason}](../decisions/{page.name})"


def _fact(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(_fact(item) for item in value) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_fact(item)}" for key, item in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"`{value}`"


def _ticked(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


# Checks


def checks_page() -> str:
    lines = [
        "# Checks",
        "",
        NOTE,
        "",
        "The checks of `flowfabric doctor`: the installation, then the invariants of the data.",
        "Each is one query that returns no row if there is no problem; `flowfabric doctor",
        "--explain S05` prints it. An invariant holds *always*, in every committed state, or",
        "*soon*: then a finding is a warning first. `doctor --since` also runs the checks that",
        "read *executions* or *the database*; checks that read *everything* run only in a full",
        "pass.",
        "",
        "## Installation",
        "",
    ]
    for check in installation_checks():
        lines += _check_section(check)
    lines += [
        "## Invariants",
        "",
        "The names of invariants of flows begin with F. The summary of a flow is counted on",
        "request and not stored, so it needs no invariant.",
        "",
    ]
    for check in invariants():
        lines += _check_section(check)
    return "\n".join(lines)


def _check_section(check: Check) -> list[str]:
    lines = [f"### {check.name}. {check.title}", "", check.meaning, ""]
    if not check.name.startswith("X"):
        lines += [f"- Holds: {check.holds}", f"- Reads: {check.reads}"]
    return [*lines, f"- Remedy: {check.remedy}", ""]


# The command


async def _read_transitions(url: str) -> list[Transition]:
    async with open_connection(url) as connection:
        await migrate(connection)
        return transitions(await connection.fetch(READ_TRANSITIONS))


def _throwaway_transitions() -> list[Transition]:
    with tempfile.TemporaryDirectory(prefix="ff-generate-") as folder:
        # If this program runs as root, the server runs as another user.
        Path(folder).chmod(0o755)
        with embedded.start(Path(folder), options={"fsync": "off"}) as server:
            return asyncio.run(_read_transitions(server.url))


def outdated(wanted: dict[str, str]) -> list[str]:
    """Return a diff for every outdated page, and a line for every extra page."""
    found = []
    for name, text in wanted.items():
        file = DOCS / name
        present = file.read_text(encoding="utf-8") if file.exists() else ""
        if present != text:
            diff = difflib.unified_diff(
                present.splitlines(), text.splitlines(), f"docs/{name}", "generated"
            )
            found.append("\n".join(diff))
    for folder in sorted({Path(name).parent for name in wanted}):
        for file in sorted((DOCS / folder).glob("*.md")):
            name = str(file.relative_to(DOCS))
            if NOTE in file.read_text(encoding="utf-8") and name not in wanted:
                found.append(f"docs/{name} is no longer generated")
    return found


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print(__doc__)
        return 2
    wanted = pages(_throwaway_transitions())
    if arguments == ["--check"]:
        for problem in (problems := outdated(wanted)):
            print(problem)
        if problems:
            print("docs is out of date; run: make generate")
        return 1 if problems else 0
    for name, text in wanted.items():
        (DOCS / name).parent.mkdir(parents=True, exist_ok=True)
        (DOCS / name).write_text(text, encoding="utf-8")
        print(f"docs/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
