"""Flows: graphs of executions, as submitted and as read.

This module does not use the database. It checks a whole graph before the graph is sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from heapq import heapify, heappop, heappush
from typing import Any, Self
from uuid import UUID

from flowfabric.core.errors import CycleDetected, FlowFabricError, InvalidInput
from flowfabric.core.execution import MAX_NAME_BYTES, Submission, check_tags, check_text
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

MAX_NODES = 10_000
MAX_EDGES = 50_000
MAX_GROUP = 32_767
MAX_REF_BYTES = 256
MAX_KIND_BYTES = 256
# The error shows at most this many names of a cycle.
_MAX_NAMES_OF_A_CYCLE = 12


class FlowState(StrEnum):
    """The state of a flow in one word, computed from its members.

    The state is the first of these that applies:

    - `cancelled`: the flow was cancelled.
    - `open`: the flow has no members.
    - `failed`: all members have ended, and a needed member failed, expired or was cancelled.
    - `completed`: all members have ended.
    - `running`: a member is active.
    - `blocked`: a member waits for something other than a worker.
    - `open`: none of these applies.

    A member is needed unless both are true: other members depend on it, and every edge group with
    an edge from it was satisfied.
    """

    OPEN = "open"
    RUNNING = "running"
    BLOCKED = "blocked"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return self in _ENDED


_ENDED = frozenset({FlowState.COMPLETED, FlowState.FAILED, FlowState.CANCELLED})


@dataclass(frozen=True, slots=True)
class EdgeGroupPolicy:
    """How many edges of a group must be satisfied (`kind` and `k`). Once the group is satisfied,
    `on_satisfied` decides whether the other upstream members are cancelled or run on."""

    kind: GroupPolicy = GroupPolicy.ALL_OF
    k: int | None = None
    on_satisfied: OnSatisfied | None = None

    @classmethod
    def all_of(cls) -> Self:
        return cls()

    @classmethod
    def any_of(cls, on_satisfied: OnSatisfied | str = OnSatisfied.CANCEL_REMAINING) -> Self:
        return cls(GroupPolicy.ANY_OF, None, _on_satisfied(on_satisfied))

    @classmethod
    def quorum(cls, k: int, on_satisfied: OnSatisfied | str = OnSatisfied.CANCEL_REMAINING) -> Self:
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise InvalidInput(field="k", problem="quorum k must be >= 1")
        return cls(GroupPolicy.QUORUM, k, _on_satisfied(on_satisfied))

    def to_json(self) -> dict[str, Any]:
        """Return the edge group policy as JSON: its `kind`, and `k` and `on_satisfied` if set."""
        document: dict[str, Any] = {"kind": self.kind.value}
        if self.k is not None:
            document["k"] = self.k
        if self.on_satisfied is not None:
            document["on_satisfied"] = self.on_satisfied.value
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Build an edge group policy from JSON. `on_satisfied` defaults to `cancel_remaining`."""
        if not isinstance(document, Mapping):
            raise InvalidInput(field="group_policy", problem="must be an object with a kind")
        unknown = set(document) - {"kind", "k", "on_satisfied"}
        if unknown:
            raise InvalidInput(
                field="group_policy", problem=f"has no field {', '.join(sorted(unknown))}"
            )
        on_satisfied = document.get("on_satisfied")
        if on_satisfied is None:
            on_satisfied = OnSatisfied.CANCEL_REMAINING
        match document.get("kind"):
            case GroupPolicy.ALL_OF:
                if document.get("k") is not None or document.get("on_satisfied") is not None:
                    raise InvalidInput(
                        field="group_policy", problem="all_of takes neither k nor on_satisfied"
                    )
                return cls.all_of()
            case GroupPolicy.ANY_OF:
                if document.get("k") is not None:
                    raise InvalidInput(field="k", problem="belongs to a quorum only")
                return cls.any_of(on_satisfied)
            case GroupPolicy.QUORUM:
                return cls.quorum(document.get("k", 0), on_satisfied)
        raise InvalidInput(field="group_policy", problem="must be all_of, any_of or quorum")

    def needed(self, n: int) -> int:
        """Return how many of the `n` edges of a group must be satisfied."""
        return {GroupPolicy.ALL_OF: n, GroupPolicy.ANY_OF: 1}.get(self.kind, self.k or 1)


