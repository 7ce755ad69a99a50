"""A crash of PostgreSQL in the middle of streams loses no acknowledged frame."""

from __future__ import annotations

import asyncio
import signal
from datetime import timedelta
from typing import Any

import pytest

from flowfabric import App, Context, Frame, Rewind, Run
from worker.apps import working
from worker.waiting import eventually

from .server import Server


async def texts(run: Run[Any]) -> list[str]:
    kept: list[Frame[Any]] = []
    async with asyncio.timeout(120):
        async for one in run.stream():
            if isinstance(one, Rewind):
                kept = [frame for frame in kept if one.keeps(frame)]
            elif isinstance(one, Frame):
                kept.append(one)
    return [frame.text for frame in kept]


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_crash_of_the_server_in_a_stream_loses_nothing(durable: Server, sized) -> None:
    words, crashes = sized(3000, short=600), sized(4, short=1)
    stored: dict[str, int] = {}
    async with App(database_url=durable.url, lease_ttl=timedelta(seconds=60)) as app:

        @app.task
        async def say(ctx: Context) -> int:
            for n in range(words):
                await ctx.stream.send(f"{n}")
                if n % 50 == 0:
                    # Everything before this step is acknowledged when it is recorded.
                    await ctx.step(f"step {n}", lambda: None)
                    stored[str(ctx.execution_id)] = n
                await asyncio.sleep(0.001)
            return words

        runs = [await say.submit() for _ in range(3)]
        async with working(app, concurrency=3):
            readers = [asyncio.create_task(texts(run)) for run in runs]
            for crash in range(crashes):
                goal = words * (crash + 1) // (crashes + 1)
                await eventually(lambda goal=goal: min(stored.values(), default=0) >= goal)
                await durable.restart(signal.SIGKILL)
            for run in runs:
                assert await run.result(timeout=120) == words
            for read in await asyncio.gather(*readers):
                assert read == [f"{n}" for n in range(words)]
