"""Submissions on their way to the engine: how they are written down, and what is tried again.

There is one way to write a submission (`arguments`, `item`, `options`), and one plan for each kind
of call (`submit_plan`, `flow_plan`). A plan only says what to do next; `carry_out` does it on a
connection of ours, `app.via` on one of the caller's, in either world.
"""

from __future__ import annotations

import asyncio
import json
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, TypeAlias, TypedDict, TypeVar
from uuid import UUID

from flowfabric.client.batching import BUSY, MAX_BATCH, Busy, busy_pauses
from flowfabric.core.errors import FlowFabricError, InvalidInput, RetryExhausted, UnknownRoute
from flowfabric.core.execution import Route, Submission, Submitted
from flowfabric.core.flow import Edge, FlowSubmitted, Graph, Group
from flowfabric.core.ids import ExecutionId
from flowfabric.db import functions
from flowfabric.db.functions import Function

T = TypeVar("T")
Answer: TypeAlias = Submitted | Exception | Busy

# No route has a negative id: an item that lost its route is told so by the engine.
NO_ROUTE = -1


@dataclass(frozen=True, slots=True)
class Place:
    """The ids of routes in the database that submissions are meant for, and which one that is; None
    is the one we are connected to."""

    routes: Mapping[Route, int]
    database: str | None = None


# Writing


def _milliseconds(duration: timedelta) -> float:
    return duration / timedelta(milliseconds=1)


def _rfc3339(moment: datetime) -> str:
    try:
        return moment.astimezone(UTC).isoformat()
    except OverflowError:
        return moment.isoformat()  # at the very end of the calendar: the engine refuses it


# The fields that most submissions have travel by themselves; all others are options.
_OWN = ("id", "route", "payload", "payload_encoding", "priority", "delay")
_RARE = [field for field in fields(Submission) if field.name not in _OWN]
_rare_values = attrgetter(*(field.name for field in _RARE))
_DEFAULTS = tuple(
    {} if field.default is MISSING else field.default  # tags are none by default
    for field in _RARE
)
# What the engine calls a field, and how its value is written, where that is not as it is.
_NAMES = {"deadline": "deadline_ms", "key_window": "key_window_ms"}
_WRITERS: dict[str, Callable[[Any], Any]] = {
    "delayed_until": _rfc3339,
    "deadline": _milliseconds,
    "deadline_at": _rfc3339,
    "tags": dict,
    "key_fingerprint": bytes.hex,
    "key_window": _milliseconds,
    "parent_id": lambda id: str(id.uuid),
}


def _options_of(values: Sequence[Any]) -> dict[str, Any]:
    found = {}
    for field, value, default in zip(_RARE, values, _DEFAULTS, strict=True):
        if value is not None and value != default:
            write = _WRITERS.get(field.name)
            try:
                written = value if write is None else write(value)
            except (TypeError, ValueError, AttributeError) as error:
                raise InvalidInput(field=field.name, problem=f"is of no use: {error}") from error
            found[_NAMES.get(field.name, field.name)] = written
    return found


def options(submissions: Sequence[Submission]) -> list[str | None]:
    """The options of each submission as JSON; None where it has none."""
    written: list[str | None] = []
    last: Any = _DEFAULTS
    text: str | None = None
    for values in map(_rare_values, submissions):
        # Those of one task are mostly the same.
        if values != last:
            last, found = values, _options_of(values)
            text = _json(found) if found else None
        written.append(text)
    return written


class SubmitArguments(TypedDict):
    """The arguments of SUBMIT_EXECUTIONS."""

    partition_key: int
    namespace: str
    execution_ids: list[UUID]
    route_ids: list[int]
    payloads: list[bytes]
    payload_encodings: list[str | None] | None
    priorities: list[int] | None
    delays: list[timedelta | None] | None
    options: list[str | None] | None
    hint: bool


class JsonArguments(TypedDict):
    """The arguments of SUBMIT_JSON."""

    partition_key: int
    namespace: str
    items: str
    database: str | None


class FlowArguments(TypedDict):
    """The arguments of SUBMIT_FLOW."""

    partition_key: int
    namespace: str
    flow: str
    database: str | None


def arguments(place: Place, batch: Sequence[Submission]) -> SubmitArguments:
    """Write submissions of one partition and one namespace as arrays."""
    first = batch[0]
    routes = [item.route for item in batch]
    if routes.count(first.route) == len(routes):
        routes = [first.route]
    return SubmitArguments(
        partition_key=first.id.partition_key,
        namespace=first.route.namespace,
        execution_ids=[item.id.uuid for item in batch],
        route_ids=[place.routes.get(route, NO_ROUTE) for route in routes],
        payloads=[item.payload for item in batch],
        payload_encodings=_column([item.payload_encoding for item in batch]),
        priorities=_column([item.priority for item in batch], 0),
        delays=_column([item.delay for item in batch]),
        options=_column(options(batch)),
        hint=True,
    )


