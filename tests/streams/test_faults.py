"""Streams through cuts, kills and crashes: every acknowledged frame is read once, in order."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from faults.proxy import Cut, proxied
from flowfabric import App, Context, Frame, Rewind, Run
from flowfabric.core.stream import parse_id
from steps.killer import killing
from steps.victims import talker
from worker.apps import working

SPOKEN = [
    *(
        f"{where}{place}.{part}"
        for place in range(3)
        for where in ("before", "in")
        for part in range(3)
    ),
    *(f"after.{part}" for part in range(3)),
]


async def valid(run: Run[Any]) -> list[str]:
    """What a reader has in the end, if it obeys the rewinds."""
    kept: list[Frame[Any]] = []
    last = (0, 0)
    async with asyncio.timeout(60):
        async for one in run.stream(kinds=["text"]):
            assert isinstance(one, Frame | Rewind)
            assert parse_id(one.id) > last
            last = parse_id(one.id)
            if isinstance(one, Rewind):
                kept = [frame for frame in kept if one.keeps(frame)]
            else:
                kept.append(one)
    return [frame.text for frame in kept]


@pytest.mark.parametrize("each", [14, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.timeout(600)
async def test_a_worker_that_is_killed_leaves_a_stream_that_reads_as_if_it_had_not_been(
    app, db, clock, tmp_path, each, sized
):
    log, passed = tmp_path / "log", tmp_path / "log.points"
    each = sized(each, short=max(each, 4))
    async with killing(app, db, clock, log, "talker") as killer:
        task = talker(app, log)
        passed.write_text("")
        assert not await killer.kill_at(await task.submit(7), "never")
        points = passed.read_text().split()
        assert {"append_frames", "record_steps"} <= {one.partition(":")[0] for one in points}

        async def check(run: Run[Any], point: str, was_killed: bool) -> None:
            assert await killer.recover(run) == 7
            assert await valid(run) == SPOKEN, f"killed at {point}"
            assert await run.summary() == {"n": 7}

        await killer.kill_at_each(points, lambda: task.submit(7), check, each=each)


async def test_a_lost_answer_of_an_append_stores_nothing_twice(db):
    """The call is committed, its answer is lost, and the worker repeats it."""
    async with proxied(db.url) as proxy, App(database_url=proxy.url) as app:

        @app.task
        async def say(ctx: Context, words: int) -> int:
            for n in range(words):
                await ctx.stream.send(f"{n}")
                await asyncio.sleep(0.002)
            return words

        run = await say.submit(100)
        cut = proxy.cut = Cut("append_frames")
        async with working(app):
            await asyncio.wait_for(cut.happened.wait(), 60)
            assert await run.result(timeout=60) == 100
        assert await valid(run) == [f"{n}" for n in range(100)]
