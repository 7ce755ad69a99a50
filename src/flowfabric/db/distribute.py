"""Distribute a database over the nodes of a Citus cluster.

`distribute` checks all conditions first. Then it does the remaining steps in a fixed order. If a
call was killed, the next call finishes the work.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import timedelta
from time import perf_counter
from typing import TYPE_CHECKING

from flowfabric.core.errors import NotDistributable
from flowfabric.db import citus, migrate
from flowfabric.db.citus import Table
from flowfabric.db.library import Source, package_source
from flowfabric.db.migrate import MIGRATION_LOCK, Labelled, Progress, Report, SchemaStatus

if TYPE_CHECKING:
    from flowfabric.db.connection import Connection

COMMAND = citus.COMMAND
DEFAULT_PARTITIONS = 32
MIN_PARTITIONS, MAX_PARTITIONS = 1, 1024
MIN_CITUS = (12, 1)

# Every node must have these settings, because a call runs on the node of its partition. Without the
# first three, a stale worker could change an execution after a crash of the node. If the last
# setting is on, Citus rewrites every query on the catalogue, even inside functions.
NODE_SETTINGS = {
    "fsync": ("on",),
    "full_page_writes": ("on",),
    "synchronous_commit": ("on", "local", "remote_write", "remote_apply"),
    "citus.override_table_visibility": ("off",),
}
# Settings that the coordinator must have, because it distributes tables and functions.
COORDINATOR_SETTINGS = {
    "citus.enable_ddl_propagation": ("on",),
    "citus.enable_metadata_sync": ("on",),
    "citus.shard_replication_factor": ("1",),
    "citus.use_secondary_nodes": ("never",),
}

_READ_VERSION = """\
select x.extversion from pg_catalog.pg_extension x where x.extname = 'citus'
"""
_READ_GROUP = "select g.groupid from pg_catalog.pg_dist_local_group g"
_READ_NODES = """\
select d.groupid, d.nodename as host, d.nodeport as port, d.isactive as is_active,
       d.hasmetadata and d.metadatasynced as has_metadata, d.shouldhaveshards as has_shards
from pg_catalog.pg_dist_node d
where d.noderole = 'primary'
order by d.groupid
"""
_READ_UNREACHABLE = """\
select h.from_nodename || ':' || h.from_nodeport as origin,
       h.to_nodename || ':' || h.to_nodeport as target
from pg_catalog.citus_check_cluster_node_health() h
where h.result is not true
order by 1, 2
"""
# One row per node: the settings in the order of $1, joined by blanks.
_READ_SETTINGS = """\
select coalesce(d.nodename || ':' || d.nodeport, '?') as node, r.success, r.result
from pg_catalog.run_command_on_all_nodes($1) r
left join pg_catalog.pg_dist_node d on d.nodeid = r.nodeid
order by 1
"""
_READ_SETTING = "select pg_catalog.current_setting($1, true)"
_READ_WORKERS = """\
select w.worker_instance_id
from ff.worker w
where w.heartbeat_at + w.liveness_ttl > ff.now()
order by 1
"""
_READ_SESSIONS = """\
select a.pid, a.application_name as name
from pg_catalog.pg_stat_activity a
where a.datname = pg_catalog.current_database() and a.pid <> pg_catalog.pg_backend_pid()
  and a.application_name ~ '^flowfabric'
order by a.pid
"""
_READ_TRIGGERS = """\
select t.tgname as name, c.relname as table_name
from pg_catalog.pg_trigger t
join pg_catalog.pg_class c on c.oid = t.tgrelid
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where n.nspname = 'ff' and not t.tgisinternal
order by 2, 1
"""

_LOCK = f"select pg_catalog.pg_advisory_lock({MIGRATION_LOCK});"
_UNLOCK = f"select pg_catalog.pg_advisory_unlock({MIGRATION_LOCK});"
_RAISE_PARTITIONS = "select * from ff.raise_partitions({partitions});"

# The stage that creates and delegates the functions.
_FUNCTIONS = "functions"

_SETTINGS = {"client_min_messages": "warning", **migrate.NO_TIME_LIMITS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A server of the cluster. `group` is its Citus group; the coordinator has group 0."""

    group: int
    host: str
    port: int
    is_active: bool
    has_metadata: bool
    has_shards: bool

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting of one node."""

    node: str
    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts that decide whether a database can be distributed.

    If the database has no Citus, `version` is None and only `schema` is known.
    """

    schema: SchemaStatus
    version: str | None
    group: int = 0
    nodes: tuple[Node, ...] = ()
    unreachable: tuple[tuple[str, str], ...] = ()
    settings: tuple[Setting, ...] = ()
    silent: tuple[str, ...] = ()
    """Nodes that did not report their settings."""
    workers: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()
    triggers: tuple[tuple[str, str], ...] = ()
    tables: tuple[Table, ...] = ()
    partitions: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Statements that run one after the other, with their labels.

    If `is_atomic` is set, all of them run in one transaction.
    """

    name: str
    statements: tuple[Labelled, ...]
    is_atomic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """The result of `distribute`. `nodes` counts the nodes that have partitions."""

    partitions: int
    nodes: int
    is_changed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Where the partitions of a distributed database are, and which functions are delegated."""

    locations: tuple[citus.Location, ...]
    delegations: tuple[citus.Delegation, ...]
    lost: tuple[str, ...]
    """Functions that are not delegated as they should be."""


