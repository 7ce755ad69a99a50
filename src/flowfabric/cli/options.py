"""Options that several commands share, and the code that runs a command and sets its exit code.

An option group is a dataclass whose fields are options. If a parameter of a command has an option
group as its type, the command gets all options of the group. The user can also give the global
options (database or server, namespace, output format) before the command: see global_options.py.
"""

from __future__ import annotations

import asyncio
import getpass
import inspect
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
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
    ServerUrl,
    given_options,
)
from flowfabric.cli.output import complain, harmless
from flowfabric.client import FlowFabric
from flowfabric.client.filters import LANGUAGE
from flowfabric.config import DATABASE_URL_VARIABLES as URL_VARIABLES
from flowfabric.config import Settings, check_server_url, plain_url
from flowfabric.core.errors import (
    FlowFabricError,
    InvalidInput,
    NotFound,
    ReadOnlyServer,
    SchemaError,
    SlotsLost,
    Unavailable,
)
from flowfabric.core.execution import DEFAULT_NAMESPACE, check_name
from flowfabric.core.ids import with_bare_ids
from flowfabric.db.http import HttpDatabase

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
KIND_OPTION = typer.Option("--kind", help="Print only items of this kind; may be repeated.")
LIMIT_OPTION = typer.Option("--limit", min=0, help="List at most this many; 0 lists all.")
REASON_OPTION = typer.Option("--reason", "-r", help="Record this reason with the change.")
YES_OPTION = typer.Option(
    "--yes", "-y", help="Do not ask for confirmation. Required if there is no terminal."
)
TRACE_OPTION = typer.Option(
    "--trace", help="Print all frames of a traceback, not only the frames of your code."
)


@dataclass(frozen=True, kw_only=True)
class Database:
    """Option group: the database of a command, or the server that the command calls instead."""

    database_url: DatabaseUrl = None

    @property
    def address(self) -> str:
        return self.resolve()[0]

    def resolve(self) -> tuple[str, Server | None]:
        """Return the URL of the database, and the embedded server (None for other databases).

        Raise a usage error if the command was told to call a server of flowfabric.
        """
        if self.server_url is not None:
            raise typer.BadParameter(
                "names a server, and this command needs a database; give --database-url",
                param_hint=self.server_hint,
            )
        return resolve_database(self.database_url)

    @property
    def server_url(self) -> str | None:
        """The URL of the server to call; None if the command uses a database."""
        return Settings.from_environment().url if self.database_url is None else None

    @property
    def server_hint(self) -> str:
        return "FLOWFABRIC_URL"

    @property
    def space(self) -> str | None:
        """The namespace that a command uses; None means all namespaces."""
        return Settings.from_environment().namespace

    def client(self, *, pool_size: int = 1) -> FlowFabric:
        # Check the namespace before starting a server.
        space = self.space
        if (server := self.server_url) is not None:
            token = Settings.from_environment().token
            return FlowFabric(HttpDatabase(server, token), namespace=self.named_space)
        return FlowFabric(self.address, namespace=space, pool_size=pool_size)

    @property
    def named_space(self) -> str | None:
        """The namespace for a call to a server; None means the namespace of the token."""
        space = Settings.from_environment().namespace
        return None if space == DEFAULT_NAMESPACE else space


@dataclass(frozen=True, kw_only=True)
class Endpoint(Database):
    """Option group: a database, or a server to call instead of a database (`--url`)."""

    url: ServerUrl = None

    @property
    def server_url(self) -> str | None:
        if self.url is None:
            return super().server_url
        if self.database_url is not None:
            raise typer.BadParameter("cannot be combined with --database-url", param_hint="--url")
        return check_server_url("--url", self.url)

    @property
    def server_hint(self) -> str:
        return super().server_hint if self.url is None else "--url"


@dataclass(frozen=True, kw_only=True)
class DatabaseNamespace(Database):
    """Option group: one namespace of a database. For commands that cannot call a server."""

    namespace: NamespaceName = None

    @property
    def space(self) -> str | None:
        if self.namespace is None:
            return super().space
        check_name("namespace", self.namespace)
        return self.namespace

    @property
    def named_space(self) -> str | None:
        return self.namespace or super().named_space


