"""Computes where the boxes and the lines of a drawing go, after Sugiyama.

A layer is a row of boxes. Every line leads down, from a box to a box in a lower layer. The code
uses these words:

- wire: a line between two boxes.
- bend: a point where a wire passes through a layer.
- vertex: a box or a bend.
- joint: the point above a box where the wires of one edge group meet.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, sqrt

# Gaps between two boxes, between a box and a bend, and between two bends.
BOX_GAP = 26.0
BEND_GAP = 18.0
TRUNK_GAP = 14.0
# Gaps between two layers. The gap is larger if lines move far sideways.
LAYER_GAP = 42.0
LAYER_GAP_MOST = 130.0
COMPONENT_GAP = 56.0
# The limit of boxes per layer grows with the graph. This is the smallest limit.
WIDEST_LAYER = 14
# How far a box may move to make a line straight.
_NUDGE = 10.0
# The part of a gap that must stay free when a line is straightened, and the cost of a bent line.
_TIGHT = 0.7
_BENT = 40.0
# The limit of the work that removes crossings: a larger graph gets fewer sweeps.
_EFFORT = 60_000
# Only a graph with at most this many vertices is also placed by alignments, which take long.
_MOST_ALIGNED = 2_500
# The most rounds in which the lines pull their vertices like springs.
_SWEEPS = 40


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a box. The space above it, where its lines meet, is `head` high."""

    width: float
    height: float
    head: float = 0.0


@dataclass(frozen=True, slots=True)
class Wire:
    """A line from an upstream box to a downstream box. `port` moves its lower end to the right."""

    upstream: int
    downstream: int
    group: int = 0
    port: float = 0.0


@dataclass(frozen=True, slots=True)
class Point:
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of one or more wires, from one layer to the next.

    It moves sideways only between the heights `bend_from` and `bend_to`.
    """

    start: Point
    bend_from: float
    bend_to: float
    end: Point
    wires: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the boxes and lines of a drawing go.

    `boxes` contains the middle of each box's upper edge. `layers` contains the layer of each box,
    counted from 0 in each connected component.
    """

    width: float
    height: float
    boxes: list[Point]
    layers: list[int]
    segments: list[Segment]


def arrange(sizes: Sequence[Size], wires: Sequence[Wire]) -> Layout:
    """Compute where every box and every wire goes. The wires must not form a cycle."""
    components = _components(len(sizes), wires)
    boxes = [Point(0, 0)] * len(sizes)
    layers = [0] * len(sizes)
    segments: list[Segment] = []
    placed = [_Component(sizes, wires, members).placed() for members in components]
    area = sum(
        (layout.width + COMPONENT_GAP) * (layout.height + COMPONENT_GAP) for layout in placed
    )
    room = max([sqrt(area) * 1.5, *(layout.width for layout in placed)], default=0.0)
    x = y = row = width = 0.0
    for layout, members in zip(placed, components, strict=True):
        if x and x + layout.width > room:
            x, y, row = 0.0, y + row + COMPONENT_GAP, 0.0
        for at, member in enumerate(members):
            boxes[member] = Point(layout.boxes[at].x + x, layout.boxes[at].y + y)
            layers[member] = layout.layers[at]
        segments += (_moved(segment, x, y) for segment in layout.segments)
        width = max(width, x + layout.width)
        x, row = x + layout.width + COMPONENT_GAP, max(row, layout.height)
    return Layout(width, y + row, boxes, layers, segments)


def _moved(segment: Segment, x: float, y: float) -> Segment:
    return Segment(
        Point(segment.start.x + x, segment.start.y + y),
        segment.bend_from + y,
        segment.bend_to + y,
        Point(segment.end.x + x, segment.end.y + y),
        segment.wires,
    )


