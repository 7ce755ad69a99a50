"""Compiles the tests once, before xdist starts its processes.

In a fresh clone no test is compiled yet. Each process of xdist imports all tests, in the same order
at the same time, and would rewrite the asserts of every file itself: eight seconds of CPU each.
"""

from __future__ import annotations

import compileall
import importlib.util
import os
import sys
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

_TESTS = Path(__file__).parents[1]
_SOURCES = _TESTS.parent / "src"


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile all files before xdist starts its processes. A run of a part needs only that part."""
    runs_all = [Path(one) for one in session.config.args] in ([Path("tests")], [_TESTS])
    if (
        session.config.pluginmanager.hasplugin("dsession")
        and runs_all
        and not sys.dont_write_bytecode
    ):
        compile_all(sorted(_TESTS.rglob("*.py")) + sorted(_SOURCES.rglob("*.py")))


def compile_all(files: list[Path]) -> None:
    """Compile files on all cores. A file that was compiled before takes no time."""
    sys.stdout.flush()
    children = []
    cores = os.cpu_count() or 1
    for number in range(cores):
        if (child := os.fork()) == 0:
            try:
                _compile(files[number::cores])
            except BaseException:
                # A file that cannot be compiled is reported when it is collected.
                os._exit(1)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


def _compile(files: list[Path]) -> None:
    # The importer of pytest rewrites, stores and executes a module; it shall not execute it.
    vars(rewrite)["exec"] = lambda *_: None
    for file in files:
        if file.name.startswith("test_") or file.name == "conftest.py":
            name = ".".join(file.relative_to(_TESTS).with_suffix("").parts)
            spec = importlib.util.find_spec(name)
            assert spec is not None
            assert isinstance(spec.loader, rewrite.AssertionRewritingHook), name
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
        else:
            compileall.compile_file(file, quiet=2)
