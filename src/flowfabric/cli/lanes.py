"""`flowfabric lane`: list, pause, drain, disable and limit lanes, and set their retention."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated

import typer

from flowfabric.cli.options import Actor, Change, LimitNumbers, Namespace, Namespaces, command
from flowfabric.cli.output import Printer
from flowfabric.client import FlowFabric
from flowfabric.client.lanes import Lanes
from flowfabric.core.execution import LaneInfo
from flowfabric.core.quota import rate_of
from flowfabric.core.times import future, span, when
from flowfabric.drawing.table import Column
from flowfabric.drawing.text import cell
from flowfabric.drawing.times import precise, short, until

app = typer.Typer(
    name="lane",
    no_args_is_help=True,
    help="List, pause, drain, disable and limit lanes.\n\nA lane belongs to a namespace. Exit "
    "code 3 if there is no such lane.",
)

LANE_ARGUMENT = typer.Argument(metavar="LANE", help="The name of the lane.")
COLOURS = {"paused": "yellow", "draining": "yellow", "disabled": "red"}
# Counts of the engine are exact up to this number.
_MAX_COUNTED = 10_000


@command(app)
async def ls(database: Namespaces, printer: Printer) -> None:
    """List lanes, with their states and the number of executions that wait in them."""
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
        help="Resume automatically after 30s, 10m, 2h or 7d, or at an ISO time. Default: never.",
        show_default=False,
    ),
) -> None:
    """Pause a lane: it accepts submissions, but allows no claims."""
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
    """Resume a lane: it accepts submissions and allows claims again."""
    await _change_by(database, printer, change, Lanes.resume, lane)


@command(app)
async def drain(
    database: Namespace, printer: Printer, change: Change, lane: Annotated[str, LANE_ARGUMENT]
) -> None:
    """Drain a lane: it refuses submissions, but allows claims of waiting executions."""
    await _change_by(database, printer, change, Lanes.drain, lane)


@command(app)
async def disable(
    database: Namespace, printer: Printer, change: Change, lane: Annotated[str, LANE_ARGUMENT]
) -> None:
    """Disable a lane: it refuses submissions and allows no claims."""
    await _change_by(database, printer, change, Lanes.disable, lane)


@command(app)
async def retention(
    database: Namespace,
    printer: Printer,
    actor: Actor,
    lane: Annotated[str, LANE_ARGUMENT],
    keep: str = typer.Argument(
        metavar="7d|default",
        help="Keep ended executions for this long. `default` restores the retention of the engine.",
    ),
) -> None:
    """Set how long ended executions of a lane are kept."""
    duration = None if keep == "default" else span(keep, "retention")
    await _change(
        database,
        printer,
        lambda client: client.lanes.set_retention(lane, duration, actor=actor.who),
    )


@command(app, "set")
async def set_options(
    database: Namespace,
    printer: Printer,
    change: Change,
    numbers: LimitNumbers,
    lane: Annotated[str, LANE_ARGUMENT],
    weight: list[str] = typer.Option(
        [],
        "--weight",
        metavar="KEY=TURNS",
        help="Give a fair key this many turns, 1 to 100, for each turn of a key without a weight. "
        "Repeat the option for each key.",
        show_default=False,
    ),
    no_weights: bool = typer.Option(
        False, "--no-weights", help="Give all fair keys equal turns.", show_default=False
    ),
) -> None:
    """Limit a lane, or give fair keys more turns. This applies immediately, until `lane lift`.

    The options that you give override the options in the code. All other options stay unchanged.
    """
    weights: dict[str, int] = {}
    for one in weight:
        key, sign, turns = one.rpartition("=")
        if not sign or not key or not turns.isdecimal():
            raise typer.BadParameter(f"must be KEY=TURNS, not {one}", param_hint="--weight")
        weights[key] = int(turns)
    clear = [*numbers.cleared, *(["weights"] if no_weights else [])]
    if weights and no_weights:
        raise typer.BadParameter("cannot be combined with --weight", param_hint="--no-weights")
    if numbers.concurrency is None and numbers.rate is None and not weights and not clear:
        raise typer.BadParameter(
            "give an option to set", param_hint="--concurrency, --rate or --weight"
        )
    await _change(
        database,
        printer,
        lambda client: client.lanes.set(
            lane,
            concurrency=numbers.concurrency,
            rate=numbers.rate,
            weights=weights or None,
            clear=clear,
            reason=change.reason,
            actor=change.who,
        ),
    )


@command(app)
async def lift(
    database: Namespace, printer: Printer, change: Change, lane: Annotated[str, LANE_ARGUMENT]
) -> None:
    """Remove the options that `lane set` has set. The options in the code apply again."""
    await _change_by(database, printer, change, Lanes.lift, lane)


async def _change_by(
    database: Namespace,
    printer: Printer,
    change: Change,
    verb: Callable[..., Awaitable[LaneInfo]],
    lane: str,
) -> None:
    """Call a method of `Lanes` that takes only a lane, a reason and an actor."""
    await _change(
        database,
        printer,
        lambda client: verb(client.lanes, lane, reason=change.reason, actor=change.who),
    )


async def _change(
    database: Namespace, printer: Printer, act: Callable[[FlowFabric], Awaitable[LaneInfo]]
) -> None:
    async with database.client() as client:
        _print(printer, [await act(client)], await client.executions.server_time(), client)


def _limit(lane: LaneInfo) -> str:
    """Return the limit of a lane, as in `10 at once, 100/min`."""
    rate = rate_of(lane.rate, lane.rate_window)
    parts = [
        *([f"{lane.concurrency} at once"] if lane.concurrency is not None else []),
        *([str(rate)] if rate is not None else []),
    ]
    return ", ".join(parts) or "-"


def _print(printer: Printer, lanes: list[LaneInfo], now: datetime, client: FlowFabric) -> None:
    def changed(lane: LaneInfo) -> str:
        if lane.changed_at is None:
            return "-"
        by = f" by {lane.changed_by}" if lane.changed_by else ""
        return f"{short(now - lane.changed_at)} ago{by}"

    columns: list[Column[LaneInfo]] = [
        Column(
            "NAMESPACE", lambda lane: lane.namespace, least=8, is_shown=client.namespace is None
        ),
        Column("LANE", lambda lane: lane.lane, least=8),
        Column("STATE", lambda lane: cell(lane.state, COLOURS.get(lane.state))),
        Column(
            "WAITING",
            lambda lane: f"{_MAX_COUNTED}+" if lane.waiting > _MAX_COUNTED else str(lane.waiting),
            is_number=True,
        ),
        Column(
            "IN LINE",
            lambda lane: f"{_MAX_COUNTED}+" if lane.in_line > _MAX_COUNTED else str(lane.in_line),
            is_number=True,
            is_shown=any(lane.in_line for lane in lanes),
        ),
        Column("LIMIT", _limit, is_shown=any(_limit(lane) != "-" for lane in lanes)),
        Column(
            "TURNS",
            lambda lane: ", ".join(f"{key}={n}" for key, n in (lane.weights or {}).items()) or "-",
            is_shown=any(lane.weights for lane in lanes),
            least=8,
        ),
        Column("RESUMES", lambda lane: until(lane.resumes_at, now)),
        Column(
            "KEEPS", lambda lane: "default" if lane.retention is None else precise(lane.retention)
        ),
        Column("CHANGED", changed, drop=1),
        Column("REASON", lambda lane: lane.reason or "", least=10),
    ]
    empty = "no lanes yet; a lane appears with its first submission"
    printer.records(lanes, columns, empty=empty)
