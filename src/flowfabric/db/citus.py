"""The statements that distribute tables and functions over the nodes of a Citus cluster, and the
queries that tell where they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from flowfabric.db.library import Library

if TYPE_CHECKING:
    from flowfabric.db.connection import Connection

Labelled: TypeAlias = tuple[str, str]

COMMAND = "flowfabric db distribute"

# The workers that are alive, and their history. Their rows change all the time and belong to no
# partition. So they stay on the coordinator, and functions on other nodes read them from there.
COORDINATOR_TABLES = frozenset({"worker", "worker_event"})

# Functions whose calls are delegated even inside a transaction of the caller. Citus does this only
# for functions registered with `force_delegation`.
FORCED_FUNCTIONS = frozenset({"submit_flow", "submit_json"})

# If the tables are distributed, the view ff.installation calls this function, which runs with the
# rights of its owner. A view alone lets a role read the tables below it, but not their shards.
READ_INSTALLATION = "read_installation"

_FUNCTION = re.compile(
    r"^create\s+(?:or\s+replace\s+)?function\s+ff\.(\w+)\s*\(\s*(p_partition_key\b)?",
    re.IGNORECASE | re.MULTILINE,
)

HAS_CITUS = """\
select exists (select from pg_catalog.pg_extension x where x.extname = 'citus')
"""

# Shards are tables of the same schema. Citus hides them from sessions that do not ask for them.
_READ_TABLES = """\
select c.relname as name,
       exists (
         select from pg_catalog.pg_attribute a
         where a.attrelid = c.oid and a.attname = 'partition_key') as is_partitioned,
       case when p.partmethod = 'h' and p.colocationid = x.colocationid then 'partitioned'
            when p.partmethod = 'n' and p.repmodel = 't' then 'reference'
            when p.partmethod = 'n' and p.repmodel = 's' then 'coordinator'
            when p.logicalrelid is not null then 'elsewhere' end as kind,
       pg_catalog.pg_relation_size(c.oid) > 0 as has_leftovers,
       c.reltuples >= 0 as is_analyzed
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
left join pg_catalog.pg_dist_partition p on p.logicalrelid = c.oid
left join pg_catalog.pg_dist_partition x
  on x.logicalrelid = pg_catalog.to_regclass('ff.execution') and x.partmethod = 'h'
where n.nspname = 'ff' and c.relkind = 'r' and not pg_catalog.relation_is_a_known_shard(c.oid)
order by c.relname
"""

_READ_DELEGATIONS = """\
select p.proname as name,
       o.objid is not null as is_everywhere,
       o.distribution_argument_index = 0 and o.colocationid = x.colocationid as is_delegated,
       o.force_delegation as is_forced
from pg_catalog.pg_proc p
join pg_catalog.pg_namespace n on n.oid = p.pronamespace
left join pg_catalog.pg_dist_object o
  on o.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass and o.objid = p.oid
left join pg_catalog.pg_dist_partition x on x.logicalrelid = pg_catalog.to_regclass('ff.execution')
where n.nspname = 'ff'
order by p.proname
"""

_READ_PARTITIONS = """\
select g.n as partition, s.shardid as shard_id, d.nodename || ':' || d.nodeport as node
from pg_catalog.generate_series(0, $1::integer - 1) g(n)
cross join lateral (
  select pg_catalog.get_shard_id_for_distribution_column('ff.execution', g.n::smallint) as shardid
  offset 0) s
join pg_catalog.pg_dist_placement l on l.shardid = s.shardid
join pg_catalog.pg_dist_node d on d.groupid = l.groupid and d.noderole = 'primary'
order by g.n
"""

_REFERENCE = "select pg_catalog.create_reference_table('ff.{name}');"
_COORDINATOR = "select pg_catalog.citus_add_local_table_to_metadata('ff.{name}');"
# _COORDINATOR replaces ff.worker_event by a new table, whose sequence would start at 1 again. This
# statement makes the sequence continue after the highest number in use.
_COUNT_ON = """
select pg_catalog.setval(
  pg_catalog.pg_get_serial_sequence('ff.worker_event', 'worker_event_id'),
  pg_catalog.max(w.worker_event_id))
