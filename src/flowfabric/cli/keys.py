"""`flowfabric key`: list, rotate and seed the keys that sign the tokens of waitpoints."""

from __future__ import annotations

import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from flowfabric.cli.options import YES_OPTION, Database, command
from flowfabric.cli.output import Printer, say
from flowfabric.core.errors import InvalidInput
from flowfabric.core.signal import HmacKey
from flowfabric.core.times import span
from flowfabric.drawing.table import Column
from flowfabric.drawing.times import exact, until

SECRET_VARIABLE = "FLOWFABRIC_WAITPOINT_SECRET"
SECRET_FILE_VARIABLE = "FLOWFABRIC_WAITPOINT_SECRET_FILE"

app = typer.Typer(
    name="key",
    no_args_is_help=True,
    help="List, rotate and seed the keys that sign the tokens of waitpoints.\n\nNeeds the role "
    "flowfabric_operator. No command shows a secret.",
)


@command(app)
async def ls(database: Database, printer: Printer) -> None:
    """List the keys that verify tokens, the current one first."""
    async with database.client() as client:
        keys = await client.signals.keys()
        open_ = await client.signals.count_waitpoints()
        now = await client.executions.server_time()
    columns: list[Column[HmacKey]] = [
        Column("KEY", lambda key: key.kid, least=4),
        Column("STATE", lambda key: "current" if key.is_active else "verifying"),
        Column("CREATED", lambda key: "-" if key.created_at is None else exact(key.created_at)),
        Column("VERIFIES", lambda key: _until(key, now)),
        Column("OPEN WAITPOINTS", lambda key: str(open_.get(key.kid, 0)), is_number=True),
    ]
    printer.records(list(keys), columns, empty="no keys; run `flowfabric db migrate`")


@command(app)
async def rotate(
    database: Database,
    printer: Printer,
    kid: str = typer.Argument(metavar="NAME", help="The name of the new key, such as 2026-11."),
    grace: str = typer.Option(
        "1d",
        "--grace",
        help="Keep tokens of the old key valid for this long, for example 12h or 7d.",
    ),
    yes: Annotated[bool, YES_OPTION] = False,
) -> int:
    """Sign new tokens with a new key. The database makes the secret of the key.

    Asks for confirmation if waitpoints are open: their tokens become invalid after --grace.

    Exit codes: 1: not confirmed. 4: the name was used before. 5: no database.
    """
    duration = span(grace, "grace")
    async with database.client() as client:
        number = sum((await client.signals.count_waitpoints()).values())
        if number and not yes:
            if not sys.stdin.isatty():
                raise InvalidInput(
                    field="--yes",
                    problem=f"is required without a terminal: {number} open waitpoints have "
                    f"tokens that become invalid in {grace}",
                )
            if not typer.confirm(
                f"{number} open waitpoints have tokens that become invalid in {grace}. Rotate?"
            ):
                return 1
        done = await client.signals.rotate_key(kid, grace=duration)
    printer.record(
        done,
        lambda: [f"{done.kid} signs now; {done.previous_kid} verifies for {grace}"],
    )
    return 0


@command(app)
async def seed(
    database: Database,
    kid: str = typer.Argument(metavar="NAME", help="The name of the key."),
) -> None:
    """Install a key with your own secret, so that several databases accept the same tokens.

    The secret is 64 hexadecimal digits, read from FLOWFABRIC_WAITPOINT_SECRET or from the file that
    FLOWFABRIC_WAITPOINT_SECRET_FILE names. If a key of this name exists, nothing changes. A program
    can therefore run this command whenever the program starts.

    Exit codes: 4: a key other than the first one (k1) was made before; use `key rotate`. 5: no
    database.
    """
    secret = _secret()
    async with database.client() as client:
        is_new = await client.signals.seed_key(kid, secret)
    say(f"{kid} {'signs now' if is_new else 'was there already; nothing changed'}")


def _secret() -> str:
    if path := os.environ.get(SECRET_FILE_VARIABLE):
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    if secret := os.environ.get(SECRET_VARIABLE):
        return secret.strip()
    raise InvalidInput(
        field=SECRET_VARIABLE, problem=f"is not set; set it or {SECRET_FILE_VARIABLE}"
    )


def _until(key: HmacKey, now: datetime) -> str:
    return "always" if key.expires_at is None else until(key.expires_at, now)
