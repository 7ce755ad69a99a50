"""Every function on a distributed database, compared with the same calls on one server."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from itertools import count
from typing import Any

import asyncpg
import pytest

from faults.test_repeat_after_cut import (
    COUNTS,
    SCENARIOS,
    Scenario,
    Stage,
    calls_that_read,
    make_known,
)
from flowfabric.client import FlowFabric
from flowfabric.core.errors import FlowFabricError
from flowfabric.db import disposable, distribute, migrate
from flowfabric.db.connection import open_connection
from support.clock import Clock


class Clustered:
    """The database of a cluster, as the scenarios use a database, and its clock."""

    def __init__(self, url: str, connection: asyncpg.Connection) -> None:
        self.url = url
        self.conn = connection
        self.fetch = connection.fetch
        self.fetchrow = connection.fetchrow
        self.fetchval = connection.fetchval
        self.execute = connection.execute
        self._shift = timedelta()
        self._opened: list[asyncpg.Connection] = []

    async def connect(self) -> asyncpg.Connection:
        self._opened.append(await asyncpg.connect(self.url))
        return self._opened[-1]

    async def advance(self, *, seconds: float) -> None:
        self._shift += timedelta(seconds=seconds)
        await self.execute("update ff_test.clock set shift = $1", self._shift)

    async def close(self) -> None:
        for connection in self._opened:
            await connection.close()


@pytest.fixture
async def clustered(make_cluster_database) -> AsyncIterator[Clustered]:
    """A distributed database with one partition, as the other database has, and with a clock that
    a test can set. Every node has a copy of the clock."""
    database = await make_cluster_database()
    async with open_connection(database.url) as connection:
        await migrate.migrate(connection)
        await distribute.distribute(connection, partitions=1)
        schema, table, now, *_ = disposable.clock().split(";\n\n")
        await connection.execute(schema)
        await connection.execute(table)
        await connection.execute("select create_reference_table('ff_test.clock')")
        await connection.execute(now)
        found = Clustered(database.url, connection)
        yield found
        await found.close()


async def effect(db: Any, scenario: Scenario, stage: Stage) -> tuple[Counter[str], Any]:
    """What a call left behind, and its answer (an error is one, too)."""
    await scenario.prepare(stage)
    before = await counts(db)
    try:
        answer = await scenario.act(stage)
    except (FlowFabricError, AssertionError) as error:
        answer = f"{type(error).__name__}: {error}"
    after = await counts(db)
    after.subtract(before)
    return Counter({what: n for what, n in after.items() if n}), answer


async def counts(db: Any) -> Counter[str]:
    found: Counter[str] = Counter()
    for query in re.split(r"union all (?=select ')", COUNTS):
        found.update({what: int(n or 0) for what, n in await db.fetch(query)})
    return found


@pytest.mark.timeout(900)
async def test_a_function_that_writes_does_the_same_as_on_one_server(db, clock, clustered):
    wrong = {}
    numbers = count(1)
    async with FlowFabric(db.url) as one, FlowFabric(clustered.url) as many:
        for scenario in SCENARIOS:
            number = next(numbers)
            try:
                expected = await effect(db, scenario, Stage(one, db, Clock(db), number))
                found = await effect(clustered, scenario, Stage(many, clustered, clustered, number))
            except Exception as error:
                wrong[scenario.name] = f"{type(error).__name__}: {error}"
                continue
            if found != expected:
                wrong[scenario.name] = f"{found}, not {expected}"
    assert wrong == {}, "\n".join(f"{name}: {problem}" for name, problem in wrong.items())


async def test_a_function_that_reads_answers(clustered):
    wrong = {}
    async with FlowFabric(clustered.url) as client:
        known = await make_known(client)
    for name, call in calls_that_read(known).items():
        try:
            await clustered.fetch(f"select * from {call}")
        except asyncpg.PostgresError as error:
            wrong[name] = f"{error.sqlstate} {error}"
    assert wrong == {}
