"""Steps: record steps under a lease, and read journals."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias, TypedDict
from uuid import UUID

from flowfabric.client.addresses import Scoped, lease_addresses, location
from flowfabric.client.batching import BUSY, Batcher, Busy
from flowfabric.client.executions import SETTLE_PATIENCE_SECONDS
from flowfabric.client.lanes import Lanes
from flowfabric.client.outcomes import refusal
from flowfabric.core.attempts import attempt_number
from flowfabric.core.errors import RetryExhausted, UnknownRoute
from flowfabric.core.execution import Claimed, Route
from flowfabric.core.ids import AnyId
from flowfabric.core.states import StepKind
from flowfabric.core.step import Step, StepRecord
from flowfabric.db import functions
from flowfabric.db.records import reader
from flowfabric.db.session import Database

# Defined here because, inside the class, `list` is the method `Steps.list`.
Item: TypeAlias = tuple[Claimed, Step]
Items: TypeAlias = list[Item]
Holders: TypeAlias = list[Claimed]
Records: TypeAlias = list[StepRecord]
Answers: TypeAlias = list[StepRecord | Exception | Busy]
Journals: TypeAlias = list[list[StepRecord] | Exception | Busy]

# How many journals one query reads. More would make the answer too large.
MAX_JOURNALS = 50


class JsonStepArguments(TypedDict):
    """The arguments of ff.record_step_json."""

    partition_key: int
    namespace: str | None
    step: str | None
    database: str | None


@dataclass(frozen=True, slots=True)
class Answer:
    """A recorded step. `is_new` is True if this call recorded it, and False if an earlier call
    did."""

    record: StepRecord
    is_new: bool


_record = reader(StepRecord, functions.LIST_STEPS, unread="execution_id", kind=StepKind)


class Steps(Scoped):
    """Operations on steps."""

    def __init__(self, database: Database, lanes: Lanes, namespace: str | None) -> None:
        super().__init__(database, namespace)
        self._lanes = lanes
        self._records: dict[int, Batcher[Item, StepRecord]] = {}
        self._journals: dict[int, Batcher[Claimed, Records]] = {}

    async def close(self) -> None:
        for records in tuple(self._records.values()):
            await records.close()
        for journals in tuple(self._journals.values()):
            await journals.close()

    async def record(self, claimed: Claimed, step: Step) -> StepRecord:
        """Record one step, and return its record. Concurrent calls share transactions.

        If the step was recorded before, return the earlier record.
        """
        step.check()
        batcher = self._records.get(claimed.partition_key)
        if batcher is None:
            batcher = self._records[claimed.partition_key] = Batcher(self._flush, self._alone)
        return await batcher.put((claimed, step))

    def step_arguments(
        self, claimed: Claimed, step: Step | None, database: str | None
    ) -> JsonStepArguments:
        """Encode one step for a call of ff.record_step_json on the caller's connection.

        If `step` is None, the call only returns the name of the database.
        """
        return {
            "partition_key": claimed.partition_key,
            "namespace": self._namespace,
            "step": None if step is None else _step_json(claimed, step),
            "database": database,
        }

    async def journal(self, claimed: Claimed) -> Records:
        """Return the steps that earlier runs recorded. Concurrent calls share one query."""
        batcher = self._journals.get(claimed.partition_key)
        if batcher is None:
            batcher = self._journals[claimed.partition_key] = Batcher(
                self._read_journals, self._journal_alone, max_batch=MAX_JOURNALS
            )
        return await batcher.put(claimed)

    async def list(self, id: AnyId) -> Records:
        """Return the journal of an execution, in the order in which its steps started."""
        id = await self._execution(id)
        partition, execution_id = location(id)
        rows = await self._database.call(
            functions.LIST_STEPS,
            partition_key=partition,
            namespace=self._namespace,
            execution_ids=[execution_id],
        )
        return [_record(row) for row in rows]

    async def _read_journals(self, batch: Holders) -> Journals:
        found: dict[UUID, Records] = {claimed.execution_id: [] for claimed in batch}
        rows = await self._database.call(
            functions.LIST_STEPS,
            partition_key=batch[0].partition_key,
            namespace=self._namespace,
            execution_ids=[*found],
            patience=SETTLE_PATIENCE_SECONDS,
        )
        for row in rows:
            found[row["execution_id"]].append(_record(row))
        return [found[claimed.execution_id] for claimed in batch]

    async def _journal_alone(self, claimed: Claimed) -> Records:
        # Needed only for the interface: a read is never busy.
        return await self.list(claimed.id)

    async def _flush(self, batch: Items, wait: bool = False, *, is_again: bool = False) -> Answers:
        rows = await self._database.call(
            functions.RECORD_STEPS,
            **lease_addresses([claimed for claimed, _ in batch], self._namespace),
            names=[step.name for _, step in batch],
            occurrences=[step.occurrence for _, step in batch],
            positions=[step.position for _, step in batch],
            are_sequential=[step.is_sequential for _, step in batch],
            kinds=[step.kind.value for _, step in batch],
            values=[step.value for _, step in batch],
            encodings=[step.encoding for _, step in batch],
            delays=[step.delay for _, step in batch],
            untils=[step.until for _, step in batch],
            wait=wait,
            follows=[step.follows for _, step in batch],
            code_versions=_code_versions(batch),
            patience=SETTLE_PATIENCE_SECONDS,
        )
        found: Answers = [BUSY] * len(batch)
        unknown: dict[Route, list[int]] = {}
        for row in rows:
            claimed, step = batch[row["item"] - 1]
            outcome = row["outcome"]
            if outcome == "unknown_route" and not is_again:
                unknown.setdefault(_route(json.loads(row["detail"])), []).append(row["item"] - 1)
            elif outcome in ("recorded", "exists"):
                is_new = outcome == "recorded"
                found[row["item"] - 1] = StepRecord(
                    name=step.name,
                    occurrence=step.occurrence,
                    position=step.position,
                    is_sequential=step.is_sequential,
                    kind=step.kind,
                    value=step.value if is_new else row["value"],
                    encoding=step.encoding if is_new else row["encoding"],
                    recorded_at=row["recorded_at"],
                    until_at=row["until_at"],
                    attempt=attempt_number(row["attempt_index"]),
                )
            elif outcome != "busy":
                found[row["item"] - 1] = refusal(outcome, row["detail"], id=str(claimed.id))
        if unknown:
            await self._register(unknown)
            indexes = sorted(index for several in unknown.values() for index in several)
            again = await self._flush([batch[index] for index in indexes], wait, is_again=True)
            for index, answer in zip(indexes, again, strict=True):
                found[index] = answer
        return found

    async def register_version(self, unknown: UnknownRoute) -> None:
        """Register the route of an execution that moves to another code version.

        `unknown` is the error with which the engine refused this route.
        """
        await self._register([_route(unknown.facts)])

    async def _register(self, routes: Iterable[Route]) -> None:
        """Register the routes of executions that move to a code version."""
        for route in routes:
            self._lanes.known.pop(route, None)
            await self._lanes.register(route)

    async def _alone(self, item: Item) -> StepRecord:
        answer = (await self._flush([item], wait=True))[0]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Busy):
            raise RetryExhausted(operation="record_steps")
        return answer


def _code_versions(batch: Items) -> list[str | None] | None:
    versions = [step.code_version for _, step in batch]
    return versions if any(versions) else None


def _route(facts: Mapping[str, Any]) -> Route:
    """Return the route that the engine's answer describes."""
    return Route(
        facts["namespace"],
        facts["lane"],
        facts["task"],
        frozenset(facts["capabilities"]),
        facts["code_version"],
    )


