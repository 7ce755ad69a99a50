"""The stage on which the mapping's operations are called, and the registry of these operations.

An operation is one function. Its docstring tells a caller of the reference what differs. Its body
calls our functions on real rows; `see` takes the name of a fact, the seen value and the expected
value. The page docs/internals/mapping.md is written from this source text, so names and
expectations are literals.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from flowfabric.core.errors import FlowFabricError
from flowfabric.core.execution import Claimed, Route, Submission
from flowfabric.core.flow import Edge, EdgeGroupPolicy, Graph, Group, Node
from flowfabric.core.ids import ExecutionId, mint_flow, mint_in
from reads.stage import Stage
from support.factories import Engine

Facts = dict[str, Any]
See = Callable[[str, Any, Any], None]
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
WORKER = {"worker_id": "pool", "worker_instance_id": "pool-1"}


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of the reference that is done here."""

    name: str
    sql: list[str]
    python: list[str]
    reasons: list[str]
    check: Callable[[World, See], Awaitable[None]]


OPERATIONS: dict[str, Operation] = {}


def operation(name: str, *, sql: list[str], python: list[str], reasons: list[str]) -> Any:
    """Register a check under the reference's name of the operation.

    `sql` and `python` are our functions and methods; the check has to call each. A reason is a
    decision (0010), a defect of the reference (D-23) or a ruling in words.
    """

    def register(check: Callable[[World, See], Awaitable[None]]) -> Any:
        assert name not in OPERATIONS, f"two checks of {name}"
        OPERATIONS[name] = Operation(name, sql, python, reasons, check)
        return check

    return register


class World(Stage):
    """The stage, with a few reads of the executions on it."""

    async def state(self, id: ExecutionId) -> str:
        return str(await self.executions.state(id))

    async def kinds(self, id: ExecutionId) -> list[str]:
        return [str(event.kind) for event in await self.executions.events(id)]

    async def last_detail(self, id: ExecutionId) -> Any:
        return (await self.executions.events(id))[-1].detail

    async def completed(self, lane: str, result: bytes = b"1", **options: Any) -> Claimed:
        held = await self.claimed(lane=lane, **options)
        await self.executions.complete(held, result)
        return held

    async def interrupted(self, lane: str) -> Claimed:
        held = await self.claimed(lane=lane)
        assert await self.client.leases.release([held]) == {}
        return held

    async def next(self, lane: str) -> Claimed:
        return await self.claim(lanes=[lane])

    async def grants_stored(self) -> int:
        return len(await Engine(self.db.conn).grants())


async def said(call: Awaitable[Any]) -> str:
    """Return the class of the error that a call raises, or `success`."""
    try:
        await call
    except FlowFabricError as error:
        return type(error).__name__
    return "success"


def forged(held: Claimed) -> Claimed:
    return replace(held, epoch=held.epoch + 1)


async def resume_grant(world: World, lane: str) -> tuple[Claimed, Any]:
    held = await world.interrupted(lane)
    return held, await world.client.grants.issue_claim_grant(held.id, **WORKER)


async def graph(world: World, lanes: str = "abc", edges: Any = ((0, 2), (1, 2))) -> Any:
    """Store a flow with one node per letter, each in its own lane; the last waits for a quorum."""
    id = mint_flow()
    nodes = [
        Node(
            lane,
            Submission(id=mint_in(0), route=Route("test", lane, "app.send"), payload=b"null"),
        )
        for lane in lanes
    ]
    groups = [Group(len(lanes) - 1, 0, EdgeGroupPolicy.quorum(2))] if edges else []
    graph = Graph(
        id=id, kind="test", nodes=nodes, edges=[Edge(*edge) for edge in edges], groups=groups
    )
    await world.client.flows.submit(graph)
    return id, [node.submission.id for node in nodes]


def text(facts: Any) -> str:
    """Return facts as sorted JSON, to compare and print them."""
    return json.dumps(facts, indent=1, sort_keys=True, default=str)
