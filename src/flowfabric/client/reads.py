"""Reading executions: one, several, their attempts and events. A missing one is None or empty.

Tags are set here as well; what sets them raises ExecutionNotFound for a missing one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from flowfabric.client.events import event_of
from flowfabric.client.outcomes import refusal
from flowfabric.client.versioned_calls import address, place
from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import (
    AttemptInfo,
    Ending,
    Event,
    ExecutionContext,
    ExecutionCount,
    ExecutionFilter,
    ExecutionInfo,
    ExecutionPage,
    ExecutionSummary,
    ExpiredLease,
    IdPage,
    Progress,
    StateInfo,
    check_tags,
)
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.states import (
    AttemptLifecycle,
    AttemptState,
    AttemptType,
    BlockingReason,
    Eligibility,
    FailureClass,
    Outcome,
    Ownership,
    Phase,
    PublicState,
)
from flowfabric.core.why import Dimension, Why
from flowfabric.db import functions
from flowfabric.db.session import Database

MAX_PAGE = 1000
MAX_LEASES = 10_000
# A count is exact up to here.
COUNT_LIMIT = 10_000
_TAGGED_AT_ONCE = 1000
_MAX_PARTITION = 32_767

_ENUMS = {
    "public_state": PublicState,
    "phase": Phase,
    "ownership": Ownership,
    "eligibility": Eligibility,
    "blocking_reason": BlockingReason,
    "outcome": Outcome,
    "attempt_state": AttemptState,
    "attempt_type": AttemptType,
    "failure_class": FailureClass,
}


class ExecutionReads:
    """What can be asked about executions."""

    def __init__(self, database: Database, namespace: str | None) -> None:
        self._database = database
        self._namespace = namespace

    async def read_results(self, partition: int, ids: Sequence[UUID]) -> list[Ending]:
        """How those of the asked executions ended that have."""
        rows = await self._database.call(
            functions.READ_RESULTS, partition, self._namespace, list(ids)
        )
        return [_ending(row) for row in rows]

    async def result(self, id: ExecutionId) -> bytes | None:
        """The bytes a completed execution returned; None while there are none."""
        partition, uuid = place(id)
        for ending in await self.read_results(partition, [uuid]):
            if ending.public_state is PublicState.COMPLETED:
                return ending.result
        return None

    async def state(self, id: ExecutionId) -> PublicState | None:
        """The execution's state in one word; None if there is no such execution."""
        row = await self._head(id)
        return PublicState(row["public_state"]) if row else None

    async def namespace(self, id: ExecutionId) -> str | None:
        """The namespace an execution belongs to; None if there is no such execution."""
        row = await self._head(id)
        return str(row["namespace"]) if row else None

    async def flow_id(self, id: ExecutionId) -> FlowId | None:
        """The flow an execution is a member of; None if it is of none, or not there."""
        row = await self._head(id)
        return _flow(id, row["flow_id"]) if row else None

    async def attempt_index(self, id: ExecutionId) -> int | None:
        """The index of the latest attempt, 0 before the first; None without such an execution."""
        row = await self._head(id)
        return int(row["attempt_index"]) if row else None

    async def attempt_count(self, id: ExecutionId) -> int | None:
        """How many attempts there have been; None if there is no such execution."""
        row = await self._head(id)
        return int(row["total_attempt_count"]) if row else None

    async def info(self, id: ExecutionId) -> StateInfo | None:
        """The execution's whole state, without what it carries; None if there is none."""
        rows = await self._database.call(
            functions.READ_EXECUTION_INFO, *address(id, self._namespace)
        )
        if not rows:
            return None
        row = _typed(rows[0])
        del row["execution_id"]
        row["flow_id"] = _flow(id, row["flow_id"])
        return StateInfo(id=id, **row)

    async def context(self, id: ExecutionId) -> ExecutionContext | None:
        """What a worker needs to run an execution; None if there is no such execution."""
        rows = await self._database.call(functions.READ_CONTEXT, *address(id, self._namespace))
        if not rows:
            return None
        task, encoding, payload, tags = rows[0]
        return ExecutionContext(task, encoding, payload or b"", _tags(tags))

    async def describe(self, id: ExecutionId) -> ExecutionInfo | None:
        """Everything about an execution; None if there is no such execution."""
        rows = await self._database.call(
            functions.DESCRIBE_EXECUTION, *address(id, self._namespace)
        )
        if not rows:
            return None
        row = _typed(rows[0])
        del row["execution_id"]
        row["capabilities"] = frozenset(row["capabilities"])
        row["tags"] = _tags(row["tags"])
        row["policy"] = json.loads(row["policy"]) if row["policy"] else None
        if row["parent_id"] is not None:
            row["parent_id"] = ExecutionId.of(id.partition_key, row["parent_id"])
        row["flow_id"] = _flow(id, row["flow_id"])
        return ExecutionInfo(id=id, **row)

    async def progress(self, id: ExecutionId) -> Progress | None:
        """How far the handler said it is; None if there is no such execution."""
        rows = await self._database.call(functions.READ_PROGRESS, *address(id, self._namespace))
        return Progress(*rows[0]) if rows else None

    async def attempts(self, id: ExecutionId) -> list[AttemptInfo]:
        """The attempts of an execution, first to latest."""
        rows = await self._database.call(functions.LIST_ATTEMPTS, *address(id, self._namespace))
        return [_attempt(row) for row in rows]

    async def events(self, id: ExecutionId) -> list[Event]:
        """What happened to an execution, in order."""
        rows = await self._database.call(functions.LIST_EVENTS, *address(id, self._namespace), None)
        return [event_of(row, id.partition_key) for row in rows]

    async def why(self, id: ExecutionId) -> Why:
        """Why an execution is not running, or that it is; ExecutionNotFound if it is not there."""
        rows = await self._database.call(functions.EXPLAIN_EXECUTION, *address(id, self._namespace))
        first, *others = (
            Why(id, Dimension(dimension), code, json.loads(evidence), changes_at)
            for dimension, code, evidence, changes_at in rows
        )
        return Why(id, first.dimension, first.code, first.evidence, first.changes_at, tuple(others))

    async def server_time(self) -> datetime:
        """What time it is by the clock that all timers go by."""
        now: datetime = (await self._database.call(functions.SERVER_TIME))[0][0]
        return now

    async def tags(self, id: ExecutionId) -> dict[str, str]:
        """The tags of an execution, by key; none if there is no such execution."""
        context = await self.context(id)
        return dict(context.tags) if context else {}

    async def tag(self, id: ExecutionId, key: str) -> str | None:
        """The value of one tag; None if it, or the execution, is not there."""
        check_tags({key: ""})
        return (await self.tags(id)).get(key)

    async def set_tag(self, id: ExecutionId, key: str, value: str) -> None:
        """Set one tag; the others stay."""
        await self.set_tags(id, {key: value})

    async def set_tags(self, id: ExecutionId, tags: Mapping[str, str]) -> int:
        """Set several tags, all or none, and say how many; the others stay."""
        refused = await self.set_tags_of([id], tags)
        for error in refused.values():
            raise error
        return len(tags)

    async def set_tags_of(
        self, ids: Sequence[ExecutionId], tags: Mapping[str, str]
    ) -> dict[ExecutionId, Exception]:
        """Set tags on many executions; returns what could not be tagged, and why."""
        check_tags(tags)
        if not tags:
            raise InvalidInput(field="tags", problem="must not be empty")
        text = json.dumps(dict(tags))
        refused: dict[ExecutionId, Exception] = {}
        groups: dict[int, list[ExecutionId]] = {}
        for id in dict.fromkeys(ids):
            groups.setdefault(place(id)[0], []).append(id)
        for group in groups.values():
            for start in range(0, len(group), _TAGGED_AT_ONCE):
                refused |= await self._set_tags(group[start : start + _TAGGED_AT_ONCE], text)
        return refused

    async def list_ids(
        self, *, partition: int = 0, after: ExecutionId | None = None, limit: int = MAX_PAGE
    ) -> IdPage:
        """The ids of a partition, ascending, behind `after`; at most 1000 a page."""
        _check_partition(partition)
        if after is not None and after.partition_key != partition:
            raise InvalidInput(field="after", problem=f"is not of partition {partition}")
        limit = _page_size(limit, MAX_PAGE)
        if not limit:
            return IdPage([], None)
        *rows, last = await self._database.call(
            functions.LIST_EXECUTION_IDS,
            partition,
            self._namespace,
            after.uuid if after else None,
            limit,
        )
        cursor = last["next_after"]
        return IdPage(
            [ExecutionId.of(partition, row["execution_id"]) for row in rows],
            ExecutionId.of(partition, cursor) if cursor else None,
        )

    async def expired_leases(
        self,
        *,
        as_of: datetime | None = None,
        after: tuple[datetime, ExecutionId] | None = None,
        limit: int = MAX_PAGE,
        partition: int = 0,
    ) -> list[ExpiredLease]:
        """The leases that have run out by `as_of`, now by default, first to run out first.

        `after` is the `cursor` of the last lease of the page before; at most 10 000 a page.
        """
        _check_partition(partition)
        limit = _page_size(limit, MAX_LEASES)
        if not limit:
            return []
        after_at, after_id = after or (None, None)
        rows = await self._database.call(
            functions.LIST_EXPIRED_LEASES,
            partition,
            self._namespace,
            as_of,
            after_at,
            after_id.uuid if after_id else None,
            limit,
        )
        return [ExpiredLease(ExecutionId.of(partition, row[0]), *row[1:]) for row in rows]

    async def list(
        self,
        filter: ExecutionFilter | None = None,
        *,
        cursor: str | None = None,
        limit: int = 100,
        partition: int = 0,
    ) -> ExecutionPage:
        """Executions that match, newest first; at most 1000 a page.

        A page costs the same however many executions there are. It may therefore be short, or
        empty, and still carry a cursor; the last page has none.
        """
        asked = self._asked(filter, partition)
        limit = _page_size(limit, MAX_PAGE)
        if not limit:
            return ExecutionPage([], None)
        *rows, last = await self._database.call(functions.LIST_EXECUTIONS, *asked, cursor, limit)
        return ExecutionPage([_summary(row, partition) for row in rows], last["next_cursor"])

    async def count(
        self, filter: ExecutionFilter | None = None, *, partition: int = 0
    ) -> ExecutionCount:
        """How many executions match: exact up to 10 000, then "more than that"."""
        asked = self._asked(filter, partition)
        counted, cursor = 0, None
        while counted <= COUNT_LIMIT:
            rows = await self._database.call(functions.COUNT_EXECUTIONS, *asked, cursor)
            found, cursor = rows[0]
            counted += found
            if cursor is None:
                break
        return ExecutionCount(min(counted, COUNT_LIMIT), is_more=counted > COUNT_LIMIT)

    async def _head(self, id: ExecutionId) -> Any:
        rows = await self._database.call(functions.READ_STATE, *address(id, self._namespace))
        return rows[0] if rows else None

    async def _set_tags(
        self, ids: Sequence[ExecutionId], text: str, *, wait: bool = False
    ) -> dict[ExecutionId, Exception]:
        rows = await self._database.call(
            functions.SET_TAGS,
            ids[0].partition_key,
            self._namespace,
            [id.uuid for id in ids],
            text,
            wait,
        )
        refused: dict[ExecutionId, Exception] = {}
        for item, outcome, detail in rows:
            id = ids[item - 1]
            if outcome == "busy":
                refused |= await self._set_tags([id], text, wait=True)
            else:
                refused[id] = refusal(outcome, detail)
        return refused

    def _asked(self, filter: ExecutionFilter | None, partition: int) -> tuple[Any, ...]:
        _check_partition(partition)
        asked = filter or ExecutionFilter()
        asked.check()
        return (
            partition,
            self._namespace,
            *(
                None if values is None else [str(value) for value in values]
                for values in (asked.states, asked.lanes, asked.tasks)
            ),
            json.dumps(dict(asked.tags)) if asked.tags else None,
            asked.created_after,
            asked.created_before,
            asked.ended_after,
            asked.worker_instance_id,
        )


