"""The processes that use the server. Each process keeps a file of its own locked.

When a process dies, the kernel unlocks its file.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from contextlib import suppress
from pathlib import Path


class User:
    """Marks this process as a user of the server, until `release` is called.

    Lock the folder before you create a User, and before you call `release`.
    """

    def __init__(self, users: Path) -> None:
        self._path = users / f"{os.getpid()}-{secrets.token_hex(4)}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor: int | None = os.open(self._path, flags, 0o644)
        # Other users must be able to try the lock, so do not rely on our umask.
        os.fchmod(self._descriptor, 0o644)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def release(self) -> None:
        """Remove the mark: this process no longer uses the server. A second call does nothing."""
        if self._descriptor is None:
            return
        with suppress(FileNotFoundError):
            self._path.unlink()
        # Unlock explicitly: a forked child may still hold the descriptor.
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self.forget()

    def forget(self) -> None:
        """Close the file, but do not unlock it: after a fork, the parent process needs the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def present(users: Path) -> bool:
    """Return whether a live process uses the server. Call only while the folder is locked."""
    locked = [_is_locked(path) for path in users.iterdir()]
    return any(locked)


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        # The process of this file has died.
        path.unlink(missing_ok=True)
        return False
    finally:
        os.close(descriptor)
