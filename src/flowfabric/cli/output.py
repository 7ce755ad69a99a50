"""Output of commands: tables that fit the terminal, JSON lines, and progress on stderr.

Data goes to stdout, everything else to stderr. A pipe gets the same text as a terminal, but without
colours and without a limit on the width. JSON is printed only with `-o json`. NO_COLOR turns off
all colours.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from time import monotonic
from typing import Annotated, Any, TextIO, TypeVar

import typer

from flowfabric.cli.global_options import output_option
from flowfabric.core.ids import with_bare_ids
from flowfabric.drawing.picture import SIGNS
from flowfabric.drawing.plain import json_line
from flowfabric.drawing.table import Column, table
from flowfabric.drawing.text import Screen, Styled, cut, paint, printable

# Seconds between two updates of the progress: on a terminal, and in a log.
TERMINAL_SECONDS = 0.2
LOG_SECONDS = 5.0

_Record = TypeVar("_Record")


class Output(StrEnum):
    """Output formats of commands that list executions or flows."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    ID = "id"


class Form(StrEnum):
    """Output formats of commands that do not list executions or flows."""

    TABLE = "table"
    JSON = "json"


@dataclass(frozen=True, kw_only=True)
class Printer:
    """Prints records as a table or as JSON lines."""

    output: Annotated[
        Form | None,
        output_option("Print a table, or a JSON object per line (json). Default: table."),
    ] = None

    @property
    def is_json(self) -> bool:
        return self.output is Form.JSON

    def records(
        self, records: Sequence[_Record], columns: Sequence[Column[_Record]], *, empty: str
    ) -> None:
        """Print a table, or one JSON line per record.

        If there are no records, print `empty` to stderr.
        """
        if self.is_json:
            say_all(map(json_line, records))
        elif records:
            say_all(table(columns, records, screen()))
        else:
            typer.echo(empty, err=True)

    def record(self, facts: Any, lines: Callable[[], Iterable[str]]) -> None:
        """Print one record: as a JSON line, or as the given lines."""
        say_all([json_line(facts)] if self.is_json else lines())


@dataclass(frozen=True, kw_only=True)
class ListPrinter:
    """Prints executions or flows.

    JSON lines and ids are printed page by page. A table is printed after the last page.
    """

    output: Annotated[
        Output | None,
        output_option(
            "Print a table, a table with more columns and no cuts (wide), a JSON object per "
            "line (json), or only ids (id). Default: table."
        ),
    ] = None

    @property
    def form(self) -> Output:
        return self.output or Output.TABLE

    @property
    def is_wide(self) -> bool:
        return self.form is Output.WIDE

    async def pages(
        self,
        pages: AsyncIterator[Sequence[Any]],
        columns: Sequence[Column[Any]],
        *,
        limit: int,
        empty: str,
    ) -> None:
        """Print the records of all pages, but at most `limit` records; 0 means no limit."""
        progress = Progress(for_logs=False)
        rows: list[Any] = []
        number = 0
        is_more = False
        async with progress.during(lambda: f"searching: {number} found"):
            async for page in pages:
                for record in page:
                    is_more = limit != 0 and number == limit
                    if is_more:
                        break
                    number += 1
                    if self.form is Output.JSON:
                        progress.say(json_line(record))
                    elif self.form is Output.ID:
                        progress.say(str(record.id))
                    else:
                        rows.append(record)
                if is_more:
                    break
        if rows:
            say_all(table(columns, rows, Screen() if self.is_wide else screen()))
        if not number:
            typer.echo(empty, err=True)
        elif is_more:
            typer.echo(f"only the newest {limit}; --limit 0 lists all", err=True)


def screen() -> Screen:
    """Return the width, the colours and the signs that stdout can show.

    If stdout is not a terminal, the width is unlimited and there are no colours.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        "".join(sign for sign, _ in SIGNS.values()).encode(encoding)
        is_ascii = False
    except (UnicodeEncodeError, LookupError):
        is_ascii = True
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    return Screen(width, has_colour(sys.stdout), is_ascii)


def styled(text: str, colour: str) -> str:
    return paint(Styled(text, colour), screen())


def has_colour(stream: TextIO) -> bool:
    return (
        stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") != "dumb"
    )


def say(line: str) -> None:
    """Print a line of data. Characters that the terminal cannot show are replaced."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    typer.echo(line.encode(encoding, "replace").decode(encoding))


def say_all(lines: Iterable[str]) -> None:
    for line in lines:
        say(line)


def complain(message: object) -> None:
    typer.echo(f"error: {with_bare_ids(harmless(str(message)))}", err=True)


def harmless(text: str) -> str:
    """Replace the characters of a text that could control the terminal. Line ends stay."""
    return "\n".join(map(printable, text.split("\n")))


class Progress:
    """Shows the progress of a long command on stderr.

    A terminal shows one line that changes. If `for_logs` is true, a log gets a new line every 5 s.
    """

    def __init__(self, *, for_logs: bool = True) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._for_logs = for_logs
        self._is_shown = False

    @asynccontextmanager
    async def during(self, text: Callable[[], str]) -> AsyncIterator[None]:
        """While the `async with` block runs, show what `text()` returns, again and again."""
        ticker = asyncio.create_task(self._tick(text))
        try:
            yield
        finally:
            ticker.cancel()
            with suppress(asyncio.CancelledError):
                await ticker
            self.clear()

    def say(self, line: str) -> None:
        """Remove the progress line from the terminal, then print a line of data."""
        self.clear()
        say(line)

    def complain(self, message: object) -> None:
        self.clear()
        complain(message)

    def clear(self) -> None:
        if self._is_shown:
            typer.echo("\r\x1b[K", nl=False, err=True)
            self._is_shown = False

    async def _tick(self, text: Callable[[], str]) -> None:
        if not self._is_terminal and not self._for_logs:
            return
        pause = TERMINAL_SECONDS if self._is_terminal else LOG_SECONDS
        due = monotonic() + pause
        while True:
            await asyncio.sleep(max(due - monotonic(), 0.01))
            due = monotonic() + pause
            if self._is_terminal:
                line = cut(text(), shutil.get_terminal_size().columns - 1)
                typer.echo(f"\r\x1b[K{line}", nl=False, err=True)
                self._is_shown = True
            else:
                typer.echo(text(), err=True)
