"""Victims that are killed at a call to the database, and the time that passes for them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from flowfabric import PublicState, Run
from support.proofs import drawn
from worker.apps import working

# A run that took another way (the child ended before it was waited for) does not come to its point.
TRIES = 5


class Killer:
    """Starts victims, and lets time pass for them."""

    def __init__(self, app: Any, db: Any, clock: Any, process: asyncio.subprocess.Process) -> None:
        self._app = app
        self._db = db
        self._clock = clock
        self._process = process

    async def kill_at(self, run: Run[Any], point: str) -> bool:
        """Let a victim work on a run until it is killed; False if it came to the end instead."""
        assert self._process.stdin
        self._process.stdin.write(f"{self._db.url} {point}\n".encode())
        pid = int(await self._line())
        ended = asyncio.create_task(self._line())
        try:
            async with asyncio.timeout(60):
                while not ended.done():
                    await self.pass_time(run)
                    if await self.is_over(run):
                        # Killed behind its last call, it does not take long.
                        await asyncio.wait([ended], timeout=0.3)
                        break
                    await asyncio.wait([ended], timeout=0.005)
        finally:
            was_killed = ended.done()
            if not was_killed:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    # It was killed at its point a moment ago; its line has yet to arrive.
                    was_killed = True
            status = await ended
        assert status == f"ended {signal.SIGKILL.value}"
        return was_killed

    async def kill_at_each(
        self,
        points: Sequence[str],
        begin: Callable[[], Awaitable[Run[Any]]],
        check: Callable[[Run[Any], str, bool], Awaitable[None]],
        *,
        each: int = 1,
    ) -> None:
        """Kill a victim at one in `each` points of a new run, and check what becomes of the run."""
        points = points[drawn("kills").randrange(min(each, len(points))) :: each]
        met = 0
        for point in points:
            for _ in range(TRIES):
                run = await begin()
                was_killed = await self.kill_at(run, point)
                await check(run, point, was_killed)
                if was_killed:
                    met += 1
                    break
        print(f"killed at {met} points of {len(points)}")
        assert met >= len(points) - 2

    async def kill_alone_at(self, point: str) -> bool:
        """Let a victim run that ends by itself; tell whether it was killed. No time passes."""
        assert self._process.stdin
        self._process.stdin.write(f"{self._db.url} {point}\n".encode())
        await self._line()
        async with asyncio.timeout(60):
            status = await self._line()
        assert status in ("ended 0", f"ended {signal.SIGKILL.value}")
        return status != "ended 0"

    async def pass_time(self, run: Run[Any]) -> None:
        """It sleeps for an hour: nobody has to."""
        if await run.state() == PublicState.DELAYED:
            await self._clock.advance(hours=1)
            await (await self._app.client()).executions.promote_delayed()

    async def recover(self, run: Run[Any]) -> Any:
        """The leases of the dead run out, and another worker goes on."""
        await self._clock.advance(minutes=2)
        client = await self._app.client()
        await client.leases.expire()
        async with working(self._app, concurrency=2), asyncio.timeout(60):
            while not await self.is_over(run):
                await self.pass_time(run)
                await asyncio.sleep(0.005)
        return await run.result(timeout=60)

    async def is_over(self, run: Run[Any]) -> bool:
        """Whether the run and all that its ends submitted have ended."""
        if not (await run.state()).is_terminal:
            return False
        unfinished = "select exists (select from ff.execution where phase <> 'terminal')"
        return not await self._db.fetchval(unfinished)

    async def _line(self) -> str:
        assert self._process.stdout
        line = (await self._process.stdout.readline()).decode().strip()
        assert line, "the process that starts victims has ended"
        return line


@asynccontextmanager
async def killing(app: Any, db: Any, clock: Any, log: Path, what: str) -> AsyncIterator[Killer]:
    """A process whose victims work on a task of victims.py until they are killed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "steps.victims", str(log), what),
        cwd=Path(__file__).parent.parent,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    yield Killer(app, db, clock, process)
    process.kill()
    await process.communicate()
