"""Event logs whose writers are told what to do, transaction by transaction.

    a = await log.begin()            # a transaction of its own
    await a.number()                 # takes its number (xid) now, before it writes
    await a.write("x", "y")          # the next events of the executions x and y
    await a.commit()                 # or a.rollback()

    page = await log.read(cursor, limit=1)
    page.names                       # ["x1", "y1"]: execution and version
    reader = Reader(log, cursor)     # keeps its cursor and all it was given

The database is migrated as for production: it has no witness, so that events may stand alone. A
row for every execution is locked by whoever writes its next event, as the engine does it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any
from uuid import UUID

import asyncpg

from flowfabric.db.migrate import migrate
from support.database import spoil

PREPARE = """
create schema t;
create table t.execution (
  execution_id uuid primary key, name text, version integer not null);

create function t.id_of(p_name text) returns uuid language sql immutable
as $$ select md5(p_name)::uuid $$;

create function t.write(
  p_names text[], p_at timestamptz default null, p_partition smallint default 0)
returns void
language plpgsql
as $$
declare
  v_generation constant integer := ff._enter_generation(p_partition);
begin
  with moved as (
    insert into t.execution as x (execution_id, name, version)
    select t.id_of(n.name), n.name, 1 from unnest(p_names) with ordinality n(name, place)
    order by n.place
    on conflict (execution_id) do update set version = x.version + 1
    returning x.execution_id, x.version)
  insert into ff.event (
    partition_key, version, generation, xid, execution_id, occurred_at, kind, namespace)
  select p_partition, m.version, v_generation, pg_current_xact_id(), m.execution_id,
         coalesce(p_at, clock_timestamp()),
         case m.version when 1 then 'submitted' else 'claimed' end::ff.event_kind, 'test'
  from moved m;
end
$$;

-- The server counts lower than the partition's last one did, and its event ids begin again.
create function t.move(p_shift bigint, p_partition smallint default 0) returns integer
language plpgsql
as $$
declare
  v_generation constant integer := ff._find_generation(p_partition);
begin
  update ff.event e set xid = (e.xid::text::bigint + p_shift)::text::xid8
  where e.partition_key = p_partition and e.generation = v_generation;
  update ff.trim_mark m set xid = (m.xid::text::bigint + p_shift)::text::xid8
  where m.partition_key = p_partition and m.generation = v_generation;
  perform ff._raise_generation(p_partition);
  alter table ff.event alter column event_id restart with 1;
  return v_generation;
end
$$;

-- Many small transactions at once, without a round trip for each.
create procedure t.fill(p_transactions integer, p_events integer, p_from integer default 0)
language plpgsql
as $$
begin
  for i in p_from + 1 .. p_from + p_transactions loop
    insert into ff.event (partition_key, version, xid, execution_id, occurred_at, kind, namespace)
    select 0, case when v = 1 then 1 else 2 end, pg_current_xact_id(),
           md5(case when v = 1 then i else greatest(i - v, 1) end::text)::uuid,
           clock_timestamp(),
           case when v = 1 then 'submitted' else 'claimed' end::ff.event_kind, 'test'
    from generate_series(1, p_events) v;
    commit;
  end loop;
end
$$;
"""

_READ = """
select r.event_id, r.execution_id, r.version, r.occurred_at, r.next_cursor, r.has_more,
       (select x.name from t.execution x where x.execution_id = r.execution_id) as name
