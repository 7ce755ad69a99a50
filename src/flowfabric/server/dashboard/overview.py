"""The first page of the dashboard: executions by state, what needs attention, lanes and workers."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from flowfabric.client.filters import parse
from flowfabric.core.execution import ExecutionCount, ExecutionFilter
from flowfabric.core.lane import LaneTraffic
from flowfabric.core.states import PublicState
from flowfabric.core.token import Scope
from flowfabric.core.worker import WorkerInfo
from flowfabric.doctor import Level
from flowfabric.drawing.text import count_of
from flowfabric.drawing.times import short
from flowfabric.server.dashboard.page import PREFIX, Listed, listed, root, show
from flowfabric.server.dashboard.schedules import row_of
from flowfabric.server.dashboard.speeds import FIRST_CHART, chart_facts, speeds_of
from flowfabric.server.routing import Call, CurrentCall, Routes

routes = Routes("dashboard")
WINDOW = timedelta(seconds=10)
# A lane needs attention if an execution that can run has waited longer than this.
STUCK = timedelta(minutes=5)
# An approval needs attention if it has been open for longer than this.
OLD_APPROVAL = timedelta(hours=1)
ROWS = 5
# The states that an index counts. The other states of the overview are counted with the lanes.
COUNTED = (PublicState.WAITING_CHILDREN, PublicState.SUSPENDED, PublicState.FAILED)


@dataclass(frozen=True, slots=True)
class Lead:
    """A problem in words, and a link to the page that helps to solve it."""

    words: str
    link: str
    label: str
    # A filter that finds the executions with this problem.
    where: str = ""


@dataclass(frozen=True, slots=True)
class Attention:
    """Problems of one kind, with advice. Each problem is an execution or a lead.

    `where` is the filter that finds all executions with such a problem, and `verb` is the act that
    helps them.
    """

    title: str
    advice: str
    where: str = ""
    verb: str = ""
    label: str = ""
    executions: Sequence[Listed] = ()
    leads: Sequence[Lead] = field(default=())

    @property
    def is_needed(self) -> bool:
        return bool(self.executions or self.leads)


# Executions that need attention: title, advice, filter, and the act that helps.
KINDS = (
    Attention(
        "Held",
        "The code does not fit the recorded steps. Deploy code that fits, then retry.",
        "held=yes",
        "retry",
        "Retry all",
    ),
    Attention(
        "Crash looping",
        "Their workers keep crashing. Look at one, then cancel them.",
        "crash_looping=yes",
        "cancel",
        "Cancel all",
    ),
    Attention(
        "Failed in the last day",
        "Retry them once the cause is gone.",
        "state=failed ended<1d",
        "retry",
        "Retry all",
    ),
)


@routes.get(PREFIX, Scope.READ, include_in_schema=False)
async def overview(call: CurrentCall, request: Request, chart: str = FIRST_CHART) -> Response:
    """Show the counts of executions, what needs attention, the throughput, lanes and workers."""
    facts = await call.backend.shared.read("overview", call.client, lambda: _facts(call))
    drawn = await chart_facts(call, chart, facts["now"], f"{root(request)}?")
    return show(request, call, "overview", **facts, **drawn)


async def _facts(call: Call) -> dict[str, Any]:
    """Read what the overview shows, which is the same for all visitors of a namespace."""
    now = await call.client.executions.server_time()
    lanes = await call.client.lanes.traffic(window=WINDOW)
    workers = await call.client.workers.list()
    totals = await totals_of(call, lanes)
    attention = [
        *[await _executions(call, kind, now, lanes) for kind in KINDS],
        _stuck(lanes, workers, now),
        await _budgets(call),
        await _schedules(call, now),
        await _approvals(call, now),
        await _subscriptions(call),
        _doctor(call),
    ]
    return {
        "now": now,
        "totals": totals,
        "attention": [one for one in attention if one.is_needed],
        "speeds": await speeds_of(call),
        "lanes": lanes,
        "workers": workers,
        "missing": lanes.missing,
    }


async def lanes_of(call: Call) -> Sequence[LaneTraffic]:
    """Return the lanes with their traffic."""
    return await call.backend.shared.read(
        "lanes", call.client, lambda: call.client.lanes.traffic(window=WINDOW)
    )


async def totals_of(
    call: Call, lanes: Sequence[LaneTraffic]
) -> list[tuple[PublicState, ExecutionCount]]:
    """Return how many executions are in each unfinished state, and how many have failed.

    Each count stops at a maximum.
    """
    count = call.client.executions.count
    held, *counts = await asyncio.gather(
        # No index contains only held executions. So a full count would read all waiting ones.
        count(ExecutionFilter(is_held=True), reads=1),
        *(count(ExecutionFilter(states=[one])) for one in COUNTED),
    )
    ready = _sum(lanes, "waiting", "is_more_waiting")
    # The counts of lanes contain only executions that workers can claim. Add the held executions,
    # which are waiting, too.
    waiting = ExecutionCount(ready.number + held.number, ready.is_more or held.is_more)
    found = [
        (PublicState.WAITING, waiting),
        (PublicState.DELAYED, _sum(lanes, "delayed", "is_more_timed")),
        (PublicState.ACTIVE, _sum(lanes, "active", "is_more_timed")),
        (PublicState.RATE_LIMITED, _sum(lanes, "in_line", "is_more_in_line")),
    ]
    return [*found, *zip(COUNTED, counts, strict=True)]


def _sum(lanes: Sequence[LaneTraffic], name: str, is_more: str) -> ExecutionCount:
    return ExecutionCount(
        sum(getattr(lane, name) for lane in lanes), any(getattr(lane, is_more) for lane in lanes)
    )


async def _executions(
    call: Call, kind: Attention, now: datetime, lanes: Sequence[LaneTraffic]
) -> Attention:
    found = await call.client.executions.list(parse(kind.where).resolved(now), limit=ROWS)
    return Attention(
        kind.title,
        kind.advice,
        kind.where,
        kind.verb,
        kind.label,
        listed(found.executions, now, lanes),
    )


def _stuck(lanes: Sequence[LaneTraffic], workers: Sequence[WorkerInfo], now: datetime) -> Attention:
    leads = []
    for one in lanes:
        waits = now - one.waiting_since if one.waiting_since else timedelta()
        if waits < STUCK:
            continue
        label, page = "Workers", "/workers"
        serving = [each for each in workers if each.lanes is None or one.lane in each.lanes]
        if one.state != "active":
            why = f"the lane is {one.state}"
            label, page = "Resume…", f"/lanes#{quote(f'lane-{one.lane}')}"
        elif not serving:
            why = "no worker serves the lane"
        else:
            why = f"{count_of(len(serving), 'worker')} of the lane cannot take it now"
        words = f"The oldest execution of {one.lane} has waited for {short(waits)}: {why}."
        where = f"lane={shlex.quote(one.lane)} state=waiting"
        leads.append(Lead(words, page, label, where))
    return Attention("Stuck lanes", "Start workers, or resume the lane.", leads=leads)


async def _budgets(call: Call) -> Attention:
    leads = [
        Lead(
            f"{one.budget}{f' of {one.key}' if one.key else ''} is spent{_in_line(one.in_line)}.",
            f"/budgets#{quote(f'budget-{one.budget}')}",
            "Raise or reset",
        )
        for one in await call.client.budgets.list()
        if one.is_shut
    ]
    return Attention(
        "Over budget", "Executions that use these budgets do not start.", leads=leads[:ROWS]
    )


def _in_line(number: int) -> str:
    if not number:
        return ""
    return f"; {count_of(number, 'execution')} {'waits' if number == 1 else 'wait'} in line"


async def _schedules(call: Call, now: datetime) -> Attention:
    leads = []
    for one in await call.client.schedules.list():
        if row_of(one, now).is_late and one.next_at is not None:
            late = short(now - one.next_at)
            leads.append(Lead(f"{one.name} is {late} late.", "/schedules", "Schedules"))
    return Attention(
        "Late schedules", "No worker of their app fires them. Start one.", leads=leads[:ROWS]
    )


async def _approvals(call: Call, now: datetime) -> Attention:
    leads = [
        Lead(
            f"“{one.question.strip()}” has been open for {short(now - one.created_at)}; "
            f"no answer yet from {', '.join(one.waiting_for)}.",
            "/approvals",
            "Answer",
        )
        for one in await call.client.approvals.list(limit=ROWS)
        if now - one.created_at > OLD_APPROVAL
    ]
    return Attention("Old approvals", "The approvers have not answered yet.", leads=leads)


async def _subscriptions(call: Call) -> Attention:
    leads = [
        Lead(f"{one.name} has lost events that were trimmed.", "/subscriptions", "Reset")
        for one in await call.client.subscriptions.list()
        if one.is_expired
    ]
    return Attention("Expired subscriptions", "Their consumers have stopped.", leads=leads[:ROWS])


def _doctor(call: Call) -> Attention:
    report = call.backend.report
    number = 0 if report is None else report.count(Level.ERROR)
    leads = []
    if number:
        words = f"The doctor found {count_of(number, 'error')} when it last ran."
        leads.append(Lead(words, "/system", "See them"))
    return Attention("Findings of the doctor", "The data is inconsistent.", leads=leads)
