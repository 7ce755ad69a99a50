"""The command `flowfabric dev`: run the database, and restart the worker after every save."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic, time
from typing import Any, TypeVar

import typer

from flowfabric.cli.dashboard import MISSING, PORT, Dashboard, open_dashboard
from flowfabric.cli.dev.child import DRAIN, EXIT_BROKEN, STOP_AT_ONCE
from flowfabric.cli.dev.watch import Watch
from flowfabric.cli.imports import APP_ARGUMENT, APP_HINT, check_app_reference
from flowfabric.cli.options import EXIT_DOES_NOT_FIT, EXIT_INTERRUPTED, Database
from flowfabric.cli.output import complain, has_colour
from flowfabric.cli.worker import Capacity
from flowfabric.config import Settings, unknown_variables
from flowfabric.core.errors import Unavailable
from flowfabric.db import migrate as schema
from flowfabric.db.connection import address_of, open_connection
from flowfabric.drawing.text import count_of, printable
from flowfabric.embedded import EmbeddedError, Server
from flowfabric.embedded import start as start_server

T = TypeVar("T")

# Extra time after the drain, to release executions and close connections.
KILL_SECONDS = DRAIN.total_seconds() + 10.0
# How long a worker may take to release its executions after the signal to stop at once.
AT_ONCE_SECONDS = 8.0
RESEND_SECONDS = 0.2
RESTART_SECONDS = 1.0
_LABEL = 10
# Ctrl-C signals all processes of the terminal. The child ignores it; the command decides what to
# do.
_CHILD = """
import signal
signal.signal(signal.SIGINT, lambda *_: None)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
from flowfabric.cli.dev.child import main
main()
"""


def dev(
    database: Database,
    capacity: Capacity,
    app: str = APP_ARGUMENT,
    yes: bool = typer.Option(
        False, "--yes", help="Migrate the database even if it is not the embedded one."
    ),
    port: int = typer.Option(
        PORT,
        "--port",
        min=0,
        max=65535,
        help="Serve the dashboard on this port, or on a free port if this port is taken.",
    ),
) -> int:
    """Run everything for development: database, schema, and a worker that restarts on save.

    The command also serves the dashboard, for this machine only. If no database is configured, the
    command uses an embedded Postgres in .flowfabric/. After Ctrl-C, it waits up to 2 s for running
    executions, then stops everything. A second Ctrl-C releases the running executions immediately.
    """
    check_app_reference(app)
    settings = Settings.from_environment()
    for sentence in unknown_variables():
        complain(sentence)
    session = Session(
        app,
        database_url=database.database_url,
        may_migrate=yes,
        port=port,
        request={
            "app": app,
            "log_format": settings.log_format,
            "log_level": settings.log_level,
            "options": capacity.arguments,
        },
    )
    return asyncio.run(session.run())


@dataclass
class Child:
    """A worker process and its socket."""

    process: asyncio.subprocess.Process
    lines: asyncio.StreamReader
    answers: asyncio.StreamWriter
    started: float
    is_working: bool = False

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message from the worker, or None if the worker has ended."""
        with suppress(ConnectionError):
            if line := await self.lines.readline():
                message: dict[str, Any] = json.loads(line)
                return message
        return None

    async def end(self) -> None:
        """Stop the worker, and kill it if it does not stop in time."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.terminate()
            try:
                await asyncio.wait_for(self.process.wait(), KILL_SECONDS)
            except TimeoutError:
                complain("the worker did not stop and was killed; another one reclaims its work")
                self.kill()
        await self.process.wait()
        self.answers.close()

    def stop_at_once(self) -> None:
        """Make the worker release its executions and stop. Kill it if that takes too long."""
        asyncio.get_running_loop().call_later(AT_ONCE_SECONDS, self.kill)
        self._send_until_ended()

    def _send_until_ended(self) -> None:
        """Send SIGUSR1 to the worker repeatedly until it has ended.

        Once is not always enough: if the kernel delivers SIGUSR1 to another thread, it does not
        interrupt a handler that blocks the event loop.
        """
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(STOP_AT_ONCE)
            asyncio.get_running_loop().call_later(RESEND_SECONDS, self._send_until_ended)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()


@dataclass
class Session:
    """One call of `flowfabric dev`, with its database, its worker and its dashboard."""

    app: str
    database_url: str | None
    may_migrate: bool
    port: int
    request: dict[str, Any]
    code: int = 0
    is_introduced: bool = False
    _database: tuple[str | None, str] | None = None
    _url: str = ""
    _example: str | None = None
    _server: Server | None = None
    _namespace: str = ""
    _dashboard: asyncio.Task[Dashboard | None] | None = None
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
            await self._close_dashboard()
            if self._server is not None:
                await asyncio.to_thread(self._server.release)
        return self.code

    def _stop(self) -> None:
        if not self._stopping.is_set():
            self._stopping.set()
            if self._child is not None and self._child.is_working:
                _report(
                    "stop", "waiting up to 2 s for running executions; Ctrl-C again releases them"
                )
        elif (child := self._child) is not None and child.process.returncode is None:
            if self.code != EXIT_INTERRUPTED:
                self.code = EXIT_INTERRUPTED
                child.stop_at_once()
            else:
                child.kill()

    async def _work(self) -> None:
        """Run one worker until a file is saved, the worker ends, or the command stops."""
        child = self._child = await self._start()
        stopping = asyncio.create_task(self._stopping.wait())
        ended = asyncio.create_task(self._listen(child))
        saved = asyncio.create_task(self._watch.saved())
        try:
            await asyncio.wait([stopping, ended, saved], return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                pass
            elif saved.done():
                _report("saved", f"{_short_path(saved.result())}: restarting the worker")
            else:
                saved.cancel()
                ended.result()
                await self._handle_end(child)
        finally:
            for task in (stopping, ended, saved):
                task.cancel()
        await child.end()
        self._child = None

    async def _start(self) -> Child:
        started = time()
        ours, theirs = socket.socketpair()
        # The worker inherits the signal mask: Ctrl-C stays blocked until the worker has a handler
        # for it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-c", _CHILD, str(theirs.fileno())),
                    pass_fds=[theirs.fileno()],
                    # A file that is saved twice within a second can have the same time stamp as its
                    # bytecode.
                    env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        lines, answers = await asyncio.open_connection(sock=ours)
        answers.write(json.dumps(self.request).encode() + b"\n")
        return Child(process, lines, answers, started)

    async def _listen(self, child: Child) -> None:
        """Handle the messages of the worker until it has ended."""
        while (message := await child.receive()) is not None:
            if "usage" in message:
                if self._database is None:
                    raise typer.BadParameter(message["usage"], param_hint=APP_HINT)
                complain(message["usage"])
            self._watch.follow(message.get("files", ()), child.started)
            if "tasks" in message:
                await self._choose_database(message)
                if self._stopping.is_set():
                    return
                answer = json.dumps({"database_url": self._url})
                child.answers.write(answer.encode() + b"\n")
                if self._dashboard is None:
                    self._dashboard = asyncio.create_task(self._open_dashboard())
            if message.get("is_working"):
                child.is_working = True
                await self._introduce(child)
        await child.process.wait()

    async def _introduce(self, child: Child) -> None:
        if self.is_introduced:
            _report("worker", f"process {child.process.pid}")
            return
        _report("worker", f"process {child.process.pid}, restarts when a file is saved")
        if self._dashboard is not None:
            opened = await asyncio.shield(self._dashboard)
            _report("dashboard", MISSING if opened is None else opened.address)
        if self._example:
            _report("try", self._example)
        _report("stop", "Ctrl-C")
        self.is_introduced = True

    async def _open_dashboard(self) -> Dashboard | None:
        """Serve the dashboard of the database, in the namespace of the app."""
        from flowfabric.app.app import App

        app = App(name="dev")
        app.settings = replace(app.settings, database_url=self._url, namespace=self._namespace)
        return await open_dashboard(app, self.port)

    async def _close_dashboard(self) -> None:
        if self._dashboard is not None:
            opened, self._dashboard = await self._dashboard, None
            if opened is not None:
                await opened.close()

    async def _handle_end(self, child: Child) -> None:
        """Restart a worker that ended by itself. If it could not start, wait for the next save."""
        code = await child.process.wait()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        if code == EXIT_BROKEN or not child.is_working:
            if code != EXIT_BROKEN:
                _report("worker", f"ended before it could start ({how})")
            _report("waiting", "for the next save")
            file = await self._unless_stopped(self._watch.saved(Path.cwd(), child.started))
            if file is not None:
                _report("saved", f"{_short_path(file)}: starting the worker")
            return
        _report("worker", f"ended by itself ({how}); starting another")
        await self._unless_stopped(asyncio.sleep(RESTART_SECONDS))

    async def _unless_stopped(self, awaited: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of `awaited`, or None if the command stops first."""
        task = asyncio.create_task(awaited)
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if task.done():
            return task.result()
        task.cancel()
        return None

    async def _choose_database(self, message: dict[str, Any]) -> None:
        """Connect to the database of the app.

        Migrate the database if it is embedded or --yes is given. Stop the command if the schema of
        the database then does not fit.
        """
        self._example, self._namespace = message["example"], message["namespace"]
        database = (self.database_url or message["database_url"], message["project"])
        if database == self._database:
            return
        await self._close_dashboard()
        tasks = message["tasks"]
        listed = ", ".join(tasks[:5]) + (", …" if len(tasks) > 5 else "")
        _report("app", f"{self.app}, {count_of(len(tasks), 'task')}: {printable(listed)}")
        if database[0] is None:
            await self._use_embedded(Path(database[1]))
        else:
            await self._use_external(database[0])
        self._database = database

    async def _use_embedded(self, project: Path) -> None:
        before = monotonic()
        try:
            server = await asyncio.to_thread(start_server, project)
        except EmbeddedError as error:
            raise Unavailable(str(error)) from error
        if self._server is not None:
            await asyncio.to_thread(self._server.release)
        self._server, self._url = server, server.url
        how = f"started in {monotonic() - before:.1f} s" if server.started else "is running"
        where = _short_path(project / ".flowfabric")
        _report("database", f"Postgres {server.version} {how}, in {where}/")
        async with open_connection(server.url) as connection:
            await schema.migrate(connection)

    async def _use_external(self, url: str) -> None:
        where = address_of(url)
        async with open_connection(url) as connection:
            found = await schema.status(connection)
            problem = found.problem()
            if problem is None:
                _report("database", f"{where}, schema {found.step_found}")
            elif self.may_migrate and found.refusal() is None:
                migration = await schema.migrate(connection)
                steps = ", ".join(map(str, migration.steps)) or "none"
                _report("database", f"{where}, migrated (schema steps: {steps})")
            else:
                complain(problem)
                if found.refusal() is None:
                    typer.echo(
                        f"  It is not the embedded database and was not changed: {where}\n"
                        f"  To migrate it:  flowfabric dev {self.app} --yes",
                        err=True,
                    )
                self.code = EXIT_DOES_NOT_FIT
                self._stopping.set()
                return
        if self._server is not None:
            await asyncio.to_thread(self._server.release)
            self._server = None
        self._url = url


def _report(label: str, text: str) -> None:
    head = f"{label:<{_LABEL}}"
    if has_colour(sys.stderr):
        head = typer.style(head, bold=True)
    typer.echo(f"{head} {text}", err=True)


def _short_path(path: str | Path) -> str:
    """Return a path relative to the current folder if possible."""
    with suppress(ValueError):
        return str(Path(path).relative_to(Path.cwd()))
    return str(path)
