"""What executions stream and ask: frames as pages and as server-sent events, summaries, approvals,
subscriptions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from flowfabric.core.errors import ExecutionNotFound
from flowfabric.core.stream import Frame, Rewind
from flowfabric.core.token import Scope
from flowfabric.server.answers import answer, page, shown
from flowfabric.server.events import MEDIA_TYPE, SILENCE_SECONDS
from flowfabric.server.paths import Id, Limit, Name, Reason, existing
from flowfabric.server.routing import CurrentCall, Routes, may_go_on

routes = Routes("streams")


class Decision(Reason):
    """An operator's answer to an approval."""

    approve: bool
    comment: str | None = Field(default=None, max_length=4000)
    approval_id: UUID | None = None


class Reset(Reason):
    """Where a subscription goes on: at a time, or after the last event."""

    since: datetime | None = None


@routes.get("/v1/executions/{id}/stream", Scope.READ)
async def stream(
    call: CurrentCall,
    request: Request,
    id: Id,
    cursor: str | None = None,
    kind: Annotated[list[str], Query()] = [],  # noqa: B006
    limit: Limit = 100,
) -> Response:
    """Return the frames of an execution after a cursor, or stream them until it has ended."""
    found = await existing(call, id)
    since = request.headers.get("last-event-id") or cursor
    items, is_ended = await call.client.streams.read(
        found, since=since, kinds=kind or None, limit=limit
    )
    if MEDIA_TYPE in request.headers.get("accept", ""):
        follow = call.client.streams.follow(found, since=since, kinds=kind or None)
        return StreamingResponse(_frames(request, follow), media_type=MEDIA_TYPE)
    last = getattr(items[-1], "id", None) if items else None
    return page(request, list(map(_item, items)), last or since, is_ended=is_ended)


@routes.get("/v1/executions/{id}/summary", Scope.READ)
async def summary(call: CurrentCall, id: Id) -> Response:
    """Return the document that the summary frames of an execution have built."""
    found = await call.client.streams.summary(await existing(call, id))
    if found is None:
        raise ExecutionNotFound("The execution has sent no summary.", id=id)
    return answer(found)


@routes.get("/v1/approvals", Scope.READ)
async def approvals(call: CurrentCall, request: Request, limit: Limit = 100) -> Response:
    """List open approvals, the longest open first."""
    return page(request, await call.client.approvals.list(limit=limit), None)


@routes.get("/v1/executions/{id}/approvals", Scope.READ)
async def approvals_of(call: CurrentCall, request: Request, id: Id) -> Response:
    """List the approvals of an execution, open or not."""
    return page(request, await call.client.approvals.of(await existing(call, id)), None)


@routes.post("/v1/executions/{id}/approvals/answer", Scope.OPERATE)
async def answer_approval(call: CurrentCall, id: Id, body: Decision) -> Response:
    """Answer an approval as an operator. The answer has the name of the token."""
    done = await call.client.approvals.answer(
        await existing(call, id),
        is_approved=body.approve,
        actor=call.principal.name[:256],
        comment=body.comment,
        approval_id=body.approval_id,
    )
    return answer(done)


@routes.get("/v1/subscriptions", Scope.READ)
async def subscriptions(call: CurrentCall, request: Request) -> Response:
    """List subscriptions with how far they are behind."""
    return page(request, await call.client.subscriptions.list(), None)


@routes.get("/v1/subscriptions/{name}", Scope.READ)
async def subscription(call: CurrentCall, name: Name) -> Response:
    """Show one subscription."""
    return answer(await call.client.subscriptions.get(name))


@routes.post("/v1/subscriptions/{name}/reset", Scope.OPERATE)
async def reset_subscription(call: CurrentCall, name: Name, body: Reset | None = None) -> Response:
    """Let a subscription go on at another place."""
    given = body or Reset()
    await call.client.subscriptions.get(name)
    await call.client.subscriptions.reset(
        name, since=given.since, reason=given.reason, actor=call.principal.name
    )
    return answer(await call.client.subscriptions.get(name))


@routes.delete("/v1/subscriptions/{name}", Scope.OPERATE)
async def remove_subscription(call: CurrentCall, name: Name) -> Response:
    """Delete a subscription with its position."""
    await call.client.subscriptions.get(name)
    await call.client.subscriptions.remove(name)
    return answer({"name": name, "outcome": "removed"})


def _item(one: Any) -> dict[str, Any]:
    """Return a frame, a rewind or a gap as JSON data. `type` says which."""
    if isinstance(one, Frame):
        facts: dict[str, Any] = shown(one)
        facts.pop("payload", None)
        value = one.data
        facts["data"] = value if not isinstance(value, bytes) else one.text
        return {"type": "frame", **facts}
    return {"type": "rewind" if isinstance(one, Rewind) else "truncated", **shown(one)}


async def _frames(request: Request, follow: AsyncIterator[Any]) -> AsyncGenerator[bytes, None]:
    """Yield frames as server-sent events, a comment in silence, and at last `end`. A caller whose
    token is no longer valid gets no more."""
    async with aclosing(follow) as items:  # type: ignore[type-var]
        coming = asyncio.ensure_future(anext(items, None))
        try:
            while True:
                done, _ = await asyncio.wait([coming], timeout=SILENCE_SECONDS)
                if not await may_go_on(request):
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
