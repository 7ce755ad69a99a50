"""What commands print: tables that fit the terminal, JSON lines, and progress on stderr.

stdout is data, stderr is talk. Colour only on a terminal, and never with NO_COLOR.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import unicodedata
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from time import monotonic
from typing import Any, TextIO, TypeAlias

import typer

# How often progress is told: on a terminal, and to a log.
TERMINAL_SECONDS = 0.2
LOG_SECONDS = 5.0

_GAP = "  "


class Output(StrEnum):
    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    ID = "id"


class Form(StrEnum):
    """For commands that do not list executions."""

    TABLE = "table"
    JSON = "json"


OUTPUT_OPTION = typer.Option(
    None,
    "-o",
    "--output",
    help="wide: more columns, nothing cut; json: an object a line; id: only ids. "
    "Default: table on a terminal, JSON otherwise.",
    show_default=False,
)
FORM_OPTION = typer.Option(
    None,
    "-o",
    "--output",
    help="json is an object a line. Default: table on a terminal, JSON otherwise.",
    show_default=False,
)


def is_json(form: Form | None) -> bool:
    return form is Form.JSON or (form is None and not sys.stdout.isatty())


# Tables


@dataclass(frozen=True, slots=True)
class Column:
    """`least` is how far it may be cut, None not at all; the highest `drop` goes first.

    What `keeps_end` is cut at its beginning.
    """

    title: str
    least: int | None = None
    is_number: bool = False
    drop: int = 0
    keeps_end: bool = False


@dataclass(frozen=True, slots=True)
class Styled:
    """A text with a colour, where there are colours."""

    text: str
    colour: str


Cell: TypeAlias = str | Styled


def table_width() -> int | None:
    """How wide a table may be; None where nobody looks and nothing should be cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int | None
) -> list[str]:
    """The lines of a table: cut, and at last with columns left out, to fit the width."""
    texts = [[printable(_text(cell)) for cell in row] for row in rows]
    natural = [
        max([len(column.title), *(text_width(row[index]) for row in texts)])
        for index, column in enumerate(columns)
    ]
    shown = list(range(len(columns)))
    while width is not None and len(shown) > 1 and _least(columns, natural, shown) > width:
        droppable = [index for index in shown if columns[index].drop]
        if not droppable:
            break
        shown.remove(max(droppable, key=lambda index: columns[index].drop))
    widths = dict(zip(shown, (natural[index] for index in shown), strict=True))
    if width is not None:
        _shrink(columns, widths, width)
    lines = [
        _GAP.join(_fit(columns[index].title, widths[index], columns[index]) for index in shown)
    ]
    for row, cells in zip(texts, rows, strict=True):
        parts = []
        for index in shown:
            part = _fit(row[index], widths[index], columns[index])
            cell = cells[index]
            parts.append(styled(part, cell.colour) if isinstance(cell, Styled) else part)
        lines.append(_GAP.join(parts))
    return [line.rstrip() for line in lines]


def styled(text: str, colour: str) -> str:
    return typer.style(text, fg=colour) if has_colour(sys.stdout) else text


def has_colour(stream: TextIO) -> bool:
    return (
        stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") != "dumb"
    )


def printable(text: str) -> str:
    """On one line, and without what could steer the terminal."""
    return "".join(
        " " if ch in "\n\r\t" else "?" if unicodedata.category(ch) in ("Cc", "Cf", "Cs") else ch
        for ch in text
    )


def text_width(text: str) -> int:
    """How many columns of a terminal a text takes."""
    return len(text) if text.isascii() else sum(map(_char_width, text))


def cut(text: str, width: int) -> str:
    """The text, or as much of it as fits, with an ellipsis."""
    if text_width(text) <= width:
        return text
    room, kept = width - 1, ""
    for ch in text:
        room -= _char_width(ch)
        if room < 0:
            break
        kept += ch
    return kept + "…"


def _text(cell: Cell) -> str:
    return cell.text if isinstance(cell, Styled) else cell


def _char_width(ch: str) -> int:
    if unicodedata.combining(ch):
        return 0
    return 2 if unicodedata.east_asian_width(ch) in ("W", "F") else 1


def _least(columns: Sequence[Column], natural: Sequence[int], shown: Sequence[int]) -> int:
    least = (
        natural[index]
        if (column := columns[index]).least is None
        else min(natural[index], column.least)
        for index in shown
    )
    return sum(least) + len(_GAP) * (len(shown) - 1)


def _shrink(columns: Sequence[Column], widths: dict[int, int], width: int) -> None:
    """Take from the widest column that may give, until the table fits or none may."""
    while sum(widths.values()) + len(_GAP) * (len(widths) - 1) > width:
        giving = [
            index
            for index, present in widths.items()
            if (least := columns[index].least) is not None and present > least
        ]
        if not giving:
            return
        widths[max(giving, key=lambda index: widths[index])] -= 1


def _fit(text: str, width: int, column: Column) -> str:
    text = cut(text[::-1], width)[::-1] if column.keeps_end else cut(text, width)
    blanks = " " * (width - text_width(text))
    return blanks + text if column.is_number else text + blanks


# JSON


def json_line(facts: Mapping[str, Any]) -> str:
    """One object on one line, without what is null."""
    return json.dumps(
        {name: value for name, value in facts.items() if value is not None}, default=_plain
    )


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case set() | frozenset():
            return sorted(value)
    return str(value)


def say(line: str) -> None:
    """A line of data; what the terminal cannot show is replaced, not an error."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    typer.echo(line.encode(encoding, "replace").decode(encoding))


def complain(message: object) -> None:
    typer.echo(f"error: {message}", err=True)


# Progress


class Progress:
    """How far a long command is, on stderr: one line that changes, or a line now and then."""

    def __init__(self, *, for_logs: bool = True) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._for_logs = for_logs
        self._is_shown = False

    @asynccontextmanager
    async def telling(self, text: Callable[[], str]) -> AsyncIterator[None]:
        """Tell `text()` while the block runs, once it takes long."""
        ticker = asyncio.create_task(self._tick(text))
        try:
            yield
        finally:
            ticker.cancel()
            with suppress(asyncio.CancelledError):
                await ticker
            self.clear()

    def say(self, line: str) -> None:
        """A line of data, which the progress must not spoil."""
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
