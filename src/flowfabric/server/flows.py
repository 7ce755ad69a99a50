"""Flows: submit a whole graph or build it piece by piece, read, draw, cancel."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal, TypedDict
from uuid import UUID

from fastapi import Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from flowfabric.client.detail_reads import read_flow
from flowfabric.core.flow import (
    DependencyApplied,
    EdgeGroupPolicy,
    EdgeInfo,
    EdgeStaged,
    FlowCancellation,
    FlowCreated,
    FlowInfo,
    FlowListed,
    FlowMember,
    FlowRetried,
    MemberAdded,
)
from flowfabric.core.ids import ExecutionId, FlowId
from flowfabric.core.states import DependencyKind, FlowCancelPolicy, OnSatisfied, PublicState
from flowfabric.core.token import Scope
from flowfabric.drawing.flows import flow_facts
from flowfabric.drawing.picture import picture_of
from flowfabric.drawing.svg import as_svg
from flowfabric.server.answers import answer, missing_in, page, wait_seconds
from flowfabric.server.graphs import NewFlow, graph_of
from flowfabric.server.paths import (
    Id,
    Limit,
    Reason,
    Words,
    checked_id,
    existing,
    existing_flow,
    find_flow,
    why_of,
)
from flowfabric.server.routing import LARGE, CurrentCall, Routes
from flowfabric.server.shapes import MISSING, Like, PageOf, Text
from flowfabric.server.submissions import Body

routes = Routes("flows")
_FROM = "/v1/flows/{id}"


class Empty(Body):
    """A flow without members, to be built piece by piece."""

    kind: str
    tags: dict[str, str] | None = None


class Member(Body):
    """An execution to add to a flow."""

    execution_id: str
    name: str | None = None


class NewEdge(Body):
    """A dependency to stage: `downstream` will wait for `upstream`."""

    upstream: str
    downstream: str
    expected_graph_revision: int = Field(ge=0)
    edge_id: UUID | None = None
    group: int = Field(default=0, ge=0, le=32_767)
    data_passing_ref: str | None = None


class Apply(Body):
    """The staged edge to apply."""

    edge_id: UUID
    upstream: str
    downstream: str


class GroupRule(Body):
    """The policy of an edge group: how many of its edges must be satisfied."""

    downstream: str
    group: int = Field(default=0, ge=0, le=32_767)
    kind: Literal["all_of", "any_of", "quorum"]
    k: int | None = Field(default=None, ge=1)
    on_satisfied: OnSatisfied | None = None


class CancelFlow(Reason):
    """Which members of a flow to cancel: all, all that are not running, or none."""

    cancel_policy: FlowCancelPolicy = FlowCancelPolicy.CANCEL_ALL


class StoredFlow(TypedDict):
    """A stored flow, with the ids of its members by name."""

    id: FlowId
    is_duplicate: bool
    nodes: dict[str, ExecutionId]


class GroupPolicySet(TypedDict):
    """Whether this call set the policy of an edge group. `unchanged`: the group already had it."""

    outcome: Literal["set", "unchanged"]
    group_policy: dict[str, Any]


FLOW = Like(FlowInfo, "Flow", plus={"counts": dict[str, int]})
GRAPH = Like(
    FlowInfo,
    "FlowGraph",
    plus={"counts": dict[str, int], "nodes": list[FlowMember], "edges": list[EdgeInfo]},
)


@routes.post(
    "/v1/flows", Scope.SUBMIT, limit=LARGE, status_code=201, answers=StoredFlow, refuses=(404,)
)
async def submit(call: CurrentCall, body: NewFlow) -> Response:
    """Store a whole flow, or nothing. Each node names the nodes that it waits for."""
    graph = await graph_of(call, body)
    done = await call.client.flows.submit(graph)
    nodes = {node.name: node.submission.id for node in graph.nodes}
    return answer({"id": done.id, "is_duplicate": done.is_duplicate, "nodes": nodes}, 201)


@routes.post("/v1/flows/empty", Scope.SUBMIT, status_code=201, answers=FlowCreated)
async def create(call: CurrentCall, body: Empty) -> Response:
    """Create a flow without members."""
    made = await call.client.flows.create(
        body.kind, tags=body.tags, creator=call.principal.name[:256]
    )
    return answer(made, 201)


@routes.post(
    _FROM + "/members", Scope.SUBMIT, status_code=201, answers=MemberAdded, also={200: MemberAdded}
)
async def add_member(call: CurrentCall, id: Id, body: Member) -> Response:
    """Add an execution to a flow. Both must be in the same partition."""
    member = await existing(call, body.execution_id)
    done = await call.client.flows.add_execution(await find_flow(call, id), member, name=body.name)
    return answer(done, 201 if done.is_new else 200)


@routes.post(_FROM + "/edges", Scope.SUBMIT, status_code=201, answers=EdgeStaged)
async def stage_edge(call: CurrentCall, id: Id, body: NewEdge) -> Response:
    """Stage a dependency between two members."""
    done = await call.client.flows.stage_dependency_edge(
        await find_flow(call, id),
        checked_id(body.upstream, "upstream"),
        checked_id(body.downstream, "downstream"),
        expected_graph_revision=body.expected_graph_revision,
        edge_id=body.edge_id,
        kind=DependencyKind.SUCCESS_ONLY,
        data_passing_ref=body.data_passing_ref,
        group=body.group,
    )
    return answer(done, 201)


@routes.post(_FROM + "/edges/apply", Scope.SUBMIT, answers=DependencyApplied)
async def apply_edge(call: CurrentCall, id: Id, body: Apply) -> Response:
    """Apply a staged edge, so that its downstream member waits for its upstream member."""
    done = await call.client.flows.apply_dependency_to_child(
        await existing_flow(call, id),
        body.edge_id,
        checked_id(body.upstream, "upstream"),
        checked_id(body.downstream, "downstream"),
    )
    return answer(done)


@routes.put(_FROM + "/group-policies", Scope.SUBMIT, answers=GroupPolicySet)
async def set_group_policy(call: CurrentCall, id: Id, body: GroupRule) -> Response:
    """Set the policy of an edge group. Do this before an edge of the group is staged."""
    given = {"kind": body.kind, "k": body.k, "on_satisfied": body.on_satisfied}
    group_policy = EdgeGroupPolicy.from_json(
        {name: value for name, value in given.items() if value is not None}
    )
    is_new = await call.client.flows.set_edge_group_policy(
        await find_flow(call, id), checked_id(body.downstream), group_policy, group=body.group
    )
    outcome = "set" if is_new else "unchanged"
    return answer({"outcome": outcome, "group_policy": group_policy.to_json()})


@routes.get("/v1/flows", Scope.READ, answers=PageOf(FlowListed, MISSING), refuses=(404,))
async def list_flows(
    call: CurrentCall,
    request: Request,
    state: Words = [],  # noqa: B006
    limit: Limit = 100,
    cursor: str | None = None,
) -> Response:
    """List flows, newest first."""
    after = None if cursor is None else await find_flow(call, cursor)
    found = await call.client.flows.list(after=after, limit=limit, newest=True)
    flows = [one for one in found.flows if not state or one.state in state]
    return page(request, flows, found.after, **missing_in(found))


@routes.get(_FROM, Scope.READ, answers=FLOW)
async def show(call: CurrentCall, id: Id) -> Response:
    """Show a flow: its state, and its members counted by state."""
    return answer(flow_facts(*await read_flow(call.client, await find_flow(call, id))))


@routes.get(_FROM + "/members", Scope.READ, answers=PageOf(FlowMember))
async def members(
    call: CurrentCall,
    request: Request,
    id: Id,
    state: Annotated[list[PublicState], Query()] = [],  # noqa: B006
) -> Response:
    """List the members of a flow."""
    flow = await existing_flow(call, id)
    return page(request, await call.client.flows.members(flow, states=state or None), None)


@routes.get(_FROM + "/graph", Scope.READ, answers=GRAPH)
async def graph(call: CurrentCall, id: Id) -> Response:
    """Return a flow with all nodes and edges."""
    flow = await find_flow(call, id)
    facts = flow_facts(*await read_flow(call.client, flow))
    nodes, edges = await call.client.flows.members(flow), await call.client.flows.edges(flow)
    return answer({**facts, "nodes": nodes, "edges": edges})


@routes.get(_FROM + "/graph.svg", Scope.READ, answers=Text("image/svg+xml"))
async def picture(call: CurrentCall, id: Id, unfold: bool = False) -> Response:
    """Draw a flow as a picture. Unless `unfold` is true, similar nodes are drawn as one node."""
    flow = await find_flow(call, id)
    info, summary = await read_flow(call.client, flow)
    nodes, edges = await call.client.flows.members(flow), await call.client.flows.edges(flow)
    now = await call.client.executions.server_time()
    drawn = picture_of(info.flow_kind, summary.state, nodes, edges, info.groups, now=now)
    headers = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
    return Response(as_svg(drawn, is_folded=not unfold), 200, headers, "image/svg+xml")


@routes.post(_FROM + "/cancel", Scope.OPERATE, answers=FlowCancellation, refuses=(504,))
async def cancel(
    call: CurrentCall, request: Request, id: Id, body: CancelFlow | None = None
) -> Response:
    """Cancel a flow.

    If the request has the header `Prefer: wait=20`, the server waits up to 20 seconds for the end
    of the cancelled members. If some of them have not ended after this time, the status is 504.
    """
    seconds = wait_seconds(request)
    done = await call.client.flows.cancel(
        await find_flow(call, id),
        cancel_policy=(body or CancelFlow()).cancel_policy,
        reason=why_of(body),
        actor=call.principal.name,
        wait=timedelta(seconds=seconds) if seconds else None,
    )
    return answer(done)


@routes.post(_FROM + "/retry-failed", Scope.OPERATE, answers=FlowRetried)
async def retry_failed(call: CurrentCall, id: Id, body: Reason | None = None) -> Response:
    """Replay the failed and the expired members of a flow.

    Also replay the members that were skipped because of these members.
    """
    done = await call.client.flows.retry_failed(
        await find_flow(call, id), reason=why_of(body), actor=call.principal.name
    )
    return answer(done)
