"""Workers in any language: register, claim, keep a lease, record steps, wait, settle."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Sequence
from datetime import timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import Claimed, Failure
from flowfabric.core.signal import Wait
from flowfabric.core.states import FailureClass
from flowfabric.core.step import Step
from flowfabric.core.task import TaskDeclaration
from flowfabric.core.token import Scope
from flowfabric.server.answers import answer, stored_json
from flowfabric.server.leases import sign, verify
from flowfabric.server.problems import Problem, facts_of
from flowfabric.server.routing import LARGE, Call, CurrentCall, Routes
from flowfabric.server.submissions import Body, Duration, duration

routes = Routes("workers")
LONGEST_WAIT = 30.0
# Each long poll listens on a connection of its own. Above this number, claims answer at once.
LONG_POLLS = 32
_polling = asyncio.Semaphore(LONG_POLLS)

Names = Annotated[list[str], Field(max_length=256)]


class NewTask(Body):
    """A task that a worker runs."""

    name: str
    arguments: dict[str, Any] | None = Field(default=None, description="JSON Schema.")
    result: dict[str, Any] | None = Field(default=None, description="JSON Schema.")


class Register(Body):
    """A worker process."""

    worker_id: str = Field(description="Its pool.")
    worker_instance_id: str = Field(description="The process; unique.")
    tasks: list[NewTask] = Field(min_length=1, max_length=256)
    lanes: Names | None = None
    capabilities: Names = Field(default_factory=list)
    alive_for: Duration = "60s"


class Beat(Body):
    """A worker that is alive."""

    worker_instance_id: str


class Claim(Body):
    """What a worker can take."""

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


class Held(Body):
    """A lease, as the claim returned it."""

    lease: str = Field(max_length=400)


class Renew(Body):
    """Leases to renew."""

    leases: list[str] = Field(min_length=1, max_length=1000)
    lease_seconds: float = Field(default=30, ge=1, le=86_400)


class Complete(Held):
    """The result of an execution."""

    result: Any = None


class Fail(Held):
    """Why an attempt failed."""

    reason: str = Field(min_length=1)
    kind: Literal["transient", "permanent"] = "transient"
    category: str | None = None
    detail: str | None = Field(default=None, description="For example a stack trace.")
    retry_after: Duration | None = None


class Delay(Held):
    """When to run again."""

    delay: Duration


class Progress(Held):
    """How far an execution is."""

    percent: int | None = Field(default=None, ge=0, le=100)
    message: str | None = None


class NewStep(Held):
    """A step to record. The first record of a name and occurrence wins."""

    name: str
    position: int = Field(ge=0, description="0 for the first step of the execution, then 1.")
    occurrence: int = Field(default=0, ge=0)
    value: Any = None


class NewWait(Held):
    """A wait for a signal."""

    name: str = Field(description="The name of the signal.")
    position: int = Field(ge=0)
    occurrence: int = Field(default=0, ge=0)
    timeout: Duration | None = None


@routes.post("/v1/workers/register", Scope.WORK)
async def register(call: CurrentCall, body: Register) -> Response:
    """Register a worker and its tasks. Repeat it when a heartbeat says so."""
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


@routes.post("/v1/workers/heartbeat", Scope.WORK)
async def heartbeat(call: CurrentCall, body: Beat) -> Response:
    """Say that a worker is alive. `register`: it must register again. `drain`: it must stop."""
    asked = await call.client.workers.heartbeat([body.worker_instance_id])
    return answer({"register": bool(asked.register), "drain": bool(asked.drain)})


@routes.post("/v1/workers/claim", Scope.WORK)
async def claim(call: CurrentCall, request: Request, body: Claim) -> Response:
    """Lease executions, at most `limit`. `wait_seconds` waits for work if there is none."""
    given = body.claim_id or request.headers.get("idempotency-key")
    asked: dict[str, Any] = {
        **body.model_dump(include={"worker_id", "worker_instance_id", "tasks", "lanes"}),
        "capabilities": body.capabilities,
        "limit": body.limit,
        "lease_ttl": timedelta(seconds=body.lease_seconds),
        "claim_id": _claim_id(given),
    }
    held = await call.client.executions.claim(**asked)
    if not held and body.wait_seconds and not _polling.locked():
        async with _polling:
            asked |= {"claim_id": None, "max_wait": timedelta(seconds=body.wait_seconds)}
            held = await _while_connected(request, call, call.client.executions.claim(**asked))
    key = await call.backend.lease_key()
    return answer({"items": [_claimed(key, call, one) for one in held]})


@routes.post("/v1/leases/renew", Scope.WORK)
async def renew(call: CurrentCall, body: Renew) -> Response:
    """Renew leases. Stop the work of those that are lost."""
    held = await _held_all(call, body.leases)
    lost, busy = await call.client.leases.renew(held, timedelta(seconds=body.lease_seconds))
    names = dict(zip(held, body.leases, strict=True))
    return answer(
        {
            "lost": [{"lease": names[one], "problem": facts_of(e)} for one, e in lost.items()],
            "busy": [names[one] for one in busy],
        }
    )


@routes.post("/v1/leases/complete", Scope.WORK, limit=LARGE)
async def complete(call: CurrentCall, body: Complete) -> Response:
    """End an execution with its result. A repeat gets the same answer."""
    held = await _held(call, body.lease)
    await call.client.executions.complete(held, json.dumps(body.result).encode())
    return answer({"id": held.id, "outcome": "completed"})


@routes.post("/v1/leases/fail", Scope.WORK)
async def fail(call: CurrentCall, body: Fail) -> Response:
    """End an attempt as failed. The policy of the execution decides about a retry."""
    failure = Failure(
        FailureClass(body.kind),
        body.reason,
        category=body.category,
        detail=None if body.detail is None else body.detail.encode(),
        retry_delay=duration(body.retry_after, "retry_after"),
    )
    held = await _held(call, body.lease)
    done = await call.client.executions.fail(held, failure)
    return answer({"id": held.id, "will_retry": done.will_retry, "retry_at": done.delayed_until})


@routes.post("/v1/leases/delay", Scope.WORK)
async def delay(call: CurrentCall, body: Delay) -> Response:
    """Give an execution back, to run again after a time, in the same attempt."""
    held = await _held(call, body.lease)
    await call.client.executions.delay(held, delay=duration(body.delay, "delay"))
    return answer({"id": held.id, "outcome": "delayed"})


@routes.post("/v1/leases/release", Scope.WORK)
async def release(call: CurrentCall, body: Held) -> Response:
    """Give an execution back unfinished, for another worker to take now."""
    held = await _held(call, body.lease)
    for error in (await call.client.leases.release([held])).values():
        raise error
    return answer({"id": held.id, "outcome": "released"})


@routes.post("/v1/leases/progress", Scope.WORK)
async def progress(call: CurrentCall, body: Progress) -> Response:
    """Report how far an execution is, for people to read."""
    held = await _held(call, body.lease)
    await call.client.executions.report_progress(held, body.percent, body.message)
    return answer({"id": held.id, "outcome": "reported"})


@routes.post("/v1/leases/steps", Scope.WORK, limit=LARGE)
async def record_step(call: CurrentCall, body: NewStep) -> Response:
    """Record a step, and return its value: the earlier one if it was recorded before."""
    step = Step(
        name=body.name,
        occurrence=body.occurrence,
        position=body.position,
        value=json.dumps(body.value).encode(),
        encoding="json",
    )
    done = await call.client.steps.record(await _held(call, body.lease), step)
    return answer({"name": done.name, "attempt": done.attempt, "value": stored_json(done.value)})


@routes.post("/v1/leases/wait", Scope.WORK)
async def wait(call: CurrentCall, body: NewWait) -> Response:
    """Take a signal, or give the execution back until it comes.

    `taken` or `timed_out`: go on. `suspended`: the lease is over; the execution is claimed again
    when the signal is there, and its handler asks again.
    """
    held = await _held(call, body.lease)
    asked = Wait(
        name=body.name,
        occurrence=body.occurrence,
        position=body.position,
        is_sequential=True,
        condition={"signal": body.name},
        timeout=duration(body.timeout, "timeout"),
        take=True,
    )
    found = await call.client.signals.ask(held, asked)
    if found.word != "open":
        return answer({"outcome": found.word, "value": stored_json(found.value)})
    if not await call.client.signals.suspend(held, waits=[(body.name, body.occurrence)]):
        found = await call.client.signals.ask(held, asked)
        return answer({"outcome": found.word, "value": stored_json(found.value)})
    return answer({"outcome": "suspended"})


async def _while_connected(
    request: Request, call: Call, claim: Coroutine[Any, Any, list[Claimed]]
) -> list[Claimed]:
    """Claim until the worker goes away. Leases that it can no longer get are released at once."""
    claiming, leaving = asyncio.create_task(claim), asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({claiming, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not leaving.done():
            return await claiming
        claiming.cancel()
        await asyncio.wait([claiming])
        if not claiming.cancelled() and claiming.exception() is None and claiming.result():
            await call.client.leases.release(claiming.result())
        raise Problem(400, "disconnected", "The client went away.")
    finally:
        for task in (claiming, leaving):
            task.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _held(call: Call, lease: str) -> Claimed:
    return verify(await call.backend.lease_key(), call.principal, lease)


async def _held_all(call: Call, leases: Sequence[str]) -> list[Claimed]:
    key = await call.backend.lease_key()
    return [verify(key, call.principal, lease) for lease in dict.fromkeys(leases)]


def _claim_id(given: UUID | str | None) -> UUID | None:
    if given is None or isinstance(given, UUID):
        return given
    try:
        return UUID(given)
    except ValueError as error:
        raise InvalidInput(
            field="claim_id", problem="the header Idempotency-Key of a claim must be a UUID"
        ) from error


def _claimed(key: bytes, call: Call, held: Claimed) -> dict[str, Any]:
    names = (
        "id",
        "task",
        "lane",
        "attempt",
        "lease_expires_at",
        "attempt_deadline_at",
        "deadline_at",
        "payload_encoding",
        "trace_context",
    )
    facts = {name: getattr(held, name) for name in names}
    return {
        **facts,
        "arguments": stored_json(held.payload),
        "lease": sign(key, call.principal, held),
    }
