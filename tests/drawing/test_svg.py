"""The SVG: well-formed, safe, the same every time, and readable without colours."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from time import process_time
from xml.etree import ElementTree

import pytest

from drawing.shapes import SHAPES, STATES, at_random, large, picture
from flowfabric.core.states import GroupPolicy, GroupState, PublicState, Resolution
from flowfabric.drawing.folding import fold
from flowfabric.drawing.picture import Box, Joint, Line, Picture
from flowfabric.drawing.svg import as_svg, fit, plan, text_width

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = (
    "<script>alert(1)</script>",
    "\"' onload='alert(1)",
    "]]><!-- & &amp; &#0;",
    "\x00\x01\x1b[31mred\x7f\r\n\t",
    "\ud800\ufffe\uffff",
    "\u202eevil\u2066",
    "日本語の名前がとても長い場合",
    "👩‍👩‍👧" * 30,
    "x" * 5000,
    "",
)


def parsed(picture: Picture, **options: bool) -> ElementTree.Element:
    return ElementTree.fromstring(as_svg(picture, **options))


def texts(root: ElementTree.Element) -> list[str]:
    return ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]


@pytest.mark.parametrize("seed", range(25))
def test_every_picture_is_well_formed_and_the_same_every_time(seed):
    one = as_svg(at_random(seed), is_folded=False)
    ElementTree.fromstring(one)
    assert as_svg(at_random(seed), is_folded=False) == one


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_only_text(text):
    shown = Picture(
        title=text,
        state=text,
        boxes=[
            Box(name=text, task=text, state=PublicState.FAILED),
            Box(name=text, task=text),
            *(Box(name=f"{text}{at}", task=text, state=PublicState.FAILED) for at in range(12)),
        ],
        lines=[Line(0, 1)],
        note=text,
    )
    for is_folded in (True, False):
        root = parsed(shown, is_folded=is_folded)
        tags = {element.tag.removeprefix(SVG) for element in root.iter()}
        assert tags <= {
            *("svg", "title", "desc", "style", "defs", "g", "use"),
            *("rect", "path", "circle", "text", "tspan"),
        }
        for element in root.iter():
            assert not any(name.lower().startswith("on") for name in element.attrib)
            for name, value in element.attrib.items():
                if name.endswith("href"):
                    assert value.startswith("#ff-")
        whole = "".join(root.itertext())
        assert not set(whole) & set("\x00\x01\x1b\x7f\u202e\u2066\ufffe")


def test_it_needs_nothing_from_elsewhere():
    text = as_svg(at_random(3))
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "url(" not in text
    assert "@import" not in text


def test_a_box_tells_its_name_its_state_its_duration_and_its_task():
    failed = Box(
        name="charge",
        task="pay.card",
        state=PublicState.FAILED,
        took=timedelta(milliseconds=250),
    )
    one = Picture(title="x", boxes=[failed])
    assert "charge" in texts(parsed(one))
    assert "failed · 250ms · pay.card" in texts(parsed(one))


@pytest.mark.parametrize("state", STATES)
def test_every_state_has_a_sign_and_a_word(state):
    root = parsed(Picture(title="x", boxes=[Box(name="a", state=state)]))
    word = state.replace("_", " ")
    assert f"1 {word}" in texts(root)
    assert word in texts(root)
    uses = [use.attrib["href"] for use in root.iter(f"{SVG}use")]
    signs = {group.attrib.get("id") for group in root.iter(f"{SVG}g")}
    assert uses
    assert {use.removeprefix("#") for use in uses} <= signs


def test_the_signs_of_states_differ_without_colours():
    shown = Picture(title="x", boxes=[Box(name=state, state=state) for state in STATES])
    defs = next(parsed(shown).iter(f"{SVG}defs"))
    drawn = [re.sub(r'id="[^"]*"', "", ElementTree.tostring(sign, "unicode")) for sign in defs]
    assert len(set(drawn)) == len(STATES)


def test_title_state_and_counts_are_told():
    shown = picture(3, [(0, 1), (1, 2)], state=lambda at: STATES[at])
    root = parsed(shown)
    title = root.find(f"{SVG}title")
    desc = root.find(f"{SVG}desc")
    assert title is not None
    assert title.text == "Flow a flow, running"
    assert desc is not None
    assert "node 1 (delayed · tasks.1) after node 0." in (desc.text or "")
    assert root.attrib["role"] == "img"
    assert {"a flow", "running", "3 nodes"} <= set(texts(root))


def test_a_joint_tells_how_many_it_needs():
    lines = [Line(at, 3, 0, Resolution.UNSATISFIED) for at in range(3)]
    boxes = [Box(name=str(at)) for at in range(4)]
    for policy, label in (
        (GroupPolicy.QUORUM, "2 of 3"),
        (GroupPolicy.ANY_OF, "any of 3"),
    ):
        joint = Joint(3, 0, policy, 2, 3, GroupState.PENDING)
        shown = Picture(title="x", boxes=boxes, lines=lines, joints=[joint])
        assert label in texts(parsed(shown))
    everything = Joint(3, 0, GroupPolicy.ALL_OF, 3, 3)
    shown = Picture(title="x", boxes=boxes, lines=lines, joints=[everything])
    assert not [text for text in texts(parsed(shown)) if "all" in text]


def test_joints_beside_each_other_do_not_overlap():
    boxes = [Box(name=str(at)) for at in range(7)]
    lines = [Line(at, 6, at // 2) for at in range(6)]
    joints = [Joint(6, group, GroupPolicy.ANY_OF, 1, 2) for group in range(3)]
    drawn = plan(Picture(title="x", boxes=boxes, lines=lines, joints=joints))
    ports = sorted(drawn.ports[6].values(), key=lambda port: port[0])
    for (x, port), (x2, port2) in pairwise(ports):
        assert x + port.width / 2 < x2 - port2.width / 2
    assert drawn.sizes[6].width >= sum(port.width for _, port in ports)


def test_a_text_that_does_not_fit_is_cut():
    assert fit("a short name", 200, 13) == "a short name"
    cut = fit("a name that is much too long for its box", 100, 13)
    assert cut.endswith("…")
    assert text_width(cut, 13) <= 100


@pytest.mark.parametrize("seed", range(12))
def test_no_text_leaves_its_box(seed):
    root = parsed(at_random(seed), is_folded=False)
    for node in root.iter(f"{SVG}g"):
        if "node" not in node.attrib.get("class", "").split():
            continue
        rect = node.find(f"{SVG}rect")
        assert rect is not None
        right = float(rect.attrib["x"]) + float(rect.attrib["width"])
        for text in node.iter(f"{SVG}text"):
            size = 13 if text.attrib["class"] == "name" else 11
            end = float(text.attrib["x"]) + text_width(
                "".join(text.itertext()), size, is_bold=size == 13
            )
            assert end <= right


def test_a_fan_out_is_one_box_with_a_bar():
    shown = picture(
        122,
        [*((0, at) for at in range(1, 121)), *((at, 121) for at in range(1, 121))],
        task=lambda at: "photos.resize" if 0 < at < 121 else f"t.{at}",
        name=lambda at: f"resize {at}" if 0 < at < 121 else f"node {at}",
        state=lambda at: PublicState.FAILED if at in (7, 9) else PublicState.COMPLETED,
    )
    root = parsed(shown)
    assert "resize × 120" in texts(root)
    assert "2 failed, 118 completed" in texts(root)
    node = next(
        node
        for node in root.iter(f"{SVG}g")
        if (title := node.find(f"{SVG}title")) is not None and "× 120" in (title.text or "")
    )
    told = node.find(f"{SVG}title")
    assert told is not None
    assert "failed: resize 7, resize 9" in (told.text or "")
    widths = [
        float(rect.attrib["width"])
        for rect in node.iter(f"{SVG}rect")
        if rect.attrib["class"] == "bar"
    ]
    assert len(widths) == 2
    assert widths[0] < widths[1] / 10
    assert "resize × 120" not in texts(parsed(shown, is_folded=False))


def test_a_flow_without_nodes_is_drawn():
    assert "0 nodes" in texts(parsed(Picture(title="empty", boxes=[])))


def test_a_picture_before_it_is_stored_has_no_states():
    shown = picture(3, [(0, 1), (1, 2)], state=lambda _: None)
    root = parsed(replace(shown, state=""))
    assert not list(root.iter(f"{SVG}use"))
    assert "tasks.1" in texts(root)


@pytest.mark.parametrize("size", [2_000, pytest.param(10_000, marks=pytest.mark.slow(short=2))])
@pytest.mark.parametrize("shape", SHAPES)
def test_thousands_of_nodes_are_drawn_in_time(shape, size):
    shown = large(size, shape)
    start = process_time()
    text = as_svg(shown)
    assert process_time() - start < 2
    assert len(text) < 400_000
    assert len(fold(shown).boxes) <= 250
    start = process_time()
    as_svg(shown, is_folded=False)
    assert process_time() - start < 2


def test_a_picture_that_is_not_exact_says_so():
    shown = large(2_000, "dense, near")
    note = fold(shown).note
    assert note.startswith("2\N{NO-BREAK SPACE}000 nodes in ")
    assert any(note[:20] in text for text in texts(parsed(shown)))
    assert not fold(large(2_000, "fan")).note
