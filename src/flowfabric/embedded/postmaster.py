"""The running server process: is it there, start it, stop it, and clear away what a killed one
left behind.
"""

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

# Crash recovery after a kill may take a while; a start without it takes some 30 ms.
_PATIENCE = 60.0
# Orphans of a killed server leave by themselves as soon as they look up from their query.
_ORPHANS_MAY_STAY = 2.0

# A healthy server answers within a millisecond, a busy machine's somewhat later.
_ANSWER_WITHIN = 10.0
_ENCRYPTION_PLEASE = struct.pack("!ii", 8, 80877103)

_STILL_IN_USE = "pre-existing shared memory block"


class State(StrEnum):
    """What the socket and the server's lock file say."""

    DOWN = "down"
    READY = "ready"
    CHANGING = "changing"


def settled(folder: Folder) -> State:
    """Whether a server is ready or down, after one that starts or stops has finished."""
    deadline = time.monotonic() + _PATIENCE
    while (state := _state(folder)) is State.CHANGING:
        if time.monotonic() > deadline:
            raise StartFailed(
                f"the server of {folder.data} has been starting or stopping for more than "
                f"{_PATIENCE:.0f} s. See what it does: tail {folder.log}"
            )
        time.sleep(0.02)
    return state


def start(
    folder: Folder, binaries: Binaries, account: Account, settings: Mapping[str, str]
) -> None:
    """Start the server and wait until it takes connections."""
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
        said = _log_since(folder.log, log_position)
        if _STILL_IN_USE not in said or time.monotonic() > deadline:
            if not ended:
                _give_up(pid)
            what = f"PostgreSQL {binaries.version} did not start on {folder.data}"
            raise start_failed(f"{what} (whole log: {folder.log})", folder.root, said)
        time.sleep(0.1)


def stop(folder: Folder) -> None:
    """Shut the server down, cutting its connections, and wait until it is gone."""
    with closing(_Listener(folder.socket)) as listener:
        pid = listener.pid if listener.exists else 0
    if pid and _signal(pid, signal.SIGINT):
        _wait_until(lambda: not _is_alive(pid), _PATIENCE)


def clear_remains(folder: Folder) -> bool:
    """Remove what a killed server left, which would keep the next one from starting.

    Returns False if the server was not dead after all, but about to listen: its starter was killed.
    PostgreSQL believes a leftover lock file if its process id happens to be in use again, as it
    often is after a container restarts.
    """
    if not _can_see_processes():
        return True
    data = folder.data
    for harsher in (signal.SIGQUIT, signal.SIGKILL):
        if _wait_until(lambda: _listens(folder) or not any(_processes(data)), _ORPHANS_MAY_STAY):
            break
        for pid in _processes(data):
            _signal(pid, harsher)
    if _listens(folder):
        return False
    remains = (data / "postmaster.pid", folder.socket / SOCKET, folder.socket / f"{SOCKET}.lock")
    for path in remains:
        path.unlink(missing_ok=True)
    return True


def _spawn(
    folder: Folder, binaries: Binaries, account: Account, settings: Mapping[str, str]
) -> tuple[int, int]:
    """Start the server as nobody's child; returns its process id and where its log begins."""
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
        # The shell is in a session of its own and exits at once, so that the server neither gets
        # the terminal's signals nor becomes a zombie of this process.
        script = 'exec "$@" </dev/null >&2 & echo $!'
        told = account.run([SHELL, "-c", script, "sh", *argv], stderr=log)
    finally:
        os.close(log)
    if not told.stdout.strip().isdecimal():
        said = _log_since(folder.log, position)
        raise start_failed(f"{binaries.postgres} could not be run", folder.root, said)
    return int(told.stdout), position


def _state(folder: Folder) -> State:
    with closing(_Listener(folder.socket)) as listener:
        if not listener.exists:
            return State.DOWN
        # One that was killed just now may be connected to for another moment, but says nothing.
        if listener.answers() and _is_ready(folder.data):
            return State.READY
        return State.CHANGING


def _listens(folder: Folder) -> bool:
    with closing(_Listener(folder.socket)) as listener:
        return listener.exists


class _Listener:
    """Whoever listens on the socket in a folder.

    Asking the kernel is safe where reading a process id from a file is not: the number may have
    been given to another process since.
    """

    def __init__(self, folder: Path) -> None:
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.settimeout(_ANSWER_WITHIN)
        self.exists = False
        if not is_usable_socket(folder):
            return
        try:
            self._connection.connect(str(folder / SOCKET))
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            return
        except (BlockingIOError, TimeoutError):
            # More clients wait than it cares to queue: it is there, and does not answer.
            pass
        except OSError:
            self._connection.close()
            raise
        self.exists = True

    @property
    def pid(self) -> int:
        """Its process id; 0 if it is in a container that hides it from here."""
        if sys.platform == "darwin":
            local_peerpid = 2
            return self._connection.getsockopt(0, local_peerpid)
        size = struct.calcsize("3i")
        found = self._connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        pid: int = struct.unpack("3i", found)[0]
        return pid

    def answers(self) -> bool:
        """Whether it speaks PostgreSQL's protocol: asked for encryption, it says yes or no."""
        try:
            self._connection.sendall(_ENCRYPTION_PLEASE)
            return self._connection.recv(1) in (b"S", b"N")
        except OSError:
            return False

    def close(self) -> None:
        self._connection.close()


def _is_ready(data: Path, pid: int | None = None) -> bool:
    """Whether the lock file of the server (of this process id) says that it takes connections."""
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
        # After the program's name in parentheses; a zombie only waits for its parent.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return not _can_see_processes()


def _give_up(pid: int) -> None:
    """End a server that did not get as far as taking connections."""
    # Of the signals that end a server, the only one that also ends it before it knows of signals.
    _signal(pid, signal.SIGTERM)
    _wait_until(lambda: not _is_alive(pid), _ORPHANS_MAY_STAY)


def _signal(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _can_see_processes() -> bool:
    return Path("/proc/self/cwd").exists()


def _processes(data: Path) -> Iterator[int]:
    """The PostgreSQL processes that work in `data`."""
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
