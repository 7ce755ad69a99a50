"""What a step asks of the database: one question, whose answer is also its commit."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from faults.proxy import Proxy, proxied
from flowfabric import App, Context
from support.database import Database
from worker.apps import working

STEPS = 200
RECORD = b"ff.record_steps("


@pytest.fixture
async def proxy(db: Database) -> AsyncIterator[Proxy]:
    async with proxied(db.url) as proxy:
        yield proxy


def round_trips(answers: Counter[tuple[int, bytes]]) -> tuple[int, int]:
    """Those that recorded steps, and those that anything but a call of the engine cost on the same
    connections: a transaction opened or closed, a setting, a reset."""
    recording = [key for key in answers if RECORD in key[1]]
    backends = {backend for backend, _ in recording}
    beside = [key for key in answers if key[0] in backends and b"ff." not in key[1]]
    return sum(answers[key] for key in recording), sum(answers[key] for key in beside)


async def nothing() -> None: ...


async def counted(proxy: Proxy, handler: Any) -> tuple[int, int]:
    """The round trips of what a handler does, once its connection is warm."""
    found: list[tuple[int, int]] = []
    async with App(database_url=proxy.url) as app:

        @app.task(name="count")
        async def count(ctx: Context) -> None:
            for n in range(20):
                await ctx.step(f"warm-{n}", nothing)
            before = proxy.answers.copy()
            await handler(ctx)
            found.append(round_trips(proxy.answers - before))

        async with working(app):
            await (await app.submit("count")).result(timeout=60)
    return found[0]


async def test_a_step_costs_one_round_trip(proxy):
    async def one_after_the_other(ctx: Context) -> None:
        for n in range(STEPS):
            await ctx.step(f"step-{n}", nothing)

    recording, beside = await counted(proxy, one_after_the_other)
    # Another call in between may have taken the warm connection: a fresh one prepares.
    assert STEPS <= recording <= STEPS + 5
    assert beside <= 5


async def test_steps_side_by_side_share_a_round_trip(proxy):
    async def side_by_side(ctx: Context) -> None:
        await asyncio.gather(*(ctx.step(f"step-{n}", nothing) for n in range(STEPS)))

    recording, beside = await counted(proxy, side_by_side)
    assert recording <= 5
    assert beside <= 5
