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


def marked() -> dict[int, str]:
    lines = enumerate(BAD.read_text(encoding="utf-8").splitlines(), 1)
    return {number: line for number, line in lines if "# bad" in line}


# One test for each checker: it reads the whole package, and tests of a file run in all processes.
@pytest.mark.slow
@pytest.mark.parametrize("check", [mypy, pyright])
def test_what_is_right_is_accepted_and_every_mistake_is_found(
    check: Callable[[Path], Found], pytestconfig: pytest.Config
) -> None:
    assert pytestconfig.cache is not None
    told = check(pytestconfig.cache.mkdir("typing"))
    assert [one for one in told if one[0] == GOOD.name] == []
    marks = marked()
    assert len(marks) > 25
    found = {line for file, line, _ in told if file == BAD.name}
    assert [line for number, line in marks.items() if number not in found] == []
    # Nothing else is complained about.
    assert [one for one in told if one[0] == BAD.name and one[1] not in marks] == []
    assert {file for file, _, _ in told} <= {GOOD.name, BAD.name}
