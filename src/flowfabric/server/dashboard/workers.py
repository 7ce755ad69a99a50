"""The page of the workers."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from flowfabric.core.token import Scope
from flowfabric.server.dashboard.page import PREFIX, back_to, form_of, reason_in, show
from flowfabric.server.problems import Problem
from flowfabric.server.routing import CurrentCall, Routes

routes = Routes("dashboard")


@routes.get(PREFIX + "/workers", Scope.READ, include_in_schema=False)
async def workers(call: CurrentCall, request: Request) -> Response:
    """Show the live workers."""
    found = await call.client.workers.list()
    now = await call.client.executions.server_time()
    return show(request, call, "workers", now, workers=found)


@routes.post(PREFIX + "/workers/drain", Scope.OPERATE, is_form=True, include_in_schema=False)
async def drain(call: CurrentCall, request: Request) -> Response:
    """Ask a worker to claim nothing more, finish what runs, and end."""
    form = await form_of(request)
    outcome = await call.client.workers.drain(
        form.get("instance", ""), reason_in(form), actor=call.principal.name
    )
    if outcome == "not_registered":
        raise Problem(404, "worker_not_found", "That worker is not registered any more.")
    return back_to(request, "/workers")
