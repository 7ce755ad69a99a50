"""Write docs/reference/python.md and client.md from the signatures and docstrings of public
names."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from functools import cache
from types import ModuleType

import flowfabric
from flowfabric import testing
from flowfabric.client import FlowFabric
from flowfabric.core.errors import FlowFabricError
from flowfabric.handlers.streams import HandlerStream

# The methods that users call, in the order of the page. Other attributes are internal.
APP = """task cron every middleware provide overriding on_startup on_shutdown on_success on_failure
on_cancel on_end submit get get_by_key get_by_key_sync signal signal_sync approve approve_sync
deny deny_sync subscribe subscribe_sync flow get_flow
run_worker prepare check_journals fire_schedules database_url client close"""
TASK = """__call__ submit submit_sync submit_many submit_many_sync get using on_success on_failure
on_cancel on_end name function app"""
RUN = """id is_duplicate task result result_sync signal signal_sync pending pending_sync state
state_sync progress progress_sync stream stream_sync summary summary_sync events events_sync cancel
cancel_sync"""
CONTEXT = """step step_sync sleep sleep_sync sleep_until sleep_until_sync now now_sync random submit
submit_sync flow stream progress progress_sync usage usage_sync scheduled_at scheduled_at_sync
patched patched_sync wait_for_signal wait_for_signal_sync signal signals signals_sync wait_for
wait_for_sync waitpoint waitpoint_sync approval approval_sync deprecate_patch deprecate_patch_sync
execution_id task attempt epoch cancelled"""
STREAM = "send send_sync summary summary_sync best_effort best_effort_sync logs"
FLOW = "add using submit submit_sync name nodes run is_stored"
NODE = "result after name id task"
FLOW_RUN = """id name is_duplicate result result_sync results results_sync wait wait_sync state
state_sync summary summary_sync graph graph_sync node nodes nodes_sync cancel cancel_sync
retry_failed retry_failed_sync"""
HARNESS = """submit run run_until drain skip now crash_worker start_schedules signal
assert_submitted submitted events steps frames check client database_url call close"""
# Attributes of the client that are not groups of operations.
NOT_NOUNS = ("database", "namespace", "transactional", "results")
NOT_OPERATIONS = ("open", "close")
MADE_BY_USERS = (
    flowfabric.App,
    flowfabric.Budget,
    flowfabric.Ended,
    flowfabric.EndedError,
    flowfabric.Exponential,
    flowfabric.Fixed,
    flowfabric.FlowFabric,
    flowfabric.Limit,
    flowfabric.Retry,
    flowfabric.StreamPolicy,
)

WIDTH = 88
# Two underscores, escaped so that Markdown does not print bold text.
BARS = r"\_\_"


def client_page(note: str) -> str:
    """Return the page with the operations of the engine, grouped by noun."""
    lines = [
        "# Python client",
        "",
        note,
        "",
        "The operations of the engine, grouped by noun. `await app.client()` returns the client of",
        "an app, and `async with FlowFabric(url) as client` opens one. Most programs need",
        "[App, Task and Run](python.md) only. The client is for operators, and for workers that",
        "are not written with `App`.",
        "",
        *_class(FlowFabric, "open close", level=2),
        *_nouns(),
    ]
    return "\n".join(lines).rstrip() + "\n"


def python_page(note: str) -> str:
    lines = [
        "# Python API",
        "",
        note,
        "",
        "Everything is imported from `flowfabric`, except the test harness. A name with `_sync` is",
        "the same call for code without an event loop. The [guides](../guide/tasks.md) say how the",
        "parts go together; [client](client.md) has the engine's operations, and",
        "[errors](errors.md) every class of error.",
        "",
        "## Applications and tasks",
        "",
        *_class(flowfabric.App, APP),
        *_class(flowfabric.Task, TASK),
        *_class(flowfabric.Run, RUN),
        *_class(flowfabric.Frame, "text"),
        *_class(flowfabric.Rewind, ""),
        *_class(flowfabric.Truncated, ""),
        *_class(flowfabric.Ended, ""),
        *_class(flowfabric.EndedError, ""),
        *_handler_section(),
        "## Policies",
        "",
        *_class(flowfabric.Retry, ""),
        *_class(flowfabric.Fixed, ""),
        *_class(flowfabric.Exponential, ""),
        *_class(flowfabric.RetryAfter, ""),
        *_class(flowfabric.GiveUp, ""),
        *_class(flowfabric.Limit, ""),
        *_class(flowfabric.Budget, ""),
        *_class(flowfabric.StreamPolicy, ""),
        "## Flows",
        "",
        *_class(flowfabric.Flow, FLOW),
        *_class(flowfabric.Node, NODE),
        *_class(flowfabric.FlowRun, FLOW_RUN),
        *_functions("all_of", "any_of", "quorum", "first_of"),
        "## Joining runs",
        "",
        *_functions("gather", "gather_sync", "first", "first_sync", "quorum_of", "quorum_of_sync"),
        "## Subscriptions",
        "",
        *_class(flowfabric.Subscription, ""),
        *_class(flowfabric.SubscribedEvent, "ack ack_sync"),
        "## Ids and states",
        "",
        *_class(flowfabric.ExecutionId, ""),
        *_class(flowfabric.FlowId, ""),
        *_enum(flowfabric.PublicState),
        *_enum(flowfabric.Outcome),
        *_enum(flowfabric.FlowState),
        "## Errors",
        "",
        "All of them, with their codes: [errors](errors.md).",
        "",
        "| error | meaning | attributes |",
        "|---|---|---|",
        *(_error_line(kind) for kind in _errors()),
        "",
        "## Testing",
        "",
        "`from flowfabric.testing import Harness`; the pytest fixture `ff` is one. The guide:",
        "[testing](../guide/testing.md).",
        "",
        *_class(testing.Harness, HARNESS),
    ]
    text = "\n".join(lines).rstrip() + "\n"
    _check_complete(text)
    return text


def _handler_section() -> list[str]:
    return [
        "## In a handler",
        "",
        *_class(flowfabric.Context, CONTEXT),
        *_class(HandlerStream, STREAM),
        *_value(
            "current", "The context of the running handler, for code without a context parameter."
        ),
        *_functions("signal", "answer", "every", "at_least"),
        *_class(flowfabric.Approval, "is_approved answers approved_by denied_by comments"),
        *_class(flowfabric.ApprovalAnswer, ""),
        *_class(flowfabric.ApprovalRequest, "approver question details token url"),
        *_value("provided", "The default of a parameter that a provider fills in."),
        *_value(
            "CallNext", "The second argument of a middleware: `await call_next()` runs the task."
        ),
    ]


def _check_complete(text: str) -> None:
    """Raise LookupError if the page lacks a public name."""
    missing = [
        name
        for name in flowfabric.__all__
        if f"### {name}\n" not in text and f"| `{name}` |" not in text and name != "FlowFabric"
    ]
    if missing:
        raise LookupError(f"tools/python_reference.py leaves out {', '.join(missing)}")


@dataclass(frozen=True)
class Member:
    """A method, a property or a field of a class."""

    signatures: list[str]
    text: str


def _class(kind: type, names: str, level: int = 3) -> list[str]:
    members = _members(kind)
    lines = [f"{'#' * level} {kind.__name__}", ""]
    if kind in MADE_BY_USERS:
        lines += _code(members["__init__"].signatures)
    lines += _prose(kind.__doc__)
    for name in names.split():
        if name not in members:
            raise LookupError(f"tools/python_reference.py names {kind.__name__}.{name}, not found")
        lines += [
            f"{'#' * level}# {kind.__name__}.{name.replace('__', BARS)}",
            "",
            *_code(members[name].signatures),
        ]
        lines += _prose(members[name].text)
    return lines


def _nouns() -> Iterator[str]:
    client = FlowFabric("postgresql://")
    for noun, made in vars(client).items():
        if noun in NOT_NOUNS or noun.startswith("_"):
            continue
        yield from (f"## client.{noun}", "", *_prose(type(made).__doc__))
        for name, member in _members(type(made)).items():
            if not name.startswith("_") and name not in NOT_OPERATIONS and member.text:
                yield from (f"### client.{noun}.{name}", "", *_code(member.signatures))
                yield from _prose(member.text)


def _functions(*names: str) -> Iterator[str]:
    for name in names:
        function = getattr(flowfabric, name)
        member = _collected(_tree(function.__module__).body)[name]
        yield from (f"### {name}", "", *_code(member.signatures), *_prose(member.text))


def _value(name: str, text: str) -> list[str]:
    assert name in flowfabric.__all__, name
    return [f"### {name}", "", text, ""]


def _enum(kind: type[Enum]) -> list[str]:
    values = ", ".join(f"`{member.value}`" for member in kind)
    return [f"### {kind.__name__}", "", *_prose(kind.__doc__), f"Values: {values}.", ""]


def _errors() -> Iterator[type[FlowFabricError]]:
    for name in flowfabric.__all__:
        kind = getattr(flowfabric, name)
        if isinstance(kind, type) and issubclass(kind, FlowFabricError):
            yield kind


def _error_line(kind: type[FlowFabricError]) -> str:
    own = [name for name, value in vars(kind).items() if isinstance(value, property)]
    attributes = ", ".join(f"`{name}`" for name in own)
    return f"| `{kind.__name__}` | {' '.join((kind.__doc__ or '').split())} | {attributes} |"


# Reading the sources


class _Constants(ast.NodeTransformer):
    """Replaces the names of constants by their values: `20` for MOST_RECLAIMS."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module

    def visit_Name(self, node: ast.Name) -> ast.expr:
        value = getattr(self.module, node.id, None) if node.id.isupper() else None
        if isinstance(value, int | float | str | timedelta) and isinstance(node.ctx, ast.Load):
            return ast.parse(repr(value).removeprefix("datetime."), mode="eval").body
        return node


