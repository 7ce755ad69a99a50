"""docs/reference and docs/internals/mapping.md are what tools/generate.py makes of the sources."""

from __future__ import annotations

import re

import pytest

from flowfabric.core import states
from flowfabric.db.functions import FUNCTIONS

from .sources import ROOT

_pages: dict[str, str] = {}


@pytest.fixture
async def pages(generate, catalogue):
    """Return all pages. They are made once in a process, which takes a second and more."""
    if not _pages:
        moves = generate.transitions(await catalogue.fetch(generate.READ_TRANSITIONS))
        _pages.update(generate.pages(moves))
    return _pages


async def test_generating_leaves_no_difference(generate, pages):
    assert generate.outdated(pages) == [], "run: make generate"


async def test_every_function_has_its_section(pages):
    sections = re.findall(r"^### (\w+)$", pages["reference/functions.md"], re.MULTILINE)
    assert sorted(sections) == sorted(function.name for function in FUNCTIONS)
    for function in FUNCTIONS:
        section = (
            pages["reference/functions.md"].split(f"### {function.name}\n")[1].split("\n### ")[0]
        )
        for argument in function.arguments:
            assert f"| `p_{argument}` |" in section
        for column in function.columns:
            assert f"| `{column}` |" in section
        for field in ("Moves", "Refuses", "Locks", "Repeat"):
            assert f"- **{field}**: " in section


async def test_every_kind_of_event_is_explained(pages):
    for kind in states.EventKind:
        assert re.search(
            rf"^\| `{kind}` \| \S.*\.( \|)", pages["reference/events.md"], re.MULTILINE
        )


async def test_every_transition_has_its_place(pages):
    numbers = re.findall(r"^### (T\d+):", pages["reference/states.md"], re.MULTILINE)
    assert numbers == [f"T{number}" for number in range(1, 33)]


async def test_links_of_generated_pages_lead_somewhere(pages):
    for name, text in pages.items():
        for target in re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", text):
            assert (ROOT / "docs" / name).parent.joinpath(target).resolve().exists(), (name, target)
