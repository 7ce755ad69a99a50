"""Examines a database: the installation first, then every invariant.

Each query sees one moment of the database, even while workers run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from flowfabric.core.cursors import join_cursors, split_cursor
from flowfabric.core.errors import CursorExpired, FlowFabricError, InvalidInput, Unavailable
from flowfabric.core.ids import ExecutionId
from flowfabric.db.inspection import (
    QueryFailed,
    Rows,
    at_most,
    changed_since,
    in_partition,
    look,
    narrowed,
    open_cursor,
    text_of,
    together,
)
from flowfabric.doctor.checks import Check, Reads, installation_checks, invariants
from flowfabric.doctor.installation import Installation
from flowfabric.doctor.report import Finding, Level, Report, Verdict

if TYPE_CHECKING:
    from flowfabric.db.connection import Connection

MOST_FINDINGS = 1000
"""The most findings that one check reports. More would mean a problem of the whole database."""

CHUNK = 5000
"""How many executions a limited query reads."""

_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)

Scope: TypeAlias = dict[int, list[UUID]]
"""Executions by partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The check that runs now, and how many checks are done."""

    name: str
    title: str
    done: int
    total: int


async def examine(
    connection: Connection,
    *,
    since: str | datetime | None = None,
    is_throwaway: bool = False,
    report: Callable[[Progress], None] = lambda _: None,
) -> Report:
    """Check the installation, then every invariant.

    If `since` is given, check only executions that have events after it, and leave out invariants
    that read everything. `since` is a time or a cursor. With the cursor of an earlier report, the
    check continues exactly where that report ended.
    """
    started = perf_counter()
    verdicts: list[Verdict] = []
    notes: list[str] = []
    installation = Installation(connection, is_throwaway=is_throwaway)
    total = len(installation_checks()) + len(invariants())
    for check in installation_checks():
        report(Progress(name=check.name, title=check.title, done=len(verdicts), total=total))
        began = perf_counter()
        verdicts.append(_verdict(check, await installation.examine(check), began))

    scope: Scope | None = None
    events = cursor = None
    if not installation.has_schema:
        notes.append("The invariants were not checked: there is no schema yet.")
    elif not installation.is_readable:
        notes.append("The invariants were not checked: this role may not read the tables.")
    else:
        scope, events, cursor = await _scope(connection, since, notes)
        partitions = installation.partitions
        for check in invariants():
            if scope is None or check.reads is Reads.DATABASE:
                report(
                    Progress(name=check.name, title=check.title, done=len(verdicts), total=total)
                )
                verdicts.append(await _judge(connection, check, partitions=partitions))
        if scope is not None:
            verdicts += await judge_executions(connection, scope)
            verdicts.sort(key=lambda verdict: (verdict.name[0] != "X", verdict.name))
    return Report(
        verdicts=tuple(verdicts),
        duration=timedelta(seconds=perf_counter() - started),
        executions=None if scope is None else sum(map(len, scope.values())),
        events=events,
        cursor=cursor,
        notes=tuple(notes),
        cluster=installation.cluster,
    )


async def judge_executions(connection: Connection, scope: Scope) -> list[Verdict]:
    """Check the executions in `scope`, with all invariants that read only executions."""
    checks = {check.name: check for check in invariants() if check.reads is Reads.EXECUTIONS}
    text = at_most(narrowed(together(check.text for check in checks.values())), MOST_FINDINGS + 1)
    found: dict[str, list[Finding]] = {name: [] for name in checks}
    began = perf_counter()
    for partition, ids in scope.items():
        for start in range(0, len(ids), CHUNK):
            args = partition, ids[start : start + CHUNK]
            try:
                rows = await look(connection, text, *args)
            except QueryFailed:
                # One of the invariants cannot be checked, so run them one by one.
                rows = []
                for name, check in checks.items():
                    found[name] += (await _judge(connection, check, *args)).findings
            for row in rows:
                found[row["name"]].append(_finding(checks[row["name"]], dict(row)))
    each = (perf_counter() - began) / len(checks)
    return [
        Verdict(
            name=name,
            title=check.title,
            findings=tuple(found[name][:MOST_FINDINGS]),
            duration=timedelta(seconds=each),
            is_cut=len(found[name]) > MOST_FINDINGS,
        )
        for name, check in checks.items()
    ]


async def _judge(
    connection: Connection, check: Check, *args: object, partitions: range = range(0)
) -> Verdict:
    """Check one invariant.

    If `args` are given, they are a partition and ids of executions in it, and only these executions
    are checked. If a cluster cannot run the query over all nodes, run it in each of `partitions`.
    """
    began = perf_counter()
    text = at_most(narrowed(check.text) if args else check.text, MOST_FINDINGS + 1)
    try:
        try:
            rows = await look(connection, text, *args)
        except QueryFailed:
            if not partitions:
                raise
            rows = await _look_in_each(connection, check, partitions)
        found = list(dict.fromkeys(_finding(check, dict(row)) for row in rows))
    except QueryFailed as error:
        problem = f"cannot be checked: {error}"
        found = [Finding(name=check.name, level=Level.ERROR, problem=problem)]
    return _verdict(check, found[:MOST_FINDINGS], began, is_cut=len(found) > MOST_FINDINGS)


async def _look_in_each(connection: Connection, check: Check, partitions: range) -> Rows:
    on_node, fetched = (at_most(text, MOST_FINDINGS + 1) for text in in_partition(check.text))
    rows = []
    for partition in partitions:
        try:
            rows += await look(connection, on_node, partition)
        except QueryFailed:
            rows += await look(connection, fetched, partition)
    return rows


def _finding(check: Check, row: Mapping[str, Any]) -> Finding:
    partition, execution_id = row["partition_key"], row["execution_id"]
    return Finding(
        name=check.name,
        level=Level.WARNING if check.is_eventual and not row["is_stuck"] else Level.ERROR,
        problem=row["problem"],
        execution=None if execution_id is None else ExecutionId.of(partition, execution_id),
    )


def _verdict(
    check: Check, findings: Iterable[Finding], began: float, *, is_cut: bool = False
) -> Verdict:
    return Verdict(
        name=check.name,
        title=check.title,
        findings=tuple(findings),
        duration=timedelta(seconds=perf_counter() - began),
        is_cut=is_cut,
    )


async def _scope(
    connection: Connection, since: str | datetime | None, notes: list[str]
) -> tuple[Scope | None, int | None, str | None]:
    """Return the executions to check, the number of new events, and the next cursor.

    If the executions are None, all executions are to be checked.
    """
    try:
        rows = await look(connection, text_of("partitions.sql"))
    except QueryFailed as error:
        notes.append(f"No cursor for the next run: the partitions are unknown ({error})")
        return None, None, None
    partitions = range(rows[0]["partitions"] if rows else 1)
    if since is not None:
        try:
            return await _changed(connection, await _cursors(connection, since, partitions))
        except CursorExpired as error:
            if error.facts.get("reason") == "trimmed" and error.resume_from is not None:
                notes.append(f"The cursor has expired: continuing from {error.resume_from}.")
                return await _scope(connection, error.resume_from, notes)
            notes.append(f"All executions were checked, because the cursor has expired: {error}")
        except InvalidInput as error:
            raise InvalidInput(field="since", problem=error.problem) from error
    try:
        opened = [await open_cursor(connection, n, None) for n in partitions]
    except Unavailable:
        raise
    except FlowFabricError as error:
        # This happens on a standby or with a broken library. Another check reports that.
        notes.append(f"No cursor for the next run: {error}")
        return None, None, None
    return None, None, join_cursors(opened)


async def _cursors(connection: Connection, since: str | datetime, partitions: range) -> list[str]:
    """Return for each partition the cursor from which to read its events.

    If `since` is a cursor without one of the partitions, all events of this partition are read.
    """
    given = split_cursor(since, len(partitions)) if isinstance(since, str) else {}
    moment = _LONG_AGO if isinstance(since, str) else since
    return [
        given.get(partition) or await open_cursor(connection, partition, moment)
        for partition in partitions
    ]


async def _changed(connection: Connection, cursors: list[str]) -> tuple[Scope, int, str]:
    scope: Scope = {}
    events = 0
    next_cursors = []
    for partition, cursor in enumerate(cursors):
        ids, number, after = await changed_since(connection, partition, cursor)
        if ids:
            scope[partition] = sorted(ids)
        events += number
        next_cursors.append(after)
    return scope, events, join_cursors(next_cursors)
