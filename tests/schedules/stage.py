"""Apps with schedules, and what they fired."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from flowfabric import App
from flowfabric.app.schedules import Scheduler
from support.database import Database


async def nothing() -> None:
    """A task for schedules of which only the firing matters."""


async def scheduler(app: App) -> Scheduler:
    """What a worker process of the app runs, without its loop."""
    return app._scheduler(await app.client())


async def fired(db: Database, name: str) -> list[datetime]:
    """The times a schedule has fired for, as its executions say."""
    rows = await db.fetch(
        "select tags ->> 'schedule.at' as at from ff.execution_body "
        "where tags ->> 'schedule.name' = $1 order by 1",
        name,
    )
    return [datetime.fromisoformat(row["at"]) for row in rows]


def scheduled(app: App, name: str, decorate: Any, function: Callable[..., Any] = nothing) -> None:
    """Put a schedule on a task of its own."""
    decorate(app.task(name=f"tasks.{name}")(function))
