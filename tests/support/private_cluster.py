"""A private server of one test process, for tests that create roles.

A role exists in the whole server, so it must not affect the tests of another process.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from .programs import as_server, programs, server_user

SERVER_USER = "postgres"


@dataclass(frozen=True)
class Cluster:
    binaries: Path
    folder: Path

    def run(self, program: str, *arguments: str, **options: Any) -> str:
        """Run a Postgres program, under root as another user: the server refuses to run as root."""
        if program in {"initdb", "pg_ctl"}:
            options |= as_server()
        finished: subprocess.CompletedProcess[str] = subprocess.run(
            [str(self.binaries / program), *arguments],
            cwd=self.folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            **options,
        )
        assert finished.returncode == 0, finished.stdout
        return finished.stdout

    def url(self, database: str, user: str = SERVER_USER) -> str:
        return f"postgresql://{user}@/{database}?host={self.folder}"


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    # Do not use tmp_path: the path of a Unix socket has a limit of about 100 characters.
    folder = Path(tempfile.mkdtemp(prefix="ff-", dir="/tmp"))
    if (user := server_user()) is not None:
        shutil.chown(folder, user)
    cluster = Cluster(binaries=programs(), folder=folder)
    data = folder / "data"
    try:
        initdb = ("--auth=trust", f"--username={SERVER_USER}", "--no-sync", "--encoding=UTF8")
        cluster.run("initdb", f"--pgdata={data}", *initdb)
        options = f"-k {folder} -c listen_addresses='' -c fsync=off -c max_connections=50"
        log = folder / "log"
        start = ("--options", options, "--wait", "--silent", f"--log={log}", "start")
        cluster.run("pg_ctl", f"--pgdata={data}", *start)
        try:
            yield cluster
        finally:
            cluster.run("pg_ctl", f"--pgdata={data}", "--mode=immediate", "--silent", "stop")
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def database_numbers() -> Iterator[int]:
    return count(1)


@pytest.fixture
def make_database(cluster: Cluster, database_numbers: Iterator[int]) -> Iterator[Callable[[], str]]:
    """Return a function that creates an empty database and returns its URL."""
    names: list[str] = []

    def create() -> str:
        names.append(f"test_{next(database_numbers)}")
        cluster.run("createdb", f"--host={cluster.folder}", f"--username={SERVER_USER}", names[-1])
        return cluster.url(names[-1])

    yield create
    for name in names:
        drop = (f"--host={cluster.folder}", f"--username={SERVER_USER}", "--force", name)
        cluster.run("dropdb", *drop)
