"""Which database a command talks to, and how it ends when that database does not answer or does
not fit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from flowfabric.config import DATABASE_URL_VARIABLES as URL_VARIABLES
from flowfabric.config import Settings
from flowfabric.core.errors import (
    FlowFabricError,
    InvalidInput,
    NotFound,
    ReadOnlyServer,
    SchemaError,
    SlotsLost,
    Unavailable,
)
from flowfabric.core.execution import check_name
from flowfabric.embedded import EmbeddedError
from flowfabric.embedded import start as start_server

URL_OPTION = typer.Option(
    None,
    "--database-url",
    metavar="URL",
    help=f"Database to use; otherwise ${URL_VARIABLES[0]}, ${URL_VARIABLES[1]}, flowfabric.toml.",
    show_default=False,
)

NAMESPACE_OPTION = typer.Option(
    None,
    "--namespace",
    "-n",
    help="Whose executions are meant; otherwise $FLOWFABRIC_NAMESPACE, then 'default'.",
    show_default=False,
)
ALL_NAMESPACES_OPTION = typer.Option(
    False, "--all-namespaces", "-A", help="Those of every namespace."
)

EXIT_DOES_NOT_FIT = 1
EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_CONFLICT = 4
EXIT_UNREACHABLE = 5
EXIT_SLOTS_LOST = 6
EXIT_INTERRUPTED = 130


def resolve_database_url(option: str | None) -> str:
    """The URL given as an option, by the environment or by the project's file, else the server of
    this folder's project.

    A project without a `.flowfabric/` folder gets a usage error, not a new server.
    """
    if url := option or Settings.from_environment().database_url:
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


def resolve_namespace(option: str | None, all_namespaces: bool) -> str | None:
    """The namespace given as an option or by the environment; None is every one."""
    if all_namespaces:
        if option is not None:
            raise typer.BadParameter("goes without --namespace", param_hint="--all-namespaces")
        return None
    if option is None:
        return Settings.from_environment().namespace
    check_name("namespace", option)
    return option


def exit_code(error: FlowFabricError) -> int:
    """The exit code that stands for an error."""
    if isinstance(error, InvalidInput):
        return EXIT_USAGE
    if isinstance(error, NotFound):
        return EXIT_NOT_FOUND
    if isinstance(error, Unavailable | ReadOnlyServer):
        return EXIT_UNREACHABLE
    if isinstance(error, SchemaError):
        return EXIT_DOES_NOT_FIT
    if isinstance(error, SlotsLost):
        return EXIT_SLOTS_LOST
    return EXIT_CONFLICT


@contextmanager
def failures_as_exit_codes() -> Iterator[None]:
    """Turn what can go wrong into one line on stderr and an exit code."""
    try:
        yield
    except InvalidInput as error:
        raise typer.BadParameter(str(error)) from error
    except FlowFabricError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(exit_code(error)) from error
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
