"""A connection that stands in for one to the coordinator of a Citus cluster. It records the
statements that distribute something, and remembers what they would have done. It sends all other
statements to a real database, and does not imitate Citus."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from flowfabric.db import citus, distribute

_KINDS = {
    "create_reference_table": "reference",
    "citus_add_local_table_to_metadata": "coordinator",
    "create_distributed_table": "partitioned",
}
_CALL = re.compile(r"pg_catalog\.(\w+)\(\s*'ff\.(\w+)'")
_ANALYZE = re.compile(r'analyze ff\."?(\w+)"?;')
_TABLES = """\
select c.relname as name,
       exists (select from pg_attribute a
               where a.attrelid = c.oid and a.attname = 'partition_key') as is_partitioned
from pg_class c where c.relnamespace = 'ff'::regnamespace and c.relkind = 'r' order by 1
"""
_RECORDED = re.compile(
    r"create_reference_table|citus_add_local_table|create_distributed_|truncate_local_data"
    r"|get_shard_id|raise_partitions|^analyze|'distributed', 'true'"
    r"|create (or replace )?function ff\.|values \('library_version'"
)


class Killed(BaseException):
    """The process was killed. Nothing catches it."""


@dataclass
class Memory:
    """What the stand-in has been told, in transactions that have committed."""

    statements: list[str] = field(default_factory=list)
    kinds: dict[str, str] = field(default_factory=dict)
    emptied: set[str] = field(default_factory=set)
    analyzed: set[str] = field(default_factory=set)
    registered: dict[str, tuple[bool, bool]] = field(default_factory=dict)
    generations: int = 0
    version: str = "12.1-1"
    group: int = 0

    def copy(self) -> Memory:
        return replace(
            self,
            statements=[*self.statements],
            kinds={**self.kinds},
            emptied={*self.emptied},
            analyzed={*self.analyzed},
            registered={**self.registered},
        )


NODES = (
    {"groupid": 0, "host": "c", "port": 5432, "is_active": True, "has_metadata": True,
     "has_shards": False},
    {"groupid": 1, "host": "n1", "port": 5432, "is_active": True, "has_metadata": True,
     "has_shards": True},
)  # fmt: skip


class StandIn:
    """`kill_at` is the number of the recorded statement before which the process dies."""

    def __init__(self, connection: Any, memory: Memory, kill_at: int | None = None) -> None:
        self._connection = connection
        self._memory = memory
        self._present: Memory | None = None
        self._kill_at = kill_at
        self.count = 0
        self.nodes: tuple[dict[str, Any], ...] = NODES
        self.settings = " ".join(wanted[0] for wanted in distribute.NODE_SETTINGS.values())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    @property
    def _now(self) -> Memory:
        return self._present or self._memory

    @asynccontextmanager
    async def transaction(self) -> Any:
        self._present = self._memory.copy()
        try:
            async with self._connection.transaction():
                yield
            self._memory.__dict__.update(self._present.__dict__)
        finally:
            self._present = None

    async def execute(self, text: str, *args: Any) -> Any:
        if not _RECORDED.search(text):
            return await self._connection.execute(text, *args)
        self.count += 1
        if self.count == self._kill_at:
            self._connection.terminate()
            raise Killed
        self._now.statements.append(text)
        if "get_shard_id" in text:
            self._now.generations = int(re.search(r"0, (\d+) - 1", text)[1])  # type: ignore[index]
            return "DO"
        if match := _ANALYZE.fullmatch(text):
            self._now.analyzed.add(match[1])
            return "ANALYZE"
        match = _CALL.search(text)
        if match is None or match[1] == "create_distributed_function":
            if match is not None:
                is_delegated = "p_partition_key" in text
                self._now.registered[match[2]] = (is_delegated, "force_delegation" in text)
                return "SELECT 1"
            return await self._connection.execute(text, *args)
        what, table = match[1], match[2]
        if what == "truncate_local_data_after_distributing_table":
            self._now.emptied.add(table)
        else:
            assert table not in self._now.kinds, f"{table} is distributed already"
            self._now.kinds[table] = _KINDS[what]
        return "SELECT 1"

    async def fetchval(self, query: str, *args: Any) -> Any:
        answers = {
            citus.HAS_CITUS: True,
            distribute._READ_VERSION: self._now.version,
            distribute._READ_GROUP: self._now.group,
            citus._COUNT_GENERATIONS: self._now.generations,
        }
        if query in answers:
            return answers[query]
        if query == distribute._READ_SETTING:
            return distribute.COORDINATOR_SETTINGS[args[0]][0]
        return await self._connection.fetchval(query, *args)

    async def fetch(self, query: str, *args: Any) -> Any:
        if query == distribute._READ_NODES:
            return self.nodes
        if query == distribute._READ_UNREACHABLE:
            return ()
        if query == distribute._READ_SETTINGS:
            return [{"node": "n1:5432", "success": True, "result": self.settings}]
        if query == citus._READ_TABLES:
            return [
                {
                    "name": row["name"],
                    "is_partitioned": row["is_partitioned"],
                    "kind": self._now.kinds.get(row["name"]),
                    "has_leftovers": row["name"] in ("execution", "lane")
                    and row["name"] not in self._now.emptied,
                    "is_analyzed": row["name"] in self._now.analyzed,
                }
                for row in await self._connection.fetch(_TABLES)
            ]
        if query == citus._READ_DELEGATIONS:
            return [
                {
                    "name": name,
                    "is_everywhere": True,
                    "is_delegated": delegated,
                    "is_forced": forced,
                }
                for name, (delegated, forced) in self._now.registered.items()
            ]
        return await self._connection.fetch(query, *args)
