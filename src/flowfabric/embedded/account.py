"""The operating-system user that runs the server.

This is the user of the calling process. If that user is root, an existing unprivileged user runs
the server instead, because PostgreSQL refuses to run as root.
"""

from __future__ import annotations

import errno
import os
import pwd
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import AccountNotFound, StartFailed

SHELL = "/bin/sh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A user that runs PostgreSQL. `switch` is true if this process runs as another user."""

    name: str
    uid: int
    gid: int
    switch: bool

    def run(
        self, argv: Sequence[str | Path], *, stdin: str = "", stderr: int = subprocess.STDOUT
    ) -> subprocess.CompletedProcess[str]:
        """Run a program as this user, in a new session and without PG* variables."""
        try:
            return subprocess.run(
                argv,
                user=self.uid if self.switch else None,
                group=self.gid if self.switch else None,
                extra_groups=[] if self.switch else None,
                umask=0o077,
                # The caller's working directory may be closed to this user.
                cwd="/",
                env=environment(),
                start_new_session=True,
                input=stdin,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                errors="replace",
                timeout=300,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise StartFailed(f"{argv[0]} did not finish within 300 s.") from error
        except OSError as error:
            if self.switch and error.errno in (errno.EPERM, errno.EINVAL):
                raise AccountNotFound(
                    f"PostgreSQL does not run as root, and this root may not switch to "
                    f"{self.name} ({error.strerror}), as in a container without CAP_SETUID. Run as "
                    "an ordinary user, or set FLOWFABRIC_DATABASE_URL to a server that runs "
                    "elsewhere."
                ) from error
            raise

    def can_enter(self, folder: Path) -> bool:
        """Test whether this user can enter `folder`. The mode bits alone would not tell."""
        if not self.switch:
            return os.access(folder, os.X_OK)
        return self.run([SHELL, "-c", 'cd "$1"', "sh", folder]).returncode == 0


def caller() -> Account:
    """Return the user of this process."""
    uid = os.geteuid()
    return Account(name=_name(uid), uid=uid, gid=os.getegid(), switch=False)


def choose(data: Path) -> Account:
    """Return the user that must run the server whose data is in `data`.

    PostgreSQL must own its data. So if the caller is root and data exists, the owner of the data
    runs the server.
    """
    if os.geteuid() != 0:
        return caller()
    if data.exists() and (owner := data.stat()).st_uid != 0:
        return Account(name=_name(owner.st_uid), uid=owner.st_uid, gid=owner.st_gid, switch=True)
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name=name, uid=entry.pw_uid, gid=entry.pw_gid, switch=True)
    raise AccountNotFound(
        "PostgreSQL does not run as root, and this system has neither a user 'postgres' nor "
        "'nobody' to run it as. Run as an ordinary user, or set FLOWFABRIC_DATABASE_URL to a "
        "server that runs elsewhere."
    )


def environment() -> dict[str, str]:
    """Return the environment for PostgreSQL programs.

    It is the environment of this process, but in English, in UTC and without PG* variables.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PG", "LC_", "LANG")) and name != "TZ"
    }
    return kept | {"LC_ALL": "C", "TZ": "UTC"}


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
