"""Running commands on the database of a test, without and with a terminal."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from flowfabric.cli.main import app
from support.commands import command_of, invoke
from support.database import home
from support.factories import NAMESPACE


@dataclass(frozen=True, slots=True)
class Finished:
    """How a command ended; `err` without the frame that usage errors have."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def line(self) -> dict[str, Any]:
        (line,) = self.lines
        return line


class Commands:
    """Runs `flowfabric ...` in this process as a program would: with `-o json`, or another form
    that the test names."""

    def __init__(self, url: str) -> None:
        self.url = url

    def environment(self, url: str | None) -> dict[str, str]:
        return {"FLOWFABRIC_DATABASE_URL": url or self.url}

    async def __call__(
        self,
        *arguments: str,
        url: str | None = None,
        stdin: str | None = None,
        is_program: bool = True,
    ) -> Finished:
        result = await invoke(
            *(_json_asked(arguments) if is_program else ()),
            *arguments,
            input=stdin,
            env={
                **self.environment(url),
                "FLOWFABRIC_NAMESPACE": NAMESPACE,
                "COLUMNS": "200",
                "NO_COLOR": "1",
            },
        )
        talk = " ".join(result.stderr.replace("│", " ").replace("─", " ").split())
        return Finished(result.exit_code, result.stdout, talk)

    async def on_terminal(
        self, *arguments: str, typed: str = "", columns: int = 80
    ) -> tuple[int, str]:
        """The same on a terminal of its own; returns the exit code and all that was shown."""
        ours, theirs = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "flowfabric", *arguments),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={
                "PATH": os.environ["PATH"],
                "TERM": "xterm",
                "NO_COLOR": "1",
                "COLUMNS": str(columns),
                "FLOWFABRIC_DATABASE_URL": self.url,
                "FLOWFABRIC_NAMESPACE": NAMESPACE,
            },
        )
        os.close(theirs)
        os.write(ours, typed.encode())
        shown = await asyncio.to_thread(_read_all, ours)
        return await process.wait(), shown.replace("\r\n", "\n")


def _json_asked(arguments: Sequence[str]) -> Sequence[str]:
    """`-o json` for a command that lists or reports; `submit` prints an id, a picture is a file."""
    found: Any = command_of(app)
    for word in arguments:
        found = getattr(found, "commands", {}).get(word, found)
    is_asked = any(one.name == "output" for one in found.params) and not hasattr(found, "commands")
    return ["-o", "json"] if is_asked and not {"submit", "--svg"} & set(arguments) else []


def _read_all(terminal: int) -> str:
    parts = []
    try:
        while part := os.read(terminal, 65536):
            parts.append(part)
    except OSError:  # how a terminal says that it is over
        pass
    finally:
        os.close(terminal)
    return b"".join(parts).decode()


def full(uuid: UUID | None) -> str:
    return f"{{fp:{home()}}}:{uuid}"
