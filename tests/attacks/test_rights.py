"""What each login may do to the objects of schema ff: call functions, and nothing else."""

from __future__ import annotations

import asyncpg
import pytest

from support.factories import Engine, refused

from .conftest import OURS, THEIRS

DENIED = asyncpg.InsufficientPrivilegeError
FUNCTIONS = """
select p.oid::regprocedure::text as signature, p.proname as name,
       p.proargnames[1:p.pronargs] as names, p.proargtypes::regtype[]::text[] as types
from pg_proc p where p.pronamespace = 'ff'::regnamespace order by p.proname
"""
RELATIONS = """
select c.oid::regclass::text as name, c.relkind::text as kind
from pg_class c where c.relnamespace = 'ff'::regnamespace and c.relkind in ('r', 'v', 'S')
"""


@pytest.mark.parametrize("user", ["application", "bound", "operator", "stranger"])
async def test_no_login_touches_a_table_or_a_sequence(login, keeper, user):
    connection = await login(user)
    relations = await keeper.fetch(RELATIONS)
    assert len(relations) > 30
    for relation in relations:
        if relation["kind"] == "v":
            continue
        for statement in (
            "select * from {}",
            "insert into {} default values",
            "delete from {}",
            "truncate {}",
            "lock table {} in access exclusive mode",
            "alter table {} add column mine text",
        ):
            with pytest.raises((DENIED, asyncpg.WrongObjectTypeError)):
                async with connection.transaction():
                    await connection.execute(statement.format(relation["name"]))


async def test_only_operators_read_views(login, keeper):
    views = [row["name"] for row in await keeper.fetch(RELATIONS) if row["kind"] == "v"]
    operator = await login("operator")
    for view in views:
        await operator.fetch(f"select * from {view} limit 0")
    for user in ("application", "bound", "stranger"):
        connection = await login(user)
        for view in views:
            if view == "ff.installation" and user != "stranger":
                continue
            with pytest.raises(DENIED):
                await connection.fetch(f"select * from {view}")


async def test_nobody_calls_a_private_function(keeper):
    for user in ("application", "bound", "operator", "stranger"):
        for row in await keeper.fetch(FUNCTIONS):
            may = await keeper.fetchval(
                "select has_function_privilege($1, $2, 'execute')", user, row["signature"]
            )
            is_public = not row["name"].startswith("_")
            if not is_public or user == "stranger":
                assert not may, (user, row["signature"])
            elif user == "operator":
                assert may, row["signature"]


@pytest.mark.parametrize("user", ["application", "operator"])
@pytest.mark.parametrize(
    "statement",
    [
        "create table ff.mine (x integer)",
        "create table public.mine (x integer)",
        "create schema mine",
        "create function ff.mine() returns integer language sql as 'select 1'",
        "create or replace function ff.now() returns timestamptz language sql as 'select null'",
        "create or replace view ff.installation as select 1 as step",
        "create type ff.mine as (x integer)",
        "alter function ff.now() security definer",
        "drop function ff.now()",
        "create trigger mine after insert on ff.execution execute function now()",
        "alter schema ff rename to mine",
        "grant select on all tables in schema ff to public",
        "set role keeper",
        "set session authorization keeper",
        "copy ff.execution to stdout",
        "copy (select 1) to program 'true'",
        "select pg_read_file('postgresql.conf')",
        "select lo_import('/etc/passwd')",
        "select lo_export(0, '/tmp/mine')",
        "create extension dblink",
        "alter system set fsync = off",
        "set session_replication_role = replica",
        "comment on function ff.now() is 'mine'",
        "reassign owned by keeper to application",
        "grant flowfabric_operator to application",
        "alter role application createrole",
        "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'keeper'",
    ],
)
async def test_neither_role_makes_or_changes_an_object(login, keeper, user, statement):
    connection = await login(user)
    with pytest.raises(asyncpg.PostgresError) as caught:
        await connection.execute(statement)
    # 0A000: a server without the further modules of PostgreSQL does not know the extension.
    states = ("42501", "42809", "42704", *(["0A000"] if "extension" in statement else []))
    assert caught.value.sqlstate in states, caught.value


async def test_the_app_role_erases_nothing(login, theirs):
    """It did once: a retention of nothing, a floor of nothing, and all was gone."""
    done = await theirs.submit()
    assert (await theirs.complete(await theirs.take(done.id))).word == "completed"
    application = await login("application")
    for call in (
        "select ff.trim_retention(0::smallint, p_retention => interval '0', "
        "p_event_floor => interval '0')",
        f"select ff.set_lane('{theirs.namespace}', 'default', p_retention => interval '0')",
        "select ff.expire_worker_leases(0::smallint, null, 'w')",
    ):
        with pytest.raises(asyncpg.PostgresError) as caught:
            await application.execute(call)
        assert caught.value.sqlstate in ("42501", "42883", "WF501"), caught.value
    for call in ("trim_events", "trim_keys", "expire_leases", "promote_delayed"):
        await application.execute(f"select ff.{call}(0::smallint)")
    assert (
        await application.fetchval(
            "select count(*) from ff.list_events(0::smallint, $1, $2)",
            theirs.namespace,
            done.id,
        )
        == 3
    )


async def test_a_bound_login_stays_bound_whatever_role_it_sets(login):
    bound = await login("bound")
    for statement in ("set role flowfabric_app", "reset role", "set role bound"):
        await bound.execute(statement)
        with refused("WF501", bound_to=OURS):
            await bound.execute("select ff.read_traffic(0::smallint, $1)", THEIRS)


async def test_a_bound_login_cannot_free_itself_nor_bind_others(login, keeper):
    for user in ("bound", "application"):
        connection = await login(user)
        for call in (
            "select ff.revoke_namespace('bound')",
            "select ff.grant_namespace('bound', 'theirs')",
            "select ff.list_namespace_grants()",
        ):
            with pytest.raises(DENIED):
                await connection.execute(call)
    rows = await keeper.fetch("select login, namespace from ff.list_namespace_grants()")
    assert [tuple(row) for row in rows] == [("bound", OURS)]


async def test_an_operator_is_never_bound(keeper):
    for login in ("operator", "keeper"):
        with refused("WF001", field="login"):
            await keeper.execute("select ff.grant_namespace($1, 'ours')", login)
    with refused("WF001", field="login"):
        await keeper.execute("select ff.grant_namespace('nobody', 'ours')")
    with refused("WF001", field="namespace"):
        await keeper.execute("select ff.grant_namespace('stranger', 'with blank')")


async def test_a_foreign_id_is_not_found(login, theirs):
    """The bound login knows their id, and gets nothing by it."""
    running = await theirs.submit()
    lease = await theirs.take(running.id)
    ours = Engine(await login("bound"), namespace=OURS)
    assert (await ours.complete(lease)).word == "not_found"
    for read in ("describe_execution", "list_attempts", "list_events", "read_execution_info"):
        assert not await ours.connection.fetch(
            f"select * from ff.{read}(0::smallint, $1, $2)", OURS, running.id
        )
    assert (await theirs.complete(lease)).word == "completed"
