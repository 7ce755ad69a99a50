"""`flowfabric webhook`: add, list, enable, test and remove webhooks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import typer

from flowfabric.cli.ids import complain_unreached
from flowfabric.cli.options import Actor, Change, DatabaseNamespace, Namespace, Namespaces, command
from flowfabric.cli.output import Printer, say
from flowfabric.client import FlowFabric
from flowfabric.config import Settings
from flowfabric.core.webhook import Allowed, WebhookInfo, parse_webhook_url
from flowfabric.drawing.table import Column
from flowfabric.drawing.text import cell
from flowfabric.drawing.times import short, until

app = typer.Typer(
    name="webhook",
    no_args_is_help=True,
    help="Add, list, enable, test and remove webhooks: URLs to which workers post events.\n\nThese "
    "commands need the role flowfabric_operator. Workers post only to hosts that "
    "FLOWFABRIC_WEBHOOK_HOSTS lists. Exit code 3 if there is no such webhook.",
)

_COLOURS = {"disabled": "red", "failing": "yellow"}

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the webhook.")]


@command(app)
async def add(
    database: DatabaseNamespace,
    printer: Printer,
    actor: Actor,
    address: str = typer.Argument(metavar="URL", help="The URL to post to. Only https is allowed."),
    name: str | None = typer.Option(
        None, "--name", help="Name the webhook. Default: the host of the URL."
    ),
    kinds: str | None = typer.Option(
        None,
        "--kinds",
        help="Post only these kinds of events, such as completed,failed. Default: all.",
    ),
    task: list[str] | None = typer.Option(
        None,
        "--task",
        help="Post only events of this task; * stands for any text. May be repeated. Default: all.",
    ),
    detail: bool = typer.Option(
        False,
        "--detail",
        help="Also post the details of events, such as the reason for a failure.",
        show_default=False,
    ),
) -> None:
    """Add a webhook, and print the secret that signs its posts. No other command shows it.

    A post contains the kind of the event and the id of the execution, but no arguments and no
    result.

    Exit codes: 2: the URL is not allowed. 4: the name is taken.
    """
    target = parse_webhook_url(address)
    chosen = name or target.host
    wanted = None if kinds is None else [kind.strip() for kind in kinds.split(",")]
    async with database.client() as client:
        secret = await client.webhooks.add(
            chosen, address, kinds=wanted, tasks=task or None, has_detail=detail, actor=actor.who
        )
    facts = {"name": chosen, "url": address, "host": target.host_and_port, "secret": secret}
    printer.record(
        facts,
        lambda: [
            f"webhook  {chosen}",
            f"secret   {secret}",
            f"Workers post to it if FLOWFABRIC_WEBHOOK_HOSTS lists {target.host}"
            f"{'' if target.port == 443 else f':{target.port}'}.",
        ],
    )


@command(app)
async def ls(database: Namespaces, printer: Printer) -> None:
    """List webhooks, the last answer of each receiver, and how far each webhook is behind."""
    async with database.client() as client:
        found = await client.webhooks.list()
        complain_unreached(found.missing)
        _print(printer, found, await client.executions.server_time(), client)


@command(app)
async def enable(database: Namespace, printer: Printer, change: Change, name: Name) -> None:
    """Enable a disabled webhook. Its posts go on with the first event that was not accepted."""
    async with database.client() as client:
        await client.webhooks.enable(name, reason=change.reason, actor=change.who)
        time = await client.executions.server_time()
        _print(printer, [await client.webhooks.get(name)], time, client)


@command(app)
async def rm(database: Namespace, name: Name) -> None:
    """Delete a webhook with its position and its secret."""
    async with database.client() as client:
        await client.webhooks.get(name)
        await client.webhooks.remove(name)


@command(app)
async def test(database: DatabaseNamespace, name: Name) -> int:
    """Post a signed test body from this machine to the URL of a webhook, and print the answer.

    FLOWFABRIC_WEBHOOK_HOSTS in the environment of this command must list the host of the URL.

    Exit codes: 1: the body was not posted, or the receiver did not accept it.
    """
    from flowfabric.app.webhooks import Poster, Refusal, trial_body
    from flowfabric.core.ids import uuid7

    settings = Settings.from_environment()
    allowed = Allowed.parse(settings.webhook_hosts, settings.webhook_networks)
    async with database.client() as client:
        found = await client.webhooks.get(name)
        body = trial_body(await client.executions.server_time(), found.namespace, name)
        id = f"test.{uuid7()}"
        (signed,) = await client.webhooks.sign(name, [id], [body]) or ()
    async with Poster(found.url, allowed) as poster:
        try:
            status = await poster.post(id, body, signed)
        except Refusal as refusal:
            say(f"not accepted: {refusal}")
            return 1
    say(f"accepted: HTTP {status}")
    return 0


def _print(
    printer: Printer, found: Sequence[WebhookInfo], now: datetime, client: FlowFabric
) -> None:
    columns: list[Column[WebhookInfo]] = [
        Column("NAMESPACE", lambda one: one.namespace, least=8, is_shown=client.namespace is None),
        Column("WEBHOOK", lambda one: one.name, least=8),
        Column("STATE", lambda one: cell(one.state, _COLOURS.get(one.state))),
        Column("HOST", lambda one: one.host, least=8, drop=1),
        Column("KINDS", lambda one: ",".join(one.kinds or ["all"]), least=8, drop=2),
        Column("POSTED", lambda one: str(one.acked_count), is_number=True),
        Column("BEHIND", lambda one: _behind(one, now)),
        Column("FAILURES", lambda one: str(one.failure_count), is_number=True),
        Column("RETRY", lambda one: until(one.retry_at, now), drop=1),
        Column("ANSWER", lambda one: one.answer or "-", least=10),
    ]
    printer.records(found, columns, empty="no webhooks; add one with `flowfabric webhook add URL`")


def _behind(one: WebhookInfo, now: datetime) -> str:
    return "-" if one.behind_at is None else short(now - one.behind_at)
