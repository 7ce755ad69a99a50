"""Create databases for tests. Each is a clone of a template database with a settable clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from flowfabric.db.connection import open_connection
from flowfabric.db.migrate import migrate

if TYPE_CHECKING:
    from flowfabric.db.connection import Connection

_SUBMITTED = """
select x.execution_id, x.partition_key, x.task, x.lane, x.priority, x.payload, x.payload_encoding,
       x.tags, x.created_at, x.delayed_until, x.public_state,
       (select k.key from ff.idempotency_key k
        where k.partition_key = x.partition_key and k.execution_id = x.execution_id limit 1) as key
from ff.execution_view x
order by x.created_at, x.execution_id
"""


def url_of(url: str, database: str) -> str:
    """Return the URL of another database on the same server."""
    return urlsplit(url)._replace(path=f"/{database}").geturl()


def clock() -> str:
    """Return the SQL that gives a migrated database a settable clock in place of the real one."""
    return (files("flowfabric") / "sql" / "testing" / "clock.sql").read_text(encoding="utf-8")


async def create_template(
    administration: Connection, url: str, name: str, extras: Iterable[str] = ()
) -> None:
    """Create the template database: migrate it, install the settable clock, then run `extras`."""
    await administration.execute(f"create database {name}")
    async with open_connection(url_of(url, name)) as connection:
        await migrate(connection)
        for text in (clock(), *extras):
            await connection.execute(text)
        # Clones inherit the statistics and hint bits of the template.
        await connection.execute("vacuum (freeze, analyze)")


async def clone(administration: Connection, template: str, name: str) -> None:
    # Copying files is faster than the default strategy, which writes them to the WAL.
    await administration.execute(f"create database {name} template {template} strategy file_copy")


async def drop(administration: Connection, name: str) -> None:
    """Close all connections to a database, then drop it."""
    await administration.execute(f"drop database if exists {name} with (force)")


async def skip(connection: Connection, span: timedelta, living: Sequence[str] = ()) -> datetime:
    """Move the clock of the database forward. The workers in `living` keep their leases."""
    now: datetime = await connection.fetchval(
        "select ff_test.skip($1, $2::text[])", span, list(living)
    )
    return now


async def submitted(connection: Connection) -> list[dict[str, Any]]:
    """List every execution, oldest first, with the fields of its submission."""
    return [dict(row) for row in await connection.fetch(_SUBMITTED)]
