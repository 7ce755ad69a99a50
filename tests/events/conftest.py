"""An event log for a test, on the shared server or on one that may be killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest

from .log import Log, new_log, prepare
from .servers import Servers


@pytest.fixture(scope="session")
def log_template(cluster) -> Iterator[str]:
    name = f"log_{cluster.mark}"

    async def run(statement: str) -> None:
        connection = await asyncpg.connect(cluster.url)
        await connection.execute(statement)
        await connection.close()

    asyncio.run(run(f"create database {name}"))
    asyncio.run(prepare(cluster.url_of(name)))
    yield name
    asyncio.run(run(f"drop database {name} with (force)"))


@pytest.fixture
async def log(cluster, log_template) -> AsyncIterator[Log]:
    """A database of events only, on the server of the test run."""
    async with new_log(cluster.url, cluster.url_of, log_template) as log:
        yield log


@pytest.fixture(scope="session")
def all_servers() -> Iterator[Servers]:
    servers = Servers()
    yield servers
    servers.close()


@pytest.fixture
def servers(all_servers) -> Iterator[Servers]:
    """Servers of the test's own; all of them are gone afterwards."""
    yield all_servers
    all_servers.release()