def _step_json(claimed: Claimed, step: Step) -> str:
    step.check()
    return json.dumps(
        {
            "execution_id": str(claimed.execution_id),
            "lease_id": str(claimed.lease_id),
            "epoch": claimed.epoch,
            "attempt_id": str(claimed.attempt_id),
            "name": step.name,
            "occurrence": step.occurrence,
            "position": step.position,
            "is_sequential": step.is_sequential,
            "follows": step.follows,
            "value_base64": None if step.value is None else b64encode(step.value).decode(),
            "encoding": step.encoding,
            "code_version": step.code_version,
        }
    )


def read_json_answer(claimed: Claimed, step: Step, text: str) -> Answer | Exception:
    """Decode an answer of ff.record_step_json: a record, or the error of a refusal."""
    answer = json.loads(text)
    outcome = answer["outcome"]
    if outcome not in ("recorded", "exists"):
        return refusal(outcome, json.dumps(answer["detail"] or {}), id=str(claimed.id))
    is_new = outcome == "recorded"
    stored = answer["value_base64"]
    record = StepRecord(
        name=step.name,
        occurrence=step.occurrence,
        position=step.position,
        is_sequential=step.is_sequential,
        kind=step.kind,
        value=step.value if is_new else None if stored is None else b64decode(stored),
        encoding=step.encoding if is_new else answer["encoding"],
        recorded_at=datetime.fromisoformat(answer["recorded_at"]),
        until_at=None,
        attempt=attempt_number(answer["attempt_index"]),
    )
    return Answer(record, is_new)
