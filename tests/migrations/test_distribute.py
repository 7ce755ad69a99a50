"""Distributing a database, without a cluster: a stand-in records the statements. tests/citus runs
them on a real cluster."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta

import pytest
from typer.testing import CliRunner

from flowfabric.cli.cluster import cluster_lines, cluster_summary
from flowfabric.cli.db import app
from flowfabric.cli.doctor import report_json
from flowfabric.core.errors import ConnectionLost, MigrationFailed, NotDistributable
from flowfabric.db import citus, distribute, migrate
from flowfabric.db.citus import Delegation, Table, TableKind
from flowfabric.db.connection import open_connection
from flowfabric.db.distribute import Facts, Node, Setting
from flowfabric.db.library import package_source
from flowfabric.db.migrate import SchemaStatus
from flowfabric.doctor import Report
from support.cases import for_each
from support.citus_stand_in import Killed, Memory, StandIn
from support.proofs import some_of

FUNCTION = """\
drop function if exists ff.{name};
create function ff.{name}({parameters}) returns integer
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
as $$ begin return {result}; end $$;
"""


@pytest.fixture
def small(sample):
    """A schema with each kind of table, and a library with each kind of function."""
    sample.write(
        "schema/0003_cluster.sql",
        "create table ff.execution (partition_key smallint, id integer);\n"
        "create table ff.event (partition_key smallint, id integer);\n"
        "create table ff.lane (lane text primary key);\n"
        "create table ff.worker (\n"
        "  worker_instance_id text, heartbeat_at timestamptz, liveness_ttl interval);\n",
    )
    for name, parameters in (
        ("describe_one", "p_partition_key smallint"),
        ("submit_json", "p_partition_key smallint"),
        ("_helper", "p_partition_key smallint"),
        ("list_lanes", ""),
    ):
        sample.write(
            f"functions/sample/{name}.sql",
            FUNCTION.format(name=name, parameters=parameters, result=1),
        )
    sample.write(
        "functions/sample/raise_partitions.sql",
        "drop function if exists ff.raise_partitions;\n"
        "create function ff.raise_partitions(p_partitions integer) returns text\n"
        "language plpgsql set search_path = pg_catalog, pg_temp as $$ begin\n"
        "update ff.meta set value = p_partitions::text where name = 'partitions';\n"
        "return 'raised'; end $$;\n",
    )
    return sample.source()


async def distributed(connection, memory, source, kill_at=None, partitions=4):
    stand_in = StandIn(connection, memory, kill_at)
    said = []
    await distribute.distribute(
        stand_in, partitions=partitions, source=source, report=lambda one: said.append(str(one))
    )
    return stand_in, said


async def killed(url, memory, source, kill_at):
    async with open_connection(url) as connection:
        await migrate.migrate(connection, source=source)
        await distributed(connection, memory, source, kill_at)


async def partitions_of(connection):
    return await connection.fetchval("select value from ff.meta where name = 'partitions'")


# The kinds of statements, in the order of the architecture. Citus needs this order.
ORDER = {
    "advisory lock": r"select pg_catalog\.pg_advisory_lock\(",
    "reference tables": r"select pg_catalog\.create_reference_table\('ff\.(\w+)'",
    "tables of the coordinator": (
        r"select pg_catalog\.citus_add_local_table_to_metadata\('ff\.(\w+)'"
    ),
    "execution": (
        r"select pg_catalog\.create_distributed_table\(\n  'ff\.(execution)', 'partition_key', "
        r"colocate_with => 'none', shard_count => 4\);"
    ),
    "the rest, colocated": (
        r"select pg_catalog\.create_distributed_table\(\n  'ff\.(\w+)', 'partition_key', "
        r"colocate_with => 'ff\.execution'\);"
    ),
    "local leftovers": r"select pg_catalog\.truncate_local_data_after_distributing_table\(",
    "create functions": r"create (?:or replace )?function ff\.(\w+)",
    "register functions": r"select pg_catalog\.create_distributed_function\(\s*'ff\.(\w+)'",
    "generations of events": r"      perform ff\._raise_generation\(v_partition,",
    "mark": r"values \('distributed', 'true'\)",
    "number of partitions": r"select \* from ff\.raise_partitions\(4\);",
    "statistics": r'analyze ff\."?(\w+)"?;',
    "drop old functions": r"  where p\.pronamespace = 'ff'::regnamespace and p\.proname like",
    "unlock": r"select pg_catalog\.pg_advisory_unlock\(",
}


async def test_the_order_is_the_one_of_the_architecture(connection):
    """Of the statements for the schema and the library of the package."""
    await migrate.migrate(connection)
    tables = {row["name"] for row in await connection.fetch(TABLES)}

    script = await distribute.plan(StandIn(connection, Memory()), partitions=4)

    kinds, subjects = [], {kind: [] for kind in ORDER}
    pattern = "|".join(f"(?P<k{n}>^{text})" for n, text in enumerate(ORDER.values()))
    for match in re.finditer(pattern, script, re.MULTILINE):
        kind = list(ORDER)[int(match.lastgroup[1:])]
        subjects[kind] += [one for one in match.groups() if one and one != match[0]]
        if kinds[-1:] != [kind]:
            kinds.append(kind)
    assert kinds == list(ORDER)
    placed = [
        *subjects["reference tables"],
        *subjects["tables of the coordinator"],
        *subjects["execution"],
        *subjects["the rest, colocated"],
    ]
    assert sorted(placed) == sorted(subjects["statistics"]) == sorted(tables)
    library = package_source().library(distributed=True)
    assert subjects["register functions"] == list(citus.functions(library))
    assert set(subjects["register functions"]) < set(subjects["create functions"])
    assert "plan_cache_mode" not in script


def test_a_dry_run_names_its_stages(stages):
    assert stages == [
        "settings",
        "lock",
        "reference tables",
        "tables of the coordinator",
        "ff.execution",
        "tables beside ff.execution",
        "local leftovers",
        "functions",
        "generations of events",
        "number of partitions",
        "statistics",
        "old functions",
    ]


async def test_a_dry_run_lifts_the_time_limits_of_the_role(connection, small, script):
    known = await connection.fetch("select name from pg_settings where name ~ '_timeout$'")
    limits = {row["name"] for row in known} & {
        "statement_timeout", "lock_timeout", "transaction_timeout"
    }  # fmt: skip
    begun = script[: script.index("pg_advisory_lock")]
    assert set(re.findall(r"^set (\w+_timeout) = '0';$", begun, re.MULTILINE)) == limits


async def test_a_dry_run_with_nothing_to_do_drops_no_old_functions(connection, small):
    await migrate.migrate(connection, source=small)
    memory = Memory()
    stand_in, _ = await distributed(connection, memory, small)

    script = await distribute.plan(stand_in, partitions=4, source=small)

    assert "drop routine" not in script


@pytest.fixture
async def script(connection, small):
    """The dry run of a database that nothing has been done to."""
    await migrate.migrate(connection, source=small)
    memory = Memory()
    printed = await distribute.plan(StandIn(connection, memory), partitions=4, source=small)
    assert memory == Memory(), "a dry run changes nothing"
    assert await partitions_of(connection) == "1"
    return printed


@pytest.fixture
def stages(script):
    names = re.findall(r"^-- (.+)$", script, re.MULTILINE)
    return [name for name in names if not name.endswith(".sql")]


TABLES = """\
select c.relname as name from pg_class c
where c.relnamespace = 'ff'::regnamespace and c.relkind = 'r'
"""


async def test_a_dry_run_prints_what_a_run_does_in_the_same_order(connection, small, script):
    memory = Memory()

    await distributed(connection, memory, small)

    position = -1
    for statement in memory.statements:
        position = script.find(statement, position + 1)
        assert position >= 0, f"not printed, or not in this order: {statement}"
    assert script.index("pg_advisory_lock") < script.index("create_reference_table")
    assert script.rstrip().endswith(f"pg_advisory_unlock({migrate.MIGRATION_LOCK});")


async def test_functions_are_created_delegated_and_declared_in_this_order(script):
    functions = script[script.index("-- functions") : script.index("-- generations")]
    declared = script[script.index("-- generations") :]

    assert functions.index("create function ff.describe_one") < functions.index(
        "'ff.describe_one'::regproc::regprocedure, 'p_partition_key'"
    )
    assert "force_generic_plan" not in functions
    assert functions.count("begin;") == functions.count("commit;") == 1
    assert "force_delegation => true" in functions[functions.index("'ff.submit_json'") :][:120]
    assert "create_distributed_function('ff._helper'::regproc::regprocedure);" in functions
    assert "create_distributed_function('ff.list_lanes'::regproc::regprocedure);" in functions
    assert declared.index("_raise_generation") < declared.index("'distributed', 'true'")
    assert declared.index("'distributed', 'true'") < declared.index("raise_partitions(4)")


def test_a_table_of_the_coordinator_counts_on_where_it_was():
    """Citus puts a new table in its place, whose identity column begins with one."""
    event = Table(name="worker_event", wanted=TableKind.COORDINATOR, kind=None, has_leftovers=False)
    [(_, text)] = dict(citus.distributing([event], shards=4))["tables of the coordinator"]
    placed, counted = text.index("citus_add_local_table_to_metadata"), text.index("setval")
    assert placed < counted


async def test_every_step_is_reported(connection, small):
    await migrate.migrate(connection, source=small)

    _, said = await distributed(connection, Memory(), small)

    said = [line.partition(" (")[0] for line in said]
    assert said[0] == "ff.lane: on every node"
    assert "ff.worker: on the coordinator" in said
    assert "ff.execution: by partition" in said
    assert "ff.event: beside ff.execution" in said
    assert "ff.lane: old copy" in said
    assert "functions: distributed" in said
    assert "generations of events: distributed" in said
    assert "number of partitions: done" in said
    assert said[-1] == "ff.worker: analyzed"


async def test_the_second_run_finds_nothing_to_do_but_statistics(connection, small):
    await migrate.migrate(connection, source=small)
    memory = Memory()
    await distributed(connection, memory, small)
    memory.statements.clear()

    await distributed(connection, memory, small)

    assert all(one.startswith("analyze") for one in memory.statements)


def refusal_if(is_unfinished):
    if not is_unfinished:
        return nullcontext()
    return pytest.raises(
        MigrationFailed,
        match=r"was interrupted\. .* Finish it with the same number of partitions: "
        r"flowfabric db distribute --partitions N$",
    )


@pytest.mark.parametrize("part", some_of(range(5), 0, share=5))
async def test_a_run_that_is_killed_before_any_statement_is_finished_by_the_next_one(
    make_database, small, part
):
    """The statements that the two runs have committed are those of one run, in its order."""
    async with open_connection(make_database()) as connection:
        await migrate.migrate(connection, source=small)
        whole = Memory()
        full, _ = await distributed(connection, whole, small)
    expected = [one for one in whole.statements if not one.startswith("analyze")]
    assert full.count > 20
    for kill_at in range(1 + part, full.count + 1, 5):
        url, memory = make_database(), Memory()
        # Inside a transaction the loss of the connection is what shows.
        with pytest.raises((Killed, ConnectionLost)):
            await killed(url, memory, small, kill_at)
        async with open_connection(url) as connection:
            is_marked = (await migrate.status(connection, source=small)).is_distributed
            if await partitions_of(connection) == "4":
                assert is_marked
            # If somebody migrated in between, the functions would be those for plain tables.
            before = memory.copy()
            with refusal_if(bool(memory.kinds) and not is_marked):
                await migrate.migrate(StandIn(connection, memory), source=small)
            changes = memory.statements[len(before.statements) :]
            assert all(one.startswith("analyze") for one in changes)
            await distributed(connection, memory, small)

            done = [one for one in memory.statements if not one.startswith("analyze")]
            assert done == expected, f"killed before statement {kill_at}"
            assert await partitions_of(connection) == "4"
            assert (await migrate.status(connection, source=small)).is_distributed
            assert not (await migrate.status(connection, source=small)).is_library_stale


async def test_more_partitions_later_begin_their_generations_first(connection, small):
    await migrate.migrate(connection, source=small)
    memory = Memory()
    await distributed(connection, memory, small)
    memory.statements.clear()

    await distributed(connection, memory, small, partitions=8)

    first, second, third, *rest = memory.statements
    assert "generate_series(0, 8 - 1)" in first
    assert "'distributed', 'true'" in second
    assert third == "select * from ff.raise_partitions(8);"
    assert all(one.startswith("analyze") for one in rest)
    assert await partitions_of(connection) == "8"


async def test_migrate_distributes_new_tables_and_functions_of_a_distributed_database(
    connection, small, sample
):
    await migrate.migrate(connection, source=small)
    memory = Memory()
    await distributed(connection, memory, small)
    memory.statements.clear()
    sample.write(
        "schema/0004_note.sql",
        "create table ff.note (partition_key smallint, id integer);\n"
        "create table ff.color (name text);\n",
    )
    sample.write(
        "functions/sample/describe_one.sql",
        FUNCTION.format(name="describe_one", parameters="p_partition_key smallint", result=2),
    )

    await migrate.migrate(StandIn(connection, memory), source=small)

    tables = [one for one in memory.statements if "_table" in one]
    assert tables == [
        "select pg_catalog.create_reference_table('ff.color');",
        "select pg_catalog.create_distributed_table(\n"
        "  'ff.note', 'partition_key', colocate_with => 'ff.execution');",
    ]
    created = next(
        n for n, one in enumerate(memory.statements) if "function ff.describe_one" in one
    )
    delegated = next(n for n, one in enumerate(memory.statements) if "'ff.describe_one'" in one)
    assert created < delegated
    assert memory.registered["describe_one"] == (True, False)


@pytest.mark.parametrize("part", some_of(range(5), 1, share=5))
async def test_a_migration_of_a_distributed_database_that_is_killed_is_finished_by_the_next_one(
    make_database, small, sample, part
):
    """It places new tables, delegates functions, begins lost generations and reads statistics."""

    async def prepared(url, memory):
        sample.remove_if_there("schema/0004_note.sql")
        sample.function("list_lanes", "1")
        async with open_connection(url) as connection:
            await migrate.migrate(connection, source=small)
            await distributed(connection, memory, small)
        memory.statements.clear()
        memory.generations = 3
        sample.write(
            "schema/0004_note.sql", "create table ff.note (partition_key smallint, id integer);\n"
        )
        sample.function("list_lanes", "2")

    async def migrated(url, memory, kill_at=None):
        async with open_connection(url) as connection:
            stand_in = StandIn(connection, memory, kill_at)
            await migrate.migrate(stand_in, source=small)
        return stand_in.count

    url, whole = make_database(), Memory()
    await prepared(url, whole)
    count = await migrated(url, whole)
    assert whole.kinds["note"] == "partitioned"
    assert whole.generations == 4
    assert whole.statements[-1] == "analyze ff.note;"
    for kill_at in range(1 + part, count + 1, 5):
        url, memory = make_database(), Memory()
        await prepared(url, memory)
        with pytest.raises((Killed, ConnectionLost)):
            await migrated(url, memory, kill_at)
        await migrated(url, memory)
        assert memory.statements == whole.statements, f"killed before statement {kill_at}"
        assert await migrated(url, memory) == 0, "nothing is left"


async def test_an_older_release_has_to_finish_what_it_began(connection, small, sample):
    await migrate.migrate(connection, source=small)
    memory = Memory(kinds={"lane": "reference"})
    sample.write("schema/0004_note.sql", "create table ff.note (id integer);\n")

    with pytest.raises(MigrationFailed, match=r"and the release of flowfabric that began it: "):
        await migrate.migrate(StandIn(connection, memory), source=small)

    assert await connection.fetchval("select to_regclass('ff.note')") is None


async def test_a_table_that_citus_manages_by_itself_is_no_interrupted_run(connection, small):
    """With citus.use_citus_managed_tables, every new table is one of these."""
    await migrate.migrate(connection, source=small)

    await migrate.migrate(StandIn(connection, Memory(kinds={"lane": "coordinator"})), source=small)


async def test_migrate_delegates_again_what_has_lost_its_delegation(connection, small):
    await migrate.migrate(connection, source=small)
    memory = Memory()
    await distributed(connection, memory, small)
    memory.registered["describe_one"] = (False, False)
    memory.statements.clear()

    migration = await migrate.migrate(StandIn(connection, memory), source=small)

    assert not migration.is_library_recreated
    assert memory.registered["describe_one"] == (True, False)


async def test_a_database_that_lacks_something_is_left_alone(connection, small):
    await migrate.migrate(connection, source=small)
    memory = Memory(version="11.3-1")

    with pytest.raises(NotDistributable, match=r"Citus 11\.3-1 is too old"):
        await distributed(connection, memory, small)

    assert memory.statements == []


async def test_a_live_worker_is_named(connection, small):
    await migrate.migrate(connection, source=small)
    await connection.execute("insert into ff.worker values ('mail-1', now(), '1 min')")
    memory = Memory()

    with pytest.raises(NotDistributable, match=r"1 worker is alive \(mail-1\)"):
        await distributed(connection, memory, small)

    assert memory.statements == []
    await connection.execute("update ff.worker set heartbeat_at = now() - interval '2 min'")
    await distributed(connection, memory, small)


async def test_it_waits_for_a_migration(connect, small):
    connection, other = await connect(), await connect()
    await migrate.migrate(connection, source=small)
    await other.execute("select pg_advisory_lock($1)", migrate.MIGRATION_LOCK)
    memory, said = Memory(), []

    def report(one):
        said.append(one)
        if len(said) == 1:
            assert memory.statements == []
            other.terminate()

    await distribute.distribute(
        StandIn(connection, memory), partitions=4, source=small, report=report
    )

    assert str(said[0]) == "migration: waiting: another migration is running"
    assert memory.statements


# What is missing


FITTING = SchemaStatus(
    has_schema=True,
    steps=(),
    library_needed=1,
    library_found=1,
    library_hash_needed="x",
    library_hash_found="x",
)
COORDINATOR = Node(
    group=0, host="c", port=5432, is_active=True, has_metadata=True, has_shards=False
)
NODE = Node(group=1, host="n1", port=5433, is_active=True, has_metadata=True, has_shards=True)
LANE = Table(name="lane", wanted=TableKind.REFERENCE, kind=None, has_leftovers=False)
SOUND = Facts(schema=FITTING, version="12.1-1", nodes=(COORDINATOR, NODE), tables=(LANE,))

REFUSALS = {
    "no schema": (
        {"schema": replace(FITTING, has_schema=False, library_found=None)},
        "The database has no flowfabric schema yet. Needed: schema step 0, library 1. Create it "
        "with: flowfabric db migrate",
    ),
    "an old schema": (
        {"schema": replace(FITTING, library_found=0)},
        "The database is too old for this process. Found: schema step 0, library 0. Needed: schema "
        "step 0, library 1. Upgrade it with: flowfabric db migrate",
    ),
    "a newer schema": (
        {"schema": replace(FITTING, library_found=2)},
        "a newer release of flowfabric has migrated this database: upgrade flowfabric here",
    ),
    "no extension": (
        {"version": None, "nodes": ()},
        "the extension citus is missing; on every node add citus to shared_preload_libraries, "
        "restart, and type in this database: create extension citus",
    ),
    "an old extension": (
        {"version": "12.0-1"},
        "Citus 12.0-1 is too old, version 12.1 or newer is needed; install it on every node, "
        "restart, and type: alter extension citus update",
    ),
    "a node instead of the coordinator": (
        {"group": 1},
        "this server is not the coordinator; connect to the coordinator c:5432",
    ),
    "an unknown coordinator": (
        {"nodes": (NODE,)},
        "the other nodes do not know the coordinator; type: "
        "select citus_set_coordinator_host('HOST', 5432)",
    ),
    "no node": (
        {"nodes": (COORDINATOR,)},
        "the cluster has no node that takes partitions; type for each: "
        "select citus_add_node('HOST', 5432)",
    ),
    "an inactive node": (
        {"nodes": (COORDINATOR, replace(NODE, is_active=False))},
        "node n1:5433 is not active; type: select citus_activate_node('n1', 5433)",
    ),
    "a node without metadata": (
        {"nodes": (COORDINATOR, replace(NODE, has_metadata=False))},
        "node n1:5433 has no metadata of the cluster (MX); type: "
        "select start_metadata_sync_to_node('n1', 5433)",
    ),
    "a node out of reach": (
        {"unreachable": (("n1:5433", "c:5432"),)},
        "node n1:5433 does not reach node c:5432; check the network, pg_hba.conf and whether the "
        "database and its extension citus exist there",
    ),
    "a silent node": (
        {"silent": ("n1:5433",)},
        "node n1:5433 does not report its settings; check whether it runs",
    ),
    "a setting of a node": (
        {"settings": (Setting(node="n1:5433", name="fsync", value="off"),)},
        "fsync is off on n1:5433; type there: alter system set fsync = on; select pg_reload_conf()",
    ),
    "a setting of the coordinator": (
        {"settings": (Setting(node="c", name="citus.shard_replication_factor", value="2"),)},
        "citus.shard_replication_factor is 2 on c; type there: alter system set "
        "citus.shard_replication_factor = 1; select pg_reload_conf()",
    ),
    "visible shards": (
        {"settings": (Setting(node="c", name="citus.override_table_visibility", value="on"),)},
        "citus.override_table_visibility is on on c; type there: alter system set "
        "citus.override_table_visibility = off; select pg_reload_conf()",
    ),
    "live workers": (
        {"workers": ("a-1", "b-2", "c-3", "d-4", "e-5")},
        "5 workers are alive (a-1; b-2; c-3; 2 more); stop them, wait until `flowfabric worker ls` "
        "shows none alive, and type the command again",
    ),
    "sessions": (
        {"sessions": ("flowfabric, process 7",)},
        "1 session of flowfabric is connected (flowfabric, process 7); stop every process that "
        "submits or reads",
    ),
    "a trigger": (
        {"triggers": (("execution", "mine"),)},
        "ff.execution has the trigger mine, but Citus distributes no table with a trigger; type: "
        "drop trigger mine on ff.execution",
    ),
    "a table distributed by hand": (
        {"tables": (replace(LANE, kind=TableKind.PARTITIONED),)},
        "ff.lane is not distributed as flowfabric needs it; type: "
        "select undistribute_table('ff.lane')",
    ),
    "fewer partitions": (
        {"partitions": 64},
        "the database has 64 partitions, and the number is never lowered; type: "
        "flowfabric db distribute --partitions 64",
    ),
}


def test_a_sound_cluster_lacks_nothing():
    assert distribute.missing(SOUND, 32) == []


@for_each("name", list(REFUSALS))
def test_what_is_missing_is_said_with_what_to_type(name):
    changes, text = REFUSALS[name]

    assert distribute.missing(replace(SOUND, **changes), 32) == [text]


def test_everything_that_is_missing_is_said_at_once():
    facts = replace(SOUND, version="11.0-1", workers=("a",), partitions=64)

    assert len(distribute.missing(facts, 32)) == 3


def test_a_distributed_database_may_be_in_use():
    schema = replace(FITTING, is_distributed=True)

    assert distribute.missing(replace(SOUND, schema=schema, workers=("a",)), 32) == []


# The functions of the package


def test_public_functions_of_a_partition_are_delegated_and_no_others():
    found = citus.functions(package_source().library(distributed=True))

    assert found["claim_executions"] is found["read_events"] is found["submit_json"] is True
    assert found["list_lanes"] is found["register_routes"] is found["_enforce_leases"] is False
    assert set(found) >= citus.FORCED_FUNCTIONS
    assert all(found[name] for name in citus.FORCED_FUNCTIONS)


def test_a_lost_delegation_is_noticed():
    library = package_source().library(distributed=True)
    wanted = citus.functions(library)
    found = [
        Delegation(
            name=name,
            is_everywhere=True,
            is_delegated=is_delegated,
            is_forced=name in citus.FORCED_FUNCTIONS,
        )
        for name, is_delegated in wanted.items()
    ]
    assert citus.lost_delegations(library, found) == []

    for change in ({"is_everywhere": False}, {"is_delegated": False}, {"is_forced": True}):
        broken = [
            replace(one, **change) if one.name == "claim_executions" else one for one in found
        ]
        assert citus.lost_delegations(library, broken) == ["claim_executions"]


# The command


@pytest.fixture
def run(small, monkeypatch, url):
    monkeypatch.setattr(migrate, "package_source", lambda: small)
    monkeypatch.setattr(distribute, "package_source", lambda: small)

    def run(*arguments):
        return CliRunner().invoke(app, [*arguments, "--database-url", url])

    return run


@for_each("option", ["", "--dry-run"])
def test_a_plain_postgres_is_told_what_it_lacks(run, option):
    run("migrate")

    result = run("distribute", *option.split())

    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == (
        "error: This database cannot be distributed yet:\n"
        "- the extension citus is missing; on every node add citus to shared_preload_libraries, "
        "restart, and type in this database: create extension citus\n"
    )


@for_each("number", ["0", "1025", "many"])
def test_a_wrong_number_of_partitions_is_a_usage_error(run, number):
    result = run("distribute", "--partitions", number)

    assert result.exit_code == 2
    assert "--partitions" in result.stderr


def placed(partition, shard, node):
    return citus.Location(partition=partition, shard_id=shard, node=node)


def delegation(name, *, is_delegated=False, is_forced=False, is_everywhere=True):
    return Delegation(
        name=name, is_everywhere=is_everywhere, is_delegated=is_delegated, is_forced=is_forced
    )


CLUSTER = distribute.Cluster(
    locations=(
        placed(0, 102010, "n2:5432"),
        placed(1, 102009, "n1:5432"),
        placed(2, 102008, "n1:5432"),
        placed(3, 102009, "n1:5432"),
    ),
    delegations=(
        delegation("_helper"),
        delegation("claim_executions", is_delegated=True),
        delegation("gone", is_everywhere=False),
        delegation("list_lanes"),
        delegation("submit_json", is_delegated=True, is_forced=True),
    ),
    lost=("gone",),
)
FUNCTIONS = (
    "functions: 2 delegated to the node of their partition (1 of them also in transactions), 3 run "
    "where they are called"
)


def test_the_status_names_shards_and_the_functions_that_are_not_delegated():
    assert list(cluster_lines(CLUSTER)) == [
        "NODE      SHARD  PARTITIONS",
        "n1:5432  102008  2",
        "n1:5432  102009  1 3",
        "n2:5432  102010  0",
        "",
        FUNCTIONS,
        "not delegated: gone, list_lanes, and 1 helper; --functions shows all functions",
        "not delegated as they should be: gone; type: flowfabric db distribute",
    ]


def test_the_status_shows_the_delegation_of_every_function():
    assert list(cluster_lines(CLUSTER, with_functions=True))[5:] == [
        FUNCTIONS,
        "not delegated as they should be: gone; type: flowfabric db distribute",
        "",
        "FUNCTION          DELEGATED",
        "_helper           no",
        "claim_executions  outside transactions",
        "gone              missing on other nodes",
        "list_lanes        no",
        "submit_json       always",
    ]


def test_doctor_says_what_is_where():
    report = Report(verdicts=(), duration=timedelta(0), cluster=CLUSTER)

    assert list(cluster_summary(CLUSTER)) == [
        "node n1:5432: shards 102008 (partition 2), 102009 (partitions 1 3)",
        "node n2:5432: shards 102010 (partition 0)",
        FUNCTIONS + "; flowfabric db status --functions lists them",
    ]
    found = json.loads(report_json(report))["cluster"]
    assert found["partitions"][0] == {"partition": 0, "shard": 102010, "node": "n2:5432"}
    assert {one["function"]: one["delegated"] for one in found["functions"]} == {
        "_helper": "no",
        "claim_executions": "outside transactions",
        "gone": "missing on other nodes",
        "list_lanes": "no",
        "submit_json": "always",
    }


def test_the_status_of_one_server_has_no_cluster(run):
    run("migrate")

    assert '"cluster": null' in run("status", "-o", "json").stdout
    assert "NODE" not in run("status", "-o", "table").stdout
