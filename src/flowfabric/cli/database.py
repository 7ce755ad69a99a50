"""Which database a command talks to, and how it ends when that database does not answer or does
not fit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from flowfabric.config import DATABASE_URL_VARIABLES as URL_VARIABLES
from flowfabric.core.errors import InvalidInput, SchemaError, Unavailable
from flowfabric.embedded import EmbeddedError
from flowfabric.embedded import start as start_server

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
    """The URL given as an option or by the environment, else the server of this folder's project.

    A project without a `.flowfabric/` folder gets a usage error, not a new server.
    """
    for url in (option, *map(os.environ.get, URL_VARIABLES)):
        if url:
            return url
    if (Path.cwd() / ".flowfabric").is_dir():
        try:
            return start_server(Path.cwd()).url
        except EmbeddedError as error:
            raise Unavailable(str(error)) from error
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
