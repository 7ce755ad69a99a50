"""Runs pytest as a user does: in a folder of its own, with whatever plugins are installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest

from support.isolation import chosen_binaries


@dataclass(frozen=True)
class Outcome:
    """How a run of pytest ended."""

    code: int
    output: str

    def count(self, word: str) -> int:
        found = re.search(rf"(\d+) {word}", self.output.splitlines()[-1])
        return int(found[1]) if found else 0


Suite = Callable[..., Outcome]


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    """`suite("-x", test_a="...", VARIABLE="...")` writes test_a.py and runs pytest on it."""

    def run(*options: str, **given: str) -> Outcome:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("FLOWFABRIC_", "PYTEST_", "DATABASE_URL"))
        }
        variables = {name: text for name, text in given.items() if name.isupper()}
        for name, text in given.items():
            if not name.isupper():
                (tmp_path / f"{name}.py").write_text(dedent(text))
        finished = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", *options],
            cwd=tmp_path,
            env=kept | chosen_binaries() | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=280,
        )
        return Outcome(finished.returncode, finished.stdout)

    return run
