"""Run: the handle of one submitted execution, typed by its result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID

from flowfabric.core.errors import (
    ExecutionCancelled,
    ExecutionExpired,
    ExecutionFailed,
    ExecutionNotFound,
    ExecutionSkipped,
    ExecutionTerminal,
    FlowFabricError,
    InvalidInput,
    ResultTimeout,
)
from flowfabric.core.execution import CANCEL_SOURCES, Ending, Event, Progress
from flowfabric.core.ids import ExecutionId, as_uuid
from flowfabric.core.states import EventKind, FailureClass, PublicState
from flowfabric.core.trace import facts_of
from flowfabric.handlers import async_only, current_run

if TYPE_CHECKING:
    from flowfabric.client import FlowFabric

T = TypeVar("T")

# How often `events` reads while nothing ends.
EVENTS_SECONDS = 0.5

_ENDINGS = (
    EventKind.COMPLETED,
    EventKind.FAILED,
    EventKind.CANCELLED,
    EventKind.EXPIRED,
    EventKind.SKIPPED,
)


class Run(Generic[T]):
    """One execution, as its submitter sees it.

    `task` is the name of its task. In a run from `app.get` it is empty until the first question.
    """

    # `_id` is the id, or until someone asks for it the UUID, in partition 0. Many programs never
    # ask, and to make the id costs more than the rest of a run.

    __slots__ = (
        "_call",
        "_client",
        "_decode",
        "_find_decoder",
        "_id",
        "_is_stored",
        "is_duplicate",
        "task",
    )

    def __init__(
        self,
        id: ExecutionId | UUID | str,
        task: str,
        client: Callable[[], Awaitable[FlowFabric]],
        decode: Callable[[bytes | None], T],
        *,
        is_duplicate: bool = False,
        is_stored: bool = True,
        find_decoder: Callable[[str], Callable[[bytes | None], T]] | None = None,
        call: Callable[..., Any],
    ) -> None:
        self._id = id
        self.task = task
        self.is_duplicate = is_duplicate
        self._client = client
        self._decode = decode
        self._is_stored = is_stored
        self._find_decoder = find_decoder
        self._call = call

    def __repr__(self) -> str:
        return f"Run({self.task or 'unknown'}, {self.id})"

    @property
    def id(self) -> ExecutionId:
        """The id of the execution."""
        id = self._id
        if not isinstance(id, ExecutionId):
            id = self._id = ExecutionId.of(0, as_uuid(id))
        return id

    @async_only("run.state_sync")
    async def state(self) -> PublicState:
        """Return the state of the execution."""
        state = await (await self._client()).executions.state(self.id)
        if state is None:
            raise self._missing()
        return state

    @async_only("run.result_sync")
    async def result(self, timeout: float | timedelta | None = None) -> T:
        """Wait until the execution has ended and return its result.

        Raises ExecutionFailed, ExecutionCancelled, ExecutionExpired or ExecutionSkipped if it ended
        otherwise. Raises ResultTimeout if it has not ended in time; the execution continues.

        A handler that waits outside its steps frees the worker: it starts again when the run has
        ended. With a `timeout` it waits in its slot.
        """
        seconds = seconds_of(timeout)
        client = await self._client()
        if not self._is_stored:
            await self._find(client)
        if (handler_run := current_run.get()) is not None:
            if seconds is None:
                # The handler may pause, and starts again when the run has ended.
                ending = await handler_run.wait_for_end(self.id, client)
                if ending is not None:
                    return await self._conclude(client, ending)
            handler_run.report_blocking_wait()
        try:
            async with asyncio.timeout(seconds):
                ending = await client.results.wait(self.id)
        except TimeoutError as error:
            # It may have ended just now, or long before a call with a timeout of zero.
            endings = await client.executions.read_results(self.id.partition_key, [self.id.uuid])
            if endings:
                return await self._conclude(client, endings[0])
            state = await client.executions.state(self.id)
            raise ResultTimeout(
                f"{self.task} has not ended within {seconds:g} s; it is "
                f"{state or 'not in the database (trimmed, or never committed)'}. "
                "It continues: call result() again to keep waiting.",
                execution_id=self.id,
                state=state,
            ) from error
        return await self._conclude(client, ending)

    @async_only("run.cancel_sync")
    async def cancel(self, reason: str | None = None, *, actor: str | None = None) -> bool:
        """Cancel the execution. Returns False if it had already ended otherwise."""
        client = await self._client()
        try:
            await client.executions.cancel(self.id, reason=reason, actor=actor)
        except ExecutionTerminal:
            return False
        except ExecutionNotFound as error:
            raise self._missing() from error
        return True

    @async_only("run.progress_sync")
    async def progress(self) -> Progress:
        """Return the progress that the handler last reported."""
        progress = await (await self._client()).executions.progress(self.id)
        if progress is None:
            raise self._missing()
        return progress

    async def events(self) -> AsyncIterator[Event]:
        """Yield the past and future events of the execution, in order, until it has ended."""
        version = 0
        while True:
            events, has_ended = await self._events_after(version)
            for event in events:
                version = event.version
                yield event
            if has_ended:
                return

    def state_sync(self) -> PublicState:
        """`state` for synchronous code."""
        state: PublicState = self._call(self.state, "run.state()")
        return state

    def result_sync(self, timeout: float | timedelta | None = None) -> T:
        """`result` for synchronous code."""
        value: T = self._call(lambda: self.result(timeout), "run.result()")
        return value

    def cancel_sync(self, reason: str | None = None, *, actor: str | None = None) -> bool:
        """`cancel` for synchronous code."""
        done: bool = self._call(lambda: self.cancel(reason, actor=actor), "run.cancel()")
        return done

    def progress_sync(self) -> Progress:
        """`progress` for synchronous code."""
        progress: Progress = self._call(self.progress, "run.progress()")
        return progress

    def events_sync(self) -> Iterator[Event]:
        """`events` for synchronous code."""
        version, has_ended = 0, False
        while not has_ended:
            events, has_ended = self._call(
                lambda seen=version: self._events_after(seen), "run.events()"
            )
            for event in events:
                version = event.version
                yield event

    # For `gather` and flows, which wait for several runs.

    @property
    def call(self) -> Callable[..., Any]:
        """Runs a coroutine for synchronous code."""
        return self._call

    async def client(self) -> FlowFabric:
        """Return the client of the engine for the running event loop."""
        return await self._client()

    async def check_exists(self) -> None:
        """Check that the execution exists, unless that is known."""
        if not self._is_stored:
            await self._find(await self._client())

    async def conclude(self, ending: Ending) -> T:
        """Return the result of an ended execution, or raise the error for its end."""
        return await self._conclude(await self._client(), ending)

    def decode(self, ending: Ending) -> T:
        """Return the result of a completed execution."""
        return self._decode(ending.result)

    async def _events_after(self, version: int) -> tuple[list[Event], bool]:
        """Wait for events after a version; return them and whether the execution has ended."""
        client = await self._client()
        while True:
            events = await client.executions.events(self.id)
            if not events and await client.executions.state(self.id) is None:
                raise self._missing()
            has_ended = bool(events) and events[-1].kind in _ENDINGS
            news = [event for event in events if event.version > version]
            if news or has_ended:
                return news, has_ended
            with suppress(TimeoutError):
                async with asyncio.timeout(EVENTS_SECONDS):
                    await client.results.wait(self.id)

    async def _find(self, client: FlowFabric) -> None:
        """Check that the execution exists, and find its task."""
        info = await client.executions.info(self.id)
        if info is None:
            raise self._missing()
        self._is_stored = True
        self.task = info.task
        if self._find_decoder is not None:
            self._decode = self._find_decoder(info.task)

    def _missing(self) -> ExecutionNotFound:
        text = (
            f"There is no execution {self.id} in this namespace: it was trimmed, or the "
            "transaction that submitted it was rolled back or has not committed yet."
        )
        return ExecutionNotFound(text, execution_id=self.id)

    async def _conclude(self, client: FlowFabric, ending: Ending) -> T:
        if ending.public_state is PublicState.COMPLETED:
            return self._decode(ending.result)
        if ending.public_state is PublicState.CANCELLED:
            raise await self._cancelled(client)
        raise self._error(ending)

    async def _cancelled(self, client: FlowFabric) -> ExecutionCancelled:
        """Ask who cancelled the execution and why, and return the error."""
        info = await client.executions.describe(self.id)
        source = info.cancelled_by if info else None
        reason = info.cancellation_reason if info else None
        actors = [
            event.actor
            for event in await client.executions.events(self.id)
            if event.kind is EventKind.CANCELLED
        ]
        actor = actors[-1] if actors else None
        who = actor or CANCEL_SOURCES.get(source or "", source)
        text = f"{self.task} was cancelled{f' by {who}' if who else ''}"
        again = self._retry_text()
        if info is not None and info.flow_id is not None:
            flow = await client.flows.describe(info.flow_id)
            if flow is not None and flow.cancelled_at is not None:
                again = "A cancelled flow cannot run again: submit a new one."
        return ExecutionCancelled(
            f"{text}{f': {reason}' if reason else ''}. {again}",
            execution_id=self.id,
            cancelled_by=source,
            actor=actor,
            reason=reason,
        )

    def _retry_text(self) -> str:
        return f"To run it again: flowfabric retry {self.id.uuid}"

    def _error(self, ending: Ending) -> FlowFabricError:
        match ending.public_state:
            case PublicState.EXPIRED:
                return ExecutionExpired(
                    f"{_expiry(self.task, ending)} {self._retry_text()}", execution_id=self.id
                )
            case PublicState.SKIPPED:
                return ExecutionSkipped(
                    f"{self.task} was skipped: a node it depended on did not succeed.",
                    execution_id=self.id,
                )
            case _:
                facts = facts_of(ending.failure_detail)
                return ExecutionFailed(
                    f"{self.task} failed in attempt {ending.attempt}: "
                    f"{ending.failure_reason}\n(Its trace is in the error's `trace`. "
                    f"{self._retry_text()})",
                    **{
                        "type": ending.failure_category or "",
                        "message": ending.failure_reason or "",
                        "trace": "",
                        **facts,
                        "execution_id": self.id,
                    },
                )


def seconds_of(duration: float | timedelta | None, field: str = "timeout") -> float | None:
    """Convert a duration that a caller passed to seconds."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if seconds is not None and (not isinstance(seconds, int | float) or seconds != seconds):
        raise InvalidInput(field=field, problem="must be a number of seconds or a timedelta")
    return seconds


def _expiry(task: str, ending: Ending) -> str:
    if ending.failure_category != "execution_deadline":
        return f"{task} ran out of time: {ending.failure_reason}. Its `timeout` may be too short."
    text = f"{task} ran out of time: its deadline has passed."
    if ending.failure_class not in (None, FailureClass.TIMEOUT):
        text += f" Its last attempt had failed: {ending.failure_reason}."
    return f"{text} Its `deadline` may be too short."