@cache
def _tree(module: str) -> ast.Module:
    found = sys.modules[module]
    return _Constants(found).visit(ast.parse(inspect.getsource(found)))  # type: ignore[no-any-return]


def _text(node: ast.expr) -> str:
    return ast.unparse(node).replace("'", '"')


def _members(kind: type) -> dict[str, Member]:
    """Return the members of a class: first its own, then the members of its base classes in
    flowfabric.
    """
    found: dict[str, Member] = {}
    for base in kind.__mro__:
        if not base.__module__.startswith("flowfabric"):
            continue
        tree = _tree(base.__module__)
        (body,) = (
            node.body
            for node in tree.body
            if isinstance(node, ast.ClassDef) and node.name == base.__name__
        )
        for name, member in _collected(body, base.__name__).items():
            found.setdefault(name, member)
    return found


def _collected(body: list[ast.stmt], of: str | None = None) -> dict[str, Member]:
    found: dict[str, Member] = {}
    fields: list[str] = []
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                decorators = [ast.unparse(one) for one in node.decorator_list]
                is_property = "property" in decorators
                signature = _property(node) if is_property else _signature(node, of)
                before = found.get(node.name)
                overloads = before.signatures if before is not None and not before.text else []
                signatures = [*overloads, signature] if "overload" in decorators else overloads
                text = ast.get_docstring(node) or ""
                found[node.name] = Member(signatures or [signature], text)
                if node.name == "__init__":
                    found |= _attributes(node)
            case ast.AnnAssign(target=ast.Name(id=name)) if of is not None:
                given = "" if node.value is None else f" = {_default(node.value)}"
                field = f"{name}: {_text(node.annotation)}"
                found[name] = Member([field], "")
                fields.append(field + given)
    if fields and "__init__" not in found:
        found["__init__"] = Member([_wrapped(f"{of}", fields, "")], "")
    return found


