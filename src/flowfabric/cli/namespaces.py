"""`flowfabric namespace`: bind logins to one namespace each."""

from __future__ import annotations

from typing import Annotated

import typer

from flowfabric.cli.options import Actor, Database, command
from flowfabric.cli.output import Printer, say
from flowfabric.core.namespace import NamespaceGrant
from flowfabric.drawing.plain import json_line
from flowfabric.drawing.table import Column
from flowfabric.drawing.times import exact

app = typer.Typer(
    name="namespace",
    no_args_is_help=True,
    help="Bind logins of the database to one namespace each.\n\nA login that is not bound may name "
    "any namespace. These commands need the owner of the schema or the role flowfabric_operator.",
)

LOGIN_ARGUMENT = typer.Argument(metavar="ROLE", help="The role that connects, as in the URL.")


@command(app)
async def grant(
    database: Database,
    printer: Printer,
    actor: Actor,
    login: Annotated[str, LOGIN_ARGUMENT],
    # `namespace` is the global option, which this command does not take.
    only: str = typer.Argument(metavar="NAMESPACE", help="The only one it may name."),
) -> None:
    """Bind a login to one namespace."""
    async with database.client() as client:
        is_new = await client.namespaces.grant(login, only, actor=actor.who)
    _tell(printer, login, "granted" if is_new else "unchanged")


@command(app)
async def revoke(
    database: Database, printer: Printer, login: Annotated[str, LOGIN_ARGUMENT]
) -> None:
    """Let a login name any namespace again."""
    async with database.client() as client:
        is_gone = await client.namespaces.revoke(login)
    _tell(printer, login, "revoked" if is_gone else "unchanged")


@command(app)
async def ls(database: Database, printer: Printer) -> None:
    """List the logins that are bound to a namespace."""
    async with database.client() as client:
        grants = await client.namespaces.list()
    columns: list[Column[NamespaceGrant]] = [
        Column("LOGIN", lambda one: one.login, least=8),
        Column("NAMESPACE", lambda one: one.namespace),
        Column("SINCE", lambda one: exact(one.granted_at)),
        Column("BY", lambda one: one.granted_by),
    ]
    empty = "no login is bound: every login may name any namespace"
    printer.records(grants, columns, empty=empty)


def _tell(printer: Printer, login: str, outcome: str) -> None:
    say(json_line({"login": login, "outcome": outcome}) if printer.is_json else outcome)
