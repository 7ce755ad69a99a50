"""Submissions: encode them for the engine, decode the answers, and plan what to send again.

Each engine function has one encoder (`arguments`, `json_arguments`, `flow_arguments`), and each
kind of call has one plan (`submit_plan`, `submit_alike_plan`, `flow_plan`). A plan is a generator
that yields the next action. `carry_out` performs the actions on our connection; `via` performs them
on the caller's connection, with or without an event loop.
"""

from __future__ import annotations

import asyncio
import json
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, Generic, TypeAlias, TypedDict, TypeVar
from uuid import UUID

from flowfabric.client.batching import BUSY, MAX_BATCH, Busy, busy_pauses
from flowfabric.core.errors import (
    FlowFabricError,
    InvalidInput,
    RetryExhausted,
    Unavailable,
    UnknownGate,
    UnknownRoute,
)
from flowfabric.core.execution import Alike, OnConflict, Route, Submission, Submitted
from flowfabric.core.flow import Edge, FlowSubmitted, Graph, Group
from flowfabric.core.ids import ExecutionId, mint_many, uuid7_in
from flowfabric.db import functions
from flowfabric.db.functions import Function
from flowfabric.db.partitions import KnownPartitions

T = TypeVar("T")
Item = TypeVar("Item")
Answer: TypeAlias = Submitted | Exception | Busy

# A placeholder for an unknown route. No route has a negative id, so the engine answers
# `unknown_route`.
NO_ROUTE = -1

# Items are moved at most this many times: each move means that the number of partitions for keys
# was raised again.
_MOVES = 3


@dataclass(frozen=True, slots=True)
class Destination:
    """The database that submissions go to, and the ids of their routes in it.

    `database` is None for the database of our own connection.
    """

    routes: Mapping[Route, int]
    database: str | None = None


def spread_payloads(
    payloads: list[bytes],
    shared: Callable[[int], Submission],
    partitions: KnownPartitions,
    minted: int,
) -> list[Alike]:
    """Give each payload an id, and spread the payloads over the partitions, in batches.

    `shared` returns the submission that all payloads in a partition share. `minted` is the number
    of partitions for new ids.
    """
    if len(payloads) == 1:
        partition = partitions.choose()
        return [Alike(shared(partition), [uuid7_in(partition, minted)], payloads)]
    if minted == 1:
        return [Alike(shared(0), mint_many(len(payloads)), payloads)]
    batches = []
    for start in range(0, len(payloads), MAX_BATCH):
        part = payloads[start : start + MAX_BATCH]
        partition = partitions.choose(len(part))
        uuids = mint_many(len(part), partition, minted)
        batches.append(Alike(shared(partition), uuids, part))
    return batches


# Encode


def _milliseconds(duration: timedelta) -> float:
    return duration / timedelta(milliseconds=1)


def _rfc3339(moment: datetime) -> str:
    try:
        return moment.astimezone(UTC).isoformat()
    except OverflowError:
        return moment.isoformat()  # outside the years 1 to 9999; the engine refuses it


# Nearly every submission sets these fields, so each is a separate argument. All other fields are
# sent together, as options.
_OWN = ("id", "route", "payload", "payload_encoding", "priority", "delay")
# `on_conflict` is not sent. `_answer` applies it to the engine's answer.
_RARE = [field for field in fields(Submission) if field.name not in (*_OWN, "on_conflict")]
_rare_values = attrgetter(*(field.name for field in _RARE))
_DEFAULTS = tuple(
    {} if field.default is MISSING else field.default  # for `tags`, the default is {}
    for field in _RARE
)
# Options whose name or encoding differs from the name or encoding of their field.
_NAMES = {"deadline": "deadline_ms", "key_window": "key_window_ms"}
_WRITERS: dict[str, Callable[[Any], Any]] = {
    "delayed_until": _rfc3339,
    "deadline": _milliseconds,
    "deadline_at": _rfc3339,
    "tags": dict,
    "key_fingerprint": bytes.hex,
    "key_window": _milliseconds,
    "parent_id": lambda id: str(id.uuid),
    "quotas": lambda gates: [gate.id for gate in gates],
    "budgets": lambda gates: [gate.id for gate in gates],
}


