"""`flowfabric subscription`: list, reset and remove subscriptions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import typer

from flowfabric.cli.ids import complain_unreached
from flowfabric.cli.options import Change, Namespace, Namespaces, command
from flowfabric.cli.output import Printer
from flowfabric.client import FlowFabric
from flowfabric.core.subscription import SubscriptionInfo, SubscriptionState
from flowfabric.core.times import past, when
from flowfabric.drawing.table import Column
from flowfabric.drawing.text import cell
from flowfabric.drawing.times import short

app = typer.Typer(
    name="subscription",
    no_args_is_help=True,
    help="List, reset and remove subscriptions. A subscription keeps the position of its consumers "
    "in the event log.\n\nA subscription appears with its first consumer, `app.subscribe(NAME)`. "
    "Exit code 3 if there is no such subscription.",
)

_COLOURS = {SubscriptionState.EXPIRED: "red"}

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the subscription.")]


@command(app)
async def ls(database: Namespaces, printer: Printer) -> None:
    """List subscriptions with their consumers, and how far each subscription is behind.

    The state `expired` means that events were trimmed before the consumer read them. Then run
    `subscription reset`.
    """
    async with database.client() as client:
        found = await client.subscriptions.list()
        complain_unreached(found.missing)
        _print(printer, found, await client.executions.server_time(), client)


@command(app)
async def reset(
    database: Namespace,
    printer: Printer,
    change: Change,
    name: Name,
    since: str | None = typer.Option(
        None,
        "--since",
        help="Continue with the events since this time: an ISO time, or an age such as 30s, 2h "
        "or 7d.",
        show_default=False,
    ),
    now: bool = typer.Option(
        False, "--now", help="Skip all events that exist now.", show_default=False
    ),
) -> None:
    """Move a subscription to another position. A running consumer goes on from this position."""
    if now == (since is not None):
        raise typer.BadParameter("give one of them", param_hint="--since or --now")
    moment = None if since is None else when(since, "since")
    async with database.client() as client:
        time = await client.executions.server_time()
        await client.subscriptions.reset(
            name,
            since=None if moment is None else past(moment, time),
            reason=change.reason,
            actor=change.who,
        )
        _print(printer, [await client.subscriptions.get(name)], time, client)


@command(app)
async def rm(database: Namespace, name: Name) -> None:
    """Delete a subscription with its position.

    A consumer that runs now creates the subscription again. It begins with new events, unless its
    code passes `since`.
    """
    async with database.client() as client:
        await client.subscriptions.get(name)
        await client.subscriptions.remove(name)


def _print(
    printer: Printer, found: Sequence[SubscriptionInfo], now: datetime, client: FlowFabric
) -> None:
    columns: list[Column[SubscriptionInfo]] = [
        Column("NAMESPACE", lambda one: one.namespace, least=8, is_shown=client.namespace is None),
        Column("SUBSCRIPTION", lambda one: one.name, least=8),
        Column("STATE", lambda one: cell(one.state, _COLOURS.get(one.state))),
        Column("CONSUMER", lambda one: one.holder_name or "-", least=8),
        Column("BEHIND", lambda one: _behind(one, now)),
        Column("WAITING", _waiting, is_number=True),
        Column("ACKED", lambda one: str(one.acked_count), is_number=True, drop=2),
        Column("KINDS", lambda one: ",".join(one.kinds or ["all"]), least=8, drop=1),
        Column("TASKS", lambda one: ",".join(one.tasks or ["all"]), least=8, drop=1),
    ]
    empty = "no subscriptions yet; one appears with its first consumer, app.subscribe(NAME)"
    printer.records(found, columns, empty=empty)


def _behind(one: SubscriptionInfo, now: datetime) -> str:
    return "-" if one.behind_at is None else short(now - one.behind_at)


def _waiting(one: SubscriptionInfo) -> str:
    return f"{one.waiting}+" if one.waiting >= 1000 else str(one.waiting)