def _flow(id: ExecutionId, flow_id: UUID | None) -> FlowId | None:
    return None if flow_id is None else FlowId.of(id.partition_key, flow_id)


def _check_partition(partition: int) -> None:
    if isinstance(partition, bool) or not isinstance(partition, int):
        raise InvalidInput(field="partition", problem="must be a whole number")
    if not 0 <= partition <= _MAX_PARTITION:
        raise InvalidInput(field="partition", problem=f"must be 0 to {_MAX_PARTITION}")


def _page_size(limit: int, most: int) -> int:
    """The size of a page: what is asked for, up to a cap."""
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise InvalidInput(field="limit", problem="must be a whole number, 0 or more")
    return min(limit, most)


def _typed(record: Any) -> dict[str, Any]:
    """A row with our words in place of texts; a word we do not know raises."""
    row: dict[str, Any] = dict(record)
    for name, kind in _ENUMS.items():
        if name in row:
            row[name] = _maybe(kind, row[name])
    return row


def _tags(text: str | None) -> dict[str, str]:
    found: dict[str, str] = json.loads(text) if text else {}
    return dict(sorted(found.items()))


def _summary(record: Any, partition: int) -> ExecutionSummary:
    row = _typed(record)
    del row["next_cursor"]
    return ExecutionSummary(ExecutionId.of(partition, row.pop("execution_id")), **row)


def _ending(row: Any) -> Ending:
    return Ending(
        *(
            row["execution_id"],
            PublicState(row["public_state"]),
            *row[2:6],
            _maybe(FailureClass, row["failure_class"]),
            *row[7:],
        )
    )


def _attempt(row: Any) -> AttemptInfo:
    return AttemptInfo(
        *(
            row["attempt_index"],
            row["attempt_id"],
            AttemptType(row["attempt_type"]),
            AttemptLifecycle(row["lifecycle"]),
            *row[4:11],
            _maybe(FailureClass, row["failure_class"]),
            *row[12:],
        )
    )


def _maybe(kind: Any, value: str | None) -> Any:
    return None if value is None else kind(value)
