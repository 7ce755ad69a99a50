"""Tells open pages which topics have changed.

A page names its topics, and loads its content again when one of them changes. The topics are
`execution:ID`, `flow:ID`, `lane:NAME`, and `overview`, which changes with every event. The event
log is read once for all pages of a namespace. The server sends only the names of changed topics. To
get data, a page must load its content with the rights of its visitor.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import Event, EventPage
from flowfabric.core.token import Scope
from flowfabric.server.dashboard.page import PREFIX
from flowfabric.server.events import MEDIA_TYPE, SILENCE_SECONDS, Feed
from flowfabric.server.routing import CurrentCall, Routes, may_still_read

routes = Routes("dashboard")
# The server tells a page of changes at most once in this time, and less often if many pages are
# open, because each page loads itself again after a change.
PERIOD_SECONDS = 1.0
SECONDS_PER_PAGE = 0.2
MOST_TOPICS = 20
OVERVIEW = "overview"


@routes.get(PREFIX + "/live", Scope.READ, include_in_schema=False)
async def live(
    call: CurrentCall,
    request: Request,
    topic: list[str] = Query([]),  # noqa: B008
) -> Response:
    """Tell a page which of its topics change, as a stream of server-sent events."""
    if not 1 <= len(topic) <= MOST_TOPICS:
        raise InvalidInput(field="topic", problem=f"must be given 1 to {MOST_TOPICS} times")
    call.check_may_stream()
    cursor = await call.client.events.open()
    feed = call.backend.feed(call.client)
    frames = _stream(request, feed, cursor, frozenset(topic))
    return StreamingResponse(call.counted(frames), media_type=MEDIA_TYPE)


def topics_of(event: Event) -> Iterable[str]:
    """Return the topics that an event changes."""
    yield OVERVIEW
    yield f"execution:{event.id.uuid}"
    if event.flow_id is not None:
        yield f"flow:{event.flow_id.uuid}"
    if event.lane is not None:
        yield f"lane:{event.lane}"


async def _stream(
    request: Request, feed: Feed, cursor: str, wanted: frozenset[str]
) -> AsyncGenerator[bytes, None]:
    queue = feed.open_queue(cursor)
    try:
        # The first line tells the page that it hears of all changes from now on.
        yield b"event: open\ndata: []\n\n"
        while await may_still_read(request):
            try:
                async with asyncio.timeout(SILENCE_SECONDS):
                    found = [await queue.get()]
            except TimeoutError:
                yield b":\n\n"
                continue
            # Wait for further changes, so that a page does not load itself after each of them.
            await asyncio.sleep(max(PERIOD_SECONDS, SECONDS_PER_PAGE * len(feed.queues)))
            while not queue.empty():
                found.append(queue.get_nowait())
            if None in found or not await may_still_read(request):
                return
            if changed := _changed(found, wanted):
                yield f"event: changed\ndata: {json.dumps(sorted(changed))}\n\n".encode()
    finally:
        feed.close_queue(queue)


def _changed(pages: Iterable[EventPage | None], wanted: frozenset[str]) -> set[str]:
    """Return the wanted topics that the events in `pages` have changed."""
    changed: set[str] = set()
    for page in pages:
        for event in page.events if page is not None else ():
            changed.update(wanted.intersection(topics_of(event)))
            if len(changed) == len(wanted):
                return changed
    return changed