from ff.worker_event w;"""
_FIRST = """\
select pg_catalog.create_distributed_table(
  'ff.execution', 'partition_key', colocate_with => 'none', shard_count => {shards});"""
_COLOCATED = """\
select pg_catalog.create_distributed_table(
  'ff.{name}', 'partition_key', colocate_with => 'ff.execution');"""
_LEFTOVERS = "select pg_catalog.truncate_local_data_after_distributing_table('ff.{name}');"

_EVERYWHERE = """\
select pg_catalog.create_distributed_function('ff.{name}'::regproc::regprocedure);"""
_DELEGATED = """\
select pg_catalog.create_distributed_function(
  'ff.{name}'::regproc::regprocedure, 'p_partition_key',
  colocate_with => 'ff.execution'{forced});"""

_READ_INSTALLATION = """\
create or replace function ff.read_installation()
returns table (
  step              integer,
  name              text,
  checksum          text,
  breaking          boolean,
  applied_at        timestamptz,
  library_version   integer,
  library_hash      text,
  partitions        integer,
  minted_partitions integer,
  keyed_partitions  integer,
  is_distributed    boolean
)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
{query};
end;
$$;"""
_INSTALLATION = """\
create or replace view ff.installation as select * from ff.read_installation();"""

_IS_DISTRIBUTED = """\
insert into ff.meta (name, value)
values ('distributed', 'true')
on conflict (name) do update set value = excluded.value;"""

# Every partition gets a row with its node before anything is written to it. A partition that
# already has a row keeps its generation; the first call on another node raises the generation.
_GENERATIONS = """\
do $$
declare
  v_partition smallint;
begin
  for v_partition in select g.n from generate_series(0, {partitions} - 1) g(n) loop
    if not exists (
        select from ff.event_generation g
        where g.partition_key = v_partition and g.node_id is not null) then
      perform ff._raise_generation(v_partition, (
        select l.groupid from pg_dist_placement l
        where l.shardid = get_shard_id_for_distribution_column(
          'ff.event_generation', v_partition)));
    end if;
  end loop;
end
$$;"""

_READ_NUMBER = """\
select i.partitions from ff.installation i limit 1
"""

_ANALYZE = "analyze ff.{name};"

_COUNT_GENERATIONS = "select count(*) from ff.event_generation g where g.node_id is not null"


class TableKind(StrEnum):
    """Where the rows of a table are."""

    PARTITIONED = "partitioned"
    """On the node of their partition."""
    REFERENCE = "reference"
    """On every node."""
    COORDINATOR = "coordinator"
    """On the coordinator; other nodes read them from there."""
    ELSEWHERE = "elsewhere"
    """Distributed in a way that is not ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table: where its rows should be, and where they are. `kind` is None before the table is
    distributed."""

    name: str
    wanted: TableKind
    kind: TableKind | None
    has_leftovers: bool
    is_analyzed: bool = False

    @property
    def is_as_wanted(self) -> bool:
        return self.kind is self.wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Delegation:
    """A function, and where its calls run.

    `is_everywhere` says whether the function is on every node. `is_delegated` says whether Citus
    runs each call on the node of the partition that the call names. `is_forced` says whether Citus
    does so even inside a transaction of the caller.
    """

    name: str
    is_everywhere: bool
    is_delegated: bool
    is_forced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A partition, its shard of ff.execution, and the node that has this shard."""

    partition: int
    shard_id: int
    node: str


async def has_citus(connection: Connection) -> bool:
    """Return whether the database has the extension Citus.

    If the extension is missing, the other queries on Citus in this module fail.
    """
    return bool(await connection.fetchval(HAS_CITUS))


async def read_tables(connection: Connection) -> tuple[Table, ...]:
    return tuple(
        Table(
            name=row["name"],
            wanted=_wanted(row["name"], row["is_partitioned"]),
            kind=None if row["kind"] is None else TableKind(row["kind"]),
            has_leftovers=row["has_leftovers"],
            is_analyzed=row["is_analyzed"],
        )
        for row in await connection.fetch(_READ_TABLES)
    )


async def has_distributed_tables(connection: Connection) -> bool:
    """Return whether any table was distributed by `db distribute`.

    Tables that are only on the coordinator do not count, because Citus can add such tables to its
    metadata by itself.
    """
    if not await has_citus(connection):
        return False
    kinds = {table.kind for table in await read_tables(connection)}
    return not kinds.isdisjoint({TableKind.PARTITIONED, TableKind.REFERENCE})


async def read_delegations(connection: Connection) -> tuple[Delegation, ...]:
    return tuple(
        Delegation(
            name=row["name"],
            is_everywhere=row["is_everywhere"],
            is_delegated=bool(row["is_delegated"]),
            is_forced=bool(row["is_forced"]),
        )
        for row in await connection.fetch(_READ_DELEGATIONS)
    )


async def read_locations(connection: Connection, partitions: int) -> tuple[Location, ...]:
    return tuple(
        Location(partition=row["partition"], shard_id=row["shard_id"], node=row["node"])
        for row in await connection.fetch(_READ_PARTITIONS, partitions)
    )


