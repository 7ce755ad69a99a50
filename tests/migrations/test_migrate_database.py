"""What `migrate` does to a database: from nothing, again, together, interrupted, back."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

import pytest

from flowfabric.core.errors import (
    MigrationFailed,
    RetryExhausted,
    SchemaMismatch,
    StepEdited,
    UnsupportedServer,
)
from flowfabric.db import migrate as schema

MIGRATE_IN_A_PROCESS = """
import asyncio, sys
from pathlib import Path
from flowfabric.db.connection import open_connection
from flowfabric.db.library import Source
from flowfabric.db.migrate import migrate

async def main(url, folder):
    async with open_connection(url) as connection:
        await migrate(connection, source=Source(folder=Path(folder)))

asyncio.run(main(*sys.argv[1:]))
"""

GATE = 4711
"""A sample step that asks for this advisory lock stops until the test gives it back."""


async def until(connection, condition, *arguments):
    async with asyncio.timeout(60):
        while not await connection.fetchval(f"select {condition}", *arguments):
            pass


async def somebody_waits_at_the_gate(connection):
    waiting = (
        "exists (select from pg_locks where locktype = 'advisory' and objid = $1 and not granted)"
    )
    await until(connection, waiting, GATE)


async def functions(connection):
    rows = await connection.fetch(
        "select proname from pg_proc where pronamespace = 'ff'::regnamespace order by 1"
    )
    return [row["proname"] for row in rows]


async def applied_steps(connection):
    rows = await connection.fetch("select step, name from ff.schema_step order by step")
    return [tuple(row) for row in rows]


async def test_a_fresh_database_gets_steps_library_and_ledger(connection, sample):
    migration = await schema.migrate(connection, source=sample.source())

    assert migration.steps == (1, 2)
    assert migration.is_library_recreated
    assert await applied_steps(connection) == [(1, "parcel"), (2, "weight")]
    assert await functions(connection) == ["_private", "count_parcels", "now"]
    meta = dict(await connection.fetch("select name, value from ff.meta"))
    assert meta == {
        "partitions": "1",
        "partitions_before": "1",
        "partitions_raised_at": None,
        "partitions_of_keys": "1",
        "instance_tag_key": None,
        "library_version": "1",
        "library_hash": sample.source().library().hash,
    }
    await schema.verify(connection, source=sample.source())


async def test_every_step_is_reported_with_its_duration(connection, sample):
    seen = []
    await schema.migrate(connection, source=sample.source(), report=seen.append)

    assert [(progress.subject, progress.happened) for progress in seen] == [
        ("schema/0001_parcel.sql", "applied"),
        ("schema/0002_weight.sql", "applied"),
        ("library 1", "created"),
    ]
    assert all(progress.duration for progress in seen)
    assert str(seen[0]).startswith("schema/0001_parcel.sql: applied (")


async def test_a_second_migration_changes_nothing(connection, sample):
    await schema.migrate(connection, source=sample.source())
    rows = "select xmin::text from pg_proc where pronamespace = 'ff'::regnamespace"
    before = await connection.fetch(rows)
    seen = []

    again = await schema.migrate(connection, source=sample.source(), report=seen.append)

    assert again.steps == ()
    assert not again.is_library_recreated
    assert seen == []
    assert await connection.fetch(rows) == before


async def test_a_new_step_is_applied_to_an_older_database(connection, sample):
    await schema.migrate(connection, source=sample.source())
    sample.write("schema/0003_color.sql", "alter table ff.parcel add column color text;\n")

    migration = await schema.migrate(connection, source=sample.source())

    assert migration.steps == (3,)
    assert not migration.is_library_recreated


async def test_the_caller_keeps_his_session_settings(connection, sample):
    sample.write("schema/0001_parcel.sql", "-- no-transaction\ncreate table ff.parcel (id int);\n")
    await connection.execute("set search_path = pg_temp; set statement_timeout = 12345")

    await schema.migrate(connection, source=sample.source())

    assert await connection.fetchval("show search_path") == "pg_temp"
    assert await connection.fetchval("show statement_timeout") == "12345ms"
    assert await connection.fetchval("show lock_timeout") == "0"


async def test_steps_see_no_foreign_search_path_and_no_time_limit(connection, sample):
    sample.write(
        "schema/0001_parcel.sql",
        "create table ff.parcel as select 1 as id, current_setting('search_path') as path,\n"
        "  current_setting('statement_timeout') as timeout;\n",
    )
    await connection.execute("set statement_timeout = 12345")

    await schema.migrate(connection, source=sample.source())

    assert tuple(await connection.fetchrow("select path, timeout from ff.parcel")) == ('""', "0")


async def test_migrate_refuses_to_run_inside_a_transaction(connection, sample):
    async with connection.transaction():
        with pytest.raises(ValueError, match="outside"):
            await schema.migrate(connection, source=sample.source())


async def test_of_two_migrators_the_second_waits_and_finds_nothing_to_do(connect, sample):
    gatekeeper, first, second = [await connect() for _ in range(3)]
    sample.write("schema/0003_gate.sql", f"select pg_advisory_xact_lock({GATE});\n")
    await gatekeeper.execute(f"select pg_advisory_lock({GATE})")
    is_waiting = asyncio.Event()
    source = sample.source()

    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(schema.migrate(first, source=source))
        await somebody_waits_at_the_gate(gatekeeper)
        waiting = tasks.create_task(
            schema.migrate(second, source=source, report=lambda _: is_waiting.set())
        )
        await is_waiting.wait()
        await gatekeeper.execute(f"select pg_advisory_unlock({GATE})")

    assert running.result().steps == (1, 2, 3)
    assert waiting.result().steps == ()
    assert not waiting.result().is_library_recreated


async def test_many_migrators_at_once_apply_everything_once(connect, sample):
    connections = [await connect() for _ in range(6)]

    migrations = await asyncio.gather(
        *(schema.migrate(each, source=sample.source()) for each in connections)
    )

    assert sorted(migration.steps for migration in migrations) == [()] * 5 + [(1, 2)]
    assert sum(migration.is_library_recreated for migration in migrations) == 1


async def test_an_index_is_built_concurrently_while_another_migrator_waits(connect, sample):
    gatekeeper, first, second = [await connect() for _ in range(3)]
    sample.write(
        "schema/0003_index.sql",
        "-- no-transaction\n"
        f"select pg_advisory_lock({GATE});\n"
        "drop index concurrently if exists ff.parcel_weight;\n"
        "create index concurrently parcel_weight on ff.parcel (weight);\n",
    )
    await gatekeeper.execute(f"select pg_advisory_lock({GATE})")
    is_waiting = asyncio.Event()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(schema.migrate(first, source=sample.source()))
        await somebody_waits_at_the_gate(gatekeeper)
        tasks.create_task(
            schema.migrate(second, source=sample.source(), report=lambda _: is_waiting.set())
        )
        await is_waiting.wait()
        await gatekeeper.execute(f"select pg_advisory_unlock({GATE})")

    is_valid = "select indisvalid from pg_index where indexrelid = 'ff.parcel_weight'::regclass"
    assert await gatekeeper.fetchval(is_valid)


async def test_a_migrator_killed_inside_a_step_leaves_the_earlier_ones(connect, url, sample):
    connection = await connect()
    sample.write(
        "schema/0002_weight.sql",
        "alter table ff.parcel add column weight integer;\n"
        f"select pg_advisory_xact_lock({GATE});\n",
    )
    await connection.execute(f"select pg_advisory_lock({GATE})")
    command = [sys.executable, "-c", MIGRATE_IN_A_PROCESS, url, str(sample.folder)]
    process = await asyncio.create_subprocess_exec(*command)
    await somebody_waits_at_the_gate(connection)
    process.kill()
    await process.wait()
    await connection.execute(f"select pg_advisory_unlock({GATE})")

    migration = await schema.migrate(connection, source=sample.source())

    assert migration.steps == (2,)
    assert await applied_steps(connection) == [(1, "parcel"), (2, "weight")]
    await schema.verify(connection, source=sample.source())


async def test_a_migrator_that_fails_between_two_steps_is_continued(connection, sample):
    def fail(progress):
        raise OSError("standard output is closed")

    with pytest.raises(OSError, match="closed"):
        await schema.migrate(connection, source=sample.source(), report=fail)
    assert await applied_steps(connection) == [(1, "parcel")]

    migration = await schema.migrate(connection, source=sample.source())

    assert migration.steps == (2,)


async def test_a_step_without_transaction_is_begun_again_after_an_interruption(connection, sample):
    statements = ["create table if not exists ff.stamp (id integer);\n", "select 1 / 0;\n"]
    sample.write("schema/0003_stamp.sql", "-- no-transaction\n" + "".join(statements))
    with pytest.raises(MigrationFailed, match=r"schema/0003_stamp\.sql: division by zero"):
        await schema.migrate(connection, source=sample.source())
    assert await applied_steps(connection) == [(1, "parcel"), (2, "weight")]
    sample.write("schema/0003_stamp.sql", "-- no-transaction\n" + statements[0])

    migration = await schema.migrate(connection, source=sample.source())

    assert migration.steps == (3,)


async def test_a_failing_step_is_rolled_back_and_named_with_its_line(connection, sample):
    sample.write(
        "schema/0002_weight.sql", "create table ff.half (id integer);\n\nselect nonsense;\n"
    )

    with pytest.raises(MigrationFailed, match=r"schema/0002_weight\.sql, line 3: .*nonsense"):
        await schema.migrate(connection, source=sample.source())

    assert await connection.fetchval("select to_regclass('ff.half') is null")
    assert await applied_steps(connection) == [(1, "parcel")]


async def test_a_failing_library_leaves_the_old_one_in_place(connection, sample):
    await schema.migrate(connection, source=sample.source())
    sample.function("count_parcels", "2")
    sample.write("functions/sample/wrong.sql", "drop function if exists ff.wrong;\ncreate fun;\n")

    with pytest.raises(MigrationFailed, match=r"functions/sample/wrong\.sql, line 2: syntax error"):
        await schema.migrate(connection, source=sample.source())

    assert await connection.fetchval("select ff.count_parcels()") == 0


async def test_an_applied_step_that_was_edited_after_its_release_is_refused(connection, sample):
    sample.release()
    await schema.migrate(connection, source=sample.source())
    sample.write("schema/0002_weight.sql", "alter table ff.parcel add column mass integer;\n")
    sample.release()

    with pytest.raises(StepEdited, match=r"0002_weight was edited after its release"):
        await schema.migrate(connection, source=sample.source())


async def test_an_edited_unreleased_step_asks_for_a_new_development_database(connection, sample):
    await schema.migrate(connection, source=sample.source())
    sample.write("schema/0002_weight.sql", "alter table ff.parcel add column mass integer;\n")

    with pytest.raises(StepEdited, match=r"0002_weight .*drop your development database"):
        await schema.migrate(connection, source=sample.source())


async def test_a_lock_in_the_way_is_waited_for(connect, sample, monkeypatch):
    monkeypatch.setattr(schema, "LOCK_TIMEOUT", timedelta(milliseconds=20))
    monkeypatch.setattr(schema, "LOCK_PAUSE", timedelta(0))
    reader, connection = await connect(), await connect()
    await schema.migrate(connection, source=sample.source())
    sample.function("count_parcels", "2")
    transaction = reader.transaction()
    await transaction.start()
    await reader.execute("select * from ff.parcel_view")
    rollbacks = []

    def let_go(progress):
        if "holds a lock" in progress.happened and not rollbacks:
            rollbacks.append(asyncio.ensure_future(transaction.rollback()))

    migration = await schema.migrate(connection, source=sample.source(), report=let_go)

    assert migration.is_library_recreated
    assert rollbacks


async def test_a_lock_that_stays_in_the_way_ends_the_migration(connect, sample, monkeypatch):
    monkeypatch.setattr(schema, "LOCK_TIMEOUT", timedelta(milliseconds=20))
    monkeypatch.setattr(schema, "LOCK_PAUSE", timedelta(0))
    reader, connection = await connect(), await connect()
    await schema.migrate(connection, source=sample.source())
    sample.function("count_parcels", "2")
    async with reader.transaction():
        await reader.execute("select * from ff.parcel_view")

        with pytest.raises(RetryExhausted, match=r"views/parcel_view\.sql: another session"):
            await schema.migrate(connection, source=sample.source())

    assert await connection.fetchval("select ff.count_parcels()") == 0


@pytest.mark.parametrize("found", [14, 19])
async def test_other_servers_are_refused_with_the_supported_ones(
    connection, sample, monkeypatch, found
):
    class Version:
        major = found

    monkeypatch.setattr(type(connection), "get_server_version", lambda _: Version)

    with pytest.raises(UnsupportedServer, match=f"PostgreSQL 15 to 18; .* PostgreSQL {found}"):
        await schema.migrate(connection, source=sample.source())


async def test_a_newer_library_is_left_alone(connection, sample):
    await schema.migrate(connection, source=sample.source(library_version=3))
    sample.function("count_parcels", "2")
    seen = []

    migration = await schema.migrate(
        connection, source=sample.source(library_version=2), report=seen.append
    )

    assert not migration.is_library_recreated
    assert await connection.fetchval("select ff.count_parcels()") == 0
    assert "the database is newer (schema step 2, library 3)" in str(seen[0])
    await schema.verify(connection, source=sample.source(library_version=2))


async def test_a_newer_schema_keeps_its_library_even_if_the_numbers_are_equal(connection, sample):
    sample.write("schema/0003_color.sql", "alter table ff.parcel add column color text;\n")
    await schema.migrate(connection, source=sample.source())
    sample.remove("schema/0003_color.sql")
    sample.function("count_parcels", "2")

    migration = await schema.migrate(connection, source=sample.source())

    assert not migration.is_library_recreated
    assert migration.status.is_newer


async def test_downgrade_brings_the_older_library_back(connection, sample):
    sample.function("count_parcels", "2")
    sample.function("only_in_newer")
    older_view = (sample.folder / "views/parcel_view.sql").read_text()
    sample.write("views/parcel_view.sql", older_view.replace("p.weight", "p.weight, 1 as added"))
    await schema.migrate(connection, source=sample.source(library_version=3))
    sample.function("count_parcels", "7")
    sample.remove("functions/sample/only_in_newer.sql")
    sample.write("views/parcel_view.sql", older_view)
    older = sample.source(library_version=2)

    migration = await schema.migrate(connection, source=older, downgrade=True)

    assert migration.is_library_recreated
    assert await connection.fetchval("select ff.count_parcels()") == 7
    assert await functions(connection) == ["_private", "count_parcels", "now"]
    assert migration.status.library_found == 2


async def test_downgrade_below_a_breaking_step_is_refused(connection, sample):
    sample.write("schema/0003_break.sql", "-- breaking\ndrop table ff.parcel cascade;\n")
    await schema.migrate(connection, source=_without_views(sample).source(library_version=2))
    sample.remove("schema/0003_break.sql")

    for downgrade in (False, True):
        with pytest.raises(SchemaMismatch, match=r"step 3 \(break\) is marked breaking"):
            await schema.migrate(connection, source=sample.source(), downgrade=downgrade)


def _without_views(sample):
    sample.remove("views/parcel_view.sql")
    return sample


async def test_a_distributed_database_gets_the_distributed_forms(connection, sample):
    sample.two_forms("form")
    await schema.migrate(connection, source=sample.source())
    assert await connection.fetchval("select ff.form()") == "plain"
    assert not (await schema.status(connection, source=sample.source())).is_library_stale
    await connection.execute("insert into ff.meta (name, value) values ('distributed', 'true')")
    found = await schema.status(connection, source=sample.source())
    assert found.is_distributed
    assert found.is_library_stale
    assert found.problem() is None

    migration = await schema.migrate(connection, source=sample.source())

    assert migration.is_library_recreated
    assert await connection.fetchval("select ff.form()") == "distributed"
    settings = await connection.fetchval("select proconfig from pg_proc where proname = 'form'")
    assert settings == ["jit=off"]
    assert not migration.status.is_library_stale
    again = await schema.migrate(connection, source=sample.source())
    assert not again.is_library_recreated


async def test_functions_and_views_that_no_file_defines_are_dropped(connection, sample):
    sample.function("count_parcels_by_weight", parameters="p_weight integer default 1")
    sample.write("views/heavy.sql", "create or replace view ff.heavy as select 1 as one;\n")
    await schema.migrate(connection, source=sample.source())
    sample.remove("functions/sample/count_parcels_by_weight.sql")
    sample.remove("views/heavy.sql")

    await schema.migrate(connection, source=sample.source())

    assert await functions(connection) == ["_private", "count_parcels", "now"]
    assert await connection.fetchval("select to_regclass('ff.heavy') is null")


async def test_functions_that_steps_create_are_no_orphans(connection, sample):
    sample.write(
        "schema/0003_check.sql",
        "create function ff.is_light(weight integer) returns boolean immutable language sql\n"
        "as $$ select weight < 10 $$;\n"
        "alter table ff.parcel add constraint light check (ff.is_light(weight));\n",
    )
    await schema.migrate(connection, source=sample.source())

    assert "is_light" in await functions(connection)


async def test_a_changed_signature_replaces_the_function(connection, sample):
    await schema.migrate(connection, source=sample.source())
    sample.function("count_parcels", "p_extra", "p_extra integer default 5")

    await schema.migrate(connection, source=sample.source())

    assert await connection.fetchval("select ff.count_parcels()") == 5
    assert await connection.fetchval("select ff.count_parcels(p_extra => 6)") == 6


async def test_an_overload_by_somebody_else_is_reported(connection, sample):
    await schema.migrate(connection, source=sample.source())
    await connection.execute(
        "create function ff.count_parcels(text) returns text language sql as $$ select $1 $$"
    )
    sample.function("count_parcels", "2")

    with pytest.raises(MigrationFailed, match=r"count_parcels.* is not unique"):
        await schema.migrate(connection, source=sample.source())


async def test_callers_with_named_arguments_do_not_notice_a_new_library(
    connect, sample, monkeypatch
):
    monkeypatch.setattr(schema, "RETIREMENT", timedelta(milliseconds=20))
    migrator, *callers = [await connect() for _ in range(5)]
    sample.function("inner_sum", "p_left + p_right", "p_left integer, p_right integer")
    sample.function("outer_sum", "ff.inner_sum(p_left => p_left, p_right => 1)", "p_left integer")
    await schema.migrate(migrator, source=sample.source())
    is_done = asyncio.Event()

    async def call(connection):
        calls = 0
        while not is_done.is_set():
            direct = await connection.fetchval(
                "select ff.inner_sum(p_left => $1, p_right => $2)", calls, 1
            )
            nested = await connection.fetchval("select ff.outer_sum(p_left => $1)", calls)
            assert direct == nested == calls + 1
            calls += 1
        return calls

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(call(caller)) for caller in callers]
        for version in range(2, 42):
            # Every other library has one more parameter.
            more = ", p_more integer default 0" if version % 2 else ""
            parameters = "p_left integer, p_right integer" + more
            sample.function("inner_sum", "p_left + p_right", parameters)
            migration = await schema.migrate(
                migrator, source=sample.source(library_version=version)
            )
            assert migration.is_library_recreated
        is_done.set()

    assert all(task.result() > 0 for task in running)


async def test_replaced_functions_stay_for_a_moment_and_are_dropped_even_after_a_kill(
    connection, sample
):
    def fail(progress):
        if progress.subject == "library 1":
            raise OSError("standard output is closed")

    await schema.migrate(connection, source=sample.source())
    oids = await connection.fetch(
        "select oid from pg_proc where pronamespace = 'ff'::regnamespace and proname <> 'now'"
    )
    sample.function("count_parcels", "2")
    with pytest.raises(OSError, match="closed"):
        await schema.migrate(connection, source=sample.source(), report=fail)
    names = ["_private", "count_parcels", "now"]
    assert await functions(connection) == sorted([*names, *(f"_retired_{oid}" for (oid,) in oids)])

    again = await schema.migrate(connection, source=sample.source())

    assert not again.is_library_recreated
    assert await functions(connection) == names


async def test_a_function_that_foreign_objects_use_is_not_replaced_behind_their_back(
    connection, sample
):
    await schema.migrate(connection, source=sample.source())
    await connection.execute("create view public.report as select ff.count_parcels() as parcels")
    sample.function("count_parcels", "2")

    with pytest.raises(MigrationFailed, match=r"count_parcels\.sql: .*depend"):
        await schema.migrate(connection, source=sample.source())

    assert await connection.fetchval("select parcels from public.report") == 0
