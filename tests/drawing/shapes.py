"""Pictures for tests, by hand and at random."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from flowfabric.core.states import GroupPolicy, GroupState, PublicState, Resolution
from flowfabric.drawing.picture import Box, Joint, Line, Picture

STATES = tuple(PublicState)
RESOLUTIONS = (*Resolution, None)


def picture(
    size: int,
    links: Iterable[tuple[int, int]],
    *,
    task: Callable[[int], str] = "tasks.{}".format,
    name: Callable[[int], str] = "node {}".format,
    state: Callable[[int], PublicState | None] = lambda _: PublicState.COMPLETED,
    joints: Iterable[Joint] = (),
) -> Picture:
    return Picture(
        title="a flow",
        state="running",
        boxes=[Box(name=name(at), task=task(at), state=state(at)) for at in range(size)],
        lines=[Line(up, down) for up, down in links],
        joints=list(joints),
    )


def at_random(seed: int) -> Picture:
    """A graph with up to 70 nodes, all states, several groups a node, and names of all lengths."""
    dice = random.Random(seed)
    size = dice.randint(1, 70)
    boxes = [
        Box(
            name="n" * dice.choice((1, 5, 12, 60)) + str(at),
            task=dice.choice(("a.load", "a.very.long.name.of.a.task.that.does.not.fit", "x")),
            state=dice.choice((*STATES, None)),
        )
        for at in range(size)
    ]
    lines: dict[tuple[int, int, int], Line] = {}
    for down in range(1, size):
        for _ in range(dice.choice((0, 1, 1, 2, 3))):
            up = dice.randrange(max(0, down - dice.choice((3, 15, 70))), down)
            group = dice.choice((0, 0, 0, 1, 2))
            lines[up, down, group] = Line(up, down, group, dice.choice(RESOLUTIONS))
    joints = []
    for box, group in sorted({(line.downstream, line.group) for line in lines.values()}):
        total = sum((line.downstream, line.group) == (box, group) for line in lines.values())
        policy = dice.choice(tuple(GroupPolicy))
        state = dice.choice(tuple(GroupState))
        joints.append(Joint(box, group, policy, dice.randint(1, total), total, state))
    return Picture(
        title=f"random {seed}",
        state=dice.choice(("open", "running", "failed", "")),
        boxes=boxes,
        lines=list(lines.values()),
        joints=joints,
    )


def large(size: int, shape: str) -> Picture:
    """A flow of a shape that is likely, as large as one may be."""
    dice = random.Random(size)
    last = size - 1
    inner = range(1, last)
    match shape:
        case "fan":
            links = [*((0, at) for at in inner), *((at, last) for at in inner)]
            return picture(size, links, task=lambda at: f"t.{0 < at < last or at}")
        case "chain":
            return picture(size, [(at, at + 1) for at in range(last)], task=lambda _: "t.same")
        case "chain of many tasks":
            return picture(size, [(at, at + 1) for at in range(last)])
        case "branches":
            links = []
            for first in range(1, last - 2, 3):
                links += [(0, first), (first, first + 1), (first + 1, first + 2), (first + 2, last)]
            return picture(size, links, task=lambda at: f"t.{at % 3}" if 0 < at < last else "t.end")
        case "tree":
            return picture(size, [((at - 1) // 2, at) for at in range(1, size)])
        case "nothing connected":
            return picture(size, [])
        case "dense, near" | "dense, far":
            reach = 300 if shape == "dense, near" else size
            found = dict.fromkeys(
                (dice.randrange(max(0, at - reach), at), at)
                for at in range(1, size)
                for _ in range(5)
            )
            return picture(size, found, task=lambda at: f"t.{at % 3}")
    raise AssertionError(shape)


SHAPES = (
    *("fan", "chain", "chain of many tasks", "branches", "tree"),
    *("nothing connected", "dense, near", "dense, far"),
)
