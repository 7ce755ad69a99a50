"""Migrate a database to the schema of this release.

First apply the numbered steps and record each in ff.schema_step, then re-create the library as a
whole. A process also checks here whether it can use the schema of its database.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import perf_counter
from typing import TYPE_CHECKING, Literal, TypeAlias

import asyncpg

from flowfabric.core.errors import (
    MigrationFailed,
    RetryExhausted,
    SchemaMismatch,
    SchemaMissing,
    StepEdited,
    UnsupportedServer,
)
from flowfabric.db import citus
from flowfabric.db.grants import APP_ROLE, are_missing, grant_all, text_array
from flowfabric.db.library import Library, Source, Step, defined_names, package_source

if TYPE_CHECKING:
    from flowfabric.db.connection import Connection

COMMAND = "flowfabric db migrate"
SUPPORTED_SERVERS = range(15, 19)

# The letters "ffschema" as a number. Advisory locks are per database, so one number is enough.
MIGRATION_LOCK = 0x6666_7363_6865_6D61
MIGRATION_POLL = timedelta(milliseconds=100)

# A session that waits for a table lock blocks all sessions after it, so each wait is short.
LOCK_TIMEOUT = timedelta(seconds=2)
LOCK_TRIES = 5
LOCK_PAUSE = timedelta(milliseconds=250)

RETIREMENT = timedelta(seconds=1)
"""How long a replaced function stays, for callers that have already looked it up."""

_INSTALLATION = """\
select
  s.step,
  s.name,
  s.checksum,
  s.breaking,
  s.applied_at,
  (select m.value::integer from ff.meta m where m.name = 'library_version') as library_version,
  (select m.value from ff.meta m where m.name = 'library_hash') as library_hash,
  p.partitions,
  -- A raised number applies to new ids only after a while: by then every process has read it.
  case when p.raised_at > clock_timestamp() then p.partitions_before else p.partitions end
    as minted_partitions,
  p.partitions_of_keys as keyed_partitions,
  exists (select from ff.meta m where m.name = 'distributed' and m.value = 'true') as is_distributed
from (
  select
    max(v.number) filter (where m.name = 'partitions') as partitions,
    max(v.number) filter (where m.name = 'partitions_before') as partitions_before,
    max(m.value) filter (where m.name = 'partitions_raised_at')::timestamptz as raised_at,
    max(v.number) filter (where m.name = 'partitions_of_keys') as partitions_of_keys
  from ff.meta m
  -- A value that is no number is unknown, so that the doctor can still read the rest.
  cross join lateral (
    select case when m.value ~ '^[0-9]{1,5}$' then m.value::integer end as number) v) p
left join ff.schema_step s on true"""

_BOOTSTRAP = f"""\
create schema if not exists ff;

create table if not exists ff.schema_step (
  step       integer     primary key,
  name       text        not null,
  checksum   text        not null,
  breaking   boolean     not null,
  applied_at timestamptz not null default clock_timestamp()
);

create table if not exists ff.meta (
  name  text primary key,
  value text
);

insert into ff.meta (name, value)
values ('partitions', '1'), ('partitions_before', '1'), ('partitions_raised_at', null),
  ('partitions_of_keys', '1'), ('instance_tag_key', null)
on conflict (name) do nothing;

-- The installed steps and library, for roles that may not read tables. At least one row.
create or replace view ff.installation as
{_INSTALLATION};
"""
_BOOTSTRAP_VIEWS = frozenset({"installation"})
_BOOTSTRAP_FUNCTIONS = frozenset({citus.READ_INSTALLATION})

_IS_BOOTSTRAPPED = "select pg_catalog.to_regclass('ff.installation') is not null"

# False if the view does not exist, or is from an earlier release and lacks these two columns.
_IS_BOOTSTRAP_CURRENT = """\
select count(*) = 2 from pg_catalog.pg_attribute a
where a.attrelid = pg_catalog.to_regclass('ff.installation')
  and a.attname in ('keyed_partitions', 'is_distributed')
"""

# In an earlier release, the view has no column is_distributed, and no table is distributed.
_READ_INSTALLATION = """\
select i.step, i.name, i.checksum, i.breaking, i.applied_at, i.library_version, i.library_hash,
       {is_distributed} as is_distributed
