"""PgBouncer in transaction mode in front of a database, for the length of a test."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg

from support.programs import as_server, server_user

# Debian keeps it where only root's path leads.
PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")

_INI = """\
[databases]
{database} = {place}
[pgbouncer]
listen_addr =
unix_socket_dir = {folder}
auth_type = any
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 200
server_reset_query =
logfile = {folder}/log
pidfile = {folder}/pid
"""


class Pooler:
    """Where it listens, and how to be sure that it is there."""

    def __init__(self, database: str, folder: Path) -> None:
        self.url = f"postgresql://anybody@/{database}?host={folder}&port=6432"
        self._folder = folder

    async def until_ready(self) -> None:
        deadline = time.monotonic() + 60
        while True:
            try:
                connection = await asyncpg.connect(self.url, statement_cache_size=0)
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                log = self._folder / "log"
                said = log.read_text() if log.exists() else ""
                if time.monotonic() > deadline:
                    raise AssertionError(f"pgbouncer does not answer:\n{said}") from error
                await asyncio.sleep(0.02)
            else:
                await connection.close()
                return


@contextmanager
def pgbouncer(url: str, *, size: int) -> Iterator[Pooler]:
    """At most `size` connections to the server, whatever the number of clients."""
    assert PROGRAM
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    database = parts.path.lstrip("/")
    place = {
        "host": parts.hostname or query["host"][0],
        "port": parts.port or query.get("port", ["5432"])[0],
        "user": parts.username or "postgres",
        "dbname": database,
    }
    if parts.password:
        place["password"] = parts.password
    folder = Path(tempfile.mkdtemp(prefix="ff-pooler-", dir="/tmp"))
    # It refuses to run as root; whoever runs the server may also read its socket.
    account = as_server()
    if (user := server_user()) is not None:
        shutil.chown(folder, user)
    ini = folder / "ini"
    ini.write_text(
        _INI.format(
            database=database,
            place=" ".join(f"{name}={value}" for name, value in place.items()),
            size=size,
            folder=folder,
        )
    )
    ini.chmod(0o644)
    process = subprocess.Popen(
        [PROGRAM, "-q", str(ini)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        **account,  # type: ignore[call-overload]
    )
    try:
        yield Pooler(database, folder)
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)
