"""Who may do what in schema ff after a migration."""

from __future__ import annotations

import asyncpg
import pytest

from flowfabric.core.errors import MigrationFailed, SchemaMismatch
from flowfabric.db import migrate as schema
from flowfabric.db.connection import open_connection

MAY_EXECUTE = "select has_function_privilege($1, 'ff.count_parcels()', 'execute')"


def as_role(url, role):
    return open_connection(url.replace("//postgres@", f"//{role}@"))


async def test_the_app_role_calls_functions_and_reads_neither_view_nor_table(
    connection, url, sample, app_role
):
    await schema.migrate(connection, source=sample.source())

    async with as_role(url, app_role) as application:
        assert await application.fetchval("select ff.count_parcels()") == 0
        for denied in (
            "select * from ff.parcel",
            "select * from ff.parcel_view",
            "select * from ff.meta",
            "insert into ff.parcel_view values (1, 1)",
            "select ff._private()",
            "create table ff.mine (id integer)",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await application.execute(denied)


async def test_the_app_role_can_verify_the_schema(connection, url, sample, app_role):
    await schema.migrate(connection, source=sample.source())

    async with as_role(url, app_role) as application:
        await schema.verify(application, source=sample.source())


async def test_the_public_may_do_nothing(connection, sample):
    await schema.migrate(connection, source=sample.source())

    assert not await connection.fetchval(MAY_EXECUTE, "public")
    assert not await connection.fetchval("select has_schema_privilege('public', 'ff', 'usage')")


async def test_grants_come_back_with_a_new_library(connection, url, sample, app_role):
    await schema.migrate(connection, source=sample.source())
    sample.function("count_parcels", "2")
    await schema.migrate(connection, source=sample.source())

    assert await connection.fetchval(MAY_EXECUTE, app_role)
    assert not await connection.fetchval(MAY_EXECUTE, "public")
    async with as_role(url, app_role) as application:
        assert await application.fetchval("select ff.count_parcels()") == 2


async def test_rights_on_tables_do_not_survive_a_new_library(connection, sample, app_role):
    await schema.migrate(connection, source=sample.source())
    await connection.execute(f"grant insert on ff.parcel to {app_role}")
    sample.function("count_parcels", "2")

    await schema.migrate(connection, source=sample.source())

    may_insert = "select has_table_privilege($1, 'ff.parcel', 'insert')"
    assert not await connection.fetchval(may_insert, app_role)


async def test_a_role_created_later_gets_its_rights_without_a_new_library(
    connection, sample, request
):
    await schema.migrate(connection, source=sample.source())
    app_role = request.getfixturevalue("app_role")
    assert not await connection.fetchval(MAY_EXECUTE, app_role)

    migration = await schema.migrate(connection, source=sample.source())

    assert not migration.is_library_recreated
    assert await connection.fetchval(MAY_EXECUTE, app_role)


async def test_migrating_without_rights_says_as_whom_to_run(url, sample, app_role):
    async with as_role(url, app_role) as application:
        with pytest.raises(
            MigrationFailed, match=r"permission denied for database .* Run as the role"
        ):
            await schema.migrate(application, source=sample.source())


async def test_a_role_without_rights_is_told_what_to_do(connection, url, sample, request):
    await schema.migrate(connection, source=sample.source())
    app_role = request.getfixturevalue("app_role")

    async with as_role(url, app_role) as stranger:
        for call in (schema.verify, schema.status, schema.migrate):
            with pytest.raises(SchemaMismatch, match=r"may not read schema ff .*db migrate"):
                await call(stranger, source=sample.source())


async def test_the_app_role_may_migrate_where_nothing_is_to_be_done(
    connection, url, sample, app_role
):
    await schema.migrate(connection, source=sample.source())

    async with as_role(url, app_role) as application:
        migration = await schema.migrate(application, source=sample.source())

    assert migration.steps == ()
