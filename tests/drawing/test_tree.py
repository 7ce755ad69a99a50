"""The tree: every node once, joins behind what they wait for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from drawing.shapes import SHAPES, at_random, large, picture
from flowfabric.core.states import GroupPolicy, PublicState
from flowfabric.drawing.picture import Box, Joint, Line, Picture
from flowfabric.drawing.tree import as_tree


def shown(names: str, links: Sequence[str], joints: Sequence[Joint] = ()) -> list[str]:
    """The lines for boxes named by letters; "ab" is a line from a to b."""
    boxes = [Box(name=name) for name in names]
    lines = [Line(names.index(link[0]), names.index(link[1])) for link in links]
    rows = as_tree(Picture(title="x", boxes=boxes, lines=lines, joints=joints))
    return [str(row) for row in rows]


def test_a_row_is_not_indented():
    assert shown("abc", ["ab", "bc"]) == ["• a", "• b", "• c"]


def test_a_join_stands_below_the_branches_it_joins():
    assert shown("abcde", ["ab", "ac", "bd", "cd", "de"]) == [
        "• a",
        "├─ • b",
        "└─ • c",
        "• d  ← b, c",
        "• e",
    ]


def test_a_join_that_ends_a_tree_is_its_last_branch():
    links = ["ab", "ac", "bd", "cd"]
    assert shown("abcd", links) == ["• a", "├─ • b", "├─ • c", "└─ • d  ← b, c"]


def test_branches_that_never_meet_end_in_a_corner():
    assert shown("abcd", ["ab", "ac", "cd"]) == ["• a", "├─ • b", "└─ • c", "   • d"]


def test_branches_inside_branches_keep_their_lines():
    assert shown("abcdef", ["ab", "bc", "bd", "ae", "ef"]) == [
        "• a",
        "├─ • b",
        "│  ├─ • c",
        "│  └─ • d",
        "└─ • e",
        "   • f",
    ]


def test_several_starts_stand_side_by_side():
    assert shown("abc", ["ac", "bc"]) == ["├─ • a", "├─ • b", "└─ • c  ← a, b"]


def test_a_join_tells_how_many_it_needs():
    joints = [Joint(3, 0, GroupPolicy.QUORUM, 2, 3)]
    assert shown("abcd", ["ad", "bd", "cd"], joints)[-1] == "└─ • d  ← 2 of 3: a, b, c"


def test_without_the_signs_it_is_plain_ascii():
    rows = as_tree(at_random(4), is_ascii=True, is_folded=False)
    assert all(str(row).isascii() for row in rows)


def test_a_fan_out_is_one_row():
    links = [*((0, at) for at in range(1, 101)), *((at, 101) for at in range(1, 101))]
    rows = as_tree(
        picture(
            102,
            links,
            task=lambda at: "t.work" if 0 < at < 101 else f"t.{at}",
            state=lambda at: PublicState.ACTIVE if at < 5 else PublicState.COMPLETED,
        )
    )
    assert [row.name for row in rows] == ["node 0", "node × 100", "node 101"]
    assert rows[1].summary == "4 active, 96 completed"


@pytest.mark.parametrize("seed", range(25))
def test_every_node_is_told_once_and_behind_what_it_waits_for(seed):
    one = at_random(seed)
    rows = as_tree(one, is_folded=False)
    places = {row.name: at for at, row in enumerate(rows)}
    assert len(places) == len(one.boxes) == len(rows)
    for line in one.lines:
        assert places[one.boxes[line.upstream].name] < places[one.boxes[line.downstream].name]


@pytest.mark.parametrize("size", [2_000, pytest.param(10_000, marks=pytest.mark.slow(short=2))])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_large_flow_is_neither_long_nor_wide(shape, size):
    rows = as_tree(large(size, shape))
    assert len(rows) <= 250
    assert max(len(row.indent) for row in rows) <= 40
