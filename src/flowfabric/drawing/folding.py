"""Folds the picture of a flow: draws several similar boxes as one box.

First, many boxes with the same task and the same neighbours become one box. If the picture is still
too large, parts of the flow with the same shape are folded, then long chains, then whole stages.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence

from flowfabric.core.states import PublicState, Resolution
from flowfabric.drawing.picture import (
    NAMED,
    Box,
    Joint,
    Line,
    Picture,
    grouped,
    in_order,
    short_name,
)

# At least this many siblings become one box.
SIBLINGS = 9
# The limits of a folded picture.
MOST_BOXES = 250
MOST_LINES = 1_000
# The limits of a picture without folding.
MOST_UNFOLDED_BOXES = 800
MOST_UNFOLDED_LINES = 2_000

_BRANCHES = 3
_ROW = 4
_STAGES = 60
_TASKS = 4
_UNWELL = (PublicState.FAILED, PublicState.EXPIRED)
# A merged line shows the first of these resolutions that any of its lines has.
_LIVELY = (Resolution.SATISFIED, Resolution.UNSATISFIED, Resolution.IMPOSSIBLE, None)
_TAIL = re.compile(r"[\s\d\-_.,:;#/\\(\[{]+$")


def fold(
    picture: Picture,
    *,
    siblings: int = SIBLINGS,
    most_boxes: int = MOST_BOXES,
    most_lines: int = MOST_LINES,
) -> Picture:
    """Return the picture with similar boxes merged.

    Siblings are boxes with the same task, upstreams and downstreams. They become one box if there
    are at least `siblings` of them. If the picture then still has more than `most_boxes` boxes or
    `most_lines` lines, it is folded further, and its note says how.
    """
    size = picture.size
    picture = _merged(picture, _siblings(picture), siblings)
    if _fits(picture, most_boxes, most_lines):
        return picture
    steps: Sequence[tuple[Callable[[Picture], list[Hashable]], int, str]] = (
        (_branches, _BRANCHES, "branches of the same shape are drawn as one"),
        (_rows, _ROW, "branches of the same shape and long rows are drawn as one"),
        (_stages, 1, "whole stages are drawn as one"),
        (_stages_alone, 1, "whole stages are drawn as one"),
    )
    note = ""
    for keys, least, step_note in steps:
        picture, note = _merged(picture, keys(picture), least), step_note
        if _fits(picture, most_boxes, most_lines):
            break
    if not _fits(picture, most_boxes, most_lines):
        picture = _without_shortcuts(picture)
        note += ", and lines that a longer path implies are omitted"
    return Picture(
        title=picture.title,
        state=picture.state,
        boxes=picture.boxes,
        lines=picture.lines,
        joints=picture.joints,
        note=f"{_count(size, 'node')} in {_count(len(picture.boxes), 'box')}: {note}.",
    )


def unfolded(picture: Picture) -> Picture:
    """Return the picture unchanged. But if it has too many boxes or lines to draw, fold it."""
    if _fits(picture, MOST_UNFOLDED_BOXES, MOST_UNFOLDED_LINES):
        return picture
    return fold(picture)


def neighbours(picture: Picture) -> tuple[list[list[int]], list[list[int]]]:
    """Return the upstreams and the downstreams of every box, without duplicates."""
    ups: list[dict[int, None]] = [{} for _ in picture.boxes]
    downs: list[dict[int, None]] = [{} for _ in picture.boxes]
    for line in picture.lines:
        ups[line.downstream][line.upstream] = None
        downs[line.upstream][line.downstream] = None
    return [list(boxes) for boxes in ups], [list(boxes) for boxes in downs]


def topological(ups: Sequence[Sequence[int]], downs: Sequence[Sequence[int]]) -> list[int]:
    """Sort the boxes so that each box comes after its upstreams.

    Leave out the boxes of a cycle and all boxes below them.
    """
    waits = [len(boxes) for boxes in ups]
    order = [index for index, count in enumerate(waits) if not count]
    for index in order:
        for other in downs[index]:
            waits[other] -= 1
            if not waits[other]:
                order.append(other)
    return order


def depths(order: Sequence[int], ups: Sequence[Sequence[int]], size: int) -> list[int]:
    """Return for every box the number of boxes above it on the longest path that leads to it."""
    found = [0] * size
    for index in order:
        found[index] = max((found[up] + 1 for up in ups[index]), default=0)
    return found


def _fits(picture: Picture, boxes: int, lines: int) -> bool:
    if len(picture.boxes) > boxes:
        return False
    return len({(line.upstream, line.downstream) for line in picture.lines}) <= lines


def _count(number: int, noun: str) -> str:
    plural = f"{noun}es" if noun.endswith("x") else f"{noun}s"
    return f"{grouped(number)} {noun if number == 1 else plural}"


# Functions that return a key for every box. Boxes with the same key may be merged.


def _siblings(picture: Picture) -> list[Hashable]:
    """Return a key for every box.

    Boxes have the same key if they have the same task, the same edge groups with the same
    upstreams, and the same downstreams.
    """
    ups: list[list[tuple[int, int]]] = [[] for _ in picture.boxes]
    downs: list[list[tuple[int, int]]] = [[] for _ in picture.boxes]
    for line in picture.lines:
        ups[line.downstream].append((line.group, line.upstream))
        downs[line.upstream].append((line.group, line.downstream))
    joints = _policies(picture)
    return [
        (_kind(box), joints[index], tuple(sorted(ups[index])), tuple(sorted(downs[index])))
        for index, box in enumerate(picture.boxes)
    ]


def _branches(picture: Picture) -> list[Hashable]:
    """Return a key for every box.

    Boxes have the same key if they have the same task, and what is above and below them has the
    same shape.
    """
    ups, downs = neighbours(picture)
    order = topological(ups, downs)
    joints = _policies(picture)
    numbers: dict[Hashable, int] = {}

    def number(key: Hashable) -> int:
        return numbers.setdefault(key, len(numbers))

    colours = [number((_kind(box), joints[index])) for index, box in enumerate(picture.boxes)]
    for sides, walk in ((ups, order), (downs, order[::-1]), (ups, order), (downs, order[::-1])):
        for index in walk:
            around = tuple(sorted({colours[other] for other in sides[index]}))
            colours[index] = number((colours[index], around))
    return list(colours)


def _rows(picture: Picture) -> list[Hashable]:
    """Return a key for every box. The boxes of a chain, without its two ends, have the same key.

    In a chain, every box except the first has exactly one upstream, and every box except the last
    has exactly one downstream.
    """
    ups, downs = neighbours(picture)
    head = list(range(len(picture.boxes)))
    tail: dict[int, int] = {}
    for index in topological(ups, downs):
        if len(ups[index]) == 1 and len(downs[ups[index][0]]) == 1:
            head[index] = head[ups[index][0]]
            tail[head[index]] = index
    ends = {*tail, *tail.values()}
    return [("end", index) if index in ends else ("row", its) for index, its in enumerate(head)]


def _stages(picture: Picture) -> list[Hashable]:
    """Return a key for every box: its stage, with its task if there are few stages and few tasks.

    The stage is the number that `depths` returns. In a deep picture, several numbers are one stage.
    """
    stages = _stages_alone(picture)
    # With many stages, one key covers several stages. Boxes with this key may wait for each other.
    if len(set(stages)) >= _STAGES or len({box.task for box in picture.boxes}) > _TASKS:
        return stages
    return [(stage, box.task) for stage, box in zip(stages, picture.boxes, strict=True)]


def _stages_alone(picture: Picture) -> list[Hashable]:
    ups, downs = neighbours(picture)
    found = depths(topological(ups, downs), ups, len(picture.boxes))
    number = max(found, default=0) + 1
    if number <= _STAGES:
        return list(found)
    return [depth * _STAGES // number for depth in found]


def _kind(box: Box) -> str:
    """Return the task of a box, or else its name. The text also says if the box is folded."""
    return f"{box.task or box.name}\n{'many' if box.is_folded else ''}"


def _policies(picture: Picture) -> list[Hashable]:
    found: list[list[Hashable]] = [[] for _ in picture.boxes]
    for joint in picture.joints:
        found[joint.box].append((joint.group, joint.group_policy, joint.needed, joint.total))
    return [tuple(policies) for policies in found]


# Merging


def _merged(picture: Picture, keys: Sequence[Hashable], least: int) -> Picture:
    """Return the picture, with boxes merged if at least `least` of them have the same key."""
    members: dict[Hashable, list[int]] = defaultdict(list)
    for index, key in enumerate(keys):
        members[key].append(index)
    indexes: dict[Hashable, int] = {}
    target = [0] * len(picture.boxes)
    boxes: list[Box] = []
    for index, key in enumerate(keys):
        alike = members[key]
        if len(alike) < max(least, 2):
            target[index] = len(boxes)
            boxes.append(picture.boxes[index])
        elif key in indexes:
            target[index] = indexes[key]
        else:
            target[index] = indexes[key] = len(boxes)
            boxes.append(_merged_box([picture.boxes[member] for member in alike]))
    if len(boxes) == len(picture.boxes):
        return picture
    lines: dict[tuple[int, int, int], Resolution | None] = {}
    for line in picture.lines:
        at = (target[line.upstream], target[line.downstream], line.group)
        if at[0] == at[1]:
            continue
        known = lines.setdefault(at, line.resolution)
        if _LIVELY.index(line.resolution) < _LIVELY.index(known):
            lines[at] = line.resolution
    joints: dict[tuple[int, int], Joint] = {}
    for joint in picture.joints:
        box = target[joint.box]
        moved = Joint(box, joint.group, joint.group_policy, joint.needed, joint.total, joint.state)
        known_joint = joints.setdefault((box, joint.group), moved)
        if known_joint.state is not moved.state:
            joints[box, joint.group] = Joint(
                box, joint.group, joint.group_policy, joint.needed, joint.total
            )
    kept = {(at[1], at[2]) for at in lines}
    return Picture(
        title=picture.title,
        state=picture.state,
        boxes=boxes,
        lines=[Line(*at, resolution) for at, resolution in lines.items()],
        joints=[joint for at, joint in joints.items() if at in kept],
        note=picture.note,
    )


def _merged_box(boxes: Sequence[Box]) -> Box:
    tasks = {box.task for box in boxes}
    task = boxes[0].task if len(tasks) == 1 else ""
    unwell = [
        name
        for box in boxes
        for name in (box.named if box.is_folded else (box.name,) if box.state in _UNWELL else ())
    ]
    return Box(
        name=_common([box.name for box in boxes], task),
        task=task,
        counts=in_order(pair for box in boxes for pair in box.states),
        count=sum(box.count for box in boxes),
        named=tuple(unwell[:NAMED]),
        took=max((box.took for box in boxes if box.took is not None), default=None),
    )


def _common(names: Sequence[str], task: str) -> str:
    """Return one name for several boxes.

    Return the common beginning of their names if it is long enough, otherwise their task. If
    `task` is empty, return the first and the last name instead of the task.
    """
    low, high = min(names), max(names)
    same = next((at for at, ch in enumerate(low) if high[at : at + 1] != ch), len(low))
    prefix = low[:same]
    if any(len(name) > len(prefix) for name in names):
        prefix = _TAIL.sub("", prefix)
    if len(prefix) >= 2 and (not task or len(prefix) >= 4 or prefix == short_name(task)):
        return prefix
    return short_name(task) if task else f"{names[0]} … {names[-1]}"


def _without_shortcuts(picture: Picture) -> Picture:
    """Remove a line if a longer path also connects its two boxes."""
    ups, downs = neighbours(picture)
    order = topological(ups, downs)
    rank = {index: number for number, index in enumerate(order)}
    below = [0] * len(picture.boxes)
    kept: set[tuple[int, int]] = set()
    for index in reversed(order):
        reached = 0
        for down in sorted(downs[index], key=lambda box: rank[box]):
            if not reached >> down & 1:
                kept.add((index, down))
            reached |= below[down] | 1 << down
        below[index] = reached
    return Picture(
        title=picture.title,
        state=picture.state,
        boxes=picture.boxes,
        lines=[line for line in picture.lines if (line.upstream, line.downstream) in kept],
        joints=picture.joints,
        note=picture.note,
    )
