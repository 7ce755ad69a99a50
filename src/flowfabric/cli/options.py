"""Options that several commands share, and the code that runs a command and sets its exit code.

A parameter of a command may be an option group; `command` adds all options of the group. The global
options (database, namespace, output format) may also come before the command: see
global_options.py.
"""

from __future__ import annotations

import asyncio
import getpass
import inspect
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand

from flowfabric.cli.global_options import (
    GLOBAL_OPTIONS,
    AllNamespaces,
    DatabaseUrl,
    NamespaceName,
    given_options,
)
from flowfabric.cli.output import complain, harmless
from flowfabric.client import FlowFabric
from flowfabric.client.filters import LANGUAGE
from flowfabric.config import DATABASE_URL_VARIABLES as URL_VARIABLES
from flowfabric.config import Settings, plain_url
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
from flowfabric.core.ids import with_bare_ids

if TYPE_CHECKING:
    from flowfabric.embedded import Server

EXIT_DOES_NOT_FIT = 1
EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_CONFLICT = 4
EXIT_UNREACHABLE = 5
EXIT_SLOTS_LOST = 6
EXIT_INTERRUPTED = 130

# The help of every command lists these options last, in this order.
_LAST = ("reason", "actor", *GLOBAL_OPTIONS)

_Function = TypeVar("_Function", bound=Callable[..., Any])

WHERE_OPTION = typer.Option(
    "--where", "-w", metavar="CONDITIONS", help=LANGUAGE, show_default=False
)
TRACE_OPTION = typer.Option(
    "--trace", help="Print all frames of a traceback, not only those of your code."
)


@dataclass(frozen=True, kw_only=True)
class Database:
    """The database that a command uses."""

    database_url: DatabaseUrl = None

    @property
    def url(self) -> str:
        return self.resolve()[0]

    def resolve(self) -> tuple[str, Server | None]:
        """Return the URL of the database and, if it is the embedded database, its server."""
        return resolve_database(self.database_url)

    @property
    def space(self) -> str | None:
        """The namespace that a command uses; None means all namespaces."""
        return Settings.from_environment().namespace

    def client(self, *, pool_size: int = 1) -> FlowFabric:
        # Check the namespace before starting a server.
        space = self.space
        return FlowFabric(self.url, namespace=space, pool_size=pool_size)


@dataclass(frozen=True, kw_only=True)
class Namespace(Database):
    """One namespace of a database."""

    namespace: NamespaceName = None

    @property
    def space(self) -> str | None:
        if self.namespace is None:
            return super().space
        check_name("namespace", self.namespace)
        return self.namespace


@dataclass(frozen=True, kw_only=True)
class Namespaces(Namespace):
    """One or all namespaces of a database."""

    all_namespaces: AllNamespaces = False

    @property
    def space(self) -> str | None:
        if not self.all_namespaces:
            return super().space
        if self.namespace is not None:
            raise typer.BadParameter(
                "cannot be combined with --namespace", param_hint="--all-namespaces"
            )
        return None


@dataclass(frozen=True, kw_only=True)
class Actor:
    """Who makes a change."""

    actor: Annotated[
        str | None,
        typer.Option(
            "--actor",
            help="Who makes the change, recorded with it. Default: user@host.",
            show_default=False,
        ),
    ] = None

    @property
    def who(self) -> str:
        return self.actor or _user_at_host()


@dataclass(frozen=True, kw_only=True)
class Change(Actor):
    """Who makes a change, and why."""

    reason: Annotated[
        str | None,
        typer.Option("--reason", "-r", help="Reason, recorded with the change."),
    ] = None


def _user_at_host() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = f"uid{os.getuid()}"  # in a container, the user may have no name
    return f"{user}@{socket.gethostname()}"[:200]


def command(
    app: typer.Typer, name: str | None = None, *, cls: type[TyperCommand] | None = None
) -> Callable[[_Function], _Function]:
    """Register a command.

    It may be a coroutine function, and may return its exit code. A parameter whose type is an
    option group is replaced by the options of the group.
    """

    def register(function: _Function) -> _Function:
        app.command(name, cls=cls)(_runnable(function))
        return function

    return register


def _runnable(function: Callable[..., Any]) -> Callable[..., None]:
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters = [_keyword("context", typer.Context)]
    for name, parameter in inspect.signature(function).parameters.items():
        if name in groups:
            options = get_type_hints(groups[name], include_extras=True)
            parameters += [
                _keyword(field.name, options[field.name], field.default)
                for field in fields(groups[name])
            ]
        else:
            parameters.append(_keyword(name, hints[name], parameter.default))
    parameters.sort(key=lambda each: _LAST.index(each.name) if each.name in _LAST else -1)

    @wraps(function)
    def run(context: typer.Context, **given: Any) -> None:
        _refuse_unused_global_options(context)
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        with failures_as_exit_codes():
            code = function(**given)
            if inspect.iscoroutine(code):
                code = asyncio.run(code)
        if code:
            raise typer.Exit(code)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _keyword(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> Any:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default
    )


def _refuse_unused_global_options(context: typer.Context) -> None:
    for name in given_options(context.find_root().params):
        if name not in context.params:
            raise typer.BadParameter(
                f"does not apply to `{context.command_path}`; remove it",
                param_hint=f"--{name.replace('_', '-')}",
            )


def resolve_database(option: str | None) -> tuple[str, Server | None]:
    """Return the URL of the database, and the embedded server if that is used.

    The URL comes from the option, the environment or the project's file. Otherwise the embedded
    server of this folder is started. Without `.flowfabric/` in this folder, raise a usage error
    instead of creating a server.
    """
    if option:
        return plain_url(option), None
    settings = Settings.from_environment()
    if settings.database_url:
        return settings.database_url, None
    from flowfabric import embedded

    if settings.embedded or embedded.exists(Path.cwd()):
        try:
            server = embedded.start(Path.cwd())
        except embedded.EmbeddedError as error:
            raise Unavailable(str(error)) from error
        return server.url, server
    raise typer.BadParameter(
        f"no database given. Pass it, or set {URL_VARIABLES[0]}, "
        "for example to postgresql://user@localhost/app; "
        "or go to the folder where `flowfabric dev` runs",
        param_hint="--database-url",
    )


def exit_code(error: FlowFabricError) -> int:
    """Return the exit code for an error."""
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
    """Print an error as one line on stderr, and exit with its exit code."""
    try:
        yield
    except InvalidInput as error:
        raise typer.BadParameter(with_bare_ids(harmless(str(error)))) from error
    except FlowFabricError as error:
        complain(error)
        raise typer.Exit(exit_code(error)) from error
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
