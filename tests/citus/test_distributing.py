"""`flowfabric db distribute` on a real cluster: an existing database, kills, lost delegations."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import asynccontextmanager
from dataclasses import replace
from shutil import copytree

import asyncpg
import pytest
from typer.testing import CliRunner

from flowfabric import App
from flowfabric.cli.db import app as db_command
from flowfabric.core.errors import FlowFabricError, MigrationFailed, NotDistributable
from flowfabric.db import citus, distribute, migrate
from flowfabric.db.connection import open_connection
from flowfabric.db.library import package_source
from flowfabric.doctor import examine
from migrations.test_printed_script import run_script
from worker.apps import working
from worker.waiting import eventually

from .conftest import PARTITIONS
from .events import all_events


@asynccontextmanager
async def shop(url, *, works=True):
    """An app on the database, with a worker in this process."""
    app = App(database_url=url)

    @app.task(name="double")
    async def double(n: int) -> int:
        return 2 * n

    async with app:
        if works:
            async with working(app, concurrency=10):
                yield app, double
        else:
            yield app, double


async def work_all(url, count):
    async with shop(url) as (_, double):
        runs = [await double.submit(n) for n in range(count)]
        assert [await run.result(timeout=120) for run in runs] == [2 * n for n in range(count)]


async def findings(url: str, name: str = "X06") -> list[str]:
    async with open_connection(url) as connection:
        report = await examine(connection, is_throwaway=True)
    return [one.problem for one in report.findings if one.name == name]


async def test_a_database_in_use_keeps_its_executions_events_and_cursors(make_cluster_database):
    database = await make_cluster_database()
    async with open_connection(database.url) as connection:
        await migrate.migrate(connection)
    await work_all(database.url, 20)
    async with shop(database.url, works=False) as (app, double):
        waiting = [(await double.submit(n)).id for n in range(10)]
        before, cursor = await all_events(await app.client())
    async with open_connection(database.url) as connection:
        script = await distribute.plan(connection, partitions=PARTITIONS)
        assert "create_distributed_table" in script
        await distribute.distribute(connection, partitions=PARTITIONS)
        assert await connection.fetchval("select count(*) from ff.execution") == 30

    async with shop(database.url) as (app, double):
        runs = [double.get(id) for id in waiting]
        assert [await run.result(timeout=120) for run in runs] == [2 * n for n in range(10)]
        later, _ = await all_events(await app.client(), cursor)
        again, _ = await all_events(await app.client())
    assert len(before) == 20 * 3 + 10
    assert len(later) == 10 * 2
    assert {event.key for event in again} == {event.key for event in before + later}
    assert len(again) == len(before) + len(later)
    await work_all(database.url, 40)
    assert await findings(database.url) == []


async def test_a_second_run_has_nothing_left_to_do(cluster_database, coordinator):
    said = []

    found = await distribute.distribute(
        coordinator, partitions=PARTITIONS, report=lambda one: said.append(str(one))
    )

    assert not found.is_changed
    assert all("analyzed" in line for line in said)


async def test_the_printed_script_does_what_the_command_does(make_cluster_database):
    database = await make_cluster_database()
    async with open_connection(database.url) as connection:
        await migrate.migrate(connection)
        script = await distribute.plan(connection, partitions=PARTITIONS)
    ended = await asyncio.to_thread(run_script, database.url, script)
    assert ended.returncode == 0, ended.stderr

    async with open_connection(database.url) as connection:
        retired = await connection.fetch("select from pg_proc where proname like '\\_retired%'")
        assert retired == []
        found = await distribute.distribute(connection, partitions=PARTITIONS)
        assert not found.is_changed
    assert await findings(database.url) == []


async def test_a_run_that_is_killed_is_finished_by_the_next_one(make_cluster_database):
    """At six moments of one database: each run goes on where the last one ended. In between, nobody
    can migrate: a migration would bring back the functions for plain tables."""
    database = await make_cluster_database()
    async with open_connection(database.url) as connection:
        await migrate.migrate(connection)

    async def kill(is_moment):
        connection = await asyncpg.connect(database.url)
        said: list[str] = []

        def die(one):
            said.append(str(one))
            if is_moment(said):
                connection.terminate()

        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, FlowFabricError)):
            await distribute.distribute(connection, partitions=PARTITIONS, report=die)
        assert is_moment(said)
        # The server notices that the client is gone when it answers.
        await asyncio.sleep(0.5)

    for steps in (3, 5, 8, 8, 9):
        await kill(lambda said, steps=steps: len(said) == steps)
        async with open_connection(database.url) as connection:
            with pytest.raises(MigrationFailed, match="flowfabric db distribute"):
                await migrate.migrate(connection)
    await kill(lambda said: said[-1].startswith("functions: distributed"))
    async with open_connection(database.url) as connection:
        with pytest.raises(MigrationFailed, match="flowfabric db distribute"):
            await migrate.migrate(connection)
        ended = await asyncio.to_thread(run_script, database.url, migrate.sql(1))
        assert "flowfabric db distribute was interrupted" in ended.stderr
        await distribute.distribute(connection, partitions=PARTITIONS)
        await migrate.migrate(connection)
    assert await findings(database.url) == []


async def test_a_migration_takes_the_steps_that_distributing_takes(
    cluster_database, coordinator, tmp_path
):
    """It places, delegates, begins generations and reads statistics, and a second one nothing."""
    folder = tmp_path / "sql"
    copytree(package_source().folder, folder)
    (folder / "schema" / "0002_note.sql").write_text(
        "create table ff.note (partition_key smallint, id integer);\n"
        "create table ff.color (name text);\n"
    )
    (folder / "functions" / "partition" / "read_note.sql").write_text(
        "-- Read a note.\n--\n-- Rights:   app\n"
        "drop function if exists ff.read_note;\n"
        "create function ff.read_note(p_partition_key smallint) returns bigint\n"
        "language plpgsql stable security definer set search_path = pg_catalog, pg_temp\n"
        "as $$ begin return (select count(*) from ff.note n "
        "where n.partition_key = p_partition_key); end $$;\n"
    )
    source = replace(package_source(), folder=folder)
    await coordinator.execute(
        "update ff.event_generation set node_id = null where partition_key = 3"
    )
    said: list[str] = []

    def report(one):
        said.append(str(one).partition(" (")[0])

    await migrate.migrate(coordinator, source=source, report=report)

    assert said == [
        "schema/0002_note.sql: applied",
        "ff.color: on every node",
        "ff.note: beside ff.execution",
        f"library {package_source().library().version}: created",
        "generations of events: distributed",
        "ff.color: analyzed",
        "ff.note: analyzed",
    ]
    for partition in range(PARTITIONS):
        assert await coordinator.fetchval("select ff.read_note($1)", partition) == 0
    found = {one.name: one for one in await citus.read_delegations(coordinator)}
    assert found["read_note"].is_delegated
    said.clear()
    await migrate.migrate(coordinator, source=source, report=report)
    assert said == []


async def test_more_partitions_wait_for_an_open_submit_with_a_key(cluster_database, coordinator):
    """Nothing was submitted before. If the raise did not wait, the key would change its partition
    and could be used twice."""

    async def is_waiting() -> bool:
        counts = await coordinator.fetch(
            "select result from run_command_on_all_nodes("
            "$$ select count(*) from pg_locks where not granted "
            "and relation = 'ff.idempotency_key'::regclass $$)"
        )
        return any(row["result"] != "0" for row in counts)

    caller = await asyncpg.connect(cluster_database.url)
    async with shop(cluster_database.url, works=False) as (_, double):
        async with open_connection(cluster_database.url) as connection:
            async with caller.transaction():
                run = await double.using(via=caller).submit(1, key="order-1")
                raising = asyncio.create_task(
                    distribute.distribute(connection, partitions=2 * PARTITIONS)
                )
                await eventually(is_waiting)
                assert not raising.done()
            await raising
        assert (await double.submit(1, key="order-1")).id == run.id
    await caller.close()
    numbers = await coordinator.fetchrow("select partitions, keyed_partitions from ff.installation")
    assert tuple(numbers) == (2 * PARTITIONS, PARTITIONS)
    assert await findings(cluster_database.url) == []


async def test_a_lost_delegation_is_found_and_given_again(cluster_database, coordinator):
    [file] = [
        one
        for one in package_source().library(distributed=True).files
        if one.path.endswith("/describe_execution.sql")
    ]
    for statement in file.statements():
        await coordinator.execute(statement)
    assert await findings(cluster_database.url) == [
        "calls of ff.describe_execution are not delegated"
    ]

    migration = await migrate.migrate(coordinator)

    assert not migration.is_library_recreated
    assert await findings(cluster_database.url) == []


async def test_migrating_again_keeps_every_delegation(cluster_database, coordinator):
    await coordinator.execute("update ff.meta set value = 'older' where name = 'library_hash'")

    migration = await migrate.migrate(coordinator)

    assert migration.is_library_recreated
    library = package_source().library(distributed=True)
    assert citus.lost_delegations(library, await citus.read_delegations(coordinator)) == []
    assert await findings(cluster_database.url) == []


async def test_the_status_shows_nodes_shards_and_functions(cluster_database):
    def status(*options):
        arguments = ["status", *options, "--database-url", cluster_database.url]
        return CliRunner().invoke(db_command, arguments).stdout

    found = json.loads(await asyncio.to_thread(status, "-o", "json"))["cluster"]
    assert [one["partition"] for one in found["partitions"]] == list(range(PARTITIONS))
    assert len({one["node"] for one in found["partitions"]}) == len(cluster_database.nodes) - 1
    delegated = {one["function"]: one["delegated"] for one in found["functions"]}
    assert delegated["claim_executions"] == "outside transactions"
    assert delegated["submit_json"] == "always"
    assert delegated["list_lanes"] == "no"
    assert found["lost_delegations"] == []
    table = await asyncio.to_thread(status, "-o", "table")
    for one in found["partitions"]:
        assert re.search(
            rf"^{one['node']} +{one['shard']}  (.* )?{one['partition']}\b", table, re.M
        )
    assert "delegated to the node of their partition" in table
    assert re.search(r"^not delegated: .*\blist_lanes,", table, re.M | re.S)
    assert "describe_execution" not in table
    table = await asyncio.to_thread(status, "-o", "table", "--functions")
    for name, how in delegated.items():
        assert re.search(rf"^{name} +{how}$", table, re.M)


async def test_what_is_missing_is_said_before_anything_changes(make_cluster_database):
    database = await make_cluster_database()
    async with open_connection(database.url) as connection:
        with pytest.raises(NotDistributable, match="has no flowfabric schema yet"):
            await distribute.distribute(connection)
        await migrate.migrate(connection)
    async with open_connection(database.at(database.nodes[1])) as connection:
        with pytest.raises(NotDistributable, match="not the coordinator"):
            await distribute.distribute(connection)
