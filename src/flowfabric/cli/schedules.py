"""`flowfabric schedule`: look at schedules, pause and run them, and see when they fire next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

import typer

from flowfabric.cli.actions import ACTOR_OPTION, REASON_OPTION, default_actor
from flowfabric.cli.database import (
    ALL_NAMESPACES_OPTION,
    NAMESPACE_OPTION,
    URL_OPTION,
    failures_as_exit_codes,
    resolve_database_url,
    resolve_namespace,
)
from flowfabric.cli.output import (
    FORM_OPTION,
    Cell,
    Column,
    Form,
    Styled,
    is_json,
    json_line,
    say,
    table,
    table_width,
)
from flowfabric.cli.times import precise, relative, short
from flowfabric.client import FlowFabric
from flowfabric.core.schedule import ScheduleInfo, zone
from flowfabric.core.states import ScheduleState

app = typer.Typer(
    name="schedule",
    no_args_is_help=True,
    help="Look at schedules, pause them, run them now.\n\nA schedule appears when a worker of its "
    "app starts. Exit code 3 if there is no such schedule.",
)

NAME_ARGUMENT = typer.Argument(metavar="NAME", help="The name of the schedule.")
APP_OPTION = typer.Option(
    None, "--app", help="Of which app, if several have one of that name.", show_default=False
)
_COLOURS = {ScheduleState.PAUSED: "yellow", ScheduleState.ORPHANED: "red"}

Change = Callable[[FlowFabric], Awaitable[ScheduleInfo]]


@app.command()
def ls(
    app: str | None = typer.Option(None, "--app", help="Only those of an app.", show_default=False),
    namespace: str | None = NAMESPACE_OPTION,
    all_namespaces: bool = ALL_NAMESPACES_OPTION,
    output: Form | None = FORM_OPTION,
    database_url: str | None = URL_OPTION,
) -> None:
    """List schedules: their rules, their states, and when they fire next."""

    async def act(client: FlowFabric) -> None:
        found = await client.schedules.list(app=app)
        _print(found, await client.executions.server_time(), is_json(output))

    with failures_as_exit_codes():
        _run(act, database_url, resolve_namespace(namespace, all_namespaces))


@app.command()
def show(
    name: str = NAME_ARGUMENT,
    app: str | None = APP_OPTION,
    namespace: str | None = NAMESPACE_OPTION,
    output: Form | None = FORM_OPTION,
    database_url: str | None = URL_OPTION,
) -> None:
    """Show one schedule, whole."""

    async def act(client: FlowFabric) -> None:
        found = await client.schedules.get(name, app=app)
        now = await client.executions.server_time()
        if is_json(output):
            say(json_line(asdict(found)))
            return
        facts = _facts(found, now)
        width = max(len(title) for title, _ in facts)
        for title, text in facts:
            say(f"{title.ljust(width)}  {text}")

    with failures_as_exit_codes():
        _run(act, database_url, resolve_namespace(namespace, False))


@app.command()
def pause(
    name: str = NAME_ARGUMENT,
    reason: str | None = REASON_OPTION,
    actor: str | None = ACTOR_OPTION,
    app: str | None = APP_OPTION,
    namespace: str | None = NAMESPACE_OPTION,
    output: Form | None = FORM_OPTION,
    database_url: str | None = URL_OPTION,
) -> None:
    """Let a schedule not fire until it is resumed. Times that pass meanwhile are gone."""
    who = actor or default_actor()
    with failures_as_exit_codes():
        _change(
            lambda client: client.schedules.pause(name, app=app, reason=reason, actor=who),
            namespace,
            output,
            database_url,
        )


@app.command()
def resume(
    name: str = NAME_ARGUMENT,
    reason: str | None = REASON_OPTION,
    actor: str | None = ACTOR_OPTION,
    app: str | None = APP_OPTION,
    namespace: str | None = NAMESPACE_OPTION,
    output: Form | None = FORM_OPTION,
    database_url: str | None = URL_OPTION,
) -> None:
    """Let a schedule fire again, from its next time on."""
    who = actor or default_actor()
    with failures_as_exit_codes():
        _change(
            lambda client: client.schedules.resume(name, app=app, reason=reason, actor=who),
            namespace,
            output,
            database_url,
        )


@app.command()
def run(
    name: str = NAME_ARGUMENT,
    actor: str | None = ACTOR_OPTION,
    app: str | None = APP_OPTION,
    namespace: str | None = NAMESPACE_OPTION,
    output: Form | None = FORM_OPTION,
    database_url: str | None = URL_OPTION,
) -> None:
    """Submit a schedule's task now, beside its times, and print the execution's id."""
    who = actor or default_actor()

    async def act(client: FlowFabric) -> None:
        id = await client.schedules.run(name, app=app, actor=who)
        say(json_line({"schedule": name, "execution_id": id}) if is_json(output) else id)

    with failures_as_exit_codes():
        _run(act, database_url, resolve_namespace(namespace, False))


@app.command(name="next")
def next_times(
    name: str = NAME_ARGUMENT,
    count: int = typer.Option(5, "--count", "-c", min=1, max=1000, help="How many times."),
    app: str | None = APP_OPTION,
    namespace: str | None = NAMESPACE_OPTION,
    output: Form | None = FORM_OPTION,
    database_url: str | None = URL_OPTION,
) -> None:
    """Print the next times of a schedule, in its time zone."""

    async def act(client: FlowFabric) -> None:
        found = await client.schedules.get(name, app=app)
        now = await client.executions.server_time()
        for moment in await client.schedules.next(name, count=count, app=found.app):
            local = moment.astimezone(zone(found.time_zone))
            if is_json(output):
                say(json_line({"at": moment, "local": local}))
            else:
                say(f"{local:%a %Y-%m-%d %H:%M:%S %Z}  {relative(moment, now)}")
        if found.state is not ScheduleState.ACTIVE:
            typer.echo(f"it is {found.state}: these times do not fire", err=True)

    with failures_as_exit_codes():
        _run(act, database_url, resolve_namespace(namespace, False))


@app.command()
def forget(
    name: str = NAME_ARGUMENT,
    app: str | None = APP_OPTION,
    namespace: str | None = NAMESPACE_OPTION,
    database_url: str | None = URL_OPTION,
) -> None:
    """Remove an orphaned schedule. What it submitted stays."""
    with failures_as_exit_codes():
        _run(
            lambda client: client.schedules.forget(name, app=app),
            database_url,
            resolve_namespace(namespace, False),
        )


def _change(
    change: Change, namespace: str | None, output: Form | None, database_url: str | None
) -> None:
    async def act(client: FlowFabric) -> None:
        found = await change(client)
        _print([found], await client.executions.server_time(), is_json(output))

    _run(act, database_url, resolve_namespace(namespace, False))


def _run(
    act: Callable[[FlowFabric], Awaitable[Any]], database_url: str | None, namespace: str | None
) -> None:
    async def connected(url: str) -> None:
        async with FlowFabric(url, namespace=namespace, pool_size=1) as client:
            await act(client)

    asyncio.run(connected(resolve_database_url(database_url)))


def _print(schedules: Sequence[ScheduleInfo], now: datetime, as_json: bool) -> None:
    if as_json:
        for one in schedules:
            say(json_line(asdict(one)))
        return
    if not schedules:
        typer.echo("no schedules yet; they appear when a worker of their app starts", err=True)
        return
    columns = [
        Column("NAME", least=12),
        Column("STATE"),
        Column("RULE"),
        Column("ZONE", drop=2),
        Column("MISFIRE", drop=3),
        Column("NEXT"),
        Column("LAST"),
        Column("FIRED", is_number=True, drop=1),
        Column("APP", least=8, drop=4),
        Column("REASON", least=10, drop=5),
    ]
    for line in table(columns, [_row(one, now) for one in schedules], table_width()):
        say(line)


def _row(one: ScheduleInfo, now: datetime) -> list[Cell]:
    colour = _COLOURS.get(one.state)
    return [
        one.name,
        Styled(one.state.value, colour) if colour else one.state.value,
        f"every {precise(one.every)}" if one.every else one.cron or "",
        "-" if one.every else one.time_zone,
        one.misfire.value,
        _until(one.next_at, now),
        "-" if one.last_at is None else f"{short(now - one.last_at)} ago",
        str(one.fired_count),
        f"{one.app} {one.version}",
        one.reason or "",
    ]


def _until(moment: datetime | None, now: datetime) -> str:
    if moment is None:
        return "-"
    return f"in {precise(moment - now)}" if moment > now else "now"


def _facts(one: ScheduleInfo, now: datetime) -> list[tuple[str, str]]:
    facts: dict[str, object] = {
        "name": one.name,
        "state": one.state,
        "app": f"{one.app}, version {one.version}",
        "namespace": one.namespace,
        "task": f"{one.task} in lane {one.lane}",
        "rule": f"every {precise(one.every)}" if one.every else f"{one.cron} in {one.time_zone}",
        "counted from": one.anchor_at and relative(one.anchor_at, now),
        "misfire": one.misfire,
        "next": one.next_at and relative(one.next_at, now),
        "last": one.last_at and relative(one.last_at, now),
        "last execution": one.last_id,
        "fired": one.fired_count,
        "declared": relative(one.declared_at, now),
        "orphaned": one.orphaned_at and relative(one.orphaned_at, now),
        "changed": one.changed_at and relative(one.changed_at, now),
        "changed by": one.changed_by,
        "reason": one.reason,
    }
    return [(title, str(text)) for title, text in facts.items() if text not in (None, "")]
