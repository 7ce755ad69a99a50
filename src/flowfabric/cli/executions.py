"""`flowfabric ls`, `show`, `why` and `attempts`: read executions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Annotated

import typer

from flowfabric.cli.flow_show import show_flow
from flowfabric.cli.ids import (
    IDS_ARGUMENT,
    PARTITION_OPTION,
    complain_unreached,
    find_execution,
    for_each,
    parse_ids,
)
from flowfabric.cli.options import LIMIT_OPTION, TRACE_OPTION, WHERE_OPTION, Namespaces
from flowfabric.cli.output import ListPrinter, Output, Printer, Progress, say, say_all, screen
from flowfabric.client import FlowFabric
from flowfabric.client.detail_reads import located, read_details
from flowfabric.client.filters import from_flags
from flowfabric.core.errors import ExecutionNotFound
from flowfabric.core.execution import ExecutionFilter, ExecutionSummary
from flowfabric.core.ids import ExecutionId, FlowId, PartitionedId
from flowfabric.drawing.executions import (
    attempt_columns,
    attempt_facts,
    summary_columns,
    trace_lines,
    why_facts,
    why_lines,
)
from flowfabric.drawing.plain import json_line
from flowfabric.drawing.text import printable

PAGE = 500


async def ls(
    database: Namespaces,
    printer: ListPrinter,
    where: Annotated[list[str] | None, WHERE_OPTION] = None,
    state: list[str] | None = typer.Option(
        None, "--state", "-s", show_default=False,
        help="List only executions in these states, for example failed,expired.",
    ),
    lane: list[str] | None = typer.Option(
        None, "--lane", "-l", show_default=False,
        help="List only executions of this lane; may be repeated.",
    ),
    task: list[str] | None = typer.Option(
        None, "--task", "-t", show_default=False,
        help="List only executions of this task, or of tasks that match a pattern such as "
        "'shop.*'; may be repeated.",
    ),
    tag: list[str] | None = typer.Option(
        None, "--tag", metavar="K=V", help="List only executions with this tag; may be repeated.",
        show_default=False,
    ),
    key: str | None = typer.Option(
        None, "--key", help="List only the execution with this idempotency key.", show_default=False
    ),
    parent: str | None = typer.Option(
        None, "--parent", metavar="ID", help="List only children of this execution.",
        show_default=False,
    ),
    error: str | None = typer.Option(
        None, "--error", metavar="TYPE", show_default=False,
        help="List only executions whose last failure has this type, for example TimeoutError.",
    ),
    held: bool = typer.Option(
        False, "--held", help="List only held executions: the code no longer fits their steps."
    ),
    crash_looping: bool = typer.Option(
        False, "--crash-looping", help="List only executions whose workers crash again and again."
    ),
    since: str | None = typer.Option(
        None, "--since", show_default=False,
        help="List only executions created since this time: 10m, 2h or 7d ago, or an ISO time.",
    ),
    limit: Annotated[int, LIMIT_OPTION] = 50,
    count: bool = typer.Option(
        False, "--count", help="Print only the number of matches, exact up to 10000."
    ),
    partition: Annotated[int | None, PARTITION_OPTION] = None,
) -> None:  # fmt: skip
    """List executions, newest first."""
    chosen = from_flags(
        where, states=state, lanes=lane, tasks=task, tags=tag, since=since, key=key, parent=parent,
        error=error, held=held, crash_looping=crash_looping,
    )  # fmt: skip
    async with database.client() as client:
        now = await client.executions.server_time()
        filter, partition = await located(client, chosen.resolved(now), partition)
        hint = await unknown_tasks(client, chosen.tasks)
        if count:
            if hint:
                typer.echo(hint, err=True)
            await _count(client, filter, partition, printer)
            return
        # Ask for one more than the limit, to know whether more exist.
        pages = matching(client, filter, partition, limit=limit + 1 if limit else 0)
        columns = summary_columns(
            now, is_wide=printer.is_wide, with_namespace=client.namespace is None
        )
        await printer.pages(pages, columns, limit=limit, empty=hint or "no execution matches")


async def show(
    database: Namespaces,
    printer: Printer,
    ids: Annotated[list[str], IDS_ARGUMENT],
    payload: bool = typer.Option(
        False, "--payload", help="Include payload and result, which can be confidential."
    ),
    trace: Annotated[bool, TRACE_OPTION] = False,
) -> int:
    """Show everything about an execution, or about a flow.

    Shows state, reason, lease, attempts, the last traceback, progress, deadline, failure, key,
    tags, children, recorded steps, and the last ten events. For each step, the beginning of its
    value is shown. Values of secret types are hidden.

    Exit code 3 if there is no such execution or flow.
    """

    async def show_one(client: FlowFabric, id: PartitionedId) -> None:
        if isinstance(id, FlowId):
            await show_flow(client, id, printer)
            return
        details = await read_details(client, id, with_payload=payload, with_trace=trace)
        now = await client.executions.server_time()
        printer.record(details.facts(), lambda: details.lines(now, screen()))

    parsed = parse_ids(ids)
    async with database.client() as client:
        return await for_each(
            client, parsed, _find_either, show_one, blank_between=not printer.is_json
        )


async def why(
    database: Namespaces, printer: Printer, ids: Annotated[list[str], IDS_ARGUMENT]
) -> int:
    """Explain why an execution is not running, or say that it is running.

    Exit code 3 if there is no such execution.
    """

    async def explain_one(client: FlowFabric, id: ExecutionId) -> None:
        reason = await client.executions.why(id)
        facts = {"id": id, **why_facts(reason)}
        printer.record(facts, lambda: [*_head(ids, id), *why_lines(reason)])

    parsed = parse_ids(ids)
    async with database.client() as client:
        return await for_each(client, parsed, find_execution, explain_one)


async def attempts(
    database: Namespaces,
    printer: Printer,
    ids: Annotated[list[str], IDS_ARGUMENT],
    trace: Annotated[bool, TRACE_OPTION] = False,
) -> int:
    """List the attempts of an execution, oldest first, with the traceback of each failure.

    Exit code 3 if there is no such execution.
    """

    async def list_one(client: FlowFabric, id: ExecutionId) -> None:
        records = await client.executions.attempts(id)
        if not records and await client.executions.state(id) is None:
            raise ExecutionNotFound(id=str(id))
        if printer.is_json:
            say_all(json_line({"id": id, **attempt_facts(attempt)}) for attempt in records)
            return
        say_all(_head(ids, id))
        columns = attempt_columns(await client.executions.server_time())
        printer.records(records, columns, empty="no attempt yet")
        for attempt in records:
            if lines := trace_lines(attempt, is_whole=trace):
                say_all(["", *lines])

    parsed = parse_ids(ids)
    async with database.client() as client:
        return await for_each(client, parsed, find_execution, list_one)


async def _find_either(client: FlowFabric, text: str) -> PartitionedId:
    """Return the id of an execution, or of a flow if there is no such execution."""
    try:
        id = await client.executions.find(text)
    except ExecutionNotFound:
        return await client.flows.find(text)
    if await client.executions.state(id) is None:
        flow_id = await client.flows.find(text)
        if await client.flows.describe(flow_id) is not None:
            return flow_id
    return id


def _head(texts: Sequence[str], id: ExecutionId) -> list[str]:
    """Return the id as a heading if the user gave several ids or `-`, otherwise nothing."""
    return [str(id.uuid)] if len(texts) > 1 or "-" in texts else []


async def unknown_tasks(client: FlowFabric, tasks: Sequence[str] | None) -> str | None:
    """Return a warning if the filter names a task that was never submitted, otherwise None."""
    if not tasks:
        return None
    known = [one.task for one in await client.tasks.list()]
    hints = []
    for task in tasks:
        if not any(fnmatchcase(name, task) for name in known):
            near = get_close_matches(task, known, n=3) or get_close_matches(
                task.rpartition(".")[2], [name.rpartition(".")[2] for name in known]
            )
            names = [name for name in known if name in near or name.rpartition(".")[2] in near]
            meant = f"; did you mean {' or '.join(names[:3])}?" if names else ""
            hints.append(f"no task {task} was ever submitted here{meant}")
    return printable("\n".join(hints)) if hints else None


async def matching(
    client: FlowFabric, filter: ExecutionFilter, partition: int | None, *, limit: int = 0
) -> AsyncIterator[list[ExecutionSummary]]:
    """Yield pages of matching executions, newest first, up to the limit.

    The pages are read by descending id. No execution comes twice, even if executions change or are
    submitted in the meantime.
    """
    cursor, left = None, limit
    unreached: set[int] = set()
    while True:
        page = await client.executions.list(
            filter, cursor=cursor, limit=min(left, PAGE) if limit else PAGE, partition=partition
        )
        complain_unreached(page.missing, unreached)
        yield page.executions
        cursor = page.cursor
        left -= len(page.executions)
        if cursor is None or (limit and left <= 0):
            return


async def _count(
    client: FlowFabric, filter: ExecutionFilter, partition: int | None, printer: ListPrinter
) -> None:
    async with Progress(for_logs=False).during(lambda: "counting"):
        total = await client.executions.count(filter, partition=partition)
    complain_unreached(total.missing)
    if printer.form is Output.JSON:
        say(json_line({"count": total.number, "is_more": total.is_more}))
    else:
        say(str(total))
