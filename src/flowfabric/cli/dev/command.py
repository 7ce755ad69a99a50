"""The command itself: it holds the database, and starts the worker anew after every save."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, time
from typing import Any, TypeVar

import typer

from flowfabric.cli.dev.child import DRAIN, EXIT_BROKEN, HURRY
from flowfabric.cli.dev.watch import Watch
from flowfabric.cli.imports import APP_ARGUMENT, check_app_reference
from flowfabric.cli.options import EXIT_DOES_NOT_FIT, EXIT_INTERRUPTED, Database
from flowfabric.cli.output import complain, has_colour
from flowfabric.cli.worker import split
from flowfabric.config import Settings, unknown_variables
from flowfabric.core.errors import Unavailable
from flowfabric.db import migrate as schema
from flowfabric.db.connection import open_connection, place
from flowfabric.drawing.text import printable
from flowfabric.embedded import EmbeddedError, Server
from flowfabric.embedded import start as start_server

T = TypeVar("T")

# Giving back what runs, and leaving the database, come on top of the drain.
KILL_SECONDS = DRAIN.total_seconds() + 10.0
# As long a worker that was told twice may take to give back what runs.
HURRIED_SECONDS = 8.0
RESTART_SECONDS = 1.0
_LABEL = 10
_CHILD = "from flowfabric.cli.dev.child import main; main()"


def dev(
    database: Database,
    app: str = APP_ARGUMENT,
    yes: bool = typer.Option(
        False, "--yes", help="Also migrate a database that is not the project's own."
    ),
    concurrency: int = typer.Option(
        20, "--concurrency", "-c", min=1, help="How many executions run at once."
    ),
    lanes: str | None = typer.Option(
        None, "--lanes", "-l", metavar="A,B", help="Only these lanes. Default: all of its tasks."
    ),
    needs: str | None = typer.Option(
        None, "--needs", metavar="GPU,...", help="Capabilities the worker has."
    ),
) -> int:
    """Run everything for development: database, schema, and a worker that restarts on save.

    Without a database of yours it uses a Postgres of the project's own, in .flowfabric/. One Ctrl-C
    ends all of it; a second one does not wait for what runs, but gives it back.
    """
    check_app_reference(app)
    settings = Settings.from_environment()
    for sentence in unknown_variables():
        complain(sentence)
    session = Session(
        app,
        database_url=database.database_url,
        may_migrate=yes,
        wanted={
            "app": app,
            "log_format": settings.log_format,
            "log_level": settings.log_level,
            "options": {
                "concurrency": concurrency,
                "lanes": split(lanes),
                "needs": split(needs) or [],
            },
        },
    )
    return asyncio.run(session.run())


@dataclass
class Child:
    """A worker process, and what it has told."""

    process: asyncio.subprocess.Process
    lines: asyncio.StreamReader
    answers: asyncio.StreamWriter
    started: float
    is_working: bool = False

    async def told(self) -> dict[str, Any] | None:
        """The next thing it tells; None when it has ended."""
        with suppress(ConnectionError):
            if line := await self.lines.readline():
                found: dict[str, Any] = json.loads(line)
                return found
        return None

    async def end(self) -> None:
        """Tell it to stop, and see to it that it does."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.terminate()
            try:
                await asyncio.wait_for(self.process.wait(), KILL_SECONDS)
            except TimeoutError:
                complain("the worker does not stop: killed; its work is taken over in a while")
                self.kill()
        await self.process.wait()
        self.answers.close()

    def hurry(self) -> None:
        """Tell it to stop at once, and see to it that it does."""
        with suppress(ProcessLookupError):
            self.process.send_signal(HURRY)
        asyncio.get_running_loop().call_later(HURRIED_SECONDS, self.kill)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()


