"""Inspect a database as its operator.

Queries are read-only. Each statement has its own snapshot, so two statements may see different
data.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

import asyncpg

from flowfabric.core.errors import ConnectionLost
from flowfabric.db import call
from flowfabric.db.functions import OPEN_CURSOR, READ_EVENTS

if TYPE_CHECKING:
    from flowfabric.db.connection import Connection
    from flowfabric.db.functions import Statement

Rows: TypeAlias = list[asyncpg.Record]

PAGE = 10_000

# Tables whose rows belong to executions. A narrowed query reads, from these tables, only the rows
# of the given executions. It reads all other tables, and tables with quoted names, in full.
_OWNED = re.compile(
    r"\bff\.(execution|execution_body|attempt|step|event|grant|flow|edge|edge_group|stream"
    r"|stream_chunk)\b"
)
_NARROW = """\
with {tables}
select * from (
{text}
) narrowed
"""
_NARROW_TABLE = """\
one_{name} as materialized (
  select x.* from ff.{name} x where x.partition_key = $1::smallint and x.{column} = any({ids}))"""
_SCOPES = {
    # The given executions and their downstream members: an end also changes the edges and groups of
    # downstream members.
    "concerned": """\
concerned as materialized (
  select unnest($2::uuid[]) as id
  union
  select d.downstream_id from ff.edge d
  where d.partition_key = $1::smallint and d.upstream_id = any($2::uuid[]))""",
    # The flows of the given executions. A given id may also be the id of a flow: the event of a
    # cancelled flow carries the flow's id in place of an execution id.
    "concerned_flow": """\
concerned_flow as materialized (
  select unnest($2::uuid[]) as id
  union
  select d.flow_id from ff.execution d
  where d.partition_key = $1::smallint and d.execution_id = any($2::uuid[])
    and d.flow_id is not null)""",
}
_NARROW_BY = {
    "flow": ("flow_id", "concerned_flow"),
    "edge": ("downstream_id", "concerned"),
    "edge_group": ("downstream_id", "concerned"),
}

_PARTITIONED = re.compile(
    r"\bff\.(approval|attempt|cancel_backlog|cancel_backlog_member|claim_slot|edge|edge_group|event"
    r"|event_generation|event_trim|execution|execution_body|flow|grant|idempotency_key|kept_result"
    r"|partition|run_wait|signal|signal_inbox|step|stream|stream_chunk|stream_summary|suspension"
    r"|minute|minute_position|trim_mark|trim_position|waitpoint|fair_key|fair_lane|gate|gate_ticket"
    r"|gate_release|line)\b"
)
_IN_PARTITION = r"(select x.* from ff.\1 x where x.partition_key = $1::smallint)"
_ONE_PARTITION = """\
one_{name} as materialized (
  select x.* from ff.{name} x where x.partition_key = $1::smallint)"""

# Materialized: otherwise the limit makes the planner prefer a plan that returns a first row early.
_AT_MOST = """\
with found as materialized (
{text}
)
select * from found limit {limit}
"""


class QueryFailed(Exception):
    """The server could not answer a query, but the connection works."""


@cache
def text_of(path: str) -> str:
    """Return the text of a query, given its path below `sql/doctor`."""
    return (files("flowfabric") / "sql" / "doctor" / path).read_text(encoding="utf-8")


def paths_in(folder: str) -> list[str]:
    """List the queries in a folder below `sql/doctor`, sorted by name."""
    entries = (files("flowfabric") / "sql" / "doctor" / folder).iterdir()
    return sorted(f"{folder}/{entry.name}" for entry in entries if entry.name.endswith(".sql"))


def together(texts: Iterable[str]) -> str:
    """Combine queries into one query that returns the rows of all of them."""
    return "\nunion all\n".join(f"select * from (\n{text}\n) q{n}" for n, text in enumerate(texts))


def narrowed(text: str) -> str:
    """Return the query for some executions only: $1 is their partition, and $2 lists their ids.

    Each table of executions is read once, even if the query uses the table several times.
    """
    names = sorted(set(_OWNED.findall(text)))
    tables: dict[str, str] = {}
    for name in names:
        column, scope = _NARROW_BY.get(name, ("execution_id", None))
        ids = "$2::uuid[]"
        if scope is not None:
            tables[scope] = _SCOPES[scope]
            ids = f"array(select c.id from {scope} c)"
        tables[name] = _NARROW_TABLE.format(name=name, column=column, ids=ids)
    return _NARROW.format(tables=",\n".join(tables.values()), text=_OWNED.sub(r"one_\1", text))


def in_partition(text: str) -> tuple[str, str]:
    """Return two forms of a query, both limited to partition $1.

    Use the two forms if a cluster cannot run the query over all nodes. The first form runs on the
    node of the partition. If the first form fails, too, use the second form: it runs on the
    coordinator, which fetches the rows.
    """
    names = sorted(set(_PARTITIONED.findall(text)))
    tables = ",\n".join(_ONE_PARTITION.format(name=name) for name in names)
    fetched = _NARROW.format(tables=tables, text=_PARTITIONED.sub(r"one_\1", text))
    return _PARTITIONED.sub(_IN_PARTITION, text), fetched


def at_most(text: str, limit: int) -> str:
    return _AT_MOST.format(text=text, limit=limit)


async def look(connection: Connection, text: str, *args: Any) -> Rows:
    """Run one query in a separate read-only transaction."""
    try:
        async with connection.transaction(isolation="read_committed", readonly=True):
            await connection.fetch(text_of("settings.sql"))
            return await connection.fetch(text, *args)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        if connection.is_closed():
            raise ConnectionLost(f"Lost the connection to the database: {error}") from error
        raise QueryFailed(str(error)) from error


async def open_cursor(connection: Connection, partition: int, since: Any) -> str:
    """Return a new cursor in the events of a partition.

    The cursor stands before the first event at or after the time `since`. If `since` is None, the
    cursor stands at the end of the events.
    """
    rows = await _engine(connection, OPEN_CURSOR, partition_key=partition, since=since, grace=None)
    return str(rows[0]["open_cursor"])


async def changed_since(
    connection: Connection, partition: int, cursor: str
) -> tuple[set[UUID], int, str]:
    """Read all events of a partition after the cursor.

    Return the ids of their executions, the number of events, and the cursor at the end.
    """
    ids: set[UUID] = set()
    number = 0
    while True:
        rows = await _engine(
            connection,
            READ_EVENTS,
            partition_key=partition,
            namespace=None,
            cursor=cursor,
            limit=PAGE,
            kinds=None,
            lanes=None,
            tasks=None,
            execution_ids=None,
            instance_tags=None,
        )
        ids.update(row["execution_id"] for row in rows[:-1])
        number += len(rows) - 1
        cursor = rows[-1]["next_cursor"]
        if not rows[-1]["has_more"]:
            return ids, number, cursor


async def _engine(connection: Connection, statement: Statement, **arguments: Any) -> Sequence[Any]:
    try:
        return await call.invoke(connection, statement, statement.bind(arguments))
    except Exception as error:
        if call.lost(error):
            raise ConnectionLost(f"Lost the connection to the database: {error}") from error
        raise
