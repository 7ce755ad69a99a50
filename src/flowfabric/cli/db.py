"""`flowfabric db`: migrate a database, show the state of its schema, print the SQL, or run psql."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from operator import itemgetter

import typer
from typer.core import TyperCommand

from flowfabric.cli.options import EXIT_DOES_NOT_FIT, Database, command
from flowfabric.cli.output import Printer, complain, say, say_all
from flowfabric.db import migrate as schema
from flowfabric.db.connection import open_connection, without_password
from flowfabric.drawing.table import Column, table
from flowfabric.drawing.text import Screen
from flowfabric.embedded import find_psql

# What a shell answers if there is no such program.
EXIT_NOT_INSTALLED = 127

app = typer.Typer(
    name="db",
    no_args_is_help=True,
    help="Create, upgrade and inspect the schema of a database, or look into it with psql.",
)


@command(app)
async def migrate(
    database: Database,
    downgrade: bool = typer.Option(
        False,
        "--downgrade",
        help="Replace the function library even if the database has a newer one.",
    ),
) -> None:
    """Apply pending schema steps and re-create the function library. Safe to repeat."""
    async with open_connection(database.url) as connection:
        migration = await schema.migrate(connection, downgrade=downgrade, report=_print)
    if not migration.steps and not migration.is_library_recreated:
        typer.echo("The database is up to date; nothing was applied.", err=True)


@command(app)
async def status(database: Database, printer: Printer) -> int:
    """Compare the database with this release. Exit code 1 if they do not match."""
    async with open_connection(database.url) as connection:
        found = await schema.status(connection)
    if printer.is_json:
        say(_as_json(found))
    else:
        say_all(_as_table(found))
    if problem := found.problem():
        typer.echo(str(problem), err=True)
        return EXIT_DOES_NOT_FIT
    return 0


@command(app)
def sql(
    from_step: int = typer.Option(
        0,
        "--from",
        min=0,
        metavar="N",
        help="Last schema step that the database has. Default: 0.",
        show_default=False,
    ),
) -> None:
    """Print the SQL that migrate would run, as a script for psql. Needs no database."""
    try:
        script = schema.sql(from_step)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--from") from error
    typer.echo(script, nl=False)


@command(app)
def url(
    database: Database,
    show_password: bool = typer.Option(
        False, "--show-password", help="Print the password, too, if the URL has one."
    ),
) -> None:
    """Print the URL of the database, for psql and other programs.

    The embedded server runs only while a command or a worker uses it; `db psql` keeps it running.
    """
    found, server = database.resolve()
    say(found if show_password else without_password(found)[0])
    if server is not None and server.started:
        typer.echo(
            "  the embedded Postgres stops now, because nothing else uses it; to look into it: "
            "flowfabric db psql",
            err=True,
        )


class PsqlCommand(TyperCommand):
    """Says where options of psql go."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        known = {option for one in self.get_params(ctx) for option in one.opts}
        for word in args[: args.index("--")] if "--" in args else args:
            option = word.partition("=")[0] if word.startswith("--") else word[:2]
            if word.startswith("-") and option not in known:
                ctx.fail(f"there is no option {option}; put psql's own options after --")
        return super().parse_args(ctx, args)


@command(app, cls=PsqlCommand)
def psql(
    database: Database,
    arguments: list[str] | None = typer.Argument(
        None, metavar="[-- ARGUMENT...]", help="Arguments of psql, for example -- -c 'select 1'."
    ),
) -> int:
    """Run psql on the database. Its tables are in the schema ff.

    psql gets the password in its environment, and no other secret of the URL, as sslpassword.

    Exit codes: those of psql, 5 no database, 127 psql is not installed.
    """
    found = find_psql()
    if found is None:
        complain(
            "psql is not installed. Install it: apt-get install postgresql-client, "
            "brew install libpq, or pip install 'flowfabric[postgres]'"
        )
        return EXIT_NOT_INSTALLED
    address, server = database.resolve()
    address, password = without_password(address)
    command = [str(found), address, *(arguments or [])]
    # In the environment, because everybody can read the arguments of a process.
    environment = os.environ if password is None else {**os.environ, "PGPASSWORD": password}
    if server is None:
        os.execve(found, command, environment)
    # Not in place of this process: the server runs while this process uses it.
    with server, _interrupts_ignored():
        return subprocess.run(command, env=environment, check=False).returncode


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Leave Ctrl-C to psql, which cancels a statement with it."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _print(progress: schema.Progress) -> None:
    # Finished steps are the result of the command; the rest is progress.
    typer.echo(str(progress), err=progress.duration is None)


def _as_json(found: schema.SchemaStatus) -> str:
    problem = found.problem()
    return json.dumps(
        {
            "fits": problem is None,
            "problem": None if problem is None else str(problem),
            "schema": {"needed": found.step_needed, "found": found.step_found},
            "library": {
                "needed": found.library_needed,
                "found": found.library_found,
                "is_current": not found.is_library_stale,
            },
            "steps": [
                {
                    "step": step.number,
                    "name": step.name,
                    "state": step.state,
                    "breaking": step.is_breaking,
                    "applied_at": step.applied_at and step.applied_at.isoformat(),
                }
                for step in found.steps
            ],
        },
        indent=2,
    )


def _as_table(found: schema.SchemaStatus) -> list[str]:
    rows = [
        (
            f"{step.number:04}",
            step.name,
            step.state + (", breaking" if step.is_breaking else ""),
            step.applied_at.isoformat(sep=" ", timespec="seconds") if step.applied_at else "-",
        )
        for step in found.steps
    ]
    rows.append(("library", f"{found.library_needed}", _library_state(found), "-"))
    titles = ("STEP", "NAME", "STATE", "APPLIED AT")
    columns = [Column(title, itemgetter(index)) for index, title in enumerate(titles)]
    return table(columns, rows, Screen())


def _library_state(found: schema.SchemaStatus) -> str:
    if found.library_found is None:
        return "pending"
    if not found.is_library_stale:
        return "applied"
    return f"database has {found.library_found}, with different text"
