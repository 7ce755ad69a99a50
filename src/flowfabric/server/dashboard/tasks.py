"""The pages of tasks: what is registered, what runs, what fails, and a form to submit."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from flowfabric.core.errors import InvalidInput, TaskNotFound, Unavailable
from flowfabric.core.execution import ExecutionFilter
from flowfabric.core.ids import ExecutionId, partition_of
from flowfabric.core.states import PublicState
from flowfabric.core.task import TaskInfo
from flowfabric.core.token import Scope
from flowfabric.dashboard.forms import fields_of, value_of
from flowfabric.server.dashboard.overview import lanes_of
from flowfabric.server.dashboard.page import (
    PREFIX,
    back_to,
    form_of,
    listed,
    once_in,
    root,
    show,
    text_in,
)
from flowfabric.server.dashboard.speeds import FIRST_CHART, chart_facts, speeds_of
from flowfabric.server.routing import LARGE, Call, CurrentCall, Routes
from flowfabric.server.submissions import Submit, submission

routes = Routes("dashboard")
SHOWN = 200
NEWEST = 10
# The page links to these states. It does not count their executions: no index covers state and
# task.
OPEN = (
    PublicState.WAITING,
    PublicState.DELAYED,
    PublicState.RATE_LIMITED,
    PublicState.ACTIVE,
    PublicState.WAITING_CHILDREN,
    PublicState.SUSPENDED,
    PublicState.FAILED,
)


@routes.get(PREFIX + "/tasks", Scope.READ, include_in_schema=False)
async def tasks(call: CurrentCall, request: Request, after: str | None = None) -> Response:
    """List tasks, and the groups of the newest failures."""
    found = await call.client.tasks.list(after=after, limit=SHOWN)
    groups = await call.client.executions.failures(limit=SHOWN)
    now = await call.client.executions.server_time()
    next = found[-1].task if len(found) == SHOWN else ""
    facts: dict[str, Any] = {
        "tasks": found,
        "groups": groups,
        "next": next,
        "missing": groups.missing,
    }
    return show(request, call, "tasks", now, **facts)


@routes.get(PREFIX + "/tasks/one", Scope.READ, include_in_schema=False)
async def task(
    call: CurrentCall, request: Request, name: str, chart: str = FIRST_CHART
) -> Response:
    """Show one task: its schema, its code versions, its failures, and a form to submit it."""
    info = await _info_of(call, name)
    now = await call.client.executions.server_time()
    facts = await _facts_of(call, name, info, now)
    address = f"{root(request)}/tasks/one?{urlencode({'name': name})}&"
    drawn = await chart_facts(call, chart, now, address, name)
    return show(request, call, "task", now, task=name, info=info, **facts, **drawn)


async def _facts_of(call: Call, name: str, info: TaskInfo | None, now: datetime) -> dict[str, Any]:
    newest = await call.client.executions.list(ExecutionFilter(tasks=[name]), limit=NEWEST)
    schema = info.arguments if info is not None else None
    try:
        versions = await call.client.workers.versions(name)
    except Unavailable:
        # The versions need all partitions. The page says which partitions are missing.
        if not newest.missing:
            raise
        versions = ()
    return {
        "states": OPEN,
        "speeds": await speeds_of(call, name),
        "versions": versions,
        "groups": await call.client.executions.failures(task=name, limit=SHOWN),
        "executions": listed(newest.executions, now, await lanes_of(call)),
        "missing": newest.missing,
        "form": fields_of(schema) if schema and schema.get("properties") else (),
    }


async def _info_of(call: Call, name: str) -> TaskInfo | None:
    """Return what an app registered about a task, or None if the task has only a route."""
    try:
        return await call.client.tasks.describe(name)
    except TaskNotFound:
        after = None
        while names := [one.task for one in await call.client.tasks.list(after=after)]:
            if name in names:
                return None
            after = names[-1]
        raise


@routes.post(
    PREFIX + "/tasks/submit", Scope.SUBMIT, is_form=True, limit=LARGE, include_in_schema=False
)
async def submit(call: CurrentCall, request: Request) -> Response:
    """Submit the execution that a visitor has described in the form of a task."""
    form = await form_of(request)
    item = await submission(call, await _submit_in(call, form))
    once = once_in(form)
    if once is None or item.key is not None:
        await call.client.executions.assign_partitions([item])
    else:
        minted = (await call.client.database.partitions.current()).minted
        item.id = ExecutionId.of(partition_of(once.bytes, minted), once)
    done = await call.client.executions.submit(item)
    return back_to(request, f"/executions/{done.id.uuid}")


async def _submit_in(call: Call, form: Mapping[str, str]) -> Submit:
    """Return the execution that the form of a task describes."""
    name = form.get("task", "")
    schema = (await call.client.tasks.describe(name)).arguments or {}
    given: dict[str, Any] = {"task": name}
    given |= {field: text_in(form, field) for field in ("key", "lane", "delay")}
    if schema.get("properties"):
        given["arguments"] = value_of(schema, form)
        if not isinstance(given["arguments"], dict):
            raise InvalidInput(field="value", problem="must be an object, with names")
    return Submit(**given)