async def count_partitions(connection: Connection) -> int:
    return int(await connection.fetchval(_READ_NUMBER))


async def count_generations(connection: Connection) -> int:
    """Count the partitions for which ff.event_generation names a node."""
    return int(await connection.fetchval(_COUNT_GENERATIONS))


def distributing(tables: Iterable[Table], shards: int) -> Iterator[tuple[str, list[Labelled]]]:
    """Yield the statements that distribute all tables that are not distributed yet.

    The statements come in groups, each as (title, statements). A group may be empty.
    """
    plain = [table for table in tables if table.kind is None]
    yield (
        "reference tables",
        [
            (f"ff.{table.name}, on every node", _REFERENCE.format(name=table.name))
            for table in plain
            if table.wanted is TableKind.REFERENCE
        ],
    )
    yield (
        "tables of the coordinator",
        [
            (f"ff.{table.name}, on the coordinator", _on_the_coordinator(table.name))
            for table in plain
            if table.wanted is TableKind.COORDINATOR
        ],
    )
    partitioned = [table.name for table in plain if table.wanted is TableKind.PARTITIONED]
    if "execution" in partitioned:
        first = ("ff.execution, by partition", _FIRST.format(shards=shards))
        yield "ff.execution", [first]
    yield (
        "tables beside ff.execution",
        [
            (f"ff.{name}, beside ff.execution", _COLOCATED.format(name=name))
            for name in partitioned
            if name != "execution"
        ],
    )


def _on_the_coordinator(name: str) -> str:
    text = _COORDINATOR.format(name=name)
    return text + _COUNT_ON if name == "worker_event" else text


def emptying(tables: Iterable[Table]) -> Iterator[Labelled]:
    """Yield the statements that delete the old local rows of distributed tables."""
    for table in tables:
        # Run this after `distributing`: a table is emptied only after it was distributed.
        if table.has_leftovers and table.wanted is not TableKind.COORDINATOR:
            yield f"ff.{table.name}, old copy", _LEFTOVERS.format(name=table.name)


def registering(library: Library) -> Iterator[Labelled]:
    """Yield the statements that put every function on every node.

    Calls of a public function with the argument `p_partition_key` are also delegated: Citus runs
    each call on the node of its partition. Run the statements in the transaction that creates the
    functions, because a function that is created again silently loses its delegation.
    """
    for name, is_delegated in functions(library).items():
        if not is_delegated:
            yield f"ff.{name}, on every node", _EVERYWHERE.format(name=name)
        else:
            forced = ", force_delegation => true" if name in FORCED_FUNCTIONS else ""
            yield f"ff.{name}, delegated", _DELEGATED.format(name=name, forced=forced)


def opening_installation(query: str) -> Iterator[Labelled]:
    """Yield the statements that let every role of flowfabric read the view ff.installation.

    `query` is the query that the view would have on a single server.
    """
    yield "ff.read_installation, created", _READ_INSTALLATION.format(query=query)
    yield "ff.installation, created", _INSTALLATION


def functions(library: Library) -> dict[str, bool]:
    """Map the name of each function of a library to whether its calls must be delegated."""
    found = {}
    for file in library.files:
        for name, key in _FUNCTION.findall(file.text):
            found[name] = bool(key) and not name.startswith("_")
    return found


def lost_delegations(library: Library, found: Iterable[Delegation]) -> list[str]:
    """Return the functions that are not on every node or are not delegated as they should be."""
    wanted = functions(library)
    return [
        one.name
        for one in found
        if one.name in wanted
        and (
            not one.is_everywhere
            or one.is_delegated is not wanted[one.name]
            or one.is_forced is not (one.name in FORCED_FUNCTIONS)
        )
    ]


def declaring() -> Labelled:
    """Return the statement that marks this database as distributed."""
    return "distributed", _IS_DISTRIBUTED


def beginning_generations(partitions: int) -> Labelled:
    return "generations of events", _GENERATIONS.format(partitions=partitions)


def analyzing(tables: Iterable[Table]) -> Iterator[Labelled]:
    """Yield the statements that renew the planner statistics of tables, on all nodes."""
    for table in tables:
        # `grant` is the one table whose name is a keyword of SQL.
        name = '"grant"' if table.name == "grant" else table.name
        yield f"ff.{table.name}, analyzed", _ANALYZE.format(name=name)


def _wanted(name: str, is_partitioned: bool) -> TableKind:
    if name in COORDINATOR_TABLES:
        return TableKind.COORDINATOR
    return TableKind.PARTITIONED if is_partitioned else TableKind.REFERENCE
