"""Workers that are killed and frozen, and a server that is shut down at once: every execution
ends exactly once, none is lost, and the invariants hold all the time."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import monotonic

import pytest

from .load import Load, progress, tasks_on, until_all_ended
from .server import Server
from .workers import Fleet

SEED = 20261115


@dataclass(frozen=True, slots=True)
class Scale:
    executions: int
    kills: int
    stops: int
    # How long the submits are spread, so that the faults meet work.
    seconds: float
    workers: int = 3
    lease_seconds: float = 2.0


async def test_every_execution_ends_once_if_a_worker_and_the_server_die(
    killable: Server, tmp_path: Path
) -> None:
    """The sample in `make test` of the test below."""
    await survive(killable, tmp_path, Scale(40, 1, 1, 0.5, workers=2, lease_seconds=1.0))


@pytest.mark.parametrize(
    "scale",
    [
        pytest.param(Scale(150, 3, 2, 4.0), id="small", marks=pytest.mark.slow(short=0)),
        pytest.param(
            Scale(300, 5, 3, 8.0), id="middle", marks=[pytest.mark.slow, pytest.mark.timeout(240)]
        ),
        pytest.param(
            Scale(2000, 20, 10, 36.0),
            id="full",
            marks=[pytest.mark.slow(short=0), pytest.mark.timeout(240)],
        ),
    ],
)
async def test_every_execution_ends_once_whatever_dies(
    durable: Server, tmp_path: Path, scale: Scale
) -> None:
    await survive(durable, tmp_path, scale)


@pytest.mark.slow(short=0)
@pytest.mark.timeout(240)
async def test_a_missing_fence_would_be_found(durable: Server, tmp_path: Path) -> None:
    """The same faults on an engine that takes a result from anybody: the test must not pass."""
    await durable.remove_fence()
    with pytest.raises((AssertionError, ExceptionGroup)) as caught:
        await survive(durable, tmp_path, Scale(800, 5, 12, 40.0))
    error = caught.value
    while isinstance(error, ExceptionGroup):
        (error,) = error.exceptions
    assert isinstance(error, AssertionError), error
    # ... and for the right reason: not because a worker could not start, for one.
    assert re.search(r"name='[OLS]\d\d'|has the result|ended \d+ times", str(error)), error
    print(f"found: {error}")


async def survive(durable: Server, tmp_path: Path, scale: Scale) -> None:
    random = Random(SEED)
    load = Load(scale.executions, Random(SEED + 1))
    app, tasks = tasks_on(durable.url)
    fleet = Fleet(tmp_path, durable.url, scale.workers, concurrency=3, lease=scale.lease_seconds)
    nemesis = Nemesis(fleet, durable, random, scale)
    checks = 0
    try:
        await fleet.until_started()
        began = monotonic()
        async with asyncio.timeout(180), asyncio.TaskGroup() as group:
            submitting = group.create_task(load.submit(tasks, seconds=scale.seconds))
            nemesis.is_late = submitting.done
            breaking = group.create_task(nemesis.run())
            while not (submitting.done() and breaking.done()):
                fleet.supervise()
                await durable.check_invariants()
                checks += 1
                total, ended = await progress(durable)
                print(f"{monotonic() - began:5.1f} s  {ended}/{total} ended  {nemesis}")
                await asyncio.wait([submitting, breaking], timeout=1)
        fleet.supervise()
        await until_all_ended(durable)
        ends = await load.check(durable)
        assert fleet.close() == [0] * scale.workers
        log, errors = fleet.log(), fleet.errors()
    finally:
        await app.close()
        fleet.destroy()

    assert (nemesis.kills, nemesis.stops, nemesis.restarts) == (scale.kills, scale.stops, 1)
    events = {
        row["kind"]: row["count"]
        for row in await durable.fetch("select kind::text, count(*) from ff.event group by 1")
    }
    # The faults must have bitten, or this proves nothing.
    refused = len(re.findall("ended too late|lost the lease|lease not renewed: ", log))
    assert events["reclaimed"] >= scale.kills // 2
    assert refused >= scale.stops // 2, log
    assert "could not be settled" not in log, log
    assert errors == []
    print(
        f"{monotonic() - began:.1f} s: {nemesis}; {checks + 1} checks of the invariants; "
        f"{refused} late calls of zombies refused; {load.refused} submits refused; "
        f"{dict(sorted(ends.items()))}; events {dict(sorted(events.items()))}"
    )


class Nemesis:
    """Kills, stops and the one shutdown, spread over the run by a seeded generator."""

    def __init__(self, fleet: Fleet, server: Server, random: Random, scale: Scale) -> None:
        self._fleet = fleet
        self._server = server
        self._random = random
        self._scale = scale
        self._stopped: set[int] = set()
        self.kills = self.stops = self.restarts = 0
        self.away = 0.0
        # Whether no more work is to come, so that there is no waiting for a busy victim.
        self.is_late: Callable[[], bool] = lambda: False

    def __str__(self) -> str:
        return (
            f"{self.kills} kill -9, {self.stops} SIGSTOP, {self.restarts} immediate shutdown"
            f" ({self.away:.1f} s away)"
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._stop_and_continue())
            group.create_task(self._kill())
            group.create_task(self._restart())

    async def _stop_and_continue(self) -> None:
        while self.stops < self._scale.stops:
            await asyncio.sleep(self._random.uniform(0.2, 0.6))
            position = await self._victim()
            self._stopped.add(position)
            self._fleet.stop(position)
            # What it had sent before may still be answered; a zombie has to be left with a lease.
            await asyncio.sleep(0.1)
            if self.is_late() or self._fleet.workers[position].pid in await self._holders():
                # The last renewal was earlier, so this is beyond the lease in any case. A little
                # beyond is worst: its successor is at work then.
                late = self._random.choice((0.0, 0.2, 0.4, 1.0))
                await asyncio.sleep(self._scale.lease_seconds + late)
                self.stops += 1
            self._fleet.go_on(position)
            self._stopped.discard(position)

    async def _kill(self) -> None:
        every = self._scale.seconds / self._scale.kills
        while self.kills < self._scale.kills:
            await asyncio.sleep(every * self._random.uniform(0.6, 1.2))
            self._fleet.kill(await self._victim())
            self.kills += 1

    async def _restart(self) -> None:
        await asyncio.sleep(self._scale.seconds / 2)
        self.away = await self._server.restart(signal.SIGQUIT)
        self.restarts += 1

    async def _victim(self) -> int:
        """A worker that is not stopped and, if one can be found soon, has work in hand."""
        for _ in range(20):
            holders = await self._holders()
            free = [i for i in range(self._scale.workers) if i not in self._stopped]
            if busy := [i for i in free if self._fleet.workers[i].pid in holders]:
                return self._random.choice(busy)
            await asyncio.sleep(0.02)
        return self._random.choice(free)

    async def _holders(self) -> set[int]:
        """The processes that hold a lease on something that takes its time."""
        rows = await self._server.fetch(
            "select distinct split_part(reverse(e.worker_instance_id), '-', 2) as pid"
            " from ff.execution e join ff.route r using (route_id)"
            " where e.ownership = 'leased' and r.task in ('nap', 'block')"
        )
        return {int(row["pid"][::-1]) for row in rows}
