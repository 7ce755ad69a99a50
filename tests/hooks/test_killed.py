"""The proof of hooks: a worker is killed at every call to the database it makes, and each end has
called its hook once."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from flowfabric import ExecutionFailed, Run
from steps.killer import Killer, killing
from steps.victims import hooked

CALLS = {"claim_executions", "complete_executions", "record_steps"}


@pytest.mark.slow(short=4, of="processes")
@pytest.mark.timeout(300)
async def test_a_worker_killed_at_some_calls_loses_no_hook(make_app, db, clock, tmp_path):
    await kill_and_recover(make_app(), db, clock, tmp_path, each=14)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_worker_killed_at_every_call_loses_no_hook(make_app, db, clock, tmp_path, sized):
    each = sized(1, short=2)
    again = await kill_and_recover(make_app(), db, clock, tmp_path, each=each)
    # The kills hit the hook between its step and the record, so the rule was put to the test.
    assert each > 1 or again


async def kill_and_recover(app: Any, db: Any, clock: Any, tmp_path: Any, *, each: int) -> int:
    """Kill the worker at one in `each` of its calls; return how often a step was done again."""
    log, passed = tmp_path / "log", tmp_path / "log.points"
    task = hooked(app, log)
    again = 0
    async with killing(app, db, clock, log, "hooked") as killer:
        for n, outcome in ((7, "success"), (-7, "failed")):
            passed.write_text("")
            log.write_text("")
            assert not await killer.kill_at(await task.submit(n), "never")
            points = passed.read_text().split()
            last = "complete_executions" if n > 0 else "fail_executions"
            assert {point.partition(":")[0] for point in points} >= {*CALLS, last}

            async def begin(n: int = n) -> Run[Any]:
                log.write_text("")
                return await task.submit(n)

            async def check(
                run: Run[Any], point: str, was_killed: bool, only: str = f"{outcome}:{n}"
            ) -> None:
                nonlocal again
                await recover(killer, run)
                await is_told_once(db, run)
                told = Counter(log.read_text().split())
                assert set(told) == {only}
                assert told.total() <= 1 + was_killed, f"killed at {point}"
                again += told.total() - 1

            await killer.kill_at_each(points, begin, check, each=each)
    return again


async def recover(killer: Killer, run: Run[Any]) -> None:
    with suppress(ExecutionFailed):
        await killer.recover(run)


async def is_told_once(db: Any, run: Run[Any]) -> None:
    """The end has one execution of its hook, which was submitted and completed once."""
    (hook,) = await db.fetch(
        "select execution_id, convert_from(result, 'UTF8') as result from ff.execution"
        " where parent_id = $1",
        run.id.uuid,
    )
    assert hook["result"] == f'"{run.id}"'
    kinds = Counter(
        row["kind"]
        for row in await db.fetch(
            "select kind::text from ff.event where execution_id = $1", hook["execution_id"]
        )
    )
    assert (kinds["submitted"], kinds["completed"]) == (1, 1)
