"""`flowfabric flow`: list, show, draw and cancel flows, and retry failed members."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from flowfabric.cli.actions import DRY_RUN_OPTION
from flowfabric.cli.flow_show import show_flow
from flowfabric.cli.ids import (
    FLOW_ID_ARGUMENT,
    FLOW_IDS_ARGUMENT,
    PARTITION_OPTION,
    complain_unreached,
    find_flow,
    for_each,
    parse_ids,
)
from flowfabric.cli.options import (
    EXIT_CONFLICT,
    EXIT_UNREACHABLE,
    LIMIT_OPTION,
    YES_OPTION,
    Change,
    Namespaces,
    command,
    exit_code,
)
from flowfabric.cli.output import ListPrinter, Printer, Progress, complain, say, say_all, screen
from flowfabric.client import FlowFabric
from flowfabric.client.detail_reads import read_flow
from flowfabric.core.errors import InvalidInput
from flowfabric.core.flow import (
    FlowCancellation,
    FlowCancelOutcome,
    FlowInfo,
    FlowListed,
    FlowState,
    FlowSummary,
)
from flowfabric.core.ids import FlowId, parse_id
from flowfabric.core.states import FlowCancelPolicy, PublicState
from flowfabric.core.times import span
from flowfabric.drawing.executions import short_id
from flowfabric.drawing.flows import flow_columns, flow_facts, flow_tree
from flowfabric.drawing.folding import fold, unfolded
from flowfabric.drawing.picture import picture_of
from flowfabric.drawing.plain import json_line, plain
from flowfabric.drawing.svg import as_svg
from flowfabric.drawing.text import count_of, printable

PAGE = 500
# How long --wait waits if --timeout is not given.
DEFAULT_WAIT = timedelta(minutes=5)

_RETRIED_STATES = (PublicState.FAILED, PublicState.EXPIRED)

app = typer.Typer(
    name="flow",
    no_args_is_help=True,
    help="List, show, draw and cancel flows, and retry failed members.\n\nExit codes: 2: wrong "
    "usage. 3: no such flow. 4: refused, for example because the flow has ended. 5: no database.",
)


@command(app)
async def ls(
    database: Namespaces,
    printer: ListPrinter,
    state: list[str] | None = typer.Option(
        None,
        "--state",
        "-s",
        help="List only flows in these states, for example running,failed.",
        show_default=False,
    ),
    limit: Annotated[int, LIMIT_OPTION] = 50,
    partition: Annotated[int | None, PARTITION_OPTION] = None,
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
        empty = "no flow matches" if states else "no flows yet"
        await printer.pages(pages, columns, limit=limit, empty=empty)


@command(app)
async def show(
    database: Namespaces, printer: Printer, ids: Annotated[list[str], FLOW_IDS_ARGUMENT]
) -> int:
    """Show a flow: its state, its progress, and the members that have not completed.

    Exit code 3 if there is no such flow.
    """

    async def show_one(client: FlowFabric, id: FlowId) -> None:
        await show_flow(client, id, printer)

    parsed = parse_ids(ids)
    async with database.client() as client:
        return await for_each(
            client, parsed, find_flow, show_one, blank_between=not printer.is_json
        )


@command(app)
async def graph(
    database: Namespaces,
    printer: Printer,
    id: Annotated[str, FLOW_ID_ARGUMENT],
    svg: Path | None = typer.Option(
        None, "--svg", metavar="FILE", help="Draw the flow into this SVG file; - means stdout."
    ),
    unfold: bool = typer.Option(
        False, "--unfold", help="Draw similar nodes one by one. Avoid this for large flows."
    ),
) -> int:
    """Draw a flow as a tree of its nodes, or as a picture.

    Similar nodes are drawn together: 100 of them can be one line or one box. With -o json, print
    all nodes, edges and groups.

    Exit codes: 1: the file cannot be written. 3: no such flow.
    """
    if svg is not None and printer.output is not None:
        raise InvalidInput(field="--svg", problem="cannot be combined with --output")

    async def draw(client: FlowFabric, id: FlowId) -> int | None:
        info, summary = await read_flow(client, id)
        members = await client.flows.members(id)
        edges = await client.flows.edges(id)
        if svg is None and printer.is_json:
            nodes, lines = list(map(plain, members)), list(map(plain, edges))
            say(json_line({**flow_facts(info, summary), "nodes": nodes, "edges": lines}))
            return None
        now = await client.executions.server_time()
        picture = picture_of(info.flow_kind, summary.state, members, edges, info.groups, now=now)
        if svg is not None:
            return _write(svg, as_svg(picture, is_folded=not unfold))
        picture = unfolded(picture) if unfold else fold(picture)
        say_all(flow_tree(picture, info, summary, screen()))
        if picture.note:
            typer.echo(picture.note, err=True)
        if summary.total < info.node_count:
            typer.echo(f"{info.node_count - summary.total} members were trimmed", err=True)
        return None

    parsed = parse_id(id)
    async with database.client() as client:
        return await for_each(client, [parsed], find_flow, draw)


@command(app)
async def cancel(
    database: Namespaces,
    printer: Printer,
    change: Change,
    ids: Annotated[list[str], FLOW_IDS_ARGUMENT],
    cancel_policy: FlowCancelPolicy = typer.Option(
        FlowCancelPolicy.CANCEL_ALL,
        "--policy",
        help="Cancel all unfinished members (cancel_all), only members that are not running "
        "(cancel_pending), or no members (flow_only).",
    ),
    wait: bool = typer.Option(False, "--wait", help="Wait until the members have ended."),
    timeout: str | None = typer.Option(
        None, "--timeout", help="With --wait, wait at most this long. Default: 5m.",
        show_default=False,
    ),
    dry_run: Annotated[bool, DRY_RUN_OPTION] = False,
    yes: Annotated[bool, YES_OPTION] = False,
) -> int:  # fmt: skip
    """Cancel flows. After that no further members start, except with --policy flow_only.

    While members are unfinished, a cancelled flow can be cancelled again with a stricter cancel
    policy. A flow whose members have all ended stays unchanged.

    Without --wait, the command can end before all members have ended. If the command is killed,
    reconcilers cancel the remaining members.

    Exit codes: 3: not found. 4: the flow has ended, or was cancelled before with the same or a
    stricter policy, or its members have not ended within --timeout. 5: no database, or members are
    locked by another transaction.
    """
    patience = DEFAULT_WAIT if timeout is None else span(timeout, "--timeout")
    if timeout is not None and not wait:
        raise InvalidInput(field="--timeout", problem="requires --wait")
    if not (yes or dry_run or sys.stdin.isatty()):
        raise InvalidInput(field="--yes", problem="is required without a terminal")

    async def cancel_one(client: FlowFabric, id: FlowId) -> int:
        if dry_run:
            info, summary = await read_flow(client, id)
            _predict(info, summary, cancel_policy, printer)
            return 0
        async with Progress(for_logs=False).during(lambda: f"cancelling {short_id(id)}"):
            answer = await client.flows.cancel(
                id,
                cancel_policy=cancel_policy,
                reason=change.reason,
                actor=change.who,
                wait=patience if wait else None,
            )
        return _report(answer, printer)

    parsed = parse_ids(ids)
    async with database.client(pool_size=2) as client:
        if not (yes or dry_run):
            await _confirm(
                client, [await find_flow(client, text) for text in parsed], cancel_policy
            )
        return await for_each(
            client, parsed, find_flow, cancel_one, verb="cancel" if printer.is_json else None
        )


@command(app, "retry-failed")
async def retry_failed(
    database: Namespaces,
    printer: Printer,
    change: Change,
    ids: Annotated[list[str], FLOW_IDS_ARGUMENT],
    dry_run: Annotated[bool, DRY_RUN_OPTION] = False,
) -> int:
    """Replay the failed and expired members of flows, and the members that were skipped because of
    them.

    Exit codes: 3: not found. 4: the flow is cancelled or a member cannot be replayed. 5: no
    database.
    """

    async def retry_one(client: FlowFabric, id: FlowId) -> int:
        if dry_run:
            _, summary = await read_flow(client, id)
            count = sum(summary.counts.get(state, 0) for state in _RETRIED_STATES)
            _print(printer, id, "retry-failed", "would_retry", count)
            return 0
        async with Progress(for_logs=False).during(lambda: f"retrying {short_id(id)}"):
            answer = await client.flows.retry_failed(id, reason=change.reason, actor=change.who)
        for member, error in answer.refused.items():
            complain(printable(str(error) if member in str(error) else f"{member}: {error}"))
        refused = list(answer.refused) or None
        count = len(answer.replayed)
        _print(printer, id, "retry-failed", "retried", count, refused=refused)
        return max(map(exit_code, answer.refused.values()), default=0)

    parsed = parse_ids(ids)
    async with database.client(pool_size=2) as client:
        return await for_each(
            client, parsed, find_flow, retry_one, verb="retry-failed" if printer.is_json else None
        )


def _print(
    printer: Printer, id: FlowId, action: str, outcome: str, members: int, **facts: Any
) -> None:
    """Print the outcome of an action on one flow, with a number of members."""
    printer.record(
        {"id": id, "action": action, "outcome": outcome, **facts, "members": members},
        lambda: [f"{id.uuid}  {outcome.replace('_', ' ')}  {count_of(members, 'member')}"],
    )


# ls


def _states(texts: Sequence[str] | None) -> frozenset[FlowState]:
    states = set()
    for word in (word for text in texts or () for word in text.split(",")):
        try:
            states.add(FlowState(word.lower()))
        except ValueError as error:
            raise InvalidInput(
                field="--state",
                problem=f"{word!r} is not a state; use one of {', '.join(FlowState)}",
            ) from error
    return frozenset(states)


async def _pages(
    client: FlowFabric, partition: int | None, states: frozenset[FlowState]
) -> AsyncIterator[list[FlowListed]]:
    after = None
    unreached: set[int] = set()
    while True:
        page = await client.flows.list(after=after, limit=PAGE, newest=True, partition=partition)
        complain_unreached(page.missing, unreached)
        yield [flow for flow in page.flows if not states or flow.state in states]
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
    typer.echo(f"written: {file}", err=True)
    return 0


# cancel


async def _confirm(
    client: FlowFabric, ids: Sequence[FlowId], cancel_policy: FlowCancelPolicy
) -> None:
    """Print how many members would be cancelled, and ask for confirmation."""
    count = 0
    for id in ids:
        info, summary = await client.flows.describe(id), await client.flows.summary(id)
        if info is not None and summary is not None:
            count += _count_cancelled(info, summary, cancel_policy)
    noun = f"flow {short_id(ids[0])}" if len(ids) == 1 else f"{len(ids)} flows"
    question = f"cancel {noun}, ending {count_of(count, 'member')}\nContinue?"
    if not typer.confirm(question, err=True):
        raise typer.Abort


_MILDEST_FIRST = [
    None,
    FlowCancelPolicy.FLOW_ONLY,
    FlowCancelPolicy.CANCEL_PENDING,
    FlowCancelPolicy.CANCEL_ALL,
]


def _is_refused(info: FlowInfo, summary: FlowSummary, cancel_policy: FlowCancelPolicy) -> bool:
    """Return whether a cancel would be refused, because it would change nothing."""
    if summary.unfinished == 0:
        return summary.total > 0 or info.cancel_policy is not None
    return _MILDEST_FIRST.index(cancel_policy) <= _MILDEST_FIRST.index(info.cancel_policy)


def _count_cancelled(info: FlowInfo, summary: FlowSummary, cancel_policy: FlowCancelPolicy) -> int:
    """Return how many members would be cancelled now."""
    if cancel_policy is FlowCancelPolicy.FLOW_ONLY or _is_refused(info, summary, cancel_policy):
        return 0
    running = summary.counts.get(PublicState.ACTIVE, 0)
    return summary.unfinished - (running if cancel_policy is FlowCancelPolicy.CANCEL_PENDING else 0)


def _predict(
    info: FlowInfo, summary: FlowSummary, cancel_policy: FlowCancelPolicy, printer: Printer
) -> None:
    count = _count_cancelled(info, summary, cancel_policy)
    outcome = "would_be_refused" if _is_refused(info, summary, cancel_policy) else "would_cancel"
    words = outcome.replace("_", " ")
    ending = f"(it is {summary.state}, ending {count_of(count, 'member')})"
    facts = {"id": summary.id, "action": "cancel", "outcome": outcome, "state": summary.state}
    printer.record({**facts, "members": count}, lambda: [f"{summary.id.uuid}  {words}  {ending}"])


def _report(answer: FlowCancellation, printer: Printer) -> int:
    """Print the outcome of a cancellation and return the exit code."""
    is_over = answer.outcome is FlowCancelOutcome.ALREADY_TERMINAL
    if printer.is_json or not is_over:
        _print(
            printer,
            answer.id,
            "cancel",
            answer.outcome,
            answer.open_count,
            cancel_policy=answer.cancel_policy,
            reason=answer.reason,
            failed=answer.failed or None,
        )
    elif answer.cancel_policy is None:
        complain(f"{answer.id}: has already ended")
    else:
        why = f" ({answer.reason})" if answer.reason else ""
        complain(printable(f"{answer.id}: is already cancelled, with {answer.cancel_policy}{why}"))
    if is_over:
        return EXIT_CONFLICT
    if answer.outcome is not FlowCancelOutcome.PARTIALLY_CANCELLED:
        return 0
    if not printer.is_json:
        for member in answer.failed:
            complain(f"{member}: is locked by another transaction; it ends after that transaction")
    return EXIT_UNREACHABLE
