"""The pages of schedules: the list, and one schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import takewhile

from starlette.requests import Request
from starlette.responses import Response

from flowfabric.core.execution import StateInfo
from flowfabric.core.ids import firing_id
from flowfabric.core.schedule import GRACE, ScheduleInfo
from flowfabric.core.states import ScheduleState
from flowfabric.core.token import Scope
from flowfabric.drawing.schedules import in_words
from flowfabric.server.dashboard.page import (
    PREFIX,
    Id,
    back_to,
    form_of,
    once_in,
    reason_in,
    show,
)
from flowfabric.server.problems import Problem
from flowfabric.server.routing import Call, CurrentCall, Routes

routes = Routes("dashboard")
NEXT_SHOWN = 5
RESULTS_SHOWN = 5
# How far back the page looks for the last times of a rule.
_LONGEST = timedelta(days=3660)


@dataclass(frozen=True, slots=True)
class Row:
    """A schedule in the list: its rule in words, and whether the schedule is overdue."""

    schedule: ScheduleInfo
    words: str
    is_late: bool


def row_of(one: ScheduleInfo, now: datetime) -> Row:
    is_late = (
        one.state is ScheduleState.ACTIVE and one.next_at is not None and now - one.next_at > GRACE
    )
    return Row(one, in_words(one.rule), is_late)


@routes.get(PREFIX + "/schedules", Scope.READ, include_in_schema=False)
async def schedules(call: CurrentCall, request: Request) -> Response:
    """List schedules with their rules in words, and their next and last firing times."""
    found = await call.client.schedules.list()
    now = await call.client.executions.server_time()
    rows = [row_of(one, now) for one in found]
    return show(request, call, "schedules", now, schedules=rows)


@routes.get(PREFIX + "/schedules/one", Scope.READ, include_in_schema=False)
async def schedule(call: CurrentCall, request: Request, name: str, app: str) -> Response:
    """Show one schedule with its next five firing times and its latest executions."""
    found = await call.client.schedules.get(name, app=app)
    next_ats = await call.client.schedules.next(name, app=app, count=NEXT_SHOWN)
    now = await call.client.executions.server_time()
    return show(
        request,
        call,
        "schedule",
        now,
        row=row_of(found, now),
        next_ats=next_ats,
        results=await _results(call, found),
    )


@routes.post(PREFIX + "/schedules/{act}", Scope.OPERATE, is_form=True, include_in_schema=False)
async def change(call: CurrentCall, request: Request, act: Id) -> Response:
    """Pause or resume a schedule, or submit its task now."""
    form = await form_of(request)
    name, app, actor = form.get("name", ""), form.get("app", ""), call.principal.name
    if act == "run":
        made = await call.client.schedules.run(name, app=app, actor=actor, uuid=once_in(form))
        return back_to(request, f"/executions/{made.uuid}")
    if act not in ("pause", "resume"):
        raise Problem(404, "unknown_path", "There is no such act.")
    method = getattr(call.client.schedules, act)
    await method(name, app=app, reason=reason_in(form), actor=actor)
    return back_to(request, "/schedules")


async def _results(call: Call, one: ScheduleInfo) -> Sequence[tuple[datetime, StateInfo]]:
    """Return the executions that a schedule submitted last, newest first, with their due times.

    Executions that were trimmed are left out.
    """
    if one.last_at is None or one.last_id is None:
        return []
    partitions = (await call.client.database.partitions.current()).minted
    found = []
    for at in _last_times(one):
        info = await call.client.executions.info(firing_id(one.schedule_id, at, partitions))
        if info is not None:
            found.append((at, info))
    return found


def _last_times(one: ScheduleInfo) -> list[datetime]:
    """Return the latest due times of a schedule, up to its last firing, newest first."""
    assert one.last_at is not None
    last, window = one.last_at, timedelta(minutes=10)
    while True:
        times = list(takewhile(lambda at: at <= last, one.rule.times(last - window)))
        if len(times) >= RESULTS_SHOWN or window > _LONGEST:
            return times[::-1][:RESULTS_SHOWN]
        window *= 8
