"""The pages of tasks: what is registered, what runs, what fails, and a form to submit."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from flowfabric.core.errors import InvalidInput, TaskNotFound
from flowfabric.core.execution import ExecutionFilter
from flowfabric.core.ids import ExecutionId, partition_of
from flowfabric.core.states import PublicState
from flowfabric.core.token import Scope
from flowfabric.dashboard.forms import fields_of, value_of
from flowfabric.server.dashboard.overview import speeds_of
from flowfabric.server.dashboard.page import (
    PREFIX,
    back_to,
    form_of,
    listed,
    once_in,
    show,
    text_in,
)
from flowfabric.server.routing import LARGE, CurrentCall, Routes
from flowfabric.server.submissions import Submit, submission

routes = Routes("dashboard")
SHOWN = 200
NEWEST = 10
# The page links to these states. It does not count their executions: no index covers state and
# task.
OPEN = (
    PublicState.DELAYED,
    PublicState.ACTIVE,
    PublicState.WAITING_CHILDREN,
    PublicState.SUSPENDED,
    PublicState.FAILED,
)


@routes.get(PREFIX + "/tasks", Scope.READ, include_in_schema=False)
async def tasks(call: CurrentCall, request: Request, after: str | None = None) -> Response:
    """List tasks, and the failures of the last day in groups."""
    found = await call.client.tasks.list(after=after, limit=SHOWN)
    groups = await call.client.executions.failures(limit=SHOWN)
    now = await call.client.executions.server_time()
    next = found[-1].task if len(found) == SHOWN else ""
    return show(request, call, "tasks", now, tasks=found, groups=groups, next=next)


@routes.get(PREFIX + "/tasks/one", Scope.READ, include_in_schema=False)
async def task(call: CurrentCall, request: Request, name: str) -> Response:
    """Show one task: its schema, its versions in flight, its failures, and a form to submit."""
    try:
        info = await call.client.tasks.describe(name)
    except TaskNotFound:
        if name not in [one.task for one in await call.client.tasks.list(limit=1000)]:
            raise
        info = None
    newest = await call.client.executions.list(ExecutionFilter(tasks=[name]), limit=NEWEST)
    now = await call.client.executions.server_time()
    schema = info.arguments if info is not None else None
    return show(
        request,
        call,
        "task",
        now,
        task=name,
        info=info,
        states=OPEN,
        speeds=await speeds_of(call, name),
        versions=await call.client.workers.versions(name),
        groups=await call.client.executions.failures(task=name, limit=SHOWN),
        executions=listed(newest.executions, now),
        form=fields_of(schema) if schema and schema.get("properties") else (),
    )


@routes.post(
    PREFIX + "/tasks/submit", Scope.SUBMIT, is_form=True, limit=LARGE, include_in_schema=False
)
async def submit(call: CurrentCall, request: Request) -> Response:
    """Submit an execution with the form of a task."""
    form = await form_of(request)
    name = form.get("task", "")
    info = await call.client.tasks.describe(name)
    schema = info.arguments or {}
    given: dict[str, Any] = {"task": name, "key": text_in(form, "key")}
    given["lane"], given["delay"] = text_in(form, "lane"), text_in(form, "delay")
    if schema.get("properties"):
        given["arguments"] = value_of(schema, form)
        if not isinstance(given["arguments"], dict):
            raise InvalidInput(field="value", problem="must be an object, with names")
    item = await submission(call, Submit(**given))
    once = once_in(form)
    if once is None or item.key is not None:
        await call.client.executions.place([item])
    else:
        minted = (await call.client.database.partitions.current()).minted
        item.id = ExecutionId.of(partition_of(once.bytes, minted), once)
    done = await call.client.executions.submit(item)
    return back_to(request, f"/executions/{done.id.uuid}")
