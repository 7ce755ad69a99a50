"""Format records as a table, or one record as lines of title and value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from flowfabric.drawing.text import Cell, Screen, Styled, cut, paint, text_of, text_width

_GAP = "  "
_Record = TypeVar("_Record")


@dataclass(frozen=True, slots=True)
class Column(Generic[_Record]):
    """A column of a table. `cell` makes the cell of a record.

    If the table is too wide, its columns are made narrower, each down to the width `least`. If
    `least` is None, the column keeps its width. If the table is still too wide, columns are
    dropped, the highest `drop` first; a column with `drop` 0 stays. If `keeps_end` is true, a text
    that is too long loses its beginning, not its end.
    """

    title: str
    cell: Callable[[_Record], Cell]
    least: int | None = None
    is_number: bool = False
    drop: int = 0
    keeps_end: bool = False
    is_shown: bool = True


def table(
    columns: Sequence[Column[_Record]], records: Sequence[_Record], screen: Screen
) -> list[str]:
    """Return the lines of a table. On a narrow screen, cut cells and drop columns."""
    columns = [column for column in columns if column.is_shown]
    rows = [[column.cell(record) for column in columns] for record in records]
    texts = [[text_of(cell) for cell in row] for row in rows]
    natural = [
        max([len(column.title), *(text_width(row[index]) for row in texts)])
        for index, column in enumerate(columns)
    ]
    width = screen.width
    shown = list(range(len(columns)))
    while width is not None and len(shown) > 1 and _least(columns, natural, shown) > width:
        droppable = [index for index in shown if columns[index].drop]
        if not droppable:
            break
        shown.remove(max(droppable, key=lambda index: columns[index].drop))
    widths = {index: natural[index] for index in shown}
    if width is not None:
        _shrink(columns, widths, width)

    def line(row: Sequence[str], cells: Sequence[Cell]) -> str:
        parts = (_fit(row[index], widths[index], columns[index]) for index in shown)
        painted = (
            paint(cells[index], screen, part) for index, part in zip(shown, parts, strict=True)
        )
        return _GAP.join(painted).rstrip()

    titles = [column.title for column in columns]
    return [line(titles, titles), *map(line, texts, rows)]


def record(
    facts: Iterable[tuple[str, Cell | Sequence[Cell] | None]], screen: Screen, *, indent: int = 0
) -> list[str]:
    """Return the lines of one record. Each line is a title and a text; empty facts are omitted."""
    known = [
        (title, [cells] if isinstance(cells, str | Styled) else cells)
        for title, cells in facts
        if cells
    ]
    width = max((len(title) for title, _ in known), default=0)
    lines = []
    for title, cells in known:
        text = _GAP.join(paint(cell, screen) for cell in cells)
        lines.append(f"{' ' * indent}{title:<{width}}{_GAP}{text}".rstrip())
    return lines


def _least(columns: Sequence[Column[_Record]], natural: Sequence[int], shown: Sequence[int]) -> int:
    least = (
        natural[index]
        if (column := columns[index]).least is None
        else min(natural[index], column.least)
        for index in shown
    )
    return sum(least) + len(_GAP) * (len(shown) - 1)


def _shrink(columns: Sequence[Column[_Record]], widths: dict[int, int], width: int) -> None:
    """Make columns narrower, always the widest that can be cut, until the table fits."""
    while sum(widths.values()) + len(_GAP) * (len(widths) - 1) > width:
        candidates = [
            index
            for index, present in widths.items()
            if (least := columns[index].least) is not None and present > least
        ]
        if not candidates:
            return
        widths[max(candidates, key=lambda index: widths[index])] -= 1


def _fit(text: str, width: int, column: Column[_Record]) -> str:
    text = cut(text[::-1], width)[::-1] if column.keeps_end else cut(text, width)
    blanks = " " * (width - text_width(text))
    return blanks + text if column.is_number else text + blanks
