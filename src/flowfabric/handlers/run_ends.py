"""Lets a handler wait for the ends of other runs: it reads, watches, or pauses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
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


class RunEnds:
    """The runs that one handler waits for."""

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
        self._reading: dict[UUID, asyncio.Future[Ending | None]] = {}

    def note_existing(self, ids: Iterable[ExecutionId]) -> None:
        """Note runs that are known to exist."""
        self._existing.update(id.uuid for id in ids)

    def note_unrecorded(self, ids: Iterable[ExecutionId]) -> None:
        """Note runs for which the handler cannot pause, because its next run submits other runs."""
        self._unrecorded.update(id.uuid for id in ids)

    def is_unrecorded(self, id: ExecutionId) -> bool:
        return id.uuid in self._unrecorded

    async def wait_for_end(self, id: ExecutionId) -> Ending:
        """Wait until a run has ended. The handler may pause to wait."""
        self._check_other("run", [id])
        ending = await self._read_ending(id)
        if ending is None and await self._have_ended_since([id]):
            ending = await self._read_ending(id)
        self._check_running()
        if ending is None:
            ending = await self._waits.wait(RunWait(id, partial(self._watch, id)))
        else:
            await self._waits.wait(EndedWait(ending.terminal_at))
        self._check_running()
        return ending

    async def wait_for_ends(self, ids: Sequence[ExecutionId], needed: int) -> list[Ending]:
        """Wait until `needed` of several runs have ended. The handler may pause to wait."""
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
            await self._waits.wait(RunsWait(tuple(open_), missing, watch))
            self._check_running()

    def _check_other(self, field: str, ids: Sequence[ExecutionId]) -> None:
        if any(id.uuid == self._claimed.execution_id for id in ids):
            raise InvalidInput(field=field, problem="a handler cannot wait for its own execution")

    async def check_exist(self, ids: Sequence[ExecutionId]) -> None:
        """Refuse runs that do not exist."""
        await self._have_ended_since(ids)
        self._check_running()

    async def _have_ended_since(self, ids: Sequence[ExecutionId]) -> bool:
        """Refuse runs that do not exist, and tell whether any of the others have ended by now."""
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
        """Return the ending of a run, or None if it runs. Concurrent branches share one call."""
        reading = self._reading.get(id.uuid)
        if reading is None:
            reading = self._reading[id.uuid] = asyncio.get_running_loop().create_future()
            if len(self._reading) == 1:
                self._waits.begin_query()
                task = asyncio.create_task(self._read())
                task.add_done_callback(lambda _: self._waits.end_query())
        return await asyncio.shield(reading)

    async def _read(self) -> None:
        reading, self._reading = self._reading, {}
        ids, endings = list(reading), []
        read = self._client.executions.read_results
        try:
            for start in range(0, len(ids), _READ_AT_ONCE):
                page = ids[start : start + _READ_AT_ONCE]
                endings += await read(self._claimed.partition_key, page)
        except Exception as error:
            for future in reading.values():
                future.set_exception(error)
            return
        found = {ending.execution_id: ending for ending in endings}
        for uuid, future in reading.items():
            future.set_result(found.get(uuid))

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
