"""Drains a worker: finishes or releases everything it has claimed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from flowfabric.core.execution import Claimed
from flowfabric.telemetry import WORKER_LOGGER, named
from flowfabric.worker.claims import Claimer
from flowfabric.worker.runner import Runner
from flowfabric.worker.settlement import Settlement
from flowfabric.worker.suspects import SuspectRunner

# How long a worker that stops at once waits for cancelled handlers.
HURRIED_SECONDS = 1.0


class Drain:
    """Drains one worker. A drain that is cancelled can run again."""

    def __init__(
        self,
        claimer: Claimer,
        runner: Runner,
        settlement: Settlement,
        suspect_runner: SuspectRunner,
        *,
        timeout: timedelta,
        hurrying: asyncio.Event,
        take_waiting: Callable[[], list[Claimed]],
    ) -> None:
        self._claimer = claimer
        self._runner = runner
        self._settlement = settlement
        self._suspect_runner = suspect_runner
        self._timeout = timeout
        self._hurrying = hurrying
        self._take_waiting = take_waiting

    async def run(self, claiming: asyncio.Task[None]) -> None:
        """Release executions that have not started, and wait for the running ones.

        Executions that still run after the drain timeout are then released too.
        """
        await asyncio.wait([claiming])
        self._runner.slots.close()
        self._settlement.release_later(await self._claimer.recover_last_claim())
        self._settlement.release_later(self._take_waiting())
        await self._settlement.release_noted()
        finishing = [run.task for run in self._runner.stoppable if not run.is_cancelled]
        if finishing and not self._hurrying.is_set():
            WORKER_LOGGER.info("draining: %s executions still running", len(finishing))
            await self._wait_for(finishing)
        await self._cancel_running()
        await self._suspect_runner.wait()
        # A result that cannot be stored becomes a failure. The failure must be settled too.
        while not self._settlement.is_finished:
            self._settlement.release_later(self._take_waiting())
            await self._settlement.settle_all()

    async def _wait_for(self, tasks: list[asyncio.Task[None]]) -> None:
        """Wait until `tasks` have ended, the drain timeout is over, or `_hurrying` is set."""
        ended = asyncio.ensure_future(asyncio.wait(tasks))
        hurried = asyncio.ensure_future(self._hurrying.wait())
        try:
            await asyncio.wait(
                [ended, hurried],
                timeout=self._timeout.total_seconds(),
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            ended.cancel()
            hurried.cancel()

    async def _cancel_running(self) -> None:
        """Cancel and release the running executions, and wait for their handlers to end."""
        runs = self._runner.stoppable
        unfinished = [run.claimed for run in runs if not run.is_cancelled]
        if unfinished:
            WORKER_LOGGER.warning(
                "releasing %s executions that did not finish: %s",
                len(unfinished),
                named(unfinished),
            )
        self._settlement.release_later(unfinished)
        for claimed in unfinished:
            self._runner.cancel(claimed)
        if runs:
            patience = HURRIED_SECONDS if self._hurrying.is_set() else self._runner.unwind_seconds
            await asyncio.wait([run.task for run in runs], timeout=patience)


async def finish(work: Callable[[], Awaitable[None]], hurry: Callable[[], None]) -> None:
    """Run `work` to its end, even if the asyncio task that awaits it is cancelled.

    A cancellation (for example by a second Ctrl-C) calls `hurry`. If `work` was cancelled too, it
    starts again.
    """
    interruption: asyncio.CancelledError | None = None
    task = asyncio.ensure_future(work())
    while True:
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            interruption = error
            hurry()
            continue
        if not task.cancelled() and not isinstance(task.exception(), KeyboardInterrupt):
            break
        hurry()
        task = asyncio.ensure_future(work())
    task.result()
    if interruption is not None:
        raise interruption
