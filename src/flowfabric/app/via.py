"""`via=`: submits a task or a flow inside the transaction of the caller's own connection.

The execution exists if and only if that transaction commits. A connection without a transaction is
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from flowfabric.client import FlowFabric
from flowfabric.client.callers import (
    AsyncConnection,
    Operation,
    SyncConnection,
    converting_errors,
    recognise,
)
from flowfabric.client.submissions import (
    JSON,
    Ask,
    Place,
    Plan,
    carry_out,
    carry_out_sync,
    flow_plan,
    submit_all_plan,
)
from flowfabric.core.errors import InvalidInput, UnknownRoute
from flowfabric.core.execution import Submission, Submitted
from flowfabric.core.flow import FlowSubmitted, Graph
from flowfabric.db import functions

T = TypeVar("T")

_OPERATIONS = {one: Operation.of(one) for one in (functions.SUBMIT_JSON, functions.SUBMIT_FLOW)}


def _unknown(answer: UnknownRoute) -> UnknownRoute:
    return UnknownRoute(
        "This transaction does not see the route of the task, because the route was registered "
        "after the transaction began (REPEATABLE READ or SERIALIZABLE). Roll back and try again.",
        **answer.facts,
    )


async def submit_via(
    client: FlowFabric, via: Any, submissions: Sequence[Submission], *, instead: str
) -> list[Submitted]:
    """Submit on an async connection of the caller."""
    connection = _async_connection(via, f"use {instead}(..., via=...)")
    place = await client.transactional.place(submissions)
    return await _carry_out(submit_all_plan(JSON, submissions, place), connection, client)


def submit_via_sync(
    find: Callable[[bool], Place], via: Any, submissions: Sequence[Submission], *, instead: str
) -> list[Submitted]:
    """Submit on a synchronous connection of the caller, in the caller's thread.

    `find` looks up the routes on our own connection; with True it forgets the known ones first.
    """
    connection = _sync_connection(via, f"use await {instead}(..., via=...)")
    return _carry_out_sync(submit_all_plan(JSON, submissions, find(False)), connection, find)


async def submit_flow_via(client: FlowFabric, via: Any, graph: Graph) -> FlowSubmitted:
    """Store a flow on an async connection of the caller."""
    connection = _async_connection(via, "use `with app.flow(..., via=...)`, without async,")
    graph.check()
    place = await client.transactional.place([node.submission for node in graph.nodes])
    return await _carry_out(flow_plan(graph, place), connection, client)


def submit_flow_via_sync(find: Callable[[bool], Place], via: Any, graph: Graph) -> FlowSubmitted:
    """Store a flow on a synchronous connection of the caller, in the caller's thread."""
    connection = _sync_connection(via, "use `async with app.flow(..., via=...)`")
    graph.check()
    return _carry_out_sync(flow_plan(graph, find(False)), connection, find)


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

    async def find(submissions: Sequence[Submission]) -> Place:
        return await client.transactional.place(submissions, anew=True)

    try:
        return await carry_out(plan, call, find)
    except UnknownRoute as error:
        raise _unknown(error) from error


def _carry_out_sync(plan: Plan[T], connection: SyncConnection, find: Callable[[bool], Place]) -> T:
    def call(one: Ask) -> str:
        operation = _OPERATIONS[one.function]
        with converting_errors(operation):
            return connection.call(operation, one.function.bind(one.arguments))

    try:
        return carry_out_sync(plan, call, lambda _: find(True))
    except UnknownRoute as error:
        raise _unknown(error) from error


def _name(via: Any) -> str:
    return f"{type(via).__module__.partition('.')[0]} {type(via).__name__}"
