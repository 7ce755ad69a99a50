"""`flowfabric db`: bring a database to the schema of this release, look at it, or print the SQL."""

from __future__ import annotations

import asyncio
import json
import sys
from enum import StrEnum

import typer

from flowfabric.cli.database import (
    EXIT_DOES_NOT_FIT,
    URL_OPTION,
    failures_as_exit_codes,
    resolve_database_url,
)
from flowfabric.db import migrate as schema
from flowfabric.db.connection import open_connection

app = typer.Typer(
    name="db", no_args_is_help=True, help="Create, upgrade and inspect the schema of a database."
)


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"


@app.command()
def migrate(
    database_url: str | None = URL_OPTION,
    downgrade: bool = typer.Option(
        False, "--downgrade", help="Replace the function library even if the database has a newer."
    ),
) -> None:
    """Apply pending schema steps and re-create the function library. Safe to repeat."""
    with failures_as_exit_codes():
        migration = asyncio.run(_migrate(resolve_database_url(database_url), downgrade=downgrade))
    if not migration.steps and not migration.is_library_recreated:
        typer.echo("Nothing was applied.", err=True)


@app.command()
def status(
    database_url: str | None = URL_OPTION,
    output: Output | None = typer.Option(
        None, "-o", "--output", help="Default: table on a terminal, JSON otherwise."
    ),
) -> None:
    """Show what the database has and what this release needs; exit code 1 if it does not fit."""
    with failures_as_exit_codes():
        found = asyncio.run(_status(resolve_database_url(database_url)))
    output = output or (Output.TABLE if sys.stdout.isatty() else Output.JSON)
    typer.echo(_as_json(found) if output is Output.JSON else _as_table(found))
    if problem := found.problem():
        typer.echo(str(problem), err=True)
        raise typer.Exit(EXIT_DOES_NOT_FIT)


@app.command()
def sql(
    from_step: int = typer.Option(
        0, "--from", min=0, metavar="N", help="The last step that the database already has."
    ),
) -> None:
    """Print what migrate would run, as a script for psql. Needs no database."""
    try:
        script = schema.sql(from_step)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--from") from error
    typer.echo(script, nl=False)


async def _migrate(url: str, *, downgrade: bool) -> schema.Migration:
    async with open_connection(url) as connection:
        return await schema.migrate(connection, downgrade=downgrade, report=_tell)


async def _status(url: str) -> schema.SchemaStatus:
    async with open_connection(url) as connection:
        return await schema.status(connection)


def _tell(progress: schema.Progress) -> None:
    # Finished work is what the command is asked for; the rest is talk.
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


def _as_table(found: schema.SchemaStatus) -> str:
    rows = [("STEP", "NAME", "STATE", "APPLIED AT")]
    rows += [
        (
            f"{step.number:04}",
            step.name,
            step.state + (", breaking" if step.is_breaking else ""),
            step.applied_at.isoformat(sep=" ", timespec="seconds") if step.applied_at else "-",
        )
        for step in found.steps
    ]
    rows.append(("library", f"{found.library_needed}", _library_state(found), "-"))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def _library_state(found: schema.SchemaStatus) -> str:
    if found.library_found is None:
        return "pending"
    if not found.is_library_stale:
        return "applied"
    return f"database has {found.library_found}, with another text"
