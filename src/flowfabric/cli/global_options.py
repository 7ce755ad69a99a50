"""The options that can come before a command: database or server, namespace, output format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

GLOBAL_OPTIONS = ("output", "namespace", "all_namespaces", "url", "database_url")

DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        metavar="URL",
        help="Use this database. Default: $FLOWFABRIC_DATABASE_URL, $DATABASE_URL, "
        "flowfabric.toml.",
        show_default=False,
    ),
]
ServerUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="Use this server of flowfabric instead of a database, with the token in "
        "$FLOWFABRIC_TOKEN. Default: $FLOWFABRIC_URL.",
        show_default=False,
    ),
]
NamespaceName = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        help="Use this namespace. Default: $FLOWFABRIC_NAMESPACE, then 'default'.",
        show_default=False,
    ),
]
AllNamespaces = Annotated[
    bool, typer.Option("--all-namespaces", "-A", help="Use all namespaces.", show_default=False)
]


def output_option(help: str, *, metavar: str | None = None) -> Any:
    """Define the option --output. The type of the annotated parameter lists the formats."""
    return typer.Option("--output", "-o", metavar=metavar, help=help, show_default=False)


TEXT_OUTPUT_OPTION = output_option("Print text, or a JSON object per line. Default: text.")


def accept_global_options(context: typer.Context) -> None:
    """If global options come before the command, make them defaults of the command's options."""
    name = context.invoked_subcommand
    if name is not None and (given := given_options(context.params)):
        invoked = context.command.get_command(context, name)  # type: ignore[attr-defined]
        context.default_map = {name: _defaults(invoked, given)}


def given_options(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the global options that come before the command.

    An option with an empty text is kept, so that the command refuses it.
    """
    values = ((name, parameters.get(name)) for name in GLOBAL_OPTIONS)
    return {name: value for name, value in values if value is not None and value is not False}


def _defaults(command: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults for a command, or for every command of a group."""
    commands = getattr(command, "commands", None)
    if commands is None:
        return dict(given)
    return {name: _defaults(each, given) for name, each in commands.items()}
