"""Executions: submit, claim, start, complete and fail them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from random import randrange, uniform
from time import monotonic
from typing import Any, TypeVar
from uuid import UUID

from flowfabric import tracing
from flowfabric.client.addresses import lease_addresses
from flowfabric.client.batching import BUSY, MAX_BATCH, Batcher, Busy, busy_pauses
from flowfabric.client.cascades import is_pending
from flowfabric.client.claim_answer import claimed_of, waits_of
from flowfabric.client.events import ENDED_CHANNEL, READY_CHANNEL
from flowfabric.client.hints import RationedHint, ready_hint
from flowfabric.client.lanes import Lanes
from flowfabric.client.leases import Caller
from flowfabric.client.operations import ExecutionOperations
from flowfabric.client.outcomes import answers, refusal
from flowfabric.client.partitions import look, within_time
from flowfabric.client.reads import ExecutionReads
from flowfabric.client.reconciler_passes import Due, handle_everywhere
from flowfabric.client.submissions import (
    ARRAYS,
    Answer,
    Ask,
    Destination,
    Find,
    alike_arguments,
    carry_out,
    group_of,
    has_moved,
    stored,
    submit_alike_plan,
    submit_all_plan,
    submit_each_plan,
    submit_plan,
)
from flowfabric.core.attempts import attempt_number
from flowfabric.core.errors import (
    FlowFabricError,
    InvalidInput,
    LimitReached,
    RetryExhausted,
    Unavailable,
)
from flowfabric.core.execution import (
    Alike,
    Claimed,
    FailAnswer,
    Failure,
    Submission,
    Submitted,
)
from flowfabric.core.ids import ExecutionId, fit, key_partition, uuid7
from flowfabric.db import functions
from flowfabric.db.call import Rows
from flowfabric.db.outage import level_of
from flowfabric.db.partitions import ALL, Rest
from flowfabric.db.session import Database
from flowfabric.telemetry import ENGINE_LOGGER

# How long to keep trying to report a finished handler's result while the database is unreachable.
SETTLE_PATIENCE_SECONDS = 60.0

# How often a waiting claim polls if no hint arrives.
_WAIT_POLL_SECONDS = 0.5
# How long a claim first waits for another claim of the same routes. Every further wait is twice as
# long.
_GIVE_WAY_SECONDS = 0.003
# The arguments of a claim that say what a query over all partitions looks for.
_LOOKED_FOR = (
    "tasks",
    "lanes",
    "capabilities",
    "code_versions",
    "unserved",
    "finish_only",
    "caller",
    "patience",
)

Floor = tuple[int, datetime, UUID]
T = TypeVar("T")


class Executions(ExecutionReads, ExecutionOperations):
    """Operations on executions.

    The methods of this class submit, claim, start, complete and fail executions. The base classes
    add reads (`reads.py`) and operations on single executions (`operations.py`).
    """

    def __init__(self, database: Database, lanes: Lanes, namespace: str | None) -> None:
        super().__init__(database, namespace)
        self._lanes = lanes
        self._destination = Destination(lanes.known)
        self._submits: dict[tuple[int, str, bool], Batcher[Submission, Submitted]] = {}
        self._singles: dict[tuple[int, str, bool], Batcher[Alike, None]] = {}
        self._completes: dict[int, Batcher[tuple[Claimed, bytes | None], None]] = {}
        self._fails: dict[int, Batcher[tuple[Claimed, Failure], FailAnswer]] = {}
        self._starts: dict[int, Batcher[tuple[Claimed, bool], None]] = {}
        self._unreached = Rest()
        self._ended_hint = RationedHint(database, ENDED_CHANNEL)
        self._ready_hint = RationedHint(database, READY_CHANNEL)

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
        await self._ready_hint.close()
        await self._cascades.close()

    async def assign_partitions(self, submissions: Sequence[Submission]) -> None:
        """Choose a partition for each new submission, and change its id accordingly.

        A submission with a key goes to the partition of its key, so that duplicates are found.
        Submissions without a key are spread over the partitions, in batches of up to 500.
        """
        partitions = self._database.partitions
        numbers = await partitions.current()
        _assign_keys(submissions, numbers.keyed)
        if numbers.minted > 1:
            solo = [one for one in submissions if one.key is None]
            for start in range(0, len(solo), MAX_BATCH):
                chunk = solo[start : start + MAX_BATCH]
                partition = partitions.choose(len(chunk))
                for one in chunk:
                    uuid = fit(one.id.uuid, partition, numbers.minted)
                    one.id = ExecutionId.of(partition, uuid)

    async def reassign_partitions(self, submissions: Sequence[Submission]) -> None:
        """Move submissions with a key to the current partitions of their keys.

        Call this when the engine has refused submissions because their partitions were outdated.
        """
        await self._database.partitions.refresh()
        _assign_keys(submissions, self._database.partitions.numbers.keyed)

    async def submit(self, submission: Submission) -> Submitted:
        """Store one execution. Concurrent calls share transactions."""
        submission.check()
        if submission.route not in self._lanes.known or submission.quotas or submission.budgets:
            await self._lanes.prepare([submission])
        if tracing.tracer() is None:
            return await self._submit_batcher(submission).put(submission)
        with tracing.send_span([submission]) as span:
            submitted = await self._submit_batcher(submission).put(submission)
            tracing.sent(span, submitted.id)
            return submitted

    async def submit_many(self, submissions: Sequence[Submission]) -> list[Submitted]:
        """Store many executions, at most 500 per transaction.

        If an item is invalid, the call raises before anything is stored. If the engine refuses an
        item (for example because its lane is disabled), or if a partition cannot be reached, the
        call stores all other items and then raises the first error. Use `submit_each` to get an
        answer or an error for each item.
        """
        return stored(await self.submit_each(submissions))

    async def submit_each(
        self, submissions: Sequence[Submission]
    ) -> Sequence[Submitted | Exception]:
        """Store many executions like `submit_many`, but return an answer or an error for each.

        The results are in the order of the submissions.
        """
        for submission in submissions:
            submission.check()
        await self._lanes.prepare(submissions)
        with tracing.send_span(submissions):
            plan = submit_each_plan(ARRAYS, submissions, self._destination)
            return await carry_out(plan, self._ask, self._find)

    async def submit_alike(self, *batches: Alike) -> None:
        """Store submissions that differ only in id and payload.

        Each batch goes to one partition. If a batch fails, the call still tries the others, and
        then raises the first error.
        """
        for batch in batches:
            batch.check()
            shared = batch.shared
            if shared.route not in self._lanes.known or shared.quotas or shared.budgets:
                await self._lanes.prepare([shared])
        if tracing.tracer() is None:
            await self._store_batches(batches)
            return
        # Copy the submission before the trace context is set: other calls may use the same object.
        first = replace(batches[0].shared)
        with tracing.send_span([first], sum(map(len, batches))) as span:
            context = first.trace_context
            batches = tuple(
                replace(batch, shared=replace(batch.shared, trace_context=context))
                for batch in batches
            )
            await self._store_batches(batches)
            if len(batches) == len(batches[0]) == 1:
                tracing.sent(span, batches[0][0].id)

    async def _store_batches(self, batches: Sequence[Alike]) -> None:
        if len(batches) == 1:
            await self._store_alike(batches[0])
            return
        error: FlowFabricError | None = None
        for batch in batches:
            try:
                await self._store_alike(batch)
            except FlowFabricError as problem:
                error = error or problem
        if error is not None:
            raise error

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
        partition: int | None = None,
        caller: Caller | None = None,
        patience: float = 10.0,
        claim_id: UUID | None = None,
        max_wait: timedelta | None = None,
        reports_starts: bool = False,
        code_versions: Sequence[str] | None = None,
        unserved: Sequence[int] | None = None,
        finish_only: bool = False,
        gives_way: int = 0,
    ) -> list[Claimed]:
        """Lease the next executions that this worker can run; return [] if none is ready.

        If `partition` is None, the call asks all partitions, beginning with the most urgent work.
        The order of priorities is exact only within a partition.

        `max_wait` is how long to wait for work. A hint of new work ends the wait early. The call
        also polls, so it finds work whose hint was lost. If the call raises Unavailable, repeat it
        with the same `claim_id` to get the executions that the failed call leased.

        If `reports_starts` is true, the caller promises to call `start()` before it runs an
        execution that crashed earlier. If it is false, every lost lease counts as a crash of the
        execution.

        An execution that belongs to a code version is claimed only if that version is in
        `code_versions`, or if its route is in `unserved` and no worker of that version is alive. If
        `finish_only` is true, executions without a code version are not claimed.

        Claims of the same routes slow each other down if they run at the same time. If `gives_way`
        is more than 0, this claim gives way to such a claim: it pauses and tries again, at most
        `gives_way` times. The first pause is about 3 ms, and every further pause is twice as long.
        """
        if max_wait is not None or partition is None:
            asked: dict[str, Any] = {
                "worker_id": worker_id,
                "worker_instance_id": worker_instance_id,
                "tasks": tasks,
                "lanes": lanes,
                "capabilities": capabilities,
                "lease_ttl": lease_ttl,
                "first_lane": first_lane,
                "floor": floor,
                "patience": patience,
                "reports_starts": reports_starts,
                "code_versions": code_versions,
                "unserved": unserved,
                "finish_only": finish_only,
                "gives_way": gives_way,
            }
            if max_wait is not None:
                asked |= {"limit": limit, "partition": partition, "claim_id": claim_id}
                return await self._claim_within(max_wait, asked)
            several = await self._database.partitions.all()
            if len(several) > 1:
                return await self._claim_anywhere(several, claim_id, limit, caller=caller, **asked)
            partition = 0
        claim_id = claim_id or uuid7()
        rank, at, last = floor or (None, None, None)
        pause = _GIVE_WAY_SECONDS
        while True:
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
                gives_way=gives_way > 0,
                patience=patience,
            )
            if not rows:
                return []
            if rows[0]["execution_ids"]:
                claimed = claimed_of(rows[0], partition, claim_id)
                self._observe_waits(claimed, lease_ttl)
                return claimed
            gives_way -= 1
            await asyncio.sleep(pause * uniform(0.5, 1.5))
            pause *= 2

    def _observe_waits(self, claimed: Sequence[Claimed], lease_ttl: timedelta) -> None:
        """Report the seconds from `waits_of` to the metrics."""
        if (meter := self._database.meter).observers:
            for (task, lane), waits in waits_of(claimed, lease_ttl).items():
                meter.observe("flowfabric_wait_seconds", waits, task=task, lane=lane)

    async def find_work(
        self,
        *,
        tasks: Sequence[str] | None = None,
        lanes: Sequence[str] | None = None,
        capabilities: Sequence[str] = (),
        code_versions: Sequence[str] | None = None,
        unserved: Sequence[int] | None = None,
        finish_only: bool = False,
        caller: Caller | None = None,
        patience: float = 10.0,
    ) -> dict[int, int]:
        """Return the partitions with executions that `claim` could lease.

        The result maps each of these partitions to the rank of its most urgent execution. A lower
        rank is more urgent.
        """
        rows = await (caller or self._database).call(
            functions.FIND_WORK,
            namespace=self._namespace,
            lanes=None if lanes is None else list(lanes),
            tasks=None if tasks is None else list(tasks),
            capabilities=list(capabilities),
            code_versions=None if code_versions is None else list(code_versions),
            unserved=list(unserved) if unserved else None,
            finish_only=finish_only,
            patience=patience,
        )
        return {row["partition_key"]: row["rank"] for row in rows}

    async def _claim_anywhere(
        self, several: Sequence[int], claim_id: UUID | None, limit: int, **asked: Any
    ) -> list[Claimed]:
        """Claim from one partition after the other until there are `limit` executions.

        A partition that does not answer is skipped for a while. It may have leased executions
        before its answer was lost. A repeat of the claim returns these executions. Without a
        repeat, their leases expire.
        """
        wanted = await self._choose_partitions(several, claim_id, asked)
        claim_id = claim_id or uuid7()
        claimed: list[Claimed] = []
        unreached: Unavailable | None = None
        for partition in wanted:
            if (left := limit - len(claimed)) <= 0:
                break
            claim = self.claim(**asked, partition=partition, claim_id=claim_id, limit=left)
            try:
                claimed += await within_time(partition, len(several), claim)
            except Unavailable as error:
                ENGINE_LOGGER.log(
                    level_of(error), "claim failed in partition %s: %s", partition, error
                )
                unreached = unreached or error
                self._unreached.begin(partition)
            else:
                self._unreached.end(partition)
        if unreached is not None and not claimed:
            raise unreached
        return claimed

    async def _choose_partitions(
        self, several: Sequence[int], claim_id: UUID | None, asked: dict[str, Any]
    ) -> list[int]:
        """Return the partitions to claim from, in the order in which to ask them.

        If an earlier call with this `claim_id` has leased executions, their partitions come first.
        The partitions with work follow, the most urgent work first. If the query over all
        partitions fails, return all partitions that can be reached, starting with a random one.
        """
        start = randrange(len(several))
        by_turn = [*several[start:], *several[:start]]
        wanted: list[int] = []
        if self._unreached.is_over(ALL):
            try:
                if claim_id is not None:
                    wanted = await look(len(several), self._find_claim(claim_id, asked))
                work = self.find_work(**{name: asked[name] for name in _LOOKED_FOR})
                ranks = await look(len(several), work)
            except Unavailable as error:
                ENGINE_LOGGER.log(level_of(error), "query over all partitions failed: %s", error)
                self._unreached.begin(ALL)
            else:
                self._unreached.end(ALL)
                by_turn = sorted((one for one in by_turn if one in ranks), key=ranks.__getitem__)
        reached = [one for one in by_turn if self._unreached.is_over(one)]
        return [*dict.fromkeys([*wanted, *(reached or by_turn)])]

    async def _find_claim(self, claim_id: UUID, asked: dict[str, Any]) -> list[int]:
        rows = await (asked["caller"] or self._database).call(
            functions.FIND_CLAIM,
            namespace=self._namespace,
            worker_instance_id=asked["worker_instance_id"],
            claim_id=claim_id,
            patience=asked["patience"],
        )
        return [row["partition_key"] for row in rows]

    async def _claim_within(self, max_wait: timedelta, asked: dict[str, Any]) -> list[Claimed]:
        if not isinstance(max_wait, timedelta) or max_wait < timedelta(0):
            raise InvalidInput(field="max_wait", problem="must be a timedelta, 0 or more")
        deadline = monotonic() + max_wait.total_seconds()
        hinted = asyncio.Event()
        session = self._database.session("claim")
        try:
            try:
                await session.listen(READY_CHANNEL, lambda _: hinted.set())
            except Exception as error:
                ENGINE_LOGGER.debug("cannot listen for work, polling instead: %s", error)
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
        """Report that the handler of an execution is about to run.

        A worker whose claim has set `reports_starts` must call this for every execution whose
        `crash_count` is not 0. If the process crashes after this call, this execution is blamed.
        `alone` says that no other execution runs in the process.
        """
        batcher = self._starts.get(claimed.partition_key)
        if batcher is None:
            batcher = Batcher(self._flush_starts, self._start_alone)
            self._starts[claimed.partition_key] = batcher
        await batcher.put((claimed, alone))

    async def complete(self, claimed: Claimed, result: bytes | None = None) -> None:
        """Complete an execution with its result. Raise an error if the lease is no longer valid."""
        await self._complete_batcher(claimed).put((claimed, result))

    def complete_soon(
        self,
        claimed: Claimed,
        result: bytes | None,
        answered: Callable[[tuple[Claimed, bytes | None], BaseException | None], None],
    ) -> None:
        """Complete an execution like `complete`, but do not wait for the answer.

        `answered` is called later with two arguments. The first is the pair `(claimed, result)`.
        The second is None if the execution was completed, otherwise an error. If the event loop
        ends first, the error is a CancelledError.
        """
        self._complete_batcher(claimed).put_soon((claimed, result), answered)

    def _complete_batcher(self, claimed: Claimed) -> Batcher[tuple[Claimed, bytes | None], None]:
        batcher = self._completes.get(claimed.partition_key)
        if batcher is None:
            batcher = Batcher(self._flush_completes, self._complete_alone)
            self._completes[claimed.partition_key] = batcher
        return batcher

    async def fail(self, claimed: Claimed, failure: Failure) -> FailAnswer:
        """Report that the attempt of an execution failed.

        The policy that was stored at submit decides whether the execution is retried.
        """
        batcher = self._fails.get(claimed.partition_key)
        if batcher is None:
            batcher = Batcher(self._flush_fails, self._fail_alone)
            self._fails[claimed.partition_key] = batcher
        return await batcher.put((claimed, failure))

    async def promote_delayed(
        self, *, partition: int | None = None, limit: int = 500
    ) -> tuple[int, timedelta | None]:
        """Promote the executions whose delay is over.

        Return how many were promoted, and the time until the next one is due.
        """
        return await handle_everywhere(
            self._database, functions.PROMOTE_DELAYED, Due.TIMER, partition=partition, limit=limit
        )

    async def unblock_all(
        self, *, partition: int | None = None, limit: int = 500
    ) -> tuple[int, timedelta | None]:
        """Unblock executions that were blocked because no live worker could run them.

        Only executions that a live worker can run now are unblocked. Return how many were
        unblocked, and the time until the next call.
        """
        return await handle_everywhere(
            self._database,
            functions.UNBLOCK_EXECUTIONS,
            Due.ROUTE,
            partition=partition,
            limit=limit,
        )

    def _submit_batcher(self, submission: Submission) -> Batcher[Submission, Submitted]:
        group = group_of(submission)
        batcher = self._submits.get(group)
        if batcher is None:
            batcher = self._submits[group] = Batcher(self._flush_submits, self._submit_alone)
        return batcher

    async def _flush_submits(self, batch: list[Submission]) -> list[Answer]:
        plan = submit_plan(ARRAYS, batch, self._destination, waits=False)
        found = await carry_out(plan, self._ask, self._find)
        for answer in found:
            if isinstance(answer, LimitReached):
                quota = str(answer.facts.get("quota", ""))
                self._database.meter.count("flowfabric_quota_refusals", quota=quota)
        # An item whose key now belongs to another partition is sent again alone, like a busy item.
        return [BUSY if has_moved(answer) else answer for answer in found]

    async def _store_alike(self, batch: Alike) -> None:
        if len(batch) > 1:
            await carry_out(submit_alike_plan(batch, self._destination), self._ask, self._find)
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
            arguments = alike_arguments(self._destination, Alike(shared, uuids, payloads))
            if not await self._ask(Ask(functions.SUBMIT_EXECUTIONS, arguments)):
                return [None] * len(batch)
        # The batch has several tasks, or an item was not created. Send all items in the general
        # form; items that were created already get the same answer again.
        answers = await self._flush_submits([one[0] for one in batch])
        return [None if isinstance(answer, Submitted) else answer for answer in answers]

    async def _single_alone(self, batch: Alike) -> None:
        await self._submit_alone(batch[0])

    async def _submit_alone(self, submission: Submission) -> Submitted:
        await asyncio.sleep(next(busy_pauses()))
        plan = submit_all_plan(ARRAYS, [submission], self._destination)
        return (await carry_out(plan, self._ask, self._find))[0]

    async def _ask(self, one: Ask) -> Rows:
        if not self._database.is_distributed:
            return await self._database.call(one.function, **one.arguments)
        # Send the hint from here: the engine would send it on the node of the partition, where no
        # process listens.
        rows = await self._database.call(one.function, **{**one.arguments, "hint": False})
        asked = one.arguments
        routes = set(asked["route_ids"])
        lanes = {route.lane for route, id in self._destination.routes.items() if id in routes}
        for lane in lanes:
            self._ready_hint.send(ready_hint(asked["partition_key"], asked["namespace"], lane))
        return rows

    async def _find(self, asked: Find) -> Destination:
        if asked.has_moved:
            await self.reassign_partitions(asked.submissions)
        else:
            self._lanes.forget()
            await self._lanes.prepare(asked.submissions)
        return self._destination

    async def _flush_starts(
        self, batch: list[tuple[Claimed, bool]], wait: bool = False
    ) -> list[Exception | Busy | None]:
        rows = await self._database.call(
            functions.START_EXECUTIONS,
            **lease_addresses([claimed for claimed, _ in batch], self._namespace),
            are_alone=[alone for _, alone in batch],
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
        leases = [claimed for claimed, _ in batch]
        lease_ids, lease_id = _shared([claimed.lease_id for claimed in leases])
        epochs, epoch = _shared([claimed.epoch for claimed in leases])
        attempts, attempt = _shared([claimed.attempt_id for claimed in leases])
        results, result = _shared([result for _, result in batch])
        rows = await self._database.call(
            functions.COMPLETE_EXECUTIONS,
            partition_key=leases[0].partition_key,
            namespace=self._namespace,
            execution_ids=[claimed.execution_id for claimed in leases],
            lease_ids=lease_ids,
            epochs=epochs,
            attempt_ids=attempts,
            results=results,
            result_encodings=None,
            wait=wait,
            hint=False,
            lease_id=lease_id,
            epoch=epoch,
            attempt_id=attempt,
            result=result,
            patience=SETTLE_PATIENCE_SECONDS,
        )
        self._ended_hint.send(str(batch[0][0].partition_key))
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
            places=_values(failure.place for _, failure in batch),
            retry_delays=_values(failure.retry_delay for _, failure in batch),
            retry_ats=_values(failure.retry_at for _, failure in batch),
            wait=wait,
            hint=False,
            patience=SETTLE_PATIENCE_SECONDS,
        )
        self._ended_hint.send(str(batch[0][0].partition_key))
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


def _assign_keys(submissions: Sequence[Submission], partitions: int) -> None:
    """Move each submission that has a key into the partition of its key.

    A child must be in the partition of its parent. Therefore a submission that moves loses its
    parent. If there are several partitions, a bound child (`with_parent`) that has a key is refused
    with InvalidInput.
    """
    for one in submissions:
        if one.key is None:
            continue
        partition = key_partition(one.route.namespace, one.key, partitions)
        if one.with_parent and (partitions > 1 or partition != one.id.partition_key):
            raise InvalidInput(
                field="with_parent",
                problem="cannot be combined with a key if there are several partitions: a child "
                "with a key lives in the partition of its key",
            )
        one.key_partitions = partitions
        if partition != one.id.partition_key:
            one.id = ExecutionId.of(partition, one.id.uuid)
            one.parent_id = None


def _shared(values: list[T]) -> tuple[list[T] | None, T | None]:
    """Return (None, value) if all values are equal, otherwise (values, None).

    The engine takes one value for all items, or an array with a value for each item.
    """
    return (None, values[0]) if values.count(values[0]) == len(values) else (values, None)


def _values(given: Iterable[T | None]) -> list[T | None] | None:
    """Return the values as a list, or None if every value is None."""
    values = list(given)
    return values if any(value is not None for value in values) else None
