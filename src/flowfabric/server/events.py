"""The event log: pages as JSON, and a stream of server-sent events.

All event streams of a namespace share one reader of the log. An event stream that is too slow is
closed; the client comes back with its Last-Event-ID and misses nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing
from dataclasses import dataclass, field

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from flowfabric.client import FlowFabric
from flowfabric.core.errors import FlowFabricError, InvalidInput
from flowfabric.core.execution import Event, EventPage
from flowfabric.core.states import EventKind
from flowfabric.core.times import past, when
from flowfabric.core.token import Scope
from flowfabric.server.answers import page, shown
from flowfabric.server.routing import CurrentCall, Routes, may_still_read
from flowfabric.server.shapes import PageOf, Text

LOGGER = logging.getLogger("flowfabric.server")
routes = Routes("events")
# After this time without an event, the server sends a comment, which keeps the stream alive.
SILENCE_SECONDS = 15.0
# A stream with this many unread pages is closed.
BEHIND = 1000
MEDIA_TYPE = "text/event-stream"
EVENTS = PageOf(Event, {"has_more": bool})


@dataclass(frozen=True, slots=True)
class Wanted:
    """Tells whether a caller wants an event: by its kind, its lane and its task."""

    kinds: Collection[str] = ()
    lanes: Collection[str] = ()
    tasks: Collection[str] = ()

    def __call__(self, event: Event) -> bool:
        return (
            (not self.kinds or event.kind in self.kinds)
            and (not self.lanes or event.lane in self.lanes)
            and (not self.tasks or event.task in self.tasks)
        )


@dataclass(eq=False, slots=True)
class Feed:
    """One reader of the event log of a namespace. All event streams of the namespace share it."""

    client: FlowFabric
    queues: set[asyncio.Queue[EventPage | None]] = field(default_factory=set)
    task: asyncio.Task[None] | None = None

    def open_queue(self, cursor: str) -> asyncio.Queue[EventPage | None]:
        queue: asyncio.Queue[EventPage | None] = asyncio.Queue(BEHIND)
        self.queues.add(queue)
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._follow(cursor))
        return queue

    def close_queue(self, queue: asyncio.Queue[EventPage | None]) -> None:
        self.queues.discard(queue)
        if not self.queues and self.task is not None:
            self.task.cancel()

    async def _follow(self, cursor: str) -> None:
        try:
            async with aclosing(self.client.events.follow_pages(cursor)) as pages:
                async for one in pages:
                    for queue in tuple(self.queues):
                        if queue.full():
                            self.queues.discard(queue)
                            queue.get_nowait()
                            queue.put_nowait(None)
                        else:
                            queue.put_nowait(one)
        except FlowFabricError as error:
            LOGGER.warning("event streams closed: %s", error)
        finally:
            for queue in tuple(self.queues):
                if not queue.full():
                    queue.put_nowait(None)
            self.queues.clear()


@routes.get("/v1/events", Scope.READ, answers=(EVENTS, Text(MEDIA_TYPE)), refuses=(410,))
async def events(
    call: CurrentCall,
    request: Request,
    kind: list[EventKind] = Query([]),  # noqa: B008
    lane: list[str] = Query([]),  # noqa: B008
    task: list[str] = Query([]),  # noqa: B008
    since: str | None = None,
    cursor: str | None = Query(None, max_length=20_000),
    limit: int = Query(500, ge=1, le=1000),
) -> Response:
    """Return events after a cursor, or stream them if `Accept` is `text/event-stream`."""
    if cursor is not None and since is not None:
        raise InvalidInput(field="since", problem="cannot be combined with a cursor")
    position = request.headers.get("last-event-id") or cursor or await _open(call.client, since)
    wanted = Wanted(frozenset(kind), frozenset(lane), frozenset(task))
    if MEDIA_TYPE in request.headers.get("accept", ""):
        call.check_may_stream()
        first = await call.client.events.read(position)  # an invalid cursor is refused here
        feed = call.backend.feed(call.client)
        frames = _stream(request, call.client, feed, first, wanted)
        return StreamingResponse(call.counted(frames), media_type=MEDIA_TYPE)
    found = await call.client.events.read(position, limit=limit)
    items = [one for one in found.events if wanted(one)]
    return page(request, items, found.cursor, has_more=found.has_more)


async def _open(client: FlowFabric, since: str | None) -> str:
    if since is None:
        return await client.events.open()
    now = await client.executions.server_time()
    return await client.events.open(past(when(since, "since"), now))


async def _stream(
    request: Request,
    client: FlowFabric,
    feed: Feed,
    one: EventPage,
    wanted: Callable[[Event], bool],
) -> AsyncGenerator[bytes, None]:
    """Yield the page `one`, then all later events. Stop when the token is no longer valid."""
    queue = feed.open_queue(one.cursor)
    seen: set[tuple[str, int]] = set()
    try:
        while await may_still_read(request):
            yield _frames(one, wanted, seen)
            if not one.has_more:
                break
            one = await client.events.read(one.cursor)
        # The feed may have started at a later position: read the events in between.
        found: EventPage | None = await client.events.read(one.cursor)
        while await may_still_read(request):
            yield _frames(found, wanted, seen) if found is not None else b":\n\n"
            try:
                async with asyncio.timeout(SILENCE_SECONDS):
                    found = await queue.get()
            except TimeoutError:
                found = None
                continue
            if found is None:
                return
            if len(seen) > 10_000:
                seen.clear()
    finally:
        feed.close_queue(queue)


def _frames(one: EventPage, wanted: Callable[[Event], bool], seen: set[tuple[str, int]]) -> bytes:
    """Return a page as server-sent events.

    The cursor of the page is sent as its only id, after its last event. So a client that reconnects
    inside a page gets the whole page again.
    """
    lines = []
    for event in one.events:
        name = (str(event.id), event.version)
        if name in seen or not wanted(event):
            continue
        seen.add(name)
        lines.append(f"event: {event.kind}\ndata: {json.dumps(shown(event))}\n\n")
    lines.append(f"id: {one.cursor}\n\n" if lines or one.events else ":\n\n")
    return "".join(lines).encode()
