"""A run: the handle of one submitted execution, typed by its result."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from flowfabric.core.errors import (
    ExecutionCancelled,
    ExecutionExpired,
    ExecutionFailed,
    ExecutionNotFound,
    ExecutionSkipped,
    FlowFabricError,
    InvalidInput,
    ResultTimeout,
)
from flowfabric.core.execution import Ending
from flowfabric.core.ids import ExecutionId
from flowfabric.core.states import FailureClass, PublicState
from flowfabric.worker.failures import facts_of

if TYPE_CHECKING:
    from flowfabric.client import FlowFabric

T = TypeVar("T")


class Run(Generic[T]):
    """One execution, as its submitter sees it."""

    __slots__ = ("_call", "_client", "_decode", "id", "is_duplicate", "task")

    def __init__(
        self,
        id: ExecutionId,
        task: str,
        client: Callable[[], Awaitable[FlowFabric]],
        decode: Callable[[bytes | None], T],
        *,
        is_duplicate: bool = False,
        call: Callable[..., Any],
    ) -> None:
        self.id = id
        self.task = task
        self.is_duplicate = is_duplicate
        self._client = client
        self._decode = decode
        self._call = call

    def __repr__(self) -> str:
        return f"Run({self.task}, {self.id})"

    async def state(self) -> PublicState:
        """What the execution is doing now, in one word."""
        state = await (await self._client()).executions.state(self.id)
        if state is None:
            raise ExecutionNotFound(execution_id=self.id)
        return state

    async def result(self, timeout: float | timedelta | None = None) -> T:
        """Wait until the execution has ended and return its result.

        Raises ExecutionFailed, ExecutionCancelled, ExecutionExpired or ExecutionSkipped if it ended
        otherwise, and ResultTimeout if it has not ended in time; the execution goes on then.
        """
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        if seconds is not None and (not isinstance(seconds, int | float) or seconds != seconds):
            raise InvalidInput(
                field="timeout", problem="must be a number of seconds or a timedelta"
            )
        client = await self._client()
        try:
            async with asyncio.timeout(seconds):
                ending = await client.results.wait(self.id)
        except TimeoutError as error:
            # It may have ended just now, or long before a caller that gave no time at all.
            endings = await client.executions.read_results(self.id.partition_key, [self.id.uuid])
            if endings:
                return self._concluded(endings[0])
            state = await client.executions.state(self.id)
            raise ResultTimeout(
                f"{self.task} has not ended within {seconds:g} s; it is "
                f"{state or 'not in the database (trimmed, or never committed)'}. "
                "It goes on: call result() again to keep waiting.",
                execution_id=self.id,
                state=state,
            ) from error
        return self._concluded(ending)

    def result_sync(self, timeout: float | timedelta | None = None) -> T:
        """`result` for synchronous code."""
        value: T = self._call(lambda: self.result(timeout), "run.result()")
        return value

    def _concluded(self, ending: Ending) -> T:
        if ending.public_state is PublicState.COMPLETED:
            return self._decode(ending.result)
        raise self._error(ending)

    def _error(self, ending: Ending) -> FlowFabricError:
        match ending.public_state:
            case PublicState.CANCELLED:
                return ExecutionCancelled(f"{self.task} was cancelled.", execution_id=self.id)
            case PublicState.EXPIRED:
                return ExecutionExpired(_expiry(self.task, ending), execution_id=self.id)
            case PublicState.SKIPPED:
                return ExecutionSkipped(f"{self.task} was skipped.", execution_id=self.id)
            case _:
                facts = facts_of(ending.failure_detail)
                return ExecutionFailed(
                    f"{self.task} failed in attempt {ending.attempt_index + 1}: "
                    f"{ending.failure_reason}",
                    **{
                        "type": ending.failure_category or "",
                        "message": ending.failure_reason or "",
                        "trace": "",
                        **facts,
                        "execution_id": self.id,
                    },
                )


def _expiry(task: str, ending: Ending) -> str:
    if ending.failure_category != "execution_deadline":
        return f"{task} ran out of time: {ending.failure_reason}."
    text = f"{task} ran out of time: its deadline has passed."
    if ending.failure_class not in (None, FailureClass.TIMEOUT):
        text += f" Its last attempt had failed: {ending.failure_reason}"
    return text
