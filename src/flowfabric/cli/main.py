"""The `flowfabric` command."""

from __future__ import annotations

import typer

from flowfabric.cli import db, demo, events, worker

app = typer.Typer(
    no_args_is_help=True,
    help="Durable execution for Python on PostgreSQL.",
    pretty_exceptions_show_locals=False,
)
app.add_typer(db.app)
app.command()(worker.worker)
app.command()(events.events)
app.command()(demo.demo)


def main() -> None:
    app()
