"""`flowfabric schedule`: list, show, pause, resume, run and forget schedules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Annotated

import typer

from flowfabric.cli.options import Actor, Change, Namespace, Namespaces, command
from flowfabric.cli.output import Printer, say, screen
from flowfabric.client import FlowFabric
from flowfabric.core.schedule import ScheduleInfo, zone
from flowfabric.core.states import ScheduleState
from flowfabric.drawing.plain import json_line
from flowfabric.drawing.table import Column, record
from flowfabric.drawing.text import cell
from flowfabric.drawing.times import precise, relative, short, until

app = typer.Typer(
    name="schedule",
    no_args_is_help=True,
    help="List, show, pause and run schedules.\n\nA schedule appears when a worker of its "
    "app starts. Exit code 3 if there is no such schedule.",
)

_COLOURS = {ScheduleState.PAUSED: "yellow", ScheduleState.ORPHANED: "red"}

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the schedule.")]
AppName = Annotated[
    str | None,
    typer.Option(
        "--app",
        help="Choose the app. Required if several apps have a schedule of this name.",
        show_default=False,
    ),
]


@command(app)
async def ls(
    database: Namespaces,
    printer: Printer,
    app: str | None = typer.Option(
        None, "--app", help="List only the schedules of this app.", show_default=False
    ),
) -> None:
    """List schedules with their rules, states and next times."""
    async with database.client() as client:
        found = await client.schedules.list(app=app)
        _print(printer, found, await client.executions.server_time())


@command(app)
async def show(database: Namespace, printer: Printer, name: Name, app: AppName = None) -> None:
    """Show one schedule."""
    async with database.client() as client:
        found = await client.schedules.get(name, app=app)
        now = await client.executions.server_time()
    printer.record(found, lambda: record(_facts(found, now), screen()))


@command(app)
async def pause(
    database: Namespace, printer: Printer, change: Change, name: Name, app: AppName = None
) -> None:
    """Pause a schedule until `schedule resume`. Times that pass during the pause never fire."""
    await _change(
        database,
        printer,
        lambda client: client.schedules.pause(
            name, app=app, reason=change.reason, actor=change.who
        ),
    )


@command(app)
async def resume(
    database: Namespace, printer: Printer, change: Change, name: Name, app: AppName = None
) -> None:
    """Resume a paused schedule. The schedule fires again at its next time."""
    await _change(
        database,
        printer,
        lambda client: client.schedules.resume(
            name, app=app, reason=change.reason, actor=change.who
        ),
    )


@command(app)
async def run(
    database: Namespace, printer: Printer, actor: Actor, name: Name, app: AppName = None
) -> None:
    """Submit the task of a schedule now, and print the id of the execution.

    The regular times of the schedule do not change.
    """
    async with database.client() as client:
        id = await client.schedules.run(name, app=app, actor=actor.who)
    facts = {"schedule": name, "execution_id": id, "uuid": str(id.uuid)}
    printer.record(facts, lambda: [str(id.uuid)])


@command(app, "next")
async def next_times(
    database: Namespace,
    printer: Printer,
    name: Name,
    count: int = typer.Option(
        5, "--count", "-c", min=1, max=1000, help="Print this many of the next times."
    ),
    app: AppName = None,
) -> None:
    """Print the next times of a schedule, in its time zone."""
    async with database.client() as client:
        found = await client.schedules.get(name, app=app)
        now = await client.executions.server_time()
        moments = await client.schedules.next(name, count=count, app=found.app)
    for moment in moments:
        local = moment.astimezone(zone(found.time_zone))
        if printer.is_json:
            say(json_line({"at": moment, "local": local}))
        else:
            say(f"{local:%a %Y-%m-%d %H:%M:%S %Z}  {relative(moment, now)}")
    if found.state is not ScheduleState.ACTIVE:
        typer.echo(f"the schedule is {found.state}: these times do not fire", err=True)


@command(app)
async def forget(database: Namespace, name: Name, app: AppName = None) -> None:
    """Remove an orphaned schedule. The executions that it submitted stay."""
    async with database.client() as client:
        await client.schedules.forget(name, app=app)


async def _change(
    database: Namespace, printer: Printer, act: Callable[[FlowFabric], Awaitable[ScheduleInfo]]
) -> None:
    async with database.client() as client:
        found = await act(client)
        _print(printer, [found], await client.executions.server_time())


def _print(printer: Printer, schedules: Sequence[ScheduleInfo], now: datetime) -> None:
    columns: list[Column[ScheduleInfo]] = [
        Column("NAME", lambda schedule: schedule.name, least=12),
        Column("STATE", lambda schedule: cell(schedule.state, _COLOURS.get(schedule.state))),
        Column(
            "RULE",
            lambda schedule: (
                f"every {precise(schedule.every)}" if schedule.every else schedule.cron or ""
            ),
        ),
        Column("ZONE", lambda schedule: "-" if schedule.every else schedule.time_zone, drop=2),
        Column("MISFIRE", lambda schedule: schedule.misfire, drop=3),
        Column("NEXT", lambda schedule: until(schedule.next_at, now)),
        Column(
            "LAST",
            lambda schedule: f"{short(now - schedule.last_at)} ago" if schedule.last_at else "-",
        ),
        Column("FIRED", lambda schedule: str(schedule.fired_count), is_number=True, drop=1),
        Column("APP", lambda schedule: f"{schedule.app} {schedule.version}", least=8, drop=4),
        Column("REASON", lambda schedule: schedule.reason or "", least=10, drop=5),
    ]
    empty = "no schedules yet; a schedule appears when a worker of its app starts"
    printer.records(schedules, columns, empty=empty)


def _facts(schedule: ScheduleInfo, now: datetime) -> list[tuple[str, str | None]]:
    def at(moment: datetime | None) -> str | None:
        return None if moment is None else relative(moment, now)

    return [
        ("name", schedule.name),
        ("state", schedule.state),
        ("app", f"{schedule.app}, version {schedule.version}"),
        ("namespace", schedule.namespace),
        ("task", f"{schedule.task} in lane {schedule.lane}"),
        (
            "rule",
            f"every {precise(schedule.every)}"
            if schedule.every
            else f"{schedule.cron} in {schedule.time_zone}",
        ),
        ("counted from", at(schedule.anchor_at)),
        ("misfire", schedule.misfire),
        ("next", at(schedule.next_at)),
        ("last", at(schedule.last_at)),
        ("last execution", schedule.last_id and str(schedule.last_id.uuid)),
        ("fired", str(schedule.fired_count)),
        ("declared", at(schedule.declared_at)),
        ("orphaned", at(schedule.orphaned_at)),
        ("changed", at(schedule.changed_at)),
        ("changed by", schedule.changed_by),
        ("reason", schedule.reason),
    ]
