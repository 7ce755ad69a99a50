"""The pages of the docs as tests see them: blocks of code, console sessions, programs that run."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from support.database import Database
from worker.apps import working

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "operating.md",
    *sorted((ROOT / "docs" / "guide").glob("*.md")),
]
NOT_RUN = re.compile(r"<!-- not run: (.+?) -->\n+$")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@dataclass(frozen=True)
class Block:
    """A fenced block; `not_run` is the reason why no test runs it."""

    page: Path
    line: int
    language: str
    text: str
    not_run: str | None

    def __str__(self) -> str:
        return f"{name_of(self.page)}:{self.line}"


@dataclass(frozen=True)
class Command:
    """A line of a console block, and what it prints there."""

    block: Block
    line: str
    output: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.line, comments=True)

    def __str__(self) -> str:
        return f"{self.block}: {self.line}"


def blocks(page: Path, language: str | None = None) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in re.finditer(r"^( *)```(\w*)\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL):
        before = text[: found.start()]
        reason = NOT_RUN.search(before)
        if language is None or found[2] == language:
            yield Block(
                page, before.count("\n") + 1, found[2], found[3], reason[1] if reason else None
            )


def commands(page: Path) -> Iterator[Command]:
    for block in blocks(page, "console"):
        if block.not_run is None:
            for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
                line, _, output = part.partition("\n")
                yield Command(block, line, output)


@dataclass
class Program:
    """The Python blocks of a page as one module, run in order on the database of a test.

    A block may await at its top level. A worker of the page's app runs meanwhile, and when all
    executions sleep, the time passes until the first of them is due.
    """

    db: Database
    module: ModuleType
    needs: tuple[str, ...] = ()

    @property
    def names(self) -> dict[str, Any]:
        return vars(self.module)

    async def run(self, page: Path) -> None:
        for block in blocks(page, "python"):
            if block.not_run is None:
                await self.run_text(block.text, name_of(page), block.line)

    async def run_text(self, text: str, file: str, line: int = 0) -> None:
        """Statement by statement, so that a worker knows what stands above the first await."""
        async with AsyncExitStack() as around:
            is_working = False
            for statement in ast.parse("\n" * line + text).body:
                code = compile(
                    ast.Module([statement], []),
                    file,
                    "exec",
                    flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
                    dont_inherit=True,
                )
                waiting = eval(code, self.names)
                if not inspect.iscoroutine(waiting):
                    continue
                if not is_working and getattr(app := self.names.get("app"), "tasks", None):
                    await around.enter_async_context(working(app, needs=self.needs))
                    around.enter_context(_Meanwhile(self._let_time_pass()))
                    is_working = True
                await asyncio.wait_for(waiting, 60)

    async def _let_time_pass(self) -> None:
        while True:
            await self.db.fetchval(
                "select ff_test.advance_clock(min(delayed_until) - ff.now()) from ff.execution"
                " having min(delayed_until) > ff.now()"
                " and not bool_or(public_state in ('active', 'waiting'))"
            )
            await asyncio.sleep(0.05)


class _Meanwhile:
    """A task that runs during a block."""

    def __init__(self, work: Any) -> None:
        self.task = asyncio.create_task(work)

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self.task.cancel()


def new_module(name: str) -> ModuleType:
    """A module that type hints are looked up in; the test removes it from sys.modules."""
    module = sys.modules[name] = ModuleType(name)
    return module


UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
DIFFERS = (
    (UUID, "UUID"),
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d+)?)?", "TIME"),
    (r"\b\d+(\.\d+)? ?(ms|s|min|m|h|d)\b", "DURATION"),
    (r"\b(process|pid) \d+", r"\1 NUMBER"),
    (r"Postgres \d+(\.\d+)?", "Postgres VERSION"),
)


def same(text: str) -> str:
    """What a command prints without what differs from run to run: ids, times, durations."""
    for pattern, word in DIFFERS:
        text = re.sub(pattern, word, text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())
