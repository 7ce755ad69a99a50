"""Folding: what becomes one box, and what does not."""

from __future__ import annotations

import pytest

from drawing.shapes import SHAPES, at_random, large, picture
from flowfabric.core.states import GroupPolicy, GroupState, PublicState, Resolution
from flowfabric.drawing.folding import fold, neighbours, topological
from flowfabric.drawing.picture import Box, Joint, Line, Picture


def fan(width: int, **options) -> Picture:
    links = [
        *((0, at) for at in range(1, width + 1)),
        *((at, width + 1) for at in range(1, width + 1)),
    ]
    options.setdefault("task", lambda at: "t.work" if 0 < at <= width else f"t.{at}")
    return picture(width + 2, links, **options)


def names(folded: Picture) -> list[str]:
    return [box.title for box in folded.boxes]


def test_many_siblings_become_one():
    assert names(fold(fan(9))) == ["node 0", "node × 9", "node 10"]
    assert fold(fan(9)).lines == [Line(0, 1), Line(1, 2)]


def test_few_siblings_stay():
    assert fold(fan(8)) == fan(8)


def test_siblings_of_another_task_stay_beside():
    folded = fold(fan(20, task=lambda at: f"t.{at % 2}" if 0 < at <= 20 else f"end.{at}"))
    assert [box.count for box in folded.boxes] == [1, 10, 10, 1]


def test_one_with_another_upstream_is_no_sibling():
    shown = fan(20)
    lines = [*shown.lines, Line(1, 5)]
    folded = fold(Picture(title="x", boxes=shown.boxes, lines=lines))
    assert [box.count for box in folded.boxes] == [1, 1, 18, 1, 1]


def test_one_in_another_group_is_no_sibling():
    shown = fan(20)
    lines = [
        Line(line.upstream, line.downstream, 1) if line.upstream == 3 else line
        for line in shown.lines
    ]
    folded = fold(Picture(title="x", boxes=shown.boxes, lines=lines))
    assert [box.count for box in folded.boxes] == [1, 19, 1, 1]


def test_states_are_counted_and_the_unwell_named():
    states = {1: PublicState.FAILED, 2: PublicState.ACTIVE, 3: PublicState.FAILED}
    box = fold(fan(12, state=lambda at: states.get(at, PublicState.COMPLETED))).boxes[1]
    assert box.states == (
        (PublicState.FAILED, 2),
        (PublicState.ACTIVE, 1),
        (PublicState.COMPLETED, 9),
    )
    assert box.named == ("node 1", "node 3")


@pytest.mark.parametrize(
    ("name", "task", "shown"),
    [
        ("resize {}", "photos.resize", "resize"),
        ("resize[{}]", "photos.resize", "resize"),
        ("resize-{}.jpg", "photos.resize", "resize"),
        ("{}.jpg", "photos.resize", "resize"),
        ("photo {} of many", "photos.resize", "photo"),
    ],
)
def test_the_name_is_what_the_names_have_in_common(name, task, shown):
    boxes = [Box(name=name.format(at), task=task) for at in range(9)]
    assert fold(Picture(title="x", boxes=boxes)).boxes[0].name == shown


def test_a_joint_keeps_its_numbers_when_its_upstreams_are_folded():
    shown = fan(20)
    joint = Joint(21, 0, GroupPolicy.QUORUM, 2, 20, GroupState.PENDING)
    folded = fold(Picture(title="x", boxes=shown.boxes, lines=shown.lines, joints=[joint]))
    assert folded.joints == [Joint(2, 0, GroupPolicy.QUORUM, 2, 20, GroupState.PENDING)]
    assert folded.joints[0].label == "2 of 20"


def test_lines_that_become_one_are_as_alive_as_the_most_alive():
    shown = fan(10)
    kinds = [Resolution.IMPOSSIBLE, Resolution.UNSATISFIED, Resolution.SATISFIED]
    lines = [
        Line(line.upstream, line.downstream, 0, kinds[at % 3])
        for at, line in enumerate(shown.lines)
    ]
    folded = fold(Picture(title="x", boxes=shown.boxes, lines=lines))
    assert {line.resolution for line in folded.lines} == {Resolution.SATISFIED}


def test_equal_branches_become_one_only_when_there_are_too_many_boxes():
    folded = fold(large(1_000, "branches"))
    assert [box.count for box in folded.boxes if box.is_folded] == [332, 332, 332]
    assert folded.note.endswith("branches of the same shape are drawn as one.")
    few = large(200, "branches")
    assert fold(few) == few


def test_of_a_long_row_the_first_and_the_last_are_kept():
    folded = fold(large(1_000, "chain of many tasks"))
    assert [box.count for box in folded.boxes] == [1, 998, 1]
    assert folded.boxes[0].name == "node 0"
    assert folded.boxes[2].name == "node 999"


@pytest.mark.parametrize("shape", SHAPES)
def test_whatever_is_folded_stays_a_graph_without_circles(shape):
    shown = large(3_000, shape)
    folded = fold(shown)
    ups, downs = neighbours(folded)
    assert len(topological(ups, downs)) == len(folded.boxes)
    assert folded.size == shown.size
    assert dict(folded.states) == dict(shown.states)
    assert len(folded.boxes) <= 250


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_lost_by_folding_hard(seed):
    shown = at_random(seed)
    for most in (1, 5, 20):
        folded = fold(shown, siblings=2, most_boxes=most)
        assert folded.size == shown.size
        assert dict(folded.states) == dict(shown.states)
        ups, downs = neighbours(folded)
        assert len(topological(ups, downs)) == len(folded.boxes)
