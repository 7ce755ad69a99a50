"""The common parts of the benchmarks: a server, fresh databases, and verdicts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from flowfabric import embedded

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent

# The settings of a small production server, with full durability.
SERVER_OPTIONS = {
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
    "min_wal_size": "2GB",
    "max_connections": "300",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
}


def say(text: str) -> None:
    """Print progress to stderr. Figures go to stdout."""
    print(text, file=sys.stderr, flush=True)


@asynccontextmanager
async def server(**more: str) -> AsyncIterator[str]:
    """Yield the URL in BENCH_DSN. If it is not set, start a server for the block and yield its URL.

    `more` are extra settings for the started server.
    """
    if dsn := os.environ.get("BENCH_DSN"):
        say("server: BENCH_DSN")
        yield dsn
        return
    with tempfile.TemporaryDirectory(prefix="ffbench-", ignore_cleanup_errors=True) as folder:
        # Under root, the server runs as another user, and that user must be able to reach its data.
        os.chmod(folder, 0o755)
        chosen = {**SERVER_OPTIONS, **more}
        with embedded.start(Path(folder), options=chosen) as started:
            options = " ".join(f"{name}={value}" for name, value in chosen.items())
            say(f"server: PostgreSQL {started.version}, {options}")
            await _age(started.url)
            yield started.url


@asynccontextmanager
async def database(admin: str, name: str) -> AsyncIterator[str]:
    """Create a fresh database on the server, and drop it at the end of the block."""
    await _execute(admin, f'drop database if exists "{name}" with (force)')
    await _execute(admin, f'create database "{name}"')
    # Write dirty pages of an earlier run to disk now, so that they do not slow down this run.
    await _execute(admin, "checkpoint")
    try:
        yield urlunsplit(urlsplit(admin)._replace(path=f"/{name}"))
    finally:
        await _execute(admin, f'drop database if exists "{name}" with (force)')


async def _age(url: str) -> None:
    """Make a new server create the WAL files that an older server already has.

    Otherwise the server spends a tenth of the first runs on filling new files with zeros, and the
    benchmark that writes more WAL loses more time.
    """
    connection = await asyncpg.connect(url)
    try:
        for _ in range(100):
            await connection.execute("select pg_logical_emit_message(false, 'bench', '')")
            await connection.execute("select pg_switch_wal()")
        await connection.execute("checkpoint")
    finally:
        await connection.close()


async def postmaster(url: str) -> str:
    """Return the process id of a server on this machine."""
    connection = await asyncpg.connect(url)
    try:
        written: str = await connection.fetchval("select pg_read_file('postmaster.pid')")
    finally:
        await connection.close()
    return written.split()[0]


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def environment(name: str, packages: Sequence[str]) -> Path:
    """Create a virtual environment with these packages if needed. Return the path of its Python."""
    folder = ROOT / name
    python = folder / "bin" / "python"
    made_for = folder / "made_for.txt"
    wanted = "\n".join(packages) + "\n"
    if made_for.exists() and made_for.read_text() == wanted:
        return python
    say(f"making {folder.name} with {', '.join(packages)}")
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *packages], check=True, stdout=sys.stderr)
    made_for.write_text(wanted)
    return python


@dataclass(frozen=True)
class Rule:
    """A bar that a figure must meet, and a goal that it should meet."""

    subject: str
    bar: float
    goal: float | None
    at_most: bool = False
    unit: str = "x"

    def judge(self, value: float) -> Verdict:
        return Verdict(self, value)


@dataclass(frozen=True)
class Verdict:
    rule: Rule
    value: float

    @property
    def meets_bar(self) -> bool:
        return self._meets(self.rule.bar)

    @property
    def word(self) -> str:
        if self.rule.goal is not None and self._meets(self.rule.goal):
            return "goal met"
        return "bar met" if self.meets_bar else "MISSED"

    def line(self) -> str:
        """Return one row of the table."""
        rule = self.rule
        sign = "<=" if rule.at_most else ">="
        goal = "-" if rule.goal is None else f"{sign} {rule.goal:g} {rule.unit}"
        return (
            f"{rule.subject:<58} {self.value:>8.2f} {rule.unit:<2}  "
            f"{f'{sign} {rule.bar:g} {rule.unit}':<10} {goal:<10} {self.word}"
        )

    def record(self) -> str:
        """Return the verdict as JSON."""
        rule = self.rule
        return json.dumps(
            {
                "verdict": rule.subject,
                "value": round(self.value, 3),
                "unit": rule.unit,
                "bar": rule.bar,
                "goal": rule.goal,
                "met": self.word,
            }
        )

    def _meets(self, limit: float) -> bool:
        return self.value <= limit if self.rule.at_most else self.value >= limit


def conclude(verdicts: Sequence[Verdict]) -> int:
    """Print the verdicts as a table. Return exit code 1 if a bar is missed."""
    print(f"\n{'figure':<58} {'value':>8}     {'bar':<10} {'goal':<10} verdict")
    for verdict in verdicts:
        print(verdict.line())
    sys.stdout.flush()
    return 0 if all(verdict.meets_bar for verdict in verdicts) else 1
