"""HTTP routes for operators: lanes, schedules, limits, workers, tasks, keys."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, NotRequired, TypedDict

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from flowfabric.core.code_version import VersionInfo
from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import LaneInfo
from flowfabric.core.ids import ExecutionId
from flowfabric.core.limit import Budget
from flowfabric.core.limit import Limit as Quota
from flowfabric.core.quota import BudgetInfo, GateInfo, QuotaChange, QuotaInfo, UsageAnswer
from flowfabric.core.schedule import ScheduleInfo
from flowfabric.core.signal import HmacKey, Rotation
from flowfabric.core.task import TaskInfo, TaskName
from flowfabric.core.token import Scope
from flowfabric.core.worker import WorkerInfo
from flowfabric.server.answers import answer, missing_in, page
from flowfabric.server.paths import Limit, Name, Reason, why_of
from flowfabric.server.routing import CurrentCall, Routes
from flowfabric.server.shapes import MISSING, PageOf
from flowfabric.server.submissions import Body, Duration, duration

routes = Routes("operating")


class Pause(Reason):
    """Request body to pause a lane.

    The pause ends at `until`. If `until` is not given, the pause ends when the lane is resumed.
    """

    until: datetime | None = None


class NewQuota(Body):
    """A quota to create."""

    name: str
    concurrency: int | None = None
    rate: str | None = Field(default=None, examples=["100/min"])
    is_keyed: bool = False
    overflow: Literal["queue", "refuse"] = "queue"


class QuotaNumbers(Reason):
    """Numbers of a quota that override its declared numbers.

    `clear` names numbers to remove: they no longer limit anything.
    """

    key: str | None = None
    concurrency: int | None = None
    rate: str | None = None
    clear: list[Literal["concurrency", "rate"]] = Field(default_factory=list)


class Keyed(Reason):
    """The key of a limit that an operator changes.

    For a quota, an empty key means the numbers that were set for all keys. For a budget, an empty
    key means the budget without a key.
    """

    key: str = ""


class NewBudget(Body):
    """A budget to create, for one key or without a key."""

    name: str
    key: str = ""
    usd: str | None = Field(default=None, description="The limit in US dollars, as text.")
    tokens: int | None = None
    amounts: dict[str, int] = Field(default_factory=dict)
    period: Literal["hour", "day", "week", "month"] | None = None
    on_exceed: Literal["fail", "suspend", "warn"] = "fail"


class Amounts(Keyed):
    """New hard limits of a budget, by dimension."""

    amounts: dict[str, int | str] = Field(min_length=1)


class Usage(Body):
    """The amounts that were used, by dimension."""

    amounts: dict[str, int | str] = Field(min_length=1)
    key: str = ""
    dedup_key: str | None = None


class Dead(Reason):
    """Whether the leases of the dead worker instance expire now, or at their usual time."""

    expire_leases: bool = False


class Rotate(Body):
    """The name of the new key, and how long the old key continues to verify tokens."""

    name: str
    grace: Duration = "1d"


class ScheduleAndTimes(TypedDict):
    """A schedule and its next firing times."""

    schedule: ScheduleInfo
    next: list[datetime]


class Fired(TypedDict):
    """The execution that was submitted."""

    id: ExecutionId


class QuotaAndGates(TypedDict):
    """A quota and its gates, one for each key."""

    quota: QuotaInfo
    gates: list[GateInfo]
    missing_partitions: NotRequired[list[int]]


class QuotaDeleted(TypedDict):
    """Whether this call deleted the quota."""

    quota: str
    outcome: Literal["deleted", "unchanged"]


class MarkedDead(TypedDict):
    """Whether this call removed the worker instance."""

    worker_instance_id: str
    outcome: Literal["marked", "unchanged"]


class Capabilities(TypedDict):
    """The caller, and the names of the operations that each scope allows on this server."""

    name: str
    namespace: str
    scopes: list[Scope]
    operations: dict[str, list[str]]


# Lanes


@routes.get("/v1/lanes", Scope.READ, answers=PageOf(LaneInfo))
async def lanes(
    call: CurrentCall, request: Request, limit: Limit = 100, cursor: str | None = None
) -> Response:
    """List lanes with their state and depth."""
    found = await call.client.lanes.list(after=cursor, limit=limit)
    return page(request, found, found[-1].lane if len(found) == limit else None)


@routes.get("/v1/lanes/{name}", Scope.READ, answers=LaneInfo)
async def lane(call: CurrentCall, name: Name) -> Response:
    """Show one lane."""
    return answer(await call.client.lanes.get(name))


@routes.post("/v1/lanes/{name}/pause", Scope.OPERATE, answers=LaneInfo)
async def pause_lane(call: CurrentCall, name: Name, body: Pause | None = None) -> Response:
    """Pause a lane: it accepts submits, but allows no claims."""
    until = body.until if body else None
    return answer(
        await call.client.lanes.pause(
            name, until=until, reason=why_of(body), actor=call.principal.name
        )
    )


@routes.post("/v1/lanes/{name}/resume", Scope.OPERATE, answers=LaneInfo)
async def resume_lane(call: CurrentCall, name: Name, body: Reason | None = None) -> Response:
    """Make a lane active again."""
    lanes = call.client.lanes
    return answer(await lanes.resume(name, reason=why_of(body), actor=call.principal.name))


@routes.post("/v1/lanes/{name}/drain", Scope.OPERATE, answers=LaneInfo)
async def drain_lane(call: CurrentCall, name: Name, body: Reason | None = None) -> Response:
    """Drain a lane: it allows claims, but refuses submits."""
    lanes = call.client.lanes
    return answer(await lanes.drain(name, reason=why_of(body), actor=call.principal.name))


@routes.post("/v1/lanes/{name}/disable", Scope.OPERATE, answers=LaneInfo)
async def disable_lane(call: CurrentCall, name: Name, body: Reason | None = None) -> Response:
    """Disable a lane: it refuses submits and allows no claims."""
    lanes = call.client.lanes
    return answer(await lanes.disable(name, reason=why_of(body), actor=call.principal.name))


# Schedules


@routes.get("/v1/schedules", Scope.READ, answers=PageOf(ScheduleInfo))
async def schedules(call: CurrentCall, request: Request, app: str | None = None) -> Response:
    """List schedules."""
    return page(request, await call.client.schedules.list(app=app), None)


@routes.get("/v1/schedules/{name}", Scope.READ, answers=ScheduleAndTimes)
async def schedule(call: CurrentCall, name: Name, app: str | None = None) -> Response:
    """Show one schedule and its next five firing times."""
    found = await call.client.schedules.get(name, app=app)
    next_at = await call.client.schedules.next(name, app=app, count=5)
    return answer({"schedule": found, "next": next_at})


@routes.post("/v1/schedules/{name}/pause", Scope.OPERATE, answers=ScheduleInfo)
async def pause_schedule(
    call: CurrentCall, name: Name, app: str | None = None, body: Reason | None = None
) -> Response:
    """Pause a schedule. Firing times that pass during the pause are skipped."""
    done = await call.client.schedules.pause(
        name, app=app, reason=why_of(body), actor=call.principal.name
    )
    return answer(done)


@routes.post("/v1/schedules/{name}/resume", Scope.OPERATE, answers=ScheduleInfo)
async def resume_schedule(
    call: CurrentCall, name: Name, app: str | None = None, body: Reason | None = None
) -> Response:
    """Resume a schedule. It fires again from its next firing time on."""
    done = await call.client.schedules.resume(
        name, app=app, reason=why_of(body), actor=call.principal.name
    )
    return answer(done)


@routes.post("/v1/schedules/{name}/run", Scope.OPERATE, status_code=201, answers=Fired)
async def run_schedule(call: CurrentCall, name: Name, app: str | None = None) -> Response:
    """Submit the task of a schedule now."""
    made = await call.client.schedules.run(name, app=app, actor=call.principal.name)
    return answer({"id": made}, 201)


# Quotas


@routes.get("/v1/quotas", Scope.READ, answers=PageOf(QuotaInfo))
async def quotas(
    call: CurrentCall, request: Request, limit: Limit = 100, cursor: str | None = None
) -> Response:
    """List quotas."""
    found = await call.client.quotas.list(after=cursor, limit=limit)
    return page(request, found, found[-1].quota if len(found) == limit else None)


@routes.post("/v1/quotas", Scope.OPERATE, status_code=201, answers=QuotaInfo, also={200: QuotaInfo})
async def create_quota(call: CurrentCall, body: NewQuota) -> Response:
    """Create a quota.

    If a quota with this name exists, it stays unchanged, and the status is 200 instead of 201.
    """
    made = Quota(
        body.name,
        concurrency=body.concurrency,
        rate=body.rate,
        key="key" if body.is_keyed else None,
        overflow=body.overflow,
    )
    is_new = await call.client.quotas.create(made, actor=call.principal.name)
    return answer(await call.client.quotas.get(body.name), 201 if is_new else 200)


@routes.get("/v1/quotas/{name}", Scope.READ, answers=QuotaAndGates)
async def quota(call: CurrentCall, name: Name, limit: Limit = 100) -> Response:
    """Show a quota and its gates, one for each key."""
    found = await call.client.quotas.get(name)
    gates = await call.client.quotas.gates(name, limit=limit)
    return answer({"quota": found, "gates": gates, **missing_in(gates)})


@routes.put("/v1/quotas/{name}", Scope.OPERATE, answers=QuotaChange)
async def set_quota(call: CurrentCall, name: Name, body: QuotaNumbers) -> Response:
    """Set numbers of a quota. They override the declared numbers until an operator lifts them."""
    done = await call.client.quotas.set(name, **body.model_dump(), actor=call.principal.name)
    return answer(done)


@routes.post("/v1/quotas/{name}/lift", Scope.OPERATE, answers=QuotaChange)
async def lift_quota(call: CurrentCall, name: Name, body: Keyed | None = None) -> Response:
    """Remove the numbers that an operator set. The declared numbers apply again."""
    key = body.key or None if body else None
    done = await call.client.quotas.lift(
        name, key=key, reason=why_of(body), actor=call.principal.name
    )
    return answer(done)


@routes.delete("/v1/quotas/{name}", Scope.OPERATE, answers=QuotaDeleted)
async def delete_quota(call: CurrentCall, name: Name, reason: str | None = None) -> Response:
    """Delete a quota, so that it no longer limits anything."""
    is_gone = await call.client.quotas.delete(name, reason=reason, actor=call.principal.name)
    return answer({"quota": name, "outcome": "deleted" if is_gone else "unchanged"})


# Budgets


@routes.get("/v1/budgets", Scope.READ, answers=PageOf(BudgetInfo, MISSING))
async def budgets(call: CurrentCall, request: Request, name: str | None = None) -> Response:
    """List budgets, sorted by name and key."""
    found = await call.client.budgets.list(budget=name)
    return page(request, found, None, **missing_in(found))


@routes.post(
    "/v1/budgets", Scope.OPERATE, status_code=201, answers=BudgetInfo, also={200: BudgetInfo}
)
async def create_budget(call: CurrentCall, body: NewBudget) -> Response:
    """Create a budget.

    If the budget exists for this key, it stays unchanged, and the status is 200 instead of 201.
    """
    given = body.model_dump(exclude={"key"}, exclude_none=True)
    made = Budget(**given, key="key" if body.key else None)
    is_new = await call.client.budgets.create(made, key=body.key, actor=call.principal.name)
    found = await call.client.budgets.get(body.name, key=body.key)
    return answer(found, 201 if is_new else 200)


@routes.get("/v1/budgets/{name}", Scope.READ, answers=BudgetInfo)
async def budget(call: CurrentCall, name: Name, key: str = "") -> Response:
    """Show a budget: limits, usage and the next reset."""
    return answer(await call.client.budgets.get(name, key=key))


@routes.put("/v1/budgets/{name}", Scope.OPERATE, answers=BudgetInfo)
async def raise_budget(call: CurrentCall, name: Name, body: Amounts) -> Response:
    """Set hard limits of a budget."""
    await call.client.budgets.raise_limits(
        name,
        key=body.key,
        reason=body.reason,
        actor=call.principal.name,
        **_dimensions(body.amounts),
    )
    return answer(await call.client.budgets.get(name, key=body.key))


@routes.post("/v1/budgets/{name}/usage", Scope.WORK, answers=UsageAnswer)
async def report_usage(call: CurrentCall, name: Name, body: Usage) -> Response:
    """Report usage that belongs to no execution."""
    done = await call.client.budgets.report_usage_admin(
        name, key=body.key, dedup_key=body.dedup_key, **_dimensions(body.amounts)
    )
    return answer(done)


@routes.post("/v1/budgets/{name}/reset", Scope.OPERATE, answers=BudgetInfo)
async def reset_budget(call: CurrentCall, name: Name, body: Keyed | None = None) -> Response:
    """Start a new period of a budget now. Its usage is zero again."""
    key = body.key if body else ""
    await call.client.budgets.reset(name, key=key, reason=why_of(body), actor=call.principal.name)
    return answer(await call.client.budgets.get(name, key=key))


# Workers, tasks, versions


@routes.get("/v1/workers", Scope.READ, answers=PageOf(WorkerInfo))
async def workers(call: CurrentCall, request: Request, dead: bool = False) -> Response:
    """List at most 1000 live workers. If `dead` is true, list dead workers, too."""
    return page(request, await call.client.workers.list(with_dead=dead), None)


@routes.post("/v1/workers/{name}/mark-dead", Scope.OPERATE, answers=MarkedDead)
async def mark_dead(call: CurrentCall, name: Name, body: Dead | None = None) -> Response:
    """Remove a worker instance from the registry.

    If `expire_leases` is true, its leases expire now, otherwise at their usual time.
    """
    is_gone = await call.client.workers.mark_dead(
        name,
        why_of(body) or "marked over HTTP",
        expire_leases=bool(body and body.expire_leases),
        actor=call.principal.name,
    )
    return answer({"worker_instance_id": name, "outcome": "marked" if is_gone else "unchanged"})


@routes.get("/v1/tasks", Scope.READ, answers=PageOf(TaskName))
async def tasks(
    call: CurrentCall, request: Request, limit: Limit = 100, cursor: str | None = None
) -> Response:
    """List the tasks that were registered, submitted or scheduled."""
    found = await call.client.tasks.list(after=cursor, limit=limit)
    return page(request, found, found[-1].task if len(found) == limit else None)


@routes.get("/v1/tasks/{name}", Scope.READ, answers=TaskInfo)
async def task(call: CurrentCall, name: Name) -> Response:
    """Show a task with the JSON Schemas of its arguments and its result."""
    return answer(await call.client.tasks.describe(name))


@routes.get("/v1/versions", Scope.READ, answers=PageOf(VersionInfo))
async def versions(call: CurrentCall, request: Request, task: str | None = None) -> Response:
    """List code versions, each with the number of its executions in flight."""
    return page(request, await call.client.workers.versions(task), None)


# Keys and namespaces: for administrators


@routes.get("/v1/keys", Scope.ADMIN, answers=PageOf(HmacKey))
async def keys(call: CurrentCall, request: Request) -> Response:
    """List the keys that sign waitpoint tokens, without their secrets."""
    return page(request, await call.client.signals.keys(), None)


@routes.post("/v1/keys/rotate", Scope.ADMIN, answers=Rotation)
async def rotate_key(call: CurrentCall, body: Rotate) -> Response:
    """Make a key, and sign new waitpoint tokens with it. The database makes the secret."""
    grace = duration(body.grace, "grace")
    assert grace is not None
    return answer(await call.client.signals.rotate_key(body.name, grace=grace))


@routes.get("/v1/capabilities", Scope.READ, answers=Capabilities)
async def capabilities(call: CurrentCall) -> Response:
    """Return the caller's scopes and namespace, and the operations that this server has."""
    principal = call.principal
    operations = sorted(
        {(route.access.scope, route.name) for route in call.backend.routes if route.access.scope}
    )
    allowed: dict[str, Any] = {}
    for scope, name in operations:
        allowed.setdefault(str(scope), []).append(name)
    return answer(
        {
            "name": principal.name,
            "namespace": principal.namespace,
            "scopes": sorted(principal.scopes),
            "operations": allowed,
        }
    )


# These names cannot be dimensions, because they are other arguments of the methods that take
# dimensions by name.
_NO_DIMENSIONS = ("self", "key", "reason", "actor", "budget", "dedup_key")


def _dimensions(amounts: dict[str, int | str]) -> dict[str, Any]:
    for name in amounts:
        if not name.isidentifier() or name in _NO_DIMENSIONS:
            raise InvalidInput(field=f"amounts.{name[:40]}", problem="is not a dimension")
    return dict(amounts)
