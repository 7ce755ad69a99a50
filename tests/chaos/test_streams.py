"""Streams and a subscription while workers and consumers are killed, connections are cut and the
server crashes: every stream reads as if nothing had happened, and no event is missed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import pytest

from faults.proxy import Proxy, proxied
from faults.server import Server
from faults.workers import Crew, Fleet, load
from flowfabric import ExecutionFailed, Frame, Rewind, Run
from flowfabric.core.errors import Unavailable
from flowfabric.core.stream import parse_id

from .consumer import FILE, read_mirror
from .patience import insist, until_all_ended

SEED = 20261119
LEASE_SECONDS = 2.0
TESTS = Path(__file__).parents[1]
# A step now and then, so that restarts keep some frames and rewind others.
TASKS = """
from __future__ import annotations

import asyncio

from flowfabric import App, Context

app = App()


@app.task(name="talk", max_reclaims=1000)
async def talk(ctx: Context, words: int) -> int:
    for n in range(words):
        await ctx.stream.send(f"{n}")
        if n % 9 == 8:
            await ctx.step(f"step {n}", lambda: None)
            await ctx.stream.summary({"words": n + 1})
        await asyncio.sleep(0.01)
    return words
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    executions: int
    words: int
    workers: int
    kills: int
    crashes: int


LONG = Scale(executions=60, words=594, workers=3, kills=30, crashes=3)
SHORT = Scale(executions=4, words=117, workers=2, kills=2, crashes=1)


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_streams_and_a_subscription_through_kills_cuts_and_crashes(
    durable: Server, tmp_path: Path, sized: Callable[..., Scale]
) -> None:
    scale: Scale = sized(LONG, short=SHORT)
    app, module = load(durable.url, TASKS)
    async with proxied(durable.url) as proxy:
        for home in ("workers", "consumers"):
            (tmp_path / home).mkdir()
        fleet = Fleet(
            tmp_path / "workers",
            proxy.url,
            scale.workers,
            concurrency=20,
            lease=LEASE_SECONDS,
            tasks=TASKS,
        )
        consumers = crew(tmp_path, proxy.url, 2)
        try:
            await fleet.until_started()
            await consumers.until_started()
            runs = [
                await insist(lambda n=n: module["talk"].using(key=f"n-{n}").submit(scale.words))
                for n in range(scale.executions)
            ]
            async with asyncio.TaskGroup() as group:
                for n, run in enumerate(runs):
                    group.create_task(follow(run, scale.words, Random(f"{SEED} {n}")))
                group.create_task(
                    break_things(durable, proxy, fleet, consumers, Random(SEED), scale)
                )
            await until_all_ended(durable, fleet)
            await until_all_mirrored(durable, tmp_path / FILE, consumers)
            assert await asyncio.gather(*(run.summary() for run in runs)) == [
                {"words": scale.words}
            ] * len(runs)
            for one in (fleet, consumers):
                codes = await asyncio.to_thread(one.close)
                assert set(codes) <= {0, -signal.SIGTERM}, one.log()
                assert one.errors() == [], one.log()
        finally:
            await app.close()
            fleet.destroy()
            consumers.destroy()
    await durable.check_invariants()
    await judge_mirror(durable, tmp_path / FILE)


def crew(folder: Path, url: str, size: int) -> Crew:
    """Processes that consume one subscription."""
    environment = {
        "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(TESTS)]),
        "CHAOS_DATABASE_URL": url,
        "CHAOS_FOLDER": str(folder),
        "CHAOS_LEASE_SECONDS": str(LEASE_SECONDS),
        "CHAOS_SUBMITS_PER_SECOND": "0",
    }
    commands = [
        [sys.executable, "-m", "chaos.consumer", f"consumer{n}", str(SEED)] for n in range(size)
    ]
    return Crew(folder / "consumers", commands, environment)


async def follow(run: Run[Any], words: int, random: Random) -> None:
    """Read a stream to its end, in pieces: a reader goes on after the last id that it has."""
    kept: list[Frame[Any]] = []
    last = "0-0"
    piece = random.choice([10, 50, 10_000])
    while True:
        count = 0
        try:
            async for one in run.stream(since=last, kinds=["text"]):
                assert isinstance(one, Frame | Rewind)
                assert parse_id(one.id) > parse_id(last)
                last = one.id
                if isinstance(one, Rewind):
                    assert one.to == "0-0" or one.to in [frame.id for frame in kept], one
                    kept = [frame for frame in kept if one.keeps(frame)]
                else:
                    kept.append(one)
                count += 1
                if count == piece:
                    break
            else:
                if await has_completed(run):
                    break
        except Unavailable:
            await asyncio.sleep(0.1)
    assert [frame.text for frame in kept] == [str(n) for n in range(words)]


async def has_completed(run: Run[Any]) -> bool:
    """Return whether an ended execution has completed. Let it go on if kills have ended it.

    An execution that lost many workers is a suspect. It then runs alone, and fails when three more
    workers are killed under it.
    """
    try:
        await insist(run.result)
    except ExecutionFailed as failed:
        if "ran alone" not in str(failed):
            raise
        client = await run.client()
        await insist(lambda: client.executions.retry(run.id))
        return False
    return True


async def break_things(
    server: Server, proxy: Proxy, fleet: Fleet, consumers: Crew, random: Random, scale: Scale
) -> None:
    """Kill workers and consumers while frames come in, cut connections, and crash the server."""
    kills = crashes = 0
    whole = scale.executions * (scale.words // 9)
    while kills < scale.kills or crashes < scale.crashes:
        ((done,),) = await insist(lambda: server.fetch("select count(*) from ff.step"))
        if crashes < scale.crashes and done >= whole * (crashes + 1) / (scale.crashes + 2):
            await server.restart(random.choice((signal.SIGQUIT, signal.SIGKILL)))
            crashes += 1
        if kills < scale.kills and done >= whole * kills / (scale.kills + 1):
            fleet.kill(random.randrange(scale.workers))
            # In turn, so that the one that has the subscription is among them.
            consumers.kill(kills % len(consumers.workers))
            kills += 1
        proxy.sever(random)
        fleet.supervise()
        consumers.supervise()
        await asyncio.sleep(random.uniform(0.1, 0.5))


async def until_all_mirrored(server: Server, path: Path, consumers: Crew) -> None:
    """Give the consumers time to see everything; `judge_mirror` tells whether they did."""
    deadline = monotonic() + 120
    ((total,),) = await server.fetch("select count(*) from ff.event")
    while len({told[1:] for told in read_mirror(path)}) < total and monotonic() < deadline:
        consumers.supervise()
        await asyncio.sleep(0.2)


async def judge_mirror(server: Server, path: Path) -> None:
    """Every event came at least once, and those of an execution in order."""
    told = list(read_mirror(path))
    rows = await server.fetch(
        "select '{fp:' || partition_key || '}:' || execution_id as id, version from ff.event"
    )
    assert {(row["id"], row["version"]) for row in rows} == {(id, v) for _, id, v in told}
    versions: dict[str, int] = {}
    for _, id, version in dict.fromkeys((0, id, version) for _, id, version in told):
        assert version > versions.get(id, 0), f"{id} version {version} came late"
        versions[id] = version
    assert len({who for who, _, _ in told}) > 1, "no consumer took over"
