"""Read executions, their attempts, events and tags. A missing execution yields None or nothing.

Tags are also set here; setting tags of a missing execution raises ExecutionNotFound.
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
from flowfabric.core.attempts import with_attempt_numbers
from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import (
    MAX_KEY_BYTES,
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
    check_text,
)
from flowfabric.core.ids import AnyId, ExecutionId, FlowId, key_partition
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
# A count is exact up to this number.
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
    """The filter arguments that LIST_EXECUTIONS and COUNT_EXECUTIONS share."""

    partition_key: int
    namespace: str | None
    states: list[str] | None
    lanes: list[str] | None
    tasks: list[str] | None
    tags: str | None
    created_after: datetime | None
    created_before: datetime | None
    ended_after: datetime | None
    ended_before: datetime | None
    worker_instance_id: str | None
    key: str | None
    parent_id: UUID | None
    error: str | None
    is_held: bool | None
    is_crash_loop: bool | None


class ExecutionReads(Scoped):
    """Reads of executions."""

    async def find(self, text: AnyId) -> ExecutionId:
        """Return the whole id of an execution for a whole id, its UUID, or the end of its UUID.

        An end has at least 8 digits and is searched among the newest 10 000 executions. Raises
        InvalidInput with the `candidates` if several have it, ExecutionNotFound if none has.
        """
        return await self._find_id(ExecutionId, text)

    async def read_results(self, partition: int, ids: Sequence[UUID]) -> list[Ending]:
        """Return the endings of the given executions; unfinished ones are omitted."""
        rows = await self._database.call(
            functions.READ_RESULTS,
            partition_key=partition,
            namespace=self._namespace,
            execution_ids=list(ids),
        )
        return [_ending(row) for row in rows]

    async def result(self, id: AnyId) -> bytes | None:
        """Return the result of a completed execution as bytes; None without one."""
        id = await self._execution(id)
        partition, uuid = place(id)
        for ending in await self.read_results(partition, [uuid]):
            if ending.public_state is PublicState.COMPLETED:
                return ending.result
        return None

    async def state(self, id: AnyId) -> PublicState | None:
        """Return the public state of an execution; None if the execution does not exist."""
        id = await self._execution(id)
        row = await self._head(id)
        return PublicState(row["public_state"]) if row else None

    async def namespace(self, id: AnyId) -> str | None:
        """Return the namespace of an execution; None if the execution does not exist."""
        id = await self._execution(id)
        row = await self._head(id)
        return str(row["namespace"]) if row else None

    async def flow_id(self, id: AnyId) -> FlowId | None:
        """Return the flow of a member; None without a flow or without such an execution."""
        id = await self._execution(id)
        row = await self._head(id)
        return _flow(id, row["flow_id"]) if row else None

    async def attempt_count(self, id: AnyId) -> int | None:
        """Return how many attempts there were, which is also the number of the latest one; None if
        the execution does not exist."""
        id = await self._execution(id)
        row = await self._head(id)
        return int(row["total_attempt_count"]) if row else None

    async def info(self, id: AnyId) -> StateInfo | None:
        """Return the whole state without payload and result; None if not found."""
        id = await self._execution(id)
        rows = await self._database.call(
            functions.READ_EXECUTION_INFO, **address(id, self._namespace)
        )
        if not rows:
            return None
        return _state_info(rows[0], id, _flow(id, rows[0]["flow_id"]))

    async def find_by_key(self, key: str) -> tuple[ExecutionId, str] | None:
        """Return the id and the task of the execution that has a key now; None without one.

        It is the execution that a submit with the key would get."""
        check_text("key", key, MAX_KEY_BYTES)
        if self._namespace is None:
            raise InvalidInput(field="namespace", problem="is needed: a key belongs to one")
        partition = key_partition(self._namespace, key)
        rows = await self._database.call(
            functions.READ_KEY, partition_key=partition, namespace=self._namespace, key=key
        )
        for row in rows:
            return ExecutionId.of(partition, row["execution_id"]), str(row["task"])
        return None

    async def context(self, id: AnyId) -> ExecutionContext | None:
        """Return what a worker needs to run an execution; None if it does not exist."""
        id = await self._execution(id)
        rows = await self._database.call(functions.READ_CONTEXT, **address(id, self._namespace))
        return _context(rows[0]) if rows else None

    async def describe(self, id: AnyId) -> ExecutionInfo | None:
        """Return everything about an execution; None if the execution does not exist."""
        id = await self._execution(id)
        rows = await self._database.call(
            functions.DESCRIBE_EXECUTION, **address(id, self._namespace)
        )
        if not rows:
            return None
        row = rows[0]
        parent = row["parent_id"] and ExecutionId.of(id.partition_key, row["parent_id"])
        return _info(row, id, _flow(id, row["flow_id"]), parent)

    async def progress(self, id: AnyId) -> Progress | None:
        """Return the progress that the handler reported; None if the execution does not exist."""
        id = await self._execution(id)
        rows = await self._database.call(functions.READ_PROGRESS, **address(id, self._namespace))
        for row in rows:
            return Progress(
                percent=row["progress_percent"],
                message=row["progress_message"],
                at=row["progressed_at"],
            )
        return None

    async def attempts(self, id: AnyId) -> list[AttemptInfo]:
        """List the attempts of an execution, first to latest."""
        id = await self._execution(id)
        rows = await self._database.call(functions.LIST_ATTEMPTS, **address(id, self._namespace))
        return [_attempt(row) for row in rows]

    async def events(self, id: AnyId) -> list[Event]:
        """List the events of an execution in order."""
        id = await self._execution(id)
        rows = await self._database.call(
            functions.LIST_EVENTS, **address(id, self._namespace), version=None
        )
        return [_event(row, id.partition_key) for row in rows]

    async def why(self, id: AnyId) -> Why:
        """Explain why an execution does not run, or that it does; raise ExecutionNotFound."""
        id = await self._execution(id)
        rows = await self._database.call(
            functions.EXPLAIN_EXECUTION, **address(id, self._namespace)
        )
        first, *others = (
            Why(
                id,
                dimension=Dimension(row["dimension"]),
                code=row["code"],
                evidence=with_attempt_numbers(json.loads(row["evidence"])),
                changes_at=row["changes_at"],
            )
            for row in rows
        )
        return replace(first, others=tuple(others))

    async def server_time(self) -> datetime:
        """Return the time of the database clock, which all timers use."""
        rows = await self._database.call(functions.SERVER_TIME)
        now: datetime = rows[0]["server_time"]
        return now

    async def tags(self, id: AnyId) -> dict[str, str]:
        """Return the tags of an execution by key; empty if the execution does not exist."""
        id = await self._execution(id)
        context = await self.context(id)
        return dict(context.tags) if context else {}

    async def tag(self, id: AnyId, key: str) -> str | None:
        """Return the value of one tag; None if the tag or the execution does not exist."""
        id = await self._execution(id)
        check_tags({key: ""})
        return (await self.tags(id)).get(key)

    async def set_tag(self, id: AnyId, key: str, value: str) -> None:
        """Set one tag and keep the others."""
        id = await self._execution(id)
        await self.set_tags(id, {key: value})

    async def set_tags(self, id: AnyId, tags: Mapping[str, str]) -> int:
        """Set several tags, all or none, and keep the others. Return how many were set."""
        id = await self._execution(id)
        refused = await self.set_tags_of([id], tags)
        for error in refused.values():
            raise error
        return len(tags)

    async def set_tags_of(
        self, ids: Sequence[AnyId], tags: Mapping[str, str]
    ) -> dict[ExecutionId, Exception]:
        """Set tags on many executions; return the executions that were refused, with the error."""
        check_tags(tags)
        if not tags:
            raise InvalidInput(field="tags", problem="must not be empty")
        text = json.dumps(dict(tags))
        refused: dict[ExecutionId, Exception] = {}
        groups: dict[int, list[ExecutionId]] = {}
        for id in dict.fromkeys([await self._execution(id) for id in ids]):
            groups.setdefault(id.partition_key, []).append(id)
        for group in groups.values():
            for start in range(0, len(group), _TAGGED_AT_ONCE):
                refused |= await self._set_tags(group[start : start + _TAGGED_AT_ONCE], text)
        return refused

    async def list_ids(
        self, *, partition: int = 0, after: ExecutionId | None = None, limit: int = MAX_PAGE
    ) -> IdPage:
        """List the ids of a partition after `after`, ascending; at most 1000 a page."""
        _check_partition(partition)
        if after is not None and after.partition_key != partition:
            raise InvalidInput(field="after", problem=f"does not belong to partition {partition}")
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
        """List the leases that expired by `as_of` (default: now), earliest expiry first.

        `after` is the `cursor` of the last lease of the previous page; at most 10 000 a page.
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
        """List the executions that match, newest first; at most 1000 a page.

        A page costs the same however many executions exist. It may therefore be short or empty
        and still have a cursor; only the last page has none.
        """
        asked = self._asked(await self._located(filter, partition), partition)
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
        """Count the executions that match: exact up to 10 000, then "more than that"."""
        asked = self._asked(await self._located(filter, partition), partition)
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

    async def _located(self, filter: ExecutionFilter | None, partition: int) -> ExecutionFilter:
        """Return a checked filter with the whole id of its parent."""
        _check_partition(partition)
        asked = filter or ExecutionFilter()
        asked.check()
        if asked.parent is None:
            return asked
        parent = await self._execution(asked.parent)
        if parent.partition_key != partition:
            raise InvalidInput(field="parent", problem=f"is not of partition {partition}")
        return replace(asked, parent=parent)

    def _asked(self, asked: ExecutionFilter, partition: int) -> _Filter:
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
            ended_before=asked.ended_before,
            worker_instance_id=asked.worker_instance_id,
            key=asked.key,
            parent_id=asked.parent.uuid if isinstance(asked.parent, ExecutionId) else None,
            error=asked.error,
            is_held=asked.is_held,
            is_crash_loop=asked.is_crash_loop,
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
    """Return the requested page size, capped at `most`."""
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise InvalidInput(field="limit", problem="must be a whole number, 0 or more")
    return min(limit, most)
