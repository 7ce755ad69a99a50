"""Lets a handler wait until other runs have ended. The handler keeps its slot or pauses."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from flowfabric.client import FlowFabric
from flowfabric.core.errors import ExecutionNotFound, InvalidInput
from flowfabric.core.execution import Claimed, Ending
from flowfabric.core.ids import ExecutionId
from flowfabric.handlers.waits import EndedWait, RunsWait, RunWait, Waits

# How many results one call reads.
_READ_AT_ONCE = 1000

# A run of another partition cannot wake an execution. The handler waits for such a run in its slot
# for a moment. Then the handler leaves the slot, and looks again after 1 s, 2 s, 4 s and so on.
MOMENT_SECONDS = 2.0
_FIRST_POLL = timedelta(seconds=1)
_LAST_POLL = timedelta(seconds=30)


class Looks:
    """Counts how often a waiting execution has checked a run in another partition.

    Each process keeps only its latest counts. A count starts again at 0 if it was dropped, or if
    another process claims the waiting execution.
    """

    most = 10_000

    def __init__(self) -> None:
        self._counts: OrderedDict[tuple[UUID, UUID], int] = OrderedDict()

    def count(self, waiter: UUID, target: UUID) -> int:
        """Count one more check; return how many there were before."""
        before = self._counts.pop((waiter, target), 0)
        self._counts[waiter, target] = before + 1
        if len(self._counts) > self.most:
            self._counts.popitem(last=False)
        return before

    def forget(self, waiter: UUID, target: UUID) -> None:
        self._counts.pop((waiter, target), None)


_looks = Looks()


class RunEnds:
    """Waits until runs have ended, for one run of a handler."""

    def __init__(
        self,
        claimed: Claimed,
        client: FlowFabric,
        waits: Waits,
        *,
        check_running: Callable[[], None],
        on_blocking_wait: Callable[[Claimed], None],
    ) -> None:
        self._claimed = claimed
        self._client = client
        self._waits = waits
        self._check_running = check_running
        self._on_blocking_wait = on_blocking_wait
        self._existing: set[UUID] = set()
        # Runs submitted without the context. The next run of the handler submits other runs.
        self._unrecorded: set[UUID] = set()
        self._reading: dict[ExecutionId, asyncio.Future[Ending | None]] = {}

    def note_existing(self, ids: Iterable[ExecutionId]) -> None:
        """Remember runs that exist, so that a wait does not have to check this."""
        self._existing.update(id.uuid for id in ids)

    def note_unrecorded(self, ids: Iterable[ExecutionId]) -> None:
        """Remember runs for which the handler cannot pause.

        After a pause, the next run of the handler would submit other runs in their place.
        """
        self._unrecorded.update(id.uuid for id in ids)

    def is_unrecorded(self, id: ExecutionId) -> bool:
        return id.uuid in self._unrecorded

    async def wait_for_end(self, id: ExecutionId) -> Ending:
        """Wait until a run has ended, and return its ending. The handler can pause meanwhile."""
        self._check_other("run", [id])
        ending = await self._read_ending(id)
        if ending is None and await self._have_ended_since([id]):
            ending = await self._read_ending(id)
        self._check_running()
        watch = partial(self._watch, id)
        poll = self._count_look([id]) if ending is None else None
        if poll == timedelta(0):
            poll = _FIRST_POLL
            await self._wait_in_slot(watch)
            self._check_running()
            ending = await self._read_ending(id)
            self._check_running()
        if ending is None:
            ending = await self._waits.wait(RunWait(id, watch, poll))
        else:
            await self._waits.wait(EndedWait(ending.terminal_at))
        self._check_running()
        return ending

    async def wait_for_ends(self, ids: Sequence[ExecutionId], needed: int) -> list[Ending]:
        """Wait until at least `needed` of the runs `ids` have ended, and return their endings.

        The handler can pause meanwhile.
        """
        self._check_other("runs", ids)
        while True:
            read = await asyncio.gather(*(self._read_ending(id) for id in ids))
            ended = [ending for ending in read if ending is not None]
            open_ = [id for id, ending in zip(ids, read, strict=True) if ending is None]
            if await self._have_ended_since(open_):
                continue
            self._check_running()
            if len(ended) >= needed:
                times = sorted(ending.terminal_at for ending in ended)
                await self._waits.wait(EndedWait(times[needed - 1]))
                self._check_running()
                return ended
            missing = needed - len(ended)
            watch = partial(self._watch_several, open_, missing)
            poll = self._count_look(open_)
            if poll == timedelta(0):
                await self._wait_in_slot(watch)
            else:
                here = tuple(id for id in open_ if not self._is_away(id))
                # Runs of other partitions may end first, so perhaps fewer runs must end here.
                least = max(missing - (len(open_) - len(here)), 1)
                await self._waits.wait(RunsWait(here, least, watch, poll))
            self._check_running()

    def _is_away(self, id: ExecutionId) -> bool:
        return id.partition_key != self._claimed.partition_key

    def _count_look(self, ids: Sequence[ExecutionId]) -> timedelta | None:
        """Count a check of each run that is in another partition than the handler.

        Return how long to wait before the next check. Return zero if one of these runs is checked
        for the first time, and None if there are no such runs.
        """
        waiter = self._claimed.execution_id
        counts = [_looks.count(waiter, id.uuid) for id in ids if self._is_away(id)]
        if not counts:
            return None
        before = min(counts)
        return min(_FIRST_POLL * 2 ** min(before - 1, 10), _LAST_POLL) if before else timedelta(0)

    async def _wait_in_slot(self, watch: Callable[[asyncio.Future[Any]], None]) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waits.begin_work()
        try:
            watch(future)
            async with asyncio.timeout(MOMENT_SECONDS):
                await future
        except TimeoutError:
            future.cancel()
        finally:
            self._waits.end_work()

    def _check_other(self, field: str, ids: Sequence[ExecutionId]) -> None:
        if any(id.uuid == self._claimed.execution_id for id in ids):
            raise InvalidInput(field=field, problem="a handler cannot wait for its own execution")

    async def _have_ended_since(self, ids: Sequence[ExecutionId]) -> bool:
        """Tell whether one of the runs has ended. Raise ExecutionNotFound if one does not exist.

        Runs that are known to exist are not checked.
        """
        unknown = [id for id in ids if id.uuid not in self._existing]
        if not unknown:
            return False
        self._waits.begin_query()
        try:
            states = await asyncio.gather(*map(self._client.executions.state, unknown))
        finally:
            self._waits.end_query()
        for id, state in zip(unknown, states, strict=True):
            if state is None:
                raise ExecutionNotFound(
                    "There is nothing to wait for: the execution is not in the database (trimmed, "
                    "or its transaction has not committed).",
                    execution_id=id,
                )
            self._existing.add(id.uuid)
        return any(state is not None and state.is_terminal for state in states)

    async def _read_ending(self, id: ExecutionId) -> Ending | None:
        """Return how a run ended, or None if it has not ended.

        Concurrent branches share one call of the database.
        """
        reading = self._reading.get(id)
        if reading is None:
            reading = self._reading[id] = asyncio.get_running_loop().create_future()
            if len(self._reading) == 1:
                self._waits.begin_query()
                task = asyncio.create_task(self._read())
                task.add_done_callback(lambda _: self._waits.end_query())
        return await asyncio.shield(reading)

    async def _read(self) -> None:
        reading, self._reading = self._reading, {}
        partitions: dict[int, list[ExecutionId]] = {}
        for id in reading:
            partitions.setdefault(id.partition_key, []).append(id)
        for partition, ids in partitions.items():
            try:
                found = await self._read_partition(partition, ids)
            except Exception as error:
                for id in ids:
                    reading[id].set_exception(error)
                continue
            for id in ids:
                reading[id].set_result(found.get(id.uuid))

    async def _read_partition(
        self, partition: int, ids: Sequence[ExecutionId]
    ) -> dict[UUID, Ending]:
        found = {}
        for start in range(0, len(ids), _READ_AT_ONCE):
            page = [id.uuid for id in ids[start : start + _READ_AT_ONCE]]
            for ending in await self._client.executions.read_results(partition, page):
                found[ending.execution_id] = ending
                _looks.forget(self._claimed.execution_id, ending.execution_id)
        return found

    def _watch(self, id: ExecutionId, future: asyncio.Future[Any]) -> None:
        self._on_blocking_wait(self._claimed)
        watching = asyncio.ensure_future(self._client.results.wait(id))

        def on_end(watching: asyncio.Future[Ending]) -> None:
            if future.done() or watching.cancelled():
                return
            if (error := watching.exception()) is not None:
                future.set_exception(error)
            else:
                future.set_result(watching.result())

        watching.add_done_callback(on_end)
        future.add_done_callback(lambda _: watching.cancel())

    def _watch_several(
        self, ids: Sequence[ExecutionId], needed: int, future: asyncio.Future[Any]
    ) -> None:
        self._on_blocking_wait(self._claimed)
        watching = [asyncio.ensure_future(self._client.results.wait(id)) for id in ids]
        missing = needed

        def on_end(one: asyncio.Future[Ending]) -> None:
            nonlocal missing
            missing -= 1
            if future.done() or one.cancelled():
                return
            if (error := one.exception()) is not None:
                future.set_exception(error)
            elif missing <= 0:
                future.set_result(None)

        def stop(_: object) -> None:
            for one in watching:
                one.cancel()

        for one in watching:
            one.add_done_callback(on_end)
        future.add_done_callback(stop)
