"""`flowfabric flow`: look at flows, draw them, cancel them, run again what failed in them."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from flowfabric.cli.actions import DRY_RUN_OPTION
from flowfabric.cli.ids import (
    FLOW_ID_ARGUMENT,
    FLOW_IDS_ARGUMENT,
    PARTITION_OPTION,
    for_each,
    parse_flow_id,
    parse_flow_ids,
)
from flowfabric.cli.options import (
    EXIT_CONFLICT,
    EXIT_UNREACHABLE,
    Change,
    Namespaces,
    command,
    exit_code,
)
from flowfabric.cli.output import ListPrinter, Printer, Progress, complain, say, say_all, screen
from flowfabric.cli.times import span
from flowfabric.client import FlowFabric
from flowfabric.core.errors import FlowNotFound, InvalidInput
from flowfabric.core.flow import (
    FlowCancellation,
    FlowCancelOutcome,
    FlowInfo,
    FlowListed,
    FlowState,
    FlowSummary,
)
from flowfabric.core.ids import FlowId
from flowfabric.core.states import FlowCancelPolicy, PublicState
from flowfabric.drawing import as_svg, fold, picture_of
from flowfabric.drawing.executions import short_id
from flowfabric.drawing.flows import flow_columns, flow_facts, flow_lines, flow_tree
from flowfabric.drawing.folding import unfolded
from flowfabric.drawing.picture import ORDER
from flowfabric.drawing.plain import json_line, plain
from flowfabric.drawing.text import printable

PAGE = 500
# How long --wait waits without --timeout.
PATIENCE = timedelta(minutes=5)

_UNWELL = (PublicState.FAILED, PublicState.EXPIRED)
_NOTABLE = [state for state in ORDER if state is not PublicState.COMPLETED]

app = typer.Typer(
    name="flow",
    no_args_is_help=True,
    help="Look at flows, draw them, cancel them.\n\nExit codes: 2 wrong usage, 3 no such flow, "
    "4 its state does not allow it, 5 no database.",
)


@command(app)
async def ls(
    database: Namespaces,
    printer: ListPrinter,
    state: list[str] | None = typer.Option(
        None, "--state", "-s", help="Only these states, as running,failed.", show_default=False
    ),
    limit: int = typer.Option(50, "--limit", min=0, help="List at most this many; 0 lists all."),
    partition: Annotated[int, PARTITION_OPTION] = 0,
) -> None:
    """List flows, newest first."""
    states = _states(state)
    async with database.client() as client:
        columns = flow_columns(
            await client.executions.server_time(),
            is_wide=printer.is_wide,
            with_namespace=client.namespace is None,
        )
        pages = _pages(client, partition, states)
        empty = "nothing matches" if states else "no flows yet"
        await printer.pages(pages, columns, limit=limit, empty=empty)


@command(app)
async def show(
    database: Namespaces, printer: Printer, ids: Annotated[list[str], FLOW_IDS_ARGUMENT]
) -> int:
    """Show a flow: its state, how far its members are, and the members that need a look.

    Exit code 3 if there is no such flow.
    """

    async def one(client: FlowFabric, id: FlowId) -> None:
        info, summary = await _known(client, id)
        if printer.is_json:
            say(json_line(flow_facts(info, summary)))
            return
        now = await client.executions.server_time()
        members = await client.flows.members(id, states=_NOTABLE)
        say_all(flow_lines(info, summary, members, now, screen()))

    found = parse_flow_ids(ids)
    async with database.client() as client:
        return await for_each(client, found, one, blank_between=not printer.is_json)


@command(app)
async def graph(
    database: Namespaces,
    printer: Printer,
    id: Annotated[str, FLOW_ID_ARGUMENT],
    svg: Path | None = typer.Option(
        None, "--svg", metavar="FILE", help="Draw the flow into this SVG file; - is stdout."
    ),
    unfold: bool = typer.Option(
        False, "--unfold", help="Draw every node, also where many are alike; not for large flows."
    ),
) -> int:
    """Draw a flow as a tree of its nodes, or as a picture.

    Nodes that are alike are drawn as one: a fan-out of 100 is one line, or one box. With -o json,
    print the nodes, edges and groups themselves.

    Exit codes: 1 the file cannot be written, 3 no such flow.
    """
    if svg is not None and printer.output is not None:
        raise InvalidInput(field="--svg", problem="goes without --output")

    async def one(client: FlowFabric, id: FlowId) -> int | None:
        info, summary = await _known(client, id)
        members = await client.flows.members(id)
        edges = await client.flows.edges(id)
        if svg is None and printer.is_json:
            nodes, lines = list(map(plain, members)), list(map(plain, edges))
            say(json_line({**flow_facts(info, summary), "nodes": nodes, "edges": lines}))
            return None
        picture = picture_of(info.flow_kind, summary.state, members, edges, info.groups)
        if svg is not None:
            return _write(svg, as_svg(picture, is_folded=not unfold))
        picture = unfolded(picture) if unfold else fold(picture)
        say_all(flow_tree(picture, info, summary, screen()))
        if picture.note:
            typer.echo(picture.note, err=True)
        if summary.total < info.node_count:
            typer.echo(f"{info.node_count - summary.total} members were trimmed", err=True)
        return None

    found = parse_flow_id(id)
    async with database.client() as client:
        return await for_each(client, [found], one)


@command(app)
async def cancel(
    database: Namespaces,
    printer: Printer,
    change: Change,
    ids: Annotated[list[str], FLOW_IDS_ARGUMENT],
    policy: FlowCancelPolicy = typer.Option(
        FlowCancelPolicy.CANCEL_ALL,
        "--policy",
        help="Which members end: all unfinished ones, those that do not run, or none.",
    ),
    wait: bool = typer.Option(False, "--wait", help="Return when the members have ended."),
    timeout: str | None = typer.Option(
        None, "--timeout", help="With --wait: wait no longer than this, as 30s. Default: 5m.",
        show_default=False,
    ),
    dry_run: Annotated[bool, DRY_RUN_OPTION] = False,
    yes: bool = typer.Option(
        False, "--yes", "-y", help="Skip confirmation. Required without a terminal."
    ),
) -> int:  # fmt: skip
    """Cancel flows. None of their members starts any more.

    A flow that was cancelled may be cancelled by a stricter policy while members live. A flow whose
    members have all ended stays as it is.

    Without --wait the command returns at once. The reconcilers end the members, even if the command
    is killed.

    Exit codes: 3 not found, 4 cancelled or ended already, or not ended within --timeout, 5 no
    database, or another transaction holds members.
    """
    patience = PATIENCE if timeout is None else span(timeout, "--timeout")
    if timeout is not None and not wait:
        raise InvalidInput(field="--timeout", problem="goes with --wait")
    if not (yes or dry_run or sys.stdin.isatty()):
        raise InvalidInput(field="--yes", problem="is needed here: there is nobody to ask")

    async def one(client: FlowFabric, id: FlowId) -> int:
        if dry_run:
            info, summary = await _known(client, id)
            _foretell(info, summary, policy, printer)
            return 0
        async with Progress(for_logs=False).telling(lambda: f"cancelling {short_id(id)}"):
            answer = await client.flows.cancel(
                id,
                policy=policy,
                reason=change.reason,
                actor=change.who,
                wait=patience if wait else None,
            )
        return _cancelled(answer, printer)

    found = parse_flow_ids(ids)
    async with database.client(pool_size=2) as client:
        if not (yes or dry_run):
            await _confirm(client, found, policy)
        return await for_each(client, found, one, verb="cancel" if printer.is_json else None)


@command(app, "retry-failed")
async def retry_failed(
    database: Namespaces,
    printer: Printer,
    change: Change,
    ids: Annotated[list[str], FLOW_IDS_ARGUMENT],
    dry_run: Annotated[bool, DRY_RUN_OPTION] = False,
) -> int:
    """Run the failed and expired members of flows again, with all that was skipped for them.

    Exit codes: 3 not found, 4 the flow is cancelled or a member cannot be replayed, 5 no database.
    """

    async def one(client: FlowFabric, id: FlowId) -> int:
        if dry_run:
            _, summary = await _known(client, id)
            count = sum(summary.counts.get(state, 0) for state in _UNWELL)
            _tell(printer, id, "retry-failed", "would_retry", count)
            return 0
        async with Progress(for_logs=False).telling(lambda: f"retrying {short_id(id)}"):
            answer = await client.flows.retry_failed(id, reason=change.reason, actor=change.who)
        for member, error in answer.refused.items():
            complain(printable(str(error) if member in str(error) else f"{member}: {error}"))
        refused = list(answer.refused) or None
        count = len(answer.replayed)
        _tell(printer, id, "retry-failed", "retried", count, refused=refused)
        return max(map(exit_code, answer.refused.values()), default=0)

    found = parse_flow_ids(ids)
    async with database.client(pool_size=2) as client:
        return await for_each(client, found, one, verb="retry-failed" if printer.is_json else None)


async def _known(client: FlowFabric, id: FlowId) -> tuple[FlowInfo, FlowSummary]:
    info, summary = await client.flows.describe(id), await client.flows.summary(id)
    if info is None or summary is None:
        raise FlowNotFound(id=str(id))
    return info, summary


def _tell(
    printer: Printer, id: FlowId, action: str, outcome: str, members: int, **facts: Any
) -> None:
    """Say what became of a flow and how many members that concerns."""
    if printer.is_json:
        what = {"id": id, "action": action, "outcome": outcome, **facts, "members": members}
        say(json_line(what))
    else:
        say(f"{id}  {outcome.replace('_', ' ')}  {_number(members)}")


# ls


def _states(texts: Sequence[str] | None) -> frozenset[FlowState]:
    found = set()
    for word in (word for text in texts or () for word in text.split(",")):
        try:
            found.add(FlowState(word.lower()))
        except ValueError as error:
            raise InvalidInput(
                field="--state", problem=f"{word!r} is none; there are {', '.join(FlowState)}"
            ) from error
    return frozenset(found)


async def _pages(
    client: FlowFabric, partition: int, states: frozenset[FlowState]
) -> AsyncIterator[list[FlowListed]]:
    after = None
    while True:
        page = await client.flows.list(after=after, limit=PAGE, newest=True, partition=partition)
        yield [one for one in page.flows if not states or one.state in states]
        after = page.after
        if after is None:
            return


# graph


def _write(file: Path, text: str) -> int:
    if str(file) == "-":
        say(text.rstrip("\n"))
        return 0
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        complain(f"{file}: {error.strerror or error}")
        return 1
    typer.echo(f"drawn: {file}", err=True)
    return 0


# cancel


async def _confirm(client: FlowFabric, ids: Sequence[FlowId], policy: FlowCancelPolicy) -> None:
    """Say how many members end, and ask."""
    count = 0
    for id in ids:
        info, summary = await client.flows.describe(id), await client.flows.summary(id)
        if info is not None and summary is not None:
            count += _concerned(info, summary, policy)
    what = f"flow {short_id(ids[0])}" if len(ids) == 1 else f"{len(ids)} flows"
    if not typer.confirm(f"cancel {what}, ending {_number(count)}\nGo on?", err=True):
        raise typer.Abort


_MILDEST_FIRST = [
    None,
    FlowCancelPolicy.FLOW_ONLY,
    FlowCancelPolicy.CANCEL_PENDING,
    FlowCancelPolicy.CANCEL_ALL,
]


def _is_refused(info: FlowInfo, summary: FlowSummary, policy: FlowCancelPolicy) -> bool:
    """Whether cancelling a flow would change nothing."""
    if summary.unfinished == 0:
        return summary.total > 0 or info.cancel_policy is not None
    return _MILDEST_FIRST.index(policy) <= _MILDEST_FIRST.index(info.cancel_policy)


def _concerned(info: FlowInfo, summary: FlowSummary, policy: FlowCancelPolicy) -> int:
    """How many members cancelling a flow would end now."""
    if policy is FlowCancelPolicy.FLOW_ONLY or _is_refused(info, summary, policy):
        return 0
    running = summary.counts.get(PublicState.ACTIVE, 0)
    return summary.unfinished - (running if policy is FlowCancelPolicy.CANCEL_PENDING else 0)


def _number(count: int) -> str:
    return f"{count} {'member' if count == 1 else 'members'}"


def _foretell(
    info: FlowInfo, summary: FlowSummary, policy: FlowCancelPolicy, printer: Printer
) -> None:
    count = _concerned(info, summary, policy)
    outcome = "would_be_refused" if _is_refused(info, summary, policy) else "would_cancel"
    if printer.is_json:
        _tell(printer, summary.id, "cancel", outcome, count, state=summary.state)
    else:
        words = outcome.replace("_", " ")
        say(f"{summary.id}  {words}  (it is {summary.state}, ending {_number(count)})")


def _cancelled(answer: FlowCancellation, printer: Printer) -> int:
    """Tell what became of it; returns the exit code."""
    is_over = answer.outcome is FlowCancelOutcome.ALREADY_TERMINAL
    if printer.is_json or not is_over:
        _tell(
            printer,
            answer.id,
            "cancel",
            answer.outcome,
            answer.open_count,
            policy=answer.policy,
            reason=answer.reason,
            failed=answer.failed or None,
        )
    elif answer.policy is None:
        complain(f"{answer.id}: has ended already")
    else:
        why = f" ({answer.reason})" if answer.reason else ""
        complain(printable(f"{answer.id}: is cancelled already, with {answer.policy}{why}"))
    if is_over:
        return EXIT_CONFLICT
    if answer.outcome is not FlowCancelOutcome.PARTIALLY_CANCELLED:
        return 0
    if not printer.is_json:
        for member in answer.failed:
            complain(f"{member}: somebody holds it; it ends as soon as that is over")
    return EXIT_UNREACHABLE
