"""`flowfabric db`: migrate a database, show the state of its schema, print the SQL, or run psql."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from operator import itemgetter

import typer
from typer.core import TyperCommand

from flowfabric.cli.cluster import cluster_facts, cluster_lines
from flowfabric.cli.options import EXIT_DOES_NOT_FIT, Database, command
from flowfabric.cli.output import Printer, complain, say, say_all
from flowfabric.db import citus
from flowfabric.db import distribute as distribution
from flowfabric.db import migrate as schema
from flowfabric.db.connection import open_connection, without_password
from flowfabric.drawing.plain import json_line, json_text
from flowfabric.drawing.table import Column, table
from flowfabric.drawing.text import Screen
from flowfabric.embedded import find_psql

# The exit code of a shell if a program does not exist.
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
    async with open_connection(database.address) as connection:
        migration = await schema.migrate(connection, downgrade=downgrade, report=_print)
    if not migration.steps and not migration.is_library_recreated:
        typer.echo("The database is up to date; nothing was applied.", err=True)


@command(app)
async def distribute(
    database: Database,
    partitions: int = typer.Option(
        distribution.DEFAULT_PARTITIONS,
        "--partitions",
        min=distribution.MIN_PARTITIONS,
        max=distribution.MAX_PARTITIONS,
        metavar="N",
        help="Use N partitions. The number can be raised later, but never lowered.",
    ),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Run the checks, and print the SQL instead of running it."
    ),
) -> None:
    """Distribute the database over the nodes of a Citus cluster. Safe to repeat.

    Connect to the coordinator as the role that owns schema ff. Citus must be 12.1 or newer. Before
    you distribute a database for the first time, stop all workers and all programs that submit. The
    command first checks all this and lists everything that is missing. If the command was
    interrupted, run it again: it continues where it stopped.
    """
    async with open_connection(database.address) as connection:
        if dry_run:
            typer.echo(await distribution.plan(connection, partitions=partitions), nl=False)
            return
        found = await distribution.distribute(connection, partitions=partitions, report=_print)
    nodes = "1 node" if found.nodes == 1 else f"{found.nodes} nodes"
    typer.echo(
        f"{found.partitions} partitions on {nodes}"
        + ("." if found.is_changed else "; nothing was left to do."),
        err=True,
    )


@command(app)
async def status(
    database: Database,
    printer: Printer,
    functions: bool = typer.Option(
        False,
        "--functions",
        help="For a distributed database, list all functions, and say for each whether it is "
        "delegated. Default: list the public functions that are not delegated.",
    ),
) -> int:
    """Compare the schema of the database with this release. Exit code 1 if the two do not match.

    For a distributed database, also show the shards and partitions of every cluster node, the
    functions that are not delegated, and the functions that `db distribute` has to set up again.
    """
    async with open_connection(database.address) as connection:
        found = await schema.status(connection)
        is_on_cluster = found.is_distributed and await citus.has_citus(connection)
        cluster = await distribution.look(connection) if is_on_cluster else None
    if printer.is_json:
        say(_as_json(found, cluster))
    else:
        say_all(_as_table(found))
        if cluster is not None:
            say_all(["", *cluster_lines(cluster, with_functions=functions)])
    if problem := found.problem():
        typer.echo(str(problem), err=True)
        return EXIT_DOES_NOT_FIT
    return 0


@command(app)
async def partitions(
    database: Database,
    printer: Printer,
    to: int | None = typer.Option(
        None,
        "--to",
        min=1,
        max=32_767,
        metavar="N",
        help="Raise the number of partitions to N. It can never be lowered. Default: print the "
        "number.",
        show_default=False,
    ),
    keys: bool = typer.Option(
        False,
        "--keys",
        help="Also use the new number of partitions for idempotency keys. This is refused while "
        "any key is stored.",
    ),
) -> None:
    """Show or raise the number of partitions. Workers can keep running.

    Workers look into the new partitions within ten seconds, and new executions use them after half
    a minute. Idempotency keys use them only with --keys. If nothing was ever submitted, executions
    and keys use the new partitions immediately.
    """
    if keys and to is None:
        raise typer.BadParameter("needs --to N", param_hint="--keys")
    async with database.client() as client:
        found = (
            await client.partitions.numbers()
            if to is None
            else await client.partitions.raise_to(to, keys=keys)
        )
    if printer.is_json:
        say(json_line(found))
        return
    say(f"partitions: {found.partitions}")
    if found.minted < found.partitions:
        say(f"used by new executions: {found.minted}; half a minute after the raise, all are used")
    if found.keyed < found.partitions:
        say(f"used by keys: {found.keyed}")


@command(app)
def sql(
    from_step: int = typer.Option(
        0,
        "--from",
        min=0,
        metavar="N",
        help="Leave out schema steps 1 to N, for a database that already has them. Default: 0, "
        "which prints all steps.",
        show_default=False,
    ),
    distributed: bool = typer.Option(
        False, "--distributed", help="Print the functions in the form for a distributed database."
    ),
) -> None:
    """Print the SQL that migrate would run, as a script for psql. Needs no database."""
    try:
        script = schema.sql(from_step, distributed=distributed)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--from") from error
    typer.echo(script, nl=False)


@command(app)
def url(
    database: Database,
    show_password: bool = typer.Option(
        False, "--show-password", help="Include the password, if the URL has one."
    ),
) -> None:
    """Print the URL of the database, for psql and other programs.

    The embedded server runs only while a command (such as `db psql`) or a worker uses it.
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
    """A command that refuses unknown options. The error says: put psql's own options after --."""

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
        None,
        metavar="[-- ARGUMENT...]",
        help="Pass these arguments to psql, for example -- -c 'select 1'.",
    ),
) -> int:
    """Run psql on the database. The tables of flowfabric are in the schema ff.

    psql gets the password of the login in its environment. If the URL contains other passwords,
    such as sslpassword, psql does not get them.

    Exit codes: 5: no database. 127: psql is not installed. Otherwise the exit code of psql.
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
    # Pass the password in the environment: every user can read the arguments of a process.
    environment = os.environ if password is None else {**os.environ, "PGPASSWORD": password}
    if server is None:
        os.execve(found, command, environment)
    # Run psql as a child process: the embedded server stops when this process ends.
    with server, _interrupts_ignored():
        return subprocess.run(command, env=environment, check=False).returncode


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ignore Ctrl-C in this process, because psql uses Ctrl-C to cancel a statement."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _print(progress: schema.Progress) -> None:
    # Finished steps are the result of the command and go to stdout; the rest is progress.
    typer.echo(str(progress), err=progress.duration is None)


def _as_json(found: schema.SchemaStatus, cluster: distribution.Cluster | None) -> str:
    problem = found.problem()
    return json_text(
        {
            "cluster": None if cluster is None else cluster_facts(cluster),
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
                    "applied_at": step.applied_at,
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
