"""Arrays are known to a new connection: it asks the server for no type."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from flowfabric import App
from flowfabric.db.connection import open_connection
from flowfabric.db.known_types import ARRAYS
from support.database import Database
from worker.apps import working


async def test_the_known_arrays_have_the_numbers_of_the_server(db: Database) -> None:
    rows = await db.fetch(
        "select substr(a.typname, 2), a.oid::int, a.typelem::int from pg_type a"
        " join pg_type e on e.oid = a.typelem"
        " where a.oid = any ($1::oid[]) and a.typname = '_' || e.typname and e.typdelim = ','"
        " and a.typnamespace = 'pg_catalog'::regnamespace order by a.oid",
        [array for _, array, _ in ARRAYS],
    )
    assert [tuple(row) for row in rows] == sorted(ARRAYS, key=lambda one: one[1])


async def test_every_array_of_a_public_function_is_known(db: Database) -> None:
    unknown = await db.fetch(
        "select p.proname, t.typname from pg_proc p"
        " cross join lateral unnest(coalesce(p.proallargtypes, p.proargtypes::oid[])) a(oid)"
        " join pg_type t on t.oid = a.oid and t.typelem <> 0 and t.typlen = -1"
        " where p.pronamespace = 'ff'::regnamespace and not starts_with(p.proname, '_')"
        " and p.prosecdef and t.oid <> all ($1::oid[])",
        [array for _, array, _ in ARRAYS],
    )
    assert [tuple(row) for row in unknown] == []


async def test_a_worker_and_its_submitter_look_up_no_type(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[Any] = []
    look_up = asyncpg.Connection._introspect_types  # type: ignore[attr-defined]

    async def noted(self: Any, typeoids: Any, timeout: Any) -> Any:
        looked_up.extend(typeoids)
        return await look_up(self, typeoids, timeout)

    monkeypatch.setattr(asyncpg.Connection, "_introspect_types", noted)
    app = App(database_url=db.url)

    @app.task(name="echo")
    async def echo(n: int) -> int:
        return n

    async with working(app):
        assert await (await echo.submit(1)).result(timeout=60) == 1
    await app.close()
    assert looked_up == []


async def test_a_type_that_is_not_known_is_looked_up(db: Database) -> None:
    async with open_connection(db.url) as connection:
        row = await connection.fetchrow("select '{a}'::name[] as names, '{1}'::int[] as numbers")
        assert row is not None
        assert (row["names"], row["numbers"]) == (["a"], [1])
