"""Finds, starts and stops the server process, and removes the leftovers of a killed server."""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from enum import StrEnum
from functools import partial
from pathlib import Path

from .account import SHELL, Account
from .binaries import Binaries
from .errors import StartFailed, start_failed
from .folder import PORT, SOCKET, Folder, is_usable_socket

# How long to wait for a start or a stop. A normal start takes about 30 ms, but crash recovery may
# take a while.
_PATIENCE = 60.0
# How long to wait for the processes of a killed server, which exit as soon as their query ends.
_ORPHAN_SECONDS = 2.0

# How long to wait for an answer. A healthy server answers within a millisecond, or later on a busy
# machine.
_ANSWER_SECONDS = 10.0
_SSL_REQUEST = struct.pack("!ii", 8, 80877103)

_STILL_IN_USE = "pre-existing shared memory block"


class State(StrEnum):
    """The state of the server, as its socket and its lock file show it."""

    DOWN = "down"
    READY = "ready"
    CHANGING = "changing"


def wait_for_state(folder: Folder) -> State:
    """Wait while the server starts or stops, then return `State.READY` or `State.DOWN`."""
    deadline = time.monotonic() + _PATIENCE
    while (state := _state(folder)) is State.CHANGING:
        if time.monotonic() > deadline:
            raise StartFailed(
                f"the server of {folder.data} has been starting or stopping for more than "
                f"{_PATIENCE:.0f} s. Read its log: tail {folder.log}"
            )
        time.sleep(0.02)
    return state