def _ignore(_: Progress) -> None:
    pass


async def distribute(
    connection: Connection,
    *,
    partitions: int = DEFAULT_PARTITIONS,
    report: Report = _ignore,
    source: Source | None = None,
) -> Distribution:
    """Distribute the tables and functions over the nodes of the cluster, and increase the number of
    partitions.

    Before any change, check all conditions. If some of them are not met, raise `NotDistributable`,
    which lists them. If a call was interrupted, call `distribute` again: it does the remaining
    steps.

    The connection must lead to the coordinator and be outside a transaction.
    """
    _check_partitions(partitions)
    if connection.is_in_transaction():
        raise ValueError("distribute() opens its own transactions: call it outside a transaction.")
    source = source or package_source()
    async with (
        migrate.alone(connection, report),
        migrate.changed_settings(connection, _SETTINGS),
    ):
        facts = await _checked(connection, partitions, source)
        is_changed = False
        async for stage in _stages(connection, partitions, facts, source):
            is_changed = is_changed or stage.name != "statistics"
            await _run(connection, stage, report)
        await migrate.drop_retired_functions(connection, report)
    return Distribution(
        partitions=partitions,
        nodes=sum(node.has_shards for node in facts.nodes),
        is_changed=is_changed,
    )


async def plan(
    connection: Connection,
    *,
    partitions: int = DEFAULT_PARTITIONS,
    source: Source | None = None,
) -> str:
    """Return the SQL that `distribute` would run, as a script for psql. Change nothing."""
    _check_partitions(partitions)
    source = source or package_source()
    facts = await _checked(connection, partitions, source)
    known = await migrate.read_settings(connection, _SETTINGS)
    lines = ["\\set ON_ERROR_STOP on", "", "-- settings", "set search_path = '';"]
    lines += [f"set {name} = '{_SETTINGS[name]}';" for name in known]
    lines += ["", "-- lock", _LOCK]
    has_retired = await migrate.are_functions_retired(connection)
    async for stage in _stages(connection, partitions, facts, source, is_trial=True):
        has_retired = has_retired or stage.name == _FUNCTIONS
        lines += ["", f"-- {stage.name}"]
        if stage.is_atomic:
            lines.append("begin;")
            lines.append(migrate.transaction_settings())
        lines += [text for _, text in stage.statements]
        if stage.is_atomic:
            lines.append("commit;")
    if has_retired:
        lines += ["", "-- old functions", *migrate.dropping_retired_functions()]
    return "\n".join([*lines, "", _UNLOCK, ""])


async def look(connection: Connection, *, source: Source | None = None) -> Cluster:
    """Read where the partitions of a distributed database are, and which functions are delegated.

    Change nothing.
    """
    library = (source or package_source()).library(distributed=True)
    delegations = await citus.read_delegations(connection)
    partitions = await citus.count_partitions(connection)
    return Cluster(
        locations=await citus.read_locations(connection, partitions),
        delegations=delegations,
        lost=tuple(citus.lost_delegations(library, delegations)),
    )


