"""Read executions, their attempts, events and tags, and set tags.

For a missing execution, most reads return None or an empty answer.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, TypedDict
from uuid import UUID

from flowfabric.client.addresses import Scoped, address, location
from flowfabric.client.events import reads_events
from flowfabric.client.outcomes import refusal
from flowfabric.client.partitions import ask_reachable, merge_pages, share_of
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
    FailureGroup,
    FailureGroups,
    IdPage,
    LimitOf,
    Progress,
    StateInfo,
    check_name,
    check_tags,
    check_text,
)
from flowfabric.core.ids import AnyId, ExecutionId, FlowId, key_partition
from flowfabric.core.partition import Found
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
# Counts are exact up to this number.
COUNT_LIMIT = 10_000
_TAGGED_AT_ONCE = 1000
_MAX_PARTITION = 32_767


def _tags(text: str | None) -> dict[str, str]:
    found: dict[str, str] = json.loads(text) if text else {}
    return dict(sorted(found.items()))


def _limits(text: str | None) -> tuple[LimitOf, ...]:
    return tuple(LimitOf(**one) for one in json.loads(text or "[]"))


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
    limits=_limits,
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


def _failure_group(partition: int, row: Any) -> FailureGroup:
    return FailureGroup(
        task=row["task"],
        category=row["category"],
        place=row["place"],
        number=row["number"],
        first_at=row["first_at"],
        last_at=row["last_at"],
        last_id=ExecutionId.of(partition, row["last_id"]),
        reason=row["reason"],
    )


def _joined(one: FailureGroup, other: FailureGroup) -> FailureGroup:
    """Add up two counts of one failure group, which come from different partitions."""
    last = max(one, other, key=lambda part: part.last_at)
    return replace(
        last,
        number=one.number + other.number,
        first_at=min(one.first_at, other.first_at),
    )


class _Filter(TypedDict):
    """The filter arguments that ff.list_executions and ff.count_executions share."""

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
    """Operations that read executions or set their tags."""

    async def find(self, text: AnyId) -> ExecutionId:
        """Return the whole id of an execution, given its whole id, its UUID, or the last
        digits of its UUID.

        At least 8 digits are needed. They are looked up among the newest 10 000 executions of each
        partition. Raises ExecutionNotFound if no execution matches, and InvalidInput if several
        do. A whole id or a UUID is returned even if there is no such execution.
        """
        return await self._find_id(ExecutionId, text)

    async def read_results(self, partition: int, ids: Sequence[UUID]) -> list[Ending]:
        """Return the endings of the given executions; leave out executions that have not ended."""
        rows = await self._database.call(
            functions.READ_RESULTS,
            partition_key=partition,
            namespace=self._namespace,
            execution_ids=list(ids),
        )
        return [_ending(row) for row in rows]

    async def result(self, id: AnyId) -> bytes | None:
        """Return the result of a completed execution as bytes; None if there is no result."""
        id = await self._execution(id)
        partition, uuid = location(id)
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
        """Return the id of the flow that an execution belongs to; None if it belongs to no flow or
        does not exist."""
        id = await self._execution(id)
        row = await self._head(id)
        return _flow(id, row["flow_id"]) if row else None

    async def attempt_count(self, id: AnyId) -> int | None:
        """Return the number of attempts so far; None if the execution does not exist.

        It is also the number of the latest attempt.
        """
        id = await self._execution(id)
        row = await self._head(id)
        return int(row["total_attempt_count"]) if row else None

    async def info(self, id: AnyId) -> StateInfo | None:
        """Return the whole state of an execution, without payload and result; None if the execution
        does not exist."""
        id = await self._execution(id)
        rows = await self._database.call(
            functions.READ_EXECUTION_INFO, **address(id, self._namespace)
        )
        if not rows:
            return None
        return _state_info(rows[0], id, _flow(id, rows[0]["flow_id"]))

    async def find_by_key(self, key: str) -> tuple[ExecutionId, str] | None:
        """Return the id and the task of the execution that a submit with this key would find.

        `key` is an idempotency key. Return None if the key is not in force.
        """
        check_text("key", key, MAX_KEY_BYTES)
        if self._namespace is None:
            raise InvalidInput(
                field="namespace", problem="is needed: a key belongs to one namespace"
            )
        partitions = self._database.partitions
        keyed = (await partitions.current()).keyed
        while True:
            partition = key_partition(self._namespace, key, keyed)
            rows = await self._database.call(
                functions.READ_KEY, partition_key=partition, namespace=self._namespace, key=key
            )
            for row in rows:
                return ExecutionId.of(partition, row["execution_id"]), str(row["task"])
            # Look again if the number of partitions for keys was raised meanwhile.
            await partitions.refresh()
            if partitions.numbers.keyed == keyed:
                return None
            keyed = partitions.numbers.keyed

    async def context(self, id: AnyId) -> ExecutionContext | None:
        """Return the task, payload and tags of an execution; None if the execution does not
        exist."""
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
        """List the attempts of an execution, oldest first."""
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
        """Explain why an execution is not running, or say that it is running.

        Raises ExecutionNotFound if the execution does not exist.
        """
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

    async def failures(self, *, task: str | None = None, limit: int = 100) -> FailureGroups:
        """Group the newest failed executions of all tasks, or of one task, by fingerprint.

        Reads at most 2 000 failures in each partition.
        """
        if task is not None:
            check_name("task", task)

        async def read(partition: int) -> Sequence[tuple[int, Any]]:
            rows = await self._database.call(
                functions.LIST_FAILURES,
                partition_key=partition,
                namespace=self._namespace,
                task=task,
                limit=limit,
            )
            return [(partition, row) for row in rows]

        pages, missing = await ask_reachable(await self._database.partitions.all(), read)
        groups: dict[tuple[str, str, str], FailureGroup] = {}
        for partition, row in (one for page in pages for one in page):
            name = (row["task"], row["category"] or "", row["place"] or "")
            found = _failure_group(partition, row)
            groups[name] = _joined(groups[name], found) if name in groups else found
        largest = sorted(groups.values(), key=lambda one: (-one.number, one.task))
        first = [page[0][1] for page in pages if page]
        return FailureGroups(
            largest[:limit],
            sum(row["seen"] for row in first),
            bool(missing) or any(row["is_more"] for row in first),
            missing,
        )

    async def server_time(self) -> datetime:
        """Return the time of the database clock, which all timers use."""
        rows = await self._database.call(functions.SERVER_TIME)
        now: datetime = rows[0]["server_time"]
        return now

    async def tags(self, id: AnyId) -> dict[str, str]:
        """Return the tags of an execution, or an empty dict if the execution does not exist."""
        id = await self._execution(id)
        context = await self.context(id)
        return dict(context.tags) if context else {}

    async def tag(self, id: AnyId, key: str) -> str | None:
        """Return the value of one tag; None if the tag or the execution does not exist."""
        id = await self._execution(id)
        check_tags({key: ""})
        return (await self.tags(id)).get(key)

    async def set_tag(self, id: AnyId, key: str, value: str) -> None:
        """Set one tag; other tags stay."""
        id = await self._execution(id)
        await self.set_tags(id, {key: value})

    async def set_tags(self, id: AnyId, tags: Mapping[str, str]) -> int:
        """Set several tags, all or none; other tags stay. Return how many were set."""
        id = await self._execution(id)
        refused = await self.set_tags_of([id], tags)
        for error in refused.values():
            raise error
        return len(tags)

    async def set_tags_of(
        self, ids: Sequence[AnyId], tags: Mapping[str, str]
    ) -> dict[ExecutionId, Exception]:
        """Set tags on many executions; return the refused executions with their errors."""
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
        self,
        *,
        partition: int | None = None,
        after: ExecutionId | None = None,
        limit: int = MAX_PAGE,
    ) -> IdPage:
        """List execution ids in ascending order, starting after `after`, at most 1000 per page.

        If `partition` is None, list the ids of all partitions.
        """
        wanted = await self._wanted(partition)
        if after is not None and partition is not None and after.partition_key != partition:
            raise InvalidInput(field="after", problem=f"does not belong to partition {partition}")
        limit = _page_size(limit, MAX_PAGE)
        if not limit:
            return IdPage([], None)

        async def read(one: int) -> tuple[list[ExecutionId], UUID | None]:
            *rows, last = await self._database.call(
                functions.LIST_EXECUTION_IDS,
                partition_key=one,
                namespace=self._namespace,
                after=after.uuid if after else None,
                limit=limit,
            )
            return [ExecutionId.of(one, row["execution_id"]) for row in rows], last["next_after"]

        pages, missing = await ask_reachable(wanted, read)
        ids, end = merge_pages(pages, lambda id: id.uuid, limit, newest=False)
        return IdPage(ids, ExecutionId.of(partition or 0, end) if end else None, missing)

    async def expired_leases(
        self,
        *,
        as_of: datetime | None = None,
        after: tuple[datetime, ExecutionId] | None = None,
        limit: int = MAX_PAGE,
        partition: int | None = None,
    ) -> Found[ExpiredLease]:
        """List the leases that had expired at `as_of` (default: now), earliest expiry first.

        `after` is the `cursor` of the last lease of the previous page. A page has at most 10 000
        leases. `missing` names the partitions that cannot be reached.
        """
        wanted = await self._wanted(partition)
        limit = _page_size(limit, MAX_LEASES)
        if not limit:
            return Found()
        after_at, after_id = after or (None, None)

        async def read(one: int) -> Sequence[ExpiredLease]:
            rows = await self._database.call(
                functions.LIST_EXPIRED_LEASES,
                partition_key=one,
                namespace=self._namespace,
                as_of=as_of,
                after_at=after_at,
                after_id=after_id.uuid if after_id else None,
                limit=limit,
            )
            return [_expired_lease(row, ExecutionId.of(one, row["execution_id"])) for row in rows]

        pages, missing = await ask_reachable(wanted, read)
        found = [lease for page in pages for lease in page]
        if len(pages) > 1:
            found.sort(key=lambda lease: (lease.cursor[0], lease.cursor[1].uuid))
        return Found(found[:limit], missing)

    async def list(
        self,
        filter: ExecutionFilter | None = None,
        *,
        cursor: str | None = None,
        limit: int = 100,
        partition: int | None = None,
    ) -> ExecutionPage:
        """List the executions that match the filter, newest first, at most 1000 per page.

        One call reads a limited number of executions. So a page may be short or even empty although
        more pages follow. Only the last page has no cursor. `missing` names the partitions that
        cannot be reached.
        """
        asked, wanted = await self._located(filter, partition)
        limit = _page_size(limit, MAX_PAGE)
        if not limit:
            return ExecutionPage([], None)
        share = limit if len(wanted) == 1 else share_of(limit, len(wanted))

        async def read(one: int) -> tuple[Sequence[ExecutionSummary], UUID | None]:
            *rows, last = await self._database.call(
                functions.LIST_EXECUTIONS, **self._asked(asked, one), cursor=cursor, limit=share
            )
            found = [_summary(row, ExecutionId.of(one, row["execution_id"])) for row in rows]
            return found, last["next_cursor"] and UUID(last["next_cursor"])

        pages, missing = await ask_reachable(wanted, read)
        found, end = merge_pages(pages, lambda one: one.id.uuid, limit, newest=True)
        return ExecutionPage(found, end.hex if end else None, missing)

    async def count(
        self,
        filter: ExecutionFilter | None = None,
        *,
        partition: int | None = None,
        most: int = COUNT_LIMIT,
        reads: int | None = None,
    ) -> ExecutionCount:
        """Count the executions that match the filter.

        The count is exact up to `most`, which is at most 10 000. If more executions match, the
        count is `most`, and `is_more` is set.

        If `reads` is given, the count stops after this many reads. `is_more` is set if executions
        are left uncounted. One read looks at up to 2500 executions.
        """
        if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= COUNT_LIMIT:
            raise InvalidInput(field="most", problem=f"must be a whole number, 1 to {COUNT_LIMIT}")
        if reads is not None and reads < 1:
            raise InvalidInput(field="reads", problem="must be at least 1")
        asked, wanted = await self._located(filter, partition)
        counted, left, is_cut = 0, reads, False

        async def count(one: int) -> None:
            nonlocal counted, left, is_cut
            cursor = None
            while counted <= most:
                if left is not None:
                    if left <= 0:
                        is_cut = True
                        return
                    left -= 1
                rows = await self._database.call(
                    functions.COUNT_EXECUTIONS, **self._asked(asked, one), cursor=cursor
                )
                counted += rows[0]["counted"]
                cursor = rows[0]["next_cursor"]
                if cursor is None:
                    return

        _, missing = await ask_reachable(wanted, count)
        return ExecutionCount(min(counted, most), counted > most or is_cut, missing)

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

    async def _wanted(self, partition: int | None) -> Sequence[int]:
        """Return the partitions to ask: the given one, or all."""
        if partition is None:
            return await self._database.partitions.all()
        _check_partition(partition)
        return [partition]

    async def _located(
        self, filter: ExecutionFilter | None, partition: int | None
    ) -> tuple[ExecutionFilter, Sequence[int]]:
        """Check a filter, and look up the parent that it names, if any. Return the filter with the
        whole id of this parent, and the partitions to ask.
        """
        wanted = await self._wanted(partition)
        asked = filter or ExecutionFilter()
        asked.check()
        if asked.parent is None:
            return asked, wanted
        parent = await self._execution(asked.parent)
        if partition is not None and parent.partition_key != partition:
            raise InvalidInput(field="parent", problem=f"is not of partition {partition}")
        return replace(asked, parent=parent), [parent.partition_key]

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
    """Check `limit`, a page size. Return `limit`, or `most` if `limit` is larger."""
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise InvalidInput(field="limit", problem="must be a whole number, 0 or more")
    return min(limit, most)
