"""The proof of durable handlers: one is killed at every call to the database it makes, and ends as
if nothing had happened."""

from __future__ import annotations

import os
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from flowfabric import PublicState, Run
from steps.killer import killing
from steps.stage import journal, until
from steps.victims import RESULT, STEPS, changed, journey, ledger
from worker.apps import working

CALLS = {
    *("claim_executions", "record_steps", "delay_execution", "list_steps", "submit_executions"),
    *("read_results", "wait_for_runs", "complete_executions"),
}


@pytest.fixture
async def killer(app, db, clock, tmp_path):
    async with killing(app, db, clock, tmp_path / "log", "journey") as killer:
        yield killer


@pytest.mark.timeout(300)
async def test_a_handler_killed_at_some_calls_ends_as_if_nothing_had_happened(
    app, db, killer, tmp_path
):
    await kill_and_recover(app, db, killer, tmp_path, each=13)


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
    repeated = Counter[str]()

    async def begin() -> Run[Any]:
        log.write_text("")
        return await task.submit(7)

    async def check(run: Run[Any], point: str, was_killed: bool) -> None:
        assert await killer.recover(run) == RESULT, f"killed at {point}"
        await is_done_once(db, run)
        calls = Counter(log.read_text().split())
        assert set(calls) == {*STEPS, "child"}
        # What was recorded was not called again: a kill repeats at most what was under way.
        again = calls - Counter([*STEPS, "child"])
        assert again.total() <= was_killed, f"killed at {point}: {again} done again"
        repeated.update(again)

    await killer.kill_at_each(points, begin, check, each=each)
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
    await kill_and_book(app, db, ledger_killer, tmp_path, each=13)


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

    async def begin() -> Run[Any]:
        await db.execute("truncate ledger")
        return await task.submit(0)

    async def check(run: Run[Any], point: str, was_killed: bool) -> None:
        assert await killer.recover(run) == 33, f"killed at {point}"
        booked = await db.fetch("select generation, total from ledger order by generation")
        assert [tuple(row) for row in booked] == list(BOOKED.items()), f"killed at {point}"
        assert (await kinds_of(db, run))["continued"] == 2
        assert set(await journal(db, run)) == {("book", 0), ("add", 0)}

    await killer.kill_at_each(points, begin, check, each=each)


async def kinds_of(db: Any, run: Run[Any]) -> Counter[str]:
    rows = await db.fetch("select kind::text from ff.event where execution_id = $1", run.id.uuid)
    return Counter(row["kind"] for row in rows)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_restart_killed_at_every_call_happens_once(make_app, db, clock, tmp_path, sized):
    """The code of a sleeping run has changed; the new code is killed."""
    log, passed = tmp_path / "log", tmp_path / "log.points"
    old_app, app = make_app(), make_app()
    old_task, task = changed(old_app, log, "old"), changed(app, log)

    async def begin() -> Run[Any]:
        run = await old_task.submit()
        async with working(old_app):
            await until(run, PublicState.DELAYED)
        log.write_text("")
        return task.get(run.id)

    async def check(run: Run[Any], point: str, was_killed: bool) -> None:
        assert await killer.recover(run) == ["new", "pay", "ship"], f"killed at {point}"
        calls = Counter(log.read_text().split())
        assert set(calls) == {"new", "pay", "ship"}
        again = calls - Counter(["new", "pay", "ship"])
        assert again.total() <= was_killed, f"killed at {point}: {again} done again"
        assert {name for name, _ in await journal(db, run)} == {*calls, "ff.sleep"}
        kinds = await kinds_of(db, run)
        assert (kinds["continued"], kinds["held"], kinds["completed"]) == (1, 0, 1)

    async with killing(app, db, clock, log, "changed") as killer:
        passed.write_text("")
        assert not await killer.kill_at(await begin(), "never")
        points = passed.read_text().split()
        names = {point.partition(":")[0] for point in points}
        assert names >= {"list_steps", "continue_execution", "record_steps", "complete_executions"}
        await killer.kill_at_each(points, begin, check, each=sized(1, short=3))


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_check_killed_at_every_call_changes_nothing(make_app, db, engine, clock, tmp_path):
    """One run sleeps and fits the code; the other one has a step that the code has lost."""
    log, passed = tmp_path / "log", tmp_path / "log.points"
    old_app = make_app()
    runs = [await journey(old_app, log).submit(7), await changed(old_app, log, "old").submit()]
    async with working(old_app):
        for run in runs:
            await until(run, PublicState.DELAYED)
    log.write_text("")
    before = await engine.snapshot()
    async with killing(old_app, db, clock, log, "check") as killer:
        passed.write_text("")
        assert not await killer.kill_alone_at("never")
        points = passed.read_text().split()
        assert set(log.read_text().splitlines()) == {
            f"continues {runs[0].id}",
            f"restarts {runs[1].id}",
        }
        names = {point.partition(":")[0] for point in points}
        assert names >= {"list_executions", "describe_execution", "list_steps"}
        for point in points:
            assert await killer.kill_alone_at(point), point
    assert await engine.snapshot() == before


async def test_the_process_of_the_victims_says_what_it_does(killer, app, db):
    """The control of the test above."""
    task = journey(app, Path(os.devnull))
    run = await task.submit(7)
    assert not await killer.kill_at(run, "never")
    assert await run.result(timeout=60) == RESULT
    assert timedelta(0) < await db.fetchval(
        "select max(terminal_at - created_at) from ff.execution"
    )
