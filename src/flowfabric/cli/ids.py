"""Ids as people type them, or as another command prints them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import typer

from flowfabric.core.errors import InvalidId, InvalidInput
from flowfabric.core.ids import ExecutionId, FlowId, PartitionedId

_Id = TypeVar("_Id", bound=PartitionedId)

EXAMPLE = "{fp:0}:0190b5c2-7a3e-7c11-9d2e-3f5a6b7c8d9e"
_HELP = (
    f"Such as {EXAMPLE}, or the UUID alone; - reads ids from stdin, a line each, also the JSON "
    "lines of `ls`."
)
IDS_ARGUMENT = typer.Argument(metavar="ID", help=_HELP)
OPTIONAL_IDS_ARGUMENT = typer.Argument(None, metavar="ID", help=_HELP, show_default=False)
_FLOW_HELP = (
    f"Of a flow, such as {EXAMPLE}, or the UUID alone; - reads ids from stdin, a line each, also "
    "the JSON lines of `flow ls`."
)
FLOW_ID_ARGUMENT = typer.Argument(
    metavar="ID", help=f"Of a flow, such as {EXAMPLE}, or the UUID alone."
)
FLOW_IDS_ARGUMENT = typer.Argument(metavar="ID", help=_FLOW_HELP)
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
