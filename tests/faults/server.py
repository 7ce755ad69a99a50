"""A durable PostgreSQL beside that of the other tests, to be shut down, killed and started again
under load. Each test has a database of its own in it.

Its files are on disk and fsync is on: what it confirmed must be there after a crash. There is no
witness and no settable clock in its databases, only the check of the invariants.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg

from flowfabric import embedded
from flowfabric.db.migrate import migrate
from support.database import partitions
from support.invariants import invariants_function
from support.processes import kill_family

_AWAY = (
    OSError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    # The server has said good-bye and not hung up yet.
    asyncpg.InternalClientError,
)
# What a completion is asked before it counts.
_FENCE = re.compile(r"x\.ownership = 'leased'\s.*?greatest\(v_now, x\.transitioned_at\)", re.DOTALL)


class Server:
    """One server process that can be ended in every way and started again at the same place."""

    def __init__(self, project: Path, fsync: str) -> None:
        self._project = project
        self._options = {"fsync": fsync, "synchronous_commit": "on", "max_connections": "100"}
        self._uses = [embedded.start(project, options=self._options)]
        self._root = self.url = self._uses[0].url
        self._databases = 0

    @property
    def pid(self) -> int:
        return int((self._uses[0].data / "postmaster.pid").read_text().split()[0])

    def end(self, number: signal.Signals) -> None:
        """SIGQUIT is `pg_ctl stop -m immediate`, SIGINT is `-m fast`; returns when it is gone."""
        pid = self.pid
        os.kill(pid, number)
        deadline = time.monotonic() + 60
        while Path(f"/proc/{pid}").exists():
            assert time.monotonic() < deadline, "the server does not end"
            time.sleep(0.005)

    def kill(self) -> None:
        """`kill -9` of the server and of all its processes."""
        kill_family(self.pid)

    def start(self) -> None:
        self._uses.append(embedded.start(self._project, options=self._options))
        assert self._uses[-1].url == self._root

    async def restart(self, number: signal.Signals, down: float = 0.0) -> float:
        """End it, leave it down for a while, start it; returns for how long it was away."""
        began = time.monotonic()
        if number == signal.SIGKILL:
            await asyncio.to_thread(self.kill)
        else:
            await asyncio.to_thread(self.end, number)
        await asyncio.sleep(down)
        await asyncio.to_thread(self.start)
        return time.monotonic() - began

    async def new_database(self) -> None:
        """Go on with an empty database that has the schema and the check of the invariants."""
        self.start()
        connection = await asyncpg.connect(self._root)
        self._databases += 1
        if self._databases == 1:
            await connection.execute("create database made")
        await connection.close()
        if self._databases == 1:
            connection = await asyncpg.connect(self._url_of("made"))
            await migrate(connection)
            if (number := partitions()) > 1:
                await connection.execute(f"select ff.raise_partitions({number})")
            await connection.execute("create schema ff_test")
            await connection.execute(invariants_function())
            await connection.close()
        connection = await asyncpg.connect(self._root)
        await connection.execute(f"create database test_{self._databases} template made")
        await connection.close()
        self.url = self._url_of(f"test_{self._databases}")

    def _url_of(self, database: str) -> str:
        return urlsplit(self._root)._replace(path=f"/{database}").geturl()

    async def fetch(self, query: str, *arguments: object) -> list[Any]:
        """Ask over a connection of its own, as often as it takes while the server is away."""
        deadline = time.monotonic() + 60
        while True:
            try:
                connection = await asyncpg.connect(self.url, timeout=60)
                try:
                    return await connection.fetch(query, *arguments)
                finally:
                    connection.terminate()
            except _AWAY:
                assert time.monotonic() < deadline, "the server does not come back"
                await asyncio.sleep(0.05)

    async def run(self, script: str) -> None:
        """Run statements, as the owner of the schema."""
        connection = await asyncpg.connect(self.url)
        try:
            await connection.execute(script)
        finally:
            await connection.close()

    async def check_invariants(self) -> None:
        broken = await self.fetch("select * from ff_test.broken_invariants()")
        assert not broken, "\n".join(str(row) for row in broken)

    async def remove_fence(self) -> None:
        """Make an engine that takes a result for a running execution from anybody."""
        definition = "select pg_get_functiondef('ff.complete_executions'::regproc)"
        ((text,),) = await self.fetch(definition)
        mutant, count = _FENCE.subn("x.phase = 'active'", text)
        assert count == 1
        await self.fetch(mutant)

    def close(self) -> None:
        for use in reversed(self._uses):
            use.release()


@contextmanager
def durable_server(fsync: str = "on") -> Iterator[Server]:
    """Without fsync, it survives the end of its processes, but not that of the machine. Its start
    after a crash is quick."""
    # Not tmp_path: the server runs as another user if the tests run as root.
    project = Path(tempfile.mkdtemp(prefix="ff-faults-", dir="/tmp"))
    project.chmod(0o755)
    server = None
    try:
        server = Server(project, fsync)
        yield server
    finally:
        if server is not None:
            server.close()
        shutil.rmtree(project, ignore_errors=True)
