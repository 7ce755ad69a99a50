"""One PostgreSQL server for a test run. All processes of the test run share it.

The last process removes it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from flowfabric import embedded
from flowfabric.db.disposable import url_of

VARIABLE = "FLOWFABRIC_TEST_DATABASE_URL"
_PREFIX = "flowfabric-tests-"
# All xdist workers of one run have the same value. A run without xdist makes its own.
_RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", secrets.token_hex(8))[:8]
# Cloning a database copies 300 files: 12 ms in memory, 60 ms and more on a disk.
_MEMORY = Path("/dev/shm")
_ENOUGH = 2 * 1024**3
# The data is removed after the run, so the server need not sync it to disk.
_OPTIONS = {
    "autovacuum": "off",
    "checkpoint_timeout": "1h",
    "fsync": "off",
    "full_page_writes": "off",
    "jit": "off",
    "max_connections": "200",
    "max_wal_senders": "0",
    "max_wal_size": "1GB",
    "shared_buffers": "256MB",
    "synchronous_commit": "off",
    "wal_level": "minimal",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A Postgres server, and the `mark` that this process puts into the names of its databases."""

    url: str
    mark: str

    def url_of(self, database: str) -> str:
        return url_of(self.url, database)


@contextmanager
def shared_server() -> Iterator[Server]:
    """Start or join the server of this test run.

    To use another server, set FLOWFABRIC_TEST_DATABASE_URL to the URL of one of its databases. The
    user in the URL must be allowed to create databases. No other variable is read, so that tests
    never create or drop databases on the server of an app.
    """
    mark = f"{_RUN}_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    if url := os.environ.get(VARIABLE):
        yield Server(url=url, mark=mark)
        return
    with (
        _shared_folder(_parent_folder() / f"{_PREFIX}{_RUN}") as folder,
        embedded.start(folder, options=_OPTIONS) as server,
    ):
        yield Server(url=server.url, mark=mark)


def _parent_folder() -> Path:
    if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ENOUGH:
        return _MEMORY
    return Path(tempfile.gettempdir())


@contextmanager
def _shared_folder(folder: Path) -> Iterator[Path]:
    """Create a folder if it is missing, and use it. The last process that uses it removes it."""
    for other in folder.parent.glob(f"{_PREFIX}*"):
        if other != folder:
            _remove_if_unused(other)
    descriptor = _enter(folder)
    try:
        yield folder
    finally:
        os.close(descriptor)
        _remove_if_unused(folder)


def _enter(folder: Path) -> int:
    while True:
        folder.mkdir(exist_ok=True)
        # Under root, the server runs as another user.
        folder.chmod(0o755)
        with suppress(FileNotFoundError):
            descriptor = os.open(folder / "in-use", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if (folder / "in-use").exists():
                return descriptor
            os.close(descriptor)


def _remove_if_unused(folder: Path) -> None:
    """Remove a folder unless a process uses it. This ends a server that has its data there."""
    try:
        descriptor = os.open(folder / "in-use", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    else:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)
