"""The `flowfabric` command."""

from __future__ import annotations

import typer

from flowfabric.cli import db

app = typer.Typer(no_args_is_help=True, help="Durable execution for Python on PostgreSQL.")
app.add_typer(db.app)


def main() -> None:
    app()
