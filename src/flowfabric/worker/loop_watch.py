"""Detects a handler that blocks the workers' event loop. Runs on the heartbeat's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import timedelta
from time import monotonic

from flowfabric.core.execution import Claimed
from flowfabric.telemetry import WORKER_LOGGER, execution_in_log, named

# The loop counts as blocked after this long.
BLOCKED_SECONDS = 5.0
# How many times the loop is probed within BLOCKED_SECONDS.
_PROBES = 5

# Returns the asyncio tasks of the handlers on the loop, with their executions.
Handlers = Callable[[], Iterable[tuple[asyncio.Task[None], Claimed]]]


class LoopWatch:
    """Probes the loop while handlers run on it, and logs when the loop does not answer."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        handlers: Handlers,
        seconds: float | None = None,
    ) -> None:
        self._loop = loop
        self._handlers = handlers
        self._seconds = BLOCKED_SECONDS if seconds is None else seconds
        self._lag = 0.0

    @property
    def lag(self) -> timedelta:
        """How long the loop took to answer the last probe; 0 before the first one."""
        return timedelta(seconds=round(self._lag, 6))

    async def watch(self) -> None:
        """Probe the loop again and again, until it is cancelled or the loop is closed."""
        while True:
            await asyncio.sleep(self._seconds / _PROBES)
            if any(True for _ in self._handlers()):
                try:
                    await self._probe()
                except RuntimeError:  # the loop is closed
                    return

    async def _probe(self) -> None:
        here, answered = asyncio.get_running_loop(), asyncio.Event()
        asked_at = monotonic()

        def answer() -> None:
            self._lag = monotonic() - asked_at
            here.call_soon_threadsafe(answered.set)

        self._loop.call_soon_threadsafe(answer)
        try:
            async with asyncio.timeout(self._seconds):
                await answered.wait()
        except TimeoutError:
            if not self._loop.is_running():  # a stopped loop is not blocked
                return
            WORKER_LOGGER.warning(
                "event loop blocked for %g s: %s. Leases are renewed, but nothing else runs. Make "
                "a blocking handler a def, or use asyncio.to_thread",
                self._seconds,
                self._culprit(),
            )
            await answered.wait()
            WORKER_LOGGER.warning("event loop runs again after %.1f s", monotonic() - asked_at)

    def _culprit(self) -> str:
        """Name the handler that blocks the loop, as far as another thread can tell."""
        current = asyncio.current_task(self._loop)
        handlers = list(self._handlers())
        for task, claimed in handlers:
            if task is current:
                return f"by {claimed.task} {claimed.id}"
        # The handler may have started this task. Before Python 3.12 a task has no `get_context`.
        context_of = getattr(current, "get_context", None)
        about = context_of().get(execution_in_log) if context_of else None
        if about is not None:
            return f"by {about.task} {about.id}"
        return f"by one of {named(claimed for _, claimed in handlers)}, or by other code"
