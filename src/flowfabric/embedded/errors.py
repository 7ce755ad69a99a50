"""Errors of the embedded server, one class per remedy.

EmbeddedError
├── BinariesNotFound    install PostgreSQL
├── MajorUnavailable    install the PostgreSQL that made the data
├── AccountNotFound     run as another user
├── FolderNotWritable   correct the folder's permissions
├── FolderNotReachable  correct the permissions above the folder
├── FolderNotTrusted    check who owns the folder
├── DiskFull            free some space
├── SettingRefused      correct a server setting
└── StartFailed         read the server's log, which the message quotes
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class EmbeddedError(Exception):
    """An embedded PostgreSQL server could not be used."""


class BinariesNotFound(EmbeddedError):
    """No usable PostgreSQL program was found."""


class MajorUnavailable(EmbeddedError):
    """The data folder was made by a major version of PostgreSQL that is not installed."""


class AccountNotFound(EmbeddedError):
    """No operating-system user was found that can run the server."""


class FolderNotWritable(EmbeddedError):
    """The project's folder cannot be written."""


class FolderNotReachable(EmbeddedError):
    """The user that runs the server cannot enter a folder that the server needs."""


class FolderNotTrusted(EmbeddedError):
    """A folder for the server already exists, and another user may have created it."""


class DiskFull(EmbeddedError):
    """There is no space left for the server's files."""


class SettingRefused(EmbeddedError):
    """A server setting is malformed, or reserved for flowfabric."""


class StartFailed(EmbeddedError):
    """PostgreSQL could not create its data, or could not start."""


_ROOM_TO_START = 1024 * 1024
_NO_SPACE = ("No space left on device", "Disk quota exceeded", "Check free disk space")


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turn an OSError about `folder` into an error that says what to do."""
    try:
        yield
    except OSError as error:
        where = error.filename or folder
        match error.errno:
            case errno.ENOSPC | errno.EDQUOT:
                raise disk_full(folder, f"{where}: {error.strerror}") from error
            case errno.EACCES | errno.EPERM | errno.EROFS:
                raise FolderNotWritable(
                    f"cannot write {where} ({error.strerror}). The embedded server keeps its data "
                    f"in {folder}: run as the user who owns it (ls -ld {folder}), or choose "
                    "another project folder."
                ) from error
        for parent in (folder.parent, folder):
            if not parent.is_dir():
                raise FolderNotWritable(
                    f"{parent} is not a folder. Create it first: mkdir -p {parent}"
                ) from error
        raise


def disk_full(folder: Path, detail: str) -> DiskFull:
    """Return the error for a full disk."""
    return DiskFull(
        f"no space left for the embedded server's files in {folder}: {detail.strip()}. "
        f"Free some space (df -h {folder}) and start again; nothing was lost."
    )


def start_failed(what: str, folder: Path, output: str) -> EmbeddedError:
    """Return the error for a failed PostgreSQL program, with the last lines of its output."""
    lines = [line for line in output.splitlines() if line.strip()][-20:]
    for line in lines:
        if any(phrase in line for phrase in _NO_SPACE):
            return disk_full(folder, line)
    # A full disk may have no room for the log line that says so.
    if shutil.disk_usage(folder).free < _ROOM_TO_START:
        return disk_full(folder, what)
    advice = ""
    if any("could not look up effective user ID" in line for line in lines):
        advice = (
            " PostgreSQL needs a name for the user it runs as: add this user to /etc/passwd, or "
            "set FLOWFABRIC_DATABASE_URL to a server that runs elsewhere."
        )
    quoted = "\n".join(f"  {line}" for line in lines) or "  (nothing was logged)"
    return StartFailed(f"{what}.{advice} Its last lines:\n{quoted}")
