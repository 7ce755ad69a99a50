"""mypy and pyright accept what is right and reject what is wrong, line by line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "src"
GOOD, BAD = HERE / "good.py", HERE / "bad.py"
SHOP = HERE.parents[1] / "examples" / "shop"

# What a checker says about a file: the line, and the words.
Found = list[tuple[str, int, str]]


def mypy(cache: Path) -> Found:
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--no-error-summary"),
            *("--config-file", "", "--cache-dir", str(cache), "--hide-error-context"),
            *("--no-pretty", "--no-color-output", GOOD.name, BAD.name),
        ],
        capture_output=True,
        text=True,
        cwd=HERE,
        env={**os.environ, "MYPYPATH": str(SOURCES)},
    )
    assert finished.returncode in (0, 1), finished.stdout + finished.stderr
    found = []
    for line in finished.stdout.splitlines():
        match = re.match(r"(.+?):(\d+): (error|note): (.*)", line)
        assert match, f"about something else: {line}"
        if match[3] == "error":
            found.append((match[1], int(match[2]), match[4]))
    return found


def pyright(_cache: Path) -> Found:
    """It comes with its own node and asks nobody. mypy reads the shop in `make check`."""
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "pyright", "--outputjson"),
            *("--pythonpath", sys.executable, GOOD.name, BAD.name, str(SHOP)),
        ],
        capture_output=True,
        text=True,
        cwd=HERE,
        env={**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
    )
    assert finished.returncode in (0, 1), finished.stdout + finished.stderr
    return [
        (Path(one["file"]).name, one["range"]["start"]["line"] + 1, one["message"])
        for one in json.loads(finished.stdout)["generalDiagnostics"]
    ]


@pytest.fixture(scope="module", params=[mypy, pyright], ids=["mypy", "pyright"])
def told(request: pytest.FixtureRequest) -> Found:
    check: Callable[[Path], Found] = request.param
    return check(request.config.cache.mkdir("typing"))


def marked() -> dict[int, str]:
    lines = enumerate(BAD.read_text(encoding="utf-8").splitlines(), 1)
    return {number: line for number, line in lines if "# bad" in line}


def test_what_is_right_is_accepted(told: Found) -> None:
    assert [one for one in told if one[0] == GOOD.name] == []


def test_every_mistake_is_found(told: Found) -> None:
    found = {line for file, line, _ in told if file == BAD.name}
    assert [line for number, line in marked().items() if number not in found] == []


def test_nothing_else_is_complained_about(told: Found) -> None:
    marks = marked()
    assert len(marks) > 25
    assert [one for one in told if one[0] == BAD.name and one[1] not in marks] == []
    assert {file for file, _, _ in told} <= {GOOD.name, BAD.name}
