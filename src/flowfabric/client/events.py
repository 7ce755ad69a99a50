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
from datetime import datetime
from enum import StrEnum
from typing import Any

from flowfabric.client.addresses import Scoped
from flowfabric.core.errors import InvalidInput, Unavailable
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

# The engine sends hints only for submits and ends. A follower polls for all other events.
POLL_SECONDS = 0.5
RECONNECT_SECONDS = 1.0


class Feed(StrEnum):
    """A named selection of event kinds."""

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
    """Build the function that turns a row of a statement and a partition into an event."""
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
    """The event log."""

    async def open(self, since: datetime | None = None, *, partition: int = 0) -> str:
        """Return a cursor at the end of the log, or before the first event at `since` or later."""
        rows = await self._database.call(
            functions.OPEN_CURSOR, partition_key=partition, since=since
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
        """Return the next events after a cursor. The cursor also passes events that filters hide.

        A page contains whole transactions, so it may be longer than `limit`.
        """
        partition, feed = _partition_of(cursor), _feed(feed)
        rows = await self._database.call(
            functions.READ_EVENTS,
            partition_key=partition,
            namespace=self._namespace,
            cursor=cursor,
            limit=limit,
            kinds=_kinds(kinds, feed),
            lanes=_texts("lanes", lanes),
            tasks=_texts("tasks", tasks),
            execution_ids=None
            if executions is None
            else [(await self._execution(id)).uuid for id in executions],
            instance_tags=_texts("instance_tags", instance_tags),
        )
        *found, last = rows
        events = [_event(row, partition) for row in found]
        if feed == Feed.LEASE:
            events = [event for event in events if event.lease_id is not None]
        return EventPage(events, last["next_cursor"], last["has_more"])

    async def follow(
        self, cursor: str | None = None, *, limit: int = 500, **filters: Any
    ) -> AsyncIterator[Event]:
        """Yield events as they happen, without end; without a cursor, from now on.

        Filters are those of `read`. Store `event.cursor` after you have processed an event, and
        follow from it after a restart: no event is missed, some of the last page may repeat.
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
        """Yield pages as `follow` yields events, including pages whose events are all filtered out.

        Lost connections are restored. `CursorExpired` means that a failover lost events; it says
        from which time to read again.
        """
        cursor = await self.open() if cursor is None else cursor
        # Copy each filter: an iterator would be exhausted after the first page.
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
                    await _listen(session, hinted)
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


async def _listen(session: Session, hinted: asyncio.Event) -> None:
    """Listen for hints. Without them the follower still polls and misses nothing."""
    for channel in (READY_CHANNEL, ENDED_CHANNEL):
        try:
            await session.listen(channel, lambda _: hinted.set())
        except Exception as error:
            ENGINE_LOGGER.debug("cannot listen, polling instead: %s", error)


def _partition_of(cursor: str) -> int:
    """Return the partition of a cursor; the engine refuses other malformed text."""
    if not isinstance(cursor, str) or not cursor.isascii() or "\0" in cursor:
        raise InvalidInput(field="cursor", problem="is not a cursor; open a new one")
    number = cursor[:16].partition(":")[2].partition(":")[0]
    partition = int(number) if number.isdecimal() else 0
    return partition if partition < 2**15 else 0


def _feed(feed: Feed | str | None) -> Feed | None:
    try:
        return None if feed is None else Feed(feed)
    except ValueError as error:
        raise InvalidInput(field="feed", problem=f"must be one of: {', '.join(Feed)}") from error


def _kinds(kinds: Iterable[EventKind | str] | None, feed: Feed | None) -> Sequence[str] | None:
    try:
        wanted = None if kinds is None else {EventKind(kind) for kind in kinds}
    except ValueError as error:
        raise InvalidInput(field="kinds", problem=str(error)) from error
    if feed in (Feed.COMPLETION, Feed.OPERATOR):
        of_feed = set(_COMPLETION if feed == Feed.COMPLETION else _OPERATOR)
        wanted = of_feed if wanted is None else wanted & of_feed
    return None if wanted is None else sorted(wanted)


def _texts(field: str, values: Iterable[str] | None) -> list[str] | None:
    if isinstance(values, str):
        raise InvalidInput(field=field, problem="must be a list of strings, not one string")
    return None if values is None else list(values)
