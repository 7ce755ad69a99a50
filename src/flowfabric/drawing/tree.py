"""Draws a picture as a tree of lines, for a terminal or a log.

A box is drawn below its upstream. If it has several upstreams, its row names them, and it is drawn
below the last box that all paths to it have in common. A chain of boxes is not indented, so that a
long flow stays narrow:

    ✔ load
    ├─ ✔ price
    └─ ▶ tax
    ◌ total  ← price, tax
    ◌ send
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from flowfabric.core.states import PublicState
from flowfabric.drawing.folding import depths, fold, neighbours, topological, unfolded
from flowfabric.drawing.picture import COLOURS, SIGNS, Box, Picture, grouped, visible_joints, words
from flowfabric.drawing.text import Screen, cell, cut, paint, printable, text_width

_NO_SIGN = ("•", "*")
_FORK, _LAST, _PAST, _GAP = 0, 1, 2, 3
_ARMS = (("├─ ", "|- "), ("└─ ", "`- "), ("│  ", "|  "), ("   ", "   "))
# The widest indent, in characters. Deeper branches are not indented further.
_DEEPEST = 36
_NAMES = 8


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a tree, in parts, so that a caller can colour and cut them."""

    indent: str
    sign: str
    name: str
    state: PublicState | None
    summary: str
    task: str
    waits: str

    def __str__(self) -> str:
        parts = [f"{self.indent}{self.sign} {self.name}", self.summary, self.task, self.waits]
        return "  ".join(part for part in parts if part)


def as_tree(picture: Picture, *, is_folded: bool = True, is_ascii: bool = False) -> list[Row]:
    """Return the rows of a tree. If `is_folded` is true, similar boxes share a row."""
    return tree_of(fold(picture) if is_folded else unfolded(picture), is_ascii=is_ascii)


def tree_of(picture: Picture, *, is_ascii: bool = False) -> list[Row]:
    """Return the rows of the tree of a picture, one row for each of its boxes."""
    ups, downs = neighbours(picture)
    order = topological(ups, downs)
    kids = _dominated(order, ups, depths(order, ups, len(picture.boxes)))
    waits = _waits(picture, ups, is_ascii)
    arms = [arm[is_ascii] for arm in _ARMS]
    rows: list[Row] = []
    # Boxes to write: the box, the indent of its row, and the indent of the rows below it.
    stack: list[tuple[int, str, str]] = []

    def push(boxes: Sequence[int], rest: str, *, is_root: bool = False) -> None:
        """Push the boxes below one box onto the stack, with their indents."""
        tail = None
        if boxes:
            is_join = len(ups[boxes[-1]]) > 1 and not is_root
            if len(boxes) == 1 or (is_join and kids[boxes[-1]]):
                tail = boxes[-1]
        branches = boxes if tail is None else boxes[:-1]
        found = []
        for at, box in enumerate(branches):
            is_last = at == len(branches) - 1
            below = rest + arms[_GAP if is_last else _PAST]
            if len(below) > _DEEPEST:
                below = rest
            found.append((box, rest + arms[_LAST if is_last else _FORK], below))
        if tail is not None:
            found.append((tail, rest, rest))
        stack.extend(reversed(found))

    push(kids[-1], "", is_root=True)
    while stack:
        index, before, rest = stack.pop()
        box = picture.boxes[index]
        worst = box.states[0][0] if box.states else None
        rows.append(
            Row(
                indent=before,
                sign=(_NO_SIGN if worst is None else SIGNS[worst])[is_ascii],
                name=box.title.replace("×", "x") if is_ascii else box.title,
                state=worst,
                summary=_summary(box),
                task="" if box.task == box.name else box.task,
                waits=waits.get(index, ""),
            )
        )
        push(kids[index], rest)
    return rows


def _summary(box: Box) -> str:
    """Return the state of a box and how long it took. For a folded box, return how many members are
    in each state, and the longest time.
    """
    took = box.duration
    if box.is_folded:
        counts = ", ".join(f"{grouped(count)} {words(state)}" for state, count in box.counts)
        return f"{counts}, up to {took}" if took else counts
    if box.state is None:
        return ""
    how = "in" if box.state.is_terminal else "for"
    return f"{words(box.state)} {how} {took}" if took else words(box.state)


def tree_lines(picture: Picture, screen: Screen) -> list[str]:
    """Return the tree of a picture, coloured and cut to fit the screen."""
    return [_line(row, screen) for row in tree_of(picture, is_ascii=screen.is_ascii)]


def _line(row: Row, screen: Screen) -> str:
    """Return a row with its colours. A narrow screen drops the task first, then the upstreams."""
    name, summary, task, waits = map(printable, (row.name, row.summary, row.task, row.waits))
    if screen.width is not None:
        room = screen.width - len(row.indent) - 2
        name = cut(name, max(room, 8))
        room -= text_width(name)
        summary = cut(summary, room - 2) if room > 6 else ""
        room -= text_width(summary) + 2 if summary else 0
        waits = cut(waits, room - 2) if room > 12 else ""
        room -= text_width(waits) + 2 if waits else 0
        task = task if text_width(task) + 2 <= room else ""
    colour = None if row.state is None else COLOURS.get(row.state)
    sign, summary = (paint(cell(text, colour), screen) for text in (row.sign, summary))
    parts = (f"{row.indent}{sign} {name}", summary, task, waits)
    return "  ".join(part for part in parts if part).rstrip()


def _dominated(
    order: Sequence[int], ups: Sequence[Sequence[int]], depth: Sequence[int]
) -> dict[int, list[int]]:
    """Return, for each box, the boxes directly below it in the tree.

    A box is below the last box that all paths to it have in common. If the paths have none in
    common, the box is in the list of the key -1.
    """
    above = {-1: -1}
    height = {-1: 0}
    for index in order:
        found = None
        for up in ups[index]:
            other = up
            if found is None:
                found = up
                continue
            while found != other:
                if height[found] >= height[other]:
                    found = above[found]
                else:
                    other = above[other]
        above[index] = -1 if found is None else found
        height[index] = height[above[index]] + 1
    kids: dict[int, list[int]] = defaultdict(list)
    for index in sorted(order, key=lambda box: (depth[box], box)):
        kids[above[index]].append(index)
    return kids


def _waits(picture: Picture, ups: Sequence[Sequence[int]], is_ascii: bool) -> dict[int, str]:
    """Return, by box, the text that names its upstreams, group by group.

    A box with one upstream and without a joint gets no text.
    """
    joints = visible_joints(picture)
    groups: dict[int, dict[int, dict[int, None]]] = defaultdict(lambda: defaultdict(dict))
    for line in picture.lines:
        groups[line.downstream][line.group][line.upstream] = None
    found = {}
    for index, its in groups.items():
        labelled = [joints.get((index, group)) for group in sorted(its)]
        if len(ups[index]) < 2 and not any(labelled):
            continue
        texts = []
        for group, joint in zip(sorted(its), labelled, strict=True):
            names = [picture.boxes[up].title for up in its[group]]
            more = len(names) - _NAMES
            text = ", ".join(names[:_NAMES]) + (f" and {more} more" if more > 0 else "")
            texts.append(f"{joint.label}: {text}" if joint else text)
        found[index] = ("<- " if is_ascii else "← ") + "; ".join(texts)
    return found
