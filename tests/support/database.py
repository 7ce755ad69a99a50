"""A migrated database for every test that asks for one, watched while it runs and checked after.

    async def test_something(db, clock, engine, make): ...

`db`      A database of the test's own, cloned from a template (30 ms). `db.url` for whatever opens
          its own connections, `await db.connect()` for one more connection (closed for you),
          `db.fetch / fetchrow / fetchval / execute` for a look from the side.
`conn`    The connection behind those four, for tests that need no second one.
`clock`   `await clock.advance(minutes=5)`, `.set(when)`, `.freeze()`, `.run()`, `.now()`: moves
          `ff.now()` for all connections. It runs by default. See support/clock.py.
`engine`  The SQL functions as Python calls on `conn`; `Engine(await db.connect())` for another
          connection. Single calls return an outcome: `(await engine.complete(lease)).word`.
`make`    `await make.execution("leased")` builds any reachable state through the functions.
          See support/factories.py for both.

The template has, beside the schema: the settable clock; the witness (support/witness.sql), which
raises WF290 for a state change that ff.transition does not list or that lacks its event; and
`ff_test.broken_invariants()` (support/invariants.py), the invariants of `flowfabric doctor`, which
runs when the test ends and fails it if it returns a row. A test that corrupts its database on
purpose says `db.leave_broken("why")`; `await db.forget(execution_id)` deletes an execution, as
nothing else may.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

import asyncpg
import pytest

from flowfabric.db import disposable

from .cluster import Cluster
from .invariants import invariants_function

if TYPE_CHECKING:
    Connection: TypeAlias = asyncpg.Connection[Any]
    Record: TypeAlias = asyncpg.Record

_HERE = Path(__file__).parent
# Names a file of SQL that spoils the library of the template: see tests/mutants.
MUTANT = "FLOWFABRIC_TEST_MUTANT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """The database that the others are clones of, and the numbers of the clones."""

    cluster: Cluster
    name: str
    numbers: Iterator[int]


class BrokenInvariants(AssertionError):
    """The test left rows behind that must not exist together."""

    def __init__(self, rows: list[Record]) -> None:
        lines = [
            f"{row['name']} partition {row['partition_key']} execution {row['execution_id']}: "
            f"{row['problem']}"
            for row in rows
        ]
        super().__init__("\n".join(["the database is inconsistent:", *lines]))


@dataclass(slots=True)
class Database:
    """The database of one test."""

    url: str
    name: str
    conn: Connection
    _connections: list[Connection] = field(default_factory=list)
    _is_broken: bool = False

    async def connect(self) -> Connection:
        """One more connection, closed when the test ends."""
        connection = await asyncpg.connect(self.url)
        self._connections.append(connection)
        return connection

    async def fetch(self, query: str, *arguments: object) -> list[Record]:
        return await self.conn.fetch(query, *arguments)

    async def fetchrow(self, query: str, *arguments: object) -> Record | None:
        return await self.conn.fetchrow(query, *arguments)

    async def fetchval(self, query: str, *arguments: object) -> Any:
        return await self.conn.fetchval(query, *arguments)

    async def execute(self, query: str, *arguments: object) -> str:
        return await self.conn.execute(query, *arguments)

    async def forget(self, execution_id: UUID, partition_key: int = 0) -> None:
        """Delete an execution and what it owns; its events and its key stay."""
        await self.conn.execute("select ff_test.forget($1, $2)", partition_key, execution_id)

    async def broken_invariants(self) -> list[Record]:
        return await self.conn.fetch(
            "select name, partition_key, execution_id, problem from ff_test.broken_invariants()"
        )

    def leave_broken(self, why: str) -> None:
        """Do not check the invariants at the end: the test breaks them on purpose."""
        assert why
        self._is_broken = True

    async def close(self) -> None:
        """End the test's connections, then look at what it left behind."""
        for connection in self._connections:
            connection.terminate()
        if self.conn.is_closed():
            self.conn = await asyncpg.connect(self.url)
        try:
            await self.conn.reset()
            if not self._is_broken and (rows := await self.broken_invariants()):
                raise BrokenInvariants(rows)
        finally:
            await self.conn.close()


@pytest.fixture(scope="session")
def template(cluster: Cluster) -> Iterator[Template]:
    name = f"ff_{cluster.mark}"
    asyncio.run(_build(cluster, name))
    yield Template(cluster=cluster, name=name, numbers=count(1))
    asyncio.run(_drop(cluster, name))


@pytest.fixture
async def db(template: Template) -> AsyncIterator[Database]:
    """A database of the test's own, with invariants checked at the end."""
    name = f"{template.name}_{next(template.numbers)}"
    url = template.cluster.url_of(name)
    async with _administration(template.cluster) as administration:
        await disposable.clone(administration, template.name, name)
        try:
            database = Database(url, name, await asyncpg.connect(url))
            try:
                yield database
            finally:
                await database.close()
        finally:
            await disposable.drop(administration, name)


@pytest.fixture
def conn(db: Database) -> Connection:
    return db.conn


async def _build(cluster: Cluster, name: str) -> None:
    witness = (_HERE / "witness.sql").read_text(encoding="utf-8")
    extras = [witness, invariants_function()]
    if mutant := _mutant():
        extras.insert(0, mutant)
    async with _administration(cluster) as administration:
        await disposable.create_template(administration, cluster.url, name, extras)


async def spoil(connection: Connection) -> None:
    """Put a mistake into the library, if the run is to see whether a test notices it."""
    if mutant := _mutant():
        await connection.execute(mutant)


def _mutant() -> str | None:
    file = os.environ.get(MUTANT)
    return Path(file).read_text(encoding="utf-8") if file else None


async def _drop(cluster: Cluster, name: str) -> None:
    async with _administration(cluster) as administration:
        await disposable.drop(administration, name)


@asynccontextmanager
async def _administration(cluster: Cluster) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(cluster.url)
    try:
        yield connection
    finally:
        await connection.close()
