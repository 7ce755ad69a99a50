"""Tasks that end their process, beside healthy ones: the healthy complete, the poison fails, and
nobody is blamed for the company he was in."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import pytest

from flowfabric import App
from support.database import Database

from .workers import Crew

TASKS = """
import asyncio
import os
import time

from flowfabric import App

app = App(name="poison")


@app.task(name="healthy", max_reclaims=4)
async def healthy(n: int, seconds: float) -> int:
    await asyncio.sleep(seconds)
    return n


@app.task(name="poison")
async def poison() -> None:
    os._exit(9)


@app.task(name="poison_in_thread")
def poison_in_thread() -> None:
    time.sleep(0.05)
    os._exit(9)
"""


class Supervised(Crew):
    """Workers that are started again whenever they end, as systemd would."""

    def __init__(self, folder: Path, url: str, size: int, *, lease: float) -> None:
        (folder / "poisoned.py").write_text(TASKS)
        command = [sys.executable, "-m", "flowfabric", "worker", "poisoned:app", "-c", "20"]
        environment = {"FLOWFABRIC_DATABASE_URL": url, "FLOWFABRIC_LEASE_TTL": str(lease)}
        super().__init__(folder, [command] * size, environment)
        self.ends = 0

    def supervise(self) -> None:
        for position, worker in enumerate(self.workers):
            if worker.poll() is not None:
                assert worker.returncode == 9, f"exit code {worker.returncode}\n{self.log()}"
                self.ends += 1
                self.workers[position] = self._start(position)


@dataclass(frozen=True, slots=True)
class Scale:
    poisons: Sequence[str]
    healthy: int
    seconds: float
    lease: float
    # until the last healthy one has completed, and until all have ended
    within: float
    all_within: float


BEFORE, AFTER = "poison", "poison_in_thread"
ONE, THREE = (BEFORE,), (BEFORE, AFTER, BEFORE)
SLOW = [pytest.mark.slow(short=0), pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    "scale",
    [
        pytest.param(
            Scale((AFTER,), 4, 0.3, 1.0, 90, 110), id="small", marks=pytest.mark.slow(short=1)
        ),
        pytest.param(Scale(ONE, 20, 2.5, 5.0, 60, 120), id="one, lease 5 s", marks=SLOW),
        pytest.param(Scale(THREE, 20, 2.5, 5.0, 60, 120), id="three, lease 5 s", marks=SLOW),
        pytest.param(Scale(ONE, 20, 2.5, 30.0, 240, 360), id="one, lease 30 s", marks=SLOW),
        pytest.param(Scale(THREE, 20, 2.5, 30.0, 240, 360), id="three, lease 30 s", marks=SLOW),
    ],
)
async def test_a_poison_task_does_not_take_its_neighbours_with_it(
    db: Database, tmp_path: Path, scale: Scale
) -> None:
    app = App(database_url=db.url)

    @app.task(name="healthy", max_reclaims=4)
    async def healthy(n: int, seconds: float) -> int: ...

    @app.task(name="poison")
    async def poison() -> None: ...

    @app.task(name="poison_in_thread")
    def poison_in_thread() -> None: ...

    tasks = {BEFORE: poison, AFTER: poison_in_thread}
    poisons = [await tasks[name].submit() for name in scale.poisons]
    await healthy.submit_many([(n, scale.seconds) for n in range(scale.healthy)])
    crew = Supervised(tmp_path, db.url, 2, lease=scale.lease)
    began = monotonic()
    healthy_after = all_after = 0.0
    try:
        while not all_after:
            crew.supervise()
            states = await db.fetch(
                "select r.task, e.public_state::text as state, e.failure_reason, "
                "e.failure_category, e.crash_count, e.reclaim_count from ff.execution e "
                "join ff.route r using (route_id)"
            )
            ours = [row for row in states if row["task"] == "healthy"]
            assert all(row["state"] in ("waiting", "active", "completed") for row in ours), ours
            seconds = monotonic() - began
            if not healthy_after and all(row["state"] == "completed" for row in ours):
                healthy_after = seconds
            if healthy_after and all(row["state"] in ("completed", "failed") for row in states):
                all_after = seconds
            assert healthy_after or seconds < scale.within, crew.log()
            assert seconds < scale.all_within, crew.log()
            await asyncio.sleep(0.1)
        print(f"healthy done after {healthy_after:.1f} s, all after {all_after:.1f} s, "
              f"{crew.ends} processes ended")  # fmt: skip
    finally:
        crew.destroy()
        await app.close()
    assert {row["failure_category"] for row in states if row["task"] != "healthy"} == {
        "crashed_alone"
    }
    assert all(row["crash_count"] == 0 for row in states if row["task"] == "healthy")
    assert len(poisons) == len(scale.poisons)
