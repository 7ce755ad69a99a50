"""Which processes use the server: each keeps a file locked, and the kernel drops the lock of a
process that dies, however it dies.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from contextlib import suppress
from pathlib import Path


class User:
    """This process's place among the users of a server. Call only with the folder locked."""

    def __init__(self, users: Path) -> None:
        self._path = users / f"{os.getpid()}-{secrets.token_hex(4)}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor: int | None = os.open(self._path, flags, 0o644)
        # Others must be able to try the lock, whatever our umask.
        os.fchmod(self._descriptor, 0o644)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def leave(self) -> None:
        """Stop counting as a user; a second time changes nothing."""
        if self._descriptor is None:
            return
        with suppress(FileNotFoundError):
            self._path.unlink()
        # A child forked behind Python's back may hold the descriptor too: closing is not enough.
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self.forget()

    def forget(self) -> None:
        """Give up a forked child's copy of the place; the parent keeps it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def present(users: Path) -> bool:
    """Whether a living process uses the server. Call only with the folder locked."""
    held = [_is_held(path) for path in users.iterdir()]
    return any(held)


def _is_held(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        # The file of a process that died.
        path.unlink(missing_ok=True)
        return False
    finally:
        os.close(descriptor)
