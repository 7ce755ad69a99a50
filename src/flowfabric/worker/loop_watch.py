"""Watches from the heartbeat's thread whether the workers' event loop moves, and says who holds it
up if it does not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from time import monotonic

from flowfabric.core.execution import Claimed
from flowfabric.telemetry import WORKER_LOGGER, execution_in_log, named

# The loop is taken for blocked after this long.
STILL_SECONDS = 5.0
# It is looked at this many times as often.
_LOOKS = 5

# What runs on the loop, by the asyncio tasks of the handlers.
Handlers = Callable[[], Iterable[tuple[asyncio.Task[None], Claimed]]]


class LoopWatch:
    """Asks the loop for a sign of life, again and again, while there are handlers on it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        handlers: Handlers,
        seconds: float | None = None,
    ) -> None:
        self._loop = loop
        self._handlers = handlers
        self._seconds = STILL_SECONDS if seconds is None else seconds

    async def watch(self) -> None:
        """Runs until cancelled, or until the loop has been closed."""
        while True:
            await asyncio.sleep(self._seconds / _LOOKS)
            if any(True for _ in self._handlers()):
                try:
                    await self._feel()
                except RuntimeError:  # the loop is closed
                    return

    async def _feel(self) -> None:
        here, moved = asyncio.get_running_loop(), asyncio.Event()
        asked_at = monotonic()
        self._loop.call_soon_threadsafe(lambda: here.call_soon_threadsafe(moved.set))
        try:
            async with asyncio.timeout(self._seconds):
                await moved.wait()
        except TimeoutError:
            if not self._loop.is_running():  # it stands still because nobody runs it
                return
            WORKER_LOGGER.warning(
                "the event loop has not moved for %g s: %s. Its leases are kept, but nothing else "
                "goes on; a handler that blocks should be a def, or use asyncio.to_thread",
                self._seconds,
                self._blamed(),
            )
            await moved.wait()
            WORKER_LOGGER.warning(
                "the event loop moves again, after %.1f s", monotonic() - asked_at
            )

    def _blamed(self) -> str:
        """Who holds the loop up, as far as that can be seen from another thread."""
        current = asyncio.current_task(self._loop)
        handlers = list(self._handlers())
        for task, claimed in handlers:
            if task is current:
                return f"{claimed.task} blocks it ({claimed.id})"
        # A task that a handler has started; before Python 3.12 it does not tell of its context.
        context_of = getattr(current, "get_context", None)
        about = context_of().get(execution_in_log) if context_of else None
        if about is not None:
            return f"{about.task} blocks it ({about.id})"
        return f"blocked by one of {named(claimed for _, claimed in handlers)}, or beside them"
