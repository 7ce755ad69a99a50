"""Write docs/reference/cli.md: every command with its arguments and options, taken from
`--help`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from flowfabric.cli.global_options import GLOBAL_OPTIONS
from flowfabric.cli.main import app

# Options that many commands accept. The page describes them once.
SHARED = (*GLOBAL_OPTIONS, "help")


def cli_page(note: str) -> str:
    root = typer.main.get_command(app)
    lines = [
        "# Command line",
        "",
        note,
        "",
        "Every command, as `flowfabric COMMAND --help` shows it. Exit codes are listed in the",
        "[quickstart](../guide/quickstart.md#while-you-write) and, for workers, in",
        "[deployment](../guide/deployment.md#workers).",
        "",
        "## Options of all commands",
        "",
        "Put them before or after a command that accepts them. The one after the command wins.",
        "",
        *_table(root, [one for one in root.params if one.name in SHARED], "option"),
    ]
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        lines += _command(f"flowfabric {name}", command, 2)
    return "\n".join(lines).rstrip() + "\n"


def _command(path: str, command: Any, level: int) -> Iterator[str]:
    if command.hidden:
        return
    yield from (f"{'#' * level} {path}", "")
    children = getattr(command, "commands", {})
    if not children:
        context = command.make_context(path, [], resilient_parsing=True)
        usage = " ".join([path, *command.collect_usage_pieces(context)])
        yield from ("```", usage, "```", "")
    yield from (*_prose(command.help), "")
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [
        one for one in command.params if one.param_type_name == "option" and one.name not in SHARED
    ]
    yield from _table(command, arguments, "argument")
    yield from _table(command, options, "option")
    taken = [one.opts[0] for one in command.params if one.name in SHARED[:-1]]
    if taken and not children:
        yield from (f"Also takes {', '.join(f'`{name}`' for name in taken)}.", "")
    for name, child in children.items():
        yield from _command(f"{path} {name}", child, level + 1)


def _table(command: Any, parameters: list[Any], title: str) -> Iterator[str]:
    context = command.make_context("flowfabric", [], resilient_parsing=True)
    rows = [one.get_help_record(context) for one in parameters if not one.hidden]
    if rows := [row for row in rows if row is not None]:
        yield from (f"| {title} | |", "|---|---|")
        for names, text in rows:
            yield f"| `{_cell(names)}` | {_cell(text).replace('<', '&lt;')} |"
        yield ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _prose(text: str | None) -> list[str]:
    """Return a help text as Markdown.

    A paragraph with its own line breaks (\\b) becomes a code block.
    """
    parts = []
    for part in (text or "").strip().split("\n\n"):
        if part.startswith("\b"):
            parts.append("```\n" + part.removeprefix("\b\n") + "\n```")
        else:
            parts.append(re.sub(r"\s+", " ", part))
    return "\n\n".join(parts).splitlines()
