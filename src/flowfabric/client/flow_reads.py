"""Read flows, their members, edges and inputs.

If a flow does not exist, only `find` can raise. The other calls return None or an empty answer.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from flowfabric.client.addresses import Scoped, address, flow_address, flow_location, location
from flowfabric.client.partitions import ask_reachable, merge_pages, share_of
from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import check_tags
from flowfabric.core.flow import (
    EdgeGroupPolicy,
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
)
from flowfabric.core.ids import AnyId, ExecutionId, FlowId
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
from flowfabric.db.records import optional, reader

MAX_PAGE = 1000
_AT_ONCE = 5000
_INPUTS_AT_ONCE = 1000


def _counts(text: str) -> dict[PublicState, int]:
    counts: dict[str, int] = json.loads(text)
    return {state: counts[state] for state in PublicState if state in counts}


_info = reader(
    FlowInfo,
    functions.DESCRIBE_FLOW,
    given="id groups",
    unread="flow_id edge_groups",
    state=FlowState,
    tags=json.loads,
    cancel_policy=optional(FlowCancelPolicy),
)
_summary = reader(
    FlowSummary, functions.SUMMARISE_FLOW, given="id", state=FlowState, counts=_counts
)
_listed = reader(
    FlowListed,
    functions.LIST_FLOWS,
    given="id",
    unread="flow_id next_after",
    state=FlowState,
    counts=_counts,
)
# list_edges and describe_edge return the same columns.
_edge = reader(
    EdgeInfo,
    functions.LIST_EDGES,
    given="flow_id upstream_id downstream_id",
    unread="upstream_id downstream_id",
    kind=DependencyKind,
    resolution=optional(Resolution),
    outcome=optional(Outcome),
)
_member = reader(
    FlowMember,
    functions.LIST_FLOW_MEMBERS,
    given="id name",
    unread="execution_id node_name",
    public_state=PublicState,
)
_input = reader(
    FlowInput,
    functions.READ_INPUTS,
    given="execution_id upstream_id",
    unread="execution_id upstream_id",
)


class FlowReads(Scoped):
    """Operations that read flows and change nothing. `Flows` inherits them."""

    async def find(self, text: AnyId) -> FlowId:
        """Return the whole id of a flow. `text` is this id, its UUID, or last digits of the UUID.

        Give at least 8 last digits. They are searched among the newest 10 000 flows of each
        partition. If no flow matches, the call raises FlowNotFound. If several flows match, it
        raises InvalidInput; `matches` has their ids. For a whole id or a UUID, the call returns a
        whole id even if there is no such flow.
        """
        return await self._find_id(FlowId, text)

    async def describe(self, id: AnyId) -> FlowInfo | None:
        """Return one flow with its edge groups, or None if the flow does not exist."""
        id = await self._flow(id)
        rows = await self._database.call(
            functions.DESCRIBE_FLOW, **flow_address(id, self._namespace)
        )
        if not rows:
            return None
        row = rows[0]
        groups = [_group(group, id.partition_key) for group in json.loads(row["edge_groups"])]
        return _info(row, id, groups)

    async def summary(self, id: AnyId) -> FlowSummary | None:
        """Count the members of a flow in each state. Return None if the flow does not exist."""
        id = await self._flow(id)
        rows = await self._database.call(
            functions.SUMMARISE_FLOW, **flow_address(id, self._namespace)
        )
        return _summary(rows[0], id) if rows else None

    async def edges(
        self,
        id: AnyId,
        *,
        upstream: ExecutionId | None = None,
        downstream: ExecutionId | None = None,
    ) -> list[EdgeInfo]:
        """List the edges of a flow, sorted by id.

        If `upstream` is given, list only the edges out of that member. If `downstream` is given,
        list only the edges into that member. If the flow does not exist, the list is empty.
        """
        id = await self._flow(id)
        found: list[EdgeInfo] = []
        while True:
            rows = await self._database.call(
                functions.LIST_EDGES,
                **flow_address(id, self._namespace),
                upstream_id=location(upstream)[1] if upstream is not None else None,
                downstream_id=location(downstream)[1] if downstream is not None else None,
                after=found[-1].edge_id if found else None,
                limit=_AT_ONCE,
            )
            found += [_edge_info(row, id) for row in rows]
            if len(rows) < _AT_ONCE:
                return found

    async def describe_edge(self, id: AnyId, edge_id: UUID) -> EdgeInfo | None:
        """Return one edge, or None if the flow has no edge with this id."""
        id = await self._flow(id)
        rows = await self._database.call(
            functions.DESCRIBE_EDGE, **flow_address(id, self._namespace), edge_id=edge_id
        )
        return _edge_info(rows[0], id) if rows else None

    async def members(
        self, id: AnyId, *, states: Collection[PublicState | str] | None = None
    ) -> list[FlowMember]:
        """List the members of a flow, sorted by id.

        If `states` is given, list only members in these states. If the flow does not exist, the
        list is empty.
        """
        id = await self._flow(id)
        words = None if states is None else [PublicState(state).value for state in states]
        found: list[FlowMember] = []
        while True:
            rows = await self._database.call(
                functions.LIST_FLOW_MEMBERS,
                **flow_address(id, self._namespace),
                after=found[-1].id.uuid if found else None,
                limit=_AT_ONCE,
                states=words,
            )
            found += [
                _member(
                    row, ExecutionId.of(id.partition_key, row["execution_id"]), row["node_name"]
                )
                for row in rows
            ]
            if len(rows) < _AT_ONCE:
                return found

    async def eligibility(self, id: AnyId) -> FlowEligibility:
        """Return whether the dependencies of an execution allow a claim and, if not, why."""
        id = await self._execution(id)
        rows = await self._database.call(
            functions.EVALUATE_FLOW_ELIGIBILITY, **address(id, self._namespace)
        )
        return FlowEligibility(rows[0]["eligibility"])

    async def inputs(self, ids: Sequence[ExecutionId]) -> list[FlowInput]:
        """Return the inputs of the given executions: one for each edge into an execution.

        The inputs of one execution are in the order in which its edges were resolved. Unresolved
        edges come last.
        """
        groups: dict[int, list[UUID]] = {}
        for id in dict.fromkeys(ids):
            partition, uuid = location(id)
            groups.setdefault(partition, []).append(uuid)
        found = []
        for partition, uuids in groups.items():
            for start in range(0, len(uuids), _INPUTS_AT_ONCE):
                rows = await self._database.call(
                    functions.READ_INPUTS,
                    partition_key=partition,
                    namespace=self._namespace,
                    execution_ids=uuids[start : start + _INPUTS_AT_ONCE],
                )
                found += [
                    _input(
                        row,
                        ExecutionId.of(partition, row["execution_id"]),
                        ExecutionId.of(partition, row["upstream_id"]),
                    )
                    for row in rows
                ]
        return found

    async def tags(self, id: AnyId) -> dict[str, str]:
        """Return the tags of a flow as a dict. The dict is empty if the flow does not exist."""
        id = await self._flow(id)
        info = await self.describe(id)
        return dict(info.tags) if info else {}

    async def tag(self, id: AnyId, key: str) -> str | None:
        """Return the value of one tag, or None if the tag or the flow does not exist."""
        id = await self._flow(id)
        check_tags({key: ""})
        return (await self.tags(id)).get(key)

    async def list(
        self,
        *,
        after: FlowId | None = None,
        limit: int = 100,
        newest: bool = False,
        partition: int | None = None,
    ) -> FlowPage:
        """Return a page of flows, sorted by id. If `newest` is true, the newest come first.

        Pass `after` of a page to get the next page. On the last page, `after` is None. Any page may
        have fewer than `limit` flows, or none. `limit` is at most 1000.
        """
        if isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit <= MAX_PAGE:
            raise InvalidInput(field="limit", problem=f"must be a whole number, 0 to {MAX_PAGE}")
        begin = None if after is None else flow_location(after)
        if begin is not None and partition is not None and begin[0] != partition:
            raise InvalidInput(field="after", problem=f"does not belong to partition {partition}")
        if not limit:
            return FlowPage([], None)
        wanted = await self._database.partitions.all() if partition is None else [partition]
        share = limit if len(wanted) == 1 else share_of(limit, len(wanted))

        async def read(one: int) -> tuple[Sequence[FlowListed], UUID | None]:
            *rows, last = await self._database.call(
                functions.LIST_FLOWS,
                partition_key=one,
                namespace=self._namespace,
                after=begin[1] if begin else None,
                limit=share,
                newest=bool(newest),
            )
            found = [_listed(row, FlowId.of(one, row["flow_id"])) for row in rows]
            return found, last["next_after"]

        pages, missing = await ask_reachable(wanted, read)
        flows, end = merge_pages(pages, lambda flow: flow.id.uuid, limit, newest=bool(newest))
        return FlowPage(flows, FlowId.of(partition or 0, end) if end else None, missing)


def _group(group: Mapping[str, Any], partition: int) -> GroupInfo:
    facts = dict(group)
    after = facts.pop("on_satisfied")
    group_policy = EdgeGroupPolicy(
        GroupPolicy(facts.pop("policy")), facts.pop("k"), OnSatisfied(after) if after else None
    )
    fired_at = facts.pop("fired_at")
    return GroupInfo(
        downstream_id=ExecutionId.of(partition, UUID(facts.pop("downstream_id"))),
        group_policy=group_policy,
        state=GroupState(facts.pop("state")),
        fired_at=datetime.fromisoformat(fired_at) if fired_at else None,
        **facts,
    )


def _edge_info(row: Any, id: FlowId) -> EdgeInfo:
    return _edge(
        row,
        id,
        ExecutionId.of(id.partition_key, row["upstream_id"]),
        ExecutionId.of(id.partition_key, row["downstream_id"]),
    )
