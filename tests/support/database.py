"""A migrated database for every test that requests one. Its data is checked after the test.

    async def test_something(db, clock, engine, make): ...

`db`      A freshly migrated database. `db.url` is for code that opens its own connections.
          `await db.connect()` opens one more connection, which is closed after the test.
          `db.fetch / fetchrow / fetchval / execute` query the database from the side.
`conn`    The connection that these four methods use, for tests that need only one.
`clock`   `await clock.advance(minutes=5)`, `.set(when)`, `.freeze()`, `.run()`, `.now()`: moves
          `ff.now()` for all connections. The clock runs by default. See support/clock.py.
`engine`  The SQL functions as Python calls on `conn`; `Engine(await db.connect())` for another
          connection. They use the partition `home()`. Single calls return an outcome:
          `(await engine.complete(lease)).word`.
`make`    `await make.execution("leased")` builds any reachable state through the functions.
          See support/factories.py for both.

While a test runs, no other test uses its database. The next test of the same process gets the same
database, emptied. By then its connections have planned the functions, which saves 100 ms per test;
the same is true for the connections of apps (support/warm.py). Some changes cannot be undone by
deleting rows: a new column, function, trigger, row of ff.transition, or statistics of the planner.
After such a change the database is dropped, and also when it is old; support/reset.sql decides. A
new database is a clone of the template. A test that needs a new database is marked
`@pytest.mark.own_database`.

Besides the schema, the template has the settable clock, the witness and the invariants. The witness
(support/witness.sql) raises WF290 for a state change that ff.transition does not list or that
writes no event. `ff_test.broken_invariants()` (support/invariants.py) checks the invariants of
`flowfabric doctor` when the test ends, and the test fails if it returns a row. A test that corrupts
its database on purpose calls `db.leave_broken("why")`. `await db.forget(execution_id)` deletes an
execution; no other code may do that. The functions are in their plain form, or in the distributed
one (support/forms.py).
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
from asyncpg.transaction import Transaction

from flowfabric.db import disposable

from .cluster import Cluster
from .forms import are_distributed, distributed_library, witness_of_pairs
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
# Names a file of SQL that puts a bug into the library of the template. See tests/mutants.
MUTANT = "FLOWFABRIC_TEST_MUTANT"
# How many partitions the databases of the tests have; one if it is not set.
PARTITIONS = "FLOWFABRIC_TEST_PARTITIONS"
# Runs a test twice: with the partitions of the run, and with eight. A few tests of each suite have
# it, so that `make test` finds code that knows only partition 0. `make prove` runs the whole suites
# (tests/partitions/test_suites.py).
several_partitions = pytest.mark.parametrize(
    "db", [1, 8], indirect=True, ids=["partitions of the run", "eight partitions"]
)
# Read at the start: tests run without the variables of whoever started them.
_PARTITIONS = int(os.environ.get(PARTITIONS, "1"))
# The partition of a test that chooses none: that of the run, then that of the test.
_home = [min(5, _PARTITIONS - 1)]
# After so many tests a database is full of deleted rows.
_USES = 200
_SPARES = 8
_PATIENCE = 10.0


# How many sessions of a database wait for a lock.
WAITING = (
    "select count(*) from pg_stat_activity "
    "where datname = current_database() and wait_event_type = 'Lock'"
)


class _Connection(_Plain):
    """A connection that resets its whole state in one round trip."""

    def get_reset_query(self) -> str:
        return f"{super().get_reset_query()}\n{AS_NEW}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """The template database, and the numbers of its clones."""

    cluster: Cluster
    name: str
    numbers: Iterator[int]


class BrokenInvariants(AssertionError):
    """The test left rows that violate an invariant."""

    def __init__(self, rows: list[Record]) -> None:
        lines = [
            f"{row['name']} partition {row['partition_key']} execution {row['execution_id']}: "
            f"{row['problem']}"
            for row in rows
        ]
        super().__init__("\n".join(["the database is inconsistent:", *lines]))


class Database:
    """A database that tests use one after another, and its reused connections."""

    def __init__(
        self, url: str, name: str, conn: Connection, keeper: Connection, fingerprint: object
    ) -> None:
        self.url = url
        self.name = name
        self.conn = conn
        # Checks the invariants and deletes the rows, without the triggers of the witness.
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
        """Open one more connection. It is closed when the test ends."""
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

    async def forget(self, execution_id: UUID, partition_key: int | None = None) -> None:
        """Delete an execution and the rows that it owns. Its events and its key stay."""
        partition = home() if partition_key is None else partition_key
        await self.conn.execute("select ff_test.forget($1, $2)", partition, execution_id)

    async def broken_invariants(self) -> list[Record]:
        return await _broken_invariants(self.conn)

    async def others(self) -> int:
        """Return the number of connections that were not opened through this object."""
        number: int = await self.conn.fetchval(
            "select count(*) from pg_stat_activity where datname = current_database() "
            "and backend_type = 'client backend' and application_name <> $1",
            OURS,
        )
        return number

    async def lock_executions(self, *ids: UUID) -> Transaction:
        """Lock executions on another connection, until the returned transaction ends."""
        connection = await self.connect()
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(
            "select from ff.execution where execution_id = any ($1) for no key update", ids
        )
        return transaction

    async def until_waiting(self, *calls: asyncio.Future[Any]) -> None:
        """Wait until as many sessions wait for a lock as there are calls. A call that ends before
        that did not wait, and is an error."""
        async with asyncio.timeout(60):
            while await self._keeper.fetchval(WAITING) != len(calls):
                assert not any(call.done() for call in calls), "a call ended and did not wait"
                await asyncio.sleep(0.005)

    def leave_broken(self, why: str) -> None:
        """Skip the check of the invariants, because the test breaks them on purpose."""
        assert why
        self._is_broken = True

    async def end_test(self) -> bool:
        """Close the test's connections, check the invariants, and delete all rows.

        Return whether another test can use the database.
        """
        for connection in self._connections:
            if len(self._spares) >= _SPARES:
                connection.terminate()
            elif await _is_as_new(connection):
                self._spares.append(connection)
        self._connections = []
        # A test that failed in a transaction holds locks, for which the keeper would wait.
        if not await _is_as_new(self.conn):
            self.conn = await _connect(self.url)
        if self._keeper.is_closed():
            self._keeper = await _keeper(self.url)
        if not self._is_broken:
            # A plan made for a few rows would take minutes for ten thousand rows.
            if await self._keeper.fetchval("select exists (select from ff.event offset 200)"):
                await self._keeper.execute("discard plans")
            if rows := await _broken_invariants(self._keeper):
                raise BrokenInvariants(rows)
        self._is_broken = False
        self.uses += 1
        if self.uses == _USES:
            return False
        ours = [each.get_server_pid() for each in (self.conn, *self._spares)]
        ours += self._backends.pids()
        reset = "select ff_test.reset($1, $2)"
        return bool(await self._keeper.fetchval(reset, ours, self._fingerprint))

    def close(self) -> None:
        self._backends.close()
        for connection in (self.conn, self._keeper, *self._connections, *self._spares):
            connection.terminate()


class Databases:
    """The databases of a test process. At most one waits for the next test."""

    def __init__(self, template: Template, administration: Connection) -> None:
        self._template = template
        self._administration = administration
        self._ready: Database | None = None

    async def take(self, *, is_own: bool) -> Database:
        """Return an empty database. With `is_own`, it is a new one that no test has used."""
        if self._ready is not None and is_own:
            await self.drop()
        if (ready := self._ready) is not None:
            self._ready = None
            return ready
        name = f"{self._template.name}_{next(self._template.numbers)}"
        await disposable.clone(self._administration, self._template.name, name)
        return await Database.open(self._template.cluster.url_of(name), name)

    async def give_back(self, database: Database) -> None:
        """Check the data that a test left, and keep the database if another test can use it."""
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
    """Return the database of this test, and check its invariants at the end."""
    is_own = request.node.get_closest_marker("own_database") is not None
    database = await databases.take(is_own=is_own)
    try:
        if (number := getattr(request, "param", 1)) > partitions():
            if are_distributed():
                pytest.skip("the distributed form refuses to raise the number without a cluster")
            await database.execute(f"select ff.raise_partitions({number})")
            _home.append(min(5, number - 1))
        yield database
    finally:
        del _home[1:]
        await databases.give_back(database)


@pytest.fixture
def conn(db: Database) -> Connection:
    return db.conn


async def _build(cluster: Cluster, name: str) -> None:
    witness = (_HERE / "witness.sql").read_text(encoding="utf-8")
    reset = (_HERE / "reset.sql").read_text(encoding="utf-8")
    extras = [named_checks(), witness, invariants_function(), reset]
    if are_distributed():
        extras = [*distributed_library(), *extras[:-1], witness_of_pairs(), reset]
    if mutant := _mutant():
        extras.insert(0, mutant)
    if (number := partitions()) > 1:
        extras.insert(0, f"select ff.raise_partitions({number})")
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
    """Reset the state of a connection. Close it and return False if it cannot be used again."""
    try:
        await connection.reset(timeout=_PATIENCE)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
        # The connection is closed, or still runs a call that the test has abandoned.
        connection.terminate()
    return not connection.is_closed()


async def spoil(connection: Connection) -> None:
    """Put a bug into the library, if this run checks whether a test finds it."""
    if mutant := _mutant():
        await connection.execute(mutant)


def partitions() -> int:
    """How many partitions the databases of this run have."""
    return _PARTITIONS


def home() -> int:
    """Return the partition of a test that chooses none. It is 0 only if there is no other."""
    return _home[-1]


def _mutant() -> str | None:
    file = os.environ.get(MUTANT)
    return Path(file).read_text(encoding="utf-8") if file else None


@asynccontextmanager
async def another_installation(template: Template) -> AsyncIterator[str]:
    """Make a second database with our schema; yield its name. Drop it in the end.

    It has an id of its own. A copy would have that of the template, by which distributed databases
    know each other.
    """
    name = f"{template.name}_{next(template.numbers)}_another"
    async with _administration(template.cluster) as administration:
        await disposable.clone(administration, template.name, name)
        try:
            connection = await _connect(template.cluster.url_of(name))
            await connection.execute(
                "update ff.meta set value = md5($1) where name = 'installation_id'", name
            )
            await connection.close()
            yield name
        finally:
            await disposable.drop(administration, name)


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
