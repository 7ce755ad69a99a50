"""Calls of the engine name exactly the arguments of their function; rows are read by name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

import pytest

from flowfabric.core.execution import Claimed, Progress
from flowfabric.db import functions
from flowfabric.db.functions import SET_LANE, Function, Read, Statement
from flowfabric.db.records import array_reader, reader
from support.cases import for_each

from .sources import PACKAGE, python_files

STATEMENTS = {
    name: value for name, value in vars(functions).items() if isinstance(value, Function | Read)
}
# Records that hold a statement and its arguments, or the function that makes those.
BUILT = {"Ask", "Form"}
# Arguments of the call itself.
OWN = {"patience"}

Def = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Wrapper:
    """A function that passes a statement and arguments of its caller's on to a call."""

    place: int  # of the statement among the arguments, without self
    adds: frozenset[str]  # what it passes itself
    takes: frozenset[str]  # its own parameters, which are no arguments of the statement


@dataclass
class Sources:
    """What the calls are read from: all modules, and what their `**` can stand for."""

    trees: dict[str, ast.Module]
    dicts: dict[str, set[str]] = field(default_factory=dict)
    makers: dict[str, set[str]] = field(default_factory=dict)
    wrappers: dict[str, Wrapper] = field(default_factory=dict)


def defs(tree: ast.AST) -> Iterator[Def]:
    return (node for node in ast.walk(tree) if isinstance(node, Def))


def name_of(node: ast.expr) -> str:
    """The last part of a name: `call` of `self._database.call`."""
    return str(getattr(node, "attr", getattr(node, "id", "")))


def constants(tree: ast.Module) -> ast.Module:
    """What a module does when it is imported, but for its functions and classes."""
    return ast.Module([line for line in tree.body if isinstance(line, ast.Assign)], [])


@cache
def sources() -> Sources:
    found = Sources(
        {
            str(file.relative_to(PACKAGE)): ast.parse(text)
            for file in python_files()
            if "flowfabric.db" in (text := file.read_text(encoding="utf-8"))
        }
    )
    for tree in found.trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and "TypedDict" in map(ast.unparse, node.bases):
                found.dicts[node.name] = {
                    line.target.id
                    for line in node.body
                    if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
                }
    for tree in found.trees.values():
        for one in defs(tree):
            if one.returns is not None and ast.unparse(one.returns) in found.dicts:
                found.makers[one.name] = found.dicts[ast.unparse(one.returns)]
    for _ in range(2):  # a wrapper may wrap a wrapper
        for tree in found.trees.values():
            for one in defs(tree):
                if (wrapper := wrapper_of(one, found)) is not None:
                    found.wrappers[one.name] = wrapper
    return found


def wrapper_of(one: Def, found: Sources) -> Wrapper | None:
    names = [argument.arg for argument in one.args.args if argument.arg != "self"]
    kinds = {argument.arg: argument.annotation for argument in one.args.args}
    place = [
        index
        for index, name in enumerate(names)
        if (kind := kinds[name]) is not None and ast.unparse(kind) in ("Function", "Statement")
    ]
    if not place:
        return None
    passed = one.args.kwarg.arg if one.args.kwarg else None
    for call, statement in calls_in(one, found):
        if isinstance(statement, ast.Name) and statement.id == names[place[0]]:
            keywords = [k for k in keywords_of(call) if k.arg or ast.unparse(k.value) != passed]
            return Wrapper(
                place[0],
                frozenset(given_names(keywords, one, found)),
                frozenset(argument.arg for argument in one.args.kwonlyargs),
            )
    return None


