"""The site: every page has its place, and the checker finds what is wrong with a built one."""

from __future__ import annotations

import importlib.util
import re
import sys
from types import ModuleType

import pytest

from docs.pages import ROOT


@pytest.fixture
def build_site(monkeypatch, tmp_path) -> ModuleType:
    """tools/build_site.py as a module that works in a folder of the test's own."""
    spec = importlib.util.spec_from_file_location("build_site", ROOT / "tools" / "build_site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "build_site", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "BUILD", tmp_path)
    return module


def test_every_page_has_its_place_in_the_navigation(build_site, tmp_path):
    build_site.stage()
    settings = (tmp_path / "zensical.toml").read_text()
    pages = {str(file.relative_to(tmp_path / "pages")) for file in tmp_path.rglob("*.md")}
    assert set(re.findall(r'"([\w/.-]+\.md)"', settings)) == pages
    start = (tmp_path / "pages" / "index.md").read_text()
    assert "](guide/quickstart.md)" in start
    assert "](docs/" not in start


def test_llms_txt_names_every_page_with_its_first_paragraph(build_site, tmp_path):
    build_site.stage()
    lines = build_site.llms(tmp_path / "pages").splitlines()
    pages = list(tmp_path.rglob("*.md"))
    listed = [line for line in lines if line.startswith("- [")]
    assert len(listed) == len(pages)
    assert all(re.fullmatch(r"- \[.+\]\([\w/.-]+\.md\): \S.+", line) for line in listed)


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        ('<h1 id="a"></h1><a href="#a"></a><a href="https://example.org/"></a>', None),
        ('<a href="other.html#b"></a><img src="picture.svg">', None),
        ('<a href="gone.html"></a>', "index.html: gone.html is a broken link"),
        ('<a href="#gone"></a>', "index.html: #gone has no such anchor"),
        ('<a href="other.html#gone"></a>', "index.html: other.html#gone has no such anchor"),
        ('<script src="//cdn.example/x.js"></script>', "index.html loads //cdn.example/x.js"),
        (
            '<link rel="stylesheet" href="https://fonts.example/f.css">',
            "index.html loads https://fonts.example/f.css",
        ),
        (
            "<style>@import 'https://fonts.example/f.css'</style>",
            "index.html loads https://fonts.example/f.css",
        ),
    ],
)
def test_the_checker_finds_broken_links_and_what_is_loaded_from_elsewhere(
    build_site, tmp_path, page, problem
):
    policy = build_site.POLICY
    (tmp_path / "index.html").write_text(f"<html>{policy}{page}</html>")
    (tmp_path / "other.html").write_text(f'<html>{policy}<p id="b"></html>')
    assert build_site.problems(tmp_path) == ([problem] if problem else [])


def test_a_page_that_does_not_forbid_other_places_is_found(build_site, tmp_path):
    (tmp_path / "index.html").write_text("<html></html>")
    (tmp_path / "main.css").write_text("a { background: url(https://cdn.example/a.png) }")
    assert build_site.problems(tmp_path) == [
        "index.html may load files from other hosts",
        "main.css loads https://cdn.example/a.png",
    ]


def test_every_folder_that_the_internals_name_is_there():
    text = (ROOT / "docs" / "internals" / "README.md").read_text()
    named = re.findall(r"`((?:src|tests|tools|benchmarks)[\w/]*)`", text)
    assert len(named) > 30
    assert [name for name in named if not (ROOT / name).is_dir()] == []
    tests = {f"tests/{one.name}" for one in (ROOT / "tests").iterdir() if one.is_dir()}
    assert {name for name in tests if "__" not in name} - set(named) == set()
