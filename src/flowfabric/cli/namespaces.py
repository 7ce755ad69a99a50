"""`flowfabric namespace`: bind logins to one namespace each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict

import typer

from flowfabric.cli.actions import ACTOR_OPTION, default_actor
from flowfabric.cli.database import URL_OPTION, failures_as_exit_codes, resolve_database_url
from flowfabric.cli.output import (
    FORM_OPTION,
    Column,
    Form,
    is_json,
    json_line,
    say,
    table,
    table_width,
)
from flowfabric.cli.times import exact
from flowfabric.client import FlowFabric

app = typer.Typer(
    name="namespace",
    no_args_is_help=True,
    help="Bind logins of the database to one namespace each.\n\nA login that is not bound may name "
    "any namespace. These commands need the owner of the schema or the role flowfabric_operator.",
)

LOGIN_ARGUMENT = typer.Argument(metavar="ROLE", help="The role that connects, as in the URL.")


@app.command()
def grant(
    login: str = LOGIN_ARGUMENT,
    namespace: str = typer.Argument(metavar="NAMESPACE", help="The only one it may name."),
    actor: str | None = ACTOR_OPTION,
    output: Form | None = FORM_OPTION,
    database_url: str | None = URL_OPTION,
) -> None:
    """Bind a login to one namespace."""

    async def change(client: FlowFabric) -> str:
        is_new = await client.namespaces.grant(login, namespace, actor=actor or default_actor())
        return "granted" if is_new else "unchanged"

    _change(change, login, output, database_url)


@app.command()
def revoke(
    login: str = LOGIN_ARGUMENT,
    output: Form | None = FORM_OPTION,
    database_url: str | None = URL_OPTION,
) -> None:
    """Let a login name any namespace again."""

    async def change(client: FlowFabric) -> str:
        return "revoked" if await client.namespaces.revoke(login) else "unchanged"

    _change(change, login, output, database_url)


@app.command()
def ls(output: Form | None = FORM_OPTION, database_url: str | None = URL_OPTION) -> None:
    """List the logins that are bound to a namespace."""
    with failures_as_exit_codes():
        asyncio.run(_list(resolve_database_url(database_url), is_json(output)))


def _change(
    change: Callable[[FlowFabric], Awaitable[str]],
    login: str,
    output: Form | None,
    database_url: str | None,
) -> None:
    async def run(url: str) -> None:
        async with FlowFabric(url, pool_size=1) as client:
            outcome = await change(client)
        say(json_line({"login": login, "outcome": outcome}) if is_json(output) else outcome)

    with failures_as_exit_codes():
        asyncio.run(run(resolve_database_url(database_url)))


async def _list(url: str, as_json: bool) -> None:
    async with FlowFabric(url, pool_size=1) as client:
        grants = await client.namespaces.list()
    if as_json:
        for one in grants:
            say(json_line(asdict(one)))
        return
    if not grants:
        typer.echo("no login is bound: every login may name any namespace", err=True)
        return
    columns = [Column("LOGIN", least=8), Column("NAMESPACE"), Column("SINCE"), Column("BY")]
    rows = [[one.login, one.namespace, exact(one.granted_at), one.granted_by] for one in grants]
    for line in table(columns, rows, table_width()):
        say(line)