def calls_in(one: ast.AST, found: Sources) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Every call of the engine in a function, direct or through a wrapper, and its statement."""
    for node in ast.walk(one):
        if not isinstance(node, ast.Call):
            continue
        name = name_of(node.func)
        if name in ("call", *BUILT) and node.args and is_statement(node.args[0]):
            yield node, node.args[0]
        elif name == "bind" and is_statement(node.func.value):
            yield node, node.func.value
        elif (wrapper := found.wrappers.get(name)) and len(node.args) > wrapper.place:
            yield node, node.args[wrapper.place]


def keywords_of(call: ast.Call) -> list[ast.keyword]:
    """The named arguments of a call, of a record that holds one, or of `statement.bind`."""
    name = name_of(call.func)
    if name in BUILT:
        return [ast.keyword(None, call.args[1])]
    return [ast.keyword(None, call.args[0])] if name == "bind" else call.keywords


def is_statement(node: ast.expr) -> bool:
    """A constant of db.functions, or a parameter that holds one."""
    name = name_of(node)
    return name in STATEMENTS or name in ("statement", "operation", "function")


def given_names(keywords: list[ast.keyword], one: ast.AST, found: Sources) -> list[str]:
    names: list[str] = []
    for keyword in keywords:
        if keyword.arg is not None:
            names.append(keyword.arg)
        else:
            names += sorted(spread_names(keyword.value, one, found))
    return names


def spread_names(value: ast.expr, one: ast.AST, found: Sources) -> set[str]:
    """The names in `**value`: a dict, a call that makes a TypedDict, a variable that holds one, or
    the function that makes it."""
    if isinstance(value, ast.Dict):
        return {str(ast.literal_eval(key)) for key in value.keys if key is not None}
    if isinstance(value, ast.Name):
        for node in ast.walk(one):
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.value, ast.Call)
                and value.id in [ast.unparse(target) for target in node.targets]
            ):
                value = node.value
                break
    function = value.func if isinstance(value, ast.Call) else value
    maker = name_of(function)
    if maker in found.makers:
        return found.makers[maker]
    raise AssertionError(f"**{ast.unparse(value)} names no arguments")


def all_calls() -> list[tuple[str, str, list[str], Statement]]:
    """Every call in the package: where, its statement's name, the names given, the statement."""
    found = sources()
    calls = []
    for file, tree in found.trees.items():
        for one in (constants(tree), *defs(tree)):
            inner = {
                id(node) for other in defs(one) if other is not one for node in ast.walk(other)
            }
            for call, statement in calls_in(one, found):
                name = name_of(statement)
                if id(call) in inner or name not in STATEMENTS:
                    continue
                called = name_of(call.func)
                wrapper = found.wrappers.get(called, Wrapper(0, frozenset(), frozenset()))
                names = given_names(keywords_of(call), one, found)
                names = [name for name in names if name not in wrapper.takes - wrapper.adds]
                names += wrapper.adds - set(names)
                calls.append((f"{file}:{call.lineno}", name, names, STATEMENTS[name]))
    return calls


def test_every_call_names_exactly_the_arguments_of_its_function():
    for where, name, names, statement in all_calls():
        named = [one for one in names if one not in OWN]
        assert sorted(named) == sorted(statement.arguments), f"{where} {name}"


def test_every_statement_is_called_somewhere():
    """So that the test above has looked at all of them, whatever the calls look like."""
    called = {name for _, name, _, _ in all_calls()}
    assert {*STATEMENTS} - called == set()


def passed_by_position(call: ast.Call, found: Sources) -> list[ast.expr]:
    """The arguments of a statement that a call passes without their names."""
    called = name_of(call.func)
    for place, node in enumerate(call.args):
        is_text = isinstance(node, ast.Attribute) and node.attr == "text"
        name = name_of(node.value if is_text else node)
        if name in STATEMENTS and called not in {*BUILT, *found.wrappers}:
            return [one for one in call.args[place + 1 :] if not is_bound(one)]
    return []


def is_bound(node: ast.expr) -> bool:
    """Whether this is `*STATEMENT.bind(...)`."""
    return (
        isinstance(node, ast.Starred)
        and isinstance(node.value, ast.Call)
        and getattr(node.value.func, "attr", "") == "bind"
    )


def test_no_call_passes_the_arguments_of_its_function_by_position():
    found = sources()
    for file, tree in found.trees.items():
        for node in ast.walk(tree):
            passed = passed_by_position(node, found) if isinstance(node, ast.Call) else []
            assert passed == [], f"{file}: {ast.unparse(node)}"


def test_rows_are_read_by_columns_that_a_statement_of_the_module_has():
    for file, tree in sources().trees.items():
        named = {name for node in ast.walk(tree) if (name := name_of(node))}
        columns = {column for name in named & {*STATEMENTS} for column in STATEMENTS[name].columns}
        columns |= {"submit_flow"} if "flow_plan" in named else set()
        if not columns:
            continue
        read = {
            node.slice.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Subscript)
            and isinstance(node.slice, ast.Constant)
            and isinstance(node.slice.value, str)
            and ast.unparse(node.value) in ("row", "last", "rows[0]", "rows[-1]")
        }
        # What `operations` and `outcomes` read for others is a column of every such answer.
        assert read - columns - {"outcome", "detail"} == set(), file


def by_position(node: ast.AST) -> bool:
    """Whether this is a row whose values are told apart by their positions, or a record that takes
    whatever columns a row has."""
    if isinstance(node, ast.Starred):
        return isinstance(node.ctx, ast.Load) and is_row(node.value)
    if isinstance(node, ast.Subscript):
        is_number = isinstance(node.slice, ast.Slice | ast.UnaryOp) or (
            isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int)
        )
        return is_number and is_row(node.value)
    if isinstance(node, ast.Assign):
        return isinstance(node.targets[0], ast.Tuple) and is_row(node.value)
    if isinstance(node, ast.For | ast.comprehension):
        return ast.unparse(node.iter) == "rows" and not isinstance(node.target, ast.Name)
    return isinstance(node, ast.keyword) and node.arg is None and is_row(node.value)


