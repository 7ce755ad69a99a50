"""Events: read the event log by cursor, without gaps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from heapq import merge
from itertools import accumulate
from operator import itemgetter
from typing import Any, TypeVar

from flowfabric.client.addresses import Scoped
from flowfabric.client.partitions import ask_each, share_of, within_time
from flowfabric.core.cursors import join_cursors, split_cursor
from flowfabric.core.errors import CursorExpired, InvalidInput, Unavailable
from flowfabric.core.execution import Event, EventPage
from flowfabric.core.ids import AnyId, ExecutionId, FlowId
from flowfabric.core.states import EventKind, Outcome
from flowfabric.db import functions
from flowfabric.db.functions import Statement
from flowfabric.db.outage import level_of
from flowfabric.db.records import optional, reader
from flowfabric.db.session import Session
from flowfabric.telemetry import ENGINE_LOGGER

READY_CHANNEL = "ff_ready"
ENDED_CHANNEL = "ff_ended"
LOST_CHANNEL = "ff_lost"
SIGNAL_CHANNEL = "ff_signal"
STREAM_CHANNEL = "ff_stream"

# The engine sends hints only for submits and ends. A follower finds all other events by polling.
POLL_SECONDS = 0.5
RECONNECT_SECONDS = 1.0
MAX_LIMIT = 10_000

_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)

T = TypeVar("T")


class Feed(StrEnum):
    """The events for one purpose, as a filter of `read` and `follow`."""

    COMPLETION = "completion"
    LEASE = "lease"
    OPERATOR = "operator"


_COMPLETION = (
    EventKind.COMPLETED,
    EventKind.FAILED,
    EventKind.CANCELLED,
    EventKind.EXPIRED,
    EventKind.SKIPPED,
)
_OPERATOR = (EventKind.PRIORITY_CHANGED, EventKind.REPLAYED, EventKind.FLOW_CANCEL_REQUESTED)


def reads_events(statement: Statement, *, unread: str = "") -> Callable[[Any, int], Event]:
    """Return a function that builds an event from a row of `statement` and the row's partition.

    `unread` names the columns of a row that are not part of the event, separated by blanks.
    """
    read = reader(
        Event,
        statement,
        given="id flow_id",
        unread=f"event_id execution_id flow_id {unread}",
        default="cursor",
        kind=EventKind,
        outcome=optional(Outcome),
        detail=optional(json.loads),
    )

    def event(row: Any, partition: int) -> Event:
        flow_id = row["flow_id"] and FlowId.of(partition, row["flow_id"])
        return read(row, ExecutionId.of(partition, row["execution_id"]), flow_id)

    return event


_event = reads_events(functions.READ_EVENTS, unread="next_cursor has_more")


class Events(Scoped):
    """Operations that read the event log."""

    async def open(self, since: datetime | None = None, *, grace: timedelta | None = None) -> str:
        """Return a cursor at the end of the log.

        If `since` is given, the cursor is before the first event that happened at `since` or later.
        To find this event, the call reads the log from its start. If `grace` is given, the call
        reads the log from `since - grace`, which is faster in a long log. But the cursor may then
        skip events of transactions that were already open at `since - grace`.

        The cursor has a position in every partition.
        """
        if since is not None and (not isinstance(since, datetime) or since.tzinfo is None):
            raise InvalidInput(field="since", problem="must be a datetime with a time zone")
        partitions = await self._database.partitions.all()
        return join_cursors(await ask_each(partitions, lambda one: self._open(one, since, grace)))

    async def _open(
        self, partition: int, since: datetime | None, grace: timedelta | None = None
    ) -> str:
        rows = await self._database.call(
            functions.OPEN_CURSOR, partition_key=partition, since=since, grace=grace
        )
        return str(rows[0]["open_cursor"])

    async def read(
        self,
        cursor: str,
        *,
        limit: int = 500,
        kinds: Iterable[EventKind | str] | None = None,
        feed: Feed | str | None = None,
        lanes: Iterable[str] | None = None,
        tasks: Iterable[str] | None = None,
        executions: Iterable[AnyId] | None = None,
        instance_tags: Iterable[str] | None = None,
    ) -> EventPage:
        """Return the next events after a cursor, and the cursor to pass to the next call.

        In `tasks`, * stands for any text and ? for any character. `instance_tags` lists values of
        the tag that `instance_tag_key` in `ff.meta` names. The returned cursor is also past events
        that the filters excluded. A page contains whole transactions, so it may have more than
        `limit` events.

        Events of one execution come in order. Events of different partitions are sorted by time
        within a page, but not from page to page.

        A partition that is not in the cursor is read from its start. A partition that cannot be
        reached keeps its position and is listed in `missing`.
        """
        feed = _feed(feed)
        kinds_of = wanted_kinds(kinds, feed)
        partitions = await self._database.partitions.all()
        cursors = split_cursor(cursor, len(partitions))
        share = _share(limit, len(partitions))
        lanes_of, tasks_of = wanted_texts("lanes", lanes), wanted_texts("tasks", tasks)
        tags_of = wanted_texts("instance_tags", instance_tags)
        wanted_ids = None
        if executions is not None:
            wanted_ids = [(await self._execution(id)).uuid for id in executions]

        async def read_one(partition: int) -> EventPage | Unavailable | CursorExpired:
            try:
                cursor = cursors.get(partition) or await self._open(partition, _LONG_AGO)
                call = self._database.call(
                    functions.READ_EVENTS,
                    partition_key=partition,
                    namespace=self._namespace,
                    cursor=cursor,
                    limit=share,
                    kinds=kinds_of,
                    lanes=lanes_of,
                    tasks=tasks_of,
                    execution_ids=wanted_ids,
                    instance_tags=tags_of,
                )
                *found, last = await within_time(partition, len(partitions), call)
            except (Unavailable, CursorExpired) as error:
                return error
            events = [_event(row, partition) for row in found]
            return EventPage(events, last["next_cursor"], last["has_more"])

        pages = await ask_each(partitions, read_one)
        missing = tuple(n for n, page in enumerate(pages) if isinstance(page, Unavailable))
        expired = [page for page in pages if isinstance(page, CursorExpired)]
        # If a partition did not answer, raise Unavailable and not CursorExpired: without its
        # answer, the time from which to read again is unknown.
        if len(missing) == len(pages) or (missing and expired):
            raise next(page for page in pages if isinstance(page, Unavailable))
        if expired:
            raise _earliest(expired, [page for page in pages if isinstance(page, EventPage)])
        read = [page for page in pages if isinstance(page, EventPage)]
        events = _merged([page.events for page in read])
        if feed == Feed.LEASE:
            events = [event for event in events if event.lease_id is not None]
        after = (
            page.cursor if isinstance(page, EventPage) else cursors.get(partition)
            for partition, page in enumerate(pages)
        )
        return EventPage(
            events,
            join_cursors(one for one in after if one is not None),
            any(page.has_more for page in read),
            missing,
        )

    async def follow(
        self, cursor: str | None = None, *, limit: int = 500, **filters: Any
    ) -> AsyncIterator[Event]:
        """Yield events as they happen, without end. If `cursor` is None, begin with new events.

        The filters work as in `read`. Store `event.cursor` after you have processed an event, and
        pass the stored cursor to `follow` after a restart. No event is missed, but some events of
        the last page may come again.
        """
        before = await self.open() if cursor is None else cursor
        async with aclosing(self.follow_pages(before, limit=limit, **filters)) as pages:
            async for page in pages:
                for event in page.events[:-1]:
                    yield replace(event, cursor=before)
                for event in page.events[-1:]:
                    yield replace(event, cursor=page.cursor)
                before = page.cursor

    async def follow_pages(
        self, cursor: str | None = None, *, limit: int = 500, **filters: Any
    ) -> AsyncGenerator[EventPage, None]:
        """Yield whole pages of events as they happen, without end. See `follow`.

        A page can be empty. The call connects again when the connection is lost. It raises
        CursorExpired if events after the cursor were trimmed, or if the cursor does not fit this
        database, for example after a failover. The error says from which time to read again.
        """
        cursor = await self.open() if cursor is None else cursor
        # Turn each filter into a list: an iterator would be empty after the first page.
        filters = {
            name: list(value) if isinstance(value, Iterator) else value
            for name, value in filters.items()
        }
        hinted = asyncio.Event()
        session = self._database.session("events")
        try:
            while True:
                hinted.clear()
                if not session.is_connected:
                    await listen_for_hints(session, hinted.set)
                try:
                    page = await self.read(cursor, limit=limit, **filters)
                except Unavailable as error:
                    ENGINE_LOGGER.log(level_of(error), "events not read, trying again: %s", error)
                    await asyncio.sleep(RECONNECT_SECONDS)
                    continue
                moved, cursor = page.cursor != cursor, page.cursor
                if moved:
                    yield page
                if page.has_more:
                    continue
                try:
                    async with asyncio.timeout(POLL_SECONDS):
                        await hinted.wait()
                except TimeoutError:
                    continue
        finally:
            await session.close()


async def listen_for_hints(session: Session, heard: Callable[[], None]) -> None:
    """Begin to listen: `heard` is called for each hint of a submit or an end.

    If the session cannot listen, no error is raised. Therefore callers must also poll.
    """
    for channel in (READY_CHANNEL, ENDED_CHANNEL):
        try:
            await session.listen(channel, lambda _: heard())
        except Exception as error:
            ENGINE_LOGGER.debug("cannot listen, polling instead: %s", error)


def _earliest(expired: list[CursorExpired], others: list[EventPage]) -> CursorExpired:
    """Return one error for all partitions whose events are gone.

    Its `resume_from` is the earliest time in the given errors and in the events of the other
    partitions. A reader that opens a new cursor at this time misses no stored event.
    """
    times = [error.resume_from for error in expired]
    times += [event.occurred_at for page in others for event in page.events]
    earliest = min(time for time in times if time is not None)
    return CursorExpired.explained({**expired[0].facts, "resume_from": earliest.isoformat()})


def _merged(parts: list[list[Event]]) -> list[Event]:
    """Merge the events of all partitions by time. The events of each partition stay in order."""
    if len(parts) == 1:
        return parts[0]
    timed = [
        [
            ((time, partition), event)
            for time, event in zip(
                accumulate((event.occurred_at for event in events), max), events, strict=True
            )
        ]
        for partition, events in enumerate(parts)
    ]
    return [event for _, event in merge(*timed, key=itemgetter(0))]


def check_page_size(size: int, field: str = "page_size") -> int:
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MAX_LIMIT:
        raise InvalidInput(field=field, problem=f"must be 1 to {MAX_LIMIT}")
    return size


def _share(limit: int, count: int) -> int:
    """Return how many events to read from each partition for a page of `limit` events."""
    check_page_size(limit, "limit")
    return limit if count == 1 else share_of(limit, count)


def _feed(feed: Feed | str | None) -> Feed | None:
    try:
        return None if feed is None else Feed(feed)
    except ValueError as error:
        raise InvalidInput(field="feed", problem=f"must be one of: {', '.join(Feed)}") from error


def wanted_kinds(
    kinds: Iterable[EventKind | str] | None, feed: Feed | str | None
) -> Sequence[str] | None:
    """Return the kinds of events that `kinds` and `feed` both include; None means all kinds."""
    feed = _feed(feed)
    if isinstance(kinds, str) or not isinstance(kinds, Iterable | None):
        raise InvalidInput(field="kinds", problem=f"must be a list of kinds, not {_one_of(kinds)}")
    try:
        wanted = None if kinds is None else {EventKind(kind) for kind in kinds}
    except ValueError as error:
        raise InvalidInput(field="kinds", problem=str(error)) from error
    if feed in (Feed.COMPLETION, Feed.OPERATOR):
        of_feed = set(_COMPLETION if feed == Feed.COMPLETION else _OPERATOR)
        wanted = of_feed if wanted is None else wanted & of_feed
    return None if wanted is None else sorted(wanted)


def wanted_texts(field: str, values: Iterable[str] | None) -> list[str] | None:
    """Check the values of a filter and return them as a list. None (no filter) stays None."""
    if isinstance(values, str) or not isinstance(values, Iterable | None):
        raise InvalidInput(field=field, problem=f"must be a list of strings, not {_one_of(values)}")
    texts = None if values is None else list(values)
    for text in texts or ():
        if not isinstance(text, str):
            raise InvalidInput(
                field=field, problem=f"must be a list of strings: {text!r} is not a string"
            )
    return texts


def _one_of(value: object) -> str:
    return "one string" if isinstance(value, str) else type(value).__name__
