"""The tests that the docs cite exist, under the names they are cited by."""

from __future__ import annotations

import re

from support.cases import for_each

from .sources import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@for_each("page", PAGES)
def test_a_test_that_is_cited_is_there(page):
    missing = []
    file = None
    for cited in re.findall(r"`(tests/[\w/.]+(?:::[\w:]+)?|::test_\w+)`", page.read_text()):
        path, _, name = cited.partition("::")
        if path:
            file = ROOT / path
        is_there = file is not None and file.exists()
        if not is_there or (name and f"def {name.rpartition('::')[2]}(" not in file.read_text()):
            missing.append(cited)
    assert missing == []
