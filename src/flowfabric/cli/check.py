"""`flowfabric check`: before a deploy, find executions that the new code cannot continue."""

from __future__ import annotations

import asyncio
from collections import Counter

import typer

from flowfabric.cli.imports import APP_ARGUMENT, load_app
from flowfabric.cli.options import Database
from flowfabric.cli.output import Printer, Progress, say_all, screen
from flowfabric.db.connection import read_only
from flowfabric.drawing.plain import json_line
from flowfabric.drawing.table import Column, table
from flowfabric.drawing.text import count_of
from flowfabric.worker import Fit, JournalVerdict

EXIT_MISFITS = 1

_COLUMNS: list[Column[JournalVerdict]] = [
    Column("ID", lambda verdict: str(verdict.id.uuid), least=8),
    Column("TASK", lambda verdict: verdict.task),
    Column("FIT", lambda verdict: verdict.fit.value),
    Column("STEP", lambda verdict: verdict.step or ""),
    Column("PROBLEM", lambda verdict: verdict.problem or ""),
]


def check(
    database: Database,
    printer: Printer,
    app: str = APP_ARGUMENT,
) -> int:
    """Check this code against the journals of executions in flight. Run it before a deploy.

    Each handler runs up to the first step that is not recorded. No step runs, and the app's
    connections are read-only. Startup hooks, middleware, providers and code outside steps do run.

    An execution of another code version is checked only if this code reads that version. Otherwise
    the workers of that version finish it.

    Exit codes: 0: every execution would continue or start again, here or in workers of its own
    version. 1: some executions would be held or would fail, or could not be checked.
    """
    loaded = load_app(app)
    url = database.database_url or loaded.settings.database_url or database.address
    loaded.use_database(read_only(url))
    verdicts: list[JournalVerdict] = []

    async def run() -> None:
        progress = Progress(for_logs=False)
        async with progress.during(lambda: f"checking: {len(verdicts)} executions"), loaded:
            async for verdict in loaded.check_journals():
                verdicts.append(verdict)
                if printer.is_json:
                    progress.say(json_line(verdict))

    asyncio.run(run())
    misfits = [verdict for verdict in verdicts if verdict.fit is not Fit.CONTINUES]
    if not printer.is_json and misfits:
        say_all(table(_COLUMNS, misfits, screen()))
    typer.echo(_summary(verdicts), err=True)
    return (
        EXIT_MISFITS
        if any(one.fit not in (Fit.RESTARTS, Fit.OTHER_VERSION) for one in misfits)
        else 0
    )


def _summary(verdicts: list[JournalVerdict]) -> str:
    counts = Counter(verdict.fit for verdict in verdicts)
    parts = [
        f"{count_of(counts[Fit.CONTINUES], 'execution')} would continue",
        f"{counts[Fit.HELD]} would be held",
    ]
    if counts[Fit.OTHER_VERSION]:
        parts.append(
            f"{counts[Fit.OTHER_VERSION]} would be continued by workers of their code version"
        )
    if counts[Fit.RESTARTS]:
        parts.append(f"{counts[Fit.RESTARTS]} would start again")
    if counts[Fit.RAISES]:
        parts.append(f"{counts[Fit.RAISES]} would raise an error")
    if counts[Fit.UNKNOWN]:
        parts.append(f"{counts[Fit.UNKNOWN]} could not be checked")
    return ", ".join(parts)