@dataclass
class Session:
    """One run of the command."""

    app: str
    database_url: str | None
    may_migrate: bool
    wanted: dict[str, Any]
    code: int = 0
    is_introduced: bool = False
    _place: tuple[str | None, str] | None = None
    _url: str = ""
    _example: str | None = None
    _server: Server | None = None
    _child: Child | None = None
    _watch: Watch = field(default_factory=Watch)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._stop)
        try:
            while not self._stopping.is_set():
                await self._work()
        finally:
            if self._child is not None:
                await self._child.end()
            if self._server is not None:
                await asyncio.to_thread(self._server.release)
        return self.code

    def _stop(self) -> None:
        if not self._stopping.is_set():
            self._stopping.set()
            if self._child is not None and self._child.is_working:
                _tell(
                    "stop", "when what runs has ended, in 2 s at most; Ctrl-C again does not wait"
                )
        elif (child := self._child) is not None and child.process.returncode is None:
            if self.code != EXIT_INTERRUPTED:
                self.code = EXIT_INTERRUPTED
                child.hurry()
            else:
                child.kill()

    async def _work(self) -> None:
        """One worker, until a file is saved, it dies, or everything stops."""
        child = self._child = await self._start()
        stopping = asyncio.create_task(self._stopping.wait())
        ended = asyncio.create_task(self._listen(child))
        saved = asyncio.create_task(self._watch.saved())
        try:
            await asyncio.wait([stopping, ended, saved], return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                pass
            elif saved.done():
                _tell("saved", f"{_shown(saved.result())}: restarting the worker")
            else:
                saved.cancel()
                ended.result()
                await self._after(child)
        finally:
            for task in (stopping, ended, saved):
                task.cancel()
        await child.end()
        self._child = None

    async def _start(self) -> Child:
        started = time()
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", _CHILD, str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                # A file saved twice within a second would look as old as its bytecode.
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            )
        lines, answers = await asyncio.open_connection(sock=ours)
        answers.write(json.dumps(self.wanted).encode() + b"\n")
        return Child(process, lines, answers, started)

    async def _listen(self, child: Child) -> None:
        """Do what the child needs, and note what it tells, until it has ended."""
        while (told := await child.told()) is not None:
            self._watch.follow(told.get("files", ()), child.started)
            if "tasks" in told:
                await self._choose_database(told)
                if self._stopping.is_set():
                    return
                answer = json.dumps({"database_url": self._url})
                child.answers.write(answer.encode() + b"\n")
            if told.get("is_working"):
                child.is_working = True
                self._introduce(child)
        await child.process.wait()

    def _introduce(self, child: Child) -> None:
        if self.is_introduced:
            return
        _tell("worker", f"process {child.process.pid}, restarts when a file is saved")
        if self._example:
            _tell("try", self._example)
        _tell("stop", "Ctrl-C")
        self.is_introduced = True

    async def _after(self, child: Child) -> None:
        """A worker ended by itself: go on when that may help."""
        code = await child.process.wait()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        if code == EXIT_BROKEN or not child.is_working:
            if code != EXIT_BROKEN:
                _tell("worker", f"ended before it could start ({how})")
            _tell("waiting", "for the next save")
            file = await self._either(self._watch.saved(Path.cwd(), child.started))
            if file is not None:
                _tell("saved", f"{_shown(file)}: starting the worker")
            return
        _tell("worker", f"ended by itself ({how}); starting another")
        await self._either(asyncio.sleep(RESTART_SECONDS))

    async def _either(self, other: Coroutine[Any, Any, T]) -> T | None:
        """Wait for something, but not longer than for the end of everything (None)."""
        wanted = asyncio.create_task(other)
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait([wanted, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if wanted.done():
            return wanted.result()
        wanted.cancel()
        return None

    # The database

    async def _choose_database(self, told: dict[str, Any]) -> None:
        """The database that the app asks for, with our schema in it."""
        self._example = told["example"]
        wanted = (self.database_url or told["database_url"], told["project"])
        if wanted == self._place:
            return
        tasks = told["tasks"]
        number = "1 task" if len(tasks) == 1 else f"{len(tasks)} tasks"
        listed = ", ".join(tasks[:5]) + (", …" if len(tasks) > 5 else "")
        _tell("app", f"{self.app}, {number}: {printable(listed)}")
        if wanted[0] is None:
            await self._use_own(Path(wanted[1]))
        else:
            await self._use_foreign(wanted[0])
        self._place = wanted

    async def _use_own(self, project: Path) -> None:
        before = monotonic()
        try:
            server = await asyncio.to_thread(start_server, project)
        except EmbeddedError as error:
            raise Unavailable(str(error)) from error
        if self._server is not None:
            await asyncio.to_thread(self._server.release)
        self._server, self._url = server, server.url
        how = f"started in {monotonic() - before:.1f} s" if server.started else "is running"
        _tell("database", f"Postgres {server.version} {how}, in {_shown(project / '.flowfabric')}/")
        async with open_connection(server.url) as connection:
            await schema.migrate(connection)

    async def _use_foreign(self, url: str) -> None:
        where = place(url)
        async with open_connection(url) as connection:
            found = await schema.status(connection)
            problem = found.problem()
            if problem is None:
                _tell("database", f"{where}, schema {found.step_found}")
            elif self.may_migrate and found.refusal() is None:
                migration = await schema.migrate(connection)
                steps = ", ".join(map(str, migration.steps)) or "none"
                _tell("database", f"{where}, migrated (schema steps: {steps})")
            else:
                complain(problem)
                if found.refusal() is None:
                    typer.echo(
                        f"  It is not the project's own, so it was left alone: {where}\n"
                        f"  Migrate it, and go on:  flowfabric dev {self.app} --yes",
                        err=True,
                    )
                self.code = EXIT_DOES_NOT_FIT
                self._stopping.set()
                return
        if self._server is not None:
            await asyncio.to_thread(self._server.release)
            self._server = None
        self._url = url


def _tell(label: str, text: str) -> None:
    head = f"{label:<{_LABEL}}"
    if has_colour(sys.stderr):
        head = typer.style(head, bold=True)
    typer.echo(f"{head} {text}", err=True)


def _shown(path: str | Path) -> str:
    """A path as short as it can be."""
    with suppress(ValueError):
        return str(Path(path).relative_to(Path.cwd()))
    return str(path)