from ff.installation i
order by i.step
"""

_RECORD_STEP = """\
insert into ff.schema_step (step, name, checksum, breaking)
values ({number}, '{name}', '{checksum}', {breaking});
"""

RECORD_LIBRARY = """\
insert into ff.meta (name, value)
values ('library_version', '{version}'), ('library_hash', '{hash}')
on conflict (name) do update set value = excluded.value;
"""

_TRANSACTION_SETTINGS = """\
set local search_path = '';
set local check_function_bodies = off;
set local client_min_messages = warning;
set local lock_timeout = {lock_timeout};
"""

# Time limits of a role are meant for its queries, not for building an index or copying a table.
_LIFT_TIME_LIMITS = """\
select pg_catalog.set_config(s.name, '0', true)
from pg_catalog.pg_settings s
where s.name in ('statement_timeout', 'transaction_timeout')
"""

# Outside a transaction, `set local` has no effect. A lock timeout is not needed there: a concurrent
# index build waits for other transactions by design, and blocks no session.
NO_TIME_LIMITS = {"statement_timeout": "0", "transaction_timeout": "0", "lock_timeout": "0"}
_SESSION_SETTINGS = {"search_path": "", **NO_TIME_LIMITS}

_READ_SETTINGS = "select s.name, s.setting from pg_catalog.pg_settings s where s.name = any($1)"
_CHANGE_SETTING = "select pg_catalog.set_config($1, $2, false)"

# When we commit, a caller may have looked up a function but not entered it yet. If the function
# were dropped, the call would fail with "cache lookup failed". Therefore the old function is
# renamed, keeps its rights, and is dropped a moment later. A function with dependents or overloads
# is not renamed: the drop statement in its file reports the problem.
_RETIRE_FUNCTIONS_EXCEPT = """\
do $$
declare
  v_function record;
begin
  for v_function in
    select p.oid, p.oid::regprocedure::text as signature
    from pg_proc p
    where p.pronamespace = 'ff'::regnamespace
      and p.proname <> all ({kept})
      and p.proname not like '\\_retired\\_%'
      and not exists (
        select from pg_depend d
        where d.refclassid = 'pg_proc'::regclass and d.refobjid = p.oid
          or d.classid = 'pg_proc'::regclass and d.objid = p.oid and d.deptype = 'e'
      )
      and not exists (
        select from pg_proc o
        where o.pronamespace = p.pronamespace and o.proname = p.proname and o.oid <> p.oid
      )
  loop
    execute format(
      'alter routine %s rename to %I', v_function.signature, '_retired_' || v_function.oid
    );
  end loop;
end
$$;
"""

_ARE_FUNCTIONS_RETIRED = """\
select exists (
  select
  from pg_catalog.pg_proc p
  join pg_catalog.pg_namespace n on n.oid = p.pronamespace
  where n.nspname = 'ff' and p.proname like '\\_retired\\_%'
)
"""

_DROP_RETIRED_FUNCTIONS = """\
do $$
declare
  v_functions text;
begin
  select string_agg(p.oid::regprocedure::text, ', ') into v_functions
  from pg_proc p
  where p.pronamespace = 'ff'::regnamespace and p.proname like '\\_retired\\_%';
  if v_functions is not null then
    execute 'drop routine ' || v_functions;
  end if;
end
$$;
"""

# Drop all functions in one statement, because they may depend on one another.
_DROP_FUNCTIONS_EXCEPT = """\
do $$
declare
  v_functions text;
begin
  select string_agg(p.oid::regprocedure::text, ', ') into v_functions
  from pg_proc p
  where p.pronamespace = 'ff'::regnamespace
    and p.proname <> all ({kept})
    and p.proname not like '\\_retired\\_%'
    and not exists (
      select from pg_depend d
      where d.classid = 'pg_proc'::regclass and d.objid = p.oid and d.deptype = 'e'
    );
  if v_functions is not null then
    execute 'drop routine ' || v_functions;
  end if;
end
$$;
"""

_DROP_VIEWS_EXCEPT = """\
do $$
declare
  v_views text;
