"""Turn a JSON graph into a flow: nodes, their dependencies, and results as arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import Field

from flowfabric.core.errors import InvalidInput
from flowfabric.core.flow import MAX_NODES, Edge, EdgeGroupPolicy, Graph, Group, Node
from flowfabric.core.ids import mint_in
from flowfabric.core.states import OnSatisfied
from flowfabric.server.routing import Call
from flowfabric.server.submissions import Body, Submit, submission, submission_with_inputs


class Join(Body):
    """At least `k` of the nodes in `of` must succeed before the node with this join can run."""

    of: list[str] = Field(min_length=1)
    k: int = Field(default=1, ge=1, description="How many of these nodes must succeed.")
    cancel_rest: bool = False


class NewNode(Submit):
    """A node of a new flow: an execution, and the nodes that it waits for."""

    name: str = Field(description="Unique in the flow.")
    after: list[str | Join] = Field(
        default_factory=list, description="Names of nodes, or joins, that must succeed first."
    )
    inputs: dict[str, str] = Field(
        default_factory=dict,
        description="Arguments that are results of other nodes. The name of each argument maps to "
        "the name of a node.",
    )


class NewFlow(Body):
    """A whole flow to store."""

    kind: str = Field(description="A note for people: what kind of flow it is.")
    nodes: list[NewNode] = Field(min_length=1, max_length=MAX_NODES)
    tags: dict[str, str] = Field(default_factory=dict)


async def graph_of(call: Call, body: NewFlow) -> Graph:
    """Return the graph that `body` describes. An InvalidInput names the node that is wrong."""
    indexes: dict[str, int] = {}
    for index, node in enumerate(body.nodes):
        if node.name in indexes:
            raise InvalidInput(field=f"nodes.{index}.name", problem="is the name of another node")
        indexes[node.name] = index
    id = await call.client.flows.mint()
    nodes, edges, groups = [], [], []
    for index, node in enumerate(body.nodes):
        try:
            made = await _node(call, node)
            for group, (group_policy, upstreams) in enumerate(_groups(node, indexes)):
                edges += [Edge(upstream, index, group) for upstream in upstreams]
                if group_policy is not None:
                    groups.append(Group(index, group, group_policy))
        except InvalidInput as error:
            raise InvalidInput(
                field=f"nodes.{index}.{error.field}", problem=error.problem
            ) from error
        nodes.append(Node(node.name, replace(made, id=mint_in(id.partition_key))))
    return Graph(
        id=id,
        kind=body.kind,
        nodes=nodes,
        edges=edges,
        groups=groups,
        tags=body.tags,
        creator=call.principal.name[:256],
    ).in_order()


async def _node(call: Call, node: NewNode) -> Any:
    if node.key is not None:
        raise InvalidInput(field="key", problem="cannot be used in a flow")
    if not node.inputs:
        return await submission(call, node)
    if not isinstance(node.arguments, dict):
        raise InvalidInput(field="arguments", problem="must be an object if there are inputs")
    if twice := set(node.inputs) & set(node.arguments):
        raise InvalidInput(field=f"inputs.{min(twice)}", problem="is in arguments, too")
    gaps: Mapping[str, Any] = dict.fromkeys(node.inputs)
    inputs = [{"at": [name], "of": source} for name, source in node.inputs.items()]
    payload = json.dumps({"arguments": {**node.arguments, **gaps}, "inputs": inputs}).encode()
    return await submission_with_inputs(call, node, payload)


def _groups(
    node: NewNode, indexes: Mapping[str, int]
) -> list[tuple[EdgeGroupPolicy | None, list[int]]]:
    """Return the edge groups of a node: the policy and the upstream nodes of each group.

    The nodes that must all succeed are the first group, with the policy None. Each join is a
    further group.
    """

    def index(name: str, field: str) -> int:
        if name not in indexes:
            raise InvalidInput(field=field, problem=f"there is no node {name[:80]!r}")
        return indexes[name]

    needed = dict.fromkeys(
        [index(one, "after") for one in node.after if isinstance(one, str)]
        + [index(one, "inputs") for one in node.inputs.values()]
    )
    found: list[tuple[EdgeGroupPolicy | None, list[int]]] = [(None, list(needed))] if needed else []
    for one in node.after:
        if isinstance(one, Join):
            rest = OnSatisfied.CANCEL_REMAINING if one.cancel_rest else OnSatisfied.LET_RUN
            if one.k > len(one.of):
                raise InvalidInput(field="after", problem=f"k is {one.k} of {len(one.of)} nodes")
            group_policy = (
                EdgeGroupPolicy.any_of(rest) if one.k == 1 else EdgeGroupPolicy.quorum(one.k, rest)
            )
            found.append((group_policy, [index(name, "after") for name in dict.fromkeys(one.of)]))
    return found
