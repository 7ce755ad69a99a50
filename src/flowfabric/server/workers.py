"""Workers in any language: register, claim, keep a lease, record steps, wait, complete or fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, TypedDict
from uuid import UUID

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import Claimed, Failure
from flowfabric.core.ids import ExecutionId
from flowfabric.core.json_schema import find_flaw
from flowfabric.core.signal import Wait
from flowfabric.core.states import FailureClass, StreamMode
from flowfabric.core.step import Step
from flowfabric.core.stream import Chunk, FrameEncoding, OutgoingFrame
from flowfabric.core.task import TaskDeclaration
from flowfabric.core.token import Scope
from flowfabric.server.answers import Verbatim, answer, stored_json
from flowfabric.server.leases import claim_id_of, sign, verify
from flowfabric.server.problems import Problem, ProblemFacts, facts_of
from flowfabric.server.routing import LARGE, Call, CurrentCall, Routes, check_still_allowed
from flowfabric.server.submissions import Body, Duration, duration

routes = Routes("workers")
LONGEST_WAIT = 30.0
# How many times a claim waits while another claim of the same tasks runs. After that, both run at
# the same time. Python workers use the same number.
GIVES_WAY = 6

Names = Annotated[list[str], Field(max_length=256)]


class NewTask(Body):
    """A task that a worker runs, with the JSON Schemas of its arguments and its result."""

    name: str
    arguments: dict[str, Any] | None = Field(
        default=None, description="The JSON Schema of the arguments."
    )
    result: dict[str, Any] | None = Field(
        default=None, description="The JSON Schema of the result."
    )


class Register(Body):
    """A worker process to register: its names, its tasks, and what else it offers."""

    worker_id: str = Field(description="The name of the worker's pool.")
    worker_instance_id: str = Field(description="A unique name of the process.")
    tasks: list[NewTask] = Field(min_length=1, max_length=256)
    lanes: Names | None = None
    capabilities: Names = Field(default_factory=list)
    alive_for: Duration = "60s"


class Heartbeat(Body):
    """The heartbeat of a worker process."""

    worker_instance_id: str


class Claim(Body):
    """A claim of a worker process: what it can run, and how many executions it takes."""

    worker_id: str
    worker_instance_id: str
    tasks: Names = Field(min_length=1)
    lanes: Names | None = None
    capabilities: Names = Field(default_factory=list)
    limit: int = Field(default=1, ge=1, le=100)
    lease_seconds: float = Field(default=30, ge=1, le=86_400)
    wait_seconds: float = Field(default=0, ge=0, le=LONGEST_WAIT)
    claim_id: UUID | None = Field(
        default=None, description="Repeat a lost call with the same id to get the same leases."
    )


class Fenced(Body):
    """The lease that the caller has, as the claim returned it."""

    lease: str = Field(max_length=400)


class Renew(Body):
    """Leases to renew."""

    leases: list[str] = Field(min_length=1, max_length=1000)
    lease_seconds: float = Field(default=30, ge=1, le=86_400)


class Complete(Fenced):
    """The result of an execution."""

    result: Any = None


class Fail(Fenced):
    """Why an attempt failed."""

    reason: str = Field(min_length=1)
    kind: Literal["transient", "permanent"] = "transient"
    category: str | None = None
    detail: str | None = Field(default=None, description="Details, such as a stack trace.")
    retry_after: Duration | None = None


class Delay(Fenced):
    """How long an execution waits before its attempt continues."""

    delay: Duration


class Progress(Fenced):
    """The progress of an execution."""

    percent: int | None = Field(default=None, ge=0, le=100)
    message: str | None = None


class NewStep(Fenced):
    """A step to record. A recorded step of the same name and occurrence is not replaced."""

    name: str
    position: int = Field(
        ge=0, description="0 for the first step of the execution, then 1, 2 and so on."
    )
    occurrence: int = Field(default=0, ge=0)
    value: Any = None


class NewWait(Fenced):
    """A wait for a signal."""

    name: str = Field(description="The name of the signal.")
    position: int = Field(ge=0)
    occurrence: int = Field(default=0, ge=0)
    timeout: Duration | None = None


class NewFrame(Body):
    """One item of the stream of an execution: a text, or any JSON value."""

    data: Any
    kind: str = Field(default="data", description="What the frame is. Readers can filter by it.")
    correlation_id: str | None = None


class Frames(Fenced):
    """Frames to append. Their numbers start at 0 in each lease. A frame whose number is already
    stored is skipped.
    """

    first_no: int = Field(ge=0, description="The number of the first frame.")
    frames: list[NewFrame] = Field(min_length=1, max_length=1000)
    mode: Literal["durable", "summary", "best_effort"] = "durable"
    position: int = Field(
        default=0, ge=0, description="How many steps were recorded before these frames."
    )
    base: int = Field(
        default=0, ge=0, description="How many steps were recorded when the handler started."
    )
    ttl: Duration | None = Field(
        default=None, description="For best_effort: how long a frame is kept."
    )


class Registered(TypedDict):
    """Whether the worker is new (`registered`) or was registered before (`refreshed`)."""

    outcome: str


class Asking(TypedDict):
    """What the server asks of a worker: to register again, to drain, both or neither."""

    register: bool
    drain: bool


class Lease(TypedDict):
    """A leased execution. `lease` is the credential for all calls about the execution."""

    id: ExecutionId
    task: str
    lane: str
    attempt: int
    lease_expires_at: datetime
    attempt_deadline_at: datetime | None
    deadline_at: datetime | None
    payload_encoding: str | None
    trace_context: str | None
    arguments: Verbatim | None
    lease: str


class Leased(TypedDict):
    """The executions that a claim has leased."""

    items: list[Lease]


class LostLease(TypedDict):
    """A lease that is over, and why."""

    lease: str
    problem: ProblemFacts


class Renewed(TypedDict):
    """The leases that were not renewed. Try again to renew the leases in `busy`."""

    lost: list[LostLease]
    busy: list[str]


class Settled(TypedDict):
    """An execution, and what the worker has done with it."""

    id: ExecutionId
    outcome: Literal["completed", "delayed", "released", "reported"]


class Failed(TypedDict):
    """Whether the execution will run again, and when."""

    id: ExecutionId
    will_retry: bool
    retry_at: datetime | None


class Recorded(TypedDict):
    """The recorded value of a step, and the attempt that recorded it."""

    name: str
    attempt: int
    value: Verbatim | None


class Appended(TypedDict):
    """The number of the next frame."""

    id: ExecutionId
    next_no: int


class Waited(TypedDict):
    """The state of a wait, and the value of its signal."""

    outcome: Literal["taken", "ready", "timed_out", "open", "suspended"]
    value: Verbatim | None


@routes.post("/v1/workers/register", Scope.WORK, answers=Registered)
async def register(call: CurrentCall, body: Register) -> Response:
    """Register a worker process and its tasks.

    If the answer to a heartbeat has `register: true`, the worker process must register again.
    """
    _check_schemas(body.tasks)
    tasks = [
        TaskDeclaration(task=t.name, arguments=t.arguments, result=t.result) for t in body.tasks
    ]
    await call.client.tasks.register(call.principal.namespace, [0], tasks)
    alive = duration(body.alive_for, "alive_for") or timedelta(seconds=60)
    word = await call.client.workers.register(
        worker_id=body.worker_id,
        worker_instance_id=body.worker_instance_id,
        lanes=body.lanes,
        tasks=[one.name for one in body.tasks],
        capabilities=body.capabilities,
        liveness_ttl=alive,
    )
    return answer({"outcome": word})


@routes.post("/v1/workers/heartbeat", Scope.WORK, answers=Asking)
async def heartbeat(call: CurrentCall, body: Heartbeat) -> Response:
    """Say that a worker process is alive.

    In the answer, `register` tells the process whether it must register again. `drain` tells it
    whether it must claim nothing more, finish its executions and end.
    """
    asked = await call.client.workers.heartbeat([body.worker_instance_id])
    return answer({"register": bool(asked.register), "drain": bool(asked.drain)})


@routes.post("/v1/workers/claim", Scope.WORK, answers=Leased)
async def claim(call: CurrentCall, request: Request, body: Claim) -> Response:
    """Lease at most `limit` executions. If there are none, wait up to `wait_seconds` for some."""
    key = await call.backend.lease_key()
    asked: dict[str, Any] = {
        **body.model_dump(include={"worker_id", "worker_instance_id", "tasks", "lanes"}),
        "capabilities": body.capabilities,
        "limit": body.limit,
        "lease_ttl": timedelta(seconds=body.lease_seconds),
        "claim_id": _claim_id(key, call, body.claim_id or request.headers.get("idempotency-key")),
        "gives_way": GIVES_WAY,
    }
    claimed = await call.client.executions.claim(**asked)
    if not claimed and body.wait_seconds:
        with call.polling():
            asked["max_wait"] = timedelta(seconds=body.wait_seconds)
            claimed = await _while_connected(request, call, call.client.executions.claim(**asked))
    return answer({"items": [_claim_answer(key, call, one) for one in claimed]})


@routes.post("/v1/leases/renew", Scope.WORK, answers=Renewed, refuses=(404,))
async def renew(call: CurrentCall, body: Renew) -> Response:
    """Renew leases. If the answer says that a lease is lost, the worker must stop the handler."""
    claimed = await _read_leases(call, body.leases)
    lost, busy = await call.client.leases.renew(claimed, timedelta(seconds=body.lease_seconds))
    names = dict(zip(claimed, body.leases, strict=True))
    return answer(
        {
            "lost": [{"lease": names[one], "problem": facts_of(e)} for one, e in lost.items()],
            "busy": [names[one] for one in busy],
        }
    )


@routes.post("/v1/leases/complete", Scope.WORK, limit=LARGE, answers=Settled, refuses=(404,))
async def complete(call: CurrentCall, body: Complete) -> Response:
    """End an execution with its result. A repeat gets the same answer."""
    claimed = await _read_lease(call, body.lease)
    await call.client.executions.complete(claimed, json.dumps(body.result).encode())
    return answer({"id": claimed.id, "outcome": "completed"})


@routes.post("/v1/leases/fail", Scope.WORK, answers=Failed, refuses=(404,))
async def fail(call: CurrentCall, body: Fail) -> Response:
    """End an attempt as failed. The policy decides whether the execution runs again."""
    failure = Failure(
        FailureClass(body.kind),
        body.reason,
        category=body.category,
        detail=None if body.detail is None else body.detail.encode(),
        retry_delay=duration(body.retry_after, "retry_after"),
    )
    claimed = await _read_lease(call, body.lease)
    done = await call.client.executions.fail(claimed, failure)
    return answer({"id": claimed.id, "will_retry": done.will_retry, "retry_at": done.delayed_until})


@routes.post("/v1/leases/delay", Scope.WORK, answers=Settled, refuses=(404,))
async def delay(call: CurrentCall, body: Delay) -> Response:
    """Give an execution back. Its attempt continues after a delay."""
    claimed = await _read_lease(call, body.lease)
    await call.client.executions.delay(claimed, delay=duration(body.delay, "delay"))
    return answer({"id": claimed.id, "outcome": "delayed"})


@routes.post("/v1/leases/release", Scope.WORK, answers=Settled, refuses=(404,))
async def release(call: CurrentCall, body: Fenced) -> Response:
    """Give an unfinished execution back, so that another worker can take it now."""
    claimed = await _read_lease(call, body.lease)
    for error in (await call.client.leases.release([claimed])).values():
        raise error
    return answer({"id": claimed.id, "outcome": "released"})


@routes.post("/v1/leases/progress", Scope.WORK, answers=Settled, refuses=(404,))
async def progress(call: CurrentCall, body: Progress) -> Response:
    """Report the progress of an execution, for people to read."""
    claimed = await _read_lease(call, body.lease)
    await call.client.executions.report_progress(claimed, body.percent, body.message)
    return answer({"id": claimed.id, "outcome": "reported"})


@routes.post("/v1/leases/steps", Scope.WORK, limit=LARGE, answers=Recorded, refuses=(404,))
async def record_step(call: CurrentCall, body: NewStep) -> Response:
    """Record a step and return its value.

    If the step was recorded before, return the earlier value.
    """
    step = Step(
        name=body.name,
        occurrence=body.occurrence,
        position=body.position,
        value=json.dumps(body.value).encode(),
        encoding="json",
    )
    done = await call.client.steps.record(await _read_lease(call, body.lease), step)
    return answer({"name": done.name, "attempt": done.attempt, "value": stored_json(done.value)})


@routes.post("/v1/leases/frames", Scope.WORK, limit=LARGE, answers=Appended, refuses=(404,))
async def append_frames(call: CurrentCall, body: Frames) -> Response:
    """Append frames to the stream of a leased execution."""
    claimed = await _read_lease(call, body.lease)
    frames = [_frame(body, one) for one in body.frames]
    await call.client.streams.append(claimed, Chunk(frames, body.first_no), base=body.base)
    return answer({"id": claimed.id, "next_no": body.first_no + len(frames)})


@routes.post("/v1/leases/wait", Scope.WORK, answers=Waited, refuses=(404,))
async def wait(call: CurrentCall, body: NewWait) -> Response:
    """Take a signal, or give the execution back until the signal comes.

    If the outcome is `taken` or `timed_out`, the handler continues. If the outcome is `suspended`,
    the lease is over. When the wait is over, the execution is claimed again, and its handler asks
    again.
    """
    claimed = await _read_lease(call, body.lease)
    found = await call.client.signals.ask(claimed, _wait(body))
    if found.word == "open":
        if await call.client.signals.suspend(claimed, waits=[(body.name, body.occurrence)]):
            return answer({"outcome": "suspended"})
        found = await call.client.signals.ask(claimed, _wait(body))
    return answer({"outcome": found.word, "value": stored_json(found.value)})


def _wait(body: NewWait) -> Wait:
    return Wait(
        name=body.name,
        occurrence=body.occurrence,
        position=body.position,
        is_sequential=True,
        condition={"signal": body.name},
        timeout=duration(body.timeout, "timeout"),
        take=True,
    )


def _check_schemas(tasks: Sequence[NewTask]) -> None:
    for n, task in enumerate(tasks):
        for field, schema in (("arguments", task.arguments), ("result", task.result)):
            if schema is not None and (flaw := find_flaw(schema)) is not None:
                problem = f"is not a valid JSON Schema: {flaw[:200]}"
                raise InvalidInput(field=f"tasks.{n}.{field}", problem=problem)


async def _while_connected(
    request: Request, call: Call, claim: Coroutine[Any, Any, list[Claimed]]
) -> list[Claimed]:
    """Run a claim that waits for work, and cancel it if the worker disconnects.

    If the worker has disconnected, or its token was revoked, release the executions that the claim
    has already leased.
    """
    claiming, disconnecting = asyncio.create_task(claim), asyncio.create_task(gone(request))
    try:
        await asyncio.wait({claiming, disconnecting}, return_when=asyncio.FIRST_COMPLETED)
        if disconnecting.done():
            claiming.cancel()
            await asyncio.wait([claiming])
            raise Problem(400, "disconnected", "The client went away.")
        claimed = await claiming
        await check_still_allowed(request)
        return claimed
    except Problem:
        if not claiming.cancelled() and claiming.exception() is None and claiming.result():
            await call.client.leases.release(claiming.result())
        raise
    finally:
        for task in (claiming, disconnecting):
            task.cancel()


async def gone(request: Request) -> None:
    """Wait until the client of a request has gone away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _frame(body: Frames, one: NewFrame) -> OutgoingFrame:
    is_text = isinstance(one.data, str)
    return OutgoingFrame(
        one.data.encode(errors="replace") if is_text else json.dumps(one.data).encode(),
        FrameEncoding.TEXT if is_text else FrameEncoding.JSON,
        one.kind,
        StreamMode(body.mode),
        body.position,
        one.correlation_id,
        duration(body.ttl, "ttl"),
    )


async def _read_lease(call: Call, lease: str) -> Claimed:
    return verify(await call.backend.lease_key(), call.principal, lease)


async def _read_leases(call: Call, leases: Sequence[str]) -> list[Claimed]:
    key = await call.backend.lease_key()
    return [verify(key, call.principal, lease) for lease in dict.fromkeys(leases)]


def _claim_id(key: bytes, call: Call, given: UUID | str | None) -> UUID | None:
    try:
        return None if given is None else claim_id_of(key, call.principal, UUID(str(given)))
    except ValueError as error:
        raise InvalidInput(
            field="claim_id", problem="the header Idempotency-Key of a claim must be a UUID"
        ) from error


def _claim_answer(key: bytes, call: Call, claimed: Claimed) -> Lease:
    return {
        "id": claimed.id,
        "task": claimed.task,
        "lane": claimed.lane,
        "attempt": claimed.attempt,
        "lease_expires_at": claimed.lease_expires_at,
        "attempt_deadline_at": claimed.attempt_deadline_at,
        "deadline_at": claimed.deadline_at,
        "payload_encoding": claimed.payload_encoding,
        "trace_context": claimed.trace_context,
        "arguments": stored_json(claimed.payload),
        "lease": sign(key, call.principal, claimed),
    }
