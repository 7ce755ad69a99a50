"""Draws a picture as one SVG file, for light and dark pages. No script or other file is needed.

A sign and a word show each state, so that the picture is readable without colours.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from flowfabric.core.states import GroupState, PublicState, Resolution
from flowfabric.drawing.folding import fold, unfolded
from flowfabric.drawing.layers import Layout, Point, Segment, Size, Wire, arrange
from flowfabric.drawing.picture import Box, Joint, Picture, grouped, visible_joints, words

MARGIN = 28.0
# The least width of a drawing: its heading needs room.
LEAST_WIDTH = 420.0
NARROWEST, WIDEST = 116.0, 264.0
PADDING = 12.0
# The width of a sign and the gap after it.
SIGN = 26.0
HEIGHT, FOLDED_HEIGHT = 46.0, 60.0
# If there are more boxes than this, each box shows only its name and its sign.
COMPACT = 60
COMPACT_HEIGHT, COMPACT_FOLDED_HEIGHT = 30.0, 42.0
NARROWEST_COMPACT, WIDEST_COMPACT = 60.0, 150.0
# The stack under a folded box.
DECK = 8.0
JOINT_HEIGHT, JOINT_HEAD, PORT_GAP = 20.0, 34.0, 8.0
NAME_SIZE, SMALL_SIZE, TITLE_SIZE = 13.0, 11.0, 18.0
# The description lists the boxes if there are at most this many.
DESCRIBED = 80

_PREFIX = "ff-"
_IN_SIGNS = (".solid", ".ring", ".glyph", ".mark")
# The attribute of a picture in its own file, and of a picture inside a page. Inside a page, the
# links of the picture must work, so it does not have the role of an image.
_ALONE, _INSIDE = 'role="img"', 'class="drawing"'
# The selectors of one rule. Rules are not nested, except inside @media.
_RULE = re.compile(r"^([.a-z][^{}@]*?) *\{", re.MULTILINE)
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
# Styles of lines. A merged line has the first of these styles that any of its lines has. Broken
# means impossible because of a failure.
_LIVELY = ("satisfied", "unsatisfied", "broken", "impossible", "")
_FLOW_COLOURS = {
    "open": "waiting",
    "running": "active",
    "blocked": "suspended",
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
}

_COLOURS = {
    "completed": ("#17794a", "#46c285"),
    "failed": ("#c4302b", "#ff7b72"),
    "expired": ("#b0481a", "#f0915a"),
    "active": ("#1864c7", "#62a8ff"),
    "suspended": ("#8a5d00", "#dfae4a"),
    "rate-limited": ("#8a5d00", "#dfae4a"),
    "delayed": ("#8a5d00", "#dfae4a"),
    "resumable": ("#0f7285", "#4fc1d6"),
    "waiting": ("#56626e", "#9fabb7"),
    "waiting-children": ("#6f7a85", "#8b97a3"),
    "cancelled": ("#6b6475", "#a79fb3"),
    "skipped": ("#78828c", "#87929d"),
}

_FONT = 'system-ui, "Segoe UI", Roboto, Helvetica, Arial, "DejaVu Sans", sans-serif'
_STYLE = f"""
text {{ font-family: {_FONT}; fill: #1d2630; }}
.title {{ font-size: {TITLE_SIZE:.0f}px; font-weight: 650; }}
.name {{ font-size: {NAME_SIZE:.0f}px; font-weight: 600; }}
.small {{ font-size: {SMALL_SIZE:.0f}px; fill: #5c6873; }}
.word {{ fill: currentColor; font-weight: 600; }}
.paper {{ fill: #fcfcfb; stroke: #e3e6e8; }}
.box {{ fill: #ffffff; stroke: #c3cad1; }}
.tint {{ fill: currentColor; fill-opacity: 0.06; }}
.failed .box, .expired .box, .active .box {{ stroke: currentColor; stroke-width: 1.6; }}
.skipped .box, .cancelled .box {{ stroke-dasharray: 4 3; }}
.skipped .name, .cancelled .name {{ fill: #5c6873; }}
.solid {{ fill: currentColor; }}
.ring {{ fill: none; stroke: currentColor; stroke-width: 1.6; }}
.glyph {{ fill: none; stroke: #ffffff; stroke-width: 1.8; stroke-linecap: round; \
stroke-linejoin: round; }}
.mark {{ fill: none; stroke: currentColor; stroke-width: 1.6; stroke-linecap: round; \
stroke-linejoin: round; }}
.line {{ fill: none; stroke: #98a2ac; stroke-width: 1.4; }}
.line.satisfied {{ stroke: #6c7883; }}
.line.unsatisfied {{ stroke-dasharray: 1.5 3.5; stroke-linecap: round; }}
.line.impossible {{ stroke-dasharray: 6 4; }}
.line.broken {{ stroke: #c4302b; stroke-dasharray: 6 4; }}
.head {{ fill: #98a2ac; }}
.head.satisfied {{ fill: #6c7883; }}
.head.broken {{ fill: #c4302b; }}
.joint {{ fill: #ffffff; stroke: currentColor; stroke-width: 1.2; }}
.bar {{ fill: currentColor; }}
.hollow {{ fill: none; stroke: currentColor; stroke-width: 1; }}
.hatch {{ stroke: #ffffff; stroke-width: 1.4; stroke-opacity: 0.75; }}
"""
_DARK = """
text { fill: #e4e9ee; }
.small, .skipped .name, .cancelled .name { fill: #9fabb7; }
.word { fill: currentColor; }
.paper { fill: #10151b; stroke: #27303a; }
.box, .joint { fill: #1a222b; }
.box { stroke: #3c4753; }
.tint { fill-opacity: 0.1; }
.glyph { stroke: #10151b; }
.line { stroke: #66727e; }
.line.satisfied { stroke: #93a0ac; }
.line.broken { stroke: #ff7b72; }
.head { fill: #66727e; }
.head.satisfied { fill: #93a0ac; }
.head.broken { fill: #ff7b72; }
.hatch { stroke: #10151b; }
"""

# Every sign is 16 by 16 around its middle.
_SOLID = '<circle class="solid" r="8"/>'
_RING = '<circle class="ring" r="7.2"/>'
_SIGNS = {
    PublicState.COMPLETED: _SOLID + '<path class="glyph" d="M-3.6 .3 -1 2.9 3.8-2.7"/>',
    PublicState.FAILED: _SOLID + '<path class="glyph" d="M-2.8-2.8 2.8 2.8M2.8-2.8-2.8 2.8"/>',
    PublicState.EXPIRED: _SOLID + '<path class="glyph" d="M0-4.2V.4L2.8 2.4"/>',
    PublicState.ACTIVE: _SOLID + '<path class="glyph" d="M-1.7-3.2 3.2 0-1.7 3.2Z"/>',
    PublicState.SUSPENDED: _SOLID + '<path class="glyph" d="M-2-2.8V2.8M2-2.8V2.8"/>',
    PublicState.RESUMABLE: _RING + '<path class="mark" d="M-1.7-3 2.9 0-1.7 3Z"/>',
    PublicState.DELAYED: _RING + '<path class="mark" d="M0-4V.4L2.6 2.2"/>',
    PublicState.RATE_LIMITED: _RING + '<path class="mark" d="M-2.8-3H2.8L-2.8 3H2.8Z"/>',
    PublicState.WAITING: _RING,
    PublicState.WAITING_CHILDREN: '<circle class="ring" r="7.2" stroke-dasharray="2.6 3.05"/>',
    PublicState.CANCELLED: _RING + '<path class="mark" d="M-5 5 5-5"/>',
    PublicState.SKIPPED: _RING
    + '<path class="mark" d="M-3.2-2.8-.4 0-3.2 2.8M.8-2.8 3.6 0 .8 2.8"/>',
}


def as_svg(
    picture: Picture,
    *,
    is_folded: bool = True,
    with_style: bool = True,
    unfold_link: str = "",
) -> str:
    """Return the picture as an SVG document. If `is_folded` is true, similar boxes are one box.

    If `with_style` is false, the page around the drawing must contain `drawing_style()`. A click on
    a folded box opens the address `unfold_link`.
    """
    drawn = fold(picture) if is_folded else unfolded(picture)
    return _Sheet(drawn, with_style=with_style, unfold_link=unfold_link).document()


def drawing_style() -> str:
    """Return the CSS for drawings inside a page. It applies to nothing else on the page."""
    rules = _RULE.sub(
        lambda rule: ", ".join(_inside(one.strip()) for one in rule[1].split(",")) + " {", _style()
    )
    return f"{rules}.drawing a {{ color: inherit; }}\n"


def _inside(selector: str) -> str:
    """Make a selector apply only inside drawings.

    The selectors of signs stay unchanged, because they must also match in copies made by `<use>`.
    """
    return selector if selector in _IN_SIGNS else f".drawing {selector}"


@dataclass(frozen=True, slots=True)
class Port:
    """The spot above a box where the lines of one edge group end. `joint` is drawn there."""

    group: int
    width: float
    joint: Joint | None


@dataclass(frozen=True, slots=True)
class Plan:
    """All that the SVG writer needs: the picture, and where each of its boxes and lines goes.

    `ports` contains the ports of each box by edge group, each with its distance from the middle of
    the box.
    """

    picture: Picture
    sizes: list[Size]
    ports: list[dict[int, tuple[float, Port]]]
    layout: Layout
    is_compact: bool


def plan(picture: Picture) -> Plan:
    """Compute the size of every box of a picture, and where its boxes and lines go."""
    ports = _ports(picture)
    is_compact = len(picture.boxes) > COMPACT
    sizes = [_size(box, its, is_compact) for box, its in zip(picture.boxes, ports, strict=True)]
    placed = [_spread(its) for its in ports]
    layout = _laid(picture, sizes, placed)
    if any(len(its) > 1 for its in ports):
        # Order the groups of a box from left to right by their lines. No box moves.
        placed = [_spread(its) for its in _sorted_ports(picture, ports, layout)]
        layout = _laid(picture, sizes, placed)
    return Plan(picture, sizes, placed, layout, is_compact)


def _laid(
    picture: Picture, sizes: Sequence[Size], ports: Sequence[dict[int, tuple[float, Port]]]
) -> Layout:
    wires = [
        Wire(line.upstream, line.downstream, line.group, ports[line.downstream][line.group][0])
        for line in picture.lines
    ]
    return arrange(sizes, wires)


def _ports(picture: Picture) -> list[list[Port]]:
    joints = visible_joints(picture)
    groups: list[dict[int, None]] = [{} for _ in picture.boxes]
    for line in picture.lines:
        groups[line.downstream][line.group] = None
    found = []
    for index, its in enumerate(groups):
        ports = []
        for group in sorted(its):
            joint = joints.get((index, group))
            width = 14.0
            if joint is not None:
                width = text_width(joint.label, SMALL_SIZE) + 18
                width += 14 if joint.state in (GroupState.SATISFIED, GroupState.IMPOSSIBLE) else 0
            ports.append(Port(group, width, joint))
        # A group of one line is always needed, so all such groups can share one port.
        if all(port.joint is None for port in ports):
            ports = [replace(port, width=0.0) for port in ports]
        found.append(ports)
    return found


def _spread(ports: Sequence[Port]) -> dict[int, tuple[float, Port]]:
    """Return the ports of a box by group, each with its distance from the middle of the box."""
    if all(port.joint is None for port in ports):
        return {port.group: (0.0, port) for port in ports}
    x = -(sum(port.width for port in ports) + PORT_GAP * (len(ports) - 1)) / 2
    found = {}
    for port in ports:
        found[port.group] = (round(x + port.width / 2, 1), port)
        x += port.width + PORT_GAP
    return found


def _sorted_ports(
    picture: Picture, ports: Sequence[Sequence[Port]], layout: Layout
) -> list[list[Port]]:
    arrivals: dict[tuple[int, int], list[float]] = defaultdict(list)
    for segment in layout.segments:
        for index in segment.wires:
            line = picture.lines[index]
            arrivals[line.downstream, line.group].append(segment.start.x)
    return [
        sorted(
            its,
            key=lambda port: (
                sum(arrivals[index, port.group]) / len(arrivals[index, port.group]),
                port.group,
            ),
        )
        for index, its in enumerate(ports)
    ]


def _size(box: Box, ports: Sequence[Port], is_compact: bool) -> Size:
    joints = any(port.joint is not None for port in ports)
    across = sum(port.width for port in ports) + PORT_GAP * max(len(ports) - 1, 0)
    wanted = text_width(box.title, NAME_SIZE)
    sign = SIGN if box.states and not box.is_folded else 0.0
    if is_compact:
        width = min(max(wanted + sign, NARROWEST_COMPACT), WIDEST_COMPACT) + 2 * PADDING
        height = COMPACT_FOLDED_HEIGHT + DECK if box.is_folded else COMPACT_HEIGHT
    else:
        wanted = max(wanted, _small_text_width(box))
        width = min(max(wanted + sign + 2 * PADDING, NARROWEST), WIDEST)
        height = FOLDED_HEIGHT + DECK if box.is_folded else HEIGHT
    width = -(-max(width, across + 8) // 4) * 4
    return Size(width, height, JOINT_HEAD if joints else 0.0)


def _small_text_width(box: Box) -> float:
    if box.is_folded or box.state is None:
        return small_width(_small_text(box))
    state = words(box.state)
    return text_width(state, SMALL_SIZE) + small_width(_small_text(box)[len(state) :])


def _small_text(box: Box) -> str:
    """Return the text that is drawn in small letters below the name of a box."""
    if box.is_folded:
        parts = [f"{grouped(count)} {words(state)}" for state, count in box.states[:3]]
        return ", ".join(parts) + (", …" if len(box.states) > 3 else "")
    state = words(box.state) if box.state else ""
    task = "" if box.task == box.name else box.task
    return " · ".join(part for part in (state, box.duration if state else "", task) if part)


class _Sheet:
    """Writes the parts of an SVG document in order."""

    def __init__(self, picture: Picture, *, with_style: bool = True, unfold_link: str = "") -> None:
        self.picture = picture
        self.with_style = with_style
        self.unfold_link = unfold_link
        self.plan = plan(picture)
        self.parts: list[str] = []

    def document(self) -> str:
        layout = self.plan.layout
        inner = max(layout.width, LEAST_WIDTH)
        width = inner + 2 * MARGIN
        body: list[str] = []
        top = self._head(inner)
        body, self.parts = self.parts, []
        left = MARGIN + (inner - layout.width) / 2
        self.parts.append(f'<g transform="translate({_n(left)} {_n(top)})">')
        self._lines()
        self._arrivals()
        for index in range(len(self.picture.boxes)):
            self._box(index)
        self.parts.append("</g>")
        height = top + layout.height + MARGIN
        drawn = "\n".join([*body, *self.parts])
        used = {state for state, _ in self.picture.states}
        signs = "".join(
            f'<g id="{_PREFIX}{_class(state)}">{_SIGNS[state]}</g>'
            for state in PublicState
            if state in used
        )
        style = f"<style>{_style()}</style>" if self.with_style else ""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_n(width)}" height="{_n(height)}" '
            f'viewBox="0 0 {_n(width)} {_n(height)}" '
            f"{_ALONE if self.with_style else _INSIDE}>\n"
            f"<title>{escaped(self._title())}</title>\n"
            f"<desc>{escaped(self._description())}</desc>\n"
            f"{style}\n"
            f"<defs>{signs}</defs>\n"
            f'<rect class="paper" x="0.5" y="0.5" width="{_n(width - 1)}" '
            f'height="{_n(height - 1)}" rx="12"/>\n'
            f"{drawn}\n</svg>\n"
        )

    def _title(self) -> str:
        state = f", {self.picture.state}" if self.picture.state else ""
        return f"Flow {self.picture.title}{state}"

    def _description(self) -> str:
        picture = self.picture
        counts = ", ".join(f"{grouped(count)} {words(state)}" for state, count in picture.states)
        text = [f"{_nodes(picture.size)}{': ' if counts else ''}{counts}."]
        if picture.note:
            text.append(picture.note)
        if len(picture.boxes) <= DESCRIBED:
            ups: dict[int, dict[int, None]] = defaultdict(dict)
            for line in picture.lines:
                ups[line.downstream][line.upstream] = None
            for index, box in enumerate(picture.boxes):
                state = _small_text(box)
                waits = ", ".join(picture.boxes[up].title for up in ups[index])
                text.append(
                    f"{box.title}{f' ({state})' if state else ''}"
                    f"{f' after {waits}' if waits else ''}."
                )
        return "\n".join(text)

    # The head

    def _head(self, inner: float) -> float:
        """Draw title, state, counts and note, `inner` wide. Return the y where the boxes begin."""
        picture = self.picture
        chip = 0.0
        if picture.state:
            chip = text_width(picture.state, SMALL_SIZE) + 20
        title = fit(picture.title, inner - chip - 12, TITLE_SIZE)
        y = MARGIN + 14
        self.parts.append(
            f'<text class="title" x="{_n(MARGIN)}" y="{_n(y)}">{escaped(title)}</text>'
        )
        if picture.state:
            colour = _FLOW_COLOURS.get(picture.state, "waiting")
            x = MARGIN + inner - chip
            self.parts.append(
                f'<g class="{colour}"><rect class="joint" x="{_n(x)}" y="{_n(y - 15)}" '
                f'width="{_n(chip)}" height="21" rx="10.5"/><text class="small word" '
                f'x="{_n(x + chip / 2)}" y="{_n(y - 0.6)}" text-anchor="middle">'
                f"{escaped(picture.state)}</text></g>"
            )
        y = self._counts(inner, y + 26)
        for line in _wrapped(picture.note, inner):
            y += 18
            self.parts.append(
                f'<text class="small" x="{_n(MARGIN)}" y="{_n(y)}">{escaped(line)}</text>'
            )
        return y + 30

    def _counts(self, inner: float, y: float) -> float:
        """Draw a legend: the sign of each state, and how many nodes are in that state.

        Return the y of the last line of text.
        """
        x, end = MARGIN, MARGIN + inner
        total = _nodes(self.picture.size)
        self.parts.append(f'<text class="small" x="{_n(x)}" y="{_n(y)}">{escaped(total)}</text>')
        x += small_width(total) + 18
        entries: list[tuple[str, float]] = []
        for state, count in self.picture.states:
            text = f"{grouped(count)} {words(state)}"
            entries.append(
                (
                    f'<g class="{_class(state)}" transform="translate(%s %s)">'
                    f'<use href="#{_PREFIX}{_class(state)}" x="6" y="-4" '
                    f'transform="translate(6 -4) scale(.75) translate(-6 4)"/>'
                    f'<text class="small" x="17" y="0">{escaped(text)}</text></g>',
                    small_width(text) + 34,
                )
            )
        kinds = {line.resolution for line in self.picture.lines}
        if len(kinds - {None}) > 1:
            for kind, text in (
                (Resolution.SATISFIED, "satisfied"),
                (Resolution.UNSATISFIED, "open"),
                (Resolution.IMPOSSIBLE, "impossible"),
            ):
                if kind in kinds:
                    entries.append(
                        (
                            f'<g transform="translate(%s %s)"><path class="line {kind}" '
                            f'd="M0-4H24"/><text class="small" x="30" y="0">{text}</text></g>',
                            small_width(text) + 48,
                        )
                    )
        for text, width in entries:
            if x + width > end + 16:
                x, y = MARGIN, y + 20
            self.parts.append(text % (_n(x), _n(y)))
            x += width
        return y

    # Lines

    def _lines(self) -> None:
        paths: dict[str, list[str]] = defaultdict(list)
        for segment in self.plan.layout.segments:
            kind = self._look(segment.wires)
            # The line ends under the arrow head of the box.
            last = self.picture.lines[segment.wires[0]]
            paths[kind].append(_path(segment, self._shortening(segment, last.downstream)))
        for kind in reversed(_LIVELY):
            if kind in paths:
                whole = "".join(sorted(paths[kind]))
                self.parts.append(f'<path class="{_classes("line", kind)}" d="{whole}"/>')

    def _look(self, lines: Iterable[int]) -> str:
        looks = []
        for index in lines:
            line = self.picture.lines[index]
            look = "" if line.resolution is None else line.resolution.value
            states = self.picture.boxes[line.upstream].states
            if line.resolution is Resolution.IMPOSSIBLE and states and states[0][0] in _HATCHED:
                look = "broken"
            looks.append(look)
        return min(looks, key=_LIVELY.index)

    def _shortening(self, segment: Segment, box: int) -> float:
        if self.plan.sizes[box].head:
            return 0.0
        return 5.0 if segment.end.y == self.plan.layout.boxes[box].y else 0.0

    def _arrivals(self) -> None:
        """Draw joints and arrow heads."""
        arriving: dict[tuple[int, int], list[int]] = defaultdict(list)
        for index, line in enumerate(self.picture.lines):
            arriving[line.downstream, line.group].append(index)
        for (index, group), found in sorted(arriving.items()):
            at = self.plan.layout.boxes[index]
            offset, port = self.plan.ports[index][group]
            kind = self._look(found)
            x, head = at.x + offset, self.plan.sizes[index].head
            if port.joint is not None:
                kind = self._joint(port, x, at.y - head, kind)
                start = at.y - head + JOINT_HEIGHT
            else:
                start = at.y - head
            if head:
                self.parts.append(
                    f'<path class="{_classes("line", kind)}" '
                    f'd="M{_n(x)} {_n(start)}V{_n(at.y - 5)}"/>'
                )
            self.parts.append(
                f'<path class="{_classes("head", kind)}" '
                f'd="M{_n(x - 3.8)} {_n(at.y - 7)}h7.6L{_n(x)} {_n(at.y - 0.6)}z"/>'
            )

    def _joint(self, port: Port, x: float, y: float, kind: str) -> str:
        """Draw a joint. Return the style of the line from the joint to its box."""
        joint = port.joint
        assert joint is not None
        colour, mark, shift = "waiting", "", 0.0
        left = x - port.width / 2
        if joint.state is GroupState.SATISFIED:
            colour, kind, shift = "completed", Resolution.SATISFIED.value, 7.0
            mark = f'<path class="mark" d="M{_n(left + 9)} {_n(y + 10.4)}l2.6 2.6 4.6-5.4"/>'
        elif joint.state is GroupState.IMPOSSIBLE:
            colour, kind, shift = "failed", "broken", 7.0
            mark = f'<path class="mark" d="M{_n(left + 9)} {_n(y + 7.2)}l5.6 5.6m0-5.6l-5.6 5.6"/>'
        elif joint.state is GroupState.PENDING:
            kind = Resolution.UNSATISFIED.value
        self.parts.append(
            f'<g class="{colour}"><rect class="joint" x="{_n(left)}" y="{_n(y)}" '
            f'width="{_n(port.width)}" height="{_n(JOINT_HEIGHT)}" rx="{_n(JOINT_HEIGHT / 2)}"/>'
            f'{mark}<text class="small word" x="{_n(x + shift)}" y="{_n(y + 14)}" '
            f'text-anchor="middle">{escaped(joint.label)}</text></g>'
        )
        return kind

    # Boxes

    def _box(self, index: int) -> None:
        box, size = self.picture.boxes[index], self.plan.sizes[index]
        at = self.plan.layout.boxes[index]
        x, y = at.x - size.width / 2, at.y
        worst = box.states[0][0] if box.states else None
        about = [box.title]
        if box.task and box.task != box.name:
            about.append(box.task)
        about += (
            [f"{grouped(count)} {words(state)}" for state, count in box.states]
            if (box.is_folded)
            else [words(state) for state, _ in box.states]
        )
        if box.duration:
            about.append(f"up to {box.duration}" if box.is_folded else box.duration)
        if box.named:
            about.append(f"failed: {', '.join(box.named)}")
        self.parts.append(
            f'<g class="{_classes("node", _class(worst) if worst and not box.is_folded else "")}">'
            f"<title>{escaped(' · '.join(about))}</title>"
        )
        link = self.unfold_link if box.is_folded else box.link
        if link:
            self.parts.append(f'<a href="{escaped(link)}">')
        if box.is_folded:
            self._folded(box, size, x, y)
        else:
            self._single(box, size, x, y)
        self.parts.append("</a></g>" if link else "</g>")

    def _single(self, box: Box, size: Size, x: float, y: float) -> None:
        frame = (
            f'x="{_n(x)}" y="{_n(y)}" width="{_n(size.width)}" height="{_n(size.height)}" rx="8"'
        )
        self.parts.append(f'<rect class="box" {frame}/>')
        left = x + PADDING
        if box.state is not None:
            if box.state in _TINTED:
                self.parts.append(f'<rect class="tint" {frame}/>')
            self.parts.append(
                f'<use href="#{_PREFIX}{_class(box.state)}" '
                f'x="{_n(left + 8)}" y="{_n(y + size.height / 2)}"/>'
            )
            left += SIGN
        room = x + size.width - PADDING - left
        text = "" if self.plan.is_compact else _small_text(box)
        baseline = y + (19.5 if text else size.height / 2 + 4.5)
        self._name(box.title, left, baseline, room)
        if text:
            state = words(box.state) if box.state else ""
            rest = text[len(state) :]
            rest = fit(rest, room - text_width(state, SMALL_SIZE), SMALL_SIZE, is_bold=False)
            word = f'<tspan class="word">{escaped(state)}</tspan>' if state else ""
            self.parts.append(
                f'<text class="small" x="{_n(left)}" y="{_n(y + 35.5)}">'
                f"{word}{escaped(rest)}</text>"
            )

    def _folded(self, box: Box, size: Size, x: float, y: float) -> None:
        height = size.height - DECK
        for inset, down in ((DECK, DECK), (DECK / 2, DECK / 2), (0.0, 0.0)):
            self.parts.append(
                f'<rect class="box" x="{_n(x + inset)}" y="{_n(y + down)}" '
                f'width="{_n(size.width - 2 * inset)}" height="{_n(height)}" rx="8"/>'
            )
        room = size.width - 2 * PADDING
        self._name(box.title, x + PADDING, y + 19.5, room)
        text, below = _small_text(box) if box.states else box.task, 43.0
        if self.plan.is_compact:
            text, below = "", 27.0
        if text and text != box.name:
            text = escaped(fit(text, room, SMALL_SIZE, is_bold=False))
            self.parts.append(
                f'<text class="small" x="{_n(x + PADDING)}" y="{_n(y + 35)}">{text}</text>'
            )
        if box.states:
            self._bar(box, x + PADDING, y + below, room)

    def _bar(self, box: Box, x: float, y: float, room: float) -> None:
        """Draw the states of a folded box as a bar, with one part for each state."""
        for (state, _), width in zip(box.states, _shares(box, room), strict=True):
            inner = max(width - 1.5, 1.0)
            hollow = state in _HOLLOW
            shape = (
                f'<rect class="hollow" x="{_n(x + 0.5)}" y="{_n(y + 0.5)}" '
                f'width="{_n(max(inner - 1, 0.5))}" height="6" rx="1.5"/>'
                if hollow
                else f'<rect class="bar" x="{_n(x)}" y="{_n(y)}" width="{_n(inner)}" '
                f'height="7" rx="1.5"/>'
            )
            if state in _HATCHED:
                strokes = "".join(
                    f"M{_n(x + at)} {_n(y + 7)}l4-7" for at in range(1, int(inner) - 4, 5)
                )
                shape += f'<path class="hatch" d="{strokes}"/>' if strokes else ""
            self.parts.append(f'<g class="{_class(state)}">{shape}</g>')
            x += width

    def _name(self, name: str, x: float, y: float, room: float) -> None:
        text = escaped(fit(name, room, NAME_SIZE))
        self.parts.append(f'<text class="name" x="{_n(x)}" y="{_n(y)}">{text}</text>')


_TINTED = frozenset(
    {PublicState.COMPLETED, PublicState.FAILED, PublicState.EXPIRED, PublicState.ACTIVE}
)
_HATCHED = frozenset({PublicState.FAILED, PublicState.EXPIRED})
_HOLLOW = frozenset({PublicState.SKIPPED, PublicState.CANCELLED, PublicState.WAITING_CHILDREN})


def _shares(box: Box, room: float) -> list[float]:
    """Return the width of each part of a bar. Every part is wide enough to see."""
    least = min(5.0, room / len(box.states))
    free = room - least * len(box.states)
    return [least + free * count / box.count for _, count in box.states]


def _style() -> str:
    light = "".join(f".{name} {{ color: {colour}; }}\n" for name, (colour, _) in _COLOURS.items())
    dark = "".join(f".{name} {{ color: {colour}; }}\n" for name, (_, colour) in _COLOURS.items())
    return f"{_STYLE}{light}@media (prefers-color-scheme: dark) {{{_DARK}{dark}}}\n"


def _class(state: PublicState) -> str:
    return state.replace("_", "-")


def _classes(*names: str) -> str:
    return " ".join(name for name in names if name)


def _path(segment: Segment, shortened: float) -> str:
    """Return the SVG path of a segment. The path ends `shortened` above the segment's end."""
    a, b = segment.start, Point(segment.end.x, segment.end.y - shortened)
    if abs(a.x - b.x) < 0.5:
        return f"M{_n(a.x)} {_n(a.y)}V{_n(b.y)}"
    bend_to = min(segment.bend_to, b.y)
    middle = (segment.bend_from + bend_to) / 2
    first = f"V{_n(segment.bend_from)}" if segment.bend_from > a.y else ""
    last = f"V{_n(b.y)}" if b.y > bend_to else ""
    return (
        f"M{_n(a.x)} {_n(a.y)}{first}C{_n(a.x)} {_n(middle)} {_n(b.x)} {_n(middle)} "
        f"{_n(b.x)} {_n(bend_to)}{last}"
    )


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _nodes(count: int) -> str:
    return f"{grouped(count)} {'node' if count == 1 else 'nodes'}"


# Text


def escaped(text: str) -> str:
    """Escape a text for XML, and replace control characters."""
    kept = "".join(ch if _is_shown(ch) else "\ufffd" for ch in text)
    return (
        kept.replace("&", "&amp;")
        .replace("<", "&lt;")
        .replace(">", "&gt;")
        .replace('"', "&quot;")
        .replace("'", "&#39;")
    )


def _is_shown(ch: str) -> bool:
    if ch in "\n\t":
        return True
    if ch in _BIDI or ord(ch) & 0xFFFE == 0xFFFE:
        return False
    return unicodedata.category(ch) not in ("Cc", "Cs")


def text_width(text: str, size: float, *, is_bold: bool = True) -> float:
    """Return an upper limit for the width of a text: its width in DejaVu Sans, a wide font."""
    return sum(map(_char_width, text)) * size * (1.0 if is_bold else 0.93)


def small_width(text: str) -> float:
    return text_width(text, SMALL_SIZE, is_bold=False)


# The widths of characters in a bold font, in hundredths of its size.
_WIDTHS = {
    ch: width / 100
    for width, chars in (
        (36, "' /IJ\\ijl|\N{NO-BREAK SPACE}·"),
        (42, ",-.:;"),
        (50, '!"()*[]_`frt'),
        (60, "?csz"),
        (68, "Lakvxye"),
        (73, "$0123456789EFSTYbdghnopqu{}"),
        (78, "ABCKPRVXZ"),
        (85, "#&+<=>DGHNOQU^~×"),
        (93, "w"),
        (106, "%@Mm…"),
        (111, "W"),
    )
    for ch in chars
}


def _char_width(ch: str) -> float:
    if (width := _WIDTHS.get(ch)) is not None:
        return width
    if unicodedata.combining(ch):
        return 0.0
    return 1.1 if unicodedata.east_asian_width(ch) in "WF" else 0.86


def fit(text: str, room: float, size: float, *, is_bold: bool = True) -> str:
    """Return the text without line breaks, cut if it is wider than `room`."""
    text = " ".join(text.split("\n"))
    if text_width(text, size, is_bold=is_bold) <= room:
        return text
    room -= text_width("…", size, is_bold=is_bold)
    kept = ""
    for ch in text:
        room -= text_width(ch, size, is_bold=is_bold)
        if room < 0:
            break
        kept += ch
    return kept.rstrip() + "…"


def _wrapped(text: str, room: float) -> list[str]:
    lines: list[str] = []
    for word in text.split(" "):
        if lines and small_width(f"{lines[-1]} {word}") <= room:
            lines[-1] += f" {word}"
        elif word:
            lines.append(word)
    return lines