def _components(size: int, wires: Sequence[Wire]) -> list[list[int]]:
    """Return the boxes of each connected component of the graph."""
    parent = list(range(size))

    def find(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    for wire in wires:
        a, b = find(wire.upstream), find(wire.downstream)
        parent[max(a, b)] = min(a, b)
    found: dict[int, list[int]] = defaultdict(list)
    for index in range(size):
        found[find(index)].append(index)
    return list(found.values())


@dataclass(slots=True)
class _Component:
    """Computes the layout of one connected component of the graph.

    Its vertices have numbers: first the boxes, in the order of `members`, then the bends of wires.
    """

    all_sizes: Sequence[Size]
    all_wires: Sequence[Wire]
    members: Sequence[int]
    sizes: list[Size] = field(init=False)
    wires: list[tuple[int, int, Wire, int]] = field(init=False)
    layer: list[int] = field(init=False)
    widths: list[float] = field(init=False)
    rows: list[list[int]] = field(init=False)
    ups: list[list[int]] = field(init=False)
    downs: list[list[int]] = field(init=False)
    # The vertices of each wire, from its upstream to its downstream.
    ways: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        number = {member: at for at, member in enumerate(self.members)}
        self.sizes = [self.all_sizes[member] for member in self.members]
        self.wires = [
            (number[wire.upstream], number[wire.downstream], wire, index)
            for index, wire in enumerate(self.all_wires)
            if wire.upstream in number
        ]

    def placed(self) -> Layout:
        self.layer = _layered(len(self.sizes), [(a, b) for a, b, _, _ in self.wires])
        self._bend()
        self._order()
        rows, ups, downs, widths = self.rows, self.ups, self.downs, self.widths
        xs = _relaxed(rows, ups, downs, widths, self._bends)
        xs = _unbent(xs, rows, ups, downs, widths, self._bends)
        found = [_straightened(xs, rows, ups, downs, widths, self._bends)]
        if len(widths) <= _MOST_ALIGNED:
            xs = _coordinates(rows, ups, downs, widths, self._bends)
            found.append(_straightened(xs, rows, ups, downs, widths, self._bends))
        return self._drawn(min(found, key=lambda xs: _sway(xs, ups)))

    @property
    def _bends(self) -> int:
        """The number of the first bend. All lower numbers are boxes."""
        return len(self.sizes)

    def _bend(self) -> None:
        """Give every wire a bend in each layer between its two boxes.

        Wires from the same box, or to the same joint, can use the same bends.
        """
        layer = self.layer
        out: dict[int, int] = defaultdict(int)
        into: dict[tuple[int, int], int] = defaultdict(int)
        long = [(a, b, wire) for a, b, wire, _ in self.wires if layer[b] - layer[a] > 1]
        for a, b, wire in long:
            out[a] += 1
            into[b, wire.group] += 1
        self.widths = [size.width for size in self.sizes]
        bends: dict[Hashable, int] = {}
        self.ways = []
        for a, b, wire, _ in self.wires:
            way = [a]
            # Share with the wires from the same box, or with the wires to the same joint.
            to_joint = into[b, wire.group] > out[a]
            for passed in range(layer[a] + 1, layer[b]):
                key = ("to", b, wire.group, passed) if to_joint else ("from", a, passed)
                bend = bends.get(key)
                if bend is None:
                    bend = bends[key] = len(self.widths)
                    self.widths.append(0.0)
                    layer.append(passed)
                way.append(bend)
            self.ways.append([*way, b])
        ups: list[dict[int, None]] = [{} for _ in self.widths]
        downs: list[dict[int, None]] = [{} for _ in self.widths]
        for way in self.ways:
            for a, b in pairwise(way):
                downs[a][b] = None
                ups[b][a] = None
        self.ups, self.downs = (
            [list(vertices) for vertices in ups],
            [list(vertices) for vertices in downs],
        )

    def _order(self) -> None:
        """Sort each layer so that few wires cross."""
        self.rows = _first_order(self.layer, self.ups, self.downs)
        links = sum(map(len, self.downs))
        sweeps = max(4, min(24, _EFFORT // (links + len(self.widths) + 1)))
        self.rows = _uncrossed(self.rows, self.ups, self.downs, sweeps)

    def _drawn(self, xs: list[float]) -> Layout:
        left = min(x - width / 2 for x, width in zip(xs, self.widths, strict=True))
        right = max(x + width / 2 for x, width in zip(xs, self.widths, strict=True))
        # A bend at the edge needs the width of a line.
        left, right = min(left, min(xs) - 2), max(right, max(xs) + 2)
        xs = [x - left for x in xs]
        heads = [0.0] * len(self.rows)
        heights = [0.0] * len(self.rows)
        aside = [0.0] * len(self.rows)
        for vertex, size in enumerate(self.sizes):
            at = self.layer[vertex]
            heads[at] = max(heads[at], size.head)
            heights[at] = max(heights[at], size.height)
        for way in self.ways:
            for a, b in pairwise(way):
                aside[self.layer[a]] = max(aside[self.layer[a]], abs(xs[a] - xs[b]))
        tops, y = [], 0.0
        for at in range(len(self.rows)):
            tops.append(y)
            gap = round(min(LAYER_GAP_MOST, LAYER_GAP + aside[at] / 9))
            y += heads[at] + heights[at] + gap
        height = tops[-1] + heads[-1] + heights[-1]
        boxes = [
            Point(xs[vertex], tops[self.layer[vertex]] + heads[self.layer[vertex]])
            for vertex in range(len(self.sizes))
        ]
        return Layout(
            right - left,
            height,
            boxes,
            self.layer[: len(self.sizes)],
            self._segments(xs, tops, heads, heights),
        )

    def _segments(
        self, xs: list[float], tops: list[float], heads: list[float], heights: list[float]
    ) -> list[Segment]:
        """Return the segments of all wires. Several wires can have a segment in common."""
        carried: dict[tuple[int, int, float], list[int]] = defaultdict(list)
        for way, (_, _, wire, index) in zip(self.ways, self.wires, strict=True):
            for a, b in pairwise(way):
                carried[a, b, wire.port if b < self._bends else 0.0].append(index)
        found = []
        for (a, b, port), wires in carried.items():
            upper, lower = self.layer[a], self.layer[b]
            floor = tops[upper] + heads[upper] + heights[upper]
            start = floor
            if a < self._bends:
                start += self.sizes[a].height - heights[upper]
            if b < self._bends:
                end = tops[lower] + heads[lower] - self.sizes[b].head
            else:
                end = tops[lower] + heads[lower] + heights[lower]
            found.append(
                Segment(
                    Point(xs[a], start), floor, tops[lower], Point(xs[b] + port, end), tuple(wires)
                )
            )
        return found


# Layers


def _layered(size: int, links: Sequence[tuple[int, int]]) -> list[int]:
    """Return the layer of every box. A box is below all its upstreams."""
    ups: list[list[int]] = [[] for _ in range(size)]
    downs: list[list[int]] = [[] for _ in range(size)]
    for a, b in dict.fromkeys(links):
        ups[b].append(a)
        downs[a].append(b)
    waits = [len(boxes) for boxes in ups]
    order = [index for index, count in enumerate(waits) if not count]
    layer = [0] * size
    for index in order:
        for down in downs[index]:
            layer[down] = max(layer[down], layer[index] + 1)
            waits[down] -= 1
            if not waits[down]:
                order.append(down)
    if len(order) < size:
        raise ValueError("the lines form a cycle")
    # Move each box down to its downstreams. Move it up again unless more lines pull it down.
    # So the first box of a branch is near its branch, and the others are near their upstreams.
    for _ in range(8):
        known = list(layer)
        for index in reversed(order):
            if downs[index] and len(downs[index]) >= len(ups[index]):
                layer[index] = min(layer[down] for down in downs[index]) - 1
        for index in order:
            if ups[index] and len(ups[index]) >= len(downs[index]):
                layer[index] = max(layer[up] for up in ups[index]) + 1
        if layer == known:
            break
    first = min(layer)
    return _narrowed([number - first for number in layer], order, ups, downs)


def _narrowed(
    layer: list[int],
    order: Sequence[int],
    ups: Sequence[Sequence[int]],
    downs: Sequence[Sequence[int]],
) -> list[int]:
    """Limit the number of boxes in a layer: move surplus boxes to lower layers."""
    most = max(WIDEST_LAYER, ceil(1.1 * sqrt(len(layer))))
    filled: dict[int, int] = defaultdict(int)
    for number in layer:
        filled[number] += 1
    if max(filled.values()) <= most:
        return layer
    ahead = [0] * len(layer)
    for index in reversed(order):
        ahead[index] = max((ahead[down] + 1 for down in downs[index]), default=0)
    filled.clear()
    found = list(layer)
    for index in sorted(order, key=lambda box: (layer[box], -ahead[box], box)):
        wanted = max([layer[index], *(found[up] + 1 for up in ups[index])])
        while filled[wanted] >= most:
            wanted += 1
        found[index] = wanted
        filled[wanted] += 1
    return found


# Crossings


def _first_order(
    layer: Sequence[int], ups: Sequence[Sequence[int]], downs: Sequence[Sequence[int]]
) -> list[list[int]]:
    """Return the vertices of every layer, in the order of a depth-first search."""
    rows: list[list[int]] = [[] for _ in range(max(layer) + 1)]
    seen = [False] * len(layer)
    roots = [vertex for vertex in range(len(layer)) if not ups[vertex]]
    for root in roots:
        walk = [root]
        while walk:
            vertex = walk.pop()
            if seen[vertex]:
                continue
            seen[vertex] = True
            rows[layer[vertex]].append(vertex)
            walk += reversed(downs[vertex])
    return rows


def _uncrossed(
    rows: list[list[int]],
    ups: Sequence[Sequence[int]],
    downs: Sequence[Sequence[int]],
    sweeps: int,
) -> list[list[int]]:
    """Sort all layers several times, and return the order in which the fewest wires cross."""
    best, fewest = [list(row) for row in rows], _all_crossings(rows, downs)
    stale = 0
    position = [0] * len(ups)
    for row in rows:
        _number(row, position)
    for sweep in range(sweeps):
        if not fewest or stale >= 6:
            break
        is_down = sweep % 2 == 0
        sides = ups if is_down else downs
        # Every other pair of sweeps reverses vertices with equal medians.
        turn = -1 if sweep % 4 >= 2 else 1
        for row in rows[1:] if is_down else rows[-2::-1]:
            _by_medians(row, sides, position, turn)
        if len(position) <= 2_500:
            _swap(rows, ups, downs, position)
        crossings = _all_crossings(rows, downs)
        if crossings < fewest:
            best, fewest, stale = [list(row) for row in rows], crossings, 0
        else:
            stale += 1
    return best


def _number(row: Sequence[int], position: list[int]) -> None:
    for index, vertex in enumerate(row):
        position[vertex] = index


def _by_medians(
    row: list[int], sides: Sequence[Sequence[int]], position: list[int], turn: int
) -> None:
    """Sort the vertices of a layer by the median position of their neighbours (`sides`)."""
    keys: dict[int, tuple[float, float, int]] = {}
    for vertex in row:
        if sides[vertex]:
            around = sorted(position[other] for other in sides[vertex])
            middle = len(around) // 2
            median = float(around[middle])
            if len(around) % 2 == 0:
                median = (around[middle - 1] + around[middle]) / 2
            mean = sum(around) / len(around)
            keys[vertex] = (median, mean, turn * position[vertex])
    moving = iter(sorted(keys, key=lambda vertex: keys[vertex]))
    row[:] = [next(moving) if vertex in keys else vertex for vertex in row]
    _number(row, position)


def _swap(
    rows: Sequence[list[int]],
    ups: Sequence[Sequence[int]],
    downs: Sequence[Sequence[int]],
    position: list[int],
) -> None:
    """Swap vertices that are side by side in a layer, if fewer wires cross then."""
    for _ in range(4):
        is_better = False
        for row in rows:
            near = [
                (
                    sorted(position[other] for other in ups[vertex]),
                    sorted(position[other] for other in downs[vertex]),
                )
                for vertex in row
            ]
            for at in range(len(row) - 1):
                (a_up, a_down), (b_up, b_down) = near[at], near[at + 1]
                now = _crossings(a_up, b_up) + _crossings(a_down, b_down)
                if not now:
                    continue
                then = _crossings(b_up, a_up) + _crossings(b_down, a_down)
                if then < now:
                    row[at], row[at + 1] = row[at + 1], row[at]
                    near[at], near[at + 1] = near[at + 1], near[at]
                    is_better = True
            _number(row, position)
        if not is_better:
            return


def _crossings(left: Sequence[int], right: Sequence[int]) -> int:
    """Count how often the lines of two vertices cross.

    `left` and `right` are the sorted positions of the other ends of these lines.
    """
    found = passed = 0
    for end in left:
        while passed < len(right) and right[passed] < end:
            passed += 1
        found += passed
    return found


def _all_crossings(rows: Sequence[Sequence[int]], downs: Sequence[Sequence[int]]) -> int:
    found = 0
    for upper, lower in pairwise(rows):
        position = {vertex: at for at, vertex in enumerate(lower)}
        seen: list[int] = []
        for vertex in upper:
            ends = sorted(position[other] for other in downs[vertex])
            for end in ends:
                found += len(seen) - bisect_left(seen, end + 1)
            for end in ends:
                insort(seen, end)
    return found


# Coordinates


def _coordinates(
    rows: Sequence[Sequence[int]],
    ups: Sequence[Sequence[int]],
    downs: Sequence[Sequence[int]],
    widths: Sequence[float],
    bends: int,
) -> list[float]:
    """Return the x coordinate of every vertex, after Brandes and Köpf.

    It is computed from each corner of the drawing, and the two middle values are averaged.
    """
    conflicts = _conflicts(rows, ups, bends)
    found: list[list[float]] = []
    for is_up in (True, False):
        for is_left in (True, False):
            turned = [list(row if is_left else reversed(row)) for row in rows]
            if not is_up:
                turned.reverse()
            sides = ups if is_up else downs
            xs = _compact(turned, _align(turned, sides, conflicts), widths, bends)
            found.append(xs if is_left else [-x for x in xs])

    def span(xs: Sequence[float]) -> tuple[float, float]:
        low = min(x - width / 2 for x, width in zip(xs, widths, strict=True))
        return low, max(x + width / 2 for x, width in zip(xs, widths, strict=True))

    spans = [span(xs) for xs in found]
    low, high = min(spans, key=lambda span_of: span_of[1] - span_of[0])
    for at, (its_low, its_high) in enumerate(spans):
        shift = low - its_low if at % 2 == 0 else high - its_high
        found[at] = [x + shift for x in found[at]]
    middles = (sorted(four) for four in zip(*found, strict=True))
    return [round((four[1] + four[2]) / 2, 3) for four in middles]


def _conflicts(
    rows: Sequence[Sequence[int]], ups: Sequence[Sequence[int]], bends: int
) -> set[tuple[int, int]]:
    """Return the pairs of vertices that `_align` must not put below each other.

    The line between them crosses a long line, which is to stay straight.
    """
    found = set()
    for upper, lower in pairwise(rows):
        position = {vertex: at for at, vertex in enumerate(upper)}
        start, left = 0, 0
        for at, vertex in enumerate(lower):
            inner = None
            if vertex >= bends:
                inner = next((position[up] for up in ups[vertex] if up >= bends), None)
            if inner is None and at < len(lower) - 1:
                continue
            right = len(upper) - 1 if inner is None else inner
            for other in lower[start : at + 1]:
                for up in ups[other]:
                    is_inner = other >= bends and up >= bends
                    if not is_inner and not left <= position[up] <= right:
                        found.add((up, other))
            start, left = at + 1, right
    return found


def _align(
    rows: Sequence[Sequence[int]],
    sides: Sequence[Sequence[int]],
    conflicts: set[tuple[int, int]],
) -> list[int]:
    """Put the vertices into columns. Return, for each vertex, the first vertex of its column."""
    size = len(sides)
    root = list(range(size))
    position = [0] * size
    for row in rows:
        _number(row, position)
    for row in rows:
        last = -1
        for vertex in row:
            around = sorted(sides[vertex], key=lambda other: position[other])
            if not around:
                continue
            middle = (len(around) - 1) / 2
            for at in dict.fromkeys((int(middle), int(middle + 0.5))):
                other = around[at]
                if (
                    root[vertex] == vertex
                    and last < position[other]
                    and (other, vertex) not in conflicts
                    and (vertex, other) not in conflicts
                ):
                    root[vertex] = root[other]
                    last = position[other]
    return root


def _compact(
    rows: Sequence[Sequence[int]],
    root: Sequence[int],
    widths: Sequence[float],
    bends: int,
) -> list[float]:
    """Return the x coordinate of every vertex. `root` is the column of each vertex."""
    after: dict[int, dict[int, float]] = defaultdict(dict)
    before: dict[int, dict[int, float]] = defaultdict(dict)
    for row in rows:
        for left, right in pairwise(row):
            a, b = root[left], root[right]
            apart = (widths[left] + widths[right]) / 2 + _gap(left, right, bends)
            apart = max(apart, after[a].get(b, 0.0))
            after[a][b] = before[b][a] = apart
    order = _in_turn([vertex for vertex in range(len(root)) if root[vertex] == vertex], before)
    x: dict[int, float] = {}
    for block in order:
        x[block] = max((x[other] + apart for other, apart in before[block].items()), default=0.0)
    for block in reversed(order):
        room = min((x[other] - apart for other, apart in after[block].items()), default=None)
        if room is not None:
            x[block] = max(x[block], room)
    return [x[root[vertex]] for vertex in range(len(root))]


def _in_turn(blocks: Iterable[int], before: dict[int, dict[int, float]]) -> list[int]:
    """Sort columns (`blocks`) so that each comes after all columns to its left."""
    order: list[int] = []
    seen: dict[int, bool] = {}
    for block in blocks:
        walk = [block]
        while walk:
            top = walk[-1]
            if top not in seen:
                seen[top] = False
                walk += (block for block in before[top] if block not in seen)
                continue
            walk.pop()
            if not seen[top]:
                seen[top] = True
                order.append(top)
    return order


def _packed(row: Sequence[int], widths: Sequence[float], bends: int) -> list[float]:
    """Return the x coordinates of one layer, beginning with 0, with the smallest allowed gaps."""
    found = [0.0]
    for left, right in pairwise(row):
        apart = (widths[left] + widths[right]) / 2 + _gap(left, right, bends)
        found.append(found[-1] + apart)
    return found


def _relaxed(
    rows: Sequence[Sequence[int]],
    ups: Sequence[Sequence[int]],
    downs: Sequence[Sequence[int]],
    widths: Sequence[float],
    bends: int,
) -> list[float]:
    """Return the x coordinate of every vertex, computed as if the wires were springs."""
    xs = [0.0] * len(widths)
    packed = [_packed(row, widths, bends) for row in rows]
    for row, offsets in zip(rows, packed, strict=True):
        for vertex, offset in zip(row, offsets, strict=True):
            xs[vertex] = offset - offsets[-1] / 2

    def spring(a: int, b: int) -> float:
        return (1.0, 3.0, 8.0)[(a >= bends) + (b >= bends)]

    sweeps = max(8, min(_SWEEPS, 2 * _EFFORT // len(widths)))
    for sweep in range(sweeps):
        is_down = sweep % 2 == 0
        # First pull from one side only, which spreads related vertices. Then pull from both sides.
        sides = (ups, downs) if sweep >= sweeps // 2 else (ups,) if is_down else (downs,)
        for at in range(len(rows)) if is_down else reversed(range(len(rows))):
            wanted, weights = [], []
            for vertex, offset in zip(rows[at], packed[at], strict=True):
                pull = force = 0.0
                for side in sides:
                    for other in side[vertex]:
                        strength = spring(vertex, other)
                        pull += strength * xs[other]
                        force += strength
                wanted.append((pull / force if force else xs[vertex]) - offset)
                weights.append(force or 0.1)
            for vertex, offset, shift in zip(
                rows[at], packed[at], _rising(wanted, weights), strict=True
            ):
                xs[vertex] = offset + shift
    return xs


def _rising(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Change the values as little as possible until none is smaller than the one before it.

    Neighbouring values in the wrong order are replaced by their weighted average.
    """
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        mean, total, count = value, weight, 1
        while pools and pools[-1][0] > mean:
            other, its_total, its_count = pools.pop()
            mean = (other * its_total + mean * total) / (its_total + total)
            total, count = total + its_total, count + its_count
        pools.append((mean, total, count))
    return [mean for mean, _, count in pools for _ in range(count)]


def _unbent(
    xs: list[float],
    rows: Sequence[Sequence[int]],
    ups: Sequence[Sequence[int]],
    downs: Sequence[Sequence[int]],
    widths: Sequence[float],
    bends: int,
) -> list[float]:
    """Return new x coordinates, which make long lines straight where there is room."""
    xs = list(xs)
    spot = {vertex: (row, at) for row in rows for at, vertex in enumerate(row)}

    def room(vertex: int) -> tuple[float, float]:
        row, at = spot[vertex]
        low, high = float("-inf"), float("inf")
        if at > 0:
            left = row[at - 1]
            low = xs[left] + (widths[left] + widths[vertex]) / 2 + _gap(left, vertex, bends)
        if at < len(row) - 1:
            right = row[at + 1]
            high = xs[right] - (widths[right] + widths[vertex]) / 2 - _gap(vertex, right, bends)
        # Ignore rounding errors.
        return min(low, xs[vertex]), max(high, xs[vertex])

    for chain in _chains(ups, downs, bends):
        start = 0
        while start < len(chain):
            low, high = room(chain[start])
            end = start + 1
            while end < len(chain):
                its_low, its_high = room(chain[end])
                if max(low, its_low) > min(high, its_high):
                    break
                low, high, end = max(low, its_low), min(high, its_high), end + 1
            mean = sum(xs[vertex] for vertex in chain[start:end]) / (end - start)
            for vertex in chain[start:end]:
                xs[vertex] = min(max(mean, low), high)
            start = end
    return xs


def _chains(
    ups: Sequence[Sequence[int]], downs: Sequence[Sequence[int]], bends: int
) -> list[list[int]]:
    """Return lists of vertices that can be drawn as straight columns, the longest first."""

    def following(vertex: int) -> int | None:
        its = downs[vertex]
        if vertex >= bends:
            its = [down for down in its if down >= bends] or its
        if len(its) != 1:
            return None
        above = ups[its[0]]
        if its[0] >= bends:
            above = [up for up in above if up >= bends] or above
        return its[0] if above == [vertex] else None

    after = {vertex: down for vertex in range(len(ups)) if (down := following(vertex)) is not None}
    found = []
    for vertex in sorted(set(after) - set(after.values())):
        chain = [vertex]
        while chain[-1] in after:
            chain.append(after[chain[-1]])
        found.append(chain)
    return sorted(found, key=lambda chain: (-len(chain), chain[0]))


def _sway(xs: Sequence[float], ups: Sequence[Sequence[int]]) -> float:
    """Return a number that says how crooked the lines are."""
    found = 0.0
    for vertex, its in enumerate(ups):
        for up in its:
            aside = abs(xs[vertex] - xs[up])
            found += aside**1.5 / 10 + _BENT if aside > 0.5 else 0.0
    return found


def _straightened(
    xs: list[float],
    rows: Sequence[Sequence[int]],
    ups: Sequence[Sequence[int]],
    downs: Sequence[Sequence[int]],
    widths: Sequence[float],
    bends: int,
) -> list[float]:
    """Return new x coordinates, which make lines straight that are almost straight."""
    xs = list(xs)
    for row in (*rows, rows[0]):
        for at, vertex in enumerate(row):
            # A vertex without upstreams moves above its downstreams.
            near = sorted(xs[other] for other in ups[vertex] or downs[vertex])
            if not near:
                continue
            wanted = (near[(len(near) - 1) // 2] + near[len(near) // 2]) / 2
            if not 0 < abs(wanted - xs[vertex]) <= _NUDGE:
                continue
            if wanted < xs[vertex] and at > 0:
                left = row[at - 1]
                apart = (widths[left] + widths[vertex]) / 2 + _TIGHT * _gap(left, vertex, bends)
                wanted = max(wanted, min(xs[left] + apart, xs[vertex]))
            if wanted > xs[vertex] and at < len(row) - 1:
                right = row[at + 1]
                apart = (widths[right] + widths[vertex]) / 2 + _TIGHT * _gap(vertex, right, bends)
                wanted = min(wanted, max(xs[right] - apart, xs[vertex]))
            xs[vertex] = wanted
    return xs


def _gap(left: int, right: int, bends: int) -> float:
    if left < bends and right < bends:
        return BOX_GAP
    return TRUNK_GAP if left >= bends and right >= bends else BEND_GAP
