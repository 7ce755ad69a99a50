"""A database with both roles, and four logins: an application, one bound to a namespace, an
operator, and a stranger. Each test gets its own connections; what they do to the database stays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import count
from typing import Any, TypeAlias

import asyncpg
import pytest

from flowfabric.db.migrate import migrate
from support.factories import Engine
from support.private_cluster import SERVER_USER, Cluster, cluster, database_numbers, make_database

__all__ = ["cluster", "database_numbers", "make_database"]

OURS, THEIRS = "ours", "theirs"
LOGINS = {
    "application": "flowfabric_app",
    "bound": "flowfabric_app",
    "operator": "flowfabric_operator",
    "stranger": None,
}

_numbers = count(1)

Login: TypeAlias = Callable[[str], Awaitable["asyncpg.Connection[Any]"]]


@pytest.fixture(scope="session")
def stronghold(cluster: Cluster) -> str:
    """The name of the database."""
    asyncio.run(_build(cluster))
    return "stronghold"


async def _build(cluster: Cluster) -> None:
    administration = await asyncpg.connect(cluster.url("postgres"))
    for role in ("flowfabric_app", "flowfabric_operator"):
        await administration.execute(f"create role {role} nologin")
    for login, role in LOGINS.items():
        await administration.execute(f"create role {login} login")
        if role:
            await administration.execute(f"grant {role} to {login}")
    await administration.execute("create role keeper login")
    await administration.execute("create database stronghold owner keeper")
    await administration.close()
    keeper = await asyncpg.connect(cluster.url("stronghold", "keeper"))
    await migrate(keeper)
    await keeper.execute("select ff.grant_namespace('bound', $1)", OURS)
    await keeper.close()


@pytest.fixture
async def login(cluster: Cluster, stronghold: str) -> AsyncIterator[Login]:
    """Connects as one of the logins, or as `keeper`, the owner."""
    async with AsyncExitStack() as stack:

        async def connect(user: str) -> asyncpg.Connection[Any]:
            connection = await asyncpg.connect(cluster.url(stronghold, user))
            stack.push_async_callback(connection.close)
            return connection

        yield connect


@pytest.fixture
async def keeper(login: Login) -> asyncpg.Connection[Any]:
    return await login("keeper")


@pytest.fixture
async def theirs(login: Login) -> Engine:
    """Another tenant, at work as an application that is not bound."""
    return Engine(await login("application"), namespace=f"{THEIRS}-{next(_numbers)}")


@pytest.fixture
def superuser_url(cluster: Cluster, stronghold: str) -> str:
    return cluster.url(stronghold, SERVER_USER)