def _options_of(values: Sequence[Any]) -> dict[str, Any]:
    found = {}
    for field, value, default in zip(_RARE, values, _DEFAULTS, strict=True):
        if value is not None and value != default:
            write = _WRITERS.get(field.name)
            try:
                written = value if write is None else write(value)
            except (TypeError, ValueError, AttributeError) as error:
                raise InvalidInput(field=field.name, problem=f"cannot be sent: {error}") from error
            found[_NAMES.get(field.name, field.name)] = written
    return found


def options(submissions: Sequence[Submission]) -> list[str | None]:
    """Encode the options of each submission as JSON; None for a submission without options."""
    written: list[str | None] = []
    last: Any = _DEFAULTS
    text: str | None = None
    for values in map(_rare_values, submissions):
        # Neighbouring submissions mostly have the same task and options. Encode equal options once.
        if values != last:
            last, found = values, _options_of(values)
            text = _json(found) if found else None
        written.append(text)
    return written


class SubmitArguments(TypedDict):
    """The arguments of ff.submit_executions."""

    partition_key: int
    namespace: str
    execution_ids: Sequence[UUID | str]
    route_ids: list[int]
    payloads: list[bytes]
    payload_encodings: list[str | None] | None
    priorities: list[int] | None
    delays: list[timedelta | None] | None
    options: list[str | None] | None
    hint: bool


class JsonArguments(TypedDict):
    """The arguments of ff.submit_json."""

    partition_key: int
    namespace: str
    items: str
    database: str | None


class FlowArguments(TypedDict):
    """The arguments of ff.submit_flow."""

    partition_key: int
    namespace: str
    flow: str
    database: str | None


def arguments(destination: Destination, batch: Sequence[Submission]) -> SubmitArguments:
    """Encode submissions of one partition and one namespace as arrays."""
    first = batch[0]
    routes = [item.route for item in batch]
    if routes.count(first.route) == len(routes):
        routes = [first.route]
    return SubmitArguments(
        partition_key=first.id.partition_key,
        namespace=first.route.namespace,
        execution_ids=[item.id.uuid for item in batch],
        route_ids=[destination.routes.get(route, NO_ROUTE) for route in routes],
        payloads=[item.payload for item in batch],
        payload_encodings=_column([item.payload_encoding for item in batch]),
        priorities=_column([item.priority for item in batch], 0),
        delays=_column([item.delay for item in batch]),
        options=_column(options(batch)),
        hint=True,
    )


def alike_arguments(destination: Destination, batch: Alike) -> SubmitArguments:
    """Encode submissions that are alike: ids and payloads as arrays, all other fields once."""
    shared = arguments(destination, [batch.shared])
    return {**shared, "execution_ids": batch.uuids, "payloads": batch.payloads}


def json_arguments(destination: Destination, batch: Sequence[Submission]) -> JsonArguments:
    """Encode submissions of one partition and one namespace as JSON, which every driver can
    send."""
    return JsonArguments(
        partition_key=batch[0].id.partition_key,
        namespace=batch[0].route.namespace,
        items=_json([_item(submission, destination) for submission in batch]),
        database=destination.database,
    )


def flow_arguments(destination: Destination, graphs: Sequence[Graph]) -> FlowArguments:
    """Encode the only graph in `graphs`, and sort its nodes: upstream before downstream."""
    (graph,) = graphs
    graph = graph.in_order()
    flow: dict[str, Any] = {
        "flow_id": str(graph.id.uuid),
        "flow_kind": graph.kind,
        "nodes": [
            {"name": node.name, **_item(node.submission, destination)} for node in graph.nodes
        ],
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
        database=destination.database,
    )


def _item(submission: Submission, destination: Destination) -> dict[str, Any]:
    item = {
        "execution_id": str(submission.id.uuid),
        "route_id": destination.routes.get(submission.route, NO_ROUTE),
        "payload_base64": b64encode(submission.payload).decode(),
        "priority": submission.priority,
    }
    if submission.payload_encoding is not None:
        item["payload_encoding"] = submission.payload_encoding
    if submission.delay is not None:
        item["delay_ms"] = _milliseconds(submission.delay)
    return item | _options_of(_rare_values(submission))


