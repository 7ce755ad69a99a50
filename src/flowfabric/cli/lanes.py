"""`flowfabric lane`: look at lanes, pause them, drain them, and say how long they keep things."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated

import typer

from flowfabric.cli.options import Actor, Change, Namespace, Namespaces, command
from flowfabric.cli.output import Printer
from flowfabric.cli.times import future, span, when
from flowfabric.client import FlowFabric
from flowfabric.core.execution import LaneInfo
from flowfabric.drawing.table import Column
from flowfabric.drawing.text import cell
from flowfabric.drawing.times import precise, short, until

app = typer.Typer(
    name="lane",
    no_args_is_help=True,
    help="Look at lanes, pause and drain them.\n\nA lane belongs to a namespace. Exit code 3 "
    "if there is no such lane.",
)

LANE_ARGUMENT = typer.Argument(metavar="LANE", help="The name of the lane.")
COLOURS = {"paused": "yellow", "draining": "yellow", "disabled": "red"}
# The engine counts no further.
_COUNTED = 10_000


@command(app)
async def ls(database: Namespaces, printer: Printer) -> None:
    """List lanes, their states, and how much waits in them."""
    async with database.client() as client:
        _print(printer, await client.lanes.list(), await client.executions.server_time(), client)


@command(app)
async def pause(
    database: Namespace,
    printer: Printer,
    change: Change,
    lane: Annotated[str, LANE_ARGUMENT],
    until: str | None = typer.Option(
        None,
        "--until",
        help="Resume by itself: in 30s, 10m, 2h, 7d, or at an ISO time. Default: never.",
        show_default=False,
    ),
) -> None:
    """Take submissions, but let nothing be claimed."""
    moment = None if until is None else when(until, "until")

    async def act(client: FlowFabric) -> LaneInfo:
        resumes_at = None
        if moment is not None:
            resumes_at = future(moment, await client.executions.server_time())
        return await client.lanes.pause(
            lane, until=resumes_at, reason=change.reason, actor=change.who
        )

    await _change(database, printer, act)


@command(app)
async def resume(
    database: Namespace, printer: Printer, change: Change, lane: Annotated[str, LANE_ARGUMENT]
) -> None:
    """Take submissions and let them be claimed."""
    await _change(
        database,
        printer,
        lambda client: client.lanes.resume(lane, reason=change.reason, actor=change.who),
    )


@command(app)
async def drain(
    database: Namespace, printer: Printer, change: Change, lane: Annotated[str, LANE_ARGUMENT]
) -> None:
    """Let waiting executions be claimed, but refuse submissions."""
    await _change(
        database,
        printer,
        lambda client: client.lanes.drain(lane, reason=change.reason, actor=change.who),
    )


@command(app)
async def disable(
    database: Namespace, printer: Printer, change: Change, lane: Annotated[str, LANE_ARGUMENT]
) -> None:
    """Refuse submissions and let nothing be claimed."""
    await _change(
        database,
        printer,
        lambda client: client.lanes.disable(lane, reason=change.reason, actor=change.who),
    )


@command(app)
async def retention(
    database: Namespace,
    printer: Printer,
    actor: Actor,
    lane: Annotated[str, LANE_ARGUMENT],
    keep: str = typer.Argument(
        metavar="7d|default", help="How long; default: as long as the other lanes."
    ),
) -> None:
    """Set how long executions that ended in this lane are kept."""
    duration = None if keep == "default" else span(keep, "retention")
    await _change(
        database,
        printer,
        lambda client: client.lanes.set_retention(lane, duration, actor=actor.who),
    )


async def _change(
    database: Namespace, printer: Printer, act: Callable[[FlowFabric], Awaitable[LaneInfo]]
) -> None:
    async with database.client() as client:
        _print(printer, [await act(client)], await client.executions.server_time(), client)


def _print(printer: Printer, lanes: list[LaneInfo], now: datetime, client: FlowFabric) -> None:
    def changed(one: LaneInfo) -> str:
        if one.changed_at is None:
            return "-"
        by = f" by {one.changed_by}" if one.changed_by else ""
        return f"{short(now - one.changed_at)} ago{by}"

    columns: list[Column[LaneInfo]] = [
        Column("NAMESPACE", lambda one: one.namespace, least=8, is_shown=client.namespace is None),
        Column("LANE", lambda one: one.lane, least=8),
        Column("STATE", lambda one: cell(one.state, COLOURS.get(one.state))),
        Column(
            "WAITING",
            lambda one: f"{_COUNTED}+" if one.waiting > _COUNTED else str(one.waiting),
            is_number=True,
        ),
        Column("RESUMES", lambda one: until(one.resumes_at, now)),
        Column("KEEPS", lambda one: "default" if one.retention is None else precise(one.retention)),
        Column("CHANGED", changed, drop=1),
        Column("REASON", lambda one: one.reason or "", least=10),
    ]
    empty = "no lanes yet; one appears with its first submission"
    printer.records(lanes, columns, empty=empty)