def json_arguments(place: Place, batch: Sequence[Submission]) -> JsonArguments:
    """Write submissions of one partition and one namespace as JSON, for any driver."""
    return JsonArguments(
        partition_key=batch[0].id.partition_key,
        namespace=batch[0].route.namespace,
        items=_json([_item(submission, place) for submission in batch]),
        database=place.database,
    )


def flow_arguments(place: Place, graph: Graph) -> FlowArguments:
    """Write a graph, which is put in order."""
    graph = graph.in_order()
    flow: dict[str, Any] = {
        "flow_id": str(graph.id.uuid),
        "flow_kind": graph.kind,
        "nodes": [{"name": node.name, **_item(node.submission, place)} for node in graph.nodes],
        "edges": [_edge(edge) for edge in graph.edges],
        "groups": [_group(group) for group in graph.groups],
    }
    if graph.tags:
        flow["tags"] = dict(graph.tags)
    if graph.creator is not None:
        flow["creator"] = graph.creator
    if graph.parent_id is not None:
        flow["parent_id"] = str(graph.parent_id.uuid)
    return FlowArguments(
        partition_key=graph.id.partition_key,
        namespace=graph.namespace,
        flow=_json(flow),
        database=place.database,
    )


def _item(submission: Submission, place: Place) -> dict[str, Any]:
    item = {
        "execution_id": str(submission.id.uuid),
        "route_id": place.routes.get(submission.route, NO_ROUTE),
        "payload_base64": b64encode(submission.payload).decode(),
        "priority": submission.priority,
    }
    if submission.payload_encoding is not None:
        item["payload_encoding"] = submission.payload_encoding
    if submission.delay is not None:
        item["delay_ms"] = _milliseconds(submission.delay)
    return item | _options_of(_rare_values(submission))


def _edge(edge: Edge) -> dict[str, Any]:
    told: dict[str, Any] = {"from": edge.upstream, "to": edge.downstream}
    if edge.group:
        told["group"] = edge.group
    if edge.ref is not None:
        told["ref"] = edge.ref
    return told


def _group(group: Group) -> dict[str, Any]:
    told = group.policy.to_json()
    return {"node": group.node, "group": group.group, "policy": told.pop("kind"), **told}


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise InvalidInput(field="item", problem=f"cannot be written as JSON: {error}") from error


def _column(values: list[T], nothing: T | None = None) -> list[T] | None:
    """The array for one argument: null when no item needs it, one value when all share it."""
    first = values[0]
    if values.count(first) < len(values):
        return values
    return None if first == nothing else [first]


# Reading


def read_rows(rows: Sequence[Any], batch: Sequence[Submission]) -> list[Answer]:
    """One answer for each submission of a call of SUBMIT_EXECUTIONS."""
    found: list[Answer] = [Submitted(item.id) for item in batch]
    for row in rows:
        index = row["item"] - 1
        found[index] = _answer(
            batch[index], row["outcome"], row["execution_id"], json.loads(row["detail"] or "{}")
        )
    return found


def read_json(text: str, batch: Sequence[Submission]) -> list[Answer]:
    """One answer for each submission of a call of SUBMIT_JSON."""
    return [
        Submitted(item.id)
        if told["outcome"] == "created"
        else _answer(
            item,
            told["outcome"],
            told["execution_id"] and UUID(told["execution_id"]),
            told["detail"] or {},
        )
        for item, told in zip(batch, json.loads(text)["items"], strict=True)
    ]


def read_flow(text: str, graph: Graph) -> FlowSubmitted | FlowFabricError:
    """What became of a whole flow: the answer, or the error to raise."""
    told = json.loads(text)
    outcome = told["outcome"]
    if outcome in ("created", "duplicate"):
        return FlowSubmitted(graph.id, is_duplicate=outcome == "duplicate")
    return _error(outcome, told["detail"] or {})


def _answer(item: Submission, outcome: str, id: UUID, detail: dict[str, Any]) -> Answer:
    if outcome == "busy":
        return BUSY
    if outcome == "duplicate":
        first = ExecutionId.of(item.id.partition_key, id)
        return Submitted(first, is_duplicate=first != item.id)
    return _error(outcome, detail)


def _error(outcome: str, detail: dict[str, Any]) -> FlowFabricError:
    if detail.get("field") == "database":
        return InvalidInput(field="via", problem=detail["problem"])
    return FlowFabricError.from_engine(outcome, detail)


# Sending. What to do next is decided here once, and done by those who know how to wait.


@dataclass(frozen=True, slots=True)
class Find:
    """Find the place again: the database was made anew under a client that remembers its routes."""

    submissions: Sequence[Submission]


