"""Steps: recorded under a lease, read by the next run."""

from __future__ import annotations

from datetime import datetime
from typing import TypeAlias
from uuid import UUID

from flowfabric.client.batching import BUSY, Batcher, Busy
from flowfabric.client.executions import SETTLE_PATIENCE_SECONDS
from flowfabric.client.outcomes import refusal
from flowfabric.client.versioned_calls import place
from flowfabric.core.errors import RetryExhausted
from flowfabric.core.execution import Claimed
from flowfabric.core.ids import ExecutionId
from flowfabric.core.states import StepKind
from flowfabric.core.step import Step, StepRecord
from flowfabric.db import functions
from flowfabric.db.session import Database

# Named here, because `Steps.list` takes the name of the type inside the class.
Item: TypeAlias = tuple[Claimed, Step]
Items: TypeAlias = list[Item]
Holders: TypeAlias = list[Claimed]
Records: TypeAlias = list[StepRecord]
Answers: TypeAlias = list[StepRecord | Exception | Busy]
Journals: TypeAlias = list[list[StepRecord] | Exception | Busy]

# Journals are read together, but not so many that one answer becomes very large.
MAX_JOURNALS = 50


class Steps:
    """What the holder of a lease has done so far."""

    def __init__(self, database: Database, namespace: str | None) -> None:
        self._database = database
        self._namespace = namespace
        self._records: dict[int, Batcher[Item, StepRecord]] = {}
        self._journals: dict[int, Batcher[Claimed, Records]] = {}

    async def close(self) -> None:
        for records in tuple(self._records.values()):
            await records.close()
        for journals in tuple(self._journals.values()):
            await journals.close()

    async def record(self, held: Claimed, step: Step) -> StepRecord:
        """Write one step down; concurrent calls share a transaction. If it was there already, what
        was recorded first is the answer."""
        step.check()
        batcher = self._records.get(held.partition_key)
        if batcher is None:
            batcher = self._records[held.partition_key] = Batcher(self._flush, self._alone)
        return await batcher.put((held, step))

    async def journal(self, held: Claimed) -> Records:
        """What earlier runs of an execution recorded; concurrent calls share a query."""
        batcher = self._journals.get(held.partition_key)
        if batcher is None:
            batcher = self._journals[held.partition_key] = Batcher(
                self._read_journals, self._journal_alone, max_batch=MAX_JOURNALS
            )
        return await batcher.put(held)

    async def list(self, id: ExecutionId) -> Records:
        """The journal of an execution, in the order its steps were started."""
        partition, execution_id = place(id)
        rows = await self._database.call(
            functions.LIST_STEPS, partition, self._namespace, [execution_id]
        )
        return [_record(*facts) for _, *facts in rows]

    async def _read_journals(self, batch: Holders) -> Journals:
        found: dict[UUID, Records] = {held.execution_id: [] for held in batch}
        rows = await self._database.call(
            functions.LIST_STEPS,
            batch[0].partition_key,
            self._namespace,
            [*found],
            patience=SETTLE_PATIENCE_SECONDS,
        )
        for execution_id, *facts in rows:
            found[execution_id].append(_record(*facts))
        return [found[held.execution_id] for held in batch]

    async def _journal_alone(self, held: Claimed) -> Records:
        # Never asked for: a read is not busy.
        return await self.list(held.id)

    async def _flush(self, batch: Items, wait: bool = False) -> Answers:
        rows = await self._database.call(
            functions.RECORD_STEPS,
            batch[0][0].partition_key,
            self._namespace,
            [held.execution_id for held, _ in batch],
            [held.lease_id for held, _ in batch],
            [held.epoch for held, _ in batch],
            [held.attempt_id for held, _ in batch],
            [step.name for _, step in batch],
            [step.occurrence for _, step in batch],
            [step.position for _, step in batch],
            [step.is_sequential for _, step in batch],
            [step.kind.value for _, step in batch],
            [step.value for _, step in batch],
            [step.encoding for _, step in batch],
            [step.delay for _, step in batch],
            [step.until for _, step in batch],
            wait,
            [step.follows for _, step in batch],
            patience=SETTLE_PATIENCE_SECONDS,
        )
        found: Answers = [BUSY] * len(batch)
        for item, outcome, recorded_at, until_at, value, encoding, attempt_index, detail in rows:
            held, step = batch[item - 1]
            if outcome in ("recorded", "exists"):
                is_new = outcome == "recorded"
                found[item - 1] = StepRecord(
                    name=step.name,
                    occurrence=step.occurrence,
                    position=step.position,
                    is_sequential=step.is_sequential,
                    kind=step.kind,
                    value=step.value if is_new else value,
                    encoding=step.encoding if is_new else encoding,
                    recorded_at=recorded_at,
                    until_at=until_at,
                    attempt_index=attempt_index,
                )
            elif outcome != "busy":
                found[item - 1] = refusal(outcome, detail, id=str(held.id))
        return found

    async def _alone(self, item: Item) -> StepRecord:
        answer = (await self._flush([item], wait=True))[0]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Busy):
            raise RetryExhausted(operation="record_steps")
        return answer


def _record(
    name: str,
    occurrence: int,
    position: int,
    is_sequential: bool,
    kind: str,
    value: bytes | None,
    encoding: str | None,
    recorded_at: datetime,
    until_at: datetime | None,
    attempt_index: int,
) -> StepRecord:
    return StepRecord(
        name=name,
        occurrence=occurrence,
        position=position,
        is_sequential=is_sequential,
        kind=StepKind(kind),
        value=value,
        encoding=encoding,
        recorded_at=recorded_at,
        until_at=until_at,
        attempt_index=attempt_index,
    )
