"""A migrated database for every test that asks for one, watched while it runs and checked after.

    async def test_something(db, clock, engine, make): ...

`db`      A database as a migration leaves it. `db.url` for whatever opens its own connections,
          `await db.connect()` for one more connection (closed for you), `db.fetch / fetchrow /
          fetchval / execute` for a look from the side.
`conn`    The connection behind those four, for tests that need no second one.
`clock`   `await clock.advance(minutes=5)`, `.set(when)`, `.freeze()`, `.run()`, `.now()`: moves
          `ff.now()` for all connections. It runs by default. See support/clock.py.
`engine`  The SQL functions as Python calls on `conn`; `Engine(await db.connect())` for another
          connection. Single calls return an outcome: `(await engine.complete(lease)).word`.
`make`    `await make.execution("leased")` builds any reachable state through the functions.
          See support/factories.py for both.

A test has the database for itself. The next test of the same process gets the same one, emptied:
its connections have planned the engine's functions by then, which saves 100 ms a test, and so have
those of the apps before (support/warm.py). A database
that cannot be made as new by deleting rows (another column, function, trigger, row of
ff.transition, statistics of the planner) is dropped, and so is one that has grown old; a new one is
a clone of the template (support/reset.sql decides). A test that needs one that nobody has used says
`@pytest.mark.own_database`.

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
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

import asyncpg
import pytest

from flowfabric.db import disposable

from .cluster import Cluster
from .invariants import invariants_function
from .rules import named_checks
from .warm import AS_NEW, OURS, Backends, keep_of, warm_backends

if TYPE_CHECKING:
    Connection: TypeAlias = asyncpg.Connection[Any]
    Record: TypeAlias = asyncpg.Record
    _Plain = asyncpg.Connection[Any]
else:
    _Plain = asyncpg.Connection

_HERE = Path(__file__).parent
# Names a file of SQL that spoils the library of the template: see tests/mutants.
MUTANT = "FLOWFABRIC_TEST_MUTANT"
# After so many tests a database is full of deleted rows.
_USES = 200
_SPARES = 8
_PATIENCE = 10.0


class _Connection(_Plain):
    """A connection that its reset makes as new, in one round trip."""

    def get_reset_query(self) -> str:
        return f"{super().get_reset_query()}\n{AS_NEW}"


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


class Database:
    """The database of one test after the other, and connections to it that are used again."""

    def __init__(
        self, url: str, name: str, conn: Connection, keeper: Connection, fingerprint: object
    ) -> None:
        self.url = url
        self.name = name
        self.conn = conn
        # Looks at the invariants and deletes the rows, without the triggers of the witness.
        self._keeper = keeper
        self._fingerprint = fingerprint
        self._connections: list[Connection] = []
        self._spares: list[Connection] = []
        self._backends = Backends(url)
        self._is_broken = False
        self.uses = 0

    @classmethod
    async def open(cls, url: str, name: str) -> Database:
        keeper = await _keeper(url)
        fingerprint = await keeper.fetchval("select ff_test.fingerprint()")
        return cls(url, name, await _connect(url), keeper, fingerprint)

    async def connect(self) -> Connection:
        """One more connection, closed when the test ends."""
        connection = self._spares.pop() if self._spares else await _connect(self.url)
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
        return await _broken_invariants(self.conn)

    async def others(self) -> int:
        """How many connections there are that the test did not get from here."""
        number: int = await self.conn.fetchval(
            "select count(*) from pg_stat_activity where datname = current_database() "
            "and backend_type = 'client backend' and application_name <> $1",
            OURS,
        )
        return number

    def leave_broken(self, why: str) -> None:
        """Do not check the invariants at the end: the test breaks them on purpose."""
        assert why
        self._is_broken = True

    async def end_test(self) -> bool:
        """End the test's connections, look at what it left behind, and delete it.

        Returns whether the database is as new, for another test.
        """
        for connection in self._connections:
            if len(self._spares) >= _SPARES:
                connection.terminate()
            elif await _is_as_new(connection):
                self._spares.append(connection)
        self._connections = []
        if self._keeper.is_closed():
            self._keeper = await _keeper(self.url)
        if not self._is_broken:
            # Plans made for a few rows would take minutes for ten thousand.
            if await self._keeper.fetchval("select exists (select from ff.event offset 200)"):
                await self._keeper.execute("discard plans")
            if rows := await _broken_invariants(self._keeper):
                raise BrokenInvariants(rows)
        self._is_broken = False
        self.uses += 1
        if self.uses == _USES:
            return False
        if not await _is_as_new(self.conn):
            self.conn = await _connect(self.url)
        ours = [each.get_server_pid() for each in (self.conn, *self._spares)]
        ours += self._backends.pids()
        reset = "select ff_test.reset($1, $2)"
        return bool(await self._keeper.fetchval(reset, ours, self._fingerprint))

    def close(self) -> None:
        self._backends.close()
        for connection in (self.conn, self._keeper, *self._connections, *self._spares):
            connection.terminate()


class Databases:
    """The databases of a test process: one that the next test may have, or none."""

    def __init__(self, template: Template, administration: Connection) -> None:
        self._template = template
        self._administration = administration
        self._ready: Database | None = None

    async def take(self, *, is_own: bool) -> Database:
        """A database that is empty; `is_own` asks for one that nobody has used."""
        if self._ready is not None and is_own:
            await self.drop()
        if (ready := self._ready) is not None:
            self._ready = None
            return ready
        name = f"{self._template.name}_{next(self._template.numbers)}"
        await disposable.clone(self._administration, self._template.name, name)
        return await Database.open(self._template.cluster.url_of(name), name)

    async def give_back(self, database: Database) -> None:
        """Check what a test left behind, and keep the database if it can be used again."""
        is_as_new = False
        try:
            is_as_new = await database.end_test()
        finally:
            self._ready = database
            if not is_as_new:
                await self.drop()

    async def drop(self) -> None:
        if self._ready is not None:
            self._ready.close()
            await disposable.drop(self._administration, self._ready.name)
            self._ready = None


@pytest.fixture(scope="session")
def template(cluster: Cluster) -> Iterator[Template]:
    name = f"ff_{cluster.mark}"
    asyncio.run(_build(cluster, name))
    yield Template(cluster=cluster, name=name, numbers=count(1))
    asyncio.run(_drop(cluster, name))


@pytest.fixture(scope="session")
async def databases(template: Template) -> AsyncIterator[Databases]:
    async with _administration(template.cluster) as administration:
        databases = Databases(template, administration)
        keep_of(asyncio.get_running_loop())
        with warm_backends():
            yield databases
        await databases.drop()


@pytest.fixture
async def db(databases: Databases, request: pytest.FixtureRequest) -> AsyncIterator[Database]:
    """A database that the test has for itself, with invariants checked at the end."""
    is_own = request.node.get_closest_marker("own_database") is not None
    database = await databases.take(is_own=is_own)
    try:
        yield database
    finally:
        await databases.give_back(database)


@pytest.fixture
def conn(db: Database) -> Connection:
    return db.conn


async def _build(cluster: Cluster, name: str) -> None:
    witness = (_HERE / "witness.sql").read_text(encoding="utf-8")
    reset = (_HERE / "reset.sql").read_text(encoding="utf-8")
    extras = [named_checks(), witness, invariants_function(), reset]
    if mutant := _mutant():
        extras.insert(0, mutant)
    async with _administration(cluster) as administration:
        await disposable.create_template(administration, cluster.url, name, extras)


async def _connect(url: str, **settings: str) -> Connection:
    settings["application_name"] = OURS
    connection: Connection = await asyncpg.connect(
        url, connection_class=_Connection, server_settings=settings
    )
    return connection


async def _keeper(url: str) -> Connection:
    return await _connect(url, session_replication_role="replica")


async def _broken_invariants(connection: Connection) -> list[Record]:
    return await connection.fetch(
        "select name, partition_key, execution_id, problem from ff_test.broken_invariants()"
    )


async def _is_as_new(connection: Connection) -> bool:
    """Undo what a test set on a connection; one that cannot be used any more is closed."""
    try:
        await connection.reset(timeout=_PATIENCE)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
        # Closed, or still at work for a call that the test has given up.
        connection.terminate()
    return not connection.is_closed()


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
