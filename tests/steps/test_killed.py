"""The proof of durable handlers: one is killed at every call to the database it makes, and ends as
if nothing had happened."""

from __future__ import annotations

import os
import random
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from flowfabric import Run
from steps.killer import killing
from steps.stage import journal
from steps.victims import RESULT, STEPS, journey, ledger

CALLS = {
    *("claim_executions", "record_steps", "delay_execution", "list_steps", "submit_executions"),
    *("read_results", "wait_for_runs", "complete_executions"),
}
# A run that took another way (the child ended before it was waited for) does not come to its point.
TRIES = 5


@pytest.fixture
async def killer(app, db, clock, tmp_path):
    async with killing(app, db, clock, tmp_path / "log", "journey") as killer:
        yield killer


@pytest.mark.timeout(300)
async def test_a_handler_killed_at_some_calls_ends_as_if_nothing_had_happened(
    app, db, killer, tmp_path
):
    await kill_and_recover(app, db, killer, tmp_path, each=8)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_handler_killed_at_every_call_ends_as_if_nothing_had_happened(
    app, db, killer, tmp_path, sized
):
    each = sized(1, short=3)
    repeated = await kill_and_recover(app, db, killer, tmp_path, each=each)
    # The kills hit every step between its call and its record, so the rule was put to the test.
    assert each > 1 or set(STEPS) <= set(repeated), repeated


async def kill_and_recover(app, db, killer, tmp_path, *, each: int) -> Counter[str]:
    """Kill the handler at one in `each` of its calls; returns what was done again."""
    log, passed = tmp_path / "log", tmp_path / "log.points"
    task = journey(app, log)
    points: list[str] = []
    for _ in range(10):
        passed.write_text("")
        assert not await killer.kill_at(await task.submit(7), "never")
        points = passed.read_text().split()
        if {point.partition(":")[0] for point in points} >= CALLS:
            break
    else:
        raise AssertionError(f"no run made all the calls: {points}")
    met, repeated = 0, Counter[str]()
    points = points[random.randrange(each) :: each]
    for point in points:
        for _ in range(TRIES):
            log.write_text("")
            run = await task.submit(7)
            was_killed = await killer.kill_at(run, point)
            assert await killer.recover(run) == RESULT, f"killed at {point}"
            await is_done_once(db, run)
            calls = Counter(log.read_text().split())
            assert set(calls) == {*STEPS, "child"}
            # What was recorded was not called again: a kill repeats at most what was under way.
            again = calls - Counter([*STEPS, "child"])
            assert again.total() <= was_killed, f"killed at {point}: {again} done again"
            repeated += again
            if was_killed:
                met += 1
                break
    print(f"killed at {met} points of {len(points)}; done again: {dict(repeated)}")
    assert met >= len(points) - 2
    return repeated


async def is_done_once(db: Any, run: Run[Any]) -> None:
    recorded = await journal(db, run)
    assert set(recorded) == {(name, 0) for name in (*STEPS, "ff.sleep")}
    assert [recorded[name, 0] for name in STEPS] == [f'"{name} 7"'.encode() for name in STEPS]
    children = await db.fetch(
        "select execution_id, public_state::text from ff.execution where parent_id = $1",
        run.id.uuid,
    )
    assert [row["public_state"] for row in children] == ["completed"]
    kinds = Counter(
        row["kind"]
        for row in await db.fetch(
            "select kind::text from ff.event where execution_id = any($1)",
            [run.id.uuid, children[0]["execution_id"]],
        )
    )
    assert kinds["submitted"] == 2
    assert kinds["completed"] == 2
    assert not kinds["failed"]


BOOKED = {0: 0, 1: 11, 2: 22}


@pytest.fixture
async def ledger_killer(app, db, clock, tmp_path):
    async with killing(app, db, clock, tmp_path / "log", "ledger") as killer:
        yield killer


@pytest.mark.timeout(300)
async def test_generations_killed_at_some_calls_book_themselves_once(
    app, db, ledger_killer, tmp_path
):
    await kill_and_book(app, db, ledger_killer, tmp_path, each=8)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_generations_killed_at_every_call_book_themselves_once(
    app, db, ledger_killer, tmp_path, sized
):
    await kill_and_book(app, db, ledger_killer, tmp_path, each=sized(1, short=3))


async def kill_and_book(app, db, killer, tmp_path, *, each: int) -> None:
    """Kill a handler that books in transactions and continues, at one in `each` of its calls."""
    passed, task = tmp_path / "log.points", ledger(app, tmp_path / "log")
    await db.execute("create table ledger (generation integer, total integer)")
    passed.write_text("")
    assert not await killer.kill_at(await task.submit(0), "never")
    points = passed.read_text().split()
    names = {point.partition(":")[0] for point in points}
    assert names >= {"record_step_json", "commit", "continue_execution", "record_steps"}
    met, points = 0, points[random.randrange(each) :: each]
    for point in points:
        for _ in range(TRIES):
            await db.execute("truncate ledger")
            run = await task.submit(0)
            was_killed = await killer.kill_at(run, point)
            assert await killer.recover(run) == 33, f"killed at {point}"
            booked = await db.fetch("select generation, total from ledger order by generation")
            assert [tuple(row) for row in booked] == list(BOOKED.items()), f"killed at {point}"
            kinds = [
                row["kind"]
                for row in await db.fetch(
                    "select kind::text from ff.event where execution_id = $1", run.id.uuid
                )
            ]
            assert kinds.count("continued") == 2
            assert set(await journal(db, run)) == {("book", 0), ("add", 0)}
            if was_killed:
                met += 1
                break
    print(f"killed at {met} points of {len(points)}")
    assert met >= len(points) - 2


async def test_the_process_of_the_victims_says_what_it_does(killer, app, db):
    """The control of the test above."""
    task = journey(app, Path(os.devnull))
    run = await task.submit(7)
    assert not await killer.kill_at(run, "never")
    assert await run.result(timeout=60) == RESULT
    assert timedelta(0) < await db.fetchval(
        "select max(terminal_at - created_at) from ff.execution"
    )
