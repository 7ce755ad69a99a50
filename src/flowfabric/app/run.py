"""Run: the handle of one submitted execution, typed by its result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeGuard
from uuid import UUID

from typing_extensions import TypeVar

from flowfabric.app.portal import ASYNC_FOR, in_turn
from flowfabric.client import signal_via, signal_via_sync
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
from flowfabric.core.signal import Delivered, PendingWait, Signal
from flowfabric.core.states import EventKind, FailureClass, PublicState, StreamMode
from flowfabric.core.stream import Frame, FrameEncoding, Rewind, Truncated
from flowfabric.core.trace import facts_of
from flowfabric.handlers import OnceCall, async_only, check_no_loop, current_run
from flowfabric.tasks import encode_signal

if TYPE_CHECKING:
    from flowfabric.client import FlowFabric
    from flowfabric.tasks import TaskSpec

T = TypeVar("T")
S = TypeVar("S", default=Any)  # the type of the values that the execution streams as JSON

# How often `events` reads while the execution has not ended.
EVENTS_SECONDS = 0.5

_ENDINGS = (
    EventKind.COMPLETED,
    EventKind.FAILED,
    EventKind.CANCELLED,
    EventKind.EXPIRED,
    EventKind.SKIPPED,
)


class Run(Generic[T, S]):
    """The handle of one execution.

    `task` is the name of the task. In a run from `app.get`, `task` is empty until a method needs
    the name and reads it from the database.
    """

    # Until the id is first used, `_id` holds only the UUID, and `_partition` the partition. After
    # that, `_id` holds the whole id. Many programs never use the id, and building it costs more
    # than the rest of a run.

    __slots__ = (
        "_call",
        "_client",
        "_decode",
        "_find_decoder",
        "_find_spec",
        "_id",
        "_is_stored",
        "_partition",
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
        partition: int = 0,
        is_duplicate: bool = False,
        is_stored: bool = True,
        find_decoder: Callable[[str], Callable[[bytes | None], T]] | None = None,
        call: Callable[..., Any],
        find_spec: Callable[[str], TaskSpec | None] | None = None,
    ) -> None:
        self._id = id
        self._partition = partition
        self.task = task
        self.is_duplicate = is_duplicate
        self._client = client
        self._decode = decode
        self._is_stored = is_stored
        self._find_decoder = find_decoder
        self._call = call
        self._find_spec = find_spec

    def __repr__(self) -> str:
        return f"Run({self.task or 'unknown'}, {self.id})"

    @property
    def id(self) -> ExecutionId:
        """The id of the execution."""
        id = self._id
        if not isinstance(id, ExecutionId):
            id = self._id = ExecutionId.of(self._partition, as_uuid(id))
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

        Raises ExecutionFailed, ExecutionCancelled, ExecutionExpired or ExecutionSkipped if the
        execution ended without a result. Raises ResultTimeout if it has not ended in time; it then
        continues.

        A handler that waits outside its steps frees its slot in the worker, and starts again when
        the run has ended. If the handler passes a `timeout`, it keeps its slot while it waits.
        """
        seconds = seconds_of(timeout)
        client = await self._client()
        if not self._is_stored:
            await self._find(client)
        if (handler_run := current_run.get()) is not None:
            if seconds is None:
                # The handler may pause here. It starts again when the run has ended.
                ending = await handler_run.wait_for_end(self.id, client)
                if ending is not None:
                    return await self._conclude(client, ending)
            handler_run.report_blocking_wait()
        try:
            async with asyncio.timeout(seconds):
                waiting: Awaitable[Ending] = client.results.wait(self.id)
                if handler_run is not None:
                    waiting = handler_run.keep_slot(waiting, client)
                ending = await waiting
        except TimeoutError as error:
            # The execution may have ended just now. With a timeout of zero, it may even have ended
            # long ago.
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
        """Cancel the execution. Return False if it has already ended in another way."""
        client = await self._client()
        try:
            await client.executions.cancel(self.id, reason=reason, actor=actor)
        except ExecutionTerminal:
            return False
        except ExecutionNotFound as error:
            raise self._missing() from error
        return True

    @async_only("run.signal_sync")
    async def signal(
        self,
        name: str,
        value: Any = None,
        /,
        *,
        key: str | None = None,
        by: str | None = None,
        via: object = None,
    ) -> Delivered:
        """Send a signal to the execution. The first wait for this name takes the signal.

        The wait can begin before or after the signal is sent. A second signal with the same `key`
        and name has no effect. `by` is a note for people: who sends the signal. If `via` is a
        connection, the signal is sent when the transaction of that connection commits. A handler
        that sends a signal outside its steps sends it once, however often the handler runs.
        """
        client = await self._client()
        signal = await self._make_signal(client, name, value, key, by)
        if via is not None:
            return await signal_via(client, via, self.id, signal)
        if (handler_run := current_run.get()) is None or not handler_run.is_durable_with(client):
            return await self._deliver(client, signal)

        async def send(call: OnceCall) -> dict[str, Any]:
            if call.is_replayed:
                return dict(call.value)
            signal.id = call.derive_id("signal").uuid
            sent = await self._deliver(client, signal)
            return {"id": str(sent.id), "is_duplicate": sent.is_duplicate, "effect": sent.effect}

        # A signal may have a longer name than a step may have, so cut the name.
        title = name.encode()[:200].decode(errors="ignore")
        sent_facts = await handler_run.once(f"send {title} to {self.id.uuid}", send)
        return Delivered(UUID(sent_facts["id"]), sent_facts["is_duplicate"], sent_facts["effect"])

    async def _make_signal(
        self, client: FlowFabric, name: str, value: Any, key: str | None, by: str | None
    ) -> Signal:
        if not self.task:
            await self._find(client)
        spec = self._spec()
        payload = encode_signal(name, value) if spec is None else spec.encode_signal(name, value)
        return Signal(name=name, payload=payload, key=key, source_identity=by)

    def _spec(self) -> TaskSpec | None:
        """Return the declaration of the task, or None if this app does not have the task."""
        return None if self._find_spec is None else self._find_spec(self.task)

    async def _deliver(self, client: FlowFabric, signal: Signal) -> Delivered:
        try:
            return await client.signals.deliver(self.id, signal)
        except ExecutionNotFound as error:
            raise self._missing() from error

    @async_only("run.pending_sync")
    async def pending(self) -> list[PendingWait]:
        """Return the signals and waitpoints that a suspended execution waits for.

        Sleeps and runs are not listed. For other executions, the list is empty.
        """
        client = await self._client()
        why = await client.executions.why(self.id)
        return [
            PendingWait(one["condition"], _time(one.get("until_at")))
            for reason in (why, *why.others)
            if reason.dimension == "signal"
            for one in reason.evidence.get("waits", ())
        ]

    @async_only("run.progress_sync")
    async def progress(self) -> Progress:
        """Return the latest progress that the handler reported."""
        progress = await (await self._client()).executions.progress(self.id)
        if progress is None:
            raise self._missing()
        return progress

    async def events(self) -> AsyncIterator[Event]:
        """Yield all past and future events of the execution, in order, until it has ended."""
        version = 0
        while True:
            events, has_ended = await self._events_after(version)
            for event in events:
                version = event.version
                yield event
            if has_ended:
                return

    async def stream(
        self,
        *,
        since: str | None = None,
        kinds: Collection[str] | None = None,
        best_effort: bool = True,
    ) -> AsyncGenerator[Frame[S] | Rewind | Truncated, None]:
        """Yield the frames that the handler sends, past and future, until the execution has ended.

        `since` is the id of the last frame that you have; `kinds` are the kinds that you want. If
        `best_effort` is false, best-effort frames are left out.

        A `Rewind` says that the handler has started again: forget the frames after its `to`. A
        `Truncated` says that frames were removed before you read them.

        If the task declares `streams`, the JSON values that the handler sends have that type in
        `frame.data`. Texts, bytes, log lines and summaries keep their own types.
        """
        client = await self._client()
        try:
            async for item in client.streams.follow(
                self.id, since=since, kinds=kinds, with_best_effort=best_effort
            ):
                # Read the type only when the first value comes: many readers may wait for streams
                # that send nothing.
                if not self.task and _is_value(item):
                    await self._find(client)
                yield self.typed(item)
        except ExecutionNotFound as error:
            raise self._missing() from error

    @async_only("run.summary_sync")
    async def summary(self) -> dict[str, Any] | None:
        """Return the document that `ctx.stream.summary` has built, or None if there is none."""
        summary = await (await self._client()).streams.summary(self.id)
        if summary is None and await (await self._client()).executions.state(self.id) is None:
            raise self._missing()
        return None if summary is None else summary.document

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

    def signal_sync(
        self,
        name: str,
        value: Any = None,
        /,
        *,
        key: str | None = None,
        by: str | None = None,
        via: object = None,
    ) -> Delivered:
        """`signal` for synchronous code; `via` is then a synchronous connection."""
        if via is None:
            sent: Delivered = self._call(
                lambda: self.signal(name, value, key=key, by=by), "run.signal(...)"
            )
            return sent

        async def prepare() -> tuple[FlowFabric, Signal, str]:
            client = await self._client()
            signal = await self._make_signal(client, name, value, key, by)
            return client, signal, await client.transactional.identity()

        client, signal, database = self._call(prepare, "run.signal(...)")
        return signal_via_sync(client, via, self.id, signal, database)

    def pending_sync(self) -> list[PendingWait]:
        """`pending` for synchronous code."""
        waits: list[PendingWait] = self._call(self.pending, "run.pending()")
        return waits

    def progress_sync(self) -> Progress:
        """`progress` for synchronous code."""
        progress: Progress = self._call(self.progress, "run.progress()")
        return progress

    def events_sync(self) -> Iterator[Event]:
        """`events` for synchronous code."""
        check_no_loop("run.events()", ASYNC_FOR)
        version, has_ended = 0, False
        while not has_ended:
            events, has_ended = self._call(
                lambda seen=version: self._events_after(seen), "run.events()"
            )
            for event in events:
                version = event.version
                yield event

    def stream_sync(
        self,
        *,
        since: str | None = None,
        kinds: Collection[str] | None = None,
        best_effort: bool = True,
    ) -> Iterator[Frame[S] | Rewind | Truncated]:
        """`stream` for synchronous code."""
        frames = self.stream(since=since, kinds=kinds, best_effort=best_effort)
        return in_turn(frames, self._call, "run.stream()")

    def summary_sync(self) -> dict[str, Any] | None:
        """`summary` for synchronous code."""
        document: dict[str, Any] | None = self._call(self.summary, "run.summary()")
        return document

    # `gather` and flows, which wait for several runs, use the methods below.

    @property
    def call(self) -> Callable[..., Any]:
        """The function that runs a coroutine for synchronous code."""
        return self._call

    async def client(self) -> FlowFabric:
        """Return the client of the engine for the running event loop."""
        return await self._client()

    async def check_exists(self) -> None:
        """Raise ExecutionNotFound if the execution does not exist."""
        if not self._is_stored:
            await self._find(await self._client())

    async def conclude(self, ending: Ending) -> T:
        """Return the result of an ended execution, or raise the error that describes its end."""
        return await self._conclude(await self._client(), ending)

    def decode(self, ending: Ending) -> T:
        """Return the result of a completed execution."""
        return self._decode(ending.result)

    async def _events_after(self, version: int) -> tuple[list[Event], bool]:
        """Wait for events with a higher version than `version`.

        Return these events, and whether the execution has ended.
        """
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

    def typed(self, item: Frame[Any] | Rewind | Truncated) -> Frame[S] | Rewind | Truncated:
        """Decode the value of a JSON frame by the type that the task declares.

        Return any other item unchanged.
        """
        if not _is_value(item):
            return item
        spec = self._spec()
        if spec is None or spec.streams is Any:
            return item
        try:
            return replace(item, data=spec.decode_frame(item.payload))
        except InvalidInput as error:
            raise InvalidInput(
                field="streams", problem=f"{error.problem}. To read on, pass since={item.id!r}"
            ) from None

    async def _find(self, client: FlowFabric) -> None:
        """Read the name of the task. Raise ExecutionNotFound if the execution does not exist."""
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
        """Return an error that says who cancelled the execution, and why."""
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


def _is_value(item: Frame[Any] | Rewind | Truncated) -> TypeGuard[Frame[Any]]:
    """Return whether an item is a JSON frame that is neither a log line nor a summary."""
    return (
        isinstance(item, Frame)
        and item.encoding is FrameEncoding.JSON
        and item.mode is not StreamMode.SUMMARY
        and item.kind != "log"
    )


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def seconds_of(duration: float | timedelta | None, field: str = "timeout") -> float | None:
    """Return a timeout in seconds. `duration` is a number of seconds or a timedelta."""
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
