"""The page of lanes and quotas, and the page of budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import LaneInfo
from flowfabric.core.lane import LaneTraffic
from flowfabric.core.limit import amount_text
from flowfabric.core.quota import BudgetInfo
from flowfabric.core.times import future, when
from flowfabric.core.token import Scope
from flowfabric.server.dashboard.overview import WINDOW
from flowfabric.server.dashboard.page import (
    PREFIX,
    Id,
    back_to,
    form_of,
    reason_in,
    show,
    text_in,
    whole_in,
)
from flowfabric.server.problems import Problem
from flowfabric.server.routing import Call, CurrentCall, Routes

routes = Routes("dashboard")
SHOWN = 200
STOPPED_SHOWN = 5
# The page of lanes shows the counters of at most this many quotas.
QUOTAS_OPENED = 20
GATES_SHOWN = 20


@routes.get(PREFIX + "/lanes", Scope.READ, include_in_schema=False)
async def lanes(call: CurrentCall, request: Request) -> Response:
    """Show lanes with their traffic, and quotas with their counters."""
    found = await call.client.lanes.traffic(window=WINDOW)
    quotas = await call.client.quotas.list(limit=SHOWN)
    opened = [
        (one, await call.client.quotas.gates(one.quota, limit=GATES_SHOWN))
        for one in quotas[:QUOTAS_OPENED]
    ]
    now = await call.client.executions.server_time()
    facts: dict[str, Any] = {
        "lanes": found,
        "changes": await _changes(call, found),
        "window": WINDOW,
    }
    facts["stopped_first"] = sorted(found, key=lambda one: one.state == "active")
    others = len(quotas) - len(opened)
    return show(request, call, "lanes", now, quotas=opened, others=others, **facts)


async def _changes(call: Call, lanes: Sequence[LaneTraffic]) -> dict[str, LaneInfo]:
    """Return who stopped a lane, and why, for a few lanes that are not active.

    Not all are read, because each read counts the executions of the lane.
    """
    stopped = [lane for lane in lanes if lane.state != "active"][:STOPPED_SHOWN]
    return {one.lane: await call.client.lanes.get(one.lane) for one in stopped}


@routes.post(PREFIX + "/lanes/{act}", Scope.OPERATE, is_form=True, include_in_schema=False)
async def change_lane(call: CurrentCall, request: Request, act: Id) -> Response:
    """Pause, resume, drain or disable a lane."""
    form = await form_of(request)
    lane, reason, actor = form.get("lane", ""), reason_in(form), call.principal.name
    if act == "pause":
        until = text_in(form, "until")
        now = await call.client.executions.server_time()
        ends = None if until is None else future(when(until, "until"), now)
        await call.client.lanes.pause(lane, until=ends, reason=reason, actor=actor)
    elif act in ("resume", "drain", "disable"):
        await getattr(call.client.lanes, act)(lane, reason=reason, actor=actor)
    else:
        raise Problem(404, "unknown_path", "There is no such act.")
    return back_to(request, f"/lanes#{quote(f'lane-{lane}')}")


@routes.post(PREFIX + "/quotas/{act}", Scope.OPERATE, is_form=True, include_in_schema=False)
async def change_quota(call: CurrentCall, request: Request, act: Id) -> Response:
    """Set the numbers of a quota, or lift the numbers that an operator has set."""
    form = await form_of(request)
    quota, reason, actor = form.get("quota", ""), reason_in(form), call.principal.name
    if act == "lift":
        await call.client.quotas.lift(quota, reason=reason, actor=actor)
    elif act == "set":
        concurrency = whole_in(form, "concurrency") if text_in(form, "concurrency") else None
        rate = text_in(form, "rate")
        if concurrency is None and rate is None:
            raise InvalidInput(field="concurrency", problem="give a concurrency or a rate")
        await call.client.quotas.set(
            quota, concurrency=concurrency, rate=rate, reason=reason, actor=actor
        )
    else:
        raise Problem(404, "unknown_path", "There is no such act.")
    return back_to(request, f"/lanes#{quote(f'quota-{quota}')}")


@routes.get(PREFIX + "/budgets", Scope.READ, include_in_schema=False)
async def budgets(call: CurrentCall, request: Request) -> Response:
    """Show budgets: their usage, their limits, and the next reset."""
    found = await call.client.budgets.list()
    now = await call.client.executions.server_time()
    ordered = sorted(found, key=lambda one: (not one.is_shut, one.budget, one.key))
    return show(
        request, call, "budgets", now, budgets=ordered[:SHOWN], total=len(found), amount=amount_text
    )


@routes.post(PREFIX + "/budgets/{act}", Scope.OPERATE, is_form=True, include_in_schema=False)
async def change_budget(call: CurrentCall, request: Request, act: Id) -> Response:
    """Raise a limit of a budget, reset the budget, or lift the limits that an operator has set."""
    form = await form_of(request)
    budget, key = form.get("budget", ""), form.get("key", "")
    reason, actor = reason_in(form), call.principal.name
    if act == "raise":
        raised = _raised_in(form, await call.client.budgets.get(budget, key=key))
        await call.client.budgets.raise_limits(
            budget, key=key, reason=reason, actor=actor, **raised
        )
    elif act == "reset":
        await call.client.budgets.reset(budget, key=key, reason=reason, actor=actor)
    elif act == "lift":
        await call.client.budgets.lift(budget, key=key, reason=reason, actor=actor)
    else:
        raise Problem(404, "unknown_path", "There is no such act.")
    return back_to(request, f"/budgets#{quote(f'budget-{budget}')}")


def _raised_in(form: Mapping[str, str], budget: BudgetInfo) -> dict[str, Any]:
    """Return the dimension whose limit a form sets, with the new limit."""
    dimension = form.get("dimension", "")
    if dimension not in budget.hard_limits:
        raise InvalidInput(field="dimension", problem="is not a dimension of this budget")
    field = f"amount.{dimension}"
    return {dimension: form.get(field, "").strip() if dimension == "usd" else whole_in(form, field)}