def _on_satisfied(word: OnSatisfied | str) -> OnSatisfied:
    try:
        return OnSatisfied(word)
    except ValueError:
        raise InvalidInput(
            field="on_satisfied", problem="must be cancel_remaining or let_run"
        ) from None


@dataclass(frozen=True, slots=True)
class Node:
    """A member to add to a flow: its name and its submission."""

    name: str
    submission: Submission


@dataclass(frozen=True, slots=True)
class Edge:
    """A dependency between two nodes, which are given by their indexes in the graph.

    If `ref` is given, the result of the upstream node is passed to the downstream node.
    """

    upstream: int
    downstream: int
    group: int = 0
    ref: str | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """The policy of one group of edges into a node.

    If no policy is given for a group, all its edges must be satisfied.
    """

    node: int
    group: int = 0
    group_policy: EdgeGroupPolicy = field(default_factory=EdgeGroupPolicy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A whole flow to store. Edges and groups refer to nodes by index, from 0."""

    id: FlowId
    kind: str
    nodes: Sequence[Node]
    edges: Sequence[Edge] = ()
    groups: Sequence[Group] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    creator: str | None = None
    parent_id: ExecutionId | None = None

    @property
    def namespace(self) -> str:
        return self.nodes[0].submission.route.namespace

    def in_order(self) -> Graph:
        """Return the graph with its nodes sorted: upstream before downstream.

        As far as possible, nodes keep their order. Raises CycleDetected if the graph has a cycle.
        """
        if all(edge.upstream < edge.downstream for edge in self.edges):
            return self
        order = _sorted([node.name for node in self.nodes], self.edges)
        index = {old: new for new, old in enumerate(order)}
        return replace(
            self,
            nodes=[self.nodes[old] for old in order],
            edges=[
                replace(edge, upstream=index[edge.upstream], downstream=index[edge.downstream])
                for edge in self.edges
            ],
            groups=[replace(group, node=index[group.node]) for group in self.groups],
        )

    def check(self) -> None:
        """Refuse an invalid graph, as the engine would. The error names the field."""
        check_text("flow_kind", self.kind, MAX_KIND_BYTES)
        check_tags(self.tags)
        if self.creator is not None:
            check_text("creator", self.creator, MAX_NAME_BYTES)
        if not 1 <= len(self.nodes) <= MAX_NODES:
            raise InvalidInput(
                field="nodes", problem=f"are {len(self.nodes)}; must be 1 to {MAX_NODES}"
            )
        if len(self.edges) > MAX_EDGES:
            raise InvalidInput(
                field="edges", problem=f"are {len(self.edges)}; must be at most {MAX_EDGES}"
            )
        self._check_edges()
        self._check_nodes()
        self._check_groups()
        self.in_order()

    def _check_nodes(self) -> None:
        names: dict[str, int] = {}
        ids: dict[UUID, int] = {}
        waiting = {edge.downstream for edge in self.edges}
        for index, node in enumerate(self.nodes):
            at, submission = f"nodes[{index}]", node.submission
            check_text(f"{at}.name", node.name, MAX_NAME_BYTES)
            if (first := names.setdefault(node.name, index)) != index:
                raise InvalidInput(
                    field=f"{at}.name", problem=f"{node.name!r} is the name of nodes[{first}] too"
                )
            if ids.setdefault(submission.id.uuid, index) != index:
                raise InvalidInput(field=f"{at}.execution_id", problem="is a duplicate")
            if submission.id.partition_key != self.id.partition_key:
                raise InvalidInput(
                    field=f"{at}.execution_id",
                    problem=f"must be in the partition of the flow, {self.id.partition_key}",
                )
            if submission.route.namespace != self.namespace:
                raise InvalidInput(
                    field=f"{at}.namespace", problem="must be the namespace of the other nodes"
                )
            for name in ("key", "parent_id"):
                if getattr(submission, name) is not None:
                    raise InvalidInput(field=f"{at}.{name}", problem="cannot be used in a flow")
            if index in waiting:
                for name in ("delay", "delayed_until"):
                    if getattr(submission, name) is not None:
                        raise InvalidInput(
                            field=f"{at}.{name}",
                            problem="cannot be used on a node that waits for others, as "
                            f"{node.name!r} does",
                        )
            try:
                submission.check()
            except InvalidInput as error:
                raise InvalidInput(field=f"{at}.{error.field}", problem=error.problem) from error

    def _check_edges(self) -> None:
        seen: dict[tuple[int, int, int], int] = {}
        size = len(self.nodes)
        for index, edge in enumerate(self.edges):
            at = f"edges[{index}]"
            for name, node in (("from", edge.upstream), ("to", edge.downstream)):
                if isinstance(node, bool) or not isinstance(node, int) or not 0 <= node < size:
                    raise InvalidInput(field=f"{at}.{name}", problem=f"there is no node {node!r}")
            if edge.upstream == edge.downstream:
                raise InvalidInput(
                    field=f"{at}.to",
                    problem=f"{self.nodes[edge.upstream].name!r} cannot wait for itself",
                )
            if not 0 <= edge.group <= MAX_GROUP:
                raise InvalidInput(field=f"{at}.group", problem=f"must be 0 to {MAX_GROUP}")
            if edge.ref is not None:
                check_text(f"{at}.ref", edge.ref, MAX_REF_BYTES)
            key = (edge.upstream, edge.downstream, edge.group)
            if (first := seen.setdefault(key, index)) != index:
                raise InvalidInput(field=at, problem=f"repeats edges[{first}]")

    def _check_groups(self) -> None:
        sizes = Counter((edge.downstream, edge.group) for edge in self.edges)
        seen: dict[tuple[int, int], int] = {}
        for index, group in enumerate(self.groups):
            at = f"groups[{index}]"
            key = (group.node, group.group)
            if not 0 <= group.node < len(self.nodes):
                raise InvalidInput(field=f"{at}.node", problem=f"there is no node {group.node!r}")
            if (first := seen.setdefault(key, index)) != index:
                raise InvalidInput(field=at, problem=f"repeats groups[{first}]")
            n = sizes[key]
            if not n:
                raise InvalidInput(
                    field=f"{at}.node",
                    problem=f"no edge leads to group {group.group} of "
                    f"{self.nodes[group.node].name!r}",
                )
            k = group.group_policy.k
            if k is not None and k > n:
                raise InvalidInput(
                    field=f"{at}.k", problem=f"is {k}, but only {n} edges lead to the group"
                )


def _sorted(names: Sequence[str], edges: Iterable[Edge]) -> list[int]:
    """Return the indexes of the nodes, sorted: upstream before downstream."""
    downstreams: list[list[int]] = [[] for _ in names]
    waits = [0] * len(names)
    for edge in edges:
        downstreams[edge.upstream].append(edge.downstream)
        waits[edge.downstream] += 1
    free = [index for index, count in enumerate(waits) if not count]
    heapify(free)
    order = []
    while free:
        index = heappop(free)
        order.append(index)
        for downstream in downstreams[index]:
            waits[downstream] -= 1
            if not waits[downstream]:
                heappush(free, downstream)
    if len(order) < len(names):
        raise _cycle(names, downstreams, waits)
    return order


def _cycle(
    names: Sequence[str], downstreams: Sequence[Sequence[int]], waits: Sequence[int]
) -> CycleDetected:
    """Return the error that shows one cycle among the nodes that could not be sorted."""
    upstream: dict[int, int] = {}
    for index, others in enumerate(downstreams):
        if waits[index]:
            for other in others:
                upstream.setdefault(other, index)
    index = next(index for index, count in enumerate(waits) if count)
    walk: list[int] = []
    met: dict[int, int] = {}
    while index not in met:
        met[index] = len(walk)
        walk.append(index)
        index = upstream[index]
    cycle = walk[met[index] :][::-1]
    start = cycle.index(min(cycle))
    path = [names[node] for node in (*cycle[start:], *cycle[:start], cycle[start])]
    shown = path if len(path) <= _MAX_NAMES_OF_A_CYCLE else [*path[:_MAX_NAMES_OF_A_CYCLE], "…"]
    return CycleDetected(
        f"These nodes wait for each other in a cycle: {' -> '.join(shown)}", path=path
    )


@dataclass(frozen=True, slots=True)
class FlowSubmitted:
    """The answer to submitting a graph. `is_duplicate` means that the flow was stored before."""

    id: FlowId
    is_duplicate: bool = False


@dataclass(frozen=True, slots=True)
class FlowCreated:
    """The answer to `create`. `is_new` means that this call created the flow."""

    id: FlowId
    is_new: bool


@dataclass(frozen=True, slots=True)
class MemberAdded:
    """The answer to `add_execution`, with the size and the revision of the graph after the call."""

    execution_id: ExecutionId
    is_new: bool
    node_count: int
    graph_revision: int


@dataclass(frozen=True, slots=True)
class EdgeStaged:
    """The answer to `stage_dependency_edge`, with the revision to pass to the next call."""

    edge_id: UUID
    graph_revision: int


@dataclass(frozen=True, slots=True)
class DependencyApplied:
    """The answer to `apply_dependency_to_child`.

    `unsatisfied` counts the edges into the downstream member that are applied but not resolved.
    """

    is_new: bool
    unsatisfied: int
    downstream_state: PublicState


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInfo:
    """A group of edges into one member: its policy, and how many edges are resolved."""

    downstream_id: ExecutionId
    group_no: int
    group_policy: EdgeGroupPolicy
    n: int
    succeeded: int
    failed: int
    skipped: int
    state: GroupState
    fired_at: datetime | None
    cancel_pending: bool
    cancel_reason: str | None

    @property
    def running(self) -> int:
        return self.n - self.succeeded - self.failed - self.skipped


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowInfo:
    """One flow without its members. `state` is `open` or `cancelled`; members do not affect it."""

    id: FlowId
    namespace: str
    flow_kind: str
    state: FlowState
    graph_revision: int
    node_count: int
    edge_count: int
    created_at: datetime
    mutated_at: datetime
    cancelled_at: datetime | None
    cancel_policy: FlowCancelPolicy | None
    cancel_reason: str | None
    cancelled_by: str | None
    trimmed_at: datetime | None
    tags: Mapping[str, str]
    creator: str | None
    groups: Sequence[GroupInfo] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowListed:
    """One flow in a list. `state` is computed from its members."""

    id: FlowId
    namespace: str
    flow_kind: str
    state: FlowState
    node_count: int
    edge_count: int
    # The number of members in each public state; a state without members is omitted.
    counts: Mapping[PublicState, int]
    created_at: datetime
    mutated_at: datetime
    cancelled_at: datetime | None


@dataclass(frozen=True, slots=True)
class FlowPage:
    """One page of a list of flows.

    `after` is the id after which the next page begins; it is None on the last page. `missing` names
    the partitions that could not be reached.
    """

    flows: list[FlowListed]
    after: FlowId | None
    missing: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeInfo:
    """One edge of a flow. `resolution` is None if the edge is not resolved."""

    flow_id: FlowId
    edge_id: UUID
    upstream_id: ExecutionId
    downstream_id: ExecutionId
    group_no: int
    kind: DependencyKind
    data_passing_ref: str | None
    created_at: datetime
    created_by: str
    applied_at: datetime | None
    resolution: Resolution | None
    outcome: Outcome | None
    resolved_at: datetime | None

    @property
    def edge_state(self) -> str:
        """`pending` while the edge is only staged; `applied` once it blocks its downstream
        member.
        """
        return "pending" if self.applied_at is None else "applied"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowMember:
    """One member of a flow."""

    id: ExecutionId
    name: str | None
    task: str
    lane: str
    public_state: PublicState
    version: int
    attempt: int
    created_at: datetime
    started_at: datetime | None
    terminal_at: datetime | None
    delayed_until: datetime | None
    failure_reason: str | None


@dataclass(frozen=True, slots=True)
class FlowSummary:
    """The state of a flow, and how many of its members are in each state."""

    id: FlowId
    state: FlowState
    total: int
    # The number of members in each public state; a state without members is omitted.
    counts: Mapping[PublicState, int]

    @property
    def unfinished(self) -> int:
        return sum(count for state, count in self.counts.items() if not state.is_terminal)


class FlowEligibility(StrEnum):
    """Whether the dependencies of an execution allow a claim."""

    NOT_FOUND = "not_found"
    NOT_RUNNABLE = "not_runnable"
    OWNED = "owned"
    TERMINAL = "terminal"
    IMPOSSIBLE = "impossible"
    BLOCKED_BY_DEPENDENCIES = "blocked_by_dependencies"
    ELIGIBLE = "eligible"


@dataclass(frozen=True, slots=True)
class FlowInput:
    """The result of one upstream member, as an input of a downstream member.

    `is_counted` marks an input whose edge was satisfied when its edge group was decided. The inputs
    with this mark are the same in all attempts of the downstream member.
    """

    execution_id: ExecutionId
    upstream_id: ExecutionId
    node_name: str | None
    group_no: int
    edge_id: UUID
    is_counted: bool
    resolved_at: datetime | None
    result_encoding: str | None
    result: bytes | None = field(repr=False)


class FlowCancelOutcome(StrEnum):
    """The outcome of cancelling a flow."""

    # The flow is cancelled, and no member is left to cancel.
    CANCELLED = "cancelled"
    # The flow is cancelled, and its members are being cancelled.
    SCHEDULED = "scheduled"
    # Some members are locked by other transactions or workers. They end when their locks are
    # released.
    PARTIALLY_CANCELLED = "partially_cancelled"
    # Nothing changed. Either the flow was cancelled before (`cancel_policy` and `reason` are the
    # earlier ones), or all members had already ended (`cancel_policy` is None).
    ALREADY_TERMINAL = "already_terminal"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowCancellation:
    """The answer to cancelling a flow.

    If the flow was cancelled before, `members` lists at most 1000 members.
    """

    id: FlowId
    outcome: FlowCancelOutcome
    cancel_policy: FlowCancelPolicy | None
    reason: str | None
    # How many members had not ended, and how many of them will be cancelled.
    member_count: int
    open_count: int
    # The members that had not ended.
    members: list[ExecutionId]
    # The members that could not be cancelled because they are locked.
    failed: list[ExecutionId]


@dataclass(frozen=True, slots=True)
class MembersCancelled:
    """The answer to `cancel_members`: how many members this call cancelled, and what is left."""

    handled: int
    # How many members must still be cancelled, and how many keep running, because the cancel
    # policy cancel_pending lets running members finish.
    remaining: int
    draining: int
    # If this call could cancel no member because all are locked: up to 1000 of these members.
    locked: list[ExecutionId]


@dataclass(frozen=True, slots=True)
class FlowRetried:
    """The members that were replayed, and the members that could not be replayed, with their
    errors."""

    replayed: list[ExecutionId]
    refused: dict[ExecutionId, FlowFabricError]
