"""Flows: submit a whole graph of executions, or add its members and edges one by one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from uuid import UUID

from flowfabric.client.addresses import flow_address, location
from flowfabric.client.cascades import is_pending
from flowfabric.client.flow_cancel import FlowCancelling
from flowfabric.client.flow_reads import FlowReads
from flowfabric.client.hints import hint_routes
from flowfabric.client.outcomes import refusal
from flowfabric.client.submissions import Ask, Destination, Find, carry_out, flow_plan
from flowfabric.client.transactional import Transactional
from flowfabric.core.errors import InvalidInput
from flowfabric.core.execution import (
    DEFAULT_NAMESPACE,
    MAX_NAME_BYTES,
    Claimed,
    check_tags,
    check_text,
)
from flowfabric.core.flow import (
    MAX_KIND_BYTES,
    DependencyApplied,
    EdgeGroupPolicy,
    EdgeStaged,
    FlowCreated,
    FlowSubmitted,
    Graph,
    MemberAdded,
)
from flowfabric.core.ids import AnyId, ExecutionId, FlowId, mint_flow, uuid7
from flowfabric.core.states import DependencyKind, PublicState
from flowfabric.db import functions
from flowfabric.db.session import Database


class Flows(FlowReads, FlowCancelling):
    """Operations on flows.

    The methods of this class submit and build flows. The base classes read flows (`flow_reads.py`)
    and cancel flows (`flow_cancel.py`).
    """

    def __init__(
        self, database: Database, transactional: Transactional, namespace: str | None
    ) -> None:
        super().__init__(database, namespace)
        self._transactional = transactional

    async def submit(self, graph: Graph) -> FlowSubmitted:
        """Store a flow with all its members and edges in one transaction.

        If the same graph was submitted before, store nothing, and return the earlier flow.
        """
        graph.check()
        submissions = [node.submission for node in graph.nodes]
        destination = await self._transactional.find_own_destination(submissions)
        answer = await carry_out(flow_plan(graph, destination), self._ask, self._find)
        if self._database.is_distributed:
            routes = [submission.route for submission in submissions]
            await hint_routes(self._database, graph.id.partition_key, routes)
        return answer

    async def _ask(self, one: Ask) -> str:
        rows = await self._database.call(one.function, **one.arguments)
        return str(rows[0]["submit_flow"])

    async def _find(self, asked: Find) -> Destination:
        return await self._transactional.find_own_destination(asked.submissions, anew=True)

    async def mint(self) -> FlowId:
        """Make an id for a new flow. The UUID of the id determines the partition of the flow."""
        return mint_flow((await self._database.partitions.current()).minted)

    async def create(
        self,
        flow_kind: str,
        *,
        id: FlowId | None = None,
        tags: Mapping[str, str] | None = None,
        creator: str | None = None,
        namespace: str | None = None,
    ) -> FlowCreated:
        """Create an empty flow. If a flow with this id exists, it stays unchanged."""
        check_text("flow_kind", flow_kind, MAX_KIND_BYTES)
        check_tags(tags or {})
        if creator is not None:
            check_text("creator", creator, MAX_NAME_BYTES)
        id = await self.mint() if id is None else id
        rows = await self._database.call(
            functions.CREATE_FLOW,
            **flow_address(id, namespace or self._namespace or DEFAULT_NAMESPACE),
            flow_kind=flow_kind,
            tags=json.dumps(dict(tags)) if tags else None,
            creator=creator,
        )
        return FlowCreated(id, is_new=rows[0]["outcome"] == "created")

    async def add_execution(
        self, id: AnyId, execution: AnyId, *, name: str | None = None
    ) -> MemberAdded:
        """Add an execution, in any state, to a flow. No execution can be in two flows."""
        id = await self._flow(id)
        execution = await self._execution(execution)
        if name is not None:
            check_text("name", name, MAX_NAME_BYTES)
        row = (
            await self._database.call(
                functions.ADD_EXECUTION_TO_FLOW,
                **flow_address(id, self._namespace),
                execution_id=_inside(id, "execution_id", execution),
                node_name=name,
            )
        )[0]
        return MemberAdded(
            execution, row["outcome"] == "added", row["node_count"], row["graph_revision"]
        )

    async def stage_dependency_edge(
        self,
        id: AnyId,
        upstream: AnyId,
        downstream: AnyId,
        *,
        expected_graph_revision: int,
        edge_id: UUID | None = None,
        kind: DependencyKind | str = DependencyKind.SUCCESS_ONLY,
        data_passing_ref: str | None = None,
        group: int = 0,
    ) -> EdgeStaged:
        """Stage an edge. Once the edge is applied, `downstream` waits for `upstream`.

        Raises StaleGraphRevision if the graph changed after the caller read it.
        """
        id = await self._flow(id)
        upstream = await self._execution(upstream)
        downstream = await self._execution(downstream)
        row = (
            await self._database.call(
                functions.STAGE_DEPENDENCY_EDGE,
                **flow_address(id, self._namespace),
                edge_id=uuid7() if edge_id is None else edge_id,
                upstream_id=_inside(id, "upstream", upstream),
                downstream_id=_inside(id, "downstream", downstream),
                expected_graph_revision=expected_graph_revision,
                kind=str(kind),
                data_passing_ref=data_passing_ref,
                group_no=group,
                created_by="engine",
            )
        )[0]
        return EdgeStaged(row["edge_id"], row["graph_revision"])

    async def apply_dependency_to_child(
        self,
        id: AnyId,
        edge_id: UUID,
        upstream: AnyId,
        downstream: AnyId,
        *,
        claimed: Claimed | None = None,
    ) -> DependencyApplied:
        """Apply a staged edge, so that the downstream member waits for the upstream member.

        If the upstream member has ended, the call also resolves the edge. If the downstream member
        is running, only the holder of its lease can make this call, and must pass `claimed`. The
        running member begins to wait when its holder calls `wait_children`.
        """
        id = await self._flow(id)
        upstream = await self._execution(upstream)
        downstream = await self._execution(downstream)
        row = (
            await self._database.call(
                functions.APPLY_DEPENDENCY_TO_CHILD,
                **flow_address(id, self._namespace),
                edge_id=edge_id,
                upstream_id=_inside(id, "upstream", upstream),
                downstream_id=_inside(id, "downstream", downstream),
                lease_id=claimed.lease_id if claimed else None,
                epoch=claimed.epoch if claimed else None,
                attempt_id=claimed.attempt_id if claimed else None,
            )
        )[0]
        if row["outcome"] not in ("applied", "already_applied"):
            raise refusal(row["outcome"], row["detail"], id=str(downstream))
        if is_pending(row["detail"]):
            await self._cascades.resolve(id.partition_key)
        return DependencyApplied(
            row["outcome"] == "applied", row["unsatisfied"], PublicState(row["public_state"])
        )

    async def set_edge_group_policy(
        self, id: AnyId, downstream: AnyId, group_policy: EdgeGroupPolicy, *, group: int = 0
    ) -> bool:
        """Set the policy of an edge group. Call this before the first edge of the group is staged.

        Return True if the policy was set, False if the group already had this policy.
        """
        id = await self._flow(id)
        downstream = await self._execution(downstream)
        rows = await self._database.call(
            functions.SET_EDGE_GROUP_POLICY,
            **flow_address(id, self._namespace),
            downstream_id=_inside(id, "downstream", downstream),
            policy=group_policy.kind.value,
            k=group_policy.k,
            on_satisfied=group_policy.on_satisfied.value if group_policy.on_satisfied else None,
            group_no=group,
        )
        return bool(rows[0]["outcome"] == "set")

    async def set_tags(self, id: AnyId, tags: Mapping[str, str]) -> dict[str, str]:
        """Set several tags of a flow in one transaction. Other tags stay. Return all tags."""
        id = await self._flow(id)
        check_tags(tags)
        if not tags:
            raise InvalidInput(field="tags", problem="must not be empty")
        rows = await self._database.call(
            functions.SET_FLOW_TAGS,
            **flow_address(id, self._namespace),
            tags=json.dumps(dict(tags)),
        )
        found: dict[str, str] = json.loads(rows[0]["tags"])
        return found

    async def set_tag(self, id: AnyId, key: str, value: str) -> None:
        """Set one tag of a flow. Other tags stay."""
        id = await self._flow(id)
        await self.set_tags(id, {key: value})


def _inside(id: FlowId, field: str, execution: ExecutionId) -> UUID:
    """Return the UUID of an execution. Raise InvalidInput if the execution is in another partition
    than the flow."""
    partition, uuid = location(execution)
    if partition != id.partition_key:
        raise InvalidInput(
            field=field,
            problem=f"{execution} is in another partition than the flow, {id.partition_key}: "
            "make its id with mint_in(flow_id.partition_key)",
        )
    return uuid
