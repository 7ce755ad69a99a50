"""A database as a user has it: migrated, without the clock and the witness of the test template."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import AsyncIterator, Iterator
from itertools import count
from types import ModuleType

import asyncpg
import pytest

from flowfabric.db.migrate import migrate
from support.cluster import Cluster

from .sources import ROOT

_numbers = count(1)


@pytest.fixture(scope="session")
def plain(cluster: Cluster) -> Iterator[str]:
    """The name of a migrated database that nobody writes to; others are made from it."""
    name = f"ff_plain_{cluster.mark}"
    asyncio.run(_build(cluster, name))
    yield name
    asyncio.run(_administer(cluster, f"drop database {name} with (force)"))


@pytest.fixture(scope="session")
async def _catalogue(cluster: Cluster, plain: str) -> AsyncIterator[asyncpg.Connection]:
    # A template may have no connections.
    name = f"{plain}_catalogue"
    await _administer(cluster, f"create database {name} template {plain} strategy file_copy")
    connection = await asyncpg.connect(
        cluster.url_of(name), server_settings={"default_transaction_read_only": "on"}
    )
    yield connection
    await connection.close()
    await _administer(cluster, f"drop database {name} with (force)")


@pytest.fixture
async def catalogue(_catalogue: asyncpg.Connection) -> asyncpg.Connection:
    """A connection to look at what a migration makes. Nothing may be written through it."""
    await _catalogue.reset()
    return _catalogue


@pytest.fixture
async def bare(cluster: Cluster, plain: str) -> AsyncIterator[str]:
    """The URL of a database of the test's own, empty, with the real clock and no witness."""
    name = f"{plain}_{next(_numbers)}"
    await _administer(cluster, f"create database {name} template {plain} strategy file_copy")
    yield cluster.url_of(name)
    await _administer(cluster, f"drop database {name} with (force)")


@pytest.fixture(scope="module")
def generate() -> Iterator[ModuleType]:
    """tools/generate.py as a module."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "tools" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["generate"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["generate"]


async def _build(cluster: Cluster, name: str) -> None:
    await _administer(cluster, f"create database {name}")
    connection = await asyncpg.connect(cluster.url_of(name))
    try:
        await migrate(connection)
    finally:
        await connection.close()


async def _administer(cluster: Cluster, command: str) -> None:
    connection = await asyncpg.connect(cluster.url)
    try:
        await connection.execute(command)
    finally:
        await connection.close()
