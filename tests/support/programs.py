"""The PostgreSQL programs for tests that start their own servers.

They are the programs that the embedded server would use, so FLOWFABRIC_PG_BINARIES chooses them for
all tests.
"""

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
    """Return a folder with the server and every tool."""
    user = account.choose(_NO_DATA)
    found = readable_by(user, binaries.find(user, data=_NO_DATA, major=None))
    assert (found.folder / "pg_basebackup").exists(), f"{found.folder} lacks the tools of a client"
    return found.folder


def readable_by(user: account.Account, found: binaries.Binaries) -> binaries.Binaries:
    """Return the programs in a place where `user` can run them.

    The wheel may be under root's home, which other users cannot enter.
    """
    if found.source != "wheel" or binaries.runs(found, user):
        return found
    folder = Path(tempfile.mkdtemp(prefix="ff-programs-"))
    atexit.register(shutil.rmtree, folder)
    folder.chmod(0o755)
    return binaries.copy_wheel(found, folder / "binaries")


@cache
def server_user() -> str | None:
    """Return the user that runs a server if we are root, because it refuses to run as root."""
    if os.geteuid() != 0:
        return None
    known = {account.pw_name for account in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in known)


def as_server() -> dict[str, Any]:
    """Return options for `subprocess` that make a server run as its user."""
    user = server_user()
    if user is None:
        return {}
    return {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}