def is_row(node: ast.expr) -> bool:
    """Whether this is a row of an answer: `row`, one of `rows`, or `(await call(...))[0]`."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("dict", "tuple", "list"):
        return bool(node.args) and is_row(node.args[0])
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant | ast.UnaryOp):
        return ast.unparse(node.value) == "rows" or isinstance(node.value, ast.Await)
    return ast.unparse(node) == "row"


def is_copied(node: ast.AST) -> bool:
    """Whether this is `dict(row)`: whoever gets it cannot know its columns."""
    return isinstance(node, ast.Call) and is_row(node)


@for_each("file", [file for file in python_files() if "drawing" not in file.parts])
def test_no_row_is_taken_apart_by_position(file):
    tree = ast.parse(file.read_text(encoding="utf-8"))
    found = [ast.unparse(node) for node in ast.walk(tree) if by_position(node)]
    if file.is_relative_to(PACKAGE / "client"):  # doctor and testing return rows of any query
        found += [ast.unparse(node) for node in ast.walk(tree) if is_copied(node)]
    assert found == []


def is_defaulted(node: ast.AST) -> bool:
    """Whether this is `row.get(...)`: a default would hide that the statement lacks the column."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "get"
        and is_row(node.func.value)
    )


def test_no_missing_column_of_a_row_gets_a_default():
    for file, tree in sources().trees.items():
        found = [ast.unparse(node) for node in ast.walk(tree) if is_defaulted(node)]
        assert found == [], file
    assert is_defaulted(ast.parse('row.get("outcome", "x")').body[0].value)


@pytest.mark.parametrize(
    "given",
    [
        {"channel": "c"},
        {"channel": "c", "payload": "", "more": 1},
        {"channel": "c", "paylod": ""},
        {},
    ],
)
def test_a_call_with_a_wrong_or_missing_name_is_refused(given):
    with pytest.raises(TypeError, match=r"hint: arguments missing .* unknown"):
        functions.HINT.bind(given)
    assert functions.HINT.bind({"payload": "", "channel": "c"}) == ["c", ""]


def test_a_record_that_does_not_fit_its_statement_is_refused_at_import():
    columns = "progress_percent progress_message progressed_at"
    with pytest.raises(TypeError, match=r"Progress does not fit read_progress: \['at', "):
        reader(Progress, functions.READ_PROGRESS)
    with pytest.raises(TypeError, match="fit read_progress"):
        reader(Progress, functions.READ_PROGRESS, given="percent message when", unread=columns)
    with pytest.raises(TypeError, match="has no default"):
        reader(Progress, functions.READ_PROGRESS, default="percent message at", unread=columns)
    read = reader(Progress, functions.READ_PROGRESS, given="percent message at", unread=columns)
    assert read((), 1, "half", None) == Progress(1, "half", None)


@pytest.mark.parametrize(
    ("given", "computed"),
    [
        ("", {}),  # partition_key and lease_id have no array
        ("partition_key lease_id", {"attempt": (list, "attempt_indexs")}),
        ("partition_key lease_id", {"attemt": (list, "attempt_indexes")}),
        ("partition_key lease_id worker", {"attempt": (list, "attempt_indexes")}),
        ("partition_key lease_id", {"attempt": (list, "attempt_indexes")}),  # route_nos is unread
    ],
)
def test_a_record_that_does_not_fit_the_arrays_of_a_claim_is_refused_at_import(given, computed):
    with pytest.raises(TypeError, match="Claimed does not fit claim_executions"):
        array_reader(Claimed, functions.CLAIM_EXECUTIONS, given=given, **computed)


@pytest.mark.parametrize(
    "text",
    [
        "ids, lanes = row[:2]",
        "Claimed(*row)",
        "HmacKey(**dict(row))",
        "Rotation(**dict(rows[0]))",
        "str((await call(OPEN_CURSOR))[0][0])",
        "kid = rows[-1][0]",
        "kid, until = rows[0]",
        "[kid for kid, until in rows]",
    ],
)
def test_a_row_taken_apart_by_position_is_noticed(text):
    assert any(map(by_position, ast.walk(ast.parse(text))))


@pytest.mark.parametrize(
    "text",
    [
        "fetch(HINT.text, channel, payload)",
        "fetch(functions.HINT.text, channel, payload)",
        "invoke(connection, HINT, [channel, payload])",
        "engine(connection, functions.OPEN_CURSOR, partition, since, None)",
    ],
)
def test_an_argument_passed_by_position_is_noticed(text):
    assert passed_by_position(ast.parse(text).body[0].value, sources())


def test_the_check_would_notice():
    """A call with a name too few, through a wrapper and directly."""
    found = sources()
    for text in (
        "async def f(self): await self._database.call(functions.SET_LANE, namespace=1, lane=2)",
        "async def f(self): await handle_batch(self._database, functions.SET_LANE, lane=2)",
    ):
        one = next(defs(ast.parse(text)))
        ((call, statement),) = calls_in(one, found)
        assert ast.unparse(statement) == "functions.SET_LANE"
        assert {*given_names(call.keywords, one, found)} < {*SET_LANE.arguments}
