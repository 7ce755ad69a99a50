"""A caller's temporary objects under our names, and under those of Postgres: none is ever used by a
function that runs as the owner."""

from __future__ import annotations

import json

import asyncpg
import pytest

from support.factories import Engine, new_id

from .conftest import OURS

# A domain with a check runs the caller's code wherever its name is found instead of the real type.
TRAP = """
create function pg_temp.spring() returns boolean language plpgsql as
$$ begin raise exception 'trapped as %', current_user; end $$;
"""
TYPES = (
    *("uuid", "text", "integer", "int4", "bigint", "int8", "smallint", "int2", "boolean", "bool"),
    *(
        "jsonb",
        "json",
        "bytea",
        "timestamptz",
        "interval",
        "numeric",
        "xid8",
        "pg_snapshot",
        "name",
    ),
    *("bit", "record", "oid", "regclass", "double precision", "float8"),
)
TABLES = (
    *("execution", "event", "route", "lane", "meta", "flow", "edge", "worker", "namespace_grant"),
    *("pg_roles", "pg_namespace", "pg_database", "pg_locks", "seen", "due", "created", "item"),
)


async def live(engine: Engine) -> None:
    """A life that touches the functions with casts: submit, claim, an operator, the end."""
    await engine.submit()
    await engine.submit()
    first, second = await engine.claim(2)
    assert (await engine.complete(first)).word == "completed"
    await engine.fail(second)
    third = await engine.submit()
    await engine.connection.execute(
        "select ff.cancel_execution(0::pg_catalog.int2, $1, $2, 'why', 'operator_override')",
        engine.namespace,
        third.id,
    )
    await engine.connection.execute(
        "select ff.set_lane($1, 'default', p_state => 'active')", engine.namespace
    )
    await engine.connection.execute(
        "select ff.submit_json(0::pg_catalog.int2, $1, $2)",
        engine.namespace,
        json.dumps([{"execution_id": str(new_id()), "route_id": "1", "priority": 3}]),
    )


async def lay_traps(connection) -> None:
    await connection.execute(TRAP)
    for name in TYPES:
        await connection.execute(
            f'create domain pg_temp."{name}" as pg_catalog.text check (pg_temp.spring())'
        )
    for name in TABLES:
        await connection.execute(f'create temporary table "{name}" (x pg_catalog.int4)')
    # What the attacker itself says is not to fall into the traps.
    await connection.execute("set search_path = pg_catalog, pg_temp")


async def test_temporary_types_and_tables_under_our_names_are_never_used(login):
    connection = await login("application")
    engine = Engine(connection, namespace=OURS)
    await live(engine)
    # Functions are compiled once a connection: the traps are there before, and after.
    await lay_traps(connection)
    await live(engine)
    fresh = await login("application")
    await lay_traps(fresh)
    await live(Engine(fresh, namespace=OURS))


async def test_the_traps_do_spring_where_the_path_is_left_empty(login, keeper):
    """So the test above can fail: this is how every function was declared once."""
    await keeper.execute("alter function ff.submit_json set search_path = ''")
    try:
        connection = await login("application")
        await connection.execute(TRAP)
        await connection.execute(
            "create domain pg_temp.uuid as pg_catalog.uuid check (pg_temp.spring())"
        )
        await connection.execute("set search_path = pg_catalog, pg_temp")
        with pytest.raises(asyncpg.PostgresError, match="trapped as keeper"):
            await live(Engine(connection, namespace=OURS))
    finally:
        await keeper.execute("alter function ff.submit_json set search_path = pg_catalog, pg_temp")


async def test_temporary_functions_operators_and_casts_are_never_found(login):
    connection = await login("application")
    await connection.execute(
        """
        create function pg_temp.now() returns timestamptz language plpgsql as
          $$ begin raise exception 'trapped as %', current_user; end $$;
        create function pg_temp.unnest(anyarray) returns setof anyelement language plpgsql as
          $$ begin raise exception 'trapped as %', current_user; end $$;
        create function pg_temp.same(text, text) returns boolean language plpgsql as
          $$ begin raise exception 'trapped as %', current_user; end $$;
        create operator pg_temp.= (leftarg = text, rightarg = text, function = pg_temp.same);
        """
    )
    await connection.execute("set search_path = pg_temp, pg_catalog, ff")
    await live(Engine(connection, namespace=OURS))
