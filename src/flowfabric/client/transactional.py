"""Submits that join a transaction of the caller's: on a connection of the caller's, by whichever
driver. Here is what has to be sent and how the answer reads; sending it is the caller's.

A whole flow is sent in the same way, also on a connection of ours."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict
from uuid import UUID

from flowfabric.client.batching import BUSY, Busy
from flowfabric.client.lanes import Lanes
from flowfabric.core.errors import FlowFabricError, InvalidInput
from flowfabric.core.execution import DEFAULT_NAMESPACE, Route, Submission, Submitted
from flowfabric.core.flow import Edge, FlowSubmitted, Graph, Group
from flowfabric.core.ids import ExecutionId
from flowfabric.db import functions
from flowfabric.db.session import Database

Answer = Submitted | Exception | Busy

SUBMIT = functions.SUBMIT_JSON
SUBMIT_FLOW = functions.SUBMIT_FLOW


class SubmitArguments(TypedDict):
    """The arguments of SUBMIT."""

    partition_key: int
    namespace: str
    items: str
    database: str


class FlowArguments(TypedDict):
    """The arguments of SUBMIT_FLOW."""

    partition_key: int
    namespace: str
    flow: str
    database: str


@dataclass(frozen=True, slots=True)
class Place:
    """The database that submissions are meant for, and its ids of their routes."""

    database: str
    routes: Mapping[Route, int]

    def arguments(self, submissions: Sequence[Submission]) -> SubmitArguments:
        """The arguments of one call, for submissions of one partition and one namespace."""
        first = submissions[0]
        items = [self._item(submission) for submission in submissions]
        return SubmitArguments(
            partition_key=first.id.partition_key,
            namespace=first.route.namespace,
            items=json.dumps(items, ensure_ascii=False, separators=(",", ":")),
            database=self.database,
        )

    def flow_arguments(self, graph: Graph) -> FlowArguments:
        """The arguments of SUBMIT_FLOW for a graph, which is put in order."""
        graph = graph.in_order()
        flow: dict[str, Any] = {
            "flow_id": str(graph.id.uuid),
            "flow_kind": graph.kind,
            "nodes": [{"name": node.name, **self._item(node.submission)} for node in graph.nodes],
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
            flow=json.dumps(flow, ensure_ascii=False, separators=(",", ":")),
            database=self.database,
        )

    def _item(self, submission: Submission) -> dict[str, Any]:
        item: dict[str, Any] = {
            "execution_id": str(submission.id.uuid),
            "route_id": self.routes[submission.route],
            "payload_base64": b64encode(submission.payload).decode(),
            "priority": submission.priority,
            "payload_encoding": submission.payload_encoding,
            "delay_ms": _milliseconds(submission.delay),
            "delayed_until": _rfc3339(submission.delayed_until),
            "deadline_ms": _milliseconds(submission.deadline),
            "deadline_at": _rfc3339(submission.deadline_at),
            "policy": submission.policy,
            "max_reclaims": submission.max_reclaims,
            "tags": dict(submission.tags) or None,
            "creator": submission.creator,
            "parent_id": submission.parent_id and str(submission.parent_id.uuid),
            "with_parent": submission.with_parent or None,
            "trace_context": submission.trace_context,
            "task_version": submission.task_version,
        }
        if submission.key is not None:
            fingerprint = submission.key_fingerprint
            item |= {
                "key": submission.key,
                "key_fingerprint": None if fingerprint is None else fingerprint.hex(),
                "key_scope": submission.key_scope.value,
                "key_window_ms": _milliseconds(submission.key_window),
            }
        return {name: value for name, value in item.items() if value is not None}


class Transactional:
    """What has to be known of the database before another connection to it is used."""

    def __init__(self, database: Database, lanes: Lanes) -> None:
        self._database = database
        self._lanes = lanes
        self._identity: str | None = None

    async def place(self, submissions: Sequence[Submission]) -> Place:
        """Register the routes of submissions, on a connection of ours: a caller's transaction that
        is rolled back must not take them with it."""
        for submission in submissions:
            submission.check()
        routes = {
            route: await self._lanes.register(route)
            for route in {submission.route for submission in submissions}
        }
        if self._identity is None:
            rows = await self._database.call(
                SUBMIT, partition_key=0, namespace=DEFAULT_NAMESPACE, items="[]", database=None
            )
            self._identity = str(json.loads(rows[0]["submit_json"])["database"])
        return Place(self._identity, routes)

    def forget(self) -> None:
        """Ask again: the database is another one, or was made anew."""
        self._lanes.forget()
        self._identity = None


def read_answer(text: str, submissions: Sequence[Submission]) -> list[Answer]:
    """One answer for each submission of a call."""
    found: list[Answer] = []
    for submission, told in zip(submissions, json.loads(text)["items"], strict=True):
        outcome, detail = told["outcome"], told["detail"] or {}
        if outcome == "created":
            found.append(Submitted(submission.id))
        elif outcome == "duplicate":
            first = ExecutionId.of(submission.id.partition_key, UUID(told["execution_id"]))
            found.append(Submitted(first, is_duplicate=first != submission.id))
        elif outcome == "busy":
            found.append(BUSY)
        elif detail.get("field") == "database":
            found.append(InvalidInput(field="via", problem=detail["problem"]))
        else:
            found.append(FlowFabricError.from_engine(outcome, detail))
    return found


def read_flow_answer(text: str, graph: Graph) -> FlowSubmitted | FlowFabricError:
    """What became of a whole flow: the answer, or the error to raise."""
    told = json.loads(text)
    outcome, detail = told["outcome"], told["detail"] or {}
    if outcome in ("created", "duplicate"):
        return FlowSubmitted(graph.id, is_duplicate=outcome == "duplicate")
    if detail.get("field") == "database":
        return InvalidInput(field="via", problem=detail["problem"])
    return FlowFabricError.from_engine(outcome, detail)


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


def _milliseconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration / timedelta(milliseconds=1)


def _rfc3339(moment: datetime | None) -> str | None:
    if moment is None:
        return None
    try:
        return moment.astimezone(UTC).isoformat()
    except OverflowError:
        return moment.isoformat()  # at the very end of the calendar: the engine refuses it