def _edge(edge: Edge) -> dict[str, Any]:
    written: dict[str, Any] = {"from": edge.upstream, "to": edge.downstream}
    if edge.group:
        written["group"] = edge.group
    if edge.ref is not None:
        written["ref"] = edge.ref
    return written


def _group(group: Group) -> dict[str, Any]:
    rules = group.group_policy.to_json()
    return {"node": group.node, "group": group.group, "policy": rules.pop("kind"), **rules}


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise InvalidInput(field="item", problem=f"cannot be written as JSON: {error}") from error


def _column(values: list[T], nothing: T | None = None) -> list[T] | None:
    """Return `values`. If all are equal, return only the first, or None if it equals `nothing`."""
    first = values[0]
    if values.count(first) < len(values):
        return values
    return None if first == nothing else [first]


# Decode


def read_rows(rows: Sequence[Any], batch: Sequence[Submission]) -> list[Answer]:
    """Decode the rows that ff.submit_executions returned, into one answer for each submission."""
    found: list[Answer] = [Submitted(item.id) for item in batch]
    for row in rows:
        index = row["item"] - 1
        found[index] = _answer(
            batch[index], row["outcome"], row["execution_id"], json.loads(row["detail"] or "{}")
        )
    return found


def read_json(text: str, batch: Sequence[Submission]) -> list[Answer]:
    """Decode the text that ff.submit_json returned, into one answer for each submission."""
    return [
        Submitted(item.id)
        if row["outcome"] == "created"
        else _answer(
            item,
            row["outcome"],
            row["execution_id"] and UUID(row["execution_id"]),
            row["detail"] or {},
        )
        for item, row in zip(batch, json.loads(text)["items"], strict=True)
    ]


def read_flow(text: str, graphs: Sequence[Graph]) -> list[FlowSubmitted | Exception | Busy]:
    """Decode the text that ff.submit_flow returned for one graph, into an answer or an error."""
    (graph,) = graphs
    row = json.loads(text)
    outcome = row["outcome"]
    if outcome in ("created", "duplicate"):
        return [FlowSubmitted(graph.id, is_duplicate=outcome == "duplicate")]
    return [_error(outcome, row["detail"] or {})]


def _answer(item: Submission, outcome: str, id: UUID, detail: dict[str, Any]) -> Answer:
    if outcome == "busy":
        return BUSY
    if outcome not in ("duplicate", "key_reused"):
        return _error(outcome, detail)
    first = ExecutionId.of(item.id.partition_key, id)
    # Return an earlier execution only if it has the same task: the result of another task would
    # have another type.
    is_same = outcome == "duplicate" or (
        item.on_conflict == OnConflict.EXISTING and detail["task"] in (item.route.task, None)
    )
    if not is_same:
        return _error(outcome, {**detail, "execution_id": first})
    return Submitted(first, is_duplicate=first != item.id)


def _error(outcome: str, detail: dict[str, Any]) -> FlowFabricError:
    if detail.get("field") == "database":
        return InvalidInput(field="via", problem=detail["problem"])
    return FlowFabricError.from_engine(outcome, detail)


# The plans. Callers on an event loop and callers in a thread use the same plans.


@dataclass(frozen=True, slots=True)
class Find:
    """An action of a plan: look up the destination of submissions again, because the client's
    cache is wrong.

    If `has_moved` is true, the keys of the submissions now belong to other partitions. Otherwise,
    the database lacks a route or a gate that the client has cached.
    """

    submissions: Sequence[Submission]
    has_moved: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """An action of a plan: call the engine.

    The plan expects the raw answer; a `read_…` function decodes it.
    """

    function: Function
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pause:
    """An action of a plan: pause, because another transaction has locked a key or a parent."""

    seconds: float


Plan: TypeAlias = Generator[Find | Ask | Pause, Any, T]


