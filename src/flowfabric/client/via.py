"""`via=`: submit a task or a flow, or send a signal, inside the transaction of the caller's own
connection.

The execution or the signal is stored if the transaction commits, and only then. A connection
without a transaction is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from flowfabric.client.caller_connections import (
    AsyncConnection,
    Operation,
    SyncConnection,
    converting_errors,
    recognise,
)
from flowfabric.client.signals import read_json_delivery
from flowfabric.client.submissions import (
    JSON,
    Ask,
    Destination,
    Find,
    Plan,
    carry_out,
    carry_out_sync,
    flow_plan,
    submit_all_plan,
)
from flowfabric.core.errors import InvalidInput, UnknownGate, UnknownRoute
from flowfabric.core.execution import Submission, Submitted
from flowfabric.core.flow import FlowSubmitted, Graph
from flowfabric.core.ids import ExecutionId
from flowfabric.core.signal import Delivered, Signal
from flowfabric.db import functions

if TYPE_CHECKING:
    from flowfabric.client.facade import FlowFabric

T = TypeVar("T")

_OPERATIONS = {one: Operation.of(one) for one in (functions.SUBMIT_JSON, functions.SUBMIT_FLOW)}
_SIGNAL = Operation.of(functions.DELIVER_SIGNAL_JSON)


def _unknown(answer: UnknownRoute | UnknownGate) -> UnknownRoute | UnknownGate:
    what = "the route of the task" if isinstance(answer, UnknownRoute) else "a limit of the task"
    return type(answer)(
        f"This transaction does not see {what}, because it was registered after the transaction "
        "began (REPEATABLE READ or SERIALIZABLE). Roll back and try again.",
        **answer.facts,
    )


async def submit_via(
    client: FlowFabric, via: Any, submissions: Sequence[Submission], *, instead: str
) -> list[Submitted]:
    """Submit on an async connection of the caller.

    If the connection is synchronous, the error tells the caller to use the method `instead`.
    """
    connection = _async_connection(via, f"use {instead}(..., via=...)")
    destination = await client.transactional.find_destination(submissions)
    return await _carry_out(submit_all_plan(JSON, submissions, destination), connection, client)


def submit_via_sync(
    find: Callable[[Find | None], Destination],
    via: Any,
    submissions: Sequence[Submission],
    *,
    instead: str,
) -> list[Submitted]:
    """Submit on a synchronous connection of the caller, in the caller's thread.

    `find` registers the routes of the submissions on our own connection, and returns the
    destination. `find(None)` can use the client's cache. If the engine answers that the cache is
    outdated, `find` is called again, with the submissions to look up.

    If the caller's connection is async, the error tells the caller to use the method `instead`.
    """
    connection = _sync_connection(via, f"use await {instead}(..., via=...)")
    return _carry_out_sync(submit_all_plan(JSON, submissions, find(None)), connection, find)


async def submit_flow_via(client: FlowFabric, via: Any, graph: Graph) -> FlowSubmitted:
    """Store a flow on an async connection of the caller."""
    connection = _async_connection(via, "use `with app.flow(..., via=...)`, without async,")
    graph.check()
    destination = await client.transactional.find_destination(
        [node.submission for node in graph.nodes]
    )
    return await _carry_out(flow_plan(graph, destination), connection, client)


def submit_flow_via_sync(
    find: Callable[[Find | None], Destination], via: Any, graph: Graph
) -> FlowSubmitted:
    """Store a flow on a synchronous connection of the caller, in the caller's thread."""
    connection = _sync_connection(via, "use `async with app.flow(..., via=...)`")
    graph.check()
    return _carry_out_sync(flow_plan(graph, find(None)), connection, find)


async def signal_via(client: FlowFabric, via: Any, id: ExecutionId, signal: Signal) -> Delivered:
    """Send a signal on an async connection of the caller."""
    connection = _async_connection(via, "use run.signal_sync(..., via=...)")
    database = await client.transactional.identity()
    with converting_errors(_SIGNAL):
        while True:
            text = await connection.call(_SIGNAL, _bound(client, id, signal, database))
            if not _check_type(client, signal, text):
                return read_json_delivery(id, text)


def signal_via_sync(
    client: FlowFabric, via: Any, id: ExecutionId, signal: Signal, database: str
) -> Delivered:
    """Send a signal on a synchronous connection of the caller, in the caller's thread."""
    connection = _sync_connection(via, "use await run.signal(..., via=...)")
    with converting_errors(_SIGNAL):
        while True:
            text = connection.call(_SIGNAL, _bound(client, id, signal, database))
            if not _check_type(client, signal, text):
                return read_json_delivery(id, text)


def _check_type(client: FlowFabric, signal: Signal, text: str) -> bool:
    """Check the value of the signal if the engine asks for a check; return whether to send the
    signal again."""
    answer = json.loads(text)
    if answer["outcome"] != "schema_required" or signal.schema_id == answer["detail"]["schema_id"]:
        return False
    client.signals.check_type(signal, answer["detail"]["schema_id"], answer["detail"]["document"])
    return True


def _bound(client: FlowFabric, id: ExecutionId, signal: Signal, database: str) -> list[Any]:
    ask = Ask(functions.DELIVER_SIGNAL_JSON, client.signals.signal_arguments(id, signal, database))
    return ask.function.bind(ask.arguments)


def _async_connection(via: Any, instead: str) -> AsyncConnection:
    connection = recognise(via)
    if not isinstance(connection, AsyncConnection):
        raise InvalidInput(
            field="via",
            problem=f"is a synchronous connection ({_name(via)}); {instead} in the thread that "
            "owns it",
        )
    return connection


def _sync_connection(via: Any, instead: str) -> SyncConnection:
    connection = recognise(via)
    if not isinstance(connection, SyncConnection):
        raise InvalidInput(
            field="via",
            problem=f"is an asynchronous connection ({_name(via)}); {instead} on its event loop",
        )
    return connection


async def _carry_out(plan: Plan[T], connection: AsyncConnection, client: FlowFabric) -> T:
    async def call(one: Ask) -> str:
        operation = _OPERATIONS[one.function]
        with converting_errors(operation):
            return await connection.call(operation, one.function.bind(one.arguments))

    async def find(asked: Find) -> Destination:
        return await find_again(client, asked)

    try:
        return await carry_out(plan, call, find)
    except (UnknownRoute, UnknownGate) as error:
        raise _unknown(error) from error


async def find_again(client: FlowFabric, asked: Find) -> Destination:
    """Look up the routes of submissions again, because the client's cache was wrong.

    Either the keys of the submissions now belong to other partitions (`has_moved`), or the database
    lacks a route or a gate that the client has cached.
    """
    if asked.has_moved:
        await client.executions.reassign_partitions(asked.submissions)
    return await client.transactional.find_destination(asked.submissions, anew=not asked.has_moved)


def _carry_out_sync(
    plan: Plan[T], connection: SyncConnection, find: Callable[[Find | None], Destination]
) -> T:
    def call(one: Ask) -> str:
        operation = _OPERATIONS[one.function]
        with converting_errors(operation):
            return connection.call(operation, one.function.bind(one.arguments))

    try:
        return carry_out_sync(plan, call, find)
    except (UnknownRoute, UnknownGate) as error:
        raise _unknown(error) from error


def _name(via: Any) -> str:
    return f"{type(via).__module__.partition('.')[0]} {type(via).__name__}"
