"""Why an embedded server could not be started, one class per thing the reader can do about it.

EmbeddedError
├── BinariesNotFound    install PostgreSQL
├── MajorUnavailable    install the PostgreSQL that made the data
├── AccountNotFound     run as another user
├── FolderNotWritable   mend the folder's permissions
├── FolderNotReachable  mend the permissions above the folder
├── FolderNotTrusted    look who owns the folder
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
    """The operating system has no user the server could run as."""


class FolderNotWritable(EmbeddedError):
    """The project's folder cannot be written."""


class FolderNotReachable(EmbeddedError):
    """The user the server runs as cannot enter a folder it needs."""


class FolderNotTrusted(EmbeddedError):
    """A folder exists that somebody else could have put there."""


class DiskFull(EmbeddedError):
    """There is no space left for the server's files."""


class SettingRefused(EmbeddedError):
    """A server setting is malformed, or belongs to the launcher."""


class StartFailed(EmbeddedError):
    """PostgreSQL gave up while it was made or started."""


_ROOM_TO_START = 1024 * 1024
_NO_SPACE = ("No space left on device", "Disk quota exceeded", "Check free disk space")


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turn the operating system's refusals about `folder` into errors that say what to do."""
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
    """Say which disk is full."""
    return DiskFull(
        f"no space left for the embedded server's files in {folder}: {detail.strip()}. "
        f"Free some space (df -h {folder}) and start again; nothing was lost."
    )


def start_failed(what: str, folder: Path, output: str) -> EmbeddedError:
    """The error for PostgreSQL `output` that ended badly, with its last lines."""
    lines = [line for line in output.splitlines() if line.strip()][-20:]
    for line in lines:
        if any(phrase in line for phrase in _NO_SPACE):
            return disk_full(folder, line)
    # A full disk has no room for the complaint either.
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
