"""`flowfabric schedule`: look at schedules, pause and run them, and see when they fire next."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Annotated

import typer

from flowfabric.cli.options import Actor, Change, Namespace, Namespaces, command
from flowfabric.cli.output import Printer, say, say_all, screen
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
    help="Look at schedules, pause them, run them now.\n\nA schedule appears when a worker of its "
    "app starts. Exit code 3 if there is no such schedule.",
)

_COLOURS = {ScheduleState.PAUSED: "yellow", ScheduleState.ORPHANED: "red"}

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the schedule.")]
AppName = Annotated[
    str | None,
    typer.Option(
        "--app", help="App of the schedule, if several have one of that name.", show_default=False
    ),
]


@command(app)
async def ls(
    database: Namespaces,
    printer: Printer,
    app: str | None = typer.Option(
        None, "--app", help="Only the schedules of this app.", show_default=False
    ),
) -> None:
    """List schedules: their rules, their states, and when they fire next."""
    async with database.client() as client:
        found = await client.schedules.list(app=app)
        _print(printer, found, await client.executions.server_time())


@command(app)
async def show(database: Namespace, printer: Printer, name: Name, app: AppName = None) -> None:
    """Show one schedule, whole."""
    async with database.client() as client:
        found = await client.schedules.get(name, app=app)
        now = await client.executions.server_time()
    say_all([json_line(found)] if printer.is_json else record(_facts(found, now), screen()))


@command(app)
async def pause(
    database: Namespace, printer: Printer, change: Change, name: Name, app: AppName = None
) -> None:
    """Stop a schedule from firing until it is resumed. Times that pass meanwhile are skipped."""
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
    """Let a schedule fire again, from its next time on."""
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
    """Submit a schedule's task now, beside its times, and print the execution's id."""
    async with database.client() as client:
        id = await client.schedules.run(name, app=app, actor=actor.who)
    say(json_line({"schedule": name, "execution_id": id}) if printer.is_json else id)


@command(app, "next")
async def next_times(
    database: Namespace,
    printer: Printer,
    name: Name,
    count: int = typer.Option(5, "--count", "-c", min=1, max=1000, help="How many times."),
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
        typer.echo(f"it is {found.state}: these times do not fire", err=True)


@command(app)
async def forget(database: Namespace, name: Name, app: AppName = None) -> None:
    """Remove an orphaned schedule. Executions that it submitted stay."""
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
        Column("NAME", lambda one: one.name, least=12),
        Column("STATE", lambda one: cell(one.state, _COLOURS.get(one.state))),
        Column("RULE", lambda one: f"every {precise(one.every)}" if one.every else one.cron or ""),
        Column("ZONE", lambda one: "-" if one.every else one.time_zone, drop=2),
        Column("MISFIRE", lambda one: one.misfire, drop=3),
        Column("NEXT", lambda one: until(one.next_at, now)),
        Column("LAST", lambda one: f"{short(now - one.last_at)} ago" if one.last_at else "-"),
        Column("FIRED", lambda one: str(one.fired_count), is_number=True, drop=1),
        Column("APP", lambda one: f"{one.app} {one.version}", least=8, drop=4),
        Column("REASON", lambda one: one.reason or "", least=10, drop=5),
    ]
    empty = "no schedules yet; they appear when a worker of their app starts"
    printer.records(schedules, columns, empty=empty)


def _facts(one: ScheduleInfo, now: datetime) -> list[tuple[str, str | None]]:
    def at(moment: datetime | None) -> str | None:
        return None if moment is None else relative(moment, now)

    return [
        ("name", one.name),
        ("state", one.state),
        ("app", f"{one.app}, version {one.version}"),
        ("namespace", one.namespace),
        ("task", f"{one.task} in lane {one.lane}"),
        ("rule", f"every {precise(one.every)}" if one.every else f"{one.cron} in {one.time_zone}"),
        ("counted from", at(one.anchor_at)),
        ("misfire", one.misfire),
        ("next", at(one.next_at)),
        ("last", at(one.last_at)),
        ("last execution", one.last_id),
        ("fired", str(one.fired_count)),
        ("declared", at(one.declared_at)),
        ("orphaned", at(one.orphaned_at)),
        ("changed", at(one.changed_at)),
        ("changed by", one.changed_by),
        ("reason", one.reason),
    ]