def _attributes(node: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, Member]:
    """Return the arguments of `__init__` that become attributes of the same type."""
    given = [*node.args.args, *node.args.kwonlyargs]
    hints = {one.arg: _text(one.annotation) for one in given if one.annotation is not None}
    found = {}
    for one in ast.walk(node):
        match one:
            case ast.Assign(targets=[target], value=value):
                pairs = [(target, value)]
                if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                    pairs = list(zip(target.elts, value.elts, strict=True))
                for left, right in pairs:
                    match left, right:
                        case ast.Attribute(attr=name), ast.Name(id=argument) if argument in hints:
                            found[name] = Member([f"{name}: {hints[argument]}"], "")
            case ast.AnnAssign(target=ast.Attribute(attr=name), annotation=hint):
                found[name] = Member([f"{name}: {_text(hint)}"], "")
    return found


def _default(node: ast.expr) -> str:
    match node:
        case ast.Call(func=ast.Name(id="field"), keywords=[ast.keyword("default_factory", made)]):
            return f"{_text(made)}()"
    return _text(node)


def _property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    returns = _text(node.returns) if node.returns else "Any"
    return f"{node.name}: {returns}"


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef, of: str | None) -> str:
    given = node.args
    listed: list[str] = []
    plain = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(plain) - len(given.defaults)) + list(given.defaults)
    for at, (argument, default) in enumerate(zip(plain, defaults, strict=True)):
        if not (at == 0 and argument.arg in ("self", "cls")):
            listed.append(_parameter(argument, default))
        if at + 1 == len(given.posonlyargs) and listed:
            listed.append("/")
    if given.vararg is not None:
        listed.append(f"*{_parameter(given.vararg, None)}")
    elif given.kwonlyargs:
        listed.append("*")
    for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        listed.append(_parameter(argument, default))
    if given.kwarg is not None:
        listed.append(f"**{_parameter(given.kwarg, None)}")
    if node.name == "__init__":
        return _wrapped(str(of), listed, "")
    returns = f" -> {_text(node.returns)}" if node.returns else ""
    word = "async def " if isinstance(node, ast.AsyncFunctionDef) else "def "
    return _wrapped(word + node.name, listed, returns)


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    text = argument.arg
    if argument.annotation is not None:
        text += f": {_text(argument.annotation)}"
    if default is not None:
        text += f" = {_text(default)}" if argument.annotation else f"={_text(default)}"
    return text


def _wrapped(head: str, listed: list[str], returns: str) -> str:
    line = f"{head}({', '.join(listed)}){returns}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{head}(", *(f"    {one}," for one in listed), f"){returns}"])


def _code(signatures: list[str]) -> list[str]:
    return ["```python", *"\n".join(signatures).splitlines(), "```", ""]


def _prose(text: str | None) -> list[str]:
    return [*textwrap.dedent(inspect.cleandoc(text)).splitlines(), ""] if text else []