def start(
    folder: Folder, binaries: Binaries, account: Account, settings: Mapping[str, str]
) -> None:
    """Start the server and wait until it accepts connections."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        pid, log_position = _spawn(folder, binaries, account, settings)
        try:
            ended = _wait_until(partial(_has_started_or_died, folder.data, pid), _PATIENCE)
        except BaseException:
            _give_up(pid)
            raise
        if _is_ready(folder.data, pid):
            return
        output = _log_since(folder.log, log_position)
        if _STILL_IN_USE not in output or time.monotonic() > deadline:
            if not ended:
                _give_up(pid)
            what = f"PostgreSQL {binaries.version} did not start on {folder.data}"
            raise start_failed(f"{what} (whole log: {folder.log})", folder.root, output)
        time.sleep(0.1)


def stop(folder: Folder) -> None:
    """Shut the server down, close its connections, and wait until it has exited."""
    with closing(_Listener(folder.socket)) as listener:
        pid = listener.pid if listener.exists else 0
    if pid and _signal(pid, signal.SIGINT):
        _wait_until(lambda: not _is_alive(pid), _PATIENCE)


def clear_leftovers(folder: Folder) -> bool:
    """Remove the leftovers of a killed server, because they would prevent the next start.

    The leftovers are processes and files. If the server is alive after all, remove nothing and
    return False. This happens if the process that started the server was killed, but the server
    was not.

    PostgreSQL itself does not remove a leftover lock file if the process id in the file now belongs
    to another process. This is common after a container restarts.
    """
    if not _can_see_processes():
        return True
    data = folder.data
    for number in (signal.SIGQUIT, signal.SIGKILL):
        if _wait_until(lambda: _listens(folder) or not any(_processes(data)), _ORPHAN_SECONDS):
            break
        for pid in _processes(data):
            _signal(pid, number)
    if _listens(folder):
        return False
    leftovers = (data / "postmaster.pid", folder.socket / SOCKET, folder.socket / f"{SOCKET}.lock")
    for path in leftovers:
        path.unlink(missing_ok=True)
    return True


def _spawn(
    folder: Folder, binaries: Binaries, account: Account, settings: Mapping[str, str]
) -> tuple[int, int]:
    """Start the server, detached from this process.

    Return the process id of the server, and where its output begins in the log.
    """
    quoted = str(folder.socket).replace('"', '""')
    ours = {
        "listen_addresses": "",
        "port": str(PORT),
        "unix_socket_directories": f'"{quoted}"',
        "unix_socket_permissions": "0700",
    }
    argv: list[str | Path] = [binaries.postgres, "-D", folder.data]
    for name, value in (dict(settings) | ours).items():
        argv += ["-c", f"{name}={value}"]
    log = folder.open_log()
    try:
        position = os.lseek(log, 0, os.SEEK_CUR)
        # The shell has its own session and exits at once. So the server does not get the terminal's
        # signals, and does not become a zombie of this process.
        script = 'exec "$@" </dev/null >&2 & echo $!'
        answer = account.run([SHELL, "-c", script, "sh", *argv], stderr=log)
    finally:
        os.close(log)
    if not answer.stdout.strip().isdecimal():
        output = _log_since(folder.log, position)
        raise start_failed(f"{binaries.postgres} could not be run", folder.root, output)
    return int(answer.stdout), position


def _state(folder: Folder) -> State:
    with closing(_Listener(folder.socket)) as listener:
        if not listener.exists:
            return State.DOWN
        # A server that was just killed may still accept a connection, but does not answer.
        if listener.answers() and _is_ready(folder.data):
            return State.READY
        return State.CHANGING


def _listens(folder: Folder) -> bool:
    with closing(_Listener(folder.socket)) as listener:
        return listener.exists


class _Listener:
    """The process that listens on the socket in a folder.

    We ask the kernel for this process, because a process id in a file may belong to another process
    by now.
    """

    def __init__(self, folder: Path) -> None:
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.settimeout(_ANSWER_SECONDS)
        self.exists = False
        if not is_usable_socket(folder):
            return
        try:
            self._connection.connect(str(folder / SOCKET))
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            return
        except (BlockingIOError, TimeoutError):
            # The queue of the socket is full: the server exists, but does not answer.
            pass
        except OSError:
            self._connection.close()
            raise
        self.exists = True

    @property
    def pid(self) -> int:
        """The process id of the server; 0 if a container hides it."""
        if sys.platform == "darwin":
            local_peerpid = 2
            return self._connection.getsockopt(0, local_peerpid)
        size = struct.calcsize("3i")
        found = self._connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        pid: int = struct.unpack("3i", found)[0]
        return pid

    def answers(self) -> bool:
        """Send the process a PostgreSQL request for SSL, and return whether an answer comes."""
        try:
            self._connection.sendall(_SSL_REQUEST)
            return self._connection.recv(1) in (b"S", b"N")
        except OSError:
            return False

    def close(self) -> None:
        self._connection.close()


def _is_ready(data: Path, pid: int | None = None) -> bool:
    """Return whether the lock file of the server says that the server accepts connections.

    If `pid` is given, also return False if the lock file belongs to a process with another id.
    """
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return False
    if pid is not None and lines[:1] != [str(pid)]:
        return False
    return len(lines) > 7 and lines[7].strip() == "ready"


def _has_started_or_died(data: Path, pid: int) -> bool:
    return _is_ready(data, pid) or not _is_alive(pid)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    with suppress(OSError):
        # The state follows the program's name in parentheses. A zombie does not count as alive.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return not _can_see_processes()


def _give_up(pid: int) -> None:
    """End a server that has not accepted connections in time."""
    # SIGTERM is the only signal that also ends a server before it has set its signal handlers.
    _signal(pid, signal.SIGTERM)
    _wait_until(lambda: not _is_alive(pid), _ORPHAN_SECONDS)


def _signal(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _can_see_processes() -> bool:
    return Path("/proc/self/cwd").exists()


def _processes(data: Path) -> Iterator[int]:
    """Yield the PostgreSQL processes whose working folder is `data`."""
    try:
        wanted = data.stat()
    except FileNotFoundError:
        return
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        with suppress(OSError):
            where = (process / "cwd").stat()
            same = (where.st_dev, where.st_ino) == (wanted.st_dev, wanted.st_ino)
            if same and (process / "comm").read_text().strip() == "postgres":
                yield int(process.name)


def _log_since(log: Path, position: int) -> str:
    with log.open("rb") as file:
        file.seek(position)
        return file.read().decode(errors="replace")


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True
