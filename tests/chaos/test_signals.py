"""Signals while workers are killed and the server crashes: each is taken once, and nobody is woken
early or never."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import asyncpg
import pytest

from faults.server import Server
from faults.workers import Fleet, load
from flowfabric import Run

from .patience import insist, until_all_ended

SEED = 20261118
LEASE_SECONDS = 2.0
NAMES = ("a", "b", "c")
# How many signals are sent in a transaction that stays open, some longer than a lease.
IN_TRANSACTIONS = 0.4
TASKS = """
from __future__ import annotations

import asyncio

from flowfabric import App, Context

app = App()


@app.task(name="ask", max_reclaims=1000)
async def ask(ctx: Context, n: int) -> list[int]:
    one = await ctx.wait_for_signal("a", int)
    two, three = await asyncio.gather(
        ctx.wait_for_signal("b", int), ctx.wait_for_signal("c", int)
    )
    return [one, two, three]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    executions: int
    senders: int
    workers: int
    kills: int
    crashes: int


LONG = Scale(executions=500, senders=8, workers=3, kills=30, crashes=2)
SHORT = Scale(executions=40, senders=8, workers=2, kills=2, crashes=1)


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_every_signal_is_taken_once_through_kills_and_crashes(
    durable: Server, tmp_path: Path, sized: Callable[..., Scale]
) -> None:
    scale: Scale = sized(LONG, short=SHORT)
    random = Random(SEED)
    app, module = load(durable.url, TASKS)
    fleet = Fleet(
        tmp_path, durable.url, scale.workers, concurrency=20, lease=LEASE_SECONDS, tasks=TASKS
    )
    try:
        await fleet.until_started()
        runs = [
            await insist(lambda n=n: module["ask"].using(key=f"n-{n}").submit(n))
            for n in range(scale.executions)
        ]
        # Each signal twice, in any order: the second is a duplicate.
        work = [(n, name) for n in range(scale.executions) for name in NAMES for _ in range(2)]
        random.shuffle(work)
        async with asyncio.TaskGroup() as group:
            for _ in range(scale.senders):
                group.create_task(send(durable, runs, work, Random(random.random())))
            group.create_task(break_things(durable, fleet, Random(SEED), scale))
        await until_all_ended(durable, fleet)
        assert set(fleet.close()) <= {0, -signal.SIGTERM}, fleet.log()
    finally:
        await app.close()
        fleet.destroy()
    await durable.check_invariants()
    await judge(durable, scale)


async def send(
    server: Server, runs: list[Run[Any]], work: list[tuple[int, str]], random: Random
) -> None:
    """Send what is left, each signal by a call of its own or in an open transaction."""
    while work:
        n, name = work.pop()
        value, key = n * 10 + NAMES.index(name), f"{n}-{name}"
        is_open = random.random() < IN_TRANSACTIONS
        pause = random.choice(
            (0.0, 0.05, 0.3, LEASE_SECONDS * 1.5 if random.random() < 0.05 else 0)
        )

        async def deliver(
            run: Run[Any] = runs[n],
            name: str = name,
            value: int = value,
            key: str = key,
            is_open: bool = is_open,
            pause: float = pause,
        ) -> None:
            if not is_open:
                await run.signal(name, value, key=key)
                return
            connection = await asyncpg.connect(server.url)
            try:
                async with connection.transaction():
                    await run.signal(name, value, key=key, via=connection)
                    await asyncio.sleep(pause)
            finally:
                connection.terminate()

        await insist(deliver)


async def break_things(server: Server, fleet: Fleet, random: Random, scale: Scale) -> None:
    """Kill workers while signals are taken, and crash the server in between."""
    kills = crashes = 0
    whole = scale.executions * len(NAMES)
    while kills < scale.kills:
        ((taken,),) = await insist(
            lambda: server.fetch("select count(*) from ff.signal where taken_at is not null")
        )
        if crashes < scale.crashes and taken >= whole * (crashes + 1) / (scale.crashes + 1):
            await server.restart(random.choice((signal.SIGQUIT, signal.SIGKILL)))
            crashes += 1
        if taken >= whole * kills / (scale.kills + 1):
            fleet.kill(random.randrange(scale.workers))
            kills += 1
        fleet.supervise()
        await asyncio.sleep(0.1)


async def judge(server: Server, scale: Scale) -> None:
    rows = await server.fetch(
        "select coalesce(e.payload, b.payload) as payload, e.result, e.outcome::text"
        " from ff.execution e left join ff.execution_body b using (partition_key, execution_id)"
    )
    assert len(rows) == scale.executions
    for row in rows:
        n = json.loads(row["payload"])["n"]
        assert row["outcome"] == "success"
        assert json.loads(row["result"]) == [n * 10, n * 10 + 1, n * 10 + 2]
    ((stored, taken, waits),) = await server.fetch(
        "select count(*), count(*) filter (where taken_at is not null),"
        " count(distinct (execution_id, wait_name, wait_occurrence)) from ff.signal"
    )
    assert (stored, taken, waits) == (scale.executions * 3,) * 3
    # An open transaction of a sender costs no lease: only a killed holder loses one.
    ((lost, most),) = await server.fetch(
        "select count(*), $1::bigint from ff.event where kind = 'lease_expired'",
        (scale.kills + scale.crashes * scale.workers) * 20,
    )
    assert lost <= most
