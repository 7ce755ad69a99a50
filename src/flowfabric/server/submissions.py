"""Turn a JSON object into a submission.

If the app of the server has the task, the submission gets the options of that task. Otherwise the
submission is made from what another app, or a worker over HTTP, has registered about the task.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from flowfabric.app.task import Task
from flowfabric.core.errors import ExecutionNotFound, InvalidInput, TaskNotFound
from flowfabric.core.execution import (
    DEFAULT_KEY_WINDOW,
    DEFAULT_LANE,
    MAX_KEY_BYTES,
    OnConflict,
    Route,
    Submission,
    check_text,
)
from flowfabric.core.ids import ExecutionId, mint
from flowfabric.core.json_text import read_json
from flowfabric.core.limit import Budget, Gate, Limit, key_text
from flowfabric.core.states import KeyScope
from flowfabric.core.task import TaskInfo
from flowfabric.core.times import When, span, when
from flowfabric.server.routing import Call
from flowfabric.tasks import INPUTS_ENCODING


class Body(BaseModel):
    """The body of a request: a JSON object. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=False)


Duration = Annotated[
    str | float,
    Field(description="Seconds, or text such as 30s, 10m, 2h, 7d.", examples=["10m"]),
]


class Submit(Body):
    """One execution to submit."""

    task: str = Field(description="The name of the task.", examples=["shop.send_mail"])
    arguments: dict[str, Any] | list[Any] = Field(
        default_factory=dict,
        description="The arguments: an object (by name), or an array (by position).",
    )
    key: str | None = Field(default=None, description="Submit at most once under this key.")
    unique: Literal["window", "unfinished"] | None = None
    window: Duration | None = None
    on_conflict: Literal["raise", "existing"] | None = None
    priority: int | None = Field(default=None, ge=0, le=9000)
    delay: Annotated[str | float, Field(description="A duration, or an RFC 3339 time.")] | None = (
        None
    )
    deadline: Duration | None = None
    lane: str | None = None
    tags: dict[str, str] | None = None


async def submission(call: Call, body: Submit) -> Submission:
    """Return the submission that `body` describes, in the namespace of the caller."""
    task = call.backend.task(body.task, call.principal.namespace)
    if task is not None:
        return replace(_by_task(task, body), creator=call.principal.name[:256])
    known = await call.backend.registered_task(call.client, body.task)
    return replace(_by_registry(known, body), creator=call.principal.name[:256])


