"""A real cluster, named by a variable. Each database of a test exists on all of its nodes.

Set citus.override_table_visibility = off on every node, and add the nodes in the named database.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from faults.workers import Crew
from flowfabric.db import distribute, migrate
from flowfabric.db.connection import open_connection

VARIABLE = "FLOWFABRIC_CITUS_URL"
SKIPPED = f"runs when {VARIABLE} names a coordinator"
PARTITIONS = 8

NODES = """\
select d.nodename, d.nodeport, d.groupid from pg_dist_node d
where d.noderole = 'primary' order by d.groupid
"""
ROLES = ("flowfabric_app", "flowfabric_operator")
MAKE_ROLE = """\
do $$ begin create role {role};
exception when duplicate_object or unique_violation then null; end $$
"""


@dataclass(frozen=True)
class Node:
    """A server of the cluster. Group 0 is the coordinator."""

    host: str
    port: int
    group: int


@dataclass(frozen=True)
class ClusterDatabase:
    """A database on all nodes of the cluster; `url` is that of the coordinator."""

    url: str
    nodes: tuple[Node, ...]

    def at(self, node: Node) -> str:
        return _at(self.url, node)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not os.environ.get(VARIABLE):
        here = f"{Path(__file__).parent}{os.sep}"
        for item in items:
            if str(item.path).startswith(here):
                item.add_marker(pytest.mark.skip(reason=SKIPPED))


@pytest.fixture
async def make_cluster_database() -> AsyncIterator[Callable[[], Awaitable[ClusterDatabase]]]:
    """Makes empty databases on all nodes, and drops them after the test."""
    url = os.environ[VARIABLE]
    async with open_connection(url) as connection:
        nodes = tuple(Node(*row) for row in await connection.fetch(NODES))
        # Roles belong to all databases. If one test made them, the database of another test that
        # runs beside it would lack their rights, and doctor would say so.
        for role in ROLES:
            await connection.execute(MAKE_ROLE.format(role=role))
    made: list[str] = []

    async def make() -> ClusterDatabase:
        name = f"ff_test_{secrets.token_hex(4)}"
        made.append(name)
        for node in nodes:
            async with open_connection(_at(url, node)) as connection:
                await connection.execute(f"create database {name}")
            async with open_connection(_at(url, node, name)) as connection:
                await connection.execute("create extension citus")
        coordinator, *others = nodes
        async with open_connection(_at(url, coordinator, name)) as connection:
            await connection.execute(
                "select citus_set_coordinator_host($1, $2)", coordinator.host, coordinator.port
            )
            for node in others:
                await connection.execute("select citus_add_node($1, $2)", node.host, node.port)
        return ClusterDatabase(url=_at(url, coordinator, name), nodes=nodes)

    yield make
    for name in made:
        for node in nodes:
            async with open_connection(_at(url, node)) as connection:
                await connection.execute(f"drop database if exists {name} with (force)")


@pytest.fixture
async def cluster_database(
    make_cluster_database: Callable[[], Awaitable[ClusterDatabase]],
) -> ClusterDatabase:
    """A database that is migrated and distributed."""
    database = await make_cluster_database()
    async with open_connection(database.url) as connection:
        await migrate.migrate(connection)
        await distribute.distribute(connection, partitions=PARTITIONS)
    return database


@pytest.fixture
async def coordinator(cluster_database: ClusterDatabase) -> AsyncIterator[asyncpg.Connection]:
    async with open_connection(cluster_database.url) as connection:
        yield connection


@pytest.fixture
def crews() -> AsyncIterator[list[Crew]]:
    """Put the crews of a test here: nothing of them is left after it."""
    started: list[Crew] = []
    yield started
    for crew in started:
        crew.destroy()


def _at(url: str, node: Node, database: str | None = None) -> str:
    parts = urlsplit(url)
    login = parts.netloc.rpartition("@")[0]
    netloc = f"{login}@{node.host}:{node.port}" if login else f"{node.host}:{node.port}"
    path = parts.path if database is None else f"/{database}"
    return parts._replace(netloc=netloc, path=path).geturl()


@pytest.fixture
def root_of_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a test import the operations that the benchmarks time."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
