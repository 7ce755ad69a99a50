"""Runs suspects: executions that two workers in a row had leased when they crashed.

A worker runs a suspect alone, so that a crash interrupts no other execution.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING
from uuid import UUID

from flowfabric.client import FlowFabric
from flowfabric.client.executions import Floor
from flowfabric.core.errors import FlowFabricError
from flowfabric.core.execution import Claimed
from flowfabric.telemetry import WORKER_LOGGER
from flowfabric.worker.heartbeat import Heartbeat
from flowfabric.worker.log_text import attempt_text

if TYPE_CHECKING:
    from flowfabric.worker.runner import Runner
    from flowfabric.worker.settlement import Settlement

# How long a suspect waits for other executions to end before it is postponed.
QUIET_SECONDS = 30.0
# How often a worker checks whether anything else still runs.
QUIET_POLL_SECONDS = 0.02
# How long a suspect runs alone. Then the worker takes other work too.
ALONE_SECONDS = 30.0
# The longest turn of ordinary work. An urgent suspect waits at most this long.
ORDINARY_SECONDS = 2.0
# How long a suspect is postponed, and how many times by one worker. After that it runs beside other
# work, because it must not wait for ever for handlers that never end.
POSTPONE = timedelta(seconds=15)
MAX_POSTPONES = 3


class Suspects:
    """Decides when a worker runs a suspect alone, and when it runs ordinary work.

    Suspects and ordinary work take turns, so that neither waits for ever. A turn of ordinary work
    is as long as the turn of the suspect before it, but at most ORDINARY_SECONDS. The turn also
    ends when there is no ordinary work.
    """

    def __init__(self) -> None:
        # The suspect that waits or runs here. The worker claims nothing else until its turn ends.
        self.current: Claimed | None = None
        # Whether to tell the database that the suspect runs alone.
        self.is_alone = False
        # Set when the suspect does not stop, or when it waits for other executions.
        self.turn_ended = asyncio.Event()
        self._exist = False
        self._last: Floor | None = None
        self._partition = 0
        self._since = 0.0
        self._ordinary_until = 0.0
        self._postpones: dict[UUID, int] = {}

    def limit(self, limit: int) -> int:
        """Return how many executions to claim: 1 if a suspect may be among them, else `limit`."""
        return 1 if self._exist and self.floor is None else limit

    @property
    def floor(self) -> Floor | None:
        """The position after the suspects, where claims start in the turn of ordinary work.

        None at other times.
        """
        return self._last if monotonic() < self._ordinary_until else None

    def floor_in(self, partition: int) -> Floor | None:
        """Return the floor if the suspects are in this partition."""
        return self.floor if partition == self._partition else None

    def split(self, claimed: Sequence[Claimed]) -> tuple[list[Claimed], list[Claimed]]:
        """Split claimed executions into ordinary ones and suspects."""
        found = [one for one in claimed if one.crash_count > 1]
        if found:
            last = found[-1]
            self._exist = True
            self._last = (last.rank, last.order_at, last.execution_id)
            self._partition = last.partition_key
            return [one for one in claimed if one.crash_count < 2], found
        if not claimed and self.floor is not None:
            self._ordinary_until = 0.0
        elif self.floor is None:
            self._exist = False
        return list(claimed), found

    def begin_turn(self, suspect: Claimed) -> None:
        self.current = suspect
        self.is_alone = False
        self._since = monotonic()

    def end_turn(self) -> None:
        """End the turn of the suspect, and begin the turn of ordinary work."""
        self.current = None
        now = monotonic()
        self._ordinary_until = now + min(now - self._since, ORDINARY_SECONDS)

    def end_turn_of(self, claimed: Claimed) -> None:
        """If `claimed` is the current suspect, let other work run beside it.

        Called when `claimed` waits for other executions, or still runs after it was told to stop.
        """
        if self.current is claimed:
            self.turn_ended.set()

    def may_postpone(self, suspect: Claimed) -> bool:
        """Tell whether `suspect` may be postponed once more. If so, count the postponement."""
        count = self._postpones.get(suspect.execution_id, 0) + 1
        if count > MAX_POSTPONES:
            return False
        self._postpones[suspect.execution_id] = count
        return True

    def forget_postpones(self, suspect: Claimed) -> None:
        self._postpones.pop(suspect.execution_id, None)


class SuspectRunner:
    """Runs one suspect of a worker when nothing else runs in the process."""

    def __init__(
        self,
        client: FlowFabric,
        heartbeat: Heartbeat,
        runner: Runner,
        settlement: Settlement,
        suspects: Suspects,
        *,
        stopping: asyncio.Event,
        is_quiet: Callable[[], bool],
        on_turn_ended: Callable[[], None],
        stop: Callable[[], None],
    ) -> None:
        self._client = client
        self._heartbeat = heartbeat
        self._runner = runner
        self._settlement = settlement
        self._suspects = suspects
        self._stopping = stopping
        self._is_quiet = is_quiet
        self._on_turn_ended = on_turn_ended
        self._stop = stop
        self._task: asyncio.Task[None] | None = None

    def start(self, suspects: Sequence[Claimed]) -> None:
        """Begin the turn of the first suspect, and release the other suspects.

        The release comes first: if the first suspect crashes the worker, the other suspects must
        not be leased.
        """
        self._suspects.begin_turn(suspects[0])
        self._task = asyncio.create_task(self._run(suspects[0], suspects[1:]))

    async def wait(self) -> None:
        """If a suspect has its turn, wait until the turn has ended."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self, suspect: Claimed, others: Sequence[Claimed]) -> None:
        try:
            if others:
                await self._settlement.release(others, "suspects_run_alone")
            is_alone = await self._wait_until_quiet(suspect)
            if self._suspects.current is not suspect or self._stopping.is_set():
                return
            if not is_alone and (
                self._suspects.may_postpone(suspect) or self._runner.slots.free <= 0
            ):
                await self._postpone(suspect)
                return
            await self._run_now(suspect, is_alone)
        except FlowFabricError as error:
            WORKER_LOGGER.warning("turn of a suspect ended: %s: %s", attempt_text(suspect), error)
        except asyncio.CancelledError:
            # The loop is ending. The suspect stays current, so that the drain releases it.
            self._stop()
            raise
        finally:
            if self._suspects.current is suspect and not self._stopping.is_set():
                self._suspects.end_turn()
            self._on_turn_ended()

    async def _run_now(self, suspect: Claimed, is_alone: bool) -> None:
        self._suspects.is_alone = is_alone
        self._suspects.turn_ended.clear()
        WORKER_LOGGER.warning(
            "suspect runs %s: %s, %s workers in a row crashed with it",
            "alone" if is_alone else "beside others, because they do not end",
            attempt_text(suspect),
            suspect.crash_count,
        )
        task = self._runner.start(suspect)
        if is_alone:
            await self._wait_for_turn_end(task)
            if self._runner.is_running(suspect) and not self._stopping.is_set():
                await self._client.executions.start(suspect, alone=False)
        self._suspects.forget_postpones(suspect)

    async def _wait_for_turn_end(self, task: asyncio.Task[None]) -> None:
        """Wait until the suspect has ended, its turn is over, or the worker stops."""
        stopping = asyncio.create_task(self._stopping.wait())
        turn_ended = asyncio.create_task(self._suspects.turn_ended.wait())
        try:
            await asyncio.wait(
                [task, stopping, turn_ended],
                timeout=ALONE_SECONDS,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            stopping.cancel()
            turn_ended.cancel()

    async def _wait_until_quiet(self, suspect: Claimed) -> bool:
        """Wait until nothing else runs in the process. Return False if that takes too long, if the
        suspect has lost its lease, or if the worker stops.
        """
        until = monotonic() + QUIET_SECONDS
        while not self._is_quiet():
            if self._suspects.current is not suspect or self._stopping.is_set():
                return False
            if monotonic() > until:
                return False
            await asyncio.sleep(QUIET_POLL_SECONDS)
        return True

    async def _postpone(self, suspect: Claimed) -> None:
        WORKER_LOGGER.warning(
            "suspect postponed for %s, other handlers do not end: %s",
            POSTPONE,
            attempt_text(suspect),
        )
        try:
            await self._client.executions.delay(suspect, POSTPONE)
        finally:
            self._heartbeat.drop(suspect)
