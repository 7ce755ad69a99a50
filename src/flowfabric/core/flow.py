"""Flows: graphs of executions as they go in, and what a reader is shown of them.

Nothing here talks to a database. A graph is judged as a whole before it is sent: whatever the
engine would refuse is refused here with the names that the caller gave.
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
# A longer circle is shown by its beginning.
_SHOWN_OF_A_CYCLE = 12


class FlowState(StrEnum):
    """What a flow is doing, in one word, counted from its members.

    All have ended: failed if one did without success (skipped is no failure), else completed. Then
    running if one is active, blocked if one waits for something other than a worker, else open. A
    cancelled flow is cancelled, whatever its members do.
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
class Policy:
    """How many edges of a group have to be satisfied, and what becomes of the other upstreams."""

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
        """The policy as JSON: its `kind`, and `k` and `on_satisfied` where it has them."""
        told: dict[str, Any] = {"kind": self.kind.value}
        if self.k is not None:
            told["k"] = self.k
        if self.on_satisfied is not None:
            told["on_satisfied"] = self.on_satisfied.value
        return told

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Self:
        """Read a policy; without `on_satisfied` the upstreams left over are cancelled."""
        if not isinstance(told, Mapping):
            raise InvalidInput(field="policy", problem="must be an object with a kind")
        rest = set(told) - {"kind", "k", "on_satisfied"}
        if rest:
            raise InvalidInput(field="policy", problem=f"has no {', '.join(sorted(rest))}")
        after = told.get("on_satisfied")
        after = OnSatisfied.CANCEL_REMAINING if after is None else after
        match told.get("kind"):
            case GroupPolicy.ALL_OF:
                if told.get("k") is not None or told.get("on_satisfied") is not None:
                    raise InvalidInput(
                        field="policy", problem="all_of takes neither k nor on_satisfied"
                    )
                return cls.all_of()
            case GroupPolicy.ANY_OF:
                if told.get("k") is not None:
                    raise InvalidInput(field="k", problem="only a quorum has one")
                return cls.any_of(after)
            case GroupPolicy.QUORUM:
                return cls.quorum(told.get("k", 0), after)
        raise InvalidInput(field="policy", problem="must be all_of, any_of or quorum")

    def needed(self, n: int) -> int:
        """How many of `n` edges have to be satisfied."""
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
    """A member to be: what its flow calls it, and the execution."""

    name: str
    submission: Submission


