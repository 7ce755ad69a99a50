"""HTTP routes for streams, summaries, approvals and subscriptions."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime
from typing import Annotated, Any, Literal, TypedDict
from uuid import UUID

from fastapi import Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from flowfabric.core.errors import ExecutionNotFound
from flowfabric.core.signal import ApprovalInfo, Delivered
from flowfabric.core.stream import Frame, FrameEncoding, Rewind, Summary, Truncated
from flowfabric.core.subscription import SubscriptionInfo
from flowfabric.core.token import Scope
from flowfabric.server.answers import answer, missing_in, page, shown
from flowfabric.server.events import MEDIA_TYPE, SILENCE_SECONDS
from flowfabric.server.paths import Id, Limit, Name, Reason, existing
from flowfabric.server.routing import CurrentCall, Routes, may_still_read
from flowfabric.server.shapes import MISSING, AnyOf, Like, PageOf, Text

routes = Routes("streams")


class Decision(Reason):
    """An operator's answer to an approval."""

    approve: bool
    comment: str | None = Field(default=None, max_length=4000)
    approval_id: UUID | None = None


class Reset(Reason):
    """Where a subscription continues: with the first event that happened at `since` or later.

    If `since` is not given, the subscription continues at the end of the event log.
    """

    since: datetime | None = None


class Removed(TypedDict):
    """The subscription that was removed."""

    name: str
    outcome: Literal["removed"]


FRAMES = PageOf(
    AnyOf(
        Like(Frame, "StreamFrame", ("payload",), {"type": Literal["frame"]}),
        Like(Rewind, "StreamRewind", plus={"type": Literal["rewind"]}),
        Like(Truncated, "StreamTruncated", plus={"type": Literal["truncated"]}),
    ),
    {"is_ended": bool},
)


@routes.get("/v1/executions/{id}/stream", Scope.READ, answers=(FRAMES, Text(MEDIA_TYPE)))
async def stream(
    call: CurrentCall,
    request: Request,
    id: Id,
    cursor: str | None = None,
    kind: Annotated[list[str], Query()] = [],  # noqa: B006
    limit: Limit = 100,
) -> Response:
    """Return the frames of an execution after a cursor.

    If the caller accepts `text/event-stream`, stream frames until the execution has ended. The
    data of a frame with the encoding `bytes` is base64.
    """
    call.check_sees_payloads()
    found = await existing(call, id)
    since = request.headers.get("last-event-id") or cursor
    items, is_ended, last = await call.client.streams.read(
        found, since=since, kinds=kind or None, limit=limit
    )
    if MEDIA_TYPE in request.headers.get("accept", ""):
        call.check_may_stream()
        follow = call.client.streams.follow(found, since=since, kinds=kind or None)
        frames = call.counted(frame_events(request, follow))
        return StreamingResponse(frames, media_type=MEDIA_TYPE)
    return page(request, list(map(_item, items)), last, is_ended=is_ended)


@routes.get("/v1/executions/{id}/summary", Scope.READ, answers=Summary)
async def summary(call: CurrentCall, id: Id) -> Response:
    """Return the summary of an execution: the document that its summary frames have built."""
    call.check_sees_payloads()
    found = await call.client.streams.summary(await existing(call, id))
    if found is None:
        raise ExecutionNotFound("The execution has sent no summary.", id=id)
    return answer(found)


@routes.get("/v1/approvals", Scope.READ, answers=PageOf(ApprovalInfo, MISSING))
async def approvals(call: CurrentCall, request: Request, limit: Limit = 100) -> Response:
    """List open approvals, oldest first."""
    call.check_sees_payloads()
    found = await call.client.approvals.list(limit=limit)
    return page(request, found, None, **missing_in(found))


@routes.get("/v1/executions/{id}/approvals", Scope.READ, answers=PageOf(ApprovalInfo))
async def approvals_of(call: CurrentCall, request: Request, id: Id) -> Response:
    """List the approvals of an execution, open or not."""
    call.check_sees_payloads()
    return page(request, await call.client.approvals.of(await existing(call, id)), None)


@routes.post("/v1/executions/{id}/approvals/answer", Scope.OPERATE, answers=Delivered)
async def answer_approval(call: CurrentCall, id: Id, body: Decision) -> Response:
    """Answer an approval as an operator. The name of the caller is stored with the answer."""
    done = await call.client.approvals.answer(
        await existing(call, id),
        is_approved=body.approve,
        actor=call.principal.name[:256],
        comment=body.comment,
        approval_id=body.approval_id,
    )
    return answer(done)


@routes.get("/v1/subscriptions", Scope.READ, answers=PageOf(SubscriptionInfo, MISSING))
async def subscriptions(call: CurrentCall, request: Request) -> Response:
    """List subscriptions, each with its lag."""
    found = await call.client.subscriptions.list()
    return page(request, found, None, **missing_in(found))


@routes.get("/v1/subscriptions/{name}", Scope.READ, answers=SubscriptionInfo)
async def subscription(call: CurrentCall, name: Name) -> Response:
    """Show one subscription."""
    return answer(await call.client.subscriptions.get(name))


@routes.post("/v1/subscriptions/{name}/reset", Scope.OPERATE, answers=SubscriptionInfo)
async def reset_subscription(call: CurrentCall, name: Name, body: Reset | None = None) -> Response:
    """Move a subscription to another position."""
    given = body or Reset()
    await call.client.subscriptions.get(name)
    await call.client.subscriptions.reset(
        name, since=given.since, reason=given.reason, actor=call.principal.name
    )
    return answer(await call.client.subscriptions.get(name))


@routes.delete("/v1/subscriptions/{name}", Scope.OPERATE, answers=Removed)
async def remove_subscription(call: CurrentCall, name: Name) -> Response:
    """Delete a subscription and its position."""
    await call.client.subscriptions.get(name)
    await call.client.subscriptions.remove(name)
    return answer({"name": name, "outcome": "removed"})


def _item(one: Any) -> dict[str, Any]:
    """Return a frame, a rewind or a truncation as JSON data. The field `type` says which it is.

    The data of a frame with the encoding `bytes` is base64, because JSON has no bytes.
    """
    if isinstance(one, Frame):
        facts: dict[str, Any] = shown(one)
        facts.pop("payload", None)
        is_binary = one.encoding is FrameEncoding.BYTES
        facts["data"] = b64encode(one.payload).decode() if is_binary else one.data
        return {"type": "frame", **facts}
    return {"type": "rewind" if isinstance(one, Rewind) else "truncated", **shown(one)}


async def frame_events(
    request: Request, follow: AsyncGenerator[Any, None]
) -> AsyncGenerator[bytes, None]:
    """Yield frames as server-sent events. After the last frame, yield the event `end`.

    While there are no frames, yield a comment from time to time. Stop when the token of the caller
    is no longer valid.
    """
    async with aclosing(follow) as items:
        coming = asyncio.ensure_future(anext(items, None))
        try:
            while True:
                done, _ = await asyncio.wait([coming], timeout=SILENCE_SECONDS)
                if not await may_still_read(request):
                    return
                if not done:
                    yield b":\n\n"
                    continue
                one = coming.result()
                if one is None:
                    yield b"event: end\ndata: {}\n\n"
                    return
                facts = _item(one)
                head = f"id: {facts['id']}\n" if "id" in facts else ""
                yield f"{head}event: {facts['type']}\ndata: {json.dumps(facts)}\n\n".encode()
                coming = asyncio.ensure_future(anext(items, None))
        finally:
            coming.cancel()
            await asyncio.wait([coming])
