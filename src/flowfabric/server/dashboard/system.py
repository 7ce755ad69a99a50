"""The page of the system: the doctor, the sizes of tables, migrations and retention."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from flowfabric.client import FlowFabric
from flowfabric.client.events import listen_for_hints
from flowfabric.client.retention import DEFAULT_RETENTION, EVENT_FLOOR
from flowfabric.core.token import Scope
from flowfabric.db.inspection import QueryFailed, look, text_of
from flowfabric.db.migrate import status
from flowfabric.doctor import Finding, Report, examine
from flowfabric.server.dashboard.page import PREFIX, back_to, form_of, show
from flowfabric.server.principals import NoAuth
from flowfabric.server.routing import Call, CurrentCall, Routes

routes = Routes("dashboard")
FINDINGS_SHOWN = 100
# The page shows this many tables, the largest ones.
TABLES_SHOWN = 20
HIDDEN_PROBLEM = (
    "It names no execution. An operator of the database sees it with: flowfabric doctor"
)


@dataclass(frozen=True, slots=True)
class Table:
    """The size of a table with its indexes, and how many of its rows are dead."""

    name: str
    bytes: int
    rows: int
    dead: int
    vacuumed_at: datetime | None


@dataclass(frozen=True, slots=True)
class Kept:
    """How long executions and events are kept. `lanes` lists lanes with another retention."""

    default: timedelta
    events: timedelta
    lanes: Sequence[tuple[str, timedelta]]
    oldest_at: datetime | None


@routes.get(PREFIX + "/system", Scope.ADMIN, include_in_schema=False)
async def system(call: CurrentCall, request: Request) -> Response:
    """Show the schema, the table sizes, the retention, and the last report of the doctor."""
    facts = await _facts_of(call)
    report = call.backend.report
    facts["findings"] = await _ours(call, report) if report is not None else []
    facts["partitions"] = (await call.client.database.partitions.current()).partitions
    facts["is_heard"] = await call.backend.hearing.read(
        "hearing", call.client, lambda: _is_heard(call.client)
    )
    now = await call.client.executions.server_time()
    return show(request, call, "system", now, report=report, most=TABLES_SHOWN, **facts)


async def _facts_of(call: Call) -> dict[str, Any]:
    """Return the schema, the sizes of the largest tables, and the retention."""
    async with call.client.database.lend() as connection:
        schema = await status(connection)
        try:
            rows = await look(connection, text_of("sizes.sql"))
            kept = await look(connection, text_of("retention.sql"), call.client.namespace)
        except QueryFailed:
            rows, kept = [], []
    lanes = [(row["lane"], row["retention"]) for row in kept if row["lane"] is not None]
    oldest_at = next((row["oldest_at"] for row in kept if row["lane"] is None), None)
    return {
        "schema": schema,
        "problem": schema.problem(),
        "tables": [_table(row) for row in rows],
        "kept": Kept(DEFAULT_RETENTION, EVENT_FLOOR, lanes, oldest_at),
    }


def _table(row: Any) -> Table:
    return Table(
        name=row["name"],
        bytes=row["bytes"],
        rows=row["rows"],
        dead=row["dead"],
        vacuumed_at=row["vacuumed_at"],
    )


@routes.post(PREFIX + "/system/examine", Scope.ADMIN, is_form=True, include_in_schema=False)
async def examine_now(call: CurrentCall, request: Request) -> Response:
    """Run the doctor. This writes nothing, and takes a while on a large database."""
    await form_of(request)
    call.backend.report = await _examined(call)
    return back_to(request, "/system")


async def _examined(call: Call) -> Report:
    """Run the doctor. If it already runs for another visitor, wait for that report.

    The doctor reads whole tables. One doctor for each visitor could take all connections.
    """
    running = call.backend.examination
    if running is None or running.done():
        running = call.backend.examination = asyncio.create_task(_examine(call.client))
    return await asyncio.shield(running)


async def _examine(client: FlowFabric) -> Report:
    async with client.database.lend() as connection:
        return await examine(connection)


async def _is_heard(client: FlowFabric) -> bool:
    """Return whether a hint that is sent on one connection arrives on another."""
    session = client.database.session("dashboard")
    try:
        await listen_for_hints(session, lambda: None)
        return bool(session.can_hear)
    finally:
        await session.close()


async def _ours(call: Call, report: Report) -> Sequence[Finding]:
    """Return the findings that this visitor may see.

    Findings about executions of other namespaces are left out. A finding without an execution may
    name a budget, a key or a worker of another namespace. If visitors need a token, the page shows
    which check made such a finding, but not the text of the finding.
    """
    is_alone = isinstance(call.backend.authenticate, NoAuth)
    return [
        one if is_alone or one.execution is not None else replace(one, problem=HIDDEN_PROBLEM)
        for one in report.findings[:FINDINGS_SHOWN]
        if one.execution is None or await call.client.executions.state(one.execution) is not None
    ]
