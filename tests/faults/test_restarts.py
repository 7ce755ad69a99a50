"""The server is restarted, at once and in order, and is away for a while: callers get an answer
or a clear error, never nothing, and workers take up their work by themselves."""

from __future__ import annotations

import asyncio
import re
import signal
from collections import Counter
from pathlib import Path
from random import Random
from time import monotonic

import pytest

from flowfabric.client import FlowFabric
from flowfabric.core.errors import ConnectionLost, Unavailable
from flowfabric.core.execution import Failure, Route, Submission
from flowfabric.core.ids import mint
from flowfabric.core.states import FailureClass
from flowfabric.db.call import PATIENCE_SECONDS

from .load import Load, progress, tasks_on, until_all_ended
from .server import Server
from .workers import Fleet

IMMEDIATE, FAST = signal.SIGQUIT, signal.SIGINT


async def test_a_worker_survives_a_restart(killable: Server, tmp_path: Path) -> None:
    """The sample in `make test` of the test below."""
    load = Load(40, Random(1))
    app, tasks = tasks_on(killable.url)
    fleet = Fleet(tmp_path, killable.url, 1, concurrency=5, lease=2)
    try:
        await fleet.until_started()
        process = fleet.workers[0]
        submitting = asyncio.create_task(load.submit(tasks, seconds=0.5, piece=5))
        while (await progress(killable))[0] < 10:
            pass
        await killable.restart(IMMEDIATE)
        await submitting
        await until_all_ended(killable)
        await load.check(killable)
        assert fleet.workers == [process]
        assert fleet.close() == [0]
        assert fleet.errors() == []
    finally:
        fleet.destroy()
        await app.close()


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(IMMEDIATE, id="immediate", marks=pytest.mark.slow(short=0)),
        pytest.param(FAST, id="fast", marks=pytest.mark.slow),
    ],
)
async def test_workers_survive_restarts(
    durable: Server, tmp_path: Path, number: signal.Signals
) -> None:
    load = Load(150, Random(1))
    app, tasks = tasks_on(durable.url)
    fleet = Fleet(tmp_path, durable.url, 2, concurrency=5, lease=2)
    try:
        await fleet.until_started()
        processes = list(fleet.workers)
        submitting = asyncio.create_task(load.submit(tasks, seconds=4, piece=10))
        for _ in range(2):
            await asyncio.sleep(1)
            await durable.restart(number)
            await durable.check_invariants()
        await submitting
        await until_all_ended(durable)
        await load.check(durable)
        assert fleet.workers == processes
        assert fleet.close() == [0, 0]
        assert fleet.errors() == []
    finally:
        fleet.destroy()
        await app.close()


@pytest.mark.slow
async def test_callers_of_a_group_commit_get_an_answer_or_an_error(durable: Server) -> None:
    """Submits and settlements at once, four restarts of both kinds: nobody is left without."""
    outcomes: Counter[str] = Counter()
    confirmed: set[object] = set()
    settled: Counter[str] = Counter()
    stop = asyncio.Event()
    slowest = 0.0
    route = Route("default", "default", "restarts")

    async def answered(what: str, call: object) -> object:
        nonlocal slowest
        began = monotonic()
        try:
            answer = await asyncio.wait_for(call, PATIENCE_SECONDS + 300)  # type: ignore[arg-type]
        except Unavailable:
            outcomes[f"{what} unavailable"] += 1
            return None
        finally:
            slowest = max(slowest, monotonic() - began)
        outcomes[f"{what} answered"] += 1
        return answer

    async with FlowFabric(durable.url) as client:

        async def submit() -> None:
            while not stop.is_set():
                submission = Submission(id=mint(), route=route, payload=b"null")
                if await answered("submit", client.executions.submit(submission)) is not None:
                    confirmed.add(submission.id.uuid)

        async def work(number: int) -> None:
            while not stop.is_set():
                claim = client.executions.claim(
                    worker_id="w", worker_instance_id=f"w-{number}", limit=20
                )
                held = await answered("claim", claim) or []
                for position, one in enumerate(held):  # type: ignore[var-annotated, arg-type]
                    if position % 5:
                        call = asyncio.ensure_future(client.executions.complete(one, b"1"))
                    else:
                        failure = Failure(FailureClass.PERMANENT, "no")
                        call = asyncio.ensure_future(client.executions.fail(one, failure))
                    settling.add(asyncio.create_task(settle(call)))
                await asyncio.sleep(0.01)

        async def settle(call: object) -> None:
            before = outcomes["settle unavailable"]
            await answered("settle", call)
            settled["done"] += outcomes["settle unavailable"] == before

        settling: set[asyncio.Task[None]] = set()
        callers = [asyncio.create_task(submit()) for _ in range(16)]
        callers += [asyncio.create_task(work(number)) for number in range(2)]
        for number in (IMMEDIATE, FAST, IMMEDIATE, FAST):
            await asyncio.sleep(0.5)
            await durable.restart(number)
        await asyncio.sleep(0.5)
        stop.set()
        await asyncio.wait_for(asyncio.gather(*callers), 60)
        await asyncio.wait_for(asyncio.gather(*settling), 90)
    await durable.check_invariants()
    stored = {row[0] for row in await durable.fetch("select execution_id from ff.execution")}
    assert confirmed <= stored, "confirmed and lost"
    ended = (await durable.fetch("select count(*) from ff.execution where phase = 'terminal'"))[0][
        0
    ]
    assert ended >= settled["done"] > 10
    print(f"{dict(sorted(outcomes.items()))}, slowest {slowest:.1f} s, {len(stored)} stored")


@pytest.mark.slow(short=0)
async def test_a_long_outage_is_told_and_survived(durable: Server, tmp_path: Path) -> None:
    app, tasks = tasks_on(durable.url)
    fleet = Fleet(tmp_path, durable.url, 1, concurrency=5, lease=2)
    try:
        await fleet.until_started()
        runs = [await tasks["nap"].submit(n, 0.2) for n in range(40)]
        await (await tasks["quick"].submit(0)).result(timeout=60)
        outage = asyncio.create_task(durable.restart(IMMEDIATE, down=15))
        await asyncio.sleep(1)
        began = monotonic()
        with pytest.raises(ConnectionLost, match="did not answer submit_executions for 10 s"):
            await tasks["quick"].submit(1)
        assert PATIENCE_SECONDS - 2 < monotonic() - began < PATIENCE_SECONDS + 30
        assert not outage.done()
        assert await outage >= 15
        back = monotonic()
        assert [await run.result(timeout=60) for run in runs]
        run = await tasks["quick"].submit(3)
        assert await run.result(timeout=60) == [22, 0]
        print(f"all work done {monotonic() - back:.1f} s after the server came back")
        await durable.check_invariants()
        assert fleet.close() == [0]
        log = fleet.log()
        assert log.count("database lost, trying again until it is back: ") == 1
        assert len(re.findall(r"database is back after \d\d\.\d s: ", log)) == 1
        assert "retrying" not in log
    finally:
        fleet.destroy()
        await app.close()
