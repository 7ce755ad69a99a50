"""Stops a handler right after a step. The test can then inspect the run or crash the worker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from flowfabric.client import FlowFabric
from flowfabric.core.execution import Claimed
from flowfabric.core.ids import ExecutionId
from flowfabric.core.step import Step, StepRecord

Record = Callable[[Claimed, Step], Awaitable[StepRecord]]


class Breakpoint:
    """Stops a handler after the chosen step of the chosen execution. Other handlers continue."""

    def __init__(self) -> None:
        self._at: tuple[ExecutionId, str] | None = None
        self._closed: asyncio.Future[None] | None = None
        self._watched: set[int] = set()

    @property
    def is_reached(self) -> bool:
        return self._closed is not None

    def close_at(self, id: ExecutionId, step: str) -> None:
        self._at = (id, step)

    def open(self) -> None:
        """Let the handler continue."""
        self._at = None
        closed, self._closed = self._closed, None
        if closed is not None and not closed.done():
            closed.set_result(None)

    def crash(self) -> None:
        """Cancel the handler that waits at this breakpoint, as if its process had died."""
        self._at = None
        closed, self._closed = self._closed, None
        if closed is not None:
            closed.cancel()

    def watch(self, client: FlowFabric) -> None:
        """Watch every step that is recorded through a client."""
        if id(client) in self._watched:
            return
        self._watched.add(id(client))
        record: Record = client.steps.record

        async def recorded(claimed: Claimed, step: Step) -> StepRecord:
            answer = await record(claimed, step)
            if self._at == (claimed.id, step.name):
                self._at = None
                self._closed = asyncio.get_running_loop().create_future()
                await self._closed
            return answer

        client.steps.record = recorded  # type: ignore[method-assign]
