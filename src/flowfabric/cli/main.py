"""The `flowfabric` command.

A command is imported only when it is called, because imports take most of its start time.
`flowfabric --help` imports none: this module lists all commands with the first sentence of their
help.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from flowfabric.cli.global_options import (
    AllNamespaces,
    DatabaseUrl,
    NamespaceName,
    ServerUrl,
    accept_global_options,
    output_option,
)

# The module of each command, and the first sentence of its help.
COMMANDS = {
    "init": ("init", "Write a small first app. An existing file is not changed (exit code 4)."),
    "dev": (
        "dev",
        "Run everything for development: database, schema, and a worker that restarts on save.",
    ),
    "submit": (
        "submit",
        "Submit an execution of a task, and print its id. With --wait, print its result.",
    ),
    "result": (
        "submit",
        "Print the result of an execution as JSON, or the traceback of its failure.",
    ),
    "top": ("top", "Watch lanes, workers and rates until Ctrl-C."),
    "ls": ("executions", "List executions, newest first."),
    "show": ("executions", "Show everything about an execution, or about a flow."),
    "why": ("executions", "Explain why an execution is not running, or say that it is running."),
    "attempts": (
        "executions",
        "List the attempts of an execution, oldest first, with the traceback of each failure.",
    ),
    "cancel": ("actions", "End executions as cancelled."),
    "revoke-lease": ("actions", "Revoke the leases of running executions."),
    "priority": ("actions", "Change the priority of waiting executions."),
    "replay": ("actions", "Run ended executions again, with a new attempt."),
    "retry": ("actions", "Make executions run now."),
    "resume": ("actions", "Resume suspended executions without the signal that they wait for."),
    "signal": ("signals", "Send a signal to an execution."),
    "tail": ("tail", "Print what an execution streams, from its first frame to its end."),
    "events": (
        "events",
        "Print events, oldest first. No event is missed.",
    ),
    "check": (
        "check",
        "Check this code against the journals of executions in flight. Run it before a deploy.",
    ),
    "versions": (
        "versions",
        "List code versions, their executions in flight, and which versions you can switch off.",
    ),
    "doctor": (
        "doctor",
        "Check the installation and the data. Writes nothing and can run at any time.",
    ),
    "demo": (
        "demo",
        "Kill a worker and watch its execution recover, on a Postgres that starts by itself.",
    ),
    "db": (
        "db",
        "Create, upgrade and inspect the schema of a database, or look into it with psql.",
    ),
    "worker": ("workers", "Run a worker, list workers, drain one, mark one as dead."),
    "serve": ("serve", "Serve the HTTP API until Ctrl-C or SIGTERM."),
    "token": ("tokens", "Make, list and revoke tokens of the HTTP server."),
    "flow": ("flows", "List, show, draw and cancel flows, and retry failed members."),
    "lane": ("lanes", "List, pause, drain, disable and limit lanes."),
    "approvals": ("approvals", "List the approvals that executions wait for, and answer them."),
    "key": ("keys", "List, rotate and seed the keys that sign the tokens of waitpoints."),
    "quota": (
        "quotas",
        "List, show, change and delete quotas. A quota limits how many executions run at once, how "
        "many start in a given time, or both.",
    ),
    "budget": (
        "budgets",
        "List, show, raise and reset budgets, which limit what executions spend.",
    ),
    "namespace": ("namespaces", "Bind a login of the database to one namespace."),
    "subscription": (
        "subscriptions",
        "List, reset and remove subscriptions. A subscription keeps the position of its consumers "
        "in the event log.",
    ),
    "webhook": (
        "webhooks",
        "Add, list, enable, test and remove webhooks: URLs to which workers post events.",
    ),
    "schedule": ("schedules", "List, show, pause and run schedules."),
}


class LazyCommands(MutableMapping[str, Any]):
    """All commands of `flowfabric` by name. Looking up a command imports its module."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(name)
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        raise TypeError("commands are not removed")

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


def _load(name: str) -> Any:
    from flowfabric.cli.options import command

    module = import_module(f"flowfabric.cli.{COMMANDS[name][0]}")
    if hasattr(module, "app"):
        return typer.main.get_group(module.app)
    alone = typer.Typer(add_completion=False)
    command(alone, name)(getattr(module, name.replace("-", "_")))
    return typer.main.get_command(alone)


class Root(TyperGroup):
    """The command `flowfabric` itself. Its help is printed without importing any command."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = LazyCommands()
        self._is_listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if self._is_listing:
            return TyperCommand(name=cmd_name, help=COMMANDS[cmd_name][1])
        return super().get_command(ctx, cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._is_listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._is_listing = False


app = typer.Typer(cls=Root, no_args_is_help=True, pretty_exceptions_show_locals=False)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"flowfabric {version('flowfabric')}")
        raise typer.Exit


@app.callback()
def flowfabric(
    context: typer.Context,
    output: Annotated[
        str | None,
        output_option("Print in this format. Default: table or text.", metavar="table|json|..."),
    ] = None,
    namespace: NamespaceName = None,
    all_namespaces: AllNamespaces = False,
    url: ServerUrl = None,
    database_url: DatabaseUrl = None,
    is_version_asked: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            is_eager=True,
            callback=_print_version,
            show_default=False,
        ),
    ] = False,
) -> None:
    """Durable execution for Python on PostgreSQL.

    --output, --namespace, --all-namespaces, --url and --database-url can come before or after a
    command that accepts them. If an option is in both places, the value after the command counts.
    """
    accept_global_options(context)
