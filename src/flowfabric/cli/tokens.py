"""`flowfabric token`: make, list and revoke tokens of the HTTP server."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import typer

from flowfabric.cli.options import Actor, Change, DatabaseNamespace, Namespaces, command
from flowfabric.cli.output import Printer
from flowfabric.core.errors import InvalidInput
from flowfabric.core.times import span
from flowfabric.core.token import ApiToken, Scope
from flowfabric.drawing.table import Column
from flowfabric.drawing.times import exact, until

app = typer.Typer(
    name="token",
    no_args_is_help=True,
    help="Make, list and revoke tokens of the HTTP server.\n\nThese commands need the rights of "
    "the owner of the schema, or the role flowfabric_operator.",
)


@command(app)
async def new(
    database: DatabaseNamespace,
    printer: Printer,
    actor: Actor,
    name: str = typer.Argument(help="The user of the token, as a note for people."),
    scope: str = typer.Option(
        ...,
        "--scope",
        "-s",
        metavar="A,B",
        help=f"Give the token these scopes, out of {', '.join(Scope)}. Every scope includes read; "
        "admin includes all.",
    ),
    expires: str | None = typer.Option(
        None,
        "--expires",
        metavar="90d",
        help="Let the token expire after this time. Default: never.",
    ),
) -> None:
    """Make a token for one namespace and print it. The token is not stored and cannot be shown
    again.

    Exit codes: 2: wrong usage. 4: not an operator. 5: no database.
    """
    ttl = None if expires is None else span(expires, "expires")
    async with database.client() as client:
        made = await client.tokens.create(name, scope.split(","), expires=ttl, actor=actor.who)
    printer.record(made, lambda: [made.token])


@command(app)
async def ls(database: Namespaces, printer: Printer) -> None:
    """List tokens, newest first. Only the first characters of a token are shown."""
    async with database.client() as client:
        found = await client.tokens.list()
        now = await client.executions.server_time()
    columns: list[Column[ApiToken]] = [
        Column("ID", lambda one: str(one.token_id)),
        Column("TOKEN", lambda one: f"{one.prefix}…"),
        Column("NAME", lambda one: one.name, least=8),
        Column("SCOPES", lambda one: ",".join(one.scopes)),
        Column("NAMESPACE", lambda one: one.namespace),
        Column("STATE", lambda one: _state(one, now)),
        Column(
            "LAST USED", lambda one: "-" if one.last_used_at is None else exact(one.last_used_at)
        ),
    ]
    printer.records(
        found, columns, empty="no tokens; make one: flowfabric token new NAME --scope read"
    )


@command(app)
async def revoke(
    database: Namespaces,
    printer: Printer,
    change: Change,
    id: str = typer.Argument(metavar="ID", help="Id of the token, as `token ls` prints it."),
) -> None:
    """Revoke a token. Servers accept it for at most 5 more seconds.

    Exit codes: 3: no such token. 4: not an operator. 5: no database.
    """
    try:
        token_id = UUID(id)
    except ValueError as error:
        raise InvalidInput(field="ID", problem=f"{id[:40]!r} is not the id of a token") from error
    async with database.client() as client:
        is_new = await client.tokens.revoke(token_id, reason=change.reason, actor=change.who)
    outcome = "revoked" if is_new else "unchanged"
    printer.record({"token_id": token_id, "outcome": outcome}, lambda: [outcome])


def _state(token: ApiToken, now: datetime) -> str:
    if token.revoked_at is not None:
        return "revoked"
    if token.expires_at is None:
        return "valid"
    if token.expires_at <= now:
        return "expired"
    return f"expires {until(token.expires_at, now)}"


def _last_used(token: ApiToken) -> str:
    return "-" if token.last_used_at is None else exact(token.last_used_at)