async def edited_payload(call: Call, id: ExecutionId, text: str) -> bytes:
    """Turn edited arguments from JSON text into a payload. Check them as a submit does."""
    try:
        arguments = read_json(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(field="input", problem=f"is not JSON: {error}") from error
    if not isinstance(arguments, dict | list):
        raise InvalidInput(field="input", problem="must be an object or a list of arguments")
    context = await call.client.executions.context(id)
    if context is None:
        raise ExecutionNotFound(id=str(id))
    made = await submission(call, Submit(task=context.task, arguments=arguments))
    return made.payload or b"null"


async def submission_with_inputs(call: Call, body: Submit, payload: bytes) -> Submission:
    """Return the submission of a node that gets results of other nodes as arguments."""
    bare = body.model_copy(update={"arguments": {}})
    task = call.backend.task(body.task, call.principal.namespace)
    if task is not None:
        configured = task.using(**given) if (given := _options(body)) else task
        arguments = body.arguments if isinstance(body.arguments, dict) else {}
        limits = configured.limit_facts((), arguments) if task.spec.limits.all else {}
        made = configured.node_submission(mint(), payload, INPUTS_ENCODING, limits)
    else:
        known = await call.backend.registered_task(call.client, body.task)
        made = _by_registry(replace(known, arguments=None), bare)
        made = replace(made, payload=payload, payload_encoding=INPUTS_ENCODING)
    return replace(made, creator=call.principal.name[:256])


async def submissions(call: Call, bodies: Sequence[Submit]) -> list[Submission | Exception]:
    """Return a submission or an error for each of `bodies`."""
    found: list[Submission | Exception] = []
    for body in bodies:
        try:
            one = await submission(call, body)
            one.check()
            found.append(one)
        except (InvalidInput, TaskNotFound) as error:
            found.append(error)
    return found


def _options(body: Submit) -> dict[str, Any]:
    options: dict[str, Any] = {
        "key": body.key,
        "unique": body.unique,
        "window": duration(body.window, "window"),
        "on_conflict": body.on_conflict,
        "priority": body.priority,
        "lane": body.lane,
        "tags": body.tags,
        "deadline": duration(body.deadline, "deadline"),
        **_delay(body),
    }
    return {name: value for name, value in options.items() if value is not None}


def _by_task(task: Task[..., Any, Any], body: Submit) -> Submission:
    given = _options(body)
    if isinstance(body.arguments, dict):
        _check_names(task, body.arguments)
        args, kwargs = (), body.arguments
    else:
        args, kwargs = tuple(body.arguments), {}
    try:
        return (task.using(**given) if given else task).submission(args, kwargs)
    except InvalidInput as error:
        if not error.field.startswith("arguments"):
            raise
        raise InvalidInput(field="arguments", problem=error.problem) from error


def _check_names(task: Task[..., Any, Any], arguments: dict[str, Any]) -> None:
    if task.spec.takes_any_keyword:
        return
    for name in arguments:
        if name not in task.spec.signature.parameters:
            takes = ", ".join(task.spec.signature.parameters) or "no arguments"
            raise InvalidInput(
                field=f"arguments.{name}", problem=f"is unknown; {task.name} takes {takes}"
            )


def _by_registry(known: TaskInfo, body: Submit) -> Submission:
    """Build the submission of a task that another app, or a worker over HTTP, has registered."""
    arguments = body.arguments
    if not isinstance(arguments, dict):
        raise InvalidInput(field="arguments", problem="must be an object, with names")
    _check_schema(known, arguments)
    if body.key is None and (body.unique or body.window or body.on_conflict):
        raise InvalidInput(field="key", problem="is needed for unique, window and on_conflict")
    lane = body.lane or (known.lanes[0] if len(known.lanes) == 1 else DEFAULT_LANE)
    route = Route(known.namespace, lane, known.task)
    route.check()
    quotas, budgets = _gates(known, arguments)
    return Submission(
        id=mint(),
        route=route,
        payload=json.dumps(arguments, separators=(",", ":")).encode(),
        priority=body.priority or 0,
        deadline=duration(body.deadline, "deadline"),
        tags=body.tags or {},
        quotas=quotas,
        budgets=budgets,
        **_delay(body),
        **_keyed(known.task, body, arguments),
    )


def _check_schema(known: TaskInfo, arguments: dict[str, Any]) -> None:
    """Raise InvalidInput if an argument is unknown, or if a required argument is missing.

    The values of the arguments are not checked here: the worker checks them.
    """
    schema = known.arguments or {}
    properties = schema.get("properties") or {}
    if schema.get("additionalProperties", True) is False:
        for name in arguments:
            if name not in properties:
                raise InvalidInput(
                    field=f"arguments.{name}",
                    problem=f"is unknown; {known.task} takes {', '.join(properties) or 'none'}",
                )
    for name in schema.get("required") or ():
        if name not in arguments:
            raise InvalidInput(field=f"arguments.{name}", problem="is missing")


def _gates(known: TaskInfo, arguments: dict[str, Any]) -> tuple[tuple[Gate, ...], tuple[Gate, ...]]:
    quotas, budgets = [], []
    for limit in known.limits:
        key = ""
        if limit.get("is_keyed"):
            argument = limit.get("argument")
            if argument is None or argument not in arguments:
                raise InvalidInput(
                    field="task",
                    problem=f"the limit {limit['name']} has a key that only the app can compute; "
                    "start the server with the app: flowfabric serve module:app",
                )
            key = key_text(f"arguments.{argument}", arguments[argument])
        if limit["kind"] == "quota":
            quotas.append(Gate(known.namespace, Limit(limit["name"]), key))
        else:
            budgets.append(Gate(known.namespace, Budget(limit["name"]), key))
    return tuple(quotas), tuple(budgets)


def _keyed(task: str, body: Submit, arguments: dict[str, Any]) -> dict[str, Any]:
    if body.key is None:
        return {}
    check_text("key", body.key, MAX_KEY_BYTES)
    comparable = json.dumps(arguments, sort_keys=True).encode()
    return {
        "key": body.key,
        "key_fingerprint": hashlib.sha256(task.encode() + b"\0" + comparable).digest(),
        "key_scope": KeyScope(body.unique or "window"),
        "key_window": duration(body.window, "window") or DEFAULT_KEY_WINDOW,
        "on_conflict": OnConflict(body.on_conflict or "raise"),
    }


def _delay(body: Submit) -> dict[str, Any]:
    moment = moment_of(body.delay, "delay")
    if moment is None:
        return {}
    return {"delayed_until" if isinstance(moment, datetime) else "delay": moment}


def duration(given: str | float | None, field: str) -> timedelta | None:
    """Turn a number of seconds, or a text such as 10m, into a duration."""
    if given is None:
        return None
    if isinstance(given, str):
        return span(given, field)
    if not 0 <= given <= 4e9:
        raise InvalidInput(field=field, problem="must be seconds, 0 or more")
    return timedelta(seconds=given)


def moment_of(given: str | float | None, field: str) -> When | None:
    """Return the duration or the time that a field of a request gives.

    A number of seconds, or a text such as 10m, is a duration. An RFC 3339 text is a time.
    """
    if isinstance(given, str):
        return when(given, field)
    return duration(given, field)