async def read_facts(connection: Connection, source: Source) -> Facts:
    """Read everything that decides whether the database can be distributed. Change nothing."""
    schema = await migrate.status(connection, source=source)
    if not await citus.has_citus(connection):
        return Facts(schema=schema, version=None)
    version = await connection.fetchval(_READ_VERSION)
    group = await connection.fetchval(_READ_GROUP)
    nodes = tuple(
        Node(
            group=row["groupid"],
            host=row["host"],
            port=row["port"],
            is_active=row["is_active"],
            has_metadata=row["has_metadata"],
            has_shards=row["has_shards"],
        )
        for row in await connection.fetch(_READ_NODES)
    )
    settings, silent = await _read_settings(connection)
    # Without the schema of flowfabric there is nothing more to read.
    has_schema = schema.problem() is None
    return Facts(
        schema=schema,
        version=version,
        group=group,
        nodes=nodes,
        unreachable=tuple(
            (row["origin"], row["target"]) for row in await connection.fetch(_READ_UNREACHABLE)
        ),
        settings=settings,
        silent=silent,
        workers=await _names(connection, _READ_WORKERS, "worker_instance_id") if has_schema else (),
        sessions=tuple(
            f"{row['name']}, process {row['pid']}" for row in await connection.fetch(_READ_SESSIONS)
        ),
        triggers=tuple(
            (row["table_name"], row["name"]) for row in await connection.fetch(_READ_TRIGGERS)
        ),
        tables=await citus.read_tables(connection) if has_schema else (),
        partitions=await citus.count_partitions(connection) if has_schema else 1,
    )


def missing(facts: Facts, partitions: int) -> list[str]:
    """Return all reasons why a database cannot be distributed, each with its remedy."""
    return [*_missing_schema(facts), *_missing_cluster(facts), *_missing_quiet(facts, partitions)]


def _missing_schema(facts: Facts) -> Iterator[str]:
    if problem := facts.schema.problem():
        yield str(problem)
    elif facts.schema.is_newer:
        yield "a newer release of flowfabric has migrated this database: upgrade flowfabric here"


def _missing_cluster(facts: Facts) -> Iterator[str]:
    if facts.version is None:
        yield (
            "the extension citus is missing; on every node add citus to shared_preload_libraries, "
            "restart, and type in this database: create extension citus"
        )
        return
    if _number(facts.version) < MIN_CITUS:
        yield (
            f"Citus {facts.version} is too old, version 12.1 or newer is needed; "
            "install it on every node, restart, and type: alter extension citus update"
        )
    coordinator = next((node for node in facts.nodes if node.group == 0), None)
    if facts.group != 0:
        where = f" {coordinator}" if coordinator else ""
        yield f"this server is not the coordinator; connect to the coordinator{where}"
        return
    if coordinator is None:
        yield (
            "the other nodes do not know the coordinator; type: "
            "select citus_set_coordinator_host('HOST', 5432)"
        )
    if not any(node.has_shards for node in facts.nodes):
        yield (
            "the cluster has no node that takes partitions; type for each: "
            "select citus_add_node('HOST', 5432)"
        )
    for node in facts.nodes:
        if not node.is_active:
            yield (
                f"node {node} is not active; type: "
                f"select citus_activate_node('{node.host}', {node.port})"
            )
        elif not node.has_metadata:
            yield (
                f"node {node} has no metadata of the cluster (MX); type: "
                f"select start_metadata_sync_to_node('{node.host}', {node.port})"
            )
    for origin, target in facts.unreachable:
        yield (
            f"node {origin} does not reach node {target}; check the network, pg_hba.conf and "
            "whether the database and its extension citus exist there"
        )
    for node_name in facts.silent:
        yield f"node {node_name} does not report its settings; check whether it runs"
    for setting in facts.settings:
        wanted = {**NODE_SETTINGS, **COORDINATOR_SETTINGS}[setting.name]
        if setting.value not in wanted:
            yield (
                f"{setting.name} is {setting.value} on {setting.node}; type there: alter system "
                f"set {setting.name} = {wanted[0]}; select pg_reload_conf()"
            )


def _missing_quiet(facts: Facts, partitions: int) -> Iterator[str]:
    for table in facts.tables:
        if table.kind is not None and not table.is_as_wanted:
            yield (
                f"ff.{table.name} is not distributed as flowfabric needs it; type: "
                f"select undistribute_table('ff.{table.name}')"
            )
    if partitions < facts.partitions:
        yield (
            f"the database has {facts.partitions} partitions, and the number is never lowered; "
            f"type: {COMMAND} --partitions {facts.partitions}"
        )
    if facts.schema.is_distributed:
        return
    if facts.workers:
        yield (
            f"{_count(facts.workers, 'worker', 'workers')} alive ({_some(facts.workers)}); stop "
            "them, wait until `flowfabric worker ls` shows none alive, and type the command again"
        )
    if facts.sessions:
        yield (
            f"{_count(facts.sessions, 'session of flowfabric', 'sessions of flowfabric')} "
            f"connected ({_some(facts.sessions)}); stop every process that submits or reads"
        )
    for table_name, trigger in facts.triggers:
        yield (
            f"ff.{table_name} has the trigger {trigger}, but Citus distributes no table "
            f"with a trigger; type: drop trigger {trigger} on ff.{table_name}"
        )


