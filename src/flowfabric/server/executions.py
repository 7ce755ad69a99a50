"""Executions: submit, find, read, operate, signal."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any, NotRequired, TypedDict

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from flowfabric.client.detail_reads import located, read_details
from flowfabric.client.filters import Where, from_flags
from flowfabric.core.errors import ExecutionNotFound, InvalidInput
from flowfabric.core.execution import (
    AttemptInfo,
    Ending,
    Event,
    ExecutionFilter,
    ExecutionInfo,
    ExecutionSummary,
    OperationAnswer,
)
from flowfabric.core.ids import ExecutionId
from flowfabric.core.signal import Delivered, Signal
from flowfabric.core.states import FailureClass, PublicState
from flowfabric.core.step import StepRecord
from flowfabric.core.token import Scope
from flowfabric.drawing.executions import attempt_facts, step_facts, why_facts
from flowfabric.server.answers import (
    Verbatim,
    answer,
    etag,
    missing_in,
    operation_answer,
    page,
    stored_json,
    wait_seconds,
    wanted_version,
)
from flowfabric.server.paths import Id, Limit, Reason, Words, existing, find, why_of
from flowfabric.server.problems import Problem, ProblemFacts, facts_of
from flowfabric.server.routing import (
    BATCH,
    LARGE,
    MEDIUM,
    Call,
    CurrentCall,
    Routes,
    check_still_allowed,
)
from flowfabric.server.shapes import MISSING, Like, ListOf, PageOf
from flowfabric.server.submissions import Body, Submit, submission, submissions

routes = Routes("executions")
MAX_ITEMS = 1000

_FROM = "/v1/executions/{id}"


class Items(Body):
    """The executions to submit in one batch."""

    items: list[Submit] = Field(min_length=1, max_length=MAX_ITEMS)


class Replay(Reason):
    """Request body of a replay: which recorded steps to forget (default: none)."""

    from_step: str | None = Field(
        default=None, description="Forget this step and all steps that started after it."
    )
    from_occurrence: int = Field(default=0, ge=0)
    fresh: bool = Field(default=False, description="Forget all steps.")


class Priority(Reason):
    """The new priority of an execution."""

    priority: int = Field(ge=0, le=9000)


class Revoke(Reason):
    """Request body to revoke a lease.

    If `worker_instance_id` is given, the lease is revoked only if that worker instance has it.
    """

    worker_instance_id: str | None = None


class NewSignal(Body):
    """A signal to send to an execution."""

    name: str
    value: Any = None
    key: str | None = Field(
        default=None, description="A second signal with this key and name has no effect."
    )


class Stored(TypedDict):
    """A stored execution. If `is_duplicate` is true, its key was used before."""

    id: ExecutionId
    task: str
    is_duplicate: bool


class StoredItem(TypedDict, total=False):
    """The answer to one item of a batch: an id or a problem."""

    id: ExecutionId
    is_duplicate: bool
    problem: ProblemFacts


class StoredItems(TypedDict):
    """The answers to a batch, in the order of its items."""

    items: list[StoredItem]


class Count(TypedDict):
    """A number of executions. If `is_more` is true, there are more than this number."""

    count: int
    is_more: bool
    missing_partitions: NotRequired[list[int]]


class OneState(TypedDict):
    """The state of an execution."""

    id: ExecutionId
    public_state: PublicState | None


class Reasons(TypedDict):
    """Why an execution is in its state. `others` lists further reasons."""

    dimension: str
    code: str
    sentence: str
    evidence: dict[str, Any]
    changes_at: datetime | None
    others: list[Reasons] | None


class Explained(Reasons):
    """The id of an execution, and why the execution is in its state."""

    id: ExecutionId


FailureFacts = TypedDict(
    "FailureFacts",
    {"class": FailureClass | None, "category": str | None, "reason": str | None},
)


class End(TypedDict):
    """How an execution ended: with a result, or with a failure."""

    id: ExecutionId
    public_state: PublicState
    ended_at: datetime
    result: Verbatim | None
    failure: FailureFacts | None


class Child(TypedDict):
    """A child: an execution that the handler of another execution has submitted."""

    id: ExecutionId
    task: str
    public_state: PublicState
    attempt: int
    created_at: datetime
    terminal_at: datetime | None
    failure_reason: str | None


class Tags(TypedDict):
    """All tags of an execution."""

    id: ExecutionId
    tags: dict[str, str]


_BODY = {"payload": str | None, "payload_base64": str | None, "payload_bytes": int | None}
ATTEMPT = Like(AttemptInfo, "Attempt", ("failure_detail",), {"trace": str | None})
STEP = Like(
    StepRecord,
    "RecordedStep",
    ("value",),
    {"value": str | None, "value_base64": str | None, "value_bytes": int | None},
)
DETAILS = Like(
    ExecutionInfo,
    "Execution",
    ("payload", "result"),
    {
        **_BODY,
        **{name.replace("payload", "result"): kind for name, kind in _BODY.items()},
        "why": Reasons,
        "attempts": ListOf(ATTEMPT),
        "steps": ListOf(STEP, is_optional=True),
        "children": list[Child] | None,
        "events": list[Event],
    },
)


@routes.post(
    "/v1/executions",
    Scope.SUBMIT,
    limit=LARGE,
    status_code=201,
    answers=Stored,
    also={200: Stored},
    refuses=(404,),
)
async def submit(call: CurrentCall, request: Request, body: Submit) -> Response:
    """Submit an execution.

    If the answer is an existing execution with the same key, the status is 200 instead of 201.
    """
    item = await submission(call, _with_key(request, body))
    await call.client.executions.assign_partitions([item])
    done = await call.client.executions.submit(item)
    facts: Stored = {"id": done.id, "task": body.task, "is_duplicate": done.is_duplicate}
    status = 200 if done.is_duplicate else 201
    return answer(facts, status, Location=_address(request, done.id))


@routes.post("/v1/executions/batch", Scope.SUBMIT, limit=BATCH, answers=StoredItems)
async def submit_batch(call: CurrentCall, body: Items) -> Response:
    """Submit up to 1000 executions. The answer has one item for each: an id or a problem."""
    items = await submissions(call, body.items)
    good = [item for item in items if not isinstance(item, Exception)]
    await call.client.executions.assign_partitions(good)
    stored = iter(await call.client.executions.submit_each(good))
    answers = [one if isinstance(one, Exception) else next(stored) for one in items]
    return answer({"items": list(map(_item, answers))})


@routes.get("/v1/executions", Scope.READ, answers=PageOf(ExecutionSummary, MISSING))
async def list_executions(
    call: CurrentCall,
    request: Request,
    where: Words = [],  # noqa: B006
    state: Words = [],  # noqa: B006
    lane: Words = [],  # noqa: B006
    task: Words = [],  # noqa: B006
    tag: Words = [],  # noqa: B006
    since: str | None = None,
    limit: Limit = 100,
    cursor: str | None = None,
) -> Response:
    """List the executions that match a filter, newest first.

    `where` takes the filter language of `flowfabric ls --where`.
    """
    chosen = where_of(where, states=state, lanes=lane, tasks=task, tags=tag, since=since)
    filter, partition = await filter_of(call, chosen)
    found = await call.client.executions.list(
        filter, cursor=_cursor(cursor), limit=limit, partition=partition
    )
    return page(request, found.executions, found.cursor, **missing_in(found))


@routes.get("/v1/executions/count", Scope.READ, answers=Count)
async def count_executions(
    call: CurrentCall,
    where: Words = [],  # noqa: B006
) -> Response:
    """Count executions. The count is exact up to 10 000."""
    filter, partition = await filter_of(call, where_of(where))
    total = await call.client.executions.count(filter, partition=partition)
    return answer({"count": total.number, "is_more": total.is_more, **missing_in(total)})


@routes.get(_FROM, Scope.READ, answers=DETAILS)
async def show(call: CurrentCall, id: Id, payload: bool = False, trace: bool = False) -> Response:
    """Show an execution with its attempts, steps, newest children and newest events.

    `payload=true` adds the payload, the result and long values of steps.
    """
    if payload:
        call.check_sees_payloads()
    details = await read_details(
        call.client, await find(call, id), with_payload=payload, with_trace=trace
    )
    return answer(details.facts(), ETag=etag(details.info.version))


@routes.get(_FROM + "/state", Scope.READ, answers=OneState)
async def state(call: CurrentCall, id: Id) -> Response:
    """Return the state of an execution in one word."""
    info = await call.client.executions.info(await find(call, id))
    if info is None:
        raise ExecutionNotFound(id=id)
    return answer({"id": info.id, "public_state": info.public_state}, ETag=etag(info.version))


@routes.get(_FROM + "/attempts", Scope.READ, answers=PageOf(ATTEMPT))
async def attempts(call: CurrentCall, request: Request, id: Id) -> Response:
    """List the attempts of an execution, oldest first."""
    found = await call.client.executions.attempts(await existing(call, id))
    return page(request, [attempt_facts(one) for one in found], None)


@routes.get(_FROM + "/steps", Scope.READ, answers=PageOf(STEP))
async def steps(call: CurrentCall, request: Request, id: Id, payload: bool = False) -> Response:
    """List the recorded steps of an execution. Values of secret types are hidden."""
    if payload:
        call.check_sees_payloads()
    found = await call.client.steps.list(await existing(call, id))
    return page(request, [step_facts(one, is_whole=payload) for one in found], None)


@routes.get(_FROM + "/events", Scope.READ, answers=PageOf(Event))
async def events(call: CurrentCall, request: Request, id: Id) -> Response:
    """List the events of an execution, oldest first."""
    found = await call.client.executions.events(await existing(call, id))
    return page(request, found, None)


@routes.get(_FROM + "/why", Scope.READ, answers=Explained)
async def why(call: CurrentCall, id: Id) -> Response:
    """Explain why an execution is in its state, for example why it does not run."""
    found = await find(call, id)
    return answer({"id": found, **why_facts(await call.client.executions.why(found))})


@routes.get(_FROM + "/result", Scope.READ, answers=End, also={202: OneState})
async def result(call: CurrentCall, request: Request, id: Id) -> Response:
    """Return how an execution ended. If it has not ended, the status is 202.

    If the request has the header `Prefer: wait=20`, the server waits up to 20 seconds for the end.
    """
    call.check_sees_payloads()
    found = await existing(call, id)
    ending = await _ending_within(call, found, wait_seconds(request))
    await check_still_allowed(request)
    if ending is None:
        state = await call.client.executions.state(found)
        return answer({"id": found, "public_state": state}, 202, Retry_After="1")
    return answer(_ending(found, ending))


@routes.post(_FROM + "/cancel", Scope.OPERATE, answers=OperationAnswer, refuses=(412,))
async def cancel(
    call: CurrentCall, request: Request, id: Id, body: Reason | None = None
) -> Response:
    """Cancel an execution. It ends with the outcome `cancelled`."""
    done = await call.client.executions.cancel(
        await find(call, id),
        reason=why_of(body),
        actor=call.principal.name,
        if_version=wanted_version(request),
    )
    return operation_answer(request, done)


@routes.post(_FROM + "/replay", Scope.OPERATE, answers=OperationAnswer, refuses=(412,))
async def replay(
    call: CurrentCall, request: Request, id: Id, body: Replay | None = None
) -> Response:
    """Run an ended execution again, in a new attempt."""
    done = await call.client.executions.replay(
        await find(call, id),
        **(body or Replay()).model_dump(),
        actor=call.principal.name,
        if_version=wanted_version(request),
    )
    return operation_answer(request, done)


@routes.post(_FROM + "/retry", Scope.OPERATE, answers=OperationAnswer, refuses=(412,))
async def retry(
    call: CurrentCall, request: Request, id: Id, body: Reason | None = None
) -> Response:
    """Make an execution run now.

    An ended execution is replayed. A delayed execution is promoted. An execution that is held,
    paused, or blocked by a budget, a quota or a missing worker is unblocked.
    """
    done = await call.client.executions.retry(
        await find(call, id),
        reason=why_of(body),
        actor=call.principal.name,
        if_version=wanted_version(request),
    )
    return operation_answer(request, done)


@routes.put(_FROM + "/priority", Scope.OPERATE, answers=OperationAnswer, refuses=(412,))
async def priority(call: CurrentCall, request: Request, id: Id, body: Priority) -> Response:
    """Change the priority of a waiting execution."""
    done = await call.client.executions.change_priority(
        await find(call, id),
        body.priority,
        reason=body.reason,
        actor=call.principal.name,
        if_version=wanted_version(request),
    )
    return operation_answer(request, done)


@routes.post(_FROM + "/revoke-lease", Scope.OPERATE, answers=OperationAnswer, refuses=(412,))
async def revoke_lease(
    call: CurrentCall, request: Request, id: Id, body: Revoke | None = None
) -> Response:
    """Revoke the lease of a running execution. The next claim reclaims the execution."""
    done = await call.client.leases.revoke(
        await find(call, id),
        **(body or Revoke()).model_dump(),
        actor=call.principal.name,
        if_version=wanted_version(request),
    )
    return operation_answer(request, done)


@routes.put(_FROM + "/tags", Scope.SUBMIT, answers=Tags)
async def set_tags(call: CurrentCall, id: Id, body: dict[str, str]) -> Response:
    """Set tags of an execution, all or none. Its other tags stay as they are."""
    found = await existing(call, id)
    await call.client.executions.set_tags(found, body)
    return answer({"id": found, "tags": await call.client.executions.tags(found)})


@routes.post(_FROM + "/signal", Scope.SIGNAL, limit=MEDIUM, answers=Delivered)
async def signal(call: CurrentCall, request: Request, id: Id, body: NewSignal) -> Response:
    """Send a signal to an execution.

    The first wait for a signal of this name takes it, also if the wait begins after this call.
    """
    found = await find(call, id)
    task = await _task_of(call, found)
    sent = Signal(
        name=body.name,
        payload=call.backend.app.encode_signal(task, body.name, body.value),
        key=_same(body.key, request.headers.get("idempotency-key")),
        source_type="http",
        source_identity=call.principal.name[:256],
    )
    return answer(await call.client.signals.deliver(found, sent))


async def _ending_within(call: Call, id: ExecutionId, seconds: float) -> Ending | None:
    """Return the ending of an execution; None if the execution has not ended within `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            return await call.client.results.wait(id)
    except TimeoutError:
        ended = await call.client.executions.read_results(id.partition_key, [id.uuid])
        return ended[0] if ended else None


async def _task_of(call: Call, id: ExecutionId) -> str:
    info = await call.client.executions.info(id)
    if info is None:
        raise ExecutionNotFound(id=str(id))
    return info.task


async def filter_of(call: Call, where: Where) -> tuple[ExecutionFilter, int | None]:
    now = await call.client.executions.server_time()
    return await located(call.client, where.resolved(now), None)


def where_of(where: list[str], **flags: Any) -> Where:
    try:
        return from_flags(where, **flags)
    except InvalidInput as error:
        # The error names the option --where of the command line. Here it is the parameter where.
        raise InvalidInput(field=error.field.lstrip("-"), problem=error.problem) from error


def _cursor(text: str | None) -> str | None:
    if text is not None and (len(text) != 32 or set(text) - set("0123456789abcdef")):
        raise InvalidInput(field="cursor", problem="is not the next_cursor of a page")
    return text


def _with_key(request: Request, body: Submit) -> Submit:
    key = _same(body.key, request.headers.get("idempotency-key"))
    return body if key == body.key else body.model_copy(update={"key": key})


def _same(given: str | None, header: str | None) -> str | None:
    if given is not None and header is not None and given != header:
        raise InvalidInput(field="key", problem="differs from the header Idempotency-Key")
    return header if given is None else given


def _item(one: Any) -> StoredItem:
    if not isinstance(one, Exception):
        return {"id": one.id, "is_duplicate": one.is_duplicate}
    if isinstance(one, Problem):
        raise one
    return {"problem": facts_of(one)}  # type: ignore[arg-type]


def _ending(id: ExecutionId, ending: Ending) -> End:
    is_completed = ending.public_state == PublicState.COMPLETED
    failure: FailureFacts = {
        "class": ending.failure_class,
        "category": ending.failure_category,
        "reason": ending.failure_reason,
    }
    return {
        "id": id,
        "public_state": ending.public_state,
        "ended_at": ending.terminal_at,
        "result": (stored_json(ending.result) or Verbatim(None)) if is_completed else None,
        "failure": None if is_completed else failure,
    }


def _address(request: Request, id: ExecutionId) -> str:
    return f"{request.scope.get('root_path', '')}/v1/executions/{id.uuid}"
