"""Which database a command talks to, and how it ends when that database does not answer or does
not fit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from flowfabric.core.errors import InvalidInput, SchemaError, Unavailable

URL_VARIABLES = ("FLOWFABRIC_DATABASE_URL", "DATABASE_URL")
URL_OPTION = typer.Option(
    None,
    "--database-url",
    metavar="URL",
    help=f"Database to use; otherwise ${URL_VARIABLES[0]}, then ${URL_VARIABLES[1]}.",
    show_default=False,
)

EXIT_DOES_NOT_FIT = 1
EXIT_UNREACHABLE = 5


def resolve_database_url(option: str | None) -> str:
    """The URL given as an option, or by the environment; a usage error if there is none."""
    for url in (option, *map(os.environ.get, URL_VARIABLES)):
        if url:
            return url
    raise typer.BadParameter(
        f"no database given. Pass it, or set {URL_VARIABLES[0]}, "
        "for example to postgresql://user@localhost/app",
        param_hint="--database-url",
    )


@contextmanager
def failures_as_exit_codes() -> Iterator[None]:
    """Turn what can go wrong with a database into one line on stderr and an exit code."""
    try:
        yield
    except InvalidInput as error:
        raise typer.BadParameter(str(error)) from error
    except Unavailable as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_UNREACHABLE) from error
    except SchemaError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_DOES_NOT_FIT) from error
