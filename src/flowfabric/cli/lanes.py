"""`flowfabric lane`: look at lanes, pause them, drain them, and say how long they keep things."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from datetime import datetime

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
from flowfabric.cli.times import future, precise, short, span, when
from flowfabric.client import FlowFabric
from flowfabric.core.execution import LaneInfo

app = typer.Typer(
    name="lane",
    no_args_is_help=True,
    help="Look at lanes, pause and drain them.\n\nA lane belongs to a namespace. Exit code 3 "
    "if there is no such lane.",
)

LANE_ARGUMENT = typer.Argument(metavar="LANE", help="The name of the lane.")
# The engine counts no further.
_COUNTED = 10_000
_COLOURS = {"paused": "yellow", "draining": "yellow", "disabled": "red"}

Change = Callable[[FlowFabric], Awaitable[LaneInfo]]


@app.command()
def ls(
    namespace: str | None = NAMESPACE_OPTION,
    all_namespaces: bool = ALL_NAMESPACES_OPTION,
    output: Form | None = FORM_OPTION,
    database_url: str | None = URL_OPTION,
) -> None:
    """List lanes, their states, and how much waits in them."""
    with failures_as_exit_codes():
        whose = resolve_namespace(namespace, all_namespaces)
        asyncio.run(_list(resolve_database_url(database_url), whose, is_json(output)))


@app.command()
def pause(
    lane: str = LANE_ARGUMENT,
    until: str | None = typer.Option(
        None,
        "--until",
        help="Resume by itself: in 30s, 10m, 2h, 7d, or at an ISO time. Default: never.",
        show_default=False,
    ),
    reason: str | None = REASON_OPTION,
    actor: str | None = ACTOR_OPTION,
    namespace: str | None = NAMESPACE_OPTION,
    output: Form | None = FORM_OPTION,
    database_url: str | None = URL_OPTION,
) -> None:
    """Take submissions, but let nothing be claimed."""

    async def change(client: FlowFabric) -> LaneInfo:
        resumes_at = None
        if moment is not None:
            resumes_at = future(moment, await client.executions.server_time())
        return await client.lanes.pause(lane, until=resumes_at, reason=reason, actor=who)

    who = actor or default_actor()
    with failures_as_exit_codes():
        moment = None if until is None else when(until, "until")
        _change(change, namespace, output, database_url)


@app.command()
def resume(
    lane: str = LANE_ARGUMENT,
    reason: str | None = REASON_OPTION,
    actor: str | None = ACTOR_OPTION,
    namespace: str | None = NAMESPACE_OPTION,
    output: Form | None = FORM_OPTION,
    database_url: str | None = URL_OPTION,
) -> None:
    """Take submissions and let them be claimed."""
    who = actor or default_actor()
    with failures_as_exit_codes():
        _change(
            lambda client: client.lanes.resume(lane, reason=reason, actor=who),
            namespace,
            output,
            database_url,
        )


@app.command()
def drain(
    lane: str = LANE_ARGUMENT,
    reason: str | None = REASON_OPTION,
    actor: str | None = ACTOR_OPTION,
    namespace: str | None = NAMESPACE_OPTION,
    output: Form | None = FORM_OPTION,
    database_url: str | None = URL_OPTION,
) -> None:
    """Let what waits be claimed, but refuse submissions."""
    who = actor or default_actor()
    with failures_as_exit_codes():
        _change(
            lambda client: client.lanes.drain(lane, reason=reason, actor=who),
            namespace,
            output,
            database_url,
        )


@app.command()
def disable(
    lane: str = LANE_ARGUMENT,
    reason: str | None = REASON_OPTION,
    actor: str | None = ACTOR_OPTION,
    namespace: str | None = NAMESPACE_OPTION,
    output: Form | None = FORM_OPTION,
    database_url: str | None = URL_OPTION,
) -> None:
    """Refuse submissions and let nothing be claimed."""
    who = actor or default_actor()
    with failures_as_exit_codes():
        _change(
            lambda client: client.lanes.disable(lane, reason=reason, actor=who),
            namespace,
            output,
            database_url,
        )


@app.command()
def retention(
    lane: str = LANE_ARGUMENT,
    keep: str = typer.Argument(metavar="7d|default", help="How long; default: as all others."),
    actor: str | None = ACTOR_OPTION,
    namespace: str | None = NAMESPACE_OPTION,
    output: Form | None = FORM_OPTION,
    database_url: str | None = URL_OPTION,
) -> None:
    """Say how long executions that ended in this lane are kept."""
    who = actor or default_actor()
    with failures_as_exit_codes():
        duration = None if keep == "default" else span(keep, "retention")
        _change(
            lambda client: client.lanes.set_retention(lane, duration, actor=who),
            namespace,
            output,
            database_url,
        )


def _change(
    change: Change, namespace: str | None, output: Form | None, database_url: str | None
) -> None:
    whose = resolve_namespace(namespace, False)
    asyncio.run(_changed(change, resolve_database_url(database_url), whose, is_json(output)))


async def _changed(change: Change, url: str, namespace: str | None, as_json: bool) -> None:
    async with FlowFabric(url, namespace=namespace, pool_size=1) as client:
        info = await change(client)
        _print([info], await client.executions.server_time(), as_json)


async def _list(url: str, namespace: str | None, as_json: bool) -> None:
    async with FlowFabric(url, namespace=namespace, pool_size=1) as client:
        lanes = await client.lanes.list()
        now = await client.executions.server_time()
        _print(lanes, now, as_json, with_namespace=namespace is None)


def _print(
    lanes: Sequence[LaneInfo], now: datetime, as_json: bool, *, with_namespace: bool = False
) -> None:
    if as_json:
        for lane in lanes:
            say(json_line(asdict(lane)))
        return
    if not lanes:
        typer.echo("no lanes yet; one appears with its first submission", err=True)
        return
    columns = [
        Column("LANE", least=8),
        Column("STATE"),
        Column("WAITING", is_number=True),
        Column("RESUMES"),
        Column("KEEPS"),
        Column("CHANGED", drop=1),
        Column("REASON", least=10),
    ]
    rows = [_row(lane, now) for lane in lanes]
    if with_namespace:
        columns.insert(0, Column("NAMESPACE", least=8))
        rows = [[lane.namespace, *row] for lane, row in zip(lanes, rows, strict=True)]
    for line in table(columns, rows, table_width()):
        say(line)


def _row(lane: LaneInfo, now: datetime) -> list[Cell]:
    colour = _COLOURS.get(lane.state)
    changed = "-"
    if lane.changed_at is not None:
        by = f" by {lane.changed_by}" if lane.changed_by else ""
        changed = f"{short(now - lane.changed_at)} ago{by}"
    resumes = "-"
    if lane.resumes_at is not None:
        resumes = f"in {precise(lane.resumes_at - now)}" if lane.resumes_at > now else "now"
    return [
        lane.lane,
        Styled(lane.state, colour) if colour else lane.state,
        f"{_COUNTED}+" if lane.waiting > _COUNTED else str(lane.waiting),
        resumes,
        "default" if lane.retention is None else precise(lane.retention),
        changed,
        lane.reason or "",
    ]