async def _checked(connection: Connection, partitions: int, source: Source) -> Facts:
    facts = await read_facts(connection, source)
    if problems := missing(facts, partitions):
        listed = "\n".join(f"- {problem}" for problem in problems)
        raise NotDistributable(f"This database cannot be distributed yet:\n{listed}")
    return facts


async def _stages(
    connection: Connection,
    partitions: int,
    facts: Facts,
    source: Source,
    *,
    is_trial: bool = False,
) -> AsyncIterator[Stage]:
    """Yield the stages that are left to do.

    If `is_trial` is false, the caller must run each stage before it asks for the next stage. If it
    is true, the caller runs none of them.
    """
    # Make as many shards as partitions: the hash of a partition chooses its shard.
    for name, labelled in citus.distributing(facts.tables, shards=partitions):
        if labelled:
            yield Stage(name=name, statements=tuple(labelled))
    tables = facts.tables if is_trial else await citus.read_tables(connection)
    if emptying := tuple(citus.emptying(tables)):
        yield Stage(name="local leftovers", statements=emptying)
    library = source.library(distributed=True)
    found = (facts.schema.library_found, facts.schema.library_hash_found)
    if found != (library.version, library.hash):
        statements = migrate.library_statements(library, source.steps(), register=True)
        yield Stage(name=_FUNCTIONS, statements=tuple(statements), is_atomic=True)
    elif citus.lost_delegations(library, await citus.read_delegations(connection)):
        yield Stage(name=_FUNCTIONS, statements=tuple(citus.registering(library)), is_atomic=True)
    if not facts.schema.is_distributed or await citus.count_generations(connection) < partitions:
        # The generations and the mark `distributed` are written in one transaction, so a process
        # that finds the mark also finds the generations.
        beginning = (citus.beginning_generations(partitions), citus.declaring())
        yield Stage(name="generations of events", statements=beginning, is_atomic=True)
    if facts.partitions < partitions:
        raising = ("number of partitions", _RAISE_PARTITIONS.format(partitions=partitions))
        yield Stage(name="number of partitions", statements=(raising,))
    yield Stage(name="statistics", statements=tuple(citus.analyzing(facts.tables)))


async def _run(connection: Connection, stage: Stage, report: Report) -> None:
    if stage.is_atomic:
        started = perf_counter()
        await migrate.in_transaction(connection, list(stage.statements), report)
        report(Progress(subject=stage.name, happened="distributed", duration=_since(started)))
        return
    await migrate.one_by_one(connection, stage.statements, report, COMMAND)


async def _read_settings(connection: Connection) -> tuple[tuple[Setting, ...], tuple[str, ...]]:
    """Return the settings of all nodes, and the names of the nodes that did not answer."""
    found, silent = [], []
    query = " || ' ' || ".join(
        f"coalesce(current_setting('{name}', true), '?')" for name in NODE_SETTINGS
    )
    for row in await connection.fetch(_READ_SETTINGS, f"select {query}"):
        values = (row["result"] or "").split(" ")
        if not row["success"] or len(values) != len(NODE_SETTINGS):
            silent.append(row["node"])
            continue
        found += [
            Setting(node=row["node"], name=name, value=value)
            for name, value in zip(NODE_SETTINGS, values, strict=True)
        ]
    for name in COORDINATOR_SETTINGS:
        value = await connection.fetchval(_READ_SETTING, name)
        if value is not None:
            found.append(Setting(node="the coordinator", name=name, value=value))
    return tuple(found), tuple(silent)


async def _names(connection: Connection, query: str, column: str) -> tuple[str, ...]:
    return tuple(row[column] for row in await connection.fetch(query))


def _check_partitions(partitions: int) -> None:
    if not MIN_PARTITIONS <= partitions <= MAX_PARTITIONS:
        raise ValueError(f"must be {MIN_PARTITIONS} to {MAX_PARTITIONS}")


def _number(version: str) -> tuple[int, int]:
    """Return the first two numbers of a Citus version: (12, 1) for 12.1-1."""
    major, minor = [*version.replace("-", ".").split("."), "0"][:2]
    return int(major), int(minor)


def _count(items: tuple[str, ...], one: str, many: str) -> str:
    return f"1 {one} is" if len(items) == 1 else f"{len(items)} {many} are"


def _some(items: tuple[str, ...], most: int = 3) -> str:
    rest = len(items) - most
    return "; ".join(items[:most]) + (f"; {rest} more" if rest > 0 else "")


def _since(started: float) -> timedelta:
    return timedelta(seconds=perf_counter() - started)