begin
  select string_agg(c.oid::regclass::text, ', ') into v_views
  from pg_class c
  where c.relnamespace = 'ff'::regnamespace
    and c.relkind = 'v'
    and c.relname <> all ({kept})
    and not exists (
      select from pg_depend d
      where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'e'
    );
  if v_views is not null then
    execute 'drop view ' || v_views;
  end if;
end
$$;
"""

_CHECK_SERVER = f"""\
do $$
begin
  if current_setting('server_version_num')::integer / 10000
    not between {SUPPORTED_SERVERS[0]} and {SUPPORTED_SERVERS[-1]}
  then
    raise exception 'flowfabric needs PostgreSQL {SUPPORTED_SERVERS[0]} to {SUPPORTED_SERVERS[-1]}';
  end if;
end
$$;
"""

_CHECK_STARTING_POINT = """\
do $$
declare
  v_is_begun boolean;
begin
  if (select count(*) from ff.schema_step s where s.step <= {from_step}) <> {from_step} then
    raise exception 'this script starts after step {from_step}: run the earlier steps first';
  end if;
  if exists (select from ff.schema_step s where s.step > {last_step})
    or exists (select from ff.installation i where i.library_version > {library})
  then
    raise exception 'this database is newer than this script';
  end if;
  if (select i.is_distributed from ff.installation i limit 1) <> {is_distributed} then
    raise exception 'this script is for {tables} tables';
  end if;
  if not {is_distributed} and to_regclass('pg_catalog.pg_dist_partition') is not null then
    execute 'select exists (
        select from pg_catalog.pg_dist_partition p
        join pg_catalog.pg_class c on c.oid = p.logicalrelid
        where c.relnamespace = ''ff''::regnamespace
          and (p.partmethod = ''h'' or p.repmodel = ''t''))' into v_is_begun;
    if v_is_begun then
      raise exception 'flowfabric db distribute was interrupted: finish it first';
    end if;
  end if;
