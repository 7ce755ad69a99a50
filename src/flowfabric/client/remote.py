"""Ask a server for the ends of executions and for new frames of streams.

A server offers no LISTEN. Instead, it delays its answer to a call until there is news or a time is
over. All callers in this process share these calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from time import monotonic

from flowfabric.client.results import BATCH, Results
from flowfabric.client.streams import Streams
from flowfabric.db.http import WAIT_SECONDS, waiting

# How long a call waits for further callers, so that they share it.
GATHER_SECONDS = 0.005
# The shortest time between two calls, in case the server answers at once without news.
LEAST_SECONDS = 0.25


class RemoteResults(Results):
    """Like Results, but asks a server instead of a database."""

    async def _run(self) -> None:
        try:
            while any(self._waiting.values()):
                await _look_until(self._hinted, self._look)
        finally:
            self._task = None

    async def _look(self) -> None:
        """Call the server, which answers when an awaited execution has ended."""
        parts = [
            (partition, group, ids[start : start + BATCH])
            for partition, group in list(self._waiting.items())
            for ids in [list(group)]
            for start in range(0, len(ids), BATCH)
        ]
        with waiting(WAIT_SECONDS):
            looks = {asyncio.create_task(self._look_at(*part)) for part in parts}
        await _first(looks)


class RemoteStreams(Streams):
    """Reads streams through a server."""

    async def _run(self) -> None:
        try:
            while any(self._tails.values()):
                for tail in self._all_tails():
                    tail.is_hinted = True
                await _look_until(self._wake, self._look)
        finally:
            self._task = None
            if any(self._tails.values()):
                # A reader came after the last call: read for it, too.
                self._start()

    async def _look(self) -> None:
        """Call the server, which answers when a followed stream has new frames."""
        with waiting(WAIT_SECONDS):
            looks = {
                asyncio.create_task(self._read(*part, is_following=True)) for part in self._hungry()
            }
        await _first(looks)


async def _look_until(
    changed: asyncio.Event, look: Callable[[], Coroutine[None, None, None]]
) -> None:
    """Run `look` until it returns, or until a new caller sets `changed`.

    In the second case, `look` is cancelled, and the next look includes the new caller.
    """
    await asyncio.sleep(GATHER_SECONDS)
    changed.clear()
    began = monotonic()
    waiting_for_change = asyncio.create_task(_wait_for_change(changed))
    looking = asyncio.create_task(look())
    await _first({waiting_for_change, looking})
    if not changed.is_set() and monotonic() - began < GATHER_SECONDS:
        try:
            async with asyncio.timeout(LEAST_SECONDS):
                await changed.wait()
        except TimeoutError:
            return


async def _wait_for_change(changed: asyncio.Event) -> None:
    await changed.wait()


async def _first(tasks: set[asyncio.Task[None]]) -> None:
    """Wait until one of the tasks is done, and cancel the others."""
    if not tasks:
        return
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in done:
        task.result()
