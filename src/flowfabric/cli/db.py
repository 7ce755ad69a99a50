"""`flowfabric db`: migrate a database, show the state of its schema, or print the SQL."""

from __future__ import annotations

import json
from operator import itemgetter

import typer

from flowfabric.cli.options import EXIT_DOES_NOT_FIT, Database, command
from flowfabric.cli.output import Printer, say, say_all
from flowfabric.db import migrate as schema
from flowfabric.db.connection import open_connection
from flowfabric.drawing.table import Column, table
from flowfabric.drawing.text import Screen

app = typer.Typer(
    name="db", no_args_is_help=True, help="Create, upgrade and inspect the schema of a database."
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
