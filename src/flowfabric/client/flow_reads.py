"""Reading flows: one, several, their members, edges and results. A missing one is None or empty."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from flowfabric.client.flow_cancel import flow_place
from flowfabric.client.versioned_calls import address, place
from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import check_tags
from flowfabric.core.flow import (
    EdgeInfo,
    FlowEligibility,
    FlowInfo,
    FlowInput,
    FlowListed,
    FlowMember,
    FlowPage,
    FlowState,
    FlowSummary,
    GroupInfo,
    Policy,
)
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.states import (
    DependencyKind,
    FlowCancelPolicy,
    GroupPolicy,
    GroupState,
    OnSatisfied,
    Outcome,
    PublicState,
    Resolution,
)
from flowfabric.db import functions
from flowfabric.db.session import Database

MAX_PAGE = 1000
_AT_ONCE = 5000
_INPUTS_AT_ONCE = 1000


def flow_address(id: FlowId, namespace: str | None) -> tuple[object, ...]:
    """The first arguments of every operation on one flow."""
    partition, uuid = flow_place(id)
    return partition, namespace, uuid


class FlowReads:
    """What can be asked about flows."""

    def __init__(self, database: Database, namespace: str | None) -> None:
        self._database = database
        self._namespace = namespace

    async def describe(self, id: FlowId) -> FlowInfo | None:
        """One flow with its groups; None if there is no such flow."""
        rows = await self._database.call(
            functions.DESCRIBE_FLOW, *flow_address(id, self._namespace)
        )
        if not rows:
            return None
        row = dict(rows[0])
        row.pop("flow_id")
        row["state"] = FlowState(row["state"])
        row["tags"] = json.loads(row["tags"])
        if row["cancel_policy"] is not None:
            row["cancel_policy"] = FlowCancelPolicy(row["cancel_policy"])
        groups = [_group(told, id.partition_key) for told in json.loads(row.pop("edge_groups"))]
        return FlowInfo(id=id, groups=groups, **row)

    async def summary(self, id: FlowId) -> FlowSummary | None:
        """How far a flow is, counted from its members now; None if there is no such flow."""
        rows = await self._database.call(
            functions.SUMMARISE_FLOW, *flow_address(id, self._namespace)
        )
        for state, total, counts in rows:
            return FlowSummary(id, FlowState(state), total, _counts(counts))
        return None

    async def edges(
        self,
        id: FlowId,
        *,
        upstream: ExecutionId | None = None,
        downstream: ExecutionId | None = None,
    ) -> list[EdgeInfo]:
        """The edges of a flow in the order of their ids: all, those out of one member, or those
        into one. None if there is no such flow."""
        found: list[EdgeInfo] = []
        while True:
            rows = await self._database.call(
                functions.LIST_EDGES,
                *flow_address(id, self._namespace),
                place(upstream)[1] if upstream is not None else None,
                place(downstream)[1] if downstream is not None else None,
                found[-1].edge_id if found else None,
                _AT_ONCE,
            )
            found += [_edge(row, id) for row in rows]
            if len(rows) < _AT_ONCE:
                return found

    async def describe_edge(self, id: FlowId, edge_id: UUID) -> EdgeInfo | None:
        """One edge; None if there is none with this id in this flow."""
        rows = await self._database.call(
            functions.DESCRIBE_EDGE, *flow_address(id, self._namespace), edge_id
        )
        return _edge(rows[0], id) if rows else None

    async def members(
        self, id: FlowId, *, states: Collection[PublicState | str] | None = None
    ) -> list[FlowMember]:
        """The members of a flow in the order of their ids: all, or those in some states. None if
        there is no such flow."""
        words = None if states is None else [PublicState(state).value for state in states]
        found: list[FlowMember] = []
        while True:
            rows = await self._database.call(
                functions.LIST_FLOW_MEMBERS,
                *flow_address(id, self._namespace),
                found[-1].id.uuid if found else None,
                _AT_ONCE,
                words,
            )
            found += [_member(row, id.partition_key) for row in rows]
            if len(rows) < _AT_ONCE:
                return found

    async def eligibility(self, id: ExecutionId) -> FlowEligibility:
        """Whether an execution could be claimed as far as its dependencies go."""
        rows = await self._database.call(
            functions.EVALUATE_FLOW_ELIGIBILITY, *address(id, self._namespace)
        )
        return FlowEligibility(rows[0][0])

    async def inputs(self, ids: Sequence[ExecutionId]) -> list[FlowInput]:
        """What the upstreams of executions have for them, by execution, in the order in which they
        ended; those that have not ended come last."""
        groups: dict[int, list[UUID]] = {}
        for id in dict.fromkeys(ids):
            partition, uuid = place(id)
            groups.setdefault(partition, []).append(uuid)
        found = []
        for partition, uuids in groups.items():
            for start in range(0, len(uuids), _INPUTS_AT_ONCE):
                rows = await self._database.call(
                    functions.READ_INPUTS,
                    partition,
                    self._namespace,
                    uuids[start : start + _INPUTS_AT_ONCE],
                )
                found += [_input(row, partition) for row in rows]
        return found

    async def tags(self, id: FlowId) -> dict[str, str]:
        """The tags of a flow, by key; none if there is no such flow."""
        info = await self.describe(id)
        return dict(info.tags) if info else {}

    async def tag(self, id: FlowId, key: str) -> str | None:
        """The value of one tag; None if it, or the flow, is not there."""
        check_tags({key: ""})
        return (await self.tags(id)).get(key)

    async def list(
        self,
        *,
        after: FlowId | None = None,
        limit: int = 100,
        newest: bool = False,
        partition: int = 0,
    ) -> FlowPage:
        """Flows in the order of their ids, or newest first; at most 1000 a page.

        A page may be short, or empty, and still carry a cursor; the last page has none.
        """
        if isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit <= MAX_PAGE:
            raise InvalidInput(field="limit", problem=f"must be a whole number, 0 to {MAX_PAGE}")
        if after is not None and flow_place(after)[0] != partition:
            raise InvalidInput(field="after", problem=f"is not of partition {partition}")
        if not limit:
            return FlowPage([], None)
        *rows, last = await self._database.call(
            functions.LIST_FLOWS,
            partition,
            self._namespace,
            after.uuid if after else None,
            limit,
            bool(newest),
        )
        cursor = last["next_after"]
        return FlowPage(
            [_listed(row, partition) for row in rows],
            FlowId.of(partition, cursor) if cursor else None,
        )


def _counts(text: str) -> dict[PublicState, int]:
    told: dict[str, int] = json.loads(text)
    return {state: told[state] for state in PublicState if state in told}


def _group(told: Mapping[str, Any], partition: int) -> GroupInfo:
    facts = dict(told)
    after = facts.pop("on_satisfied")
    policy = Policy(
        GroupPolicy(facts.pop("policy")), facts.pop("k"), OnSatisfied(after) if after else None
    )
    fired_at = facts.pop("fired_at")
    return GroupInfo(
        downstream_id=ExecutionId.of(partition, UUID(facts.pop("downstream_id"))),
        policy=policy,
        state=GroupState(facts.pop("state")),
        fired_at=datetime.fromisoformat(fired_at) if fired_at else None,
        **facts,
    )


def _listed(row: Any, partition: int) -> FlowListed:
    facts = dict(row)
    facts.pop("next_after")
    return FlowListed(
        id=FlowId.of(partition, facts.pop("flow_id")),
        state=FlowState(facts.pop("state")),
        counts=_counts(facts.pop("counts")),
        **facts,
    )


def _edge(row: Any, id: FlowId) -> EdgeInfo:
    facts = dict(row)
    outcome, resolution = facts.pop("outcome"), facts.pop("resolution")
    return EdgeInfo(
        flow_id=id,
        upstream_id=ExecutionId.of(id.partition_key, facts.pop("upstream_id")),
        downstream_id=ExecutionId.of(id.partition_key, facts.pop("downstream_id")),
        kind=DependencyKind(facts.pop("kind")),
        resolution=Resolution(resolution) if resolution else None,
        outcome=Outcome(outcome) if outcome else None,
        **facts,
    )


def _member(row: Any, partition: int) -> FlowMember:
    facts = dict(row)
    return FlowMember(
        id=ExecutionId.of(partition, facts.pop("execution_id")),
        name=facts.pop("node_name"),
        public_state=PublicState(facts.pop("public_state")),
        **facts,
    )


def _input(row: Any, partition: int) -> FlowInput:
    execution_id, upstream_id, *rest = row
    return FlowInput(
        ExecutionId.of(partition, execution_id), ExecutionId.of(partition, upstream_id), *rest
    )
