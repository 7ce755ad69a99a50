"""The layered drawing: what must hold for every graph, and that it looks as it should for some."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest

from drawing.shapes import at_random, picture
from flowfabric.drawing.folding import fold
from flowfabric.drawing.layers import BOX_GAP, Segment, Size, Wire, arrange
from flowfabric.drawing.svg import Plan, plan

SEEDS = range(40)
# A line may touch the rim of what it begins or ends at.
RIM = 0.75


@pytest.fixture(params=SEEDS, scope="module")
def drawn(request) -> Plan:
    return plan(fold(at_random(request.param), siblings=1000))


def frame(drawn: Plan, place: int) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of a box; joints above it belong to it."""
    at, size = drawn.layout.boxes[place], drawn.sizes[place]
    return (
        at.x - size.width / 2,
        at.y - size.head,
        at.x + size.width / 2,
        at.y + size.height,
    )


def points(segment: Segment, steps: int = 24) -> list[tuple[float, float]]:
    """Points along a segment, drawn as svg.py does."""
    a, b = segment.start, segment.end
    bend_to = min(segment.bend_to, b.y)
    middle = (segment.bend_from + bend_to) / 2
    found = [(a.x, a.y)]
    for step in range(steps + 1):
        t = step / steps
        weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
        xs, ys = (a.x, a.x, b.x, b.x), (segment.bend_from, middle, middle, bend_to)
        found.append(
            (
                sum(w * x for w, x in zip(weights, xs, strict=True)),
                sum(w * y for w, y in zip(weights, ys, strict=True)),
            )
        )
    rest = [(b.x, bend_to + (b.y - bend_to) * step / 8) for step in range(9)]
    return [*found, *rest]


def test_no_two_boxes_overlap(drawn):
    frames = [frame(drawn, place) for place in range(len(drawn.sizes))]
    for (left, top, right, bottom), (left2, top2, right2, bottom2) in combinations(frames, 2):
        is_apart = right <= left2 or right2 <= left or bottom <= top2 or bottom2 <= top
        assert is_apart


def test_every_line_goes_down_through_the_layers(drawn):
    layers = drawn.layout.layers
    assert all(layers[line.upstream] < layers[line.downstream] for line in drawn.picture.lines)
    for segment in drawn.layout.segments:
        assert segment.start.y <= segment.bend_from < segment.bend_to <= segment.end.y


def test_every_line_leads_from_its_upstream_to_its_downstream(drawn):
    ways: dict[int, list[Segment]] = {}
    for segment in drawn.layout.segments:
        for wire in segment.wires:
            ways.setdefault(wire, []).append(segment)
    for index, line in enumerate(drawn.picture.lines):
        way = sorted(ways[index], key=lambda segment: segment.start.y)
        left, _, right, bottom = frame(drawn, line.upstream)
        assert left < way[0].start.x < right
        assert way[0].start.y == pytest.approx(bottom)
        for upper, lower in pairwise(way):
            assert (upper.end.x, upper.end.y) == (lower.start.x, lower.start.y)
        left, top, right, _ = frame(drawn, line.downstream)
        assert left < way[-1].end.x < right
        assert way[-1].end.y == pytest.approx(top)


def test_no_line_runs_through_a_box(drawn):
    frames = [frame(drawn, place) for place in range(len(drawn.sizes))]
    for segment in drawn.layout.segments:
        for x, y in points(segment):
            for left, top, right, bottom in frames:
                is_inside = left + RIM < x < right - RIM and top + RIM < y < bottom - RIM
                assert not is_inside, (x, y)


def test_everything_lies_on_the_sheet(drawn):
    layout = drawn.layout
    for place in range(len(drawn.sizes)):
        left, top, right, bottom = frame(drawn, place)
        assert left >= -0.01
        assert top >= -0.01
        assert right <= layout.width + 0.01
        assert bottom <= layout.height + 0.01
    for segment in layout.segments:
        assert all(0 <= x <= layout.width for x, _ in points(segment))


def test_the_same_picture_is_placed_the_same_way():
    assert plan(at_random(5)).layout == plan(at_random(5)).layout


def test_a_chain_is_a_straight_line():
    layout = plan(picture(6, [(at, at + 1) for at in range(5)])).layout
    assert len({box.x for box in layout.boxes}) == 1
    assert layout.layers == [0, 1, 2, 3, 4, 5]


def test_a_diamond_is_symmetric():
    links = [(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4)]
    sizes = [Size(100, 40)] * 5
    layout = arrange(sizes, [Wire(up, down) for up, down in links])
    top, left, middle, right, end = (box.x for box in layout.boxes)
    assert top == middle == end
    assert middle - left == right - middle == 100 + BOX_GAP


def test_a_line_past_other_boxes_is_straight():
    """a - b - c - d, and a - d beside them."""
    layout = arrange([Size(80, 30)] * 4, [Wire(0, 1), Wire(1, 2), Wire(2, 3), Wire(0, 3)])
    passing = [segment for segment in layout.segments if 3 in segment.wires]
    assert len(passing) == 3
    assert passing[0].end.x == passing[1].start.x == passing[1].end.x


def test_lines_that_pass_layers_together_share_a_trunk():
    """One box feeds ten, four layers below: nine lines less."""
    chain = [(0, 1), (1, 2), (2, 3)]
    links = chain + [(3, at) for at in range(4, 14)] + [(0, at) for at in range(4, 14)]
    layout = arrange([Size(60, 30)] * 14, [Wire(up, down) for up, down in links])
    trunk = [segment for segment in layout.segments if len(segment.wires) == 10]
    assert len(trunk) == 3


def test_a_start_that_is_needed_late_is_drawn_late():
    """A chain of five, and a box that only its last one waits for."""
    links = [(0, 1), (1, 2), (2, 3), (3, 4), (5, 4)]
    assert plan(picture(6, links)).layout.layers == [0, 1, 2, 3, 4, 3]


def test_a_wide_layer_is_broken_into_several():
    layout = plan(picture(101, [(0, at) for at in range(1, 101)])).layout
    widest = max(layout.layers.count(layer) for layer in set(layout.layers))
    assert widest <= 14


def test_lines_in_a_cycle_are_refused():
    with pytest.raises(ValueError, match="cycle"):
        arrange([Size(10, 10)] * 2, [Wire(0, 1), Wire(1, 0)])
