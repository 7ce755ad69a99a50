"""The programs of PostgreSQL for tests that start servers of their own: those that the embedded
server would use, so FLOWFABRIC_PG_BINARIES chooses for all tests."""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from flowfabric.embedded import account, binaries

_NO_DATA = Path("/nonexistent")


@cache
def programs() -> Path:
    """A folder with the server and every tool."""
    user = account.choose(_NO_DATA)
    found = readable_by(user, binaries.find(user, data=_NO_DATA, major=None))
    assert (found.folder / "pg_basebackup").exists(), f"{found.folder} lacks the tools of a client"
    return found.folder


def readable_by(user: account.Account, found: binaries.Binaries) -> binaries.Binaries:
    """The same programs where `user` can run them: the wheel may lie under root's home."""
    if found.source != "wheel" or binaries.runs(found, user):
        return found
    folder = Path(tempfile.mkdtemp(prefix="ff-programs-"))
    atexit.register(shutil.rmtree, folder)
    folder.chmod(0o755)
    return binaries.copy_wheel(found, folder / "binaries")


@cache
def server_user() -> str | None:
    """Whom a server runs as when we are root, which it refuses to be."""
    if os.geteuid() != 0:
        return None
    known = {account.pw_name for account in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in known)


def as_server() -> dict[str, Any]:
    """Options for `subprocess` that make a server run as its user."""
    user = server_user()
    if user is None:
        return {}
    return {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}
