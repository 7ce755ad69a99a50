"""One run of a handler: its steps, its waits, and how it pauses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from hashlib import sha256
from time import monotonic
from typing import Any, TypeVar
from uuid import UUID

from flowfabric.client import FlowFabric
from flowfabric.core.errors import (
    ExecutionNotActive,
    ExecutionNotFound,
    FlowFabricError,
    InvalidInput,
    LeaseLost,
    RetryExhausted,
)
from flowfabric.core.execution import Claimed, Ending, Submission, Submitted
from flowfabric.core.ids import ExecutionId, child_id
from flowfabric.core.states import StepKind
from flowfabric.core.step import Step, StepRecord, check_step_name
from flowfabric.handlers.journal import Entry, Journal, Mismatch
from flowfabric.handlers.steps import OWN_PREFIX, in_step
from flowfabric.handlers.waits import (
    Delayed,
    Held,
    Over,
    Pause,
    Several,
    Sleep,
    Wait,
    Waits,
)

T = TypeVar("T")

_REASON_BYTES = 256
# Between two tries to write to a row that others keep locked; a try waits for it 2 s by itself.
_LOCKED_SECONDS = 0.05
# How many results one call reads.
_READ_AT_ONCE = 1000
_REPAIR = "; restore the code and retry, or replay --from-step or --fresh"


class HandlerPaused(BaseException):
    """Unwinds a handler that leaves its execution for now. Not an error: let it pass."""


@dataclass(slots=True, eq=False)
class Host:
    """What the runs of a worker need of it."""

    client: FlowFabric
    loop: asyncio.AbstractEventLoop
    in_thread: Callable[[Claimed, Callable[[], Any]], Awaitable[Any]]
    lease_ttl: timedelta
    # The task in which an async handler runs; None for one in a thread.
    root: Callable[[Claimed], asyncio.Task[Any] | None]
    # The handler has been told to leave, and should have left after a moment.
    leaving: Callable[[Claimed], None]
    # The engine says that the lease is gone.
    lost: Callable[[Claimed, FlowFabricError], None]
    # The handler waits where it is for other executions.
    waits: Callable[[Claimed], None]


@dataclass(slots=True, eq=False)
class Failed:
    """A step that failed. If the handler gets over it, it is written down; if the attempt fails by
    it, it is not, and the next one calls the function again."""

    entry: Entry
    value: bytes
    # The tasks in which it was raised and in which `ctx.step` was called; None for a thread.
    task: asyncio.Task[Any] | None
    caller: asyncio.Task[Any] | None
    writing: asyncio.Task[None] | None = None

    def is_over(self, is_own: bool) -> bool:
        """Whether the code that goes on here, the handler's own flow or not, has got over it."""
        task, here = self.task, asyncio.current_task()
        if task is None:
            return is_own
        if task is here or not task.done():
            return task is here
        if task._log_traceback:  # nobody has looked at its exception yet
            return False
        if task.cancelled() or task.exception() is not None:
            # Branches beside it that go on know nothing of it.
            return is_own or self.caller is here
        return True


@dataclass(slots=True, eq=False)
class Unrepeated:
    """Something of our own that is done once: its place in the handler, and what the first run has
    made of it if this is a later one."""

    claimed: Claimed
    name: str
    occurrence: int
    is_repeated: bool = False
    value: Any = None

    def derived(self, what: str) -> ExecutionId:
        """An id that is the same in every run of the handler."""
        claimed = self.claimed
        name = f"{self.name} {self.occurrence} {what}"
        return child_id(claimed.id, claimed.replay_count, name, 0)