end
$$;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One progress message of a migration. `duration` says how long finished work took."""

    subject: str
    happened: str
    duration: timedelta | None = None

    def __str__(self) -> str:
        took = (
            ""
            if self.duration is None
            else f" ({self.duration / timedelta(milliseconds=1):.0f} ms)"
        )
        return f"{self.subject}: {self.happened}{took}"


Report: TypeAlias = Callable[[Progress], None]
Labelled: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStatus:
    """A schema step, and whether it is applied, pending, edited or from a newer release."""

    number: int
    name: str
    state: Literal["applied", "pending", "edited", "newer"]
    is_breaking: bool
    is_released: bool
    applied_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaStatus:
    """The schema that a database has, and the schema that this release needs."""

    has_schema: bool
    steps: tuple[StepStatus, ...]
    library_needed: int
    library_found: int | None
    library_hash_needed: str
    library_hash_found: str | None
    is_distributed: bool = False

    @property
    def step_needed(self) -> int:
        return max((step.number for step in self.steps if step.state != "newer"), default=0)

    @property
    def step_found(self) -> int:
        return max((step.number for step in self.steps if step.applied_at is not None), default=0)

    @property
    def pending(self) -> tuple[int, ...]:
        return tuple(step.number for step in self.steps if step.state == "pending")

    @property
    def is_newer(self) -> bool:
        """Return whether a later release of flowfabric has migrated this database."""
        return (self.library_found or 0) > self.library_needed or any(
            step.state == "newer" for step in self.steps
        )

    @property
    def is_library_stale(self) -> bool:
        """Return whether the installed library differs from the library of this release."""
        return (self.library_found, self.library_hash_found) != (
            self.library_needed,
            self.library_hash_needed,
        )

    def problem(self) -> SchemaMismatch | None:
        """Return why a process of this release must not run on this database.

        Return None if the process can run.
        """
        if refusal := self.refusal():
            return refusal
        if not self.has_schema or (self.step_found == 0 and self.library_found is None):
            return SchemaMissing(
                "The database has no flowfabric schema yet. "
                f"Needed: {_installation(self.step_needed, self.library_needed)}. "
                f"Create it with: {COMMAND}"
            )
        if self.pending or (self.library_found or 0) < self.library_needed:
            return SchemaMismatch(
                "The database is too old for this process. "
                f"{self._found_and_needed()} Upgrade it with: {COMMAND}"
            )
        return None

    def refusal(self) -> SchemaMismatch | None:
        """Return the reason why this release cannot migrate this database, or None.

        The reason is an edited step, or a step of a later release that is marked breaking.
        """
        for step in self.steps:
            if step.state == "edited":
                return _edited(step)
            if step.state == "newer" and step.is_breaking:
                return SchemaMismatch(
                    f"The database is too new for this process: step {step.number} ({step.name}) "
                    f"is marked breaking and is unknown here. {self._found_and_needed()} "
                    f"Upgrade flowfabric here; `{COMMAND}` does not undo steps."
                )
        return None

    def _found_and_needed(self) -> str:
        return (
            f"Found: {_installation(self.step_found, self.library_found)}. "
            f"Needed: {_installation(self.step_needed, self.library_needed)}."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """The changes that one call of `migrate` made, and the schema after it."""

    steps: tuple[int, ...]
    is_library_recreated: bool
    status: SchemaStatus


def _ignore(_: Progress) -> None:
    pass


async def migrate(
    connection: Connection,
    *,
    downgrade: bool = False,
    report: Report = _ignore,
    source: Source | None = None,
) -> Migration:
    """Apply pending steps and the library.

    Only one migration runs at a time. The connection must be outside a transaction and keep its
    session (no transaction pooling). If the database has a newer library, that library is kept. But
    if `downgrade` is set, the library of this release replaces it. Schema steps are never undone.
    """
    if connection.is_in_transaction():
        raise ValueError("migrate() opens its own transactions: call it outside a transaction.")
    source = source or package_source()
    steps = source.steps()
    await _check_server(connection)
    async with alone(connection, report):
        before = await status(connection, source=source)
        if refusal := before.refusal():
            raise refusal
        if not before.is_distributed and await citus.has_distributed_tables(connection):
            raise _interrupted(before)
        library = source.library(distributed=before.is_distributed)
        if not await connection.fetchval(_IS_BOOTSTRAP_CURRENT):
            await in_transaction(connection, [("schema ff", _BOOTSTRAP)], report)
        pending = [step for step in steps if step.number in before.pending]
        is_on_cluster = before.is_distributed and await citus.has_citus(connection)
        for step in pending:
            await _apply_step(connection, step, report, one_by_one=is_on_cluster)
        if is_on_cluster:
            await _distribute_tables(connection, report)
        is_recreated = await _apply_library(
            connection, library, steps, before, report, downgrade=downgrade, register=is_on_cluster
        )
        if is_on_cluster and not is_recreated and not before.is_newer:
            await _register_again(connection, library, report)
        if is_on_cluster:
            await _begin_generations(connection, report)
        if not is_recreated and await connection.fetchval(are_missing(library)):
            await in_transaction(connection, [("grants", grant_all(library))], report)
            report(Progress(subject="grants", happened="given"))
        if is_on_cluster:
            await _analyze_new_tables(connection, report)
        await drop_retired_functions(connection, report)
        return Migration(
            steps=tuple(step.number for step in pending),
            is_library_recreated=is_recreated,
            status=await status(connection, source=source),
        )


async def drop_retired_functions(connection: Connection, report: Report) -> None:
    """Wait a second, then drop the functions that a new library has replaced.

    During this second, a caller that looked up an old function before the migration can still
    call it.
    """
    if await are_functions_retired(connection):
        await asyncio.sleep(RETIREMENT.total_seconds())
        await in_transaction(connection, [("old functions", _DROP_RETIRED_FUNCTIONS)], report)


async def are_functions_retired(connection: Connection) -> bool:
    """Return whether any function that a new library has replaced is not dropped yet."""
    return bool(await connection.fetchval(_ARE_FUNCTIONS_RETIRED))


def dropping_retired_functions() -> Iterator[str]:
    """Yield the SQL of `drop_retired_functions`, for a script."""
    yield _perform(f"pg_sleep({RETIREMENT.total_seconds()})")
    yield _block([_DROP_RETIRED_FUNCTIONS])


async def status(connection: Connection, *, source: Source | None = None) -> SchemaStatus:
    """Compare a database with the SQL of this release, without changing anything."""
    source = source or package_source()
    ours = {step.number: step for step in source.steps()}
    try:
        has_schema: bool = await connection.fetchval(_IS_BOOTSTRAPPED)
        is_current: bool = await connection.fetchval(_IS_BOOTSTRAP_CURRENT)
        query = _READ_INSTALLATION.format(
            is_distributed="i.is_distributed" if is_current else "false"
        )
        rows = await connection.fetch(query) if has_schema else []
    except asyncpg.InsufficientPrivilegeError as error:
        raise SchemaMismatch(
            f"This role may not read schema ff ({error}). Create the role {APP_ROLE}, make this "
            f"role a member of it, and run as the owner of the schema: {COMMAND}"
        ) from error
    applied = {row["step"]: row for row in rows if row["step"] is not None}
    is_distributed = bool(rows) and rows[0]["is_distributed"]
    library = source.library(distributed=is_distributed)
    return SchemaStatus(
        has_schema=has_schema,
        steps=tuple(
            _step_status(number, ours.get(number), applied.get(number))
            for number in sorted(ours.keys() | applied.keys())
        ),
        library_needed=library.version,
        library_found=rows[0]["library_version"] if rows else None,
        library_hash_needed=library.hash,
        library_hash_found=rows[0]["library_hash"] if rows else None,
        is_distributed=is_distributed,
    )


async def verify(connection: Connection, *, source: Source | None = None) -> SchemaStatus:
    """Raise `SchemaMismatch` if a process of this release must not run on this database."""
    found = await status(connection, source=source)
    if problem := found.problem():
        raise problem
    return found


def sql(from_step: int = 0, *, distributed: bool = False, source: Source | None = None) -> str:
    """Return the SQL of `migrate` as a psql script.

    The script is for a database that has the schema steps from 1 to `from_step`; 0 means none.
    """
    source = source or package_source()
    steps, library = source.steps(), source.library(distributed=distributed)
    if not 0 <= from_step <= len(steps):
        raise ValueError(f"There is no step {from_step}: steps go from 1 to {len(steps)}.")
    return "\n".join(_script(steps, library, from_step))


def _script(steps: tuple[Step, ...], library: Library, from_step: int) -> Iterator[str]:
    yield f"-- flowfabric: {_installation(len(steps), library.version)}; run it with psql.\n"
    yield "\\set ON_ERROR_STOP on\n"
    yield "set search_path = '';\n"
    yield _perform(f"pg_advisory_lock({MIGRATION_LOCK})")
    yield _CHECK_SERVER
    yield _block([_BOOTSTRAP])
    yield _CHECK_STARTING_POINT.format(
        from_step=from_step,
        last_step=len(steps),
        library=library.version,
        is_distributed=str(library.is_distributed).lower(),
        tables="distributed" if library.is_distributed else "plain",
    )
    for step in steps[from_step:]:
        yield f"-- schema/{step.file}"
        if step.is_transactional:
            # Record the step first: a second run then stops here, before the statements of the
            # step.
            yield _block([_record(step), step.text])
        else:
            yield step.text
            yield _record(step)
    if library.is_distributed:
        yield f"select ({citus.HAS_CITUS.strip()}) as is_on_cluster \\gset\n"
    yield _block(list(_library_script(library, steps)))
    yield from dropping_retired_functions()
    yield _perform(f"pg_advisory_unlock({MIGRATION_LOCK})")


def _library_script(library: Library, steps: tuple[Step, ...]) -> Iterator[str]:
    """Yield the statements of the library. Statements for Citus run only on a cluster."""
    distributing = {*citus.opening_installation(_INSTALLATION), *citus.registering(library)}
    register = library.is_distributed
    for label, text in library_statements(library, steps, register=register):
        statement = f"-- {label}\n{text}"
        if (label, text) in distributing:
            statement = f"\\if :is_on_cluster\n{statement}\n\\endif"
        yield statement


def _perform(call: str) -> str:
    """Return SQL that calls a function and discards the result, so that psql prints nothing."""
    return f"do $$ begin perform {call}; end $$;\n"


def _block(statements: list[str]) -> str:
    return "\n".join(["begin;", transaction_settings(), *statements, "commit;\n"])


def transaction_settings() -> str:
    milliseconds = LOCK_TIMEOUT // timedelta(milliseconds=1)
    return _TRANSACTION_SETTINGS.format(lock_timeout=milliseconds)


def _record(step: Step) -> str:
    return _RECORD_STEP.format(
        number=step.number,
        name=step.name,
        checksum=step.checksum,
        breaking=str(step.is_breaking).lower(),
    )


def library_statements(
    library: Library, steps: tuple[Step, ...], *, register: bool = False
) -> Iterator[Labelled]:
    """Yield the statements that install a library.

    If `register` is true, also yield the statements that distribute its functions over a cluster.
    """
    created = defined_names(step.text for step in steps)
    defined = defined_names(file.text for file in library.files)
    kept = text_array(created.functions | defined.replaceable_functions | _BOOTSTRAP_FUNCTIONS)
    yield "old functions", _RETIRE_FUNCTIONS_EXCEPT.format(kept=kept)
    for file in library.files:
        if library.is_distributed:
            yield from ((file.path, statement) for statement in file.statements())
        else:
            yield file.path, file.text
    kept = text_array(created.views | defined.views | _BOOTSTRAP_VIEWS)
    yield "orphan views", _DROP_VIEWS_EXCEPT.format(kept=kept)
    kept = text_array(created.functions | defined.functions | _BOOTSTRAP_FUNCTIONS)
    yield "orphan functions", _DROP_FUNCTIONS_EXCEPT.format(kept=kept)
    if register:
        yield from citus.opening_installation(_INSTALLATION)
        yield from citus.registering(library)
    yield "grants", grant_all(library)
    yield "ledger", RECORD_LIBRARY.format(version=library.version, hash=library.hash)


async def _apply_step(
    connection: Connection, step: Step, report: Report, *, one_by_one: bool
) -> None:
    label = f"schema/{step.file}"
    started = perf_counter()
    if step.is_transactional:
        texts = step.statements() if one_by_one else [step.text]
        statements = [("ledger", _record(step)), *((label, text) for text in texts)]
        await in_transaction(connection, statements, report)
    else:
        await _outside_transaction(connection, label, step)
        await in_transaction(connection, [("ledger", _record(step))], report)
    report(Progress(subject=label, happened="applied", duration=_since(started)))


async def _apply_library(
    connection: Connection,
    library: Library,
    steps: tuple[Step, ...],
    before: SchemaStatus,
    report: Report,
    *,
    downgrade: bool,
    register: bool,
) -> bool:
    """Re-create the library, unless it is already installed. Return whether it was re-created.

    If the database is newer than this release, re-create the library only if `downgrade` is set.
    """
    started = perf_counter()
    subject = f"library {library.version}"
    if before.is_newer and not downgrade:
        found = _installation(before.step_found, before.library_found)
        happened = f"not applied, the database is newer ({found}); --downgrade would replace it"
        report(Progress(subject=subject, happened=happened))
        return False
    if not before.is_library_stale:
        return False
    statements = list(library_statements(library, steps, register=register))
    if before.is_newer:
        # `create or replace` cannot remove a column of a view, so drop newer views first.
        created = defined_names(step.text for step in steps)
        kept = text_array(created.views | _BOOTSTRAP_VIEWS)
        statements.insert(0, ("newer views", _DROP_VIEWS_EXCEPT.format(kept=kept)))
    await in_transaction(connection, statements, report)
    report(Progress(subject=subject, happened="created", duration=_since(started)))
    return True


async def _distribute_tables(connection: Connection, report: Report) -> None:
    """Distribute the tables that schema steps have added to a distributed database."""
    tables = await citus.read_tables(connection)
    # ff.execution exists already, so the number of shards does not matter.
    for _, statements in citus.distributing(tables, shards=1):
        await one_by_one(connection, statements, report, COMMAND)
    await one_by_one(
        connection, citus.emptying(await citus.read_tables(connection)), report, COMMAND
    )


async def _register_again(connection: Connection, library: Library, report: Report) -> None:
    """Delegate the functions again if one of them has lost its delegation.

    This can happen by a manual change, for example.
    """
    if citus.lost_delegations(library, await citus.read_delegations(connection)):
        started = perf_counter()
        await in_transaction(connection, list(citus.registering(library)), report)
        report(Progress(subject="functions", happened="delegated", duration=_since(started)))


async def _begin_generations(connection: Connection, report: Report) -> None:
    """Begin a generation of events in each partition without a node_id in ff.event_generation.

    Such partitions may exist after a manual change, for example.
    """
    partitions = await citus.count_partitions(connection)
    if await citus.count_generations(connection) < partitions:
        started = perf_counter()
        await in_transaction(connection, [citus.beginning_generations(partitions)], report)
        subject = "generations of events"
        report(Progress(subject=subject, happened="distributed", duration=_since(started)))


async def _analyze_new_tables(connection: Connection, report: Report) -> None:
    """Collect planner statistics on all nodes for the tables that have none yet."""
    new = [table for table in await citus.read_tables(connection) if not table.is_analyzed]
    async with changed_settings(connection, NO_TIME_LIMITS):
        await one_by_one(connection, citus.analyzing(new), report, COMMAND)


def _interrupted(before: SchemaStatus) -> MigrationFailed:
    """Return the error for a database that is only partly distributed.

    Such a database is not marked as distributed yet. So a migration would install the functions for
    one server, and these would fail on the tables that are already distributed.
    """
    release = "" if before.problem() is None else " and the release of flowfabric that began it"
    return MigrationFailed(
        f"This database is partly distributed: `{citus.COMMAND}` was interrupted. Nothing was "
        f"migrated. Finish it with the same number of partitions{release}: "
        f"{citus.COMMAND} --partitions N"
    )


async def one_by_one(
    connection: Connection, statements: Iterable[Labelled], report: Report, command: str
) -> None:
    """Run the statements one after the other, each by itself, and report each of them.

    The label of a statement has the form `subject, action`. If a statement fails, the error tells
    the reader to type `command` again.
    """
    for label, text in statements:
        started = perf_counter()
        subject, _, happened = label.partition(", ")
        try:
            await connection.execute(text)
        except asyncpg.PostgresError as error:
            if connection.is_closed():
                raise
            raise MigrationFailed(
                f"{subject}: {str(error).rstrip('.')}. Earlier changes stay. When the cause is "
                f"gone, type: {command}"
            ) from error
        report(Progress(subject=subject, happened=happened or "done", duration=_since(started)))


async def in_transaction(
    connection: Connection, statements: list[Labelled], report: Report
) -> None:
    """Run all statements in one transaction.

    If another session has a lock that a statement needs, try again a few times.
    """
    for tries_left in reversed(range(LOCK_TRIES)):
        label, text = "settings", ""
        try:
            async with connection.transaction():
                await connection.execute(transaction_settings() + _LIFT_TIME_LIMITS)
                for label, text in statements:  # noqa: B007 (which one failed)
                    await connection.execute(text)
            return
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as error:
            if not tries_left:
                raise RetryExhausted(
                    f"{label}: another session holds a lock that this change needs ({error}). "
                    f"The change was not applied. Find the session in pg_stat_activity, or run "
                    f"again when it is done: {COMMAND}"
                ) from error
            report(Progress(subject=label, happened="waiting: another session holds a lock"))
            await asyncio.sleep(LOCK_PAUSE.total_seconds() * (LOCK_TRIES - tries_left))
        except asyncpg.PostgresError as error:
            raise _failure(connection, label, text, error) from error


async def _outside_transaction(connection: Connection, label: str, step: Step) -> None:
    """Run the statements of a step one by one, outside a transaction.

    After a crash, the next migration runs the step from its first statement again. So each
    statement must be repeatable.
    """
    try:
        async with changed_settings(connection, _SESSION_SETTINGS):
            for statement in step.statements():
                await connection.execute(statement)
    except asyncpg.PostgresError as error:
        raise _failure(connection, label, "", error) from error


async def read_settings(connection: Connection, names: Iterable[str]) -> dict[str, str]:
    """Return the values of settings by name. Leave out settings that the server does not have."""
    rows = await connection.fetch(_READ_SETTINGS, list(names))
    found = {row["name"]: row["setting"] for row in rows}
    return {name: found[name] for name in names if name in found}


@asynccontextmanager
async def changed_settings(
    connection: Connection, settings: Mapping[str, str]
) -> AsyncIterator[None]:
    """Change settings of the session, and restore them at the end of the `async with` block.

    Settings that the server does not have are left out.
    """
    before = await read_settings(connection, settings)
    try:
        for name in before:
            await connection.execute(_CHANGE_SETTING, name, settings[name])
        yield
    finally:
        if not connection.is_closed():
            for name, value in before.items():
                await connection.execute(_CHANGE_SETTING, name, value)


def _failure(
    connection: Connection, label: str, text: str, error: asyncpg.PostgresError
) -> Exception:
    if connection.is_closed():
        # This is not an error of the SQL. The function that opened the connection reports it.
        return error
    where = label
    if text and error.position:
        where += f", line {text.count(chr(10), 0, int(error.position) - 1) + 1}"
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        return MigrationFailed(
            f"{where}: {error}. Run as the role that owns schema ff, or may create it: {COMMAND}"
        )
    return MigrationFailed(f"{where}: {error}")


@asynccontextmanager
async def alone(connection: Connection, report: Report) -> AsyncIterator[None]:
    """Lock out other migrations during the block, and let names resolve in pg_catalog only."""
    async with _own_path(connection), _alone(connection, report):
        yield


@asynccontextmanager
async def _own_path(connection: Connection) -> AsyncIterator[None]:
    """During the block, let names resolve in pg_catalog only.

    Otherwise a function that another role has put into the search path of the owner could run with
    the rights of the owner.
    """
    path = await connection.fetchval("select pg_catalog.current_setting('search_path')")
    await connection.execute("select pg_catalog.set_config('search_path', '', false)")
    try:
        yield
    finally:
        if not connection.is_closed():
            await connection.execute(_CHANGE_SETTING, "search_path", path)


@asynccontextmanager
async def _alone(connection: Connection, report: Report) -> AsyncIterator[None]:
    """Lock out other migrations during the block.

    If another session has the lock, try again and again to get it. A single statement that waits
    for the lock would keep a snapshot open, and block a `create index concurrently`.
    """
    is_reported = False
    while not await connection.fetchval("select pg_try_advisory_lock($1)", MIGRATION_LOCK):
        if not is_reported:
            report(Progress(subject="migration", happened="waiting: another migration is running"))
            is_reported = True
        await asyncio.sleep(MIGRATION_POLL.total_seconds())
    try:
        yield
    finally:
        if not connection.is_closed():
            await connection.execute("select pg_advisory_unlock($1)", MIGRATION_LOCK)


async def _check_server(connection: Connection) -> None:
    found = connection.get_server_version().major
    supported = f"{SUPPORTED_SERVERS[0]} to {SUPPORTED_SERVERS[-1]}"
    if found not in SUPPORTED_SERVERS:
        raise UnsupportedServer(
            f"flowfabric runs on PostgreSQL {supported}; this server is PostgreSQL {found}."
        )
    if await connection.fetchval("select pg_is_in_recovery()"):
        raise UnsupportedServer("This server is a read-only standby: migrate its primary instead.")


def _step_status(number: int, ours: Step | None, applied: asyncpg.Record | None) -> StepStatus:
    state: Literal["applied", "pending", "edited", "newer"]
    if applied is None:
        state = "pending"
    elif ours is None:
        state = "newer"
    else:
        state = "applied" if applied["checksum"] == ours.checksum else "edited"
    return StepStatus(
        number=number,
        name=ours.name if ours else applied["name"] if applied else "",
        state=state,
        is_breaking=ours.is_breaking if ours else bool(applied and applied["breaking"]),
        is_released=ours is None or ours.is_released,
        applied_at=applied["applied_at"] if applied else None,
    )


def _edited(step: StepStatus) -> StepEdited:
    file = f"schema/{step.number:04}_{step.name}"
    if step.is_released:
        return StepEdited(
            f"{file} was edited after its release: the database was migrated with another text. "
            f"Restore the file, put the change into a new step and run: {COMMAND}"
        )
    return StepEdited(
        f"{file} differs from the text that migrated this database. It is not released yet "
        f"(not in CHECKSUMS), so drop your development database, create it again and run: {COMMAND}"
    )


def _installation(step: int, library: int | None) -> str:
    return f"schema step {step}, {'no library' if library is None else f'library {library}'}"


def _since(started: float) -> timedelta:
    return timedelta(seconds=perf_counter() - started)
