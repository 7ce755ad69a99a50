"""The pages of events, of the audit, and of subscriptions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from flowfabric.core.errors import CursorExpired, InvalidInput
from flowfabric.core.execution import EventPage
from flowfabric.core.states import EventKind
from flowfabric.core.times import past, when
from flowfabric.core.token import Scope
from flowfabric.server.dashboard.page import (
    PREFIX,
    Id,
    back_to,
    form_of,
    reason_in,
    show,
    text_in,
)
from flowfabric.server.problems import Problem
from flowfabric.server.routing import Call, CurrentCall, Routes

routes = Routes("dashboard")
EVENTS = 100
# The search for the first event of the page allows for transactions of this length. Events of a
# longer transaction may be missing.
GRACE = timedelta(minutes=1)
# The page of events begins this long ago, unless the visitor chooses another time.
SINCE = "15m"


@routes.get(PREFIX + "/events", Scope.READ, include_in_schema=False)
async def events(
    call: CurrentCall,
    request: Request,
    since: str = SINCE,
    kind: str = "",
    cursor: str = "",
    skip: int = Query(0, ge=0, le=10**6),
) -> Response:
    """Show the events since a time, oldest first. A link leads to the next events."""
    now = await call.client.executions.server_time()
    if not cursor:
        cursor = await call.client.events.open(past(when(since, "since"), now), grace=GRACE)
    found = await _read_events(call, cursor, kind)
    # A read returns whole transactions, which may be long. The page shows only a part.
    after = {"since": since, "kind": kind, "cursor": cursor, "skip": str(skip + EVENTS)}
    if len(found.events) <= skip + EVENTS:
        after |= {"cursor": found.cursor, "skip": "0"}
    has_more = found.has_more or len(found.events) > skip + EVENTS
    facts: dict[str, Any] = {"events": found.events[skip : skip + EVENTS], "kinds": list(EventKind)}
    next = urlencode(after) if has_more else ""
    return show(request, call, "events", now, kind=kind, since=since, next=next, **facts)


async def _read_events(call: Call, cursor: str, kind: str) -> EventPage:
    if kind and kind not in list(EventKind):
        raise InvalidInput(field="kind", problem="is not a kind of event")
    kinds = [EventKind(kind)] if kind else None
    try:
        return await call.client.events.read(cursor, limit=EVENTS, kinds=kinds)
    except CursorExpired as error:
        raise InvalidInput(field="since", problem=str(error)) from error


@routes.get(PREFIX + "/audit", Scope.ADMIN, include_in_schema=False)
async def audit(call: CurrentCall, request: Request, before: int | None = None) -> Response:
    """Show the audit: who did what, and why. The newest acts come first."""
    found = await call.client.tokens.audit(before=before, limit=EVENTS)
    now = await call.client.executions.server_time()
    last = found[-1].audit_id if len(found) == EVENTS else None
    return show(request, call, "audit", now, entries=found, last=last)


@routes.get(PREFIX + "/subscriptions", Scope.READ, include_in_schema=False)
async def subscriptions(call: CurrentCall, request: Request) -> Response:
    """Show subscriptions and webhooks, each with its lag."""
    found = await call.client.subscriptions.list()
    webhooks = await call.client.webhooks.list()
    now = await call.client.executions.server_time()
    names = {one.name for one in webhooks}
    return show(
        request,
        call,
        "subscriptions",
        now,
        subscriptions=[one for one in found if one.name not in names],
        webhooks=webhooks,
        missing=found.missing,
    )


@routes.post(PREFIX + "/subscriptions/{act}", Scope.OPERATE, is_form=True, include_in_schema=False)
async def change_subscription(call: CurrentCall, request: Request, act: Id) -> Response:
    """Move a subscription to another position, or enable a webhook again."""
    form = await form_of(request)
    name, reason, actor = form.get("name", ""), reason_in(form), call.principal.name
    if act == "reset":
        await call.client.subscriptions.get(name)
        since = text_in(form, "since")
        now = await call.client.executions.server_time()
        moment = None if since is None else past(when(since, "since"), now)
        await call.client.subscriptions.reset(name, since=moment, reason=reason, actor=actor)
    elif act == "enable":
        await call.client.webhooks.enable(name, reason=reason, actor=actor)
    else:
        raise Problem(404, "unknown_path", "There is no such act.")
    return back_to(request, "/subscriptions")
