"""The durable part of one handler run: its steps, its children, its waits and its pauses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from time import monotonic
from typing import Any, TypeVar
from uuid import uuid4

from flowfabric.client import FlowFabric
from flowfabric.core.errors import (
    BudgetExceeded,
    ExecutionNotActive,
    FlowFabricError,
    LeaseLost,
    RetryExhausted,
    TooManySteps,
)
from flowfabric.core.execution import Claimed, Ending, Submission, Submitted
from flowfabric.core.ids import ExecutionId, child_id
from flowfabric.core.states import StepKind
from flowfabric.core.step import (
    MANY_STEPS,
    MAX_STEPS,
    SECRET,
    Step,
    StepRecord,
    check_step_name,
)
from flowfabric.handlers.journal import Entry, Journal, Mismatch
from flowfabric.handlers.loops import running_loop
from flowfabric.handlers.run_ends import RunEnds
from flowfabric.handlers.run_frames import RunFrames
from flowfabric.handlers.signal_waits import SignalWaits
from flowfabric.handlers.step_failures import StepFailure
from flowfabric.handlers.steps import PATCH_PREFIX, RESERVED_PREFIX, in_step
from flowfabric.handlers.waits import (
    EndedWait,
    Pause,
    PauseForBudget,
    PauseOnHold,
    PauseToContinue,
    PauseUntil,
    SleepWait,
    Waits,
)
from flowfabric.telemetry import WORKER_LOGGER

T = TypeVar("T")

# The pause between two tries to write a locked row. Each try also waits 2 s for the lock.
_LOCKED_SECONDS = 0.05
# What a run records about a patch: the run took the old code, it took the new code, or the handler
# had only the new code. In the third case, later code may drop the patch.
_OLD_CODE, _NEW_CODE, _ONLY_CODE = b"false", b"true", b'"deprecated"'
# A handler that replays recorded steps lets other tasks run after this many steps.
_REPLAYED_AT_ONCE = 200


class HandlerPaused(BaseException):
    """Stops a handler because its execution pauses. This is not an error: do not catch it."""


@dataclass(slots=True, eq=False)
class WorkerServices:
    """The parts of a worker that its handlers use."""

    client: FlowFabric
    loop: asyncio.AbstractEventLoop
    lease_ttl: timedelta
    # The version of the code. The first step that is recorded binds the execution to it.
    code_version: str | None
    # Runs a plain function in a thread of the worker.
    run_in_thread: Callable[[Claimed, Callable[[], Any]], Awaitable[Any]]
    # Called when a handler is being stopped because its execution pauses.
    on_pausing: Callable[[Claimed], None]
    # Called when the database refused a write because the lease is lost.
    on_lease_lost: Callable[[Claimed, FlowFabricError], None]
    # Called when a handler keeps its slot while it waits for other executions.
    on_blocking_wait: Callable[[Claimed], None]
    # Provides connections for transactional steps. None means our own connections to the app's
    # database.
    connect: Callable[[], Any] | None = None
    # The address of the server that answers the links of waitpoints.
    public_url: str | None = None
    # Whether a check has shown that connections from `connect` can record a step.
    is_connect_checked: bool = False


@dataclass(slots=True, eq=False)
class OnceCall:
    """What `once` passes to its `work`, in each run of a handler.

    In a later run, `is_replayed` is True and `value` is the value that the first run recorded.
    """

    claimed: Claimed
    name: str
    occurrence: int
    is_replayed: bool = False
    value: Any = None

    def derive_id(self, what: str) -> ExecutionId:
        """Return the id for `what`, which is the same in every run of the handler."""
        claimed = self.claimed
        name = f"{self.name} {self.occurrence} {what}"
        return child_id(claimed.id, claimed.replay_count, name, 0, claimed.generation)


class DurableRun:
    """The durable part of a handler run. It is made when the handler first needs it: for a step, a
    sleep or a child.

    `root` is the asyncio task of an async handler. It is None for a plain handler, which runs in a
    thread. The argument `is_own` of a method is True if the handler itself makes the call, and
    False if a branch makes it.
    """

    frames_class = RunFrames

    def __init__(
        self, claimed: Claimed, worker: WorkerServices, root: asyncio.Task[Any] | None
    ) -> None:
        self._claimed = claimed
        self._worker = worker
        self.root = root
        self._journal = Journal() if claimed.epoch == 1 else None
        self._loading: asyncio.Task[Journal] | None = None
        self._waits = Waits(worker.loop, self.now, self.pause_with)
        self.ends = RunEnds(
            claimed,
            worker.client,
            self._waits,
            check_running=self.check_running,
            on_blocking_wait=worker.on_blocking_wait,
        )
        self.signals = SignalWaits(self)
        self.frames = self.frames_class(
            claimed,
            worker.client,
            worker.loop,
            journal=lambda: self._journal,
            load_journal=self._load_journal,
            check_running=self.check_running,
            refused=self.refused,
            query=self.query,
        )
        self._children: dict[str, int] = {}
        self._failures: list[StepFailure] = []
        self._step_usages = 0
        # The last known time of the database, and the time of our own clock when we read it.
        self._time_seen = (claimed.lease_expires_at - worker.lease_ttl, monotonic())
        self.pause: Pause | None = None
        self.has_paused = False
        self.is_over = False

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._worker.loop

    @property
    def id(self) -> ExecutionId:
        return self._claimed.id

    @property
    def client(self) -> FlowFabric:
        return self._worker.client

    @property
    def claimed(self) -> Claimed:
        return self._claimed

    @property
    def waits(self) -> Waits:
        return self._waits

    @property
    def code_version(self) -> str | None:
        """The version of the code. The first step that is recorded binds the execution to it."""
        return self._worker.code_version

    @property
    def is_pausing(self) -> bool:
        return self.pause is not None

    @property
    def has_failures(self) -> bool:
        """Whether a step has failed, and its failure is not recorded yet."""
        return bool(self._failures)

    def now(self) -> datetime:
        """Estimate the time of the database. The estimate is never ahead of that time."""
        at, seen = self._time_seen
        return at + timedelta(seconds=monotonic() - seen)

    def check_allowed(self, what: str) -> None:
        """Refuse a durable call inside a step, or after the handler has ended."""
        if (step := in_step.get()) is not None:
            raise RuntimeError(
                f"{what} inside the function of step {step!r} is not allowed: a step is one "
                "unit. Call it from the handler"
            )
        if self.is_over:
            raise RuntimeError(f"{what} after the handler has ended: its lease has ended too")

    async def begin_step(self, name: str, kind: StepKind, *, is_own: bool) -> Entry:
        """Begin a step. Hold the execution if the step does not match the journal.

        A step without a record is in flight until `end_step`. The handler does not pause before
        that.
        """
        await self._continue(is_own)
        journal = self._journal
        if journal is None:
            journal = await self._load_journal()
            self.check_running()
        try:
            entry = journal.begin(name, kind, is_own=is_own, is_alone=not self._waits.in_flight)
        except Mismatch as error:
            raise self._hold_at(error) from None
        if entry.record is None:
            self._check_count(journal)
            self._begin_anything_new(name)
            self._waits.begin_work()
        elif journal.count % _REPLAYED_AT_ONCE == 0:
            await self.query(asyncio.sleep(0))
            self.check_running()
        return entry

    def _check_count(self, journal: Journal) -> None:
        """Warn once about a long journal, and refuse a step beyond the limit."""
        if journal.count > MAX_STEPS:
            raise TooManySteps(
                f"This execution has recorded {MAX_STEPS:,} steps, which is the limit. Continue "
                "with a fresh journal before that: ctx.continue_as(*args)",
                limit=MAX_STEPS,
            )
        if journal.count == MANY_STEPS:
            WORKER_LOGGER.warning(
                "long journal: %s records its step %d; each run reads all of them. Continue with a "
                "fresh journal: ctx.continue_as(*args)",
                self._claimed.id,
                MANY_STEPS,
            )

    def _begin_anything_new(self, name: str) -> None:
        """Do nothing. A dry run overrides this: it stops before an operation that has no record."""

    async def record(
        self, entry: Entry, *, kind: StepKind | None = None, **facts: Any
    ) -> StepRecord:
        """Record a step in the journal."""
        self.check_running()
        if self.frames.is_used:
            await self.frames.flush()
        step = self.step_of(entry, kind=kind, **facts)
        steps = self._worker.client.steps
        record = await self.write(lambda: steps.record(self._claimed, step))
        self.recorded(entry, record)
        return record

    def step_of(self, entry: Entry, *, kind: StepKind | None = None, **facts: Any) -> Step:
        """Return the step as it will be recorded."""
        return Step(
            name=entry.name,
            occurrence=entry.occurrence,
            position=entry.position,
            is_sequential=entry.is_sequential,
            kind=kind or entry.kind,
            follows=entry.follows,
            code_version=self._worker.code_version,
            **facts,
        )

    def recorded(self, entry: Entry, record: StepRecord) -> None:
        """Remember that a step was recorded."""
        self._time_seen = (record.recorded_at, monotonic())
        if self._journal is not None:
            self._journal.recorded(entry)

    async def make_waitpoint(
        self, entry: Entry, key: str, expires_in: timedelta | None
    ) -> StepRecord:
        """Create a waitpoint and record it. The token of the waitpoint is stored as a secret."""
        id = uuid4()
        client, claimed, step = self._worker.client, self._claimed, (entry.name, entry.occurrence)
        token = await self.write(
            lambda: client.signals.create_waitpoint(
                claimed, id, key, expires_in=expires_in, step=step
            )
        )
        value = json.dumps({"id": str(id), "token": token}).encode()
        return await self.record(entry, value=value, encoding=SECRET)

    async def make_approval(
        self,
        entry: Entry,
        approvers: Sequence[str],
        question: str,
        details: bytes | None,
        need: int,
        deny: int,
    ) -> StepRecord:
        """Ask approvers a question and record their waitpoints. The tokens are secrets."""
        client, claimed, step = self._worker.client, self._claimed, (entry.name, entry.occurrence)
        approval_id, points = uuid4(), [(name, uuid4()) for name in approvers]
        tokens = await self.write(
            lambda: client.approvals.create(
                claimed,
                approval_id,
                points,
                question,
                details=details,
                need=need,
                deny=deny,
                step=step,
            )
        )
        made = [
            {"approver": name, "id": str(id), "token": token}
            for (name, id), token in zip(points, tokens, strict=True)
        ]
        value = json.dumps({"of": made, "need": need, "deny": deny}).encode()
        return await self.record(entry, value=value, encoding=SECRET)

    @property
    def public_url(self) -> str | None:
        """The beginning of the links to waitpoints, such as `https://example.com`.

        None if no public URL is set (FLOWFABRIC_PUBLIC_URL).
        """
        return self._worker.public_url

    def asked(self, entry: Entry, at: datetime) -> None:
        """Remember that a wait has been open since `at`, by the clock of the database."""
        if entry.record is None:
            self._time_seen = max(self._time_seen, (at, monotonic()), key=lambda seen: seen[0])
        if self._journal is not None:
            self._journal.recorded(entry)

    def fail_step(
        self,
        entry: Entry,
        value: bytes,
        task: asyncio.Task[Any] | None = None,
        caller: asyncio.Task[Any] | None = None,
    ) -> None:
        """Remember that a step has failed. The failure is recorded if the handler catches it."""
        self._failures.append(StepFailure(entry, value, task, caller))

    def end_step(self) -> None:
        """Remember that a step is no longer in flight: it was recorded or has failed."""
        self._waits.end_work()

    def end_step_from_thread(self) -> None:
        """Call `end_step` from the thread of a plain handler."""
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self.end_step)

    def flush_from_thread(self) -> None:
        """Wait in the thread of a plain handler until its frames are stored."""
        asyncio.run_coroutine_threadsafe(self.frames.flush(), self.loop).result()

    async def sleep(self, record: StepRecord) -> None:
        """Sleep until the recorded time. The handler can pause during the sleep."""
        until = record.until_at
        if until is not None:
            self.check_running()
            has_ended = until <= self.now()
            await self._waits.wait(
                EndedWait(until) if has_ended else SleepWait(record.recorded_at, until)
            )
            self.check_running()

    async def report_progress(self, percent: int | None, message: str | None) -> None:
        self.check_running()
        self._waits.begin_work()
        report = self._worker.client.executions.report_progress
        try:
            await self.write(lambda: report(self._claimed, percent, message))
        finally:
            self._waits.end_work()

    async def report_usage(self, usage: Mapping[str, int], dedup_key: str) -> str:
        """Report usage to the budgets of the execution. Return the engine's answer, such as `ok`.

        Raises BudgetExceeded if a budget refuses the usage. Stops the handler if the execution now
        waits for a budget.
        """
        self.check_running()
        self._waits.begin_work()
        report = self._worker.client.budgets.report_usage
        try:
            answer = await self.write(lambda: report(self._claimed, usage, dedup_key))
        finally:
            self._waits.end_work()
        if answer.outcome == "suspended":
            self.pause_with(PauseForBudget())
            raise self.interruption()
        if answer.outcome == "hard_breach":
            raise BudgetExceeded.explained({**answer.detail})
        return answer.outcome

    def usage_key(self, entry: Entry) -> str:
        """Return the key of a report of usage, the same in every run of the handler.

        Reports with the same key count once.
        """
        claimed = self._claimed
        name = sha256(entry.name.encode()).hexdigest()
        path = f"{claimed.replay_count}/{claimed.generation}/{name}/{entry.occurrence}"
        return f"{claimed.execution_id}/{path}"

    def step_usage_key(self) -> str:
        """Return a new key, for a report of usage inside the function of a step.

        Every such report counts, because each call of the function spends again.
        """
        self._step_usages += 1
        return f"{self._claimed.lease_id}/{self._step_usages}"

    async def submit(self, task: str, submission: Submission, *, is_own: bool) -> Submitted:
        """Submit a child, or find the child that an earlier run of the handler submitted."""
        await self._continue(is_own)
        parent = self._claimed.id
        # In a later run, children with keys and children of branches may come in another order.
        name = task
        if submission.key is not None:
            name += f" {submission.key}"
        elif not is_own:
            name += f" {_fingerprint(submission.payload)}"
        occurrence = self._children.get(name, 0)
        self._children[name] = occurrence + 1
        journal = self._journal or await self._load_journal()
        self.check_running()
        claimed = self._claimed
        id = child_id(parent, claimed.replay_count, name, occurrence, claimed.generation)
        submission.id = id
        submission.parent_id = parent
        if submission.key is not None:
            id = await self._assign_keyed(submission)
            self.check_running()
        try:
            journal.begin_child(is_own=is_own)
        except Mismatch as error:
            # If the child exists, an earlier run submitted it before that run reached the patch.
            if await self.query(self._worker.client.executions.state(id)) is None:
                raise self._hold_at(error) from None
            self.check_running()
        submitted = await self.query(self._store_child(submission))
        self.ends.note_existing([submitted.id])
        return submitted

    async def _assign_keyed(self, child: Submission) -> ExecutionId:
        """Assign a child to the partition of its key, and return the id of the child.

        A later submit with the same key looks for the child in that partition. If the parent is in
        another partition, the child is stored without a parent.
        """
        await self.query(self._worker.client.executions.assign_partitions([child]))
        return child.id

    async def _store_child(self, submission: Submission) -> Submitted:
        return await self._worker.client.executions.submit(submission)

    async def once(
        self, name: str, work: Callable[[OnceCall], Awaitable[Any]], *, is_own: bool
    ) -> Any:
        """Call `work` in every run, and return its value.

        Only the first value is recorded, as JSON. Later runs pass it to `work`, until the execution
        is replayed.
        """
        step = f"{RESERVED_PREFIX}{name}"
        check_step_name(step)
        entry = await self.begin_step(step, StepKind.STEP, is_own=is_own)
        call = OnceCall(self._claimed, name, entry.occurrence)
        if entry.record is not None:
            recorded = json.loads(entry.record.value or b"{}")
            if recorded.get("replay_count") == self._claimed.replay_count:
                call.is_replayed = True
                call.value = recorded.get("value")
            else:
                self._begin_anything_new(step)
            return await work(call)
        self._waits.end_work()  # the handler may pause while `work` waits
        value = await work(call)
        self._waits.begin_work()
        try:
            stored = {"replay_count": self._claimed.replay_count, "value": value}
            record = await self.record(entry, value=json.dumps(stored).encode())
        finally:
            self._waits.end_work()
        return json.loads(record.value or b"{}").get("value")

    async def is_patched(self, name: str, *, is_own: bool) -> bool:
        """Decide whether this run takes the new code of a patch. Later runs decide the same.

        The old code is kept if an earlier run has already gone further without the patch.
        """
        journal, entry = await self._begin_patch(name, is_own, may_precede=True)
        if entry.record is not None:
            return entry.record.value != _OLD_CODE
        if is_own and journal.takes_patch_at(entry.position):
            # An earlier run took a patch that comes later in the code. Perhaps newer code has added
            # this patch in front of it. Or this code is older than the code of that run: older code
            # must record nothing.
            return False
        value = _OLD_CODE if journal.is_replaying else _NEW_CODE
        return await self._decide_patch(entry, value) != _OLD_CODE

    async def _decide_patch(self, entry: Entry, value: bytes) -> bytes | None:
        """Record the decision about a patch, and return it.

        If another run has already recorded a decision, return the decision of that run.
        """
        self._waits.begin_work()
        try:
            record = await self.record(entry, value=value)
        finally:
            self._waits.end_work()
        return record.value

    async def deprecate_patch(self, name: str, *, is_own: bool) -> None:
        """Hold the execution if it took the old code of a patch, because that code was removed.

        It took the old code if it recorded this, or if an earlier run went further without the
        patch. Otherwise it takes the new code.
        """
        journal, entry = await self._begin_patch(name, is_own)
        if entry.record is not None:
            value = entry.record.value
        elif journal.is_replaying:
            value = _OLD_CODE
        else:
            value = await self._decide_patch(entry, _ONLY_CODE)
        if value == _OLD_CODE:
            raise self.hold(
                entry.name, "an earlier run took the old code of this patch, which was removed"
            )

    async def _begin_patch(
        self, name: str, is_own: bool, *, may_precede: bool = False
    ) -> tuple[Journal, Entry]:
        step = f"{PATCH_PREFIX}{name}"
        check_step_name(step)
        await self._continue(is_own)
        journal = self._journal or await self._load_journal()
        self.check_running()
        try:
            is_alone = not self._waits.in_flight
            return journal, journal.begin_patch(
                step, is_own=is_own, is_alone=is_alone, may_precede=may_precede
            )
        except Mismatch as error:
            raise self._hold_at(error) from None

    async def query(self, question: Awaitable[T]) -> T:
        """Wait for an answer from the database. Until it comes, the handler does not pause."""
        self._waits.begin_query()
        try:
            return await question
        finally:
            self._waits.end_query()

    def can_pause_for(self, id: ExecutionId) -> bool:
        """Return whether the handler can pause and free its slot while it waits for a run."""
        return in_step.get() is None and not self.is_over and not self.ends.is_unrecorded(id)

    async def wait_for_ends(
        self, ids: Sequence[ExecutionId], needed: int, *, is_own: bool
    ) -> list[Ending]:
        """Wait until at least `needed` of the runs `ids` have ended, and return their endings.

        The handler can pause meanwhile.
        """
        await self._continue(is_own)
        return await self.ends.wait_for_ends(ids, needed)

    async def wait_for_end(self, id: ExecutionId, *, is_own: bool) -> Ending:
        """Wait until a run has ended, and return its ending. The handler can pause meanwhile."""
        await self._continue(is_own)
        return await self.ends.wait_for_end(id)

    async def run_in_thread(self, call: Callable[[], Any]) -> Any:
        return await self._worker.run_in_thread(self._claimed, call)

    async def check_journal(self) -> None:
        """Hold the execution if the handler returned without reaching every recorded step.

        Also record the step failures that the handler has caught.
        """
        if self.is_pausing:
            return
        self._waits.begin_work()  # running branches must not pause a handler that has returned
        journal = self._journal or await self._load_journal()
        self._end_journal(journal, "returned")
        await self._record_failures(is_own=True)

    async def continue_as(self, payload: bytes, *, is_own: bool) -> None:
        """End this run. The execution continues with another payload and a fresh journal."""
        await self._continue(is_own)
        if self._waits.in_flight:
            raise RuntimeError(
                "ctx.continue_as was called while other steps run: await them first, because their "
                "records would be lost"
            )
        journal = self._journal or await self._load_journal()
        self.check_running()
        self._end_journal(journal, "continued")
        self.pause_with(PauseToContinue(payload))
        raise self.interruption()

    def _end_journal(self, journal: Journal, how: str) -> None:
        try:
            journal.end(how)
        except Mismatch as error:
            raise self._hold_at(error) from None

    def _hold_at(self, error: Mismatch) -> BaseException:
        return self.hold(error.step, error.problem, is_older=error.is_older)

    def hold(self, step: str, problem: str, *, is_older: bool = False) -> BaseException:
        """Hold the execution until an operator acts, and return the exception to raise.

        If `is_older` is true, the execution first waits for a worker with newer code. It is held
        only if no such worker comes.
        """
        pause = PauseOnHold(step, problem, bool(self._worker.code_version), is_older)
        if running_loop() is self.loop:
            self.pause_with(pause)
        else:
            # This is the thread of a plain handler. The caller raises the returned exception.
            self.loop.call_soon_threadsafe(self.pause_with, pause)
        return self.interruption()

    def pause_with(self, pause: Pause) -> None:
        """Stop the handler, and pause its execution as `pause` says."""
        if self.is_pausing or self.is_over:
            return
        self.pause = pause
        self._worker.on_pausing(self._claimed)
        if self.root is None:
            self._waits.unwind(HandlerPaused)
        elif self.root is not asyncio.current_task():
            self.root.cancel()

    def cancel(self) -> None:
        """Stop all waits, because the lease is lost or released."""
        self.is_over = True
        if self.frames.is_used:
            self.frames.close(is_lost=True)
        if self.root is None:
            self._waits.unwind(HandlerPaused)

    def end(self) -> None:
        """End the run, and stop the waits of branches that still run."""
        self.is_over = True
        if self.frames.is_used:
            self.frames.close(is_lost=False)
        if self._loading is not None:
            self._loading.cancel()
        self._waits.unwind(None if self.root else HandlerPaused)

    def interruption(self) -> BaseException:
        """Return the exception that stops the handler."""
        return HandlerPaused() if self.root is None else asyncio.CancelledError()

    def check_running(self) -> None:
        """Raise if the handler must not go on: it pauses or has ended, or its lease is gone."""
        if self.is_pausing or self.is_over:
            raise self.interruption()

    async def _continue(self, is_own: bool) -> None:
        """Check that the handler may continue, and record the failures that it has caught."""
        self.check_running()
        if self._failures:
            await self._record_failures(is_own)

    async def write(self, write: Callable[[], Awaitable[T]]) -> T:
        """Call `write`, which writes under the lease, and return its answer.

        While another transaction has locked the execution, try again until the lease ends.
        """
        while True:
            try:
                return await write()
            except (LeaseLost, ExecutionNotActive) as error:
                raise self.refused(error) from None
            except RetryExhausted:
                await asyncio.sleep(_LOCKED_SECONDS)
                self.check_running()

    def refused(self, error: Exception) -> BaseException:
        """Return the exception to raise after a call of the engine has failed with `error`.

        If the lease is lost, it is an exception that stops the handler. Otherwise it is `error`.
        """
        if isinstance(error, LeaseLost | ExecutionNotActive):
            self._worker.on_lease_lost(self._claimed, error)
            return self.interruption()
        return error

    async def _record_failures(self, is_own: bool) -> None:
        """Record the failures that the handler has caught, before the handler continues."""
        handled = [one for one in self._failures if one.is_handled(is_own)]
        for one in handled:
            if one.writing is None:
                one.writing = asyncio.create_task(self._record_failure(one))
        if handled:
            # Use a shield: another branch may wait for the same writes.
            await asyncio.gather(*(asyncio.shield(one.writing) for one in handled if one.writing))
            self.check_running()

    async def _record_failure(self, failure: StepFailure) -> None:
        self._waits.begin_work()
        try:
            record = await self.record(failure.entry, kind=StepKind.FAILURE, value=failure.value)
        except BaseException:
            failure.writing = None
            raise
        finally:
            self._waits.end_work()
        self._failures.remove(failure)
        if record.value != failure.value:
            # An earlier call recorded the value of the step, but its answer was lost. Run the
            # handler again with the recorded value.
            self.pause_with(PauseUntil(self.now()))
            raise self.interruption()

    async def _load_journal(self) -> Journal:
        if self._loading is None:
            self._loading = asyncio.create_task(self._read_journal())
        return await asyncio.shield(self._loading)

    async def _read_journal(self) -> Journal:
        try:
            records = await self.query(self._worker.client.steps.journal(self._claimed))
            self._journal = Journal(records)
            return self._journal
        finally:
            self._loading = None


def _fingerprint(payload: bytes) -> str:
    """Return a hash of the arguments of a child.

    The order of the items in lists does not matter, because a list may come from a set.
    """
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
