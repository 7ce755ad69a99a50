"""A database as a user has it, without the clock and the witness of the test template, and the
command on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import count

import asyncpg
import pytest

from events.conftest import all_servers, servers
from flowfabric.db.migrate import migrate
from support.cluster import Cluster
from support.commands import invoke
from support.database import partitions
from support.factories import Engine

__all__ = ["all_servers", "servers"]

_numbers = count(1)

Run = Callable[..., Awaitable[tuple[int, str, str]]]


@pytest.fixture(scope="session")
def user_template(cluster: Cluster) -> Iterator[str]:
    name = f"ff_doctor_{cluster.mark}"
    asyncio.run(_build(cluster, name))
    yield name
    asyncio.run(_administer(cluster, f"drop database {name} with (force)"))


@pytest.fixture
async def bare(cluster: Cluster, user_template: str) -> AsyncIterator[str]:
    """The URL of a migrated, empty database of the test's own."""
    name = f"{user_template}_{next(_numbers)}"
    await _administer(
        cluster, f"create database {name} template {user_template} strategy file_copy"
    )
    yield cluster.url_of(name)
    await _administer(cluster, f"drop database {name} with (force)")


@pytest.fixture
async def plain(bare: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection to it."""
    connection = await asyncpg.connect(bare)
    yield connection
    await connection.close()


@pytest.fixture
def working(plain: asyncpg.Connection) -> Engine:
    """The engine on it."""
    return Engine(plain)


@pytest.fixture
def doctor(bare: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`await doctor("--explain", id)`: the exit code, stdout and stderr."""
    monkeypatch.delenv("PGOPTIONS", raising=False)

    async def run(*arguments: str, url: str = bare) -> tuple[int, str, str]:
        result = await invoke("-o", "json", "doctor", "--database-url", url, *arguments)
        return result.exit_code, result.stdout, result.stderr

    return run


async def _build(cluster: Cluster, name: str) -> None:
    await _administer(cluster, f"create database {name}")
    connection = await asyncpg.connect(cluster.url_of(name))
    try:
        await migrate(connection)
        if partitions() > 1:
            await connection.execute(f"select ff.raise_partitions({partitions()})")
    finally:
        await connection.close()


async def _administer(cluster: Cluster, command: str) -> None:
    connection = await asyncpg.connect(cluster.url)
    try:
        await connection.execute(command)
    finally:
        await connection.close()
