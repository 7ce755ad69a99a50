"""The proof of durable handlers: one is killed at every call to the database it makes, and ends as
if nothing had happened."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from flowfabric import PublicState, Run
from steps.stage import journal
from steps.victims import RESULT, STEPS, journey
from worker.apps import working

CALLS = {
    *("claim_executions", "record_steps", "delay_execution", "list_steps", "submit_executions"),
    *("read_results", "wait_for_runs", "complete_executions"),
}
# A run that took another way (the child ended before it was waited for) does not come to its point.
TRIES = 5


class Killer:
    """Starts victims, and lets time pass for them."""

    def __init__(self, app: Any, db: Any, clock: Any, process: asyncio.subprocess.Process) -> None:
        self._app = app
        self._db = db
        self._clock = clock
        self._process = process

    async def kill_at(self, run: Run[Any], point: str) -> bool:
        """Let a victim work on a run until it is killed; False if it came to the end instead."""
        assert self._process.stdin
        self._process.stdin.write(f"{self._db.url} {point}\n".encode())
        pid = int(await self._line())
        ended = asyncio.create_task(self._line())
        try:
            async with asyncio.timeout(60):
                while not ended.done():
                    await self.pass_time(run)
                    if await run.state() == PublicState.COMPLETED:
                        # Killed behind its last call, it does not take long.
                        await asyncio.wait([ended], timeout=0.3)
                        break
                    await asyncio.wait([ended], timeout=0.005)
        finally:
            was_killed = ended.done()
            if not was_killed:
                os.kill(pid, signal.SIGKILL)
            status = await ended
        assert status == f"ended {signal.SIGKILL.value}"
        return was_killed

    async def pass_time(self, run: Run[Any]) -> None:
        """It sleeps for an hour: nobody has to."""
        if await run.state() == PublicState.DELAYED:
            await self._clock.advance(hours=1)
            await (await self._app.client()).executions.promote_delayed()

    async def recover(self, run: Run[Any]) -> Any:
        """The leases of the dead run out, and another worker goes on."""
        await self._clock.advance(minutes=2)
        client = await self._app.client()
        await client.leases.expire()
        async with working(self._app, concurrency=2), asyncio.timeout(60):
            while not (await run.state()).is_terminal:
                await self.pass_time(run)
                await asyncio.sleep(0.005)
        return await run.result(timeout=60)

    async def _line(self) -> str:
        assert self._process.stdout
        line = (await self._process.stdout.readline()).decode().strip()
        assert line, "the process that starts victims has ended"
        return line


@pytest.fixture
async def killer(app, db, clock, tmp_path):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "steps.victims", str(tmp_path / "log")),
        cwd=Path(__file__).parent.parent,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    yield Killer(app, db, clock, process)
    process.kill()
    await process.communicate()


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


async def test_the_process_of_the_victims_says_what_it_does(killer, app, db):
    """The control of the test above."""
    task = journey(app, Path(os.devnull))
    run = await task.submit(7)
    assert not await killer.kill_at(run, "never")
    assert await run.result(timeout=60) == RESULT
    assert timedelta(0) < await db.fetchval(
        "select max(terminal_at - created_at) from ff.execution"
    )
