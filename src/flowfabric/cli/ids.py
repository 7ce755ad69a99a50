"""Ids as people type them or as another command prints them, and one command for many ids."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import typer

from flowfabric.cli.options import exit_code
from flowfabric.cli.output import complain, say
from flowfabric.client import FlowFabric
from flowfabric.core.errors import (
    ExecutionNotFound,
    FlowFabricError,
    FlowNotFound,
    InvalidId,
    InvalidInput,
    Unavailable,
)
from flowfabric.core.ids import ExecutionId, FlowId, PartitionedId
from flowfabric.drawing.plain import json_line
from flowfabric.drawing.text import printable

_Id = TypeVar("_Id", bound=PartitionedId)

EXAMPLE = "{fp:0}:0190b5c2-7a3e-7c11-9d2e-3f5a6b7c8d9e"
_FORMS = f"such as {EXAMPLE}, or its UUID alone"
_MANY = "- reads ids from stdin, one per line, also the JSON lines of"
_HELP = f"Id of an execution, {_FORMS}; {_MANY} `ls`."
ID_ARGUMENT = typer.Argument(metavar="ID", help=f"Id of an execution, {_FORMS}.")
IDS_ARGUMENT = typer.Argument(metavar="ID", help=_HELP)
OPTIONAL_IDS_ARGUMENT = typer.Argument(metavar="ID", help=_HELP, show_default=False)
FLOW_ID_ARGUMENT = typer.Argument(metavar="ID", help=f"Id of a flow, {_FORMS}.")
FLOW_IDS_ARGUMENT = typer.Argument(metavar="ID", help=f"Id of a flow, {_FORMS}; {_MANY} `flow ls`.")
PARTITION_OPTION = typer.Option(
    "--partition", min=0, max=32_767, help="The partition to search.", hidden=True
)
# The engine counts partitions in 16 bits with a sign.
_MAX_PARTITION = 32_767


def parse_id(text: str) -> ExecutionId:
    """An id, or its UUID alone, which means partition 0."""
    return _parse(text, ExecutionId, "an execution id")


def parse_flow_id(text: str) -> FlowId:
    """The same for the id of a flow."""
    return _parse(text, FlowId, "the id of a flow")


def parse_ids(texts: Sequence[str]) -> list[ExecutionId]:
    """Every id once, in the order given; `-` stands for those on stdin."""
    return list(dict.fromkeys(parse_id(word) for word in _words(texts)))


def parse_flow_ids(texts: Sequence[str]) -> list[FlowId]:
    """The same for the ids of flows."""
    return list(dict.fromkeys(parse_flow_id(word) for word in _words(texts)))


async def for_each(
    client: FlowFabric,
    ids: Sequence[_Id],
    one: Callable[[FlowFabric, _Id], Awaitable[int | None]],
    *,
    verb: str | None = None,
    blank_between: bool = False,
) -> int:
    """Do one thing to each id, report refusals, and return the highest exit code.

    A refusal is a line on stderr, or with a verb a JSON line.
    """
    codes = {0}
    for number, id in enumerate(ids):
        if number and blank_between:
            say("")
        try:
            codes.add(await one(client, id) or 0)
        except (InvalidInput, Unavailable):
            raise
        except FlowFabricError as error:
            codes.add(exit_code(error))
            told = str(error) if id in str(error) else f"{id}: {error}"
            if isinstance(error, ExecutionNotFound | FlowNotFound):
                told = await _why_missing(client, id)
            if verb is None:
                complain(printable(told))
            else:
                name = error.name or type(error).__name__
                say(json_line({"id": id, "action": verb, "outcome": name, "error": told}))
    return max(codes)


def missing(id: PartitionedId, namespace: str | None) -> str:
    """Say that there is no such execution or flow, and where else it may be."""
    noun = "flow" if isinstance(id, FlowId) else "execution"
    where = "" if namespace is None else f" in the namespace {namespace}"
    hint = "" if namespace is None else ", or belong to another (--all-namespaces)"
    return f"{id}: there is no such {noun}{where}; it may have been trimmed{hint}"


async def _why_missing(client: FlowFabric, id: PartitionedId) -> str:
    """The same; the id of a flow may be that of one of its nodes."""
    if isinstance(id, FlowId):
        info = await client.executions.describe(ExecutionId.of(id.partition_key, id.uuid))
        if info is not None and info.flow_id is None:
            return f"{id}: is an execution, and not in a flow; see: flowfabric show"
        if info is not None:
            return f"{id}: is an execution, a node of the flow {info.flow_id}"
    return missing(id, client.namespace)


def _parse(text: str, kind: type[_Id], noun: str) -> _Id:
    try:
        is_bare = len(text) in (32, 36) and not text.startswith("{")
        id = kind.parse(f"{{fp:0}}:{text}" if is_bare else text)
    except (InvalidId, ValueError) as error:
        raise InvalidInput(
            field="ID",
            problem=f"{text[:80]!r} is not {noun}; one looks like {EXAMPLE}, or is its UUID alone",
        ) from error
    if id.partition_key > _MAX_PARTITION:
        raise InvalidInput(field="ID", problem=f"{text!r}: partitions end at {_MAX_PARTITION}")
    return id


def _words(texts: Sequence[str]) -> Iterator[str]:
    return (word for text in texts for word in (_from_lines(sys.stdin) if text == "-" else [text]))


def _from_lines(lines: Iterable[str]) -> Iterator[str]:
    for line in map(str.strip, lines):
        if not line:
            continue
        # An id begins with a brace, too.
        if line.startswith('{"'):
            yield _id_in(line)
        else:
            yield line.split()[0]


def _id_in(line: str) -> str:
    try:
        return str(json.loads(line)["id"])
    except (ValueError, KeyError) as error:
        raise InvalidInput(field="ID", problem=f"{line[:80]!r} has no id") from error
