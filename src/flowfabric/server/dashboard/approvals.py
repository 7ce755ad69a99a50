"""The page of open approvals, on which operators can answer."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from flowfabric.core.errors import InvalidInput
from flowfabric.core.token import Scope
from flowfabric.server.dashboard.page import (
    PREFIX,
    Id,
    back_to,
    form_of,
    show,
    text_in,
)
from flowfabric.server.problems import Problem
from flowfabric.server.routing import CurrentCall, Routes

routes = Routes("dashboard")
SHOWN = 100


@routes.get(PREFIX + "/approvals", Scope.READ, include_in_schema=False)
async def approvals(call: CurrentCall, request: Request) -> Response:
    """Show open approvals, oldest first."""
    found = await call.client.approvals.list(limit=SHOWN)
    now = await call.client.executions.server_time()
    return show(request, call, "approvals", now, approvals=found, most=SHOWN, missing=found.missing)


@routes.post(PREFIX + "/approvals/{act}", Scope.OPERATE, is_form=True, include_in_schema=False)
async def answer(call: CurrentCall, request: Request, act: Id) -> Response:
    """Answer an approval as an operator, in the name of one approver."""
    form = await form_of(request)
    if act not in ("approve", "deny"):
        raise Problem(404, "unknown_path", "There is no such act.")
    found = await call.client.executions.find(form.get("id", ""))
    await call.client.approvals.answer(
        found,
        is_approved=act == "approve",
        actor=call.principal.name[:256],
        approver=text_in(form, "approver"),
        comment=text_in(form, "comment"),
        approval_id=_approval_in(form),
    )
    return back_to(request, "/approvals")


def _approval_in(form: Mapping[str, str]) -> UUID:
    try:
        return UUID(form.get("approval", ""))
    except ValueError as error:
        raise InvalidInput(field="approval", problem="is not an id") from error
