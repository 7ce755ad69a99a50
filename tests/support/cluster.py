"""One PostgreSQL server for a whole test run, shared by its xdist workers and gone afterwards.

`FLOWFABRIC_TEST_DATABASE_URL` names a server to use instead (any database of it, as a user who may
create databases). DATABASE_URL and FLOWFABRIC_DATABASE_URL are never read: tests drop databases.
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
from urllib.parse import urlsplit

import pytest

from flowfabric import embedded

VARIABLE = "FLOWFABRIC_TEST_DATABASE_URL"
_PREFIX = "ff-tests-"
# Cloning a database is copying 300 files: 20 ms in memory, up to 600 ms on a busy disk.
_MEMORY = Path("/dev/shm")
_ENOUGH = 4 * 1024**3
# Nothing here outlives the run, so nothing has to reach the disk.
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
class Cluster:
    """A server, and the part of database names that belongs to this process."""

    url: str
    mark: str

    def url_of(self, database: str) -> str:
        return urlsplit(self.url)._replace(path=f"/{database}").geturl()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    # The same for all xdist workers of one run; a run without xdist makes its own.
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", secrets.token_hex(8))[:8]
    mark = f"{run}_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    if url := os.environ.get(VARIABLE):
        yield Cluster(url=url, mark=mark)
        return
    with (
        _shared_folder(_place() / f"{_PREFIX}{run}") as folder,
        embedded.start(folder, options=_OPTIONS) as server,
    ):
        yield Cluster(url=server.url, mark=mark)


def _place() -> Path:
    if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ENOUGH:
        return _MEMORY
    return Path(tempfile.gettempdir())


@contextmanager
def _shared_folder(folder: Path) -> Iterator[Path]:
    """A folder that exists while a process of the run is inside; the last one out removes it."""
    for other in folder.parent.glob(f"{_PREFIX}*"):
        if other != folder:
            _remove_if_deserted(other)
    descriptor = _enter(folder)
    try:
        yield folder
    finally:
        os.close(descriptor)
        _remove_if_deserted(folder)


def _enter(folder: Path) -> int:
    while True:
        folder.mkdir(exist_ok=True)
        # The server runs as another user if the tests run as root.
        folder.chmod(0o755)
        with suppress(FileNotFoundError):
            descriptor = os.open(folder / "in-use", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if (folder / "in-use").exists():
                return descriptor
            os.close(descriptor)


def _remove_if_deserted(folder: Path) -> None:
    """Clear a folder away unless somebody is inside; the server of a killed run then exits."""
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
