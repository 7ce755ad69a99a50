"""Text for a terminal: width, colours, and safe characters."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, replace
from typing import TypeAlias

from flowfabric.core.text import printable as printable

_COLOURS = {"red": 31, "green": 32, "yellow": 33, "cyan": 36}


@dataclass(frozen=True, slots=True)
class Screen:
    """What a screen can show. The default is for a file or a pipe: any width, no colours."""

    width: int | None = None
    has_colour: bool = False
    is_ascii: bool = False

    def narrowed(self, indent: int) -> Screen:
        """Return the same screen, but `indent` columns narrower."""
        return self if self.width is None else replace(self, width=self.width - indent)


@dataclass(frozen=True, slots=True)
class Styled:
    """A text, and the colour in which a screen with colours shows it."""

    text: str
    colour: str


Cell: TypeAlias = str | Styled


def cell(text: str, colour: str | None) -> Cell:
    """Return a text with its colour, if any."""
    return Styled(text, colour) if colour else text


def text_of(cell: Cell) -> str:
    """Return the text of a cell without its colour, safe to print."""
    return printable(cell.text if isinstance(cell, Styled) else cell)


def paint(cell: Cell, screen: Screen, text: str | None = None) -> str:
    """Return the text of a cell in the colour of the cell.

    If `text` is given, return it instead of the text of the cell, for example a shorter form.
    """
    text = text_of(cell) if text is None else text
    if not text or not screen.has_colour or not isinstance(cell, Styled):
        return text
    return f"\x1b[{_COLOURS[cell.colour]}m{text}\x1b[0m"


def text_width(text: str) -> int:
    """Return how wide a text is on a terminal, in columns."""
    return len(text) if text.isascii() else sum(map(_char_width, text))


def cut(text: str, width: int) -> str:
    """Return the text, cut with an ellipsis if it is wider than `width`."""
    if text_width(text) <= width:
        return text
    room, kept = width - 1, ""
    for ch in text:
        room -= _char_width(ch)
        if room < 0:
            break
        kept += ch
    return kept + "…"


def _char_width(ch: str) -> int:
    if unicodedata.combining(ch):
        return 0
    return 2 if unicodedata.east_asian_width(ch) in ("W", "F") else 1


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun: 1 member, 3 members."""
    return f"{number} {noun if number == 1 else noun + 's'}"
