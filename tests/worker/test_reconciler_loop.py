"""The loop of the reconcilers: until empty, then until the next timer, whatever fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import pairwise
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

from flowfabric.client import FlowFabric
from flowfabric.client.reconciler_passes import Due, Dues
from flowfabric.core.errors import Unavailable
from flowfabric.db import functions
from flowfabric.db.partitions import Numbers
from flowfabric.reconcilers.loop import MIN_PAUSE_SECONDS, run_reconcilers
from flowfabric.reconcilers.table import RECONCILERS, Reconciler
from flowfabric.telemetry import Meter
from worker.waiting import eventually

CLIENT: Any = SimpleNamespace(database=SimpleNamespace(meter=Meter()))


class Passes:
    """A reconciler that answers from a list, and then that there is nothing to do."""

    def __init__(
        self, *answers: Any, cadence: float = 60.0, batch: int = 500, due: Due | None = None
    ) -> None:
        self.answers = list(answers)
        self.times: list[float] = []
        self.limits: list[int] = []
        self.reconciler = Reconciler(
            "test", timedelta(seconds=cadence), batch, lambda client, limit: self.run(limit), due
        )

    async def run(self, limit: int) -> Any:
        self.times.append(monotonic())
        self.limits.append(limit)
        answer = self.answers.pop(0) if self.answers else (0, None)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def no_stagger(monkeypatch):
    """Start at once instead of within a quarter of the cadence."""
    monkeypatch.setattr("random.uniform", lambda low, high: 0.0 if low == 0 else 1.0)


@asynccontextmanager
async def looping(*passes: Passes, client: Any = CLIENT) -> AsyncIterator[None]:
    task = asyncio.create_task(run_reconcilers(client, [one.reconciler for one in passes]))
    try:
        yield
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.parametrize("error", [Unavailable("no database"), ZeroDivisionError("odd")])
async def test_a_failing_pass_stops_neither_its_loop_nor_the_others(error, caplog):
    failing = Passes(error, error, cadence=0.02)
    other = Passes(cadence=0.02)
    with caplog.at_level(logging.WARNING):
        async with looping(failing, other):
            await eventually(lambda: len(failing.times) >= 5 and len(other.times) >= 5)

    assert caplog.text.count("reconciler failed and will retry: test") == 2


async def test_failures_are_repeated_at_growing_intervals():
    failing = Passes(*[Unavailable("no")] * 4, cadence=0.02)
    async with looping(failing):
        await eventually(lambda: len(failing.times) >= 5)

    pauses = [b - a for a, b in pairwise(failing.times)]
    # a busy machine makes a pause longer, never shorter
    for pause, least in zip(pauses, (0.02, 0.04, 0.08, 0.16), strict=False):
        assert pause >= 0.95 * least


async def test_a_pass_that_failed_is_repeated_with_fewer_rows_until_none_are_left():
    """500 ends with large hooks may take longer than a statement_timeout; fewer do not."""
    slow = Unavailable("canceling statement due to statement timeout")
    passes = Passes(slow, slow, (31, None), (31, None), (7, None), *[slow] * 6, cadence=0.001)
    async with looping(passes):
        await eventually(lambda: len(passes.limits) >= 13)
    assert passes.limits[:13] == [500, 125, 31, 31, 31, 500, 125, 31, 7, 1, 1, 1, 500]


async def test_a_full_batch_is_followed_by_the_next_at_once():
    passes = Passes((10, None), (10, None), (10, None), (3, None), batch=10)
    async with looping(passes):
        await eventually(lambda: len(passes.times) == 4)
        first, last = passes.times[0], passes.times[3]
        await asyncio.sleep(0.05)

    assert last - first < 30  # the cadence is a minute
    assert len(passes.times) == 4


async def test_it_sleeps_until_the_next_timer_is_due():
    passes = Passes((1, timedelta(seconds=0.2)), (0, timedelta(seconds=0.1)))
    async with looping(passes):
        await eventually(lambda: len(passes.times) == 3)

    assert passes.times[1] - passes.times[0] >= 0.19
    assert passes.times[2] - passes.times[1] >= 0.09


async def test_a_timer_that_is_overdue_does_not_spin():
    passes = Passes(*[(0, timedelta(seconds=-5))] * 1000)
    async with looping(passes):
        await eventually(lambda: len(passes.times) >= 8)

    # a busy machine makes a pause longer, never shorter
    assert all(b - a >= 0.95 * MIN_PAUSE_SECONDS for a, b in pairwise(passes.times))


class Looks:
    """The database of a client. Counts the looks over its partitions, and fails them on demand."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self.partitions = SimpleNamespace(numbers=Numbers())
        self.meter = Meter()
        self.count = 0
        self.error: Exception | None = None

    async def call(self, function: Any, **arguments: Any) -> Any:
        assert function is functions.FIND_DUE
        self.count += 1
        if self.error is not None:
            raise self.error
        return await self._database.call(function, **arguments)


async def test_a_look_is_shared_while_it_is_young_enough(db, engine):
    await engine.submit(delay=timedelta(hours=1))
    async with FlowFabric(db.url) as client:
        looks = Looks(client.database)
        dues = Dues(looks)  # type: ignore[arg-type]
        found = await asyncio.gather(*(dues.due_in(due, max_age=timedelta(1)) for due in Due))
        assert looks.count == 1
        # The event of the submit is not counted yet.
        expected = {Due.TIMER, Due.MINUTE}
        assert {due for due, due_in in zip(Due, found, strict=True) if due_in} == expected
        await dues.due_in(Due.WAKE, max_age=timedelta(0))
        assert looks.count == 2


async def test_a_reconciler_runs_when_something_of_its_kind_is_due(db, engine, clock):
    await engine.submit(delay=timedelta(hours=1))
    timers, wakes = Passes(cadence=0.05, due=Due.TIMER), Passes(cadence=0.05, due=Due.WAKE)
    async with FlowFabric(db.url) as client:
        looks = Looks(client.database)
        async with looping(timers, wakes, client=SimpleNamespace(database=looks)):
            await eventually(lambda: looks.count == 3)
            assert timers.times == []
            await clock.advance(timedelta(hours=2))
            await eventually(lambda: timers.times != [])
    assert wakes.times == []


async def test_a_look_that_fails_keeps_no_reconciler_from_its_pass():
    looks = Looks(None)
    looks.error = Unavailable("a partition does not answer")
    passes = Passes(cadence=0.02, due=Due.WAKE)
    async with looping(passes, client=SimpleNamespace(database=looks)):
        await eventually(lambda: len(passes.times) >= 3)


async def test_the_reconcilers_of_a_worker_are_these():
    assert {one.name: one.cadence.total_seconds() for one in RECONCILERS} == {
        "lease_expiry": 1.5,
        "execution_expiry": 2.0,
        "delayed_promoter": 0.75,
        "wake_resolver": 1.0,
        "signal_notices": 1.0,
        "suspension_timeouts": 2.0,
        "waitpoint_expiry": 5.0,
        "edge_cancel_dispatcher": 1.0,
        "edge_cancel_reconciler": 10.0,
        "stream_expiry": 5.0,
        "cancel_backlog": 15.0,
        "unblocker": 5.0,
        "grant_reaper": 5.0,
        "gate_sweep": 1.0,
        "gate_balance": 1.0,
        "budget_reset": 15.0,
        "retention_trimmer": 60.0,
        "event_trimmer": 60.0,
        "event_roll_up": 5.0,
        "key_trimmer": 60.0,
        "worker_sweep": 30.0,
    }
