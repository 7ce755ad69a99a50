"""`flowfabric namespace`: bind a login to one namespace, remove the binding, list bound logins."""

from __future__ import annotations

from typing import Annotated

import typer

from flowfabric.cli.options import Actor, Database, command
from flowfabric.cli.output import Printer
from flowfabric.core.namespace import NamespaceGrant
from flowfabric.drawing.table import Column
from flowfabric.drawing.times import exact

app = typer.Typer(
    name="namespace",
    no_args_is_help=True,
    help="Bind a login of the database to one namespace.\n\nA login that is not bound can use "
    "every namespace. These commands need the rights of the owner of the schema, or the role "
    "flowfabric_operator.",
)

LOGIN_ARGUMENT = typer.Argument(metavar="ROLE", help="The role that logs in to the database.")


@command(app)
async def grant(
    database: Database,
    printer: Printer,
    actor: Actor,
    login: Annotated[str, LOGIN_ARGUMENT],
    # Not called `namespace`: that name belongs to a global option, which this command does not
    # have.
    only: str = typer.Argument(
        metavar="NAMESPACE", help="The only namespace that the login may use."
    ),
) -> None:
    """Bind a login to one namespace."""
    async with database.client() as client:
        is_new = await client.namespaces.grant(login, only, actor=actor.who)
    _print(printer, login, "granted" if is_new else "unchanged")


@command(app)
async def revoke(
    database: Database, printer: Printer, login: Annotated[str, LOGIN_ARGUMENT]
) -> None:
    """Remove the binding of a login. The login can then use every namespace."""
    async with database.client() as client:
        is_gone = await client.namespaces.revoke(login)
    _print(printer, login, "revoked" if is_gone else "unchanged")


@command(app)
async def ls(database: Database, printer: Printer) -> None:
    """List the bound logins, each with its namespace."""
    async with database.client() as client:
        grants = await client.namespaces.list()
    columns: list[Column[NamespaceGrant]] = [
        Column("LOGIN", lambda grant: grant.login, least=8),
        Column("NAMESPACE", lambda grant: grant.namespace),
        Column("SINCE", lambda grant: exact(grant.granted_at)),
        Column("BY", lambda grant: grant.granted_by),
    ]
    empty = "no login is bound: every login may use any namespace"
    printer.records(grants, columns, empty=empty)


def _print(printer: Printer, login: str, outcome: str) -> None:
    printer.record({"login": login, "outcome": outcome}, lambda: [outcome])
