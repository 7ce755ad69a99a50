"""The flows of the model: how ends are propagated along edges, and how flows are cancelled.

This part of support/model.py covers edges, groups and backlogs. It is written from the rules. The
only locks are those that a test puts into `locked`, as if another session held them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from flowfabric.core.states import (
    AttemptLifecycle,
    BlockingReason,
    Eligibility,
    EventKind,
    Outcome,
    Phase,
)

if TYPE_CHECKING:
    from .model import Answer, Event, Execution, Fence, Grant

MICROSECOND = timedelta(microseconds=1)
_MILDEST_FIRST = ["flow_only", "cancel_pending", "cancel_all"]


@dataclass(slots=True, kw_only=True)
class Flow:
    flow_id: UUID
    namespace: str
    created_at: datetime
    mutated_at: datetime
    graph_revision: int = 0
    node_count: int = 0
    edge_count: int = 0
    cancelled_at: datetime | None = None
    cancel_policy: str | None = None
    cancel_reason: str | None = None
    cancelled_by: str | None = None
    trimmed_at: datetime | None = None

    @property
    def is_dead(self) -> bool:
        """Whether the members of the flow must not run any more."""
        return self.cancel_policy not in (None, "flow_only")


@dataclass(slots=True, kw_only=True)
class Edge:
    edge_id: UUID
    flow_id: UUID
    upstream_id: UUID
    downstream_id: UUID
    group_no: int
    applied_at: datetime | None
    resolution: str | None
    outcome: str | None = None
    resolved_at: datetime | None = None
    reopened_version: int | None = None
    kept_version: int | None = None


@dataclass(slots=True, kw_only=True)
class Group:
    downstream_id: UUID
    group_no: int
    flow_id: UUID
    policy: str = "all_of"
    k: int | None = None
    on_satisfied: str | None = None
    n: int = 0
    succeeded: int = 0
    failed: int = 0
    skipped: int = 0
    state: str = "pending"
    fired_at: datetime | None = None
    fired_k: int | None = None
    fired_n: int | None = None
    cancel_pending: bool = False
    cancel_members: list[UUID] = field(default_factory=list)
    cancel_reason: str | None = None
    cancel_enqueued_at: datetime | None = None

    @property
    def needed(self) -> int:
        return {"all_of": self.n, "any_of": 1}.get(self.policy, self.k or 0)

    def judge(self) -> str:
        if self.n and self.succeeded >= self.needed:
            return "satisfied"
        if self.n and self.failed + self.skipped > self.n - self.needed:
            return "impossible"
        return "pending"

    def count(self, outcome: str, by: int = 1) -> None:
        if outcome == Outcome.SUCCESS:
            self.succeeded += by
        elif outcome == Outcome.SKIPPED:
            self.skipped += by
        else:
            self.failed += by


@dataclass(slots=True, kw_only=True)
class Backlog:
    flow_id: UUID
    policy: str
    requested_at: datetime
    requested_by: str | None
    reason: str | None
    due_at: datetime
    members: set[UUID]


@dataclass(frozen=True, slots=True)
class Graph:
    """A flow to submit. Edges and rules name the members by their places in `nodes`."""

    nodes: tuple[Execution, ...]
    edges: tuple[tuple[int, int, int], ...]
    rules: Mapping[tuple[int, int], tuple[str, int | None, str | None]]

    @staticmethod
    def edge_id(flow_id: UUID, at: int) -> UUID:
        """Return the id of an edge. It contains the flow id and the place of the edge."""
        text = str(flow_id)
        return UUID(f"{text[:14]}8{at >> 12:03x}-8{at & 4095:03x}{text[-13:]}")


class Flows:
    """The half of the model that handles flows. The other half is support.model.Model."""

    now: datetime
    executions: dict[UUID, Execution]
    grants: dict[UUID, Grant]
    locked: set[UUID]
    touched: set[UUID]
    events: list[Event]
    event_trims: dict[UUID, datetime]
    _ended: list[Execution]

    def __init__(self) -> None:
        self.flows: dict[UUID, Flow] = {}
        self.edges: dict[UUID, Edge] = {}
        self.groups: dict[tuple[UUID, int], Group] = {}
        self.backlogs: dict[UUID, Backlog] = {}
        # How often each flow was cancelled. Each time is one event.
        self.cancel_counts: dict[UUID, int] = {}
        # Whether the last ends left siblings to cancel, or other executions to wake.
        self.has_siblings = False
        self.has_more = False

    if TYPE_CHECKING:

        def _at(self, e: Execution) -> datetime: ...
        def _tell(self, now: datetime | None = None) -> int: ...

        _move: Any
        _end: Any
        _judge: Any

        def _wait(self, e: Execution, until: datetime | None, why: BlockingReason) -> None: ...

    # Reading

    def _flow_of(self, e: Execution) -> Flow | None:
        return self.flows.get(e.flow_id) if e.flow_id is not None else None

    def _is_dead(self, e: Execution) -> bool:
        flow = self._flow_of(e)
        return flow is not None and flow.is_dead

    def _groups_of(self, id_: UUID) -> list[Group]:
        return [group for group in self.groups.values() if group.downstream_id == id_]

    def _members(self, flow_id: UUID) -> list[Execution]:
        return sorted(
            (e for e in self.executions.values() if e.flow_id == flow_id),
            key=lambda e: e.execution_id,
        )

    def _open_edges(self, e: Execution) -> list[Edge]:
        """Return the edges that the end of this execution has not resolved yet."""
        return [
            edge
            for edge in self.edges.values()
            if edge.upstream_id == e.execution_id
            and edge.resolution == "unsatisfied"
            and not (edge.reopened_version is not None and edge.reopened_version >= e.version)
        ]

    def _stale_edges(self, e: Execution) -> list[Edge]:
        """Return the edges that keep an earlier result for a member that has not started."""
        if e.outcome != Outcome.SUCCESS:
            return []
        return [
            edge
            for edge in self.edges.values()
            if edge.upstream_id == e.execution_id
            and edge.kept_version is not None
            and self.executions[edge.downstream_id].total_attempt_count == 0
        ]

    def _renew(self, ended: Iterable[Execution]) -> int:
        """Pass the new results to members that have not started. Return how many there are."""
        told = set()
        for e in ended:
            for edge in self._stale_edges(e):
                if edge.downstream_id not in self.locked:
                    edge.kept_version = None
                    told.add(edge.downstream_id)
        return len(told)

    def _keep(self, e: Execution) -> None:
        """Keep the result of an execution for its downstreams, because it will be replayed."""
        for edge in self.edges.values():
            is_promised = edge.upstream_id == e.execution_id and edge.resolution == "satisfied"
            if is_promised and edge.kept_version is None and e.outcome == Outcome.SUCCESS:
                edge.kept_version = e.version

    def _is_held_back(self, e: Execution) -> bool:
        """Return whether an unresolved edge in an undecided group holds the execution back."""
        return any(
            edge.downstream_id == e.execution_id
            and edge.resolution == "unsatisfied"
            and self.groups[edge.downstream_id, edge.group_no].state == "pending"
            for edge in self.edges.values()
        )

    # Resolution

    def _resolve(self, ended: Sequence[Execution]) -> int:
        """Propagate ends to the waiting members. Return how many members were affected."""
        told: set[UUID] = set()
        counted: dict[tuple[UUID, int], list[Edge]] = {}
        for e in ended:
            for edge in self._open_edges(e):
                if edge.downstream_id not in self.locked:
                    told.add(edge.downstream_id)
                    counted.setdefault((edge.downstream_id, edge.group_no), []).append(edge)
        fired = [
            self.groups[key]
            for key, edges in sorted(counted.items())
            if self._count(self.groups[key], edges)
        ]
        over = [
            self.executions[id_]
            for id_ in sorted({g.downstream_id for g in fired if g.state == "impossible"})
            if self.executions[id_].phase != Phase.TERMINAL
            # A member of a cancelled flow is cancelled, not skipped.
            and not self._is_dead(self.executions[id_])
        ]
        for e in over:
            self._end(
                "T5",
                e,
                Outcome.SKIPPED,
                "skip",
                EventKind.SKIPPED,
                lease_end="skip",
                attempt_as=AttemptLifecycle.ENDED_CANCELLED,
                takes_lease=True,
            )
        for id_ in sorted({g.downstream_id for g in fired if g.state == "satisfied"}):
            self._satisfy(self.executions[id_])
        for group in fired:
            if group.on_satisfied == "cancel_remaining":
                self._cancel_rest(group)
        return len(told)

    def _count(self, group: Group, edges: Iterable[Edge]) -> bool:
        """Resolve edges of a group. Return whether that decided the group."""
        before = [
            edge.resolved_at
            for edge in self.edges.values()
            if (edge.downstream_id, edge.group_no) == (group.downstream_id, group.group_no)
            and edge.resolved_at is not None
        ]
        for edge in edges:
            outcome = self.executions[edge.upstream_id].outcome
            edge.outcome = outcome
            edge.resolution = "satisfied" if outcome == Outcome.SUCCESS else "impossible"
            # Use a time after the decision, so that the edges that counted then never change.
            edge.resolved_at = max(
                self.now, (group.fired_at or self.now - MICROSECOND) + MICROSECOND
            )
            edge.reopened_version = None
            group.count(outcome)
        if group.state != "pending":
            return False
        group.state = group.judge()
        if group.state == "pending":
            return False
        group.fired_at = max([self.now, *before])
        group.fired_k, group.fired_n = group.needed, group.n
        return True

    def _satisfy(self, e: Execution) -> None:
        """Make an execution eligible (T4), unless another group holds it back."""
        if any(group.state != "satisfied" for group in self._groups_of(e.execution_id) if group.n):
            return
        if e.eligibility == Eligibility.BLOCKED_BY_DEPENDENCIES and e.wait_left is None:
            mutated_at = max(self._at(e), e.mutated_at)
            self._wait(e, None, BlockingReason.NONE)
            e.blocking_detail = None
            self._move("T4", e, "satisfy_dependencies", None)
            e.mutated_at = mutated_at

    def _cancel_rest(self, group: Group) -> None:
        members = sorted(
            {
                edge.upstream_id
                for edge in self.edges.values()
                if (edge.downstream_id, edge.group_no) == (group.downstream_id, group.group_no)
                and edge.resolution == "unsatisfied"
            }
        )
        self._cancel_listed(group, members, f"sibling_quorum_{group.state}")

    def _cancel_listed(
        self, group: Group, members: Sequence[UUID], reason: str | None
    ) -> dict[str, int]:
        """Cancel the upstreams that a group no longer needs.

        Upstreams that another group waits for are not cancelled. Locked upstreams are cancelled
        later.
        """
        counts = {"cancelled": 0, "already_terminal": 0, "not_found": 0, "retained": 0}
        left = []
        unneeded = []
        for id_ in members:
            e = self.executions.get(id_)
            if e is None:
                counts["not_found"] += 1
            elif e.phase == Phase.TERMINAL:
                counts["already_terminal"] += 1
            elif id_ in self.locked:
                left.append(id_)
            elif not self._is_awaited_by(group, id_):
                # It ended after it was listed, and was then replayed.
                counts["already_terminal"] += 1
            elif self._is_needed(e, group):
                counts["retained"] += 1
            else:
                counts["cancelled"] += 1
                unneeded.append(e)
        for e in unneeded:
            self._cancel_as(e, reason, None)
        group.cancel_pending = bool(left)
        group.cancel_members = left
        group.cancel_reason = reason
        group.cancel_enqueued_at = (group.cancel_enqueued_at or self.now) if left else None
        self.has_siblings |= bool(left)
        return counts

    def _is_needed(self, e: Execution, group: Group) -> bool:
        return any(
            edge.upstream_id == e.execution_id
            and edge.resolution == "unsatisfied"
            and self.groups[edge.downstream_id, edge.group_no] is not group
            and self.groups[edge.downstream_id, edge.group_no].state == "pending"
            for edge in self.edges.values()
        )

    def _cancel_as(self, e: Execution, reason: str | None, actor: str | None) -> None:
        """Cancel an execution (T23) because of its flow."""
        self._end(
            "T23",
            e,
            Outcome.CANCELLED,
            "cancel",
            EventKind.CANCELLED,
            lease_end="cancel",
            attempt_as=AttemptLifecycle.ENDED_CANCELLED,
            takes_lease=True,
            actor=actor,
        )
        e.cancellation_reason, e.cancelled_by = reason, "flow_cascade"

    def _cancel_flow_members(self, e: Execution) -> None:
        flow = self._flow_of(e)
        assert flow is not None
        self._cancel_as(e, flow.cancel_reason or "flow_cancelled", flow.cancelled_by)

    def _blame(self, e: Execution) -> None:
        """Name the flow as the reason of an execution that ended as cancelled by itself."""
        flow = self._flow_of(e)
        assert flow is not None
        e.cancellation_reason = flow.cancel_reason or "flow_cancelled"
        e.cancelled_by = "flow_cascade"

    # A whole graph

    def submit_flow(self, flow_id: UUID, namespace: str, graph: Graph) -> str:
        """Submit a well-formed flow (T1, T3). Return whether it is new or existed already."""
        if flow_id in self.flows:
            return "duplicate"
        self.flows[flow_id] = Flow(
            flow_id=flow_id,
            namespace=namespace,
            created_at=self.now,
            mutated_at=self.now,
            graph_revision=len(graph.nodes) + len(graph.edges),
            node_count=len(graph.nodes),
            edge_count=len(graph.edges),
        )
        waiting = {to for _, to, _ in graph.edges}
        feeding = {from_ for from_, _, _ in graph.edges}
        for at, e in enumerate(graph.nodes):
            e.flow_id = flow_id
            e.is_awaited = at in feeding
            if at in waiting:
                e.eligibility = Eligibility.BLOCKED_BY_DEPENDENCIES
                e.blocking_reason = BlockingReason.WAITING_FOR_CHILDREN
            self.executions[e.execution_id] = e
            number = "T3" if at in waiting else "T1"
            self._move(number, e, "submit", EventKind.SUBMITTED, with_attempt=False)
        for at, (from_, to, group_no) in enumerate(graph.edges):
            down = graph.nodes[to].execution_id
            edge_id = graph.edge_id(flow_id, at)
            self.edges[edge_id] = Edge(
                edge_id=edge_id,
                flow_id=flow_id,
                upstream_id=graph.nodes[from_].execution_id,
                downstream_id=down,
                group_no=group_no,
                applied_at=self.now,
                resolution="unsatisfied",
            )
            policy, k, on_satisfied = graph.rules.get((to, group_no), ("all_of", None, None))
            group = self.groups.setdefault(
                (down, group_no),
                Group(
                    downstream_id=down,
                    group_no=group_no,
                    flow_id=flow_id,
                    policy=policy,
                    k=k,
                    on_satisfied=on_satisfied,
                ),
            )
            group.n += 1
        return "created"

    # A graph piece by piece

    @staticmethod
    def _refusal(word: str, **facts: Any) -> Exception:
        from .model import Refusal

        return Refusal(word, **facts)

    def _lock_flow(self, namespace: str | None, flow_id: UUID) -> Flow:
        flow = self.flows.get(flow_id)
        if flow is None or namespace not in (None, flow.namespace):
            raise self._refusal("flow_not_found")
        return flow

    def _check_graph_open(self, flow: Flow) -> None:
        if flow.cancelled_at or flow.trimmed_at:
            raise self._refusal("flow_already_terminal")

    def _check_member(self, flow: Flow, id_: UUID) -> None:
        e = self.executions.get(id_)
        if e is None or e.flow_id != flow.flow_id:
            raise self._refusal("not_in_flow")

    def create_flow(self, namespace: str, flow_id: UUID) -> tuple[str, int]:
        flow = self.flows.get(flow_id)
        if flow is None:
            self.flows[flow_id] = Flow(
                flow_id=flow_id, namespace=namespace, created_at=self.now, mutated_at=self.now
            )
            return "created", 0
        if flow.namespace != namespace:
            raise self._refusal("invalid_input", field="flow_id")
        return "already_satisfied", flow.graph_revision

    def add_execution(
        self, namespace: str | None, flow_id: UUID, id_: UUID
    ) -> tuple[str, int, int]:
        flow = self._lock_flow(namespace, flow_id)
        e = self.executions.get(id_)
        if e is not None and e.flow_id == flow_id:
            return "already_member", flow.node_count, flow.graph_revision
        self._check_graph_open(flow)
        if e is None or e.route.namespace != flow.namespace:
            raise self._refusal("not_found")
        if e.flow_id is not None:
            raise self._refusal("already_in_flow")
        e.flow_id = flow_id
        e.mutated_at = max(self._at(e), e.mutated_at)
        self.touched.add(id_)
        flow.node_count += 1
        flow.graph_revision += 1
        flow.mutated_at = max(self.now, flow.mutated_at)
        return "added", flow.node_count, flow.graph_revision

    def set_policy(
        self,
        namespace: str | None,
        flow_id: UUID,
        id_: UUID,
        group_no: int,
        rule: tuple[str, int | None, str | None],
    ) -> str:
        flow = self._lock_flow(namespace, flow_id)
        self._check_member(flow, id_)
        group = self.groups.get((id_, group_no))
        if group is not None and (group.policy, group.k, group.on_satisfied) == rule:
            return "already_set"
        self._check_graph_open(flow)
        if group is not None and group.n:
            raise self._refusal("invalid_input", field="policy")
        policy, k, on_satisfied = rule
        self.groups[id_, group_no] = Group(
            downstream_id=id_,
            group_no=group_no,
            flow_id=flow_id,
            policy=policy,
            k=k,
            on_satisfied=on_satisfied,
        )
        flow.mutated_at = max(self.now, flow.mutated_at)
        return "set"

    def stage(
        self,
        namespace: str | None,
        flow_id: UUID,
        edge_id: UUID,
        ends: tuple[UUID, UUID],
        group_no: int,
        revision: int,
    ) -> tuple[str, int]:
        upstream, downstream = ends
        if upstream == downstream:
            raise self._refusal("self_referencing_edge")
        flow = self._lock_flow(namespace, flow_id)
        known = self.edges.get(edge_id)
        if (
            known is not None
            and (known.upstream_id, known.downstream_id, known.group_no) == (*ends, group_no)
            and revision < flow.graph_revision
        ):
            return "staged", revision + 1
        self._check_graph_open(flow)
        if revision != flow.graph_revision:
            raise self._refusal("stale_graph_revision")
        self._check_member(flow, upstream)
        self._check_member(flow, downstream)
        if known is not None:
            raise self._refusal("dependency_exists")
        if upstream in self._downstreams(downstream):
            raise self._refusal("cycle_detected")
        group = self.groups.get((downstream, group_no))
        if group is not None and group.state != "pending":
            raise self._refusal("invalid_input", field="group_no")
        if group is None:
            group = Group(downstream_id=downstream, group_no=group_no, flow_id=flow_id)
            self.groups[downstream, group_no] = group
        self.edges[edge_id] = Edge(
            edge_id=edge_id,
            flow_id=flow_id,
            upstream_id=upstream,
            downstream_id=downstream,
            group_no=group_no,
            applied_at=None,
            resolution=None,
        )
        group.n += 1
        flow.edge_count += 1
        flow.graph_revision += 1
        flow.mutated_at = max(self.now, flow.mutated_at)
        return "staged", flow.graph_revision

    def _downstreams(self, id_: UUID) -> set[UUID]:
        reached, left = {id_}, [id_]
        while left:
            at = left.pop()
            for edge in self.edges.values():
                if edge.upstream_id == at and edge.downstream_id not in reached:
                    reached.add(edge.downstream_id)
                    left.append(edge.downstream_id)
        return reached

    def apply(
        self,
        namespace: str | None,
        flow_id: UUID,
        edge_id: UUID,
        ends: tuple[UUID, UUID],
        fence: Fence | None,
    ) -> Answer:
        """Apply a dependency (T3), and propagate the end of the upstream if it has ended.

        The holder of the lease may add dependencies to a running execution.
        """
        from .model import Answer

        edge = self.edges.get(edge_id)
        if (
            edge is None
            or edge.flow_id != flow_id
            or (edge.upstream_id, edge.downstream_id) != ends
        ):
            raise self._refusal("invalid_dependency", field="edge_id")
        e = self.executions[edge.downstream_id]
        if namespace not in (None, e.route.namespace):
            raise self._refusal("not_found")
        word, is_pending = "already_applied", False
        if edge.applied_at is None:
            self._check_graph_open(self.flows[flow_id])
            can_wait = (Eligibility.ELIGIBLE_NOW, Eligibility.BLOCKED_BY_DEPENDENCIES)
            if e.phase == Phase.ACTIVE and fence is not None:
                held, answer = self._judge(namespace, fence, "wait_children")
                if held is None:
                    return Answer(answer.word)
            elif e.eligibility not in can_wait or e.wait_left is not None:
                raise self._refusal("not_runnable")
            clock, self.now = self.now, self._at(e)
            is_pending = self._apply(edge, e)
            word, self.now = "applied", clock
        open_ = sum(
            other.downstream_id == edge.downstream_id and other.resolution == "unsatisfied"
            for other in self.edges.values()
        )
        facts = {"open": open_, "state": e.public_state}
        return Answer(word, {**facts, "wakes_pending": True} if is_pending else facts)

    def _apply(self, edge: Edge, e: Execution) -> bool:
        edge.applied_at, edge.resolution = self.now, "unsatisfied"
        upstream = self.executions[edge.upstream_id]
        upstream.is_awaited = True
        self.touched |= {edge.upstream_id, edge.downstream_id}
        state = self.groups[edge.downstream_id, edge.group_no].state
        if e.eligibility == Eligibility.ELIGIBLE_NOW and state == "pending":
            e.eligibility = Eligibility.BLOCKED_BY_DEPENDENCIES
            e.blocking_reason = BlockingReason.WAITING_FOR_CHILDREN
            mutated_at = max(self.now, e.mutated_at)
            self._move("T3", e, "apply_dependency", None)
            e.mutated_at = mutated_at
        if upstream.phase != Phase.TERMINAL:
            return False
        self._ended.append(upstream)
        self._tell()
        return upstream.wakes_pending or self.has_more

    def promote_blocked(self, namespace: str | None, id_: UUID) -> str:
        """Make a blocked execution eligible (T4), as an operator."""
        e = self.executions.get(id_)
        if e is None or namespace not in (None, e.route.namespace):
            raise self._refusal("not_found")
        if e.phase == Phase.TERMINAL:
            raise self._refusal("already_terminal")
        if e.phase != Phase.RUNNABLE:
            raise self._refusal("not_runnable")
        if e.eligibility == Eligibility.ELIGIBLE_NOW and e.cause == "satisfy_dependencies":
            return "promoted"
        if e.eligibility != Eligibility.BLOCKED_BY_DEPENDENCIES:
            raise self._refusal("not_blocked_by_deps")
        if e.wait_left is not None or any(
            group.n and group.state != "satisfied" for group in self._groups_of(id_)
        ):
            raise self._refusal("deps_not_satisfied")
        self._wait(e, None, BlockingReason.NONE)
        self._move("T4", e, "satisfy_dependencies", None)
        return "promoted"

    # Siblings that were left

    def cancel_siblings(self) -> int:
        handled = 0
        for group in sorted(
            (g for g in self.groups.values() if g.cancel_pending),
            key=lambda g: g.cancel_enqueued_at or self.now,
        ):
            if group.downstream_id not in self.locked:
                counts = self._cancel_listed(group, group.cancel_members, group.cancel_reason)
                handled += sum(counts.values())
        self._tell()
        return handled

    def reconcile_siblings(self) -> int:
        """Clear the lists of siblings that have all ended. Cancels nothing."""
        handled = 0
        for group in self.groups.values():
            listed = [self.executions.get(id_) for id_ in group.cancel_members]
            if (
                group.cancel_pending
                and group.downstream_id not in self.locked
                and all(e is None or e.phase == Phase.TERMINAL for e in listed)
            ):
                group.cancel_pending, group.cancel_members = False, []
                group.cancel_enqueued_at = None
                handled += 1
        return handled

    # Cancelling a flow

    def cancel_header(
        self,
        namespace: str | None,
        flow_id: UUID,
        policy: str,
        reason: str | None,
        actor: str | None,
        grace: timedelta,
    ) -> tuple[str, str | None, str | None, int]:
        """Cancel a flow: block its waiting members (T6). Also return how many members to end."""
        from .model import Event

        flow = self._lock_flow(namespace, flow_id)
        members = self._members(flow_id)
        open_ = [e for e in members if e.phase != Phase.TERMINAL]
        is_raised = flow.cancel_policy is not None and _MILDEST_FIRST.index(
            policy
        ) > _MILDEST_FIRST.index(flow.cancel_policy)
        if (members and not open_) or (flow.cancelled_at and not (is_raised and open_)):
            backlog = self.backlogs.get(flow_id)
            left = len(backlog.members) if backlog else 0
            return "already_terminal", flow.cancel_policy, flow.cancel_reason, left
        at = max(self.now, flow.mutated_at)
        number = self.cancel_counts[flow_id] = self.cancel_counts.get(flow_id, 0) + 1
        flow.cancelled_at = flow.mutated_at = at
        flow.cancel_policy = policy
        flow.cancel_reason = reason or flow.cancel_reason
        flow.cancelled_by = actor or flow.cancelled_by
        self.events.append(
            Event(
                execution_id=flow_id,
                version=number,
                kind=EventKind.FLOW_CANCEL_REQUESTED,
                occurred_at=at,
                actor=actor,
            )
        )
        if policy == "flow_only" or not open_:
            return "cancelled", policy, flow.cancel_reason, 0
        before = self.backlogs.get(flow_id)
        self.backlogs[flow_id] = Backlog(
            flow_id=flow_id,
            policy=policy,
            requested_at=at,
            requested_by=flow.cancelled_by,
            reason=flow.cancel_reason,
            due_at=at + grace,
            # A member that has ended stays on the backlog until it is taken off.
            members={e.execution_id for e in open_} | (before.members if before else set()),
        )
        clock, self.now = self.now, at
        for e in open_:
            is_free = e.execution_id not in self.locked
            if e.phase == Phase.RUNNABLE and e.wait_left is None and is_free:
                self._pause(e, flow.cancel_reason)
        self.now = clock
        return "cancelled", policy, flow.cancel_reason, len(self.backlogs[flow_id].members)

    def _pause(self, e: Execution, reason: str | None) -> None:
        is_paused = e.eligibility == Eligibility.BLOCKED_BY_OPERATOR
        e.eligibility = Eligibility.BLOCKED_BY_OPERATOR
        e.blocking_reason = BlockingReason.PAUSED_BY_FLOW_CANCEL
        e.blocking_detail = reason
        e.blocked_at = self._at(e)
        e.delayed_until = e.line_id = None
        self.grants.pop(e.execution_id, None)
        mutated_at = max(self._at(e), e.mutated_at)
        self.touched.add(e.execution_id)
        if not is_paused:
            self._move("T6", e, "block", None)
        e.mutated_at = mutated_at

    def cancel_members(self, namespace: str | None, flow_id: UUID) -> tuple[int, int, int, bool]:
        """Cancel the members on the backlog (T23), except running ones under cancel_pending.

        Return how many were taken off, how many are left to end, and how many still run.
        """
        flow = self._lock_flow(namespace, flow_id)
        backlog = self.backlogs.get(flow_id)
        if backlog is None:
            return 0, 0, 0, False
        handled, is_pending = self._cancel_backlog_members(backlog)
        left = [self.executions[id_] for id_ in backlog.members]
        is_gentle = flow.cancel_policy == "cancel_pending"
        draining = sum(self._drains(e) for e in left) if is_gentle else 0
        return handled, len(left) - draining, draining, is_pending

    def _drains(self, e: Execution) -> bool:
        return e.is_leased and e.lease_expires_at is not None and e.lease_expires_at > self.now

    def _cancel_backlog_members(self, backlog: Backlog) -> tuple[int, bool]:
        doomed = [
            e
            for e in self._members(backlog.flow_id)
            if e.execution_id in backlog.members
            and e.phase != Phase.TERMINAL
            and e.execution_id not in self.locked
            and not (backlog.policy == "cancel_pending" and self._drains(e))
        ]
        for e in doomed:
            self._cancel_flow_members(e)
        first = [e for e in doomed if e.is_awaited]
        self._tell()
        is_pending = any(e.wakes_pending for e in first) or (bool(first) and self.has_more)
        gone = {
            id_
            for id_ in backlog.members
            if id_ not in self.executions or self.executions[id_].phase == Phase.TERMINAL
        }
        backlog.members -= gone
        if not backlog.members:
            del self.backlogs[backlog.flow_id]
        return len(gone), is_pending

    def ack_member(self, namespace: str | None, flow_id: UUID, id_: UUID) -> int:
        flow, backlog = self.flows.get(flow_id), self.backlogs.get(flow_id)
        if backlog is None or flow is None or namespace not in (None, flow.namespace):
            return 0
        e = self.executions.get(id_)
        if e is not None and e.flow_id == flow_id and e.phase != Phase.TERMINAL:
            raise self._refusal("not_terminal")
        backlog.members.discard(id_)
        if not backlog.members:
            del self.backlogs[flow_id]
        return len(backlog.members)

    def cancel_backlog(self) -> int:
        """Work on all due backlogs. A backlog without progress becomes due again later."""
        handled = 0
        due = [b for b in self.backlogs.values() if b.due_at <= self.now]
        for backlog in sorted(due, key=lambda b: b.due_at):
            done, _ = self._cancel_backlog_members(backlog)
            handled += done
            if not done:
                backlog.due_at = self.now + timedelta(seconds=15)
        return handled

    # Replay

    def _reopen(self, e: Execution) -> list[Execution]:
        """Reopen the edges that the end of a member made impossible, for its replay.

        Return the downstreams that were skipped because of it and are possible again. They are
        replayed too. Also reopen the impossible edges into the member itself.
        """
        self._tell_owed(e)
        again: list[Execution] = []
        left = [e]
        while left:
            opened = [
                self._open_again(edge, None)
                for one in left
                for edge in self.edges.values()
                if edge.upstream_id == one.execution_id and edge.resolution == "impossible"
            ]
            self._recount(opened)
            self._unlist(opened, left)
            left = [
                self.executions[id_]
                for id_ in sorted({group.downstream_id for group in opened})
                if self.executions[id_].outcome == Outcome.SKIPPED
                and self.executions[id_] not in again
                and not any(group.state == "impossible" for group in self._groups_of(id_))
            ]
            again += left
        opened = []
        for edge in self.edges.values():
            is_against = edge.downstream_id == e.execution_id and edge.resolution == "impossible"
            if is_against and self.groups[e.execution_id, edge.group_no].state != "satisfied":
                upstream = self.executions.get(edge.upstream_id)
                has_ended = upstream is not None and upstream.phase == Phase.TERMINAL
                version = upstream.version if upstream is not None and has_ended else None
                opened.append(self._open_again(edge, version))
        self._recount(opened)
        if any(group.state == "impossible" for group in self._groups_of(e.execution_id)):
            raise self._refusal("deps_not_satisfied")
        return again

    def _tell_owed(self, e: Execution) -> None:
        """Finish the propagation of ends before a replay undoes these ends."""
        while owing := [
            other
            for other in self._reached(e)
            if other.wakes_pending and (other.outcome == Outcome.SKIPPED or other is e)
        ]:
            self._ended += owing
            self._tell()

    def _reached(self, e: Execution) -> list[Execution]:
        reached, left = [e], [e]
        while left:
            one = left.pop()
            for edge in self.edges.values():
                if edge.upstream_id == one.execution_id and edge.resolution == "impossible":
                    down = self.executions[edge.downstream_id]
                    if down not in reached:
                        reached.append(down)
                        left += [down] if down.outcome == Outcome.SKIPPED else []
        return reached

    def _open_again(self, edge: Edge, version: int | None) -> Group:
        edge.resolution, edge.outcome, edge.resolved_at = "unsatisfied", None, None
        edge.reopened_version = version
        return self.groups[edge.downstream_id, edge.group_no]

    def _recount(self, groups: Iterable[Group]) -> None:
        for group in groups:
            group.succeeded = group.failed = group.skipped = 0
            for edge in self.edges.values():
                is_of_it = edge.downstream_id == group.downstream_id
                if is_of_it and edge.group_no == group.group_no and edge.outcome is not None:
                    group.count(edge.outcome)
            if group.state == "impossible":
                is_untouched = not group.succeeded + group.failed + group.skipped
                group.state = "pending" if is_untouched else group.judge()
            if group.state == "pending":
                group.fired_at = group.fired_k = group.fired_n = None
                group.cancel_pending, group.cancel_members = False, []
                group.cancel_reason = group.cancel_enqueued_at = None

    def _unlist(self, groups: Iterable[Group], replayed: Sequence[Execution]) -> None:
        """Remove replayed executions from the lists of siblings to cancel."""
        ids = {e.execution_id for e in replayed}
        for group in groups:
            group.cancel_members = [id_ for id_ in group.cancel_members if id_ not in ids]
            if not group.cancel_members:
                group.cancel_pending, group.cancel_enqueued_at = False, None

    def _is_awaited_by(self, group: Group, id_: UUID) -> bool:
        return any(
            edge.upstream_id == id_
            and (edge.downstream_id, edge.group_no) == (group.downstream_id, group.group_no)
            and edge.resolution == "unsatisfied"
            for edge in self.edges.values()
        )

    # Retention

    def _is_in_unfinished_flow(self, e: Execution) -> bool:
        return e.flow_id is not None and any(
            other.phase != Phase.TERMINAL for other in self._members(e.flow_id)
        )

    def _trim_members(self, gone: Sequence[Execution], event_floor: timedelta) -> None:
        """Delete the edges, groups and backlog entries of trimmed members.

        Delete a flow with its last member.
        """
        for e in gone:
            if e.flow_id is None:
                continue
            id_ = e.execution_id
            self.edges = {
                key: edge
                for key, edge in self.edges.items()
                if id_ not in (edge.upstream_id, edge.downstream_id)
            }
            self.groups = {key: group for key, group in self.groups.items() if key[0] != id_}
            if e.flow_id in self.backlogs:
                self.backlogs[e.flow_id].members.discard(id_)
            flow = self.flows[e.flow_id]
            flow.trimmed_at = flow.trimmed_at or self.now
        for flow_id in {e.flow_id for e in gone if e.flow_id is not None}:
            if not self._members(flow_id):
                flow = self.flows.pop(flow_id)
                self.backlogs.pop(flow_id, None)
                # A cancelled flow has its own event.
                if flow.cancelled_at:
                    self.event_trims[flow_id] = max(flow.cancelled_at + event_floor, self.now)
