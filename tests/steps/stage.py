"""What the tests of steps share: time that passes at once, and looks at the journal."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from flowfabric import App, Run
from flowfabric.core.states import PublicState
from support.clock import Clock
from support.database import Database
from worker.waiting import eventually

HOUR = timedelta(hours=1)


async def until(run: Run[Any], state: PublicState | str) -> None:
    """Wait until a run is in a state."""

    async def is_there() -> bool:
        return await run.state() == state

    await eventually(is_there, what=f"{run} is {state}")


async def skip(app: App, clock: Clock, span: timedelta) -> None:
    """Let time pass, and what became due by it go on."""
    now = await clock.advance(span)
    client = await app.client()

    async def are_promoted() -> bool:
        """A worker that handles them at the same time has them locked."""
        await client.executions.promote_delayed()
        await client.signals.expire_suspensions()
        return not await clock.db.fetchval(
            "select exists (select from ff.execution"
            " where eligibility = 'not_eligible_until_time' and delayed_until <= $1)",
            now,
        )

    await eventually(are_promoted)


async def journal(db: Database, run: Run[Any]) -> dict[tuple[str, int], Any]:
    """What is recorded: (name, occurrence) and the stored value, in the order of the positions."""
    rows = await db.fetch(
        "select name, occurrence, value from ff.step where execution_id = $1"
        " order by position, name, occurrence",
        run.id.uuid,
    )
    return {(row["name"], row["occurrence"]): row["value"] for row in rows}


async def held_at(db: Database, run: Run[Any]) -> str | None:
    """What a held execution says; None if it is not held."""
    row = await db.fetchrow(
        "select phase::text, eligibility::text, blocking_reason::text, blocking_detail,"
        " attempt_state::text from ff.execution where execution_id = $1",
        run.id.uuid,
    )
    assert row is not None
    if row["blocking_reason"] != "paused_by_policy":
        return None
    assert row["phase"] == "runnable"
    assert row["eligibility"] == "blocked_by_operator"
    assert row["attempt_state"] == "attempt_interrupted"
    return str(row["blocking_detail"])


async def until_held(db: Database, run: Run[Any]) -> str:
    return str(await eventually(lambda: held_at(db, run), what=f"{run} is held"))
