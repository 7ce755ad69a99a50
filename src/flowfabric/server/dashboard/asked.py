"""The public page of a waitpoint. The token in its address is the only credential.

The page shows the question, and nothing else of the system. Only a POST answers the question.
"""

from __future__ import annotations

from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response

from flowfabric.core.errors import FlowFabricError, InvalidToken
from flowfabric.core.signal import AskedWaitpoint, Signal, decision_name, encode_comment
from flowfabric.dashboard.forms import fields_of, value_of
from flowfabric.dashboard.pages import render
from flowfabric.server.dashboard.page import HEADERS, PREFIX, fields_in, see_other, text_in
from flowfabric.server.problems import facts_of
from flowfabric.server.routing import MEDIUM, Routes
from flowfabric.tasks import encode_signal

routes = Routes("dashboard")


async def show_asked(request: Request, token: str) -> Response:
    """Show the question to the holder of a token, with a form to answer it."""
    client = await request.app.state.backend.any_namespace()
    try:
        asked = await client.signals.asked(token)
    except FlowFabricError as error:
        return _page(request, None, error)
    return _page(request, asked)


@routes.post("/w/{token}/answer", None, limit=MEDIUM, is_form=True, include_in_schema=False)
async def answer(request: Request, token: str) -> Response:
    """Answer a waitpoint with the form of its page. The token says who answers."""
    client = await request.app.state.backend.any_namespace()
    asked = None
    try:
        asked = await client.signals.asked(token)
        form = fields_in(await request.body())
        signal = Signal(source_type="token")
        if asked.is_approval:
            signal.name = decision_name(form.get("decision") == "approve")
            signal.payload = encode_comment(text_in(form, "comment"))
        else:
            signal.payload = encode_signal("answer", value_of(asked.schema, form))
        await client.signals.deliver_by_token(token, signal)
    except FlowFabricError as error:
        return _page(request, asked, error)
    return see_other(f"{request.scope.get('root_path', '')}/w/{token}")


def _page(
    request: Request, asked: AskedWaitpoint | None, error: FlowFabricError | None = None
) -> Response:
    status, problem = 200, ""
    if error is not None:
        facts = facts_of(error)
        status, problem = facts["status"], facts["detail"]
    title = "This link is not valid" if status < 500 else "This does not work now"
    if isinstance(error, InvalidToken):
        problem = "Part of it may be missing: open it again, or ask its sender for a new one."
    if asked is not None:
        title = asked.question or asked.key
    root = request.scope.get("root_path", "")
    html = render(
        "waitpoint",
        now=datetime.now(UTC),
        title=title,
        problem=problem,
        one=asked,
        form=fields_of(asked.schema) if asked is not None else (),
        style=f"{root}{PREFIX}/static/style.css",
        icon=f"{root}{PREFIX}/static/icon.svg",
        # The address of the form is absolute: a page may be shown below another path.
        action=f"{root}/w/{request.path_params['token']}/answer",
    )
    return Response(html, status, media_type="text/html", headers=HEADERS)
