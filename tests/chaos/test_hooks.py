"""Hooks while workers are killed, the server crashes, and executions are cancelled, expire and are
replayed: every end has called its hooks once, and the doctor finds nothing."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from faults.server import Server
from faults.workers import Fleet, load
from flowfabric import App, Run
from flowfabric.core.errors import FlowFabricError, Unavailable

from .patience import until_all_ended

SEED = 20261117
LEASE_SECONDS = 2.0
TASKS = """
from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from flowfabric import App, Context, Ended, Retry
from flowfabric.core.policy import Fixed

app = App()


@app.task(name="quick")
async def quick(n: int) -> int:
    return n


@app.task(name="doomed", retry=Retry(max_retries=1, backoff=Fixed(timedelta(milliseconds=50))))
async def doomed(n: int) -> int:
    raise LookupError(n)


@app.task(name="slow")
async def slow(ctx: Context, n: int) -> int:
    await ctx.step("begin", int)
    await asyncio.sleep(0.2)
    return n


@app.on_end(max_reclaims=1000, retry=Retry(max_retries=20))
async def told(ctx: Context, ended: Ended[Any]) -> list[Any]:
    await ctx.step("note", int)
    return [str(ended.id), str(ended.outcome), ended.replay_count, ended.arguments["n"]]


@slow.on_failure(max_reclaims=1000, retry=Retry(max_retries=20))
async def missed(ended: Ended[Any]) -> str:
    return str(ended.outcome)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    ends: int
    workers: int
    kills: int


SHORT = Scale(ends=30, workers=2, kills=1)
LONG = Scale(ends=1000, workers=3, kills=15)


@pytest.mark.slow(short=0)
@pytest.mark.timeout(300)
async def test_a_few_ends_call_their_hooks_through_kills_and_a_crash(
    durable: Server, tmp_path: Path
) -> None:
    await survive(durable, tmp_path, SHORT)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_thousand_ends_call_their_hooks_through_kills_and_a_crash(
    durable: Server, tmp_path: Path, sized: Callable[..., Scale]
) -> None:
    await survive(durable, tmp_path, sized(LONG, short=replace(LONG, ends=250, kills=4)))


async def survive(server: Server, folder: Path, scale: Scale) -> None:
    random = Random(SEED)
    app, module = load(server.url, TASKS)
    fleet = Fleet(
        folder, server.url, scale.workers, concurrency=10, lease=LEASE_SECONDS, tasks=TASKS
    )
    try:
        await fleet.until_started()
        async with asyncio.TaskGroup() as group:
            group.create_task(submit(module, random, scale.ends))
            group.create_task(break_things(server, fleet, Random(SEED), scale))
        await until_all_ended(server, fleet)
        assert set(fleet.close()) <= {0, -signal.SIGTERM}, fleet.log()
    finally:
        await app.close()
        fleet.destroy()
    await server.check_invariants()
    figures = await judge(server)
    print(f"{scale.kills} kill -9; ends: {dict(sorted(figures.items()))}")
    assert sum(figures.values()) >= scale.ends
    assert {"success", "failed", "cancelled", "expired"} <= figures.keys() or scale is SHORT


async def submit(module: dict[str, Any], random: Random, ends: int) -> None:
    """Submit executions that end in every way; cancel and replay some."""

    async def one(n: int) -> None:
        kind = random.choices(["quick", "doomed", "slow", "late"], (40, 20, 30, 10))[0]
        task = module["slow" if kind == "late" else kind]
        if kind == "late":
            task = task.using(deadline=timedelta(milliseconds=50), delay=timedelta(hours=1))
        run = await insist(lambda: task.using(key=f"n-{n}").submit(n))
        if kind == "slow" and random.random() < 0.5:
            await asyncio.sleep(random.uniform(0, 0.5))
            await insist(lambda: run.cancel())
            if random.random() < 0.5:
                await insist(lambda: replay(module["app"], run))

    for start in range(0, ends, 20):
        await asyncio.gather(*(one(n) for n in range(start, min(start + 20, ends))))


async def insist(call: Callable[[], Awaitable[Any]]) -> Any:
    while True:
        try:
            return await call()
        except Unavailable:
            await asyncio.sleep(0.05)
        except FlowFabricError:
            return None  # it ended, or was replayed, before


async def replay(app: App, run: Run[Any]) -> None:
    await (await app.client()).executions.replay(run.id)


async def break_things(server: Server, fleet: Fleet, random: Random, scale: Scale) -> None:
    """Kill workers while the ends come in, and crash the server in the middle."""
    kills, has_crashed = 0, False
    while kills < scale.kills:
        ((ended,),) = await server.fetch(
            "select count(*) from ff.execution where phase = 'terminal'"
        )
        if not has_crashed and ended >= scale.ends / 2:
            await server.restart(signal.SIGQUIT)
            has_crashed = True
        if ended >= scale.ends * kills / scale.kills:
            fleet.kill(random.randrange(scale.workers))
            kills += 1
        fleet.supervise()
        await asyncio.sleep(0.1)


async def judge(server: Server) -> Counter[str]:
    """Compare the ends in the event log with the hooks; return the ends by outcome."""
    rows = await server.fetch(
        "select v.execution_id, r.task, v.outcome::text,"
        " row_number() over (partition by v.execution_id order by v.event_id) - 1 as nth"
        " from ff.event v join ff.execution e using (partition_key, execution_id)"
        " join ff.route r on r.route_id = e.route_id"
        " where v.outcome is not null and e.parent_id is null"
    )
    wanted = Counter((row["execution_id"], row["nth"], "shop.on_end") for row in rows) + Counter(
        (row["execution_id"], row["nth"], "slow.on_failure")
        for row in rows
        if row["task"] == "slow" and row["outcome"] in ("failed", "expired")
    )
    outcomes = {(row["execution_id"], row["nth"]): row["outcome"] for row in rows}
    found: Counter[Any] = Counter()
    for row in await server.fetch(
        "select e.parent_id, r.task, e.outcome::text, e.failure_reason, e.result,"
        " coalesce(e.payload, b.payload) as payload"
        " from ff.execution e join ff.route r using (route_id)"
        " join ff.execution_body b using (partition_key, execution_id)"
        " where e.parent_id is not null"
    ):
        told = json.loads(row["payload"])
        end = row["parent_id"], told["replay_count"]
        found[*end, row["task"]] += 1
        assert told["outcome"] == outcomes[end]
        assert row["outcome"] == "success", row["failure_reason"]
        if row["task"] == "shop.on_end":
            n = told["arguments"]["n"]
            assert json.loads(row["result"]) == [told["execution_id"], outcomes[end], end[1], n]
    assert found == wanted, (found - wanted, wanted - found)
    return Counter(outcomes.values())