@dataclass(frozen=True, slots=True)
class Edge:
    """A dependency to be, between two nodes by their places in the graph.

    With `ref` the upstream's result becomes the payload of the downstream.
    """

    upstream: int
    downstream: int
    group: int = 0
    ref: str | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """The policy of some edges into a node; those that no group is named for are `all_of`."""

    node: int
    group: int = 0
    policy: Policy = field(default_factory=Policy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A whole flow to be stored. Nodes are named by their places: 0 is the first."""

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
        """The same graph with every node behind those it waits for; CycleDetected names a circle.

        Nodes keep their order where they can.
        """
        if all(edge.upstream < edge.downstream for edge in self.edges):
            return self
        order = _sorted([node.name for node in self.nodes], self.edges)
        place = {old: new for new, old in enumerate(order)}
        return replace(
            self,
            nodes=[self.nodes[old] for old in order],
            edges=[
                replace(edge, upstream=place[edge.upstream], downstream=place[edge.downstream])
                for edge in self.edges
            ],
            groups=[replace(group, node=place[group.node]) for group in self.groups],
        )

    def check(self) -> None:
        """Refuse what the engine would refuse, naming the field, before anything is sent."""
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
            at, one = f"nodes[{index}]", node.submission
            check_text(f"{at}.name", node.name, MAX_NAME_BYTES)
            if (first := names.setdefault(node.name, index)) != index:
                raise InvalidInput(
                    field=f"{at}.name", problem=f"{node.name!r} is the name of nodes[{first}] too"
                )
            if ids.setdefault(one.id.uuid, index) != index:
                raise InvalidInput(field=f"{at}.execution_id", problem="is given twice")
            if one.id.partition_key != self.id.partition_key:
                raise InvalidInput(
                    field=f"{at}.execution_id",
                    problem=f"must be in the partition of the flow, {self.id.partition_key}",
                )
            if one.route.namespace != self.namespace:
                raise InvalidInput(
                    field=f"{at}.namespace", problem="must be that of the other nodes"
                )
            for name in ("key", "parent_id"):
                if getattr(one, name) is not None:
                    raise InvalidInput(field=f"{at}.{name}", problem="does not go with a flow")
            if index in waiting:
                for name in ("delay", "delayed_until"):
                    if getattr(one, name) is not None:
                        raise InvalidInput(
                            field=f"{at}.{name}",
                            problem="does not go with a node that waits for others, as "
                            f"{node.name!r} does",
                        )
            try:
                one.check()
            except InvalidInput as error:
                raise InvalidInput(field=f"{at}.{error.field}", problem=error.problem) from error

    def _check_edges(self) -> None:
        seen: dict[tuple[int, int, int], int] = {}
        size = len(self.nodes)
        for index, edge in enumerate(self.edges):
            at = f"edges[{index}]"
            for name, place in (("from", edge.upstream), ("to", edge.downstream)):
                if isinstance(place, bool) or not isinstance(place, int) or not 0 <= place < size:
                    raise InvalidInput(field=f"{at}.{name}", problem=f"there is no node {place!r}")
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
                raise InvalidInput(field=at, problem=f"is edges[{first}] once more")

    def _check_groups(self) -> None:
        sizes = Counter((edge.downstream, edge.group) for edge in self.edges)
        seen: dict[tuple[int, int], int] = {}
        for index, group in enumerate(self.groups):
            at = f"groups[{index}]"
            key = (group.node, group.group)
            if not 0 <= group.node < len(self.nodes):
                raise InvalidInput(field=f"{at}.node", problem=f"there is no node {group.node!r}")
            if (first := seen.setdefault(key, index)) != index:
                raise InvalidInput(field=at, problem=f"is groups[{first}] once more")
            n = sizes[key]
            if not n:
                raise InvalidInput(
                    field=f"{at}.node",
                    problem=f"no edge leads to group {group.group} of "
                    f"{self.nodes[group.node].name!r}",
                )
            k = group.policy.k
            if k is not None and k > n:
                raise InvalidInput(
                    field=f"{at}.k", problem=f"is {k}, but only {n} edges lead to the group"
                )


def _sorted(names: Sequence[str], edges: Iterable[Edge]) -> list[int]:
    """The places of nodes so that each comes behind those it waits for."""
    downstreams: list[list[int]] = [[] for _ in names]
    waits = [0] * len(names)
    for edge in edges:
        downstreams[edge.upstream].append(edge.downstream)
        waits[edge.downstream] += 1
    free = [place for place, count in enumerate(waits) if not count]
    heapify(free)
    order = []
    while free:
        place = heappop(free)
        order.append(place)
        for downstream in downstreams[place]:
            waits[downstream] -= 1
            if not waits[downstream]:
                heappush(free, downstream)
    if len(order) < len(names):
        raise _cycle(names, downstreams, waits)
    return order


def _cycle(
    names: Sequence[str], downstreams: Sequence[Sequence[int]], waits: Sequence[int]
) -> CycleDetected:
    """The error for nodes that wait for each other: from any of them backwards, each waits for one
    that waits as well, until one is met again."""
    upstream: dict[int, int] = {}
    for place, others in enumerate(downstreams):
        if waits[place]:
            for other in others:
                upstream.setdefault(other, place)
    place = next(place for place, count in enumerate(waits) if count)
    walk: list[int] = []
    met: dict[int, int] = {}
    while place not in met:
        met[place] = len(walk)
        walk.append(place)
        place = upstream[place]
    circle = walk[met[place] :][::-1]
    start = circle.index(min(circle))
    path = [names[one] for one in (*circle[start:], *circle[:start], circle[start])]
    shown = path if len(path) <= _SHOWN_OF_A_CYCLE else [*path[:_SHOWN_OF_A_CYCLE], "…"]
    return CycleDetected(
        f"These nodes wait for each other in a circle: {' -> '.join(shown)}", path=path
    )


@dataclass(frozen=True, slots=True)
class FlowSubmitted:
    """The answer to a whole graph; a duplicate is one that was stored before."""

    id: FlowId
    is_duplicate: bool = False


@dataclass(frozen=True, slots=True)
class FlowCreated:
    """The answer to create: the flow, and whether it was there already."""

    id: FlowId
    is_new: bool


@dataclass(frozen=True, slots=True)
class MemberAdded:
    """The answer to add_execution; the counts are those after the call."""

    execution_id: ExecutionId
    is_new: bool
    node_count: int
    graph_revision: int


@dataclass(frozen=True, slots=True)
class EdgeStaged:
    """The answer to stage_dependency_edge: what the next one has to expect."""

    edge_id: UUID
    graph_revision: int


@dataclass(frozen=True, slots=True)
class DependencyApplied:
    """The answer to apply_dependency_to_child.

    `unsatisfied` counts the edges into the downstream that are applied and not resolved.
    """

    is_new: bool
    unsatisfied: int
    downstream_state: PublicState


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInfo:
    """Some edges into one member that are judged together, as they stand."""

    downstream_id: ExecutionId
    group_no: int
    policy: Policy
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
    """Everything about one flow but its members. `state` is open or cancelled; see `summary` for
    what its members make of it."""

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
    """One flow of a list. `state` is counted from its members, as in its summary."""

    id: FlowId
    namespace: str
    flow_kind: str
    state: FlowState
    node_count: int
    edge_count: int
    # members by public state; states that no member is in are left out
    counts: Mapping[PublicState, int]
    created_at: datetime
    mutated_at: datetime
    cancelled_at: datetime | None


@dataclass(frozen=True, slots=True)
class FlowPage:
    """Some flows in the order of their ids, and where the next page begins; None: there is none."""

    flows: list[FlowListed]
    after: FlowId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeInfo:
    """One dependency, as it stands."""

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
        """`pending` from staging on, `applied` when it holds its downstream back."""
        return "pending" if self.applied_at is None else "applied"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowMember:
    """One execution of a flow, in short."""

    id: ExecutionId
    name: str | None
    task: str
    lane: str
    public_state: PublicState
    version: int
    attempt_index: int
    created_at: datetime
    started_at: datetime | None
    terminal_at: datetime | None
    delayed_until: datetime | None
    failure_reason: str | None


@dataclass(frozen=True, slots=True)
class FlowSummary:
    """How far a flow is, counted from its members."""

    id: FlowId
    state: FlowState
    total: int
    # by public state; states that no member is in are left out
    counts: Mapping[PublicState, int]

    @property
    def unfinished(self) -> int:
        return sum(count for state, count in self.counts.items() if not state.is_terminal)


class FlowEligibility(StrEnum):
    """Whether an execution could be claimed as far as its dependencies go."""

    NOT_FOUND = "not_found"
    NOT_RUNNABLE = "not_runnable"
    OWNED = "owned"
    TERMINAL = "terminal"
    IMPOSSIBLE = "impossible"
    BLOCKED_BY_DEPENDENCIES = "blocked_by_dependencies"
    ELIGIBLE = "eligible"


@dataclass(frozen=True, slots=True)
class FlowInput:
    """What one upstream has for a member. Counted are the successes by which its group was
    decided: what a member sees does not change between its attempts."""

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
    """What became of cancelling a flow."""

    # every member that was to end has
    CANCELLED = "cancelled"
    # the flow is cancelled, and its members are being ended
    SCHEDULED = "scheduled"
    # somebody holds some of them and does not let go; they end as soon as that is over
    PARTIALLY_CANCELLED = "partially_cancelled"
    # nothing was changed: the flow had been cancelled before, by the policy and for the reason
    # that are told, or all its members had ended, and there is no policy
    ALREADY_TERMINAL = "already_terminal"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowCancellation:
    """The answer to cancelling a flow. Of one that was cancelled before, at most 1000 members are
    named."""

    id: FlowId
    outcome: FlowCancelOutcome
    policy: FlowCancelPolicy | None
    reason: str | None
    # how many members had not ended, and how many of them are to be ended
    member_count: int
    open_count: int
    # those that had not ended
    members: list[ExecutionId]
    # those that could not be ended, because somebody holds them
    failed: list[ExecutionId]


@dataclass(frozen=True, slots=True)
class MembersCancelled:
    """One step of ending the members of a cancelled flow."""

    handled: int
    # how many are left to be cancelled, and how many run on under cancel_pending
    remaining: int
    draining: int
    # who is left, if nobody could be handled
    held: list[ExecutionId]


@dataclass(frozen=True, slots=True)
class FlowRetried:
    """Which members of a flow were replayed, and which could not be, and why."""

    replayed: list[ExecutionId]
    refused: dict[ExecutionId, FlowFabricError]