from ff.read_events($1, null, $2, $3) r
"""


@dataclass(frozen=True, slots=True)
class Page:
    """Events as records, in the order in which they came."""

    events: list[asyncpg.Record]
    cursor: str
    has_more: bool

    @property
    def names(self) -> list[str]:
        return [f"{event['name']}{event['version']}" for event in self.events]

    @property
    def unfinished(self) -> int:
        """How many transactions the cursor waits for."""
        distances = self.cursor.split(":")[7]
        return len(distances.split(",")) if distances else 0


class Writer:
    """One transaction that is open until it is told to end."""

    def __init__(self, connection: asyncpg.Connection[Any]) -> None:
        self.connection = connection
        self._transaction = connection.transaction()

    async def start(self) -> Writer:
        await self._transaction.start()
        return self

    async def number(self) -> int:
        return int(await self.connection.fetchval("select pg_current_xact_id()::text::bigint"))

    async def write(self, *names: str, at: datetime | None = None, partition: int = 0) -> None:
        await self.connection.execute("select t.write($1, $2, $3)", list(names), at, partition)

    async def commit(self) -> None:
        await self._transaction.commit()
        await self.connection.close()

    async def rollback(self) -> None:
        await self._transaction.rollback()
        await self.connection.close()


class Log:
    """A database with nothing in it but events."""

    def __init__(self, url: str, connection: asyncpg.Connection[Any]) -> None:
        self.url = url
        self.conn = connection
        self._connections: list[asyncpg.Connection[Any]] = []

    async def connect(self, **settings: str) -> asyncpg.Connection[Any]:
        connection = await asyncpg.connect(self.url, server_settings=settings or None)
        self._connections.append(connection)
        return connection

    async def begin(self, **settings: str) -> Writer:
        return await Writer(await self.connect(**settings)).start()

    async def begin_numbered(self, count: int = 1) -> list[Writer]:
        """Transactions whose numbers rise in the order of the list."""
        writers = [await self.begin() for _ in range(count)]
        numbers = [await writer.number() for writer in writers]
        assert numbers == sorted(numbers)
        return writers

    async def write(self, *names: str, at: datetime | None = None, partition: int = 0) -> None:
        """One committed transaction."""
        await self.conn.execute("select t.write($1, $2, $3)", list(names), at, partition)

    async def open(
        self,
        since: datetime | None = None,
        *,
        grace: timedelta | None = None,
        partition: int = 0,
        connection: asyncpg.Connection[Any] | None = None,
    ) -> str:
        return str(
            await (connection or self.conn).fetchval(
                "select ff.open_cursor($1, $2, $3)", partition, since, grace
            )
        )

    async def read(
        self,
        cursor: str | None,
        limit: int = 500,
        *,
        partition: int = 0,
        connection: asyncpg.Connection[Any] | None = None,
    ) -> Page:
        rows = await (connection or self.conn).fetch(_READ, partition, cursor, limit)
        *events, end = rows
        assert end["event_id"] is None
        assert all(event["event_id"] is not None for event in events)
        return Page(events, end["next_cursor"], end["has_more"])

    async def move(self, shift: int, *, partition: int = 0) -> Callable[[str], str]:
        """Move the partition to a server that counts `shift` transactions behind the present one.

        Returns the function that turns a cursor of before into the one the old server would have
        made. In truth the past is moved up: no server counts backwards.
        """
        generation = await self.conn.fetchval("select t.move($1, $2)", shift, partition)
        return lambda cursor: _shifted(cursor, generation, shift)

    async def committed(self, partition: int = 0) -> list[tuple[UUID, int]]:
        """Every event that exists, as execution and version."""
        rows = await self.conn.fetch(
            "select execution_id, version from ff.event where partition_key = $1", partition
        )
        return [(row["execution_id"], row["version"]) for row in rows]

    async def close(self) -> None:
        for connection in self._connections:
            connection.terminate()


def _shifted(cursor: str, generation: int, shift: int) -> str:
    parts = cursor.split(":")[:-1]
    if int(parts[5]) == generation and parts[6] != "0":
        parts[6] = str(int(parts[6]) + shift)
    trimmed, _, xid = parts[11].partition(".")
    if trimmed == str(generation):
        parts[11] = f"{trimmed}.{int(xid) + shift}"
    body = ":".join(parts)
    return f"{body}:{sha256(body.encode()).hexdigest()[:8]}"


class Reader:
    """A subscriber: goes on from its own cursor, and remembers what it was given."""

    def __init__(
        self, log: Log, cursor: str, connection: asyncpg.Connection[Any] | None = None
    ) -> None:
        self.log = log
        self.cursor = cursor
        self.connection = connection
        self.seen: list[tuple[UUID, int]] = []
        self.names: list[str] = []
        self.pages = 0

    async def step(self, limit: int = 500) -> Page:
        page = await self.log.read(self.cursor, limit, connection=self.connection)
        self.cursor = page.cursor
        self.seen += [(event["execution_id"], event["version"]) for event in page.events]
        self.names += page.names
        self.pages += 1
        return page

    async def drain(self, limits: Iterable[int] | int = 500, most: int = 100_000) -> list[str]:
        """Read until there is no more; returns the names that came."""
        already = len(self.names)
        endless = iter(lambda: limits, None) if isinstance(limits, int) else iter(limits)
        for _ in range(most):
            page = await self.step(next(endless))
            if not page.has_more:
                return self.names[already:]
        raise AssertionError("there is always more")


async def until(condition: Callable[[], Awaitable[object]], seconds: float = 120) -> None:
    """Ask again and again until the answer is true."""
    async with asyncio.timeout(seconds):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.002)


def assert_in_order(seen: Iterable[tuple[UUID, int]]) -> None:
    """Each execution's versions came as 1, 2, 3 ..., each once."""
    last: dict[UUID, int] = {}
    for execution, version in seen:
        assert version == last.get(execution, 0) + 1, (execution, last.get(execution), version)
        last[execution] = version


@asynccontextmanager
async def new_log(url: str, url_of: Callable[[str], str], template: str) -> AsyncIterator[Log]:
    """A database of its own on a server, dropped afterwards."""
    name = f"log_{secrets.token_hex(6)}"
    administration = await asyncpg.connect(url)
    try:
        await administration.execute(
            f"create database {name} template {template} strategy file_copy"
        )
        log = Log(url_of(name), await asyncpg.connect(url_of(name)))
        try:
            yield log
        finally:
            await log.close()
            await log.conn.close()
            await administration.execute(f"drop database {name} with (force)")
    finally:
        await administration.close()


async def prepare(url: str) -> None:
    """Make an empty log of an empty database."""
    connection = await asyncpg.connect(url)
    try:
        await migrate(connection)
        await spoil(connection)
        await connection.execute(PREPARE)
    finally:
        await connection.close()
