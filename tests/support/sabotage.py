"""Direct changes that break a test database, to check that its guards notice."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import asyncpg

if TYPE_CHECKING:
    from .database import Connection


async def drop_checks(connection: Connection) -> None:
    """Drop the CHECK constraints of ff's tables, so that only the guard under test is left."""
    await connection.execute(
        """
        do $$
        declare
          v_check record;
        begin
          for v_check in
            select c.conrelid::regclass as table_name, c.conname
            from pg_constraint c
            where c.contype = 'c' and c.connamespace = 'ff'::regnamespace
          loop
            execute format('alter table %s drop constraint %I',
                           v_check.table_name, v_check.conname);
          end loop;
        end
        $$
        """
    )


@asynccontextmanager
async def unwitnessed(connection: Connection) -> AsyncIterator[None]:
    """Disable the witness for the writes of this connection in the block."""
    await connection.execute("set session_replication_role = replica")
    try:
        yield
    finally:
        await connection.execute("set session_replication_role = origin")


async def checks_against(conn: Connection, statement: str) -> list[str]:
    """Return the names of all CHECKs that a statement violates, found by dropping each in turn."""
    names: list[str] = []
    everything = conn.transaction()
    await everything.start()
    while True:
        try:
            async with conn.transaction():
                await conn.execute(statement)
        except asyncpg.CheckViolationError as error:
            names.append(str(error.constraint_name))
            await conn.execute(f"alter table ff.execution drop constraint {names[-1]}")
        else:
            await everything.rollback()
            return names
