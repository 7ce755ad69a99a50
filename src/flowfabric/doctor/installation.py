"""X01 to X08: whether the server, the schema and the permissions support the guarantees."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Coroutine, Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from flowfabric.core.errors import SchemaMismatch
from flowfabric.db import citus, distribute
from flowfabric.db.inspection import QueryFailed, look, text_of
from flowfabric.db.library import Source, package_source
from flowfabric.db.migrate import SchemaStatus, status
from flowfabric.doctor.checks import Check
from flowfabric.doctor.report import Finding, Level

if TYPE_CHECKING:
    from flowfabric.db.connection import Connection

CLOCK_TOLERANCE = timedelta(seconds=2)

# Levels that only the query of a check returns. A finding of level durability is dropped for a
# throw-away database. A finding of level blind says that the role cannot read the tables; the
# invariants are then not checked.
DURABILITY = "durability"
BLIND = "blind"

UNFINISHED = "the tables are distributed, but `flowfabric db distribute` has not finished"

Found: TypeAlias = tuple[str, str]

_DURABLE = ("fsync", "full_page_writes", "synchronous_commit")
_OFF = frozenset({"off", "false", "no", "0"})
_CONSTRAINT = re.compile(r"\bconstraint\s+(\w+)\s+(?:check|unique)")
_INDEX = re.compile(r"\bcreate\s+(?:unique\s+)?index\s+(?:concurrently\s+)?(\w+)\s+on\b")
_GONE = re.compile(r"\bdrop\s+(?:constraint|index)\s+(?:if\s+exists\s+)?(?:ff\.)?(\w+)")
_COMMENT = re.compile(r"--[^\n]*")


class Installation:
    """Runs the checks of the installation.

    `is_readable` says whether the role of the connection can read the tables.
    """

    def __init__(self, connection: Connection, *, is_throwaway: bool) -> None:
        self._connection = connection
        self._is_throwaway = is_throwaway
        self.has_schema = False
        self.is_distributed = False
        # The partitions of a distributed database; empty on a single server.
        self.partitions = range(0)
        self.cluster: distribute.Cluster | None = None
        self.is_readable = True

    async def examine(self, check: Check) -> list[Finding]:
        """Run one check.

        Call this for X01 first, then for X02 and so on, because later checks rely on earlier ones.
        """
        try:
            found = await _CHECKS[check.name](self, check)
        except QueryFailed as error:
            found = [("error", f"cannot be checked: {error}")]
        findings = []
        for level, problem in found:
            if level == DURABILITY and self._is_throwaway:
                continue
            self.is_readable = self.is_readable and level != BLIND
            findings.append(
                Finding(
                    name=check.name,
                    level=Level.WARNING if level == "warning" else Level.ERROR,
                    problem=problem,
                )
            )
        return findings

    async def _rows(self, check: Check, *args: Any) -> list[Found]:
        rows = await look(self._connection, check.text, *args)
        return [(row["level"], row["problem"]) for row in rows]

    async def _durability(self, check: Check) -> list[Found]:
        return [
            *await self._rows(check),
            *((DURABILITY, problem) for problem in _weak_options(os.environ.get("PGOPTIONS", ""))),
        ]

    async def _schema(self, check: Check) -> list[Found]:
        try:
            found = await status(self._connection)
        except SchemaMismatch as error:
            self.is_readable = False
            return [("error", str(error))]
        self.has_schema = found.has_schema and found.step_found > 0
        self.is_distributed = found.is_distributed
        if problem := found.problem():
            return [("error", str(problem))]
        if found.is_library_stale or found.is_newer:
            return [_other_library(found)]
        return await self._rows(check, *_manifest(package_source(), found.is_distributed))

    async def _tables(self, check: Check) -> list[Found]:
        found = await self._rows(check)
        # In a distributed database, each node has its own transaction numbers.
        if self.has_schema and self.is_readable and not self.is_distributed:
            rows = await look(self._connection, text_of("restored_events.sql"))
            found += [("error", row["problem"]) for row in rows]
        return found

    async def _server(self, check: Check) -> list[Found]:
        before = datetime.now(UTC)
        (row,) = await look(self._connection, text_of("clock.sql"))
        after = datetime.now(UTC)
        found = await self._rows(check)
        if not before - CLOCK_TOLERANCE <= row["now"] <= after + CLOCK_TOLERANCE:
            away = row["now"] - before
            found.append(
                ("warning", f"the server's clock differs by {away.total_seconds():+.1f} s")
            )
        return found

    async def _cluster(self, check: Check) -> list[Found]:
        """Check that the tables and functions of a distributed database are on the right nodes."""
        if not self.has_schema or not await citus.has_citus(self._connection):
            return []
        if not any(table.kind for table in await citus.read_tables(self._connection)):
            return []
        wanted = citus.functions(package_source().library(distributed=True))
        is_forced = [name in citus.FORCED_FUNCTIONS for name in wanted]
        found = await self._rows(check, list(wanted), list(wanted.values()), is_forced)
        if not self.is_distributed:
            return [*found, ("error", UNFINISHED)]
        (row,) = await look(self._connection, text_of("partitions.sql"))
        self.partitions = range(row["partitions"])
        self.cluster = await distribute.look(self._connection)
        rows = await look(self._connection, text_of("generations.sql"), list(self.partitions))
        return [*found, *(("error", row["problem"]) for row in rows)]

    async def _log_readers(self, check: Check) -> list[Found]:
        return await self._rows(check) if self.has_schema and self.is_readable else []


_CHECKS: dict[str, Callable[[Installation, Check], Coroutine[Any, Any, list[Found]]]] = {
    "X01": Installation._durability,
    "X02": Installation._schema,
    "X03": Installation._rows,
    "X04": Installation._tables,
    "X05": Installation._server,
    "X06": Installation._cluster,
    "X07": Installation._log_readers,
    "X08": Installation._log_readers,
}


def _weak_options(options: str) -> Iterable[str]:
    """Yield a problem for each durability setting that PGOPTIONS switches off."""
    try:
        words = shlex.split(options)
    except ValueError:
        return
    for word in words:
        name, _, value = word.removeprefix("-c").removeprefix("--").strip().partition("=")
        if name.strip().replace("-", "_") in _DURABLE and value.strip().lower() in _OFF:
            yield f"PGOPTIONS sets {name.strip()}={value.strip()}"


def _other_library(found: SchemaStatus) -> Found:
    return (
        "warning",
        f"the database has library {found.library_found}, but this release has library "
        f"{found.library_needed} with different text",
    )


def _manifest(
    source: Source, is_distributed: bool
) -> tuple[list[str], list[str], list[str], list[str]]:
    """Return what a migrated database must contain, as four lists.

    The lists contain the names of functions, the source texts of these functions, the names of
    constraints, and the names of indexes.
    """
    names, bodies = [], []
    for file in source.library(distributed=is_distributed).files:
        parts = file.text.split("$$")
        if not file.path.startswith("views/") and len(parts) == 3:
            names.append(file.path.rpartition("/")[2].removesuffix(".sql"))
            bodies.append(parts[1])
    constraints: set[str] = set()
    indexes: set[str] = set()
    for step in source.steps():
        text = _COMMENT.sub("", step.text)
        gone = set(_GONE.findall(text))
        constraints = (constraints | set(_CONSTRAINT.findall(text))) - gone
        indexes = (indexes | set(_INDEX.findall(text))) - gone
    return names, bodies, sorted(constraints), sorted(indexes)
