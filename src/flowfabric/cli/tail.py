"""`flowfabric tail`: print what an execution streams, live."""

from __future__ import annotations

import base64
import sys
from contextlib import aclosing
from enum import StrEnum
from typing import Annotated, Any

import typer

from flowfabric.cli.global_options import TEXT_OUTPUT_OPTION
from flowfabric.cli.ids import ID_ARGUMENT, find_execution
from flowfabric.cli.options import KIND_OPTION, Namespaces
from flowfabric.cli.output import harmless, say, styled
from flowfabric.client import FlowFabric
from flowfabric.core.errors import ExecutionNotFound, InvalidInput
from flowfabric.core.ids import ExecutionId, parse_id
from flowfabric.core.stream import Frame, FrameEncoding, Rewind, Truncated
from flowfabric.drawing.plain import json_text

StreamItem = Frame[Any] | Rewind | Truncated


class Output(StrEnum):
    TEXT = "text"
    JSONL = "jsonl"


async def tail(
    database: Namespaces,
    id: Annotated[str, ID_ARGUMENT],
    since: str | None = typer.Option(
        None,
        "--since",
        metavar="ID",
        help="Start after the frame with this id.",
        show_default=False,
    ),
    kind: Annotated[list[str] | None, KIND_OPTION] = None,
    follow: bool = typer.Option(
        True,
        "--follow/--no-follow",
        help="Wait for new frames until the execution has ended. Default: follow.",
        show_default=False,
    ),
    summary: bool = typer.Option(
        False, "--summary", help="Print the current summary of the stream as JSON, and exit."
    ),
    output: Annotated[Output, TEXT_OUTPUT_OPTION] = Output.TEXT,
) -> int:
    """Print what an execution streams, from its first frame to its end.

    Text is printed as it was sent, without line breaks between frames. Other values are printed as
    JSON lines. If the handler starts again, a line on stderr says which frames are sent again.
    """
    parse_id(id)
    if summary and (since or kind):
        raise InvalidInput(field="--summary", problem="cannot be combined with --since or --kind")
    async with database.client() as client:
        execution_id = await find_execution(client, id)
        if summary:
            return await _print_summary(client, execution_id)
        printer = FramePrinter(output)
        if follow:
            await printer.follow(client, execution_id, since=since, kinds=kind)
        else:
            await printer.print_now(client, execution_id, since, kind)
    return 0


async def _print_summary(client: FlowFabric, id: ExecutionId) -> int:
    found = await client.streams.summary(id)
    if found is None and await client.executions.state(id) is None:
        raise ExecutionNotFound(execution_id=id)
    say(json_text(None if found is None else found.document))
    return 0


class FramePrinter:
    """Prints the frames of a stream as plain text, or each frame as a JSON object."""

    def __init__(self, output: Output = Output.TEXT, *, to_stderr: bool = False) -> None:
        self._output = output
        self._to_stderr = to_stderr
        self._is_terminal = (sys.stderr if to_stderr else sys.stdout).isatty()
        # Whether the last printed line still lacks its line end.
        self._is_open = False

    async def follow(
        self,
        client: FlowFabric,
        id: ExecutionId,
        *,
        since: str | None = None,
        kinds: list[str] | None = None,
    ) -> None:
        """Print frames until the execution has ended."""
        items = client.streams.follow(id, since=since, kinds=kinds or None)
        try:
            async with aclosing(items):
                async for item in items:
                    self.print(item)
        finally:
            self.end_line()

    async def print_now(
        self, client: FlowFabric, id: ExecutionId, since: str | None, kinds: list[str] | None
    ) -> None:
        """Print the frames that are stored now, and do not wait for more."""
        last = since
        while True:
            items, is_ended, last = await client.streams.read(id, since=last)
            for item in items:
                if not isinstance(item, Frame) or not kinds or item.kind in kinds:
                    self.print(item)
            if is_ended or not any(not isinstance(one, Truncated) for one in items):
                break
        self.end_line()

    def print(self, item: StreamItem) -> None:
        if self._output is Output.JSONL:
            typer.echo(json_text(_facts(item)), err=self._to_stderr)
            return
        if isinstance(item, Frame):
            self._print_frame(item)
            return
        self.end_line()
        if isinstance(item, Rewind):
            text = f"-- rewind: attempt {item.attempt} sends the frames after {item.to} again"
        else:
            text = f"-- truncated: frames before {item.before} were removed"
        typer.echo(styled(text, "yellow") if sys.stderr.isatty() else text, err=True)

    def end_line(self) -> None:
        if self._is_open:
            typer.echo("", err=self._to_stderr)
            self._is_open = False

    def _print_frame(self, frame: Frame[Any]) -> None:
        if frame.encoding is FrameEncoding.TEXT:
            text = harmless(frame.text) if self._is_terminal else frame.text
            typer.echo(text, nl=False, err=self._to_stderr)
            self._is_open = not text.endswith("\n") if text else self._is_open
            return
        self.end_line()
        if frame.kind == "log" and isinstance(frame.data, dict) and "message" in frame.data:
            line = f"{frame.data.get('level', '')} {frame.data['message']}"
        elif frame.encoding is FrameEncoding.JSON:
            line = f"{frame.kind} {json_text(frame.data)}"
        else:
            line = f"{frame.kind} ({len(frame.payload)} bytes)"
        typer.echo(harmless(line), err=self._to_stderr)


def _facts(item: StreamItem) -> dict[str, Any]:
    if isinstance(item, Rewind):
        return {"rewind": item.to, "id": item.id, "attempt": item.attempt}
    if isinstance(item, Truncated):
        return {"truncated_before": item.before}
    facts: dict[str, Any] = {
        "id": item.id,
        "kind": item.kind,
        "mode": item.mode,
        "attempt": item.attempt,
        "sent_at": item.sent_at,
    }
    if item.encoding is FrameEncoding.BYTES:
        facts["base64"] = base64.b64encode(item.payload).decode()
    else:
        facts["data"] = item.data
    if item.correlation_id is not None:
        facts["correlation_id"] = item.correlation_id
    if item.summary_version is not None:
        facts["summary_version"] = item.summary_version
    return facts
