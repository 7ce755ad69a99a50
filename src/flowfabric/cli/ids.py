"""Parse ids and tokens from arguments or stdin, and run a command for each id."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from getpass import getpass
from typing import TypeVar

import typer

from flowfabric.cli.options import exit_code
from flowfabric.cli.output import complain, say
from flowfabric.client import FlowFabric
from flowfabric.core.errors import (
    ExecutionNotFound,
    FlowFabricError,
    FlowNotFound,
    InvalidInput,
    Unavailable,
)
from flowfabric.core.ids import (
    ID_FORMS,
    ExecutionId,
    FlowId,
    PartitionedId,
    noun_of,
    parse_id,
    with_bare_ids,
)
from flowfabric.drawing.plain import json_line
from flowfabric.drawing.text import printable

_Id = TypeVar("_Id", bound=PartitionedId)
Find = Callable[[FlowFabric, str], Awaitable[_Id]]

_MANY = "`-` reads stdin: ids, one per line, or the JSON lines of"
_HELP = f"Id of an execution, {ID_FORMS}; {_MANY} `ls`."
ID_ARGUMENT = typer.Argument(metavar="ID", help=f"Id of an execution, {ID_FORMS}.")
IDS_ARGUMENT = typer.Argument(metavar="ID", help=_HELP)
OPTIONAL_IDS_ARGUMENT = typer.Argument(metavar="ID", help=_HELP, show_default=False)
FLOW_ID_ARGUMENT = typer.Argument(metavar="ID", help=f"Id of a flow, {ID_FORMS}.")
FLOW_IDS_ARGUMENT = typer.Argument(
    metavar="ID", help=f"Id of a flow, {ID_FORMS}; {_MANY} `flow ls`."
)
PARTITION_OPTION = typer.Option(
    "--partition",
    min=0,
    max=32_767,
    help="Search only this partition. Default: all.",
    hidden=True,
    show_default=False,
)


def complain_unreached(missing: Iterable[int], named: set[int] | None = None) -> None:
    """Warn that the output is incomplete, because the partitions in `missing` did not answer.

    The warning does not name the partitions in `named` again. New ones are added to `named`.
    """
    new = sorted(set(missing) - (named or set()))
    if new:
        names = ", ".join(map(str, new))
        complain(f"not everything is shown: no answer from partition {names}")
        if named is not None:
            named.update(new)


def parse_ids(texts: Sequence[str]) -> list[str]:
    """Return the given ids without duplicates. `-` stands for the ids on stdin."""
    return list(dict.fromkeys(parse_id(word) for word in _words(texts)))


async def find_execution(client: FlowFabric, text: str) -> ExecutionId:
    return await client.executions.find(text)


async def find_flow(client: FlowFabric, text: str) -> FlowId:
    return await client.flows.find(text)


async def for_each(
    client: FlowFabric,
    texts: Sequence[str],
    find: Find[_Id],
    action: Callable[[FlowFabric, _Id], Awaitable[int | None]],
    *,
    verb: str | None = None,
    blank_between: bool = False,
) -> int:
    """Find each id, run an action for it, report refusals, and return the highest exit code.

    A refusal is printed as a line on stderr or, if `verb` is given, as a JSON line on stdout with
    `verb` as its `action`. If `blank_between` is true, a blank line separates the outputs.
    """
    codes = {0}
    for number, text in enumerate(texts):
        if number and blank_between:
            say("")
        id: _Id | None = None
        try:
            id = await find(client, text)
            codes.add(await action(client, id) or 0)
        except (InvalidInput, Unavailable):
            raise
        except FlowFabricError as error:
            codes.add(exit_code(error))
            problem = str(error) if id is None or id in str(error) else f"{id}: {error}"
            if id is not None and isinstance(error, ExecutionNotFound | FlowNotFound):
                problem = await _why_missing(client, id)
            if verb is None:
                complain(printable(problem))
            else:
                name = error.name or type(error).__name__
                facts = {"id": id or text, "action": verb, "outcome": name}
                say(json_line({**facts, "error": with_bare_ids(problem)}))
    return max(codes)


def missing(id: PartitionedId, namespace: str | None) -> str:
    """Return the message for an execution or a flow that was not found in a namespace."""
    where = "" if namespace is None else f" in the namespace {namespace}"
    hint = "" if namespace is None else ", or belong to another namespace (--all-namespaces)"
    return f"{id.uuid}: there is no such {noun_of(type(id))}{where}; it may have been trimmed{hint}"


async def _why_missing(client: FlowFabric, id: PartitionedId) -> str:
    """Return the message for an id that was not found.

    If the user gave the id of a flow instead of an execution, or the other way round, the message
    says so.
    """
    if not isinstance(id, FlowId):
        flow = await client.flows.describe(id.uuid)
        if flow is not None:
            return f"{id.uuid}: is a flow; see: flowfabric flow --help"
        return missing(id, client.namespace)
    info = await client.executions.describe(id.uuid)
    if info is None:
        return missing(id, client.namespace)
    if info.flow_id is None:
        return f"{id.uuid}: is an execution without a flow; see: flowfabric show"
    return f"{id.uuid}: is an execution, a member of the flow {info.flow_id.uuid}"


def read_token(target: str) -> str:
    """Return the token that was passed to a command. For `-`, read the token from stdin.

    If stdin is a terminal, ask for the token and do not show it.
    """
    if target != "-":
        return target
    return (getpass("Token: ") if sys.stdin.isatty() else sys.stdin.readline()).strip()


def _words(texts: Sequence[str]) -> Iterator[str]:
    return (word for text in texts for word in (_from_lines(sys.stdin) if text == "-" else [text]))


def _from_lines(lines: Iterable[str]) -> Iterator[str]:
    for line in map(str.strip, lines):
        if not line:
            continue
        # A JSON line begins with {", an id with {fp.
        if line.startswith('{"'):
            yield _id_in(line)
        else:
            yield line.split()[0]


def _id_in(line: str) -> str:
    try:
        return str(json.loads(line)["id"])
    except (ValueError, KeyError) as error:
        raise InvalidInput(field="ID", problem=f"{line[:80]!r} has no id") from error
