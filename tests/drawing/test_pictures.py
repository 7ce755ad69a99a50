"""The pictures of the guide are what tools/draw_flow_pictures.py draws, and can be read."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from flowfabric.drawing.folding import fold
from flowfabric.drawing.svg import plan

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    file = ROOT / "tools" / "draw_flow_pictures.py"
    spec = importlib.util.spec_from_file_location("draw_flow_pictures", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pictures_of_the_guide_are_up_to_date(tool):
    assert tool.outdated(tool.drawn()) == []


def test_a_picture_that_was_changed_by_hand_is_noticed(tool, tmp_path, monkeypatch):
    wanted = tool.drawn()
    for name, text in wanted.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(tool, "PICTURES", tmp_path)
    assert tool.outdated(wanted) == []
    (tmp_path / "chain.svg").write_text("<svg/>", encoding="utf-8")
    (tmp_path / "old.svg").write_text("<svg/>", encoding="utf-8")
    assert len(tool.outdated(wanted)) == 2


def test_two_hundred_nodes_fit_on_a_sheet_that_can_be_read(tool):
    drawn = plan(fold(tool.random_graph()))
    assert len(drawn.picture.boxes) == 200
    assert drawn.layout.width < 4000
    assert drawn.layout.height < 4000


def test_small_flows_fit_on_a_page(tool):
    for name in ("chain", "diamond", "fan-out", "quorum-race", "skipped-cascade"):
        shape, _ = tool.SHAPES[name]
        assert plan(fold(shape())).layout.width < 1300, name
