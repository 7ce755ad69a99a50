"""Build the site from docs/ into build/docs/site, and check its links.

    python tools/build_site.py            build; exit with 1 if a link or an anchor is broken

The start page is README.md. CONTRIBUTING.md, CHANGELOG.md and the examples are pages as well, so
that links to them work. The site also contains the Markdown source of every page, and llms.txt.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
SITE = Path(__file__).with_name("site")
BUILD = ROOT / "build" / "docs"

# An entry is the path of a page below docs, or a pattern for all pages that have no entry.
Navigation: TypeAlias = "dict[str, str | list[str]]"
NAVIGATION: Navigation = {
    "Start": "index.md",
    "Quickstart": "guide/quickstart.md",
    "Guides": [
        "guide/tasks.md",
        "guide/retries.md",
        "guide/hooks.md",
        "guide/signals.md",
        "guide/streams.md",
        "guide/steps.md",
        "guide/transactional-steps.md",
        "guide/long-lived-executions.md",
        "guide/deploys.md",
        "guide/flows.md",
        "guide/schedules.md",
        "guide/subscriptions.md",
        "guide/webhooks.md",
        "guide/transactional-submit.md",
        "guide/web-applications.md",
        "guide/http-api.md",
        "guide/tokens-and-tenants.md",
        "guide/workers-in-other-languages.md",
        "guide/metrics-and-alerts.md",
        "guide/dependencies.md",
        "guide/testing.md",
        "guide/logging.md",
        "guide/tracing.md",
        "guide/*.md",
    ],
    "Coming from": [
        "guide/coming-from-celery.md",
        "guide/coming-from-temporal.md",
        "guide/coming-from-dbos.md",
        "guide/coming-from-prefect.md",
    ],
    "Operating": [
        "operating.md",
        "guide/deployment.md",
        "guide/growing.md",
        "guide/backup-and-failover.md",
        "guide/limits.md",
    ],
    "Reference": [
        "reference/README.md",
        "reference/python.md",
        "reference/client.md",
        "reference/cli.md",
        "reference/functions.md",
        "reference/states.md",
        "reference/events.md",
        "reference/errors.md",
        "reference/checks.md",
        "reference/*.md",
    ],
    "Reliability": "reliability.md",
    "Benchmarks": "benchmarks.md",
    "Architecture": "architecture.md",
    "Glossary": "glossary.md",
    "Examples": ["examples/index.md", "examples/*.md", "examples/**/*.md"],
    "Decisions": ["decisions/README.md", "decisions/*.md"],
    "Internals": ["internals/README.md", "contributing.md", "changelog.md", "internals/*.md"],
}
# Files outside docs that are pages of the site.
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "src/flowfabric/sql/README.md": "internals/sql.md",
    "examples": "examples/index.md",
}
# This header tells the browser to load nothing from other hosts.
POLICY = re.findall(r"<meta.+?>", (SITE / "theme" / "main.html").read_text(encoding="utf-8"))[0]
LOADED = re.compile(r"(?:@import|url\()\s*['\"]?((?:https?:)?//[^'\")\s]+)")
CODE = re.compile(r"`[^`]+`")
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")


def stage() -> None:
    """Copy all pages to build/docs/pages, and rewrite their links to point to each other."""
    shutil.rmtree(BUILD, ignore_errors=True)
    pages = BUILD / "pages"
    shutil.copytree(ROOT / "docs", pages)
    shutil.copytree(SITE / "assets", pages / "assets")
    shutil.copytree(SITE / "theme", BUILD / "theme")
    sources = {ROOT / "docs" / (at := file.relative_to(pages)): at for file in pages.rglob("*.md")}
    for name, page in OUTSIDE.items():
        if (ROOT / name).is_file():
            sources[ROOT / name] = Path(page)
    places = {**sources, **{ROOT / name: Path(page) for name, page in OUTSIDE.items()}}
    examples = sorted((ROOT / "examples").rglob("*.py"))
    for file in examples:
        places[file] = file.relative_to(ROOT).with_suffix(".md")
    for file in pages.rglob("*"):
        places.setdefault(ROOT / "docs" / (at := file.relative_to(pages)), at)
    for source, page in sources.items():
        text = source.read_text(encoding="utf-8")
        (pages / page).write_text(_relinked(text, source, page, places), encoding="utf-8")
    _stage_examples(examples, pages)
    settings = (SITE / "zensical.toml").read_text(encoding="utf-8")
    head, marker, tail = settings.partition("[project.theme]")
    nav = ",\n  ".join(_navigation(pages))
    (BUILD / "zensical.toml").write_text(f"{head}nav = [\n  {nav},\n]\n\n{marker}{tail}")


def _relinked(text: str, source: Path, page: Path, places: dict[Path, Path]) -> str:
    def replaced(match: re.Match[str]) -> str:
        target = (source.parent / match[1]).resolve()
        if target.is_dir() and (target / "README.md") in places:
            target /= "README.md"
        if target not in places:
            return match[0]
        return os.path.relpath(places[target], page.parent) + (match[2] or "")

    # In code inside a table, GitHub needs `\|` for a pipe, but Python-Markdown would show the
    # backslash.
    rows = re.sub(r"^\|.*$", lambda row: CODE.sub(_without_escapes, row[0]), text, flags=re.M)
    return LINK.sub(replaced, rows)


def _without_escapes(code: re.Match[str]) -> str:
    return code[0].replace("\\|", "|")


def _stage_examples(examples: list[Path], pages: Path) -> None:
    lines = [
        "# Examples",
        "",
        "Programs that the tests run. The first lines of each say how to start it.",
        "",
    ]
    for file in examples:
        text = file.read_text(encoding="utf-8")
        name = file.relative_to(ROOT / "examples")
        told = (ast.get_docstring(ast.parse(text)) or str(name)).partition("\n\n")[0]
        page = pages / "examples" / name.with_suffix(".md")
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(f"# {name}\n\n{told}\n\n```python\n{text}```\n", encoding="utf-8")
        lines.append(f"- [{name}]({name.with_suffix('.md')}): {' '.join(told.split())}")
    (pages / "examples" / "index.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def sections(pages: Path) -> Iterator[tuple[str, str | list[str]]]:
    """Yield the entries of NAVIGATION, with each pattern replaced by the pages that match."""
    named = {
        page
        for entry in NAVIGATION.values()
        for page in (entry if isinstance(entry, list) else [entry])
    }
    left = {str(file.relative_to(pages)) for file in pages.rglob("*.md")}
    for title, entry in NAVIGATION.items():
        if isinstance(entry, str):
            left.discard(entry)
            yield title, entry
            continue
        found: list[str] = []
        for pattern in entry:
            if "*" in pattern:
                files = sorted(str(file.relative_to(pages)) for file in pages.glob(pattern))
                found += (file for file in files if file not in named and file not in found)
            elif (pages / pattern).exists():
                found.append(pattern)
        left.difference_update(found)
        yield title, found
    if left:
        raise SystemExit(f"not in the navigation of tools/build_site.py: {', '.join(sorted(left))}")


def _navigation(pages: Path) -> Iterator[str]:
    for title, entry in sections(pages):
        if isinstance(entry, str):
            yield f'{{ "{title}" = "{entry}" }}'
        else:
            listed = ", ".join(f'{{ "{_title(pages / page)}" = "{page}" }}' for page in entry)
            yield f'{{ "{title}" = [{listed}] }}'


def _title(page: Path) -> str:
    found = re.search(r"^# (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise SystemExit(f"{page.name} has no title")
    return found[1].replace("`", "").replace('"', "'")


def llms(pages: Path) -> str:
    """Write llms.txt, the index for programs: each page with its first paragraph."""
    found = list(sections(pages))
    alone = [entry for _, entry in found if isinstance(entry, str)]
    lists = [("Pages", alone), *((title, entry) for title, entry in found if entry not in alone)]
    lines = ["# flowfabric", "", f"> {_opening(pages / 'index.md')}"]
    for title, listed in lists:
        lines += ["", f"## {title}", ""]
        lines += (
            f"- [{_title(pages / page)}]({page}): {_opening(pages / page)}" for page in listed
        )
    return "\n".join(lines) + "\n"


def _opening(page: Path) -> str:
    """Return the first paragraph of prose on a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for part in text.split("\n\n"):
        if part.strip() and part.lstrip()[0] not in "#<|-*!":
            return " ".join(re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", part).split())
    raise SystemExit(f"{page.name} has no text")


# Check the built pages


@dataclass
class Page(HTMLParser):
    """One built page: its anchors, its links, and the files that a browser loads with it."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors.update(value for name in ("id", "name") if (value := given.get(name)))
        if tag == "a" and (href := given.get("href")) is not None:
            self.links.append(href)
        elif tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.loads.append(given.get("href") or "")
        elif tag != "a":
            self.loads += (value for name in ("src", "data") if (value := given.get(name)))


def problems(site: Path) -> list[str]:
    """List broken links and anchors, and files that are loaded from another host."""
    found = []
    pages = {}
    for file in sorted(site.rglob("*.html")):
        text = file.read_text(encoding="utf-8")
        if POLICY not in text:
            found.append(f"{file.relative_to(site)} may load files from other hosts")
        page = pages[file] = Page()
        page.feed(text)
        styles = re.findall(r"<style[^>]*>(.*?)</style>", text, re.DOTALL)
        page.loads += (url for style in styles for url in LOADED.findall(style))
    for file, page in pages.items():
        name = file.relative_to(site)
        for link in dict.fromkeys(page.links):
            split = urlsplit(link)
            if split.scheme or split.netloc:
                continue
            target = (file.parent / unquote(split.path)).resolve() if split.path else file
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                found.append(f"{name}: {link} is a broken link")
            elif split.fragment and unquote(split.fragment) not in pages[target].anchors:
                found.append(f"{name}: {link} has no such anchor")
        found += (f"{name} loads {source}" for source in page.loads if urlsplit(source).netloc)
    for file in sorted(site.rglob("*.css")):
        urls = LOADED.findall(file.read_text(encoding="utf-8"))
        found += (f"{file.relative_to(site)} loads {url}" for url in urls)
    return found


def main(arguments: list[str]) -> int:
    if arguments:
        print(__doc__)
        return 2
    stage()
    built = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=BUILD,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
    )
    if built.returncode:
        told = (built.stdout + built.stderr).partition("Traceback")[0]
        print(re.sub(r"\x1b\[[\d;]*m", "", told))
        return 1
    site = BUILD / "site"
    (site / "404.html").unlink()  # its links would depend on the address of the site
    shutil.copytree(BUILD / "pages", site, dirs_exist_ok=True)
    (site / "llms.txt").write_text(llms(BUILD / "pages"), encoding="utf-8")
    for problem in (found := problems(site)):
        print(problem)
    if not found:
        count = len(list(site.rglob("*.html")))
        print(f"{count} pages in {(site / 'index.html').relative_to(ROOT)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