@dataclass(frozen=True, slots=True)
class Form(Generic[Item, T]):
    """An engine function that stores submissions or a flow, with its encoder and decoder."""

    function: Function
    write: Callable[[Destination, Sequence[Item]], Mapping[str, Any]]
    read: Callable[[Any, Sequence[Item]], list[T | Exception | Busy]]
    submissions: Callable[[Item], Sequence[Submission]]


Submit: TypeAlias = Form[Submission, Submitted]

ARRAYS = Form(functions.SUBMIT_EXECUTIONS, arguments, read_rows, lambda one: [one])
JSON = Form(functions.SUBMIT_JSON, json_arguments, read_json, lambda one: [one])
FLOW = Form(
    functions.SUBMIT_FLOW,
    flow_arguments,
    read_flow,
    lambda graph: [node.submission for node in graph.nodes],
)


def submit_plan(
    form: Form[Item, T], batch: Sequence[Item], destination: Destination, *, waits: bool = True
) -> Plan[list[T | Exception | Busy]]:
    """Return a plan that stores items of one partition and one namespace. The plan returns one
    answer for each item.

    If a route or a gate of an item is unknown, it is registered, and the item is sent once more. If
    `waits` is true, the plan sends busy items again for two seconds. The answer for an item that is
    still busy after this time is RetryExhausted.
    """
    found: list[T | Exception | Busy] = [BUSY] * len(batch)
    left = list(range(len(batch)))
    pauses = busy_pauses() if waits else iter(())
    has_looked = False
    while True:
        asked = [batch[index] for index in left]
        reply = yield Ask(form.function, form.write(destination, asked))
        for index, answer in zip(left, form.read(reply, asked), strict=True):
            found[index] = answer
        unknown = [index for index in left if isinstance(found[index], UnknownRoute | UnknownGate)]
        if unknown and not has_looked:
            has_looked = True
            destination = yield Find([one for item in batch for one in form.submissions(item)])
            left = unknown + [index for index in left if found[index] is BUSY]
            continue
        left = [index for index in left if found[index] is BUSY]
        if not left or not waits:
            return found
        if (pause := next(pauses, None)) is None:
            for index in left:
                found[index] = _locked_error(form.submissions(batch[index])[0])
            return found
        yield Pause(pause)


def submit_each_plan(
    form: Submit, submissions: Sequence[Submission], destination: Destination
) -> Plan[list[Submitted | Exception]]:
    """Return a plan that stores submissions of any partitions and namespaces, at most 500 per call.
    The plan returns one answer or error for each submission.

    If a partition cannot be reached, its further items are not sent and get the error of the
    failed call. If the key of an item now belongs to another partition, the item is moved there and
    sent again.
    """
    found: dict[int, Submitted | Exception] = {}
    yield from _submit_some(form, submissions, destination, range(len(submissions)), found)
    for _ in range(_MOVES):
        moved = [index for index, answer in found.items() if has_moved(answer)]
        if not moved:
            break
        destination = yield Find([submissions[index] for index in moved], has_moved=True)
        yield from _submit_some(form, submissions, destination, moved, found)
    return [found[index] for index in range(len(submissions))]


def _submit_some(
    form: Submit,
    submissions: Sequence[Submission],
    destination: Destination,
    some: Iterable[int],
    found: dict[int, Submitted | Exception],
) -> Plan[None]:
    unreached: dict[int, Unavailable] = {}
    for chunk in _chunks(submissions, some):
        batch = [submissions[index] for index in chunk]
        partition = batch[0].id.partition_key
        answers: Sequence[Answer]
        try:
            if partition in unreached:
                raise unreached[partition]
            answers = yield from submit_plan(form, batch, destination)
        except Unavailable as error:
            unreached[partition] = error
            answers = [error] * len(batch)
        for index, answer in zip(chunk, answers, strict=True):
            assert not isinstance(answer, Busy)
            found[index] = answer


