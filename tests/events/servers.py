"""Servers that may be killed, copied and promoted: real ones, each in a folder of its own.

server = servers.make(**settings)      # has a migrated database, from a copy: no initdb
server.kill()                          # kill -9 of the postmaster and all its children
server.start()
copy = server.back_up()                # pg_basebackup; copy.start() runs it without recovery
standby = server.back_up(standby=True)
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import asyncpg

from support.processes import kill_family
from support.programs import as_server, programs, server_user

from .log import Log, prepare

_PLACES = ("/dev/shm", "/tmp")
_BOUND = 30.0

SETTINGS = {
    "listen_addresses": "",
    "autovacuum": "off",
    "checkpoint_timeout": "1h",
    "max_connections": "60",
    "shared_buffers": "16MB",
    "max_wal_size": "1GB",
    # In its own folder: what a killed server leaves in /dev/shm, nobody would clear away.
    "dynamic_shared_memory_type": "mmap",
    # The files survive a kill -9 of the server; only its memory is lost, and that is the test.
    "fsync": "off",
}


class Server:
    """One server: its data, its socket, and its process while it runs."""

    def __init__(self, folder: Path, settings: dict[str, str]) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.settings = SETTINGS | settings
        self.copies = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://postgres@/log?host={self.folder}&port=5432"

    def start(self) -> None:
        """Start it and wait until it answers."""
        settings = {**self.settings, "unix_socket_directories": str(self.folder)}
        options = [part for pair in settings.items() for part in ("-c", "=".join(pair))]
        with (self.folder / "log.txt").open("ab") as log:
            self._process = subprocess.Popen(
                [_program("postgres"), "-D", self.data, *options],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **as_server(),
            )
        _until(self._is_ready, f"{self.folder} does not start")

    def _is_ready(self) -> bool:
        assert self._process
        assert self._process.poll() is None, (self.folder / "log.txt").read_text()[-2000:]
        with suppress(OSError):
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            return (
                len(lines) > 7
                and lines[0] == str(self._process.pid)
                and lines[7].strip() in ("ready", "standby")
            )
        return False

    def stop(self) -> None:
        """A fast shutdown."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(_BOUND)
            self._process = None

    def kill(self) -> None:
        """`kill -9` of the postmaster and of every process it started."""
        assert self._process
        kill_family(self._process.pid, within=_BOUND)
        self._process.wait(_BOUND)
        self._process = None

    def back_up(self, *, standby: bool = False) -> Server:
        """A base backup of the running server, as a server that has not been started."""
        self.copies += 1
        copy = Server(self.folder / f"copy{self.copies}", self.settings)
        _make_folder(copy.folder)
        _run("pg_basebackup", "--checkpoint=fast", "-h", self.folder, "-U", "postgres",
             "-D", copy.data, *(["-R"] if standby else []))  # fmt: skip
        return copy

    def promote(self) -> None:
        _run("pg_ctl", "promote", "-w", "-D", self.data)

    async def log(self) -> Log:
        return Log(self.url, await asyncpg.connect(self.url))


class Servers:
    """Makes servers, and clears all of them away."""

    def __init__(self) -> None:
        place = next(each for each in _PLACES if os.access(each, os.W_OK | os.X_OK))
        self._folder = Path(tempfile.mkdtemp(prefix="ff-events-", dir=place))
        self._folder.chmod(0o755)
        self._servers: list[Server] = []
        # Never used again: what a killed server leaves may not be gone yet.
        self._numbers = count()

    def make(self, **settings: str) -> Server:
        """A running server with an empty log in the database `log`."""
        original = self._folder / "original"
        if not original.exists():
            self._initialise(original)
        server = Server(self._folder / f"server{next(self._numbers)}", settings)
        self._servers.append(server)
        _make_folder(server.folder)
        _run_as_server("cp", "-a", original / "data", server.data)
        server.start()
        return server

    def copy(self, server: Server) -> Server:
        """The files of a server that is stopped, as another one."""
        copy = self.adopt(Server(self._folder / f"server{next(self._numbers)}", server.settings))
        _make_folder(copy.folder)
        _run_as_server("cp", "-a", server.data, copy.data)
        return copy

    def adopt(self, server: Server) -> Server:
        self._servers.append(server)
        return server

    def _initialise(self, folder: Path) -> None:
        _make_folder(folder)
        _run("initdb", "--no-sync", "-A", "trust", "-U", "postgres", "-D", folder / "data")
        server = Server(folder, {})
        server.start()
        _run("psql", "-h", folder, "-U", "postgres", "-c", "create database log", "postgres")
        # A test that runs has a loop of its own in this thread.
        thread = threading.Thread(target=asyncio.run, args=[prepare(server.url)])
        thread.start()
        thread.join()
        server.stop()

    def release(self) -> None:
        """Stop what still runs; the original stays for the next test."""
        for server in self._servers:
            if server._process is not None:
                server.kill()
            shutil.rmtree(server.folder, ignore_errors=True)
        self._servers.clear()

    def close(self) -> None:
        self.release()
        shutil.rmtree(self._folder, ignore_errors=True)


def _make_folder(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o755)
    if (user := server_user()) is not None:
        shutil.chown(folder, user)


def _program(name: str) -> Path:
    return programs() / name


def _run(program: str, *arguments: object) -> None:
    _run_as_server(_program(program), *arguments)


def _run_as_server(*command: object) -> None:
    done = subprocess.run(
        [str(part) for part in command],
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_BOUND,
        check=False,
        **as_server(),
    )
    assert done.returncode == 0, done.stdout.decode(errors="replace")


def _until(condition: Callable[[], bool], problem: str) -> None:
    deadline = time.monotonic() + _BOUND
    while not condition():
        assert time.monotonic() < deadline, problem
        time.sleep(0.002)