@dataclass(frozen=True, kw_only=True)
class Namespace(DatabaseNamespace, Endpoint):
    """Option group: one namespace, of a database or of a server.

    At a server, the default is the namespace of the token.
    """


@dataclass(frozen=True, kw_only=True)
class Namespaces(Namespace):
    """Option group: one namespace or, with `--all-namespaces`, all namespaces."""

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
    """Option group: who makes a change."""

    actor: Annotated[
        str | None,
        typer.Option(
            "--actor",
            help="Record this name with the change. Default: user@host.",
            show_default=False,
        ),
    ] = None

    @property
    def who(self) -> str:
        return self.actor or _user_at_host()

    @property
    def name(self) -> str:
        """The actor that the user gave, or the name of the user without the host."""
        return self.actor or _user()


@dataclass(frozen=True, kw_only=True)
class Change(Actor):
    """Option group: who makes a change and, optionally, why."""

    reason: Annotated[str | None, REASON_OPTION] = None


@dataclass(frozen=True, kw_only=True)
class ExplainedChange(Actor):
    """Option group: who makes a change, and why. The reason is required."""

    reason: Annotated[str, REASON_OPTION]


@dataclass(frozen=True, kw_only=True)
class LimitNumbers:
    """Option group: set or remove the concurrency and the rate of a limit."""

    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            "-c",
            min=1,
            help="Run at most this many executions at once.",
            show_default=False,
        ),
    ] = None
    rate: Annotated[
        str | None,
        typer.Option(
            "--rate",
            help="Start at most this many executions in a time, such as 100/min or 5/s.",
            show_default=False,
        ),
    ] = None
    no_concurrency: Annotated[
        bool,
        typer.Option(
            "--no-concurrency", help="Allow any number of executions at once.", show_default=False
        ),
    ] = False
    no_rate: Annotated[
        bool, typer.Option("--no-rate", help="Allow any number of starts.", show_default=False)
    ] = False

    @property
    def cleared(self) -> list[str]:
        """The limits that the user removes: `concurrency`, `rate`, both or none.

        Raise a usage error if the user sets and removes the same limit.
        """
        if self.no_concurrency and self.concurrency is not None:
            raise typer.BadParameter(
                "cannot be combined with --concurrency", param_hint="--no-concurrency"
            )
        if self.no_rate and self.rate is not None:
            raise typer.BadParameter("cannot be combined with --rate", param_hint="--no-rate")
        numbers = {"concurrency": self.no_concurrency, "rate": self.no_rate}
        return [name for name, is_cleared in numbers.items() if is_cleared]


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"uid{os.getuid()}"  # in a container, the user may have no name


def _user_at_host() -> str:
    return f"{_user()}@{socket.gethostname()}"[:200]


def command(
    app: typer.Typer, name: str | None = None, *, cls: type[TyperCommand] | None = None
) -> Callable[[_Function], _Function]:
    """Register a function as a command.

    The function can be a coroutine function, and can return an exit code. A parameter whose type is
    an option group is replaced by the options of the group.
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
                _keyword(field.name, options[field.name], _default(field))
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


def _default(field: Field[Any]) -> Any:
    return inspect.Parameter.empty if field.default is MISSING else field.default


def _refuse_unused_global_options(context: typer.Context) -> None:
    for name in given_options(context.find_root().params):
        if name not in context.params:
            raise typer.BadParameter(
                f"does not apply to `{context.command_path}`; remove it",
                param_hint=f"--{name.replace('_', '-')}",
            )


def resolve_database(option: str | None) -> tuple[str, Server | None]:
    """Return the URL of the database, and the embedded server (None for other databases).

    The URL comes from the option, the environment or the project's file. If there is no URL, start
    the embedded server. This is allowed if the settings choose the embedded server, or if this
    folder has a `.flowfabric/`. In any other case, raise a usage error.
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
    """If the `with` block raises an error, print it on stderr and exit with its exit code."""
    try:
        yield
    except InvalidInput as error:
        raise typer.BadParameter(with_bare_ids(harmless(str(error)))) from error
    except FlowFabricError as error:
        complain(error)
        raise typer.Exit(exit_code(error)) from error
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
