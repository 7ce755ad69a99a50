"""Answer a waitpoint by its token, and list the open waitpoints of an execution."""

from __future__ import annotations

from typing import Any, TypedDict
from uuid import UUID

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from flowfabric.core.errors import WaitpointNotFound
from flowfabric.core.signal import Delivered, PendingWaitpoint, Signal
from flowfabric.core.token import Scope
from flowfabric.server.answers import answer, page
from flowfabric.server.dashboard.asked import show_asked
from flowfabric.server.paths import Id, Limit, existing
from flowfabric.server.routing import MEDIUM, CurrentCall, Routes
from flowfabric.server.shapes import PageOf, Text
from flowfabric.server.submissions import Body
from flowfabric.tasks import encode_signal

routes = Routes("waitpoints")


class Answer(Body):
    """The answer to a waitpoint."""

    value: Any = Field(description="The value that the waiting execution gets.")
    key: str | None = Field(
        default=None, description="A second answer with this key has no effect."
    )


class HowToAnswer(TypedDict):
    """How to answer a waitpoint."""

    to_answer: str


class WaitpointToken(TypedDict):
    """The token of a waitpoint."""

    token: str


async def explain(request: Request, token: str) -> Response:
    """Say how to answer a waitpoint. A GET changes nothing, so a link preview is harmless.

    A browser gets a page with the question and a form. Other callers learn nothing about the token.
    """
    if "text/html" in request.headers.get("accept", ""):
        return await show_asked(request, token)
    return answer({"to_answer": "POST a JSON object with a value to this address."})


async def respond(request: Request, token: str, body: Answer) -> Response:
    """Answer a waitpoint. The token in the path is the only credential that the caller needs."""
    client = await request.app.state.backend.any_namespace()
    key = body.key or request.headers.get("idempotency-key")
    signal = Signal(payload=encode_signal("answer", body.value), key=key, source_type="token")
    return answer(await client.signals.deliver_by_token(token, signal))


for path in ("/w/{token}", "/v1/waitpoints/{token}"):
    routes.get(path, None, answers=(HowToAnswer, Text("text/html")))(explain)
    routes.post(path, None, limit=MEDIUM, answers=Delivered, refuses=(410, 429))(respond)


@routes.get("/v1/executions/{id}/waitpoints", Scope.READ, answers=PageOf(PendingWaitpoint))
async def list_waitpoints(
    call: CurrentCall, request: Request, id: Id, limit: Limit = 100, cursor: UUID | None = None
) -> Response:
    """List the open waitpoints of an execution, without their tokens."""
    found = await call.client.signals.waitpoints(
        await existing(call, id), after=cursor, limit=limit
    )
    return page(request, found, found[-1].waitpoint_id if len(found) == limit else None)


@routes.get(
    "/v1/executions/{id}/waitpoints/{waitpoint_id}/token", Scope.OPERATE, answers=WaitpointToken
)
async def read_token(call: CurrentCall, id: Id, waitpoint_id: UUID) -> Response:
    """Return the token of an open waitpoint. Anybody who has the token can answer."""
    token = await call.client.signals.read_token(await existing(call, id), waitpoint_id)
    if token is None:
        raise WaitpointNotFound(id=id)
    return answer({"token": token})
