"""Reading executions: one, several, their attempts and events. A missing one is None or empty.

Tags are set here as well; what sets them raises ExecutionNotFound for a missing one.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, TypedDict
from uuid import UUID

from flowfabric.client.addresses import Scoped, address, place
from flowfabric.client.events import reads_events
from flowfabric.client.outcomes import refusal
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
from flowfabric.db.records import optional, reader

MAX_PAGE = 1000
MAX_LEASES = 10_000
# A count is exact up to here.
COUNT_LIMIT = 10_000
_TAGGED_AT_ONCE = 1000
_MAX_PARTITION = 32_767


def _tags(text: str | None) -> dict[str, str]:
    found: dict[str, str] = json.loads(text) if text else {}
    return dict(sorted(found.items()))


_ending = reader(
    Ending, functions.READ_RESULTS, public_state=PublicState, failure_class=optional(FailureClass)
)
_state_info = reader(
    StateInfo,
    functions.READ_EXECUTION_INFO,
    given="id flow_id",
    unread="execution_id flow_id",
    phase=Phase,
    ownership=Ownership,
    eligibility=Eligibility,
    blocking_reason=BlockingReason,
    outcome=Outcome,
    attempt_state=AttemptState,
    public_state=PublicState,
)
_context = reader(
    ExecutionContext, functions.READ_CONTEXT, payload=lambda payload: payload or b"", tags=_tags
)
_info = reader(
    ExecutionInfo,
    functions.DESCRIBE_EXECUTION,
    given="id flow_id parent_id",
    unread="execution_id flow_id parent_id",
    capabilities=frozenset,
    public_state=PublicState,
    phase=Phase,
    ownership=Ownership,
    eligibility=Eligibility,
    blocking_reason=BlockingReason,
    outcome=Outcome,
    attempt_state=AttemptState,
    attempt_type=optional(AttemptType),
    failure_class=optional(FailureClass),
    tags=_tags,
    policy=optional(json.loads),
)
_attempt = reader(
    AttemptInfo,
    functions.LIST_ATTEMPTS,
    attempt_type=AttemptType,
    lifecycle=AttemptLifecycle,
    failure_class=optional(FailureClass),
)
_event = reads_events(functions.LIST_EVENTS)
_expired_lease = reader(
    ExpiredLease, functions.LIST_EXPIRED_LEASES, given="id", unread="execution_id"
)
_summary = reader(
    ExecutionSummary,
    functions.LIST_EXECUTIONS,
    given="id",
    unread="execution_id next_cursor",
    public_state=PublicState,
    blocking_reason=BlockingReason,
)


class _Filter(TypedDict):
    """The arguments of LIST_EXECUTIONS and COUNT_EXECUTIONS but for the page."""

    partition_key: int
    namespace: str | None
    states: list[str] | None
    lanes: list[str] | None
    tasks: list[str] | None
    tags: str | None
    created_after: datetime | None
    created_before: datetime | None
    ended_after: datetime | None
    worker_instance_id: str | None


class ExecutionReads(Scoped):
    """What can be asked about executions."""

    async def read_results(self, partition: int, ids: Sequence[UUID]) -> list[Ending]:
        """How those of the asked executions ended that have."""
        rows = await self._database.call(
            functions.READ_RESULTS,
            partition_key=partition,
            namespace=self._namespace,
            execution_ids=list(ids),
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
            functions.READ_EXECUTION_INFO, **address(id, self._namespace)
        )
        if not rows:
            return None
        return _state_info(rows[0], id, _flow(id, rows[0]["flow_id"]))

    async def context(self, id: ExecutionId) -> ExecutionContext | None:
        """What a worker needs to run an execution; None if there is no such execution."""
        rows = await self._database.call(functions.READ_CONTEXT, **address(id, self._namespace))
        return _context(rows[0]) if rows else None

    async def describe(self, id: ExecutionId) -> ExecutionInfo | None:
        """Everything about an execution; None if there is no such execution."""
        rows = await self._database.call(
            functions.DESCRIBE_EXECUTION, **address(id, self._namespace)
        )
        if not rows:
            return None
        row = rows[0]
        parent = row["parent_id"] and ExecutionId.of(id.partition_key, row["parent_id"])
        return _info(row, id, _flow(id, row["flow_id"]), parent)

    async def progress(self, id: ExecutionId) -> Progress | None:
        """How far the handler said it is; None if there is no such execution."""
        rows = await self._database.call(functions.READ_PROGRESS, **address(id, self._namespace))
        for row in rows:
            return Progress(
                percent=row["progress_percent"],
                message=row["progress_message"],
                at=row["progressed_at"],
            )
        return None

    async def attempts(self, id: ExecutionId) -> list[AttemptInfo]:
        """The attempts of an execution, first to latest."""
        rows = await self._database.call(functions.LIST_ATTEMPTS, **address(id, self._namespace))
        return [_attempt(row) for row in rows]

    async def events(self, id: ExecutionId) -> list[Event]:
        """What happened to an execution, in order."""
        rows = await self._database.call(
            functions.LIST_EVENTS, **address(id, self._namespace), version=None
        )
        return [_event(row, id.partition_key) for row in rows]

    async def why(self, id: ExecutionId) -> Why:
        """Why an execution is not running, or that it is; ExecutionNotFound if it is not there."""
        rows = await self._database.call(
            functions.EXPLAIN_EXECUTION, **address(id, self._namespace)
        )
        first, *others = (
            Why(
                id,
                dimension=Dimension(row["dimension"]),
                code=row["code"],
                evidence=json.loads(row["evidence"]),
                changes_at=row["changes_at"],
            )
            for row in rows
        )
        return replace(first, others=tuple(others))

    async def server_time(self) -> datetime:
        """What time it is by the clock that all timers go by."""
        rows = await self._database.call(functions.SERVER_TIME)
        now: datetime = rows[0]["server_time"]
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
            partition_key=partition,
            namespace=self._namespace,
            after=after.uuid if after else None,
            limit=limit,
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
            partition_key=partition,
            namespace=self._namespace,
            as_of=as_of,
            after_at=after_at,
            after_id=after_id.uuid if after_id else None,
            limit=limit,
        )
        return [_expired_lease(row, ExecutionId.of(partition, row["execution_id"])) for row in rows]

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
        *rows, last = await self._database.call(
            functions.LIST_EXECUTIONS, **asked, cursor=cursor, limit=limit
        )
        found = [_summary(row, ExecutionId.of(partition, row["execution_id"])) for row in rows]
        return ExecutionPage(found, last["next_cursor"])

    async def count(
        self, filter: ExecutionFilter | None = None, *, partition: int = 0
    ) -> ExecutionCount:
        """How many executions match: exact up to 10 000, then "more than that"."""
        asked = self._asked(filter, partition)
        counted, cursor = 0, None
        while counted <= COUNT_LIMIT:
            rows = await self._database.call(functions.COUNT_EXECUTIONS, **asked, cursor=cursor)
            counted += rows[0]["counted"]
            cursor = rows[0]["next_cursor"]
            if cursor is None:
                break
        return ExecutionCount(min(counted, COUNT_LIMIT), is_more=counted > COUNT_LIMIT)

    async def _head(self, id: ExecutionId) -> Any:
        rows = await self._database.call(functions.READ_STATE, **address(id, self._namespace))
        return rows[0] if rows else None

    async def _set_tags(
        self, ids: Sequence[ExecutionId], text: str, *, wait: bool = False
    ) -> dict[ExecutionId, Exception]:
        rows = await self._database.call(
            functions.SET_TAGS,
            partition_key=ids[0].partition_key,
            namespace=self._namespace,
            execution_ids=[id.uuid for id in ids],
            tags=text,
            wait=wait,
        )
        refused: dict[ExecutionId, Exception] = {}
        for row in rows:
            id = ids[row["item"] - 1]
            if row["outcome"] == "busy":
                refused |= await self._set_tags([id], text, wait=True)
            else:
                refused[id] = refusal(row["outcome"], row["detail"])
        return refused

    def _asked(self, filter: ExecutionFilter | None, partition: int) -> _Filter:
        _check_partition(partition)
        asked = filter or ExecutionFilter()
        asked.check()
        return _Filter(
            partition_key=partition,
            namespace=self._namespace,
            states=_words(asked.states),
            lanes=_words(asked.lanes),
            tasks=_words(asked.tasks),
            tags=json.dumps(dict(asked.tags)) if asked.tags else None,
            created_after=asked.created_after,
            created_before=asked.created_before,
            ended_after=asked.ended_after,
            worker_instance_id=asked.worker_instance_id,
        )


def _words(values: Collection[str] | None) -> list[str] | None:
    return None if values is None else [str(value) for value in values]


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