def submit_all_plan(
    form: Submit, submissions: Sequence[Submission], destination: Destination
) -> Plan[list[Submitted]]:
    """Return a plan that stores submissions of any partitions and namespaces, at most 500 per call.

    If some submissions cannot be stored, the plan stores the others. Then it raises the first
    error.
    """
    answers = yield from submit_each_plan(form, submissions, destination)
    return stored(answers)


def stored(answers: Sequence[Submitted | Exception]) -> list[Submitted]:
    """Return the answers, or raise the first error among them."""
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return [answer for answer in answers if isinstance(answer, Submitted)]


def submit_alike_plan(batch: Alike, destination: Destination) -> Plan[None]:
    """Return a plan that stores submissions that are alike, at most 500 per call.

    If the engine refuses an item, the plan stores the other items of the same call. Then it raises
    the error and makes no further call.
    """
    for start in range(0, len(batch), MAX_BATCH):
        chunk = batch[start : start + MAX_BATCH]
        rows = yield Ask(functions.SUBMIT_EXECUTIONS, alike_arguments(destination, chunk))
        if rows:
            # At least one item was not created. Send all items in the general form; items that were
            # created already get the same answer again.
            yield from submit_all_plan(ARRAYS, list(chunk), destination)


def flow_plan(graph: Graph, destination: Destination) -> Plan[FlowSubmitted]:
    """Return a plan that stores a flow: all of its members, or nothing."""
    (answer,) = yield from submit_plan(FLOW, [graph], destination)
    if isinstance(answer, FlowSubmitted):
        return answer
    assert isinstance(answer, Exception)
    raise answer


def group_of(submission: Submission) -> tuple[int, str, bool]:
    """Return the group of a submission. One call sends only submissions of one group.

    A group has one partition and one namespace. Submissions with a key and submissions without one
    are in different groups, because the engine may answer `busy` for a key.
    """
    return submission.id.partition_key, submission.route.namespace, submission.key is not None


def has_moved(answer: object) -> bool:
    """Return whether an item was refused because its key belongs to another partition now."""
    return isinstance(answer, InvalidInput) and answer.field == "key_partitions"


def _chunks(submissions: Sequence[Submission], some: Iterable[int]) -> Iterator[list[int]]:
    groups: dict[tuple[int, str, bool], list[int]] = {}
    for index in some:
        groups.setdefault(group_of(submissions[index]), []).append(index)
    for group in groups.values():
        for start in range(0, len(group), MAX_BATCH):
            yield group[start : start + MAX_BATCH]


def _locked_error(submission: Submission) -> RetryExhausted:
    if submission.with_parent and submission.key is None:
        return RetryExhausted(
            f"The parent {submission.parent_id} is locked by another transaction; try again later.",
            field="parent_id",
        )
    return RetryExhausted(
        f"The key {submission.key!r} is locked by another transaction; try again later.",
        field="key",
    )


async def carry_out(
    plan: Plan[T],
    ask: Callable[[Ask], Awaitable[Any]],
    find: Callable[[Find], Awaitable[Destination]],
) -> T:
    """Perform the actions of a plan on an event loop."""
    answer: Any = None
    error: Unavailable | None = None
    try:
        while True:
            step = plan.send(answer) if error is None else plan.throw(error)
            answer = error = None
            match step:
                case Ask() as one:
                    try:
                        answer = await ask(one)
                    except Unavailable as problem:
                        error = problem
                case Find() as stale:
                    answer = await find(stale)
                case Pause(seconds):
                    await asyncio.sleep(seconds)
    except StopIteration as end:
        found: T = end.value
        return found


def carry_out_sync(
    plan: Plan[T], ask: Callable[[Ask], Any], find: Callable[[Find], Destination]
) -> T:
    """Perform the actions of a plan in the calling thread, without an event loop."""
    answer: Any = None
    error: Unavailable | None = None
    try:
        while True:
            step = plan.send(answer) if error is None else plan.throw(error)
            answer = error = None
            match step:
                case Ask() as one:
                    try:
                        answer = ask(one)
                    except Unavailable as problem:
                        error = problem
                case Find() as stale:
                    answer = find(stale)
                case Pause(seconds):
                    time.sleep(seconds)
    except StopIteration as end:
        found: T = end.value
        return found
