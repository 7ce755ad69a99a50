"""Executions: submit, claim, start, complete and fail them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from time import monotonic
from typing import Any, TypeVar
from uuid import UUID

from flowfabric import tracing
from flowfabric.client.addresses import lease_addresses
from flowfabric.client.batching import BUSY, Batcher, Busy, busy_pauses
from flowfabric.client.cascades import is_pending
from flowfabric.client.events import ENDED_CHANNEL, READY_CHANNEL
from flowfabric.client.lanes import Lanes
from flowfabric.client.leases import Caller
from flowfabric.client.operations import ExecutionOperations
from flowfabric.client.outcomes import answers, handle_batch, refusal
from flowfabric.client.reads import ExecutionReads
from flowfabric.client.submissions import (
    ARRAYS,
    Answer,
    Ask,
    Place,
    alike_arguments,
    carry_out,
    group_of,
    submit_alike_plan,
    submit_all_plan,
    submit_plan,
)
from flowfabric.core.attempts import attempt_number
from flowfabric.core.errors import FlowFabricError, InvalidInput, RetryExhausted
from flowfabric.core.execution import (
    Alike,
    Claimed,
    FailAnswer,
    Failure,
    Submission,
    Submitted,
)
from flowfabric.core.ids import uuid7
from flowfabric.db import functions
from flowfabric.db.call import Rows
from flowfabric.db.records import reader
from flowfabric.db.session import Database
from flowfabric.telemetry import ENGINE_LOGGER

# How long a finished handler tries to report its result to an unreachable database.
SETTLE_PATIENCE_SECONDS = 60.0

# How often a waiting claim polls without a hint.
_WAIT_POLL_SECONDS = 0.5

Floor = tuple[int, datetime, UUID]
T = TypeVar("T")


_claimed = reader(Claimed, functions.CLAIM_EXECUTIONS, given="partition_key lease_id")


class Executions(ExecutionReads, ExecutionOperations):
    """Operations on executions. This class submits, claims and settles; `reads` reads; `operations`
    changes single executions."""

    def __init__(self, database: Database, lanes: Lanes, namespace: str | None) -> None:
        super().__init__(database, namespace)
        self._lanes = lanes
        self._place = Place(lanes.known)
        self._submits: dict[tuple[int, str, bool], Batcher[Submission, Submitted]] = {}
        self._singles: dict[tuple[int, str, bool], Batcher[Alike, None]] = {}
        self._completes: dict[int, Batcher[tuple[Claimed, bytes | None], None]] = {}
        self._fails: dict[int, Batcher[tuple[Claimed, Failure], FailAnswer]] = {}
        self._starts: dict[int, Batcher[tuple[Claimed, bool], None]] = {}
        self._ended_hint = EndedHint(database)

    async def close(self) -> None:
        for submits in list(self._submits.values()):
            await submits.close()
        for singles in list(self._singles.values()):
            await singles.close()
        for completes in list(self._completes.values()):
            await completes.close()
        for fails in list(self._fails.values()):
            await fails.close()
        for starts in list(self._starts.values()):
            await starts.close()
        await self._ended_hint.close()
        await self._cascades.close()

    async def submit(self, submission: Submission) -> Submitted:
        """Store one execution; concurrent calls share one transaction."""
        submission.check()
        if submission.route not in self._lanes.known:
            await self._lanes.register(submission.route)
        if tracing.tracer() is None:
            return await self._submit_batcher(submission).put(submission)
        with tracing.send_span([submission]) as span:
            submitted = await self._submit_batcher(submission).put(submission)
            tracing.sent(span, submitted.id)
            return submitted

    async def submit_many(self, submissions: Sequence[Submission]) -> list[Submitted]:
        """Store many executions, 500 in a transaction.

        Invalid items raise before anything is stored. Refusals by the engine (a closed lane, a key
        reused with other arguments) raise after the other items of their 500 are stored."""
        for submission in submissions:
            submission.check()
        for route in {submission.route for submission in submissions}:
            await self._lanes.register(route)
        with tracing.send_span(submissions):
            plan = submit_all_plan(ARRAYS, submissions, self._place)
            return await carry_out(plan, self._ask, self._find)

    async def submit_alike(self, batch: Alike) -> None:
        """Store submissions that differ only in id and payload, as `submit` or `submit_many`."""
        batch.check()
        if batch.shared.route not in self._lanes.known:
            await self._lanes.register(batch.shared.route)
        if tracing.tracer() is None:
            await self._store_alike(batch)
            return
        # A submission gets the trace context of this call; others may share the given one.
        batch = replace(batch, shared=replace(batch.shared))
        with tracing.send_span([batch.shared], len(batch)) as span:
            await self._store_alike(batch)
            if len(batch) == 1:
                tracing.sent(span, batch[0].id)

    async def claim(
        self,
        *,
        worker_id: str,
        worker_instance_id: str,
        tasks: Sequence[str] | None = None,
        lanes: Sequence[str] | None = None,
        capabilities: Sequence[str] = (),
        limit: int = 1,
        lease_ttl: timedelta = timedelta(seconds=30),
        first_lane: str | None = None,
        floor: Floor | None = None,
        partition: int = 0,
        caller: Caller | None = None,
        patience: float = 10.0,
        claim_id: UUID | None = None,
        max_wait: timedelta | None = None,
        reports_starts: bool = False,
        code_versions: Sequence[str] | None = None,
        unserved: Sequence[int] | None = None,
        finish_only: bool = False,
    ) -> list[Claimed]:
        """Lease the next executions that this worker can run; return [] if none is ready.

        `max_wait` is how long to wait for work: hints end the wait early, polling covers lost
        hints. After `Unavailable`, repeat the call with the same `claim_id` to get the executions
        that the lost call leased. With `reports_starts` the caller must call `start()` before it
        runs an execution that crashed before; without it, a lost lease counts as a crash of every
        execution under it.

        Executions of a code version are claimed only if it is one of `code_versions`, or if their
        route is in `unserved` and no worker of that version is alive. With `finish_only` no other
        executions are claimed.
        """
        if max_wait is not None:
            asked: dict[str, Any] = {
                "worker_id": worker_id,
                "worker_instance_id": worker_instance_id,
                "tasks": tasks,
                "lanes": lanes,
                "capabilities": capabilities,
                "limit": limit,
                "lease_ttl": lease_ttl,
                "first_lane": first_lane,
                "floor": floor,
                "partition": partition,
                "patience": patience,
                "reports_starts": reports_starts,
                "code_versions": code_versions,
                "unserved": unserved,
                "finish_only": finish_only,
            }
            return await self._claim_within(max_wait, asked)
        claim_id = claim_id or uuid7()
        rank, at, last = floor or (None, None, None)
        rows = await (caller or self._database).call(
            functions.CLAIM_EXECUTIONS,
            partition_key=partition,
            namespace=self._namespace,
            worker_id=worker_id,
            worker_instance_id=worker_instance_id,
            claim_id=claim_id,
            lanes=None if lanes is None else list(lanes),
            tasks=None if tasks is None else list(tasks),
            capabilities=list(capabilities),
            limit=limit,
            lease_ttl=lease_ttl,
            first_lane=first_lane,
            floor_rank=rank,
            floor_at=at,
            floor_id=last,
            reports_starts=reports_starts,
            code_versions=None if code_versions is None else list(code_versions),
            unserved=list(unserved) if unserved else None,
            finish_only=finish_only,
            patience=patience,
        )
        return [_claimed(row, partition, claim_id) for row in rows]

    async def _claim_within(self, max_wait: timedelta, asked: dict[str, Any]) -> list[Claimed]:
        if not isinstance(max_wait, timedelta) or max_wait < timedelta(0):
            raise InvalidInput(field="max_wait", problem="must be a timedelta, 0 or more")
        deadline = monotonic() + max_wait.total_seconds()
        hinted = asyncio.Event()
        session = self._database.session("claim")
        try:
            await session.listen(READY_CHANNEL, lambda _: hinted.set())
            while True:
                hinted.clear()
                claimed = await self.claim(**asked, caller=session)
                left = deadline - monotonic()
                if claimed or left <= 0:
                    return claimed
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left, _WAIT_POLL_SECONDS)):
                        await hinted.wait()
        finally:
            await session.close()

    async def start(self, claimed: Claimed, *, alone: bool = False) -> None:
        """Report that an execution starts now, alone in its process or beside others.

        Required for executions that crashed before (`crash_count`) after a claim with
        `reports_starts`. A later crash is blamed on the execution."""
        batcher = self._starts.get(claimed.partition_key)
        if batcher is None:
            batcher = Batcher(self._flush_starts, self._start_alone)
            self._starts[claimed.partition_key] = batcher
        await batcher.put((claimed, alone))

    async def complete(self, claimed: Claimed, result: bytes | None = None) -> None:
        """Complete an execution with its result; refused unless the lease is live."""
        await self._complete_batcher(claimed).put((claimed, result))

    def hand_in(
        self,
        claimed: Claimed,
        result: bytes | None,
        answered: Callable[[tuple[Claimed, bytes | None], BaseException | None], None],
    ) -> None:
        """Hand in a result for the next flush. The batcher calls `answered` with the answer, or
        with a CancelledError if the event loop ends first."""
        self._complete_batcher(claimed).hand_in((claimed, result), answered)

    def _complete_batcher(self, claimed: Claimed) -> Batcher[tuple[Claimed, bytes | None], None]:
        batcher = self._completes.get(claimed.partition_key)
        if batcher is None:
            batcher = Batcher(self._flush_completes, self._complete_alone)
            self._completes[claimed.partition_key] = batcher
        return batcher

    async def fail(self, claimed: Claimed, failure: Failure) -> FailAnswer:
        """Fail an attempt; the stored policy decides whether the execution is retried."""
        batcher = self._fails.get(claimed.partition_key)
        if batcher is None:
            batcher = Batcher(self._flush_fails, self._fail_alone)
            self._fails[claimed.partition_key] = batcher
        return await batcher.put((claimed, failure))

    async def promote_delayed(
        self, *, partition: int = 0, limit: int = 500
    ) -> tuple[int, timedelta | None]:
        """Make due executions eligible; return how many, and the time until the next timer."""
        return await handle_batch(
            self._database, functions.PROMOTE_DELAYED, partition_key=partition, limit=limit
        )

    async def unblock_all(
        self, *, partition: int = 0, limit: int = 500
    ) -> tuple[int, timedelta | None]:
        """Unblock executions that waited for a capable worker, once one is registered."""
        return await handle_batch(
            self._database, functions.UNBLOCK_EXECUTIONS, partition_key=partition, limit=limit
        )

    def _submit_batcher(self, submission: Submission) -> Batcher[Submission, Submitted]:
        group = group_of(submission)
        batcher = self._submits.get(group)
        if batcher is None:
            batcher = self._submits[group] = Batcher(self._flush_submits, self._submit_alone)
        return batcher

    async def _flush_submits(self, batch: list[Submission]) -> list[Answer]:
        plan = submit_plan(ARRAYS, batch, self._place, waits=False)
        return await carry_out(plan, self._ask, self._find)

    async def _store_alike(self, batch: Alike) -> None:
        if len(batch) > 1:
            await carry_out(submit_alike_plan(batch, self._place), self._ask, self._find)
            return
        group = group_of(batch.shared)
        batcher = self._singles.get(group)
        if batcher is None:
            batcher = self._singles[group] = Batcher(self._flush_singles, self._single_alone)
        await batcher.put(batch)

    async def _flush_singles(self, batch: list[Alike]) -> list[Exception | Busy | None]:
        shared = batch[0].shared
        if all(one.shared is shared for one in batch):
            uuids, payloads = [one.uuids[0] for one in batch], [one.payloads[0] for one in batch]
            arguments = alike_arguments(self._place, Alike(shared, uuids, payloads))
            if not await self._database.call(functions.SUBMIT_EXECUTIONS, **arguments):
                return [None] * len(batch)
        # Several tasks, or something was not created: what was created is answered the same.
        answers = await self._flush_submits([one[0] for one in batch])
        return [None if isinstance(answer, Submitted) else answer for answer in answers]

    async def _single_alone(self, batch: Alike) -> None:
        await self._submit_alone(batch[0])

    async def _submit_alone(self, submission: Submission) -> Submitted:
        await asyncio.sleep(next(busy_pauses()))
        plan = submit_all_plan(ARRAYS, [submission], self._place)
        return (await carry_out(plan, self._ask, self._find))[0]

    async def _ask(self, one: Ask) -> Rows:
        return await self._database.call(one.function, **one.arguments)

    async def _find(self, submissions: Sequence[Submission]) -> Place:
        self._lanes.forget()
        for route in {submission.route for submission in submissions}:
            await self._lanes.register(route)
        return self._place

    async def _flush_starts(
        self, batch: list[tuple[Claimed, bool]], wait: bool = False
    ) -> list[Exception | Busy | None]:
        rows = await self._database.call(
            functions.START_EXECUTIONS,
            **lease_addresses([claimed for claimed, _ in batch], self._namespace),
            alones=[alone for _, alone in batch],
            wait=wait,
        )
        return answers(len(batch), None, rows, same="started")

    async def _start_alone(self, item: tuple[Claimed, bool]) -> None:
        answer = (await self._flush_starts([item], wait=True))[0]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Busy):
            raise RetryExhausted(operation="start_executions")

    async def _flush_completes(
        self, batch: list[tuple[Claimed, bytes | None]], wait: bool = False
    ) -> list[Exception | Busy | None]:
        rows = await self._database.call(
            functions.COMPLETE_EXECUTIONS,
            **lease_addresses([claimed for claimed, _ in batch], self._namespace),
            results=[result for _, result in batch],
            result_encodings=None,
            wait=wait,
            hint=False,
            patience=SETTLE_PATIENCE_SECONDS,
        )
        self._ended_hint.send(batch[0][0].partition_key)
        if any(row["outcome"] == "completed" and is_pending(row["detail"]) for row in rows):
            self._cascades.send(batch[0][0].partition_key)
        return answers(len(batch), None, rows, same="completed")

    async def _complete_alone(self, item: tuple[Claimed, bytes | None]) -> None:
        answer = (await self._flush_completes([item], wait=True))[0]
        if isinstance(answer, Exception):
            raise answer
        if answer is BUSY:
            raise RetryExhausted(operation="complete_executions")

    async def _flush_fails(
        self, batch: list[tuple[Claimed, Failure]], wait: bool = False
    ) -> list[FailAnswer | Exception | Busy]:
        rows = await self._database.call(
            functions.FAIL_EXECUTIONS,
            **lease_addresses([claimed for claimed, _ in batch], self._namespace),
            classes=[failure.kind.value for _, failure in batch],
            reasons=[failure.reason for _, failure in batch],
            categories=[failure.category for _, failure in batch],
            details=[failure.detail for _, failure in batch],
            retry_delays=_values(failure.retry_delay for _, failure in batch),
            retry_ats=_values(failure.retry_at for _, failure in batch),
            wait=wait,
            hint=False,
            patience=SETTLE_PATIENCE_SECONDS,
        )
        self._ended_hint.send(batch[0][0].partition_key)
        found: list[FailAnswer | Exception | Busy] = [BUSY] * len(batch)
        for row in rows:
            index, outcome = row["item"] - 1, row["outcome"]
            if outcome == "retry_scheduled":
                found[index] = FailAnswer(
                    row["delayed_until"], attempt_number(row["next_attempt_index"])
                )
            elif outcome == "failed":
                found[index] = FailAnswer()
                if is_pending(row["detail"]):
                    self._cascades.send(batch[0][0].partition_key)
            elif outcome not in ("busy", "duplicate"):
                found[index] = refusal(outcome, row["detail"])
        return found

    async def _fail_alone(self, item: tuple[Claimed, Failure]) -> FailAnswer:
        answer = (await self._flush_fails([item], wait=True))[0]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Busy):
            raise RetryExhausted(operation="fail_executions")
        return answer


def _values(given: Iterable[T | None]) -> list[T | None] | None:
    """Return the values as an array, or None if no item has one."""
    values = list(given)
    return values if any(value is not None for value in values) else None


class EndedHint:
    """Notify waiting processes of ends: outside the hot transaction and at a limited rate. The
    last hint of a burst is always sent."""

    INTERVAL = 0.01

    def __init__(self, database: Database) -> None:
        self._database = database
        self._task: asyncio.Task[None] | None = None
        self._pending: set[int] = set()
        self._last = 0.0

    def send(self, partition: int) -> None:
        self._pending.add(partition)
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._pending:
                if (pause := self._last + self.INTERVAL - monotonic()) > 0:
                    await asyncio.sleep(pause)
                partitions, self._pending = self._pending, set()
                self._last = monotonic()
                for partition in partitions:
                    await self._database.call(
                        functions.HINT, channel=ENDED_CHANNEL, payload=str(partition), patience=0.0
                    )
        except FlowFabricError as error:
            # Hints may be lost: waiters poll as well.
            ENGINE_LOGGER.debug("hint not sent: %s", error)
        finally:
            self._task = None
