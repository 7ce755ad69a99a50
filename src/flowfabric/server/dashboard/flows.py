"""The pages of flows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from flowfabric.client.detail_reads import read_flow
from flowfabric.core.flow import EdgeInfo, FlowMember
from flowfabric.core.token import Scope
from flowfabric.dashboard.timeline import critical_path
from flowfabric.drawing.picture import Picture, picture_of
from flowfabric.drawing.svg import as_svg
from flowfabric.server.dashboard.page import (
    PAGE,
    PREFIX,
    Id,
    back_to,
    form_of,
    reason_in,
    root,
    show,
)
from flowfabric.server.paths import find_flow
from flowfabric.server.problems import Problem
from flowfabric.server.routing import CurrentCall, Routes

routes = Routes("dashboard")
MEMBERS_SHOWN = 500
# If the critical path has more members, only its last members are shown.
PATH_SHOWN = 20


@routes.get(PREFIX + "/flows", Scope.READ, include_in_schema=False)
async def flows(call: CurrentCall, request: Request, after: str | None = None) -> Response:
    """List flows, newest first."""
    last = None if after is None else await call.client.flows.find(after)
    found = await call.client.flows.list(after=last, limit=PAGE, newest=True)
    now = await call.client.executions.server_time()
    next = f"{root(request)}/flows?after={found.after.uuid}" if found.after else ""
    return show(request, call, "flows", now, flows=found.flows, next=next, missing=found.missing)


@routes.get(PREFIX + "/flows/{id}", Scope.READ, include_in_schema=False)
async def flow(
    call: CurrentCall, request: Request, id: Id, unfold: str = "", view: str = "graph"
) -> Response:
    """Show one flow with its picture and its members."""
    found = await find_flow(call, id)
    info, summary = await read_flow(call.client, found)
    members, edges = await call.client.flows.members(found), await call.client.flows.edges(found)
    now = await call.client.executions.server_time()
    facts = {"info": info, "summary": summary, **_facts_of(members, edges, now)}
    facts |= {"view": "gantt" if view == "gantt" else "graph", "is_unfolded": bool(unfold)}
    picture = picture_of(
        *(info.flow_kind, summary.state, members, edges, info.groups),
        now=now,
        link=lambda member: f"{root(request)}/executions/{member.id.uuid}",
    )
    here = f"{root(request)}/flows/{found.uuid}"
    drawing = "" if view == "gantt" else _drawn(picture, here, is_folded=not unfold)
    return show(request, call, "flow", now, drawing=drawing, here_flow=here, **facts)


def _facts_of(
    members: Sequence[FlowMember], edges: Sequence[EdgeInfo], now: datetime
) -> dict[str, Any]:
    """Return the members, the critical path and the end of a flow, for its page."""
    path = critical_path(members, edges, now)
    return {
        "members": members[:MEMBERS_SHOWN],
        "total": len(members),
        "path": path[-PATH_SHOWN:],
        "path_length": len(path),
        "ended_at": max([one.terminal_at or now for one in members], default=now),
        "critical": {str(one.id.uuid) for one in path},
    }


def _drawn(picture: Picture, here: str, *, is_folded: bool) -> Markup:
    unfold = f"{here}?unfold=yes"
    # The drawing escapes every text by itself.
    return Markup(as_svg(picture, is_folded=is_folded, with_style=False, unfold_link=unfold))


@routes.post(PREFIX + "/flows/{id}/{act}", Scope.OPERATE, is_form=True, include_in_schema=False)
async def act(call: CurrentCall, request: Request, id: Id, act: Id) -> Response:
    """Cancel a flow, or run its failed members again."""
    form = await form_of(request)
    found = await call.client.flows.find(id)
    reason, actor = reason_in(form), call.principal.name
    if act == "cancel":
        await call.client.flows.cancel(found, reason=reason, actor=actor)
    elif act == "retry-failed":
        await call.client.flows.retry_failed(found, reason=reason, actor=actor)
    else:
        raise Problem(404, "unknown_path", "There is no such act.")
    return back_to(request, f"/flows/{found.uuid}")
