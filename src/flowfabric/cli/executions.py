"""`flowfabric ls`, `show`, `why` and `attempts`: looking at executions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from flowfabric.cli.filters import WHERE_OPTION, from_flags
from flowfabric.cli.ids import IDS_ARGUMENT, PARTITION_OPTION, for_each, parse_ids
from flowfabric.cli.options import Namespaces
from flowfabric.cli.output import ListPrinter, Output, Printer, Progress, say, say_all, screen
from flowfabric.client import FlowFabric
from flowfabric.core.errors import ExecutionNotFound
from flowfabric.core.execution import ExecutionFilter, ExecutionSummary
from flowfabric.core.ids import ExecutionId
from flowfabric.drawing.executions import (
    Portrait,
    attempt_columns,
    summary_columns,
    why_facts,
    why_lines,
)
from flowfabric.drawing.plain import json_line

PAGE = 500


async def ls(
    database: Namespaces,
    printer: ListPrinter,
    where: Annotated[list[str] | None, WHERE_OPTION] = None,
    state: list[str] | None = typer.Option(
        None, "--state", "-s", help="Only these states, as failed,expired.", show_default=False
    ),
    lane: list[str] | None = typer.Option(
        None, "--lane", "-l", help="Only this lane; may be repeated.", show_default=False
    ),
    task: list[str] | None = typer.Option(
        None, "--task", "-t", help="Only this task; may be repeated.", show_default=False
    ),
    tag: list[str] | None = typer.Option(
        None, "--tag", metavar="K=V", help="Only with this tag; may be repeated.",
        show_default=False,
    ),
    since: str | None = typer.Option(
        None, "--since", help="Only created since: 30s, 10m, 2h, 7d, or an ISO time.",
        show_default=False,
    ),
    limit: int = typer.Option(50, "--limit", min=0, help="List at most this many; 0 lists all."),
    count: bool = typer.Option(False, "--count", help="Print only the number, exact up to 10000."),
    partition: Annotated[int, PARTITION_OPTION] = 0,
) -> None:  # fmt: skip
    """List executions, newest first."""
    chosen = from_flags(where, states=state, lanes=lane, tasks=task, tags=tag, since=since)
    async with database.client() as client:
        now = await client.executions.server_time()
        filter = chosen.resolved(now)
        if count:
            await _count(client, filter, partition, printer)
            return
        # One more than asked for tells whether there are more.
        pages = matching(client, filter, partition, limit=limit + 1 if limit else 0)
        columns = summary_columns(
            now, is_wide=printer.is_wide, with_namespace=client.namespace is None
        )
        await printer.pages(pages, columns, limit=limit, empty="nothing matches")


async def show(
    database: Namespaces,
    printer: Printer,
    ids: Annotated[list[str], IDS_ARGUMENT],
    payload: bool = typer.Option(
        False, "--payload", help="Also show the payload and the result. They may be confidential."
    ),
) -> int:
    """Show all about an execution.

    State, why, lease, attempts, progress, deadline, failure, tags, recorded steps and the last ten
    events. Exit code 3 if there is no such execution.
    """

    async def one(client: FlowFabric, id: ExecutionId) -> None:
        info = await client.executions.describe(id)
        if info is None:
            raise ExecutionNotFound(id=str(id))
        portrait = Portrait(
            info,
            await client.executions.why(id),
            await client.executions.attempts(id),
            await client.steps.list(id) if info.step_count else [],
            await client.executions.events(id),
            with_payload=payload,
        )
        if printer.is_json:
            say(json_line(portrait.facts()))
        else:
            say_all(portrait.lines(await client.executions.server_time(), screen()))

    found = parse_ids(ids)
    async with database.client() as client:
        return await for_each(client, found, one, blank_between=not printer.is_json)


async def why(
    database: Namespaces, printer: Printer, ids: Annotated[list[str], IDS_ARGUMENT]
) -> int:
    """Say why an execution does not run, or that it runs.

    Exit code 3 if there is no such execution.
    """

    async def one(client: FlowFabric, id: ExecutionId) -> None:
        found = await client.executions.why(id)
        if printer.is_json:
            say(json_line({"id": id, **why_facts(found)}))
        else:
            say_all([*_head(ids, id), *why_lines(found)])

    found = parse_ids(ids)
    async with database.client() as client:
        return await for_each(client, found, one)


async def attempts(
    database: Namespaces, printer: Printer, ids: Annotated[list[str], IDS_ARGUMENT]
) -> int:
    """List the attempts of an execution, first to latest.

    Exit code 3 if there is no such execution.
    """

    async def one(client: FlowFabric, id: ExecutionId) -> None:
        found = await client.executions.attempts(id)
        if not found and await client.executions.state(id) is None:
            raise ExecutionNotFound(id=str(id))
        if printer.is_json:
            say_all(json_line({"id": id, **asdict(attempt)}) for attempt in found)
            return
        say_all(_head(ids, id))
        columns = attempt_columns(await client.executions.server_time())
        printer.records(found, columns, empty="no attempt yet")

    found = parse_ids(ids)
    async with database.client() as client:
        return await for_each(client, found, one)


def _head(texts: Sequence[str], id: ExecutionId) -> list[str]:
    """The id above what is said about it, if there are several."""
    return [str(id)] if len(texts) > 1 or "-" in texts else []


async def matching(
    client: FlowFabric, filter: ExecutionFilter, partition: int, *, limit: int = 0
) -> AsyncIterator[list[ExecutionSummary]]:
    """Pages of matching executions, newest first, to the end or the limit; none twice.

    The cursor goes down the ids, so an execution that is changed or submitted meanwhile does not
    come again.
    """
    cursor, left = None, limit
    while True:
        page = await client.executions.list(
            filter, cursor=cursor, limit=min(left, PAGE) if limit else PAGE, partition=partition
        )
        yield page.executions
        cursor = page.cursor
        left -= len(page.executions)
        if cursor is None or (limit and left <= 0):
            return


async def _count(
    client: FlowFabric, filter: ExecutionFilter, partition: int, printer: ListPrinter
) -> None:
    async with Progress(for_logs=False).telling(lambda: "counting"):
        found = await client.executions.count(filter, partition=partition)
    if printer.form is Output.JSON:
        say(json_line({"count": found.number, "is_more": found.is_more}))
    else:
        say(str(found))