@dataclass(frozen=True, slots=True)
class Ask:
    """Call the engine; the answer is what `read_…` takes."""

    function: Function
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait: another transaction holds a key or a parent."""

    seconds: float


Plan: TypeAlias = Generator[Find | Ask | Pause, Any, T]


@dataclass(frozen=True, slots=True)
class Form:
    """A function that takes submissions, with the way to write and to read them."""

    function: Function
    write: Callable[[Place, Sequence[Submission]], Mapping[str, Any]]
    read: Callable[[Any, Sequence[Submission]], list[Answer]]


ARRAYS = Form(functions.SUBMIT_EXECUTIONS, arguments, read_rows)
JSON = Form(functions.SUBMIT_JSON, json_arguments, read_json)


def submit_plan(
    form: Form, batch: Sequence[Submission], place: Place, *, waits: bool = True
) -> Plan[list[Answer]]:
    """Store submissions of one partition and one namespace; one answer for each.

    Routes that the database does not know are registered and asked for once more. With `waits` what
    is busy is asked for again until it is not; RetryExhausted is its answer after two seconds.
    """
    found: list[Answer] = [BUSY] * len(batch)
    left = list(range(len(batch)))
    pauses = busy_pauses() if waits else iter(())
    has_looked = False
    while True:
        asked = [batch[index] for index in left]
        told = yield Ask(form.function, form.write(place, asked))
        for index, answer in zip(left, form.read(told, asked), strict=True):
            found[index] = answer
        unknown = [index for index in left if isinstance(found[index], UnknownRoute)]
        if unknown and not has_looked:
            has_looked = True
            place = yield Find(batch)
            left = unknown + [index for index in left if found[index] is BUSY]
            continue
        left = [index for index in left if found[index] is BUSY]
        if not left or not waits:
            return found
        if (pause := next(pauses, None)) is None:
            for index in left:
                found[index] = _held(batch[index])
            return found
        yield Pause(pause)


def submit_all_plan(
    form: Form, submissions: Sequence[Submission], place: Place
) -> Plan[list[Submitted]]:
    """Store any submissions, 500 in a call. An error raises when the rest of its call is stored."""
    found: dict[int, Submitted] = {}
    for chunk in _chunks(submissions):
        batch = [submissions[index] for index in chunk]
        answers = yield from submit_plan(form, batch, place)
        for index, answer in zip(chunk, answers, strict=True):
            if isinstance(answer, Exception):
                raise answer
            assert isinstance(answer, Submitted)
            found[index] = answer
    return [found[index] for index in range(len(submissions))]


def flow_plan(graph: Graph, place: Place) -> Plan[FlowSubmitted]:
    """Store a whole flow, all of it or nothing."""
    has_looked = False
    while True:
        told = yield Ask(functions.SUBMIT_FLOW, flow_arguments(place, graph))
        answer = read_flow(told, graph)
        if isinstance(answer, FlowSubmitted):
            return answer
        if has_looked or not isinstance(answer, UnknownRoute):
            raise answer
        has_looked = True
        place = yield Find([node.submission for node in graph.nodes])


def group_of(submission: Submission) -> tuple[int, str, bool]:
    """What the submissions of one call have in common. Those with keys may be busy: they travel
    apart."""
    return submission.id.partition_key, submission.route.namespace, submission.key is not None


def _chunks(submissions: Sequence[Submission]) -> Iterator[list[int]]:
    groups: dict[tuple[int, str, bool], list[int]] = {}
    for index, submission in enumerate(submissions):
        groups.setdefault(group_of(submission), []).append(index)
    for group in groups.values():
        for start in range(0, len(group), MAX_BATCH):
            yield group[start : start + MAX_BATCH]


def _held(submission: Submission) -> RetryExhausted:
    if submission.with_parent and submission.key is None:
        return RetryExhausted(
            f"The parent {submission.parent_id} is held by another transaction; try again later.",
            field="parent_id",
        )
    return RetryExhausted(
        f"The key {submission.key!r} is held by another transaction; try again later.",
        field="key",
    )


async def carry_out(
    plan: Plan[T],
    ask: Callable[[Ask], Awaitable[Any]],
    find: Callable[[Sequence[Submission]], Awaitable[Place]],
) -> T:
    """Do what a plan says, on an event loop."""
    answer: Any = None
    try:
        while True:
            match plan.send(answer):
                case Ask() as one:
                    answer = await ask(one)
                case Find(submissions):
                    answer = await find(submissions)
                case Pause(seconds):
                    await asyncio.sleep(seconds)
                    answer = None
    except StopIteration as end:
        found: T = end.value
        return found


def carry_out_sync(
    plan: Plan[T], ask: Callable[[Ask], Any], find: Callable[[Sequence[Submission]], Place]
) -> T:
    """Do what a plan says, in a thread that may wait."""
    answer: Any = None
    try:
        while True:
            match plan.send(answer):
                case Ask() as one:
                    answer = ask(one)
                case Find(submissions):
                    answer = find(submissions)
                case Pause(seconds):
                    time.sleep(seconds)
                    answer = None
    except StopIteration as end:
        found: T = end.value
        return found