class HandlerRun:
    """Made for the first step, sleep or child of a run, on the worker's event loop or in the thread
    of a plain handler."""

    def __init__(self, claimed: Claimed, host: Host) -> None:
        self._claimed = claimed
        self._host = host
        self.root = host.root(claimed)
        self._journal = Journal() if claimed.epoch == 1 else None
        self._loading: asyncio.Task[Journal] | None = None
        self._waits = Waits(host.loop, self.now, self.leave)
        self._children: dict[str, int] = {}
        self._failed: list[Failed] = []
        # Runs of which it is known that they exist.
        self._known: set[UUID] = set()
        # Runs that this run of the handler submitted by itself: a later one has others.
        self._loose: set[UUID] = set()
        self._asked: dict[UUID, asyncio.Future[Ending | None]] = {}
        # The database's time was at least this, at a moment of our own clock.
        self._seen = (claimed.lease_expires_at - host.lease_ttl, monotonic())
        self.pause: Pause | None = None
        self.has_paused = False
        self.is_over = False

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._host.loop

    @property
    def is_pausing(self) -> bool:
        return self.pause is not None

    def now(self) -> datetime:
        """The time of the database, as far as it is known here: never too late."""
        at, when = self._seen
        return at + timedelta(seconds=monotonic() - when)

    def is_own(self) -> bool:
        """Whether this is the flow of an async handler itself, not a task it has started."""
        return asyncio.current_task() is self.root

    def check_free(self, what: str) -> None:
        """Refuse what cannot be done here: inside a step, or when the handler has ended."""
        if (step := in_step.get()) is not None:
            raise RuntimeError(
                f"{what} inside the function of step {step!r}: a step is done as a whole or again. "
                "Call it from the handler"
            )
        if self.is_over:
            raise RuntimeError(f"{what} after the handler has ended: nothing holds its lease now")

    async def begin(self, name: str, kind: StepKind, *, is_own: bool) -> Entry:
        """Start a step; a handler that no longer fits its journal is held instead.

        One without a record is in flight, and the handler does not pause, until it is `done`.
        """
        self._go_on()
        if self._failed:
            await self._remember(is_own)
        journal = self._journal
        if journal is None:
            journal = await self._loaded()
            self._go_on()
        try:
            entry = journal.begin(name, kind, is_own=is_own, is_alone=not self._waits.in_flight)
        except Mismatch as error:
            raise self.hold(error.step, error.problem) from None
        if entry.record is None:
            self._waits.begin()
        return entry

    def done(self) -> None:
        """A step that was started has been recorded, or has failed."""
        self._waits.end()

    @property
    def has_failed(self) -> bool:
        """Whether there are failures of steps that are not written down."""
        return bool(self._failed)

    def failed(
        self,
        entry: Entry,
        value: bytes,
        task: asyncio.Task[Any] | None = None,
        caller: asyncio.Task[Any] | None = None,
    ) -> None:
        """A step has failed; should the handler go on all the same, this is remembered."""
        self._failed.append(Failed(entry, value, task, caller))

    def done_elsewhere(self) -> None:
        """`done`, said in the thread of a plain handler."""
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self.done)

    async def record(
        self, entry: Entry, *, kind: StepKind | None = None, **facts: Any
    ) -> StepRecord:
        """Write a step down."""
        self._go_on()
        step = Step(
            name=entry.name,
            occurrence=entry.occurrence,
            position=entry.position,
            is_sequential=entry.is_sequential,
            kind=kind or entry.kind,
            follows=entry.follows,
            **facts,
        )
        record = await self._retrying(lambda: self._host.client.steps.record(self._claimed, step))
        self._seen = (record.recorded_at, monotonic())
        if self._journal is not None:
            self._journal.recorded(entry)
        return record

    async def progress(self, percent: int | None, message: str | None) -> None:
        self._go_on()
        self._waits.begin()
        report = self._host.client.executions.report_progress
        try:
            await self._retrying(lambda: report(self._claimed, percent, message))
        finally:
            self._waits.end()

    async def sleep(self, record: StepRecord) -> None:
        """Sleep until a recorded time, here or not."""
        until = record.until_at
        if until is not None:
            self._go_on()
            is_over = until <= self.now()
            await self._waits.wait(Over(until) if is_over else Sleep(record.recorded_at, until))
            self._go_on()

    def hold(self, step: str, problem: str) -> BaseException:
        """Stop until an operator has looked; returns what to raise."""
        text = " ".join(problem.split()).encode("utf-8", "replace")
        room = _REASON_BYTES - len(_REPAIR)
        reason = text[:room].decode(errors="ignore") + _REPAIR
        pause = Held(step, reason)
        if _running_loop() is self._host.loop:
            self.leave(pause)
        else:
            # In the thread of a plain handler, which is about to raise what is returned.
            self._host.loop.call_soon_threadsafe(self.leave, pause)
        return self.unwinding()

    async def check_reached(self) -> None:
        """The handler has returned: it must have come to every step that was recorded, and it has
        got over those that failed."""
        if self.is_pausing:
            return
        self._waits.begin()  # what it has left running does not make it pause any more
        journal = self._journal or await self._loaded()
        if (left := journal.unreached) is not None:
            raise self.hold(left.name, "was recorded, but the handler returned without it")
        await self._remember(is_own=True)

    async def submit(self, task: str, submission: Submission, *, is_own: bool) -> Submitted:
        """Store a child; one that was stored by an earlier run is found again."""
        self._go_on()
        if self._failed:
            await self._remember(is_own)
        parent = self._claimed.id
        # Children with keys, and those of branches, may come in another order than last time.
        name = task
        if submission.key is not None:
            name += f" {submission.key}"
        elif not is_own:
            name += f" {_likeness(submission.payload)}"
        occurrence = self._children.get(name, 0)
        self._children[name] = occurrence + 1
        submission.id = child_id(parent, self._claimed.replay_count, name, occurrence)
        submission.parent_id = parent
        self._waits.ask()
        try:
            submitted = await self._host.client.executions.submit(submission)
        finally:
            self._waits.answered()
        self._known.add(submitted.id.uuid)
        return submitted

    async def in_thread(self, call: Callable[[], Any]) -> Any:
        return await self._host.in_thread(self._claimed, call)

    def may_leave_for(self, id: ExecutionId) -> bool:
        """Whether waiting for this run can free the slot."""
        return (
            id.partition_key == self._claimed.partition_key
            and in_step.get() is None
            and not self.is_over
            and id.uuid not in self._loose
        )

    async def ending(self, id: ExecutionId, *, is_own: bool) -> Ending:
        """How a run ended; if it has not, the handler leaves until it has."""
        self._go_on()
        if self._failed:
            await self._remember(is_own)
        if id.uuid == self._claimed.execution_id:
            raise InvalidInput(field="run", problem="a handler cannot wait for its own execution")
        ending = await self._look(id)
        if ending is None and id.uuid not in self._known:
            self._waits.ask()
            try:
                state = await self._host.client.executions.state(id)
            finally:
                self._waits.answered()
            if state is None:
                raise _nothing_there(id)
            self._known.add(id.uuid)
            ending = await self._look(id) if state.is_terminal else None
        self._go_on()
        if ending is None:
            ending = await self._waits.wait(Wait(id, lambda future: self._watch(id, future)))
        else:
            await self._waits.wait(Over(ending.terminal_at))
        self._go_on()
        return ending

    async def endings(
        self, ids: Sequence[ExecutionId], needed: int, *, is_own: bool
    ) -> list[Ending]:
        """How runs ended, once so many have; until then the handler leaves."""
        self._go_on()
        if self._failed:
            await self._remember(is_own)
        if any(id.uuid == self._claimed.execution_id for id in ids):
            raise InvalidInput(field="runs", problem="a handler cannot wait for its own execution")
        while True:
            looked = await asyncio.gather(*(self._look(id) for id in ids))
            found = [ending for ending in looked if ending is not None]
            left = [id for id, ending in zip(ids, looked, strict=True) if ending is None]
            if await self._see_whether_there(left):
                continue
            self._go_on()
            if len(found) >= needed:
                times = sorted(ending.terminal_at for ending in found)
                await self._waits.wait(Over(times[needed - 1]))
                self._go_on()
                return found
            missing = needed - len(found)
            await self._waits.wait(
                Several(tuple(left), missing, partial(self._watch_several, left, missing))
            )
            self._go_on()

    async def once(
        self, name: str, work: Callable[[Unrepeated], Awaitable[Any]], *, is_own: bool
    ) -> Any:
        """Do something of our own whose outcome, as JSON, is that of the first run for all later
        ones; a replay does it anew."""
        step = f"{OWN_PREFIX}{name}"
        check_step_name(step)
        entry = await self.begin(step, StepKind.STEP, is_own=is_own)
        place = Unrepeated(self._claimed, name, entry.occurrence)
        if entry.record is not None:
            recorded = json.loads(entry.record.value or b"{}")
            if recorded.get("replay_count") == self._claimed.replay_count:
                place.is_repeated = True
                place.value = recorded.get("value")
            return await work(place)
        self._waits.end()  # while it waits for something, the handler may leave
        value = await work(place)
        self._waits.begin()
        try:
            stored = {"replay_count": self._claimed.replay_count, "value": value}
            record = await self.record(entry, value=json.dumps(stored).encode())
        finally:
            self._waits.end()
        return json.loads(record.value or b"{}").get("value")

    async def ask(self, question: Awaitable[T]) -> T:
        """Wait for the database: the handler does not pause meanwhile."""
        self._waits.ask()
        try:
            return await question
        finally:
            self._waits.answered()

    def know(self, ids: Sequence[ExecutionId]) -> None:
        """These runs exist."""
        self._known.update(id.uuid for id in ids)

    def loosen(self, ids: Iterable[ExecutionId]) -> None:
        """These runs were submitted past the context: to leave for one of them would end in
        another run of the handler, which submits another."""
        self._loose.update(id.uuid for id in ids)

    async def _see_whether_there(self, ids: Sequence[ExecutionId]) -> bool:
        """Refuse runs that do not exist. True: some have ended just now."""
        unknown = [id for id in ids if id.uuid not in self._known]
        if not unknown:
            return False
        state = self._host.client.executions.state
        states = await self.ask(asyncio.gather(*(state(id) for id in unknown)))
        for id, found in zip(unknown, states, strict=True):
            if found is None:
                raise _nothing_there(id)
            self._known.add(id.uuid)
        return any(found is not None and found.is_terminal for found in states)

    def leave(self, pause: Pause) -> None:
        """Unwind the handler; then its execution is left in this way."""
        if self.is_pausing or self.is_over:
            return
        self.pause = pause
        self._host.leaving(self._claimed)
        self._unwind()

    def cancel(self) -> None:
        """The lease is gone, or given back: nothing is waited for any more."""
        self.is_over = True
        if self.root is None:
            self._waits.unwind(HandlerPaused)

    def end(self) -> None:
        """The handler has ended. What it left behind does not wait for ever."""
        self.is_over = True
        if self._loading is not None:
            self._loading.cancel()
        self._waits.unwind(None if self.root else HandlerPaused)

    def _unwind(self) -> None:
        root = self.root
        if root is None:
            self._waits.unwind(HandlerPaused)
        elif root is not asyncio.current_task():
            root.cancel()

    def unwinding(self) -> BaseException:
        """What to raise where a handler must not go on."""
        return HandlerPaused() if self.root is None else asyncio.CancelledError()

    def _go_on(self) -> None:
        if self.is_pausing or self.is_over:
            raise self.unwinding()

    def _lose(self, error: FlowFabricError) -> BaseException:
        self._host.lost(self._claimed, error)
        return self.unwinding()

    async def _retrying(self, write: Callable[[], Awaitable[T]]) -> T:
        """Write under the lease, and keep trying while it lasts: what is to be written down has
        happened, and must not fail because somebody else keeps the row locked."""
        while True:
            try:
                return await write()
            except (LeaseLost, ExecutionNotActive) as error:
                raise self._lose(error) from None
            except RetryExhausted:
                await asyncio.sleep(_LOCKED_SECONDS)
                self._go_on()

    async def _remember(self, is_own: bool) -> None:
        """Write down the failures that the handler has got over, before it does anything new."""
        over = [one for one in self._failed if one.is_over(is_own)]
        for one in over:
            if one.writing is None:
                one.writing = asyncio.create_task(self._write(one))
        if over:
            # Another branch may wait for the same ones.
            await asyncio.gather(*(asyncio.shield(one.writing) for one in over if one.writing))
            self._go_on()

    async def _write(self, failed: Failed) -> None:
        self._waits.begin()
        try:
            record = await self.record(failed.entry, kind=StepKind.FAILURE, value=failed.value)
        except BaseException:
            failed.writing = None
            raise
        finally:
            self._waits.end()
        self._failed.remove(failed)
        if record.value != failed.value:
            # The step had been recorded, only its answer was lost: begin again with its value.
            self.leave(Delayed(self.now()))
            raise self.unwinding()

    async def _loaded(self) -> Journal:
        if self._loading is None:
            self._loading = asyncio.create_task(self._load())
        return await asyncio.shield(self._loading)

    async def _load(self) -> Journal:
        self._waits.ask()
        try:
            self._journal = Journal(await self._host.client.steps.journal(self._claimed))
            return self._journal
        finally:
            self._loading = None
            self._waits.answered()

    async def _look(self, id: ExecutionId) -> Ending | None:
        """How a run ended, if it has. Those asked about together are read together."""
        asked = self._asked.get(id.uuid)
        if asked is None:
            asked = self._asked[id.uuid] = self._host.loop.create_future()
            if len(self._asked) == 1:
                self._waits.ask()
                reading = asyncio.create_task(self._read())
                reading.add_done_callback(lambda _: self._waits.answered())
        return await asyncio.shield(asked)

    async def _read(self) -> None:
        asked, self._asked = self._asked, {}
        ids, endings = list(asked), []
        read = self._host.client.executions.read_results
        try:
            for start in range(0, len(ids), _READ_AT_ONCE):
                page = ids[start : start + _READ_AT_ONCE]
                endings += await read(self._claimed.partition_key, page)
        except Exception as error:
            for future in asked.values():
                future.set_exception(error)
            return
        found = {ending.execution_id: ending for ending in endings}
        for uuid, future in asked.items():
            future.set_result(found.get(uuid))

    def _watch(self, id: ExecutionId, future: asyncio.Future[Any]) -> None:
        self._host.waits(self._claimed)
        watching = asyncio.ensure_future(self._host.client.results.wait(id))

        def seen(watching: asyncio.Future[Ending]) -> None:
            if future.done() or watching.cancelled():
                return
            if (error := watching.exception()) is not None:
                future.set_exception(error)
            else:
                future.set_result(watching.result())

        watching.add_done_callback(seen)
        future.add_done_callback(lambda _: watching.cancel())

    def _watch_several(
        self, ids: Sequence[ExecutionId], needed: int, future: asyncio.Future[Any]
    ) -> None:
        self._host.waits(self._claimed)
        watching = [asyncio.ensure_future(self._host.client.results.wait(id)) for id in ids]
        left = needed

        def seen(one: asyncio.Future[Ending]) -> None:
            nonlocal left
            left -= 1
            if future.done() or one.cancelled():
                return
            if (error := one.exception()) is not None:
                future.set_exception(error)
            elif left <= 0:
                future.set_result(None)

        def stop(_: object) -> None:
            for one in watching:
                one.cancel()

        for one in watching:
            one.add_done_callback(seen)
        future.add_done_callback(stop)


def _nothing_there(id: ExecutionId) -> ExecutionNotFound:
    return ExecutionNotFound(
        "There is nothing to wait for: the execution is not in the database (trimmed, "
        "or its transaction has not committed).",
        execution_id=id,
    )


def _likeness(payload: bytes) -> str:
    """Arguments in short, whatever the order of their lists: one may have been a set."""
    try:
        return _digest(json.loads(payload))
    except (ValueError, RecursionError):
        return sha256(payload).hexdigest()


def _digest(value: Any) -> str:
    if isinstance(value, dict):
        value = sorted((name, _digest(one)) for name, one in value.items())
    elif isinstance(value, list):
        value = sorted(map(_digest, value))
    return sha256(repr(value).encode("utf-8", "surrogatepass")).hexdigest()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
