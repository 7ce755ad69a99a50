"""What every process of a run has: a part to play, a seed, a history to write, and a way to end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from random import Random

from flowfabric.client import FlowFabric
from flowfabric.core.errors import Unavailable

from .history import Recorder
from .verbs import Verbs

NAMESPACE = "chaos"
LANE = "chaos"
TASK = "work"


class Calm:
    """Tells the processes of a run that the faults are over: a file that appears."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "calm"

    def declare(self) -> None:
        self._file.touch()

    def __bool__(self) -> bool:
        return self._file.exists()


class Stage:
    """One process. Its command line gives a name and a seed, its environment the rest."""

    def __init__(self, name: str, seed: str) -> None:
        # One that was killed is followed by another in its place, which is not its twin.
        process = f"{name}-{os.getpid()}"
        self.folder = Path(os.environ["CHAOS_FOLDER"])
        self.url = os.environ["CHAOS_DATABASE_URL"]
        self.lease_ttl = timedelta(seconds=float(os.environ["CHAOS_LEASE_SECONDS"]))
        # 0 is no limit.
        self.submits = int(os.environ.get("CHAOS_SUBMITS", "0"))
        self.submits_per_second = float(os.environ["CHAOS_SUBMITS_PER_SECOND"])
        self.random = Random(f"{seed} {process}")
        self.recorder = Recorder(self.folder, process)
        self.calm = Calm(self.folder)

    @asynccontextmanager
    async def verbs(self) -> AsyncIterator[Verbs]:
        """A client of its own, recorded."""
        client = await self.insist(FlowFabric(self.url, namespace=NAMESPACE).open)
        try:
            yield Verbs(client, self.recorder)
        finally:
            with suppress(Unavailable):
                await client.close()

    async def insist(self, connect: Callable[[], Awaitable[FlowFabric]]) -> FlowFabric:
        """Connect, however long it takes, and say that the process is there."""
        while True:
            try:
                client = await connect()
            except Unavailable:
                await asyncio.sleep(0.1)
            else:
                print(f"{self.recorder.process} started: ", flush=True)
                return client


def play(part: Callable[[Stage], Awaitable[None]]) -> None:
    """The life of a process: its part, until SIGTERM."""
    with suppress(asyncio.CancelledError):
        asyncio.run(_until_told(part, Stage(*sys.argv[1:3])))


async def _until_told(part: Callable[[Stage], Awaitable[None]], stage: Stage) -> None:
    playing = asyncio.current_task()
    assert playing
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, playing.cancel)
    await part(stage)
