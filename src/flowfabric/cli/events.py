"""`flowfabric events`: print past events, and follow new ones."""

from __future__ import annotations

from contextlib import aclosing
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from flowfabric.cli.global_options import TEXT_OUTPUT_OPTION
from flowfabric.cli.ids import complain_unreached, find_execution, parse_ids
from flowfabric.cli.options import EXIT_CONFLICT, KIND_OPTION, Endpoint
from flowfabric.cli.output import complain
from flowfabric.client import FlowFabric
from flowfabric.core.errors import CursorExpired, InvalidInput
from flowfabric.core.execution import Event
from flowfabric.core.states import EventKind
from flowfabric.core.times import past, when
from flowfabric.drawing.plain import json_line
from flowfabric.drawing.text import printable


class Output(StrEnum):
    TEXT = "text"
    JSON = "json"


async def events(
    database: Endpoint,
    follow: bool = typer.Option(
        False, "--follow", "-f", help="Wait for new events and print them."
    ),
    since: str = typer.Option(
        "1h", "--since", help="Start this long ago (30s, 10m, 2h, 7d), or at an ISO time."
    ),
    cursor: str | None = typer.Option(
        None, "--cursor", help="Start after this cursor. --since is then ignored."
    ),
    kind: Annotated[list[str] | None, KIND_OPTION] = None,
    feed: str | None = typer.Option(
        None, "--feed", help="Print only the events of this feed: completion, lease or operator."
    ),
    lane: list[str] | None = typer.Option(
        None, "--lane", help="Print only events of this lane; may be repeated."
    ),
    task: list[str] | None = typer.Option(
        None, "--task", help="Print only events of this task; may be repeated."
    ),
    execution: list[str] | None = typer.Option(
        None, "--execution", help="Print only events of this execution; may be repeated."
    ),
    output: Annotated[Output, TEXT_OUTPUT_OPTION] = Output.TEXT,
) -> int:
    """Print events, oldest first. No event is missed.

    The events of one execution always come in the order in which they happened.
    """
    given = parse_ids(execution or ())
    filters: dict[str, Any] = {
        "kinds": [_kind(name) for name in kind] if kind else None,
        "feed": feed,
        "lanes": lane or None,
        "tasks": task or None,
        "executions": None,
    }
    if feed is not None and feed not in ("completion", "lease", "operator"):
        raise InvalidInput(field="feed", problem="must be completion, lease or operator")
    moment = past(when(since, "since"), datetime.now(UTC))
    try:
        async with database.client() as client:
            if given:
                filters["executions"] = [await find_execution(client, text) for text in given]
            position = await client.events.open(moment) if cursor is None else cursor
            await _print(client, position, follow, filters, output)
    except CursorExpired as error:
        complain(error)
        if error.resume_from:
            typer.echo(f"continue with: --since {error.resume_from.isoformat()}", err=True)
        return EXIT_CONFLICT
    return 0


async def _print(
    client: FlowFabric, position: str, follow: bool, filters: dict[str, Any], output: Output
) -> None:
    named: set[int] = set()
    if follow:
        async with aclosing(client.events.follow_pages(position, **filters)) as pages:
            async for page in pages:
                complain_unreached(page.missing, named)
                for event in page.events:
                    typer.echo(_line(event, output))
        return
    while True:
        page = await client.events.read(position, **filters)
        complain_unreached(page.missing, named)
        for event in page.events:
            typer.echo(_line(event, output))
        position = page.cursor
        if not page.has_more:
            break
    typer.echo(f"continue with: --cursor {position}", err=True)


def _line(event: Event, output: Output) -> str:
    if output is Output.JSON:
        return json_line(event)
    time = event.occurred_at.astimezone().strftime("%H:%M:%S.%f")[:-3]
    where = f"attempt {event.attempt} epoch {event.epoch}" if event.epoch else ""
    who = event.worker_instance_id or ""
    line = f"{time}  {event.kind:<16} {event.task or '':<28} {event.id.uuid}  {where}  {who}"
    return printable(line).rstrip()


def _kind(name: str) -> EventKind:
    try:
        return EventKind(name)
    except ValueError as error:
        known = ", ".join(EventKind)
        raise InvalidInput(field="kind", problem=f"{name!r} must be one of: {known}") from error
