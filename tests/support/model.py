"""A model of the database functions: the answers, changes and events of every operation.

It is a pure state machine in Python, written from the state model (T1 to T31) and the decisions,
not from the SQL. It has one clock, no locks and no concurrency. Tests run it beside a real database
and compare the two after every call (tests/model).

    model = Model(now)
    model.submit(Item(id, route, ...))      # Answer("created")
    model.claim(worker, ...)                # the leases, in order
    model.events                            # the events of the last operation

An operation returns an `Answer`. If the database raises it as an error, `is_raised` is True.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from flowfabric.core.states import (
    AttemptLifecycle,
    AttemptState,
    AttemptType,
    BlockingReason,
    Eligibility,
    EventKind,
    FailureClass,
    GrantKind,
    KeyScope,
    LaneState,
    Outcome,
    Ownership,
    Phase,
    PublicState,
    StepKind,
)

from .flow_model import Flows

NOTHING = timedelta()
BLOCKS = {
    "waiting_for_budget": Eligibility.BLOCKED_BY_BUDGET,
    "waiting_for_quota": Eligibility.BLOCKED_BY_QUOTA,
    "waiting_for_capable_worker": Eligibility.BLOCKED_BY_ROUTE,
    "paused_by_operator": Eligibility.BLOCKED_BY_OPERATOR,
    "paused_by_policy": Eligibility.BLOCKED_BY_OPERATOR,
}
RECLAIMABLE = (Ownership.LEASE_EXPIRED_RECLAIMABLE, Ownership.LEASE_REVOKED)
CLASSES = frozenset(FailureClass)
KINDS = frozenset(StepKind)
CENTURY = timedelta(days=36525)
LONE_CRASHES = 3


# Arguments


@dataclass(frozen=True, slots=True)
class Route:
    namespace: str
    lane: str
    capabilities: frozenset[str] = frozenset()

    @property
    def place(self) -> tuple[str, str]:
        """The namespace and the lane of the route."""
        return self.namespace, self.lane


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """A retry policy, with a fixed delay or a delay that starts at `initial` and grows."""

    max_retries: int = 3
    fixed: timedelta | None = None
    initial: timedelta = timedelta(seconds=1)
    most: timedelta = timedelta(minutes=1)
    multiplier: float = 2.0
    categories: frozenset[str] = frozenset()

    def wait(self, retries: int, class_: str, category: str | None) -> timedelta | None:
        """Return the time until the next attempt, or None if there is none."""
        if retries >= self.max_retries or class_ in (
            FailureClass.PERMANENT,
            FailureClass.CANCELLED,
        ):
            return None
        if self.categories and (category or class_) not in self.categories:
            return None
        if self.fixed is not None:
            return self.fixed
        return min(self.initial * self.multiplier**retries, self.most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    retry: Retry | None = None
    attempt_timeout: timedelta | None = None
    max_reclaims: int = 100
    max_replays: int = 10
    retention: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One execution to submit."""

    id: UUID | None
    route: Route | None
    priority: int = 0
    delay: timedelta | None = None
    deadline: timedelta | None = None
    policy: Policy = Policy()
    key: str | None = None
    fingerprint: bytes | None = None
    scope: str = KeyScope.WINDOW
    window: timedelta = timedelta(days=1)
    parent_id: UUID | None = None
    with_parent: bool | None = None
    # The ids of gates and budgets (support/gate_model.py).
    quotas: tuple[int, ...] = ()
    budgets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Fence:
    """The proof that a caller holds a lease: execution, lease, epoch and attempt."""

    execution_id: UUID | None
    lease_id: UUID | None
    epoch: int | None
    attempt_id: UUID | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step to record. A sleep has a delay or an end."""

    name: str | None
    occurrence: int | None = 0
    position: int | None = 0
    is_sequential: bool | None = True
    kind: str | None = StepKind.STEP
    value: bytes | None = None
    encoding: str | None = None
    delay: timedelta | None = None
    until: datetime | None = None

    @property
    def bad_field(self) -> str | None:
        """The first field that cannot be recorded."""
        ends = sum(end is not None for end in (self.delay, self.until))
        is_sleep = self.kind == StepKind.SLEEP
        problems = {
            "name": not self.name or len(self.name.encode()) > 256 or not self.name.isprintable(),
            "occurrence": self.occurrence is None or self.occurrence < 0,
            "position": self.position is None or self.position < 0,
            "is_sequential": self.is_sequential is None,
            "kind": self.kind not in KINDS,
            "value": self.value is not None and self.kind in (StepKind.SLEEP, StepKind.NOW),
            "encoding": self.encoding is not None and len(self.encoding.encode()) > 64,
            "delay": ends != is_sleep or (self.delay is not None and abs(self.delay) > CENTURY),
        }
        return next((name for name, is_wrong in problems.items() if is_wrong), None)


@dataclass(frozen=True, slots=True)
class Worker:
    id: str
    instance: str
    capabilities: frozenset[str] = frozenset()


# Results and stored state


@dataclass(frozen=True, slots=True)
class Answer:
    word: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    is_raised: bool = False

    def __getitem__(self, name: str) -> Any:
        return self.facts[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    execution_id: UUID
    version: int
    kind: str
    occurred_at: datetime
    attempt_index: int | None = None
    lease_id: UUID | None = None
    epoch: int | None = None
    worker_instance_id: str | None = None
    outcome: str | None = None
    actor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PastAttempt:
    """An earlier attempt, as it was when it ended."""

    attempt_index: int
    attempt_id: UUID
    attempt_type: str
    epoch: int
    started_at: datetime
    ended_at: datetime
    ended_as: str
    previous_attempt_index: int | None
    attempt_reason: str | None
    failure_class: str | None
    failure_category: str | None
    failure_reason: str | None
    failure_detail: bytes | None
    last_lease_id: UUID | None
    last_lease_end: str | None
    last_lease_retry_at: datetime | None


@dataclass(slots=True, kw_only=True)
class Grant:
    kind: str
    key: bytes
    worker_id: str
    worker_instance_id: str
    issued_at: datetime
    expires_at: datetime


@dataclass(slots=True, kw_only=True)
class Lane:
    state: str = LaneState.ACTIVE
    resumes_at: datetime | None = None
    reason: str | None = None
    changed_by: str | None = None

    def is_worked(self, now: datetime) -> bool:
        """Return whether the lane allows claims: active, draining, or its pause is over."""
        if self.state in (LaneState.ACTIVE, LaneState.DRAINING):
            return True
        return self.resumes_at is not None and self.resumes_at <= now

    @property
    def is_open(self) -> bool:
        """Return whether the lane accepts submissions."""
        return self.state in (LaneState.ACTIVE, LaneState.PAUSED)


@dataclass(slots=True, kw_only=True)
class Key:
    execution_id: UUID
    scope: str
    fingerprint: bytes
    expires_at: datetime


@dataclass(slots=True, kw_only=True)
class Streamed:
    """The stream of an execution, whose frames were all sent at the beginning of the journal."""

    # The lease that appended last, which may have ended, and its last frame.
    lease_id: UUID | None = None
    last_no: int = -1
    frame_count: int = 0
    rewind_count: int = 0
    # Of the execution when the lease appended first, and of the last chunk.
    generation: int = 0
    last_generation: int | None = None


@dataclass(slots=True, kw_only=True)
class Recorded:
    """A step in the journal of an execution."""

    name: str
    occurrence: int
    position: int
    is_sequential: bool
    kind: str
    attempt_index: int
    epoch: int
    recorded_at: datetime
    until_at: datetime | None
    encoding: str | None
    value: bytes | None
    # Of a wait (support/suspension_model.py).
    opened_at: datetime | None = None
    ready_at: datetime | None = None
    taken_at: datetime | None = None
    taken_as: str | None = None
    signal_ids: list[UUID] | None = None
    signal: str | None = None


@dataclass(slots=True, kw_only=True)
class Wait:
    """One execution that another execution waits for."""

    wait_no: int
    ended_at: datetime | None


@dataclass(slots=True, kw_only=True)
class Execution:
    """An execution: its six facts, lease, latest attempt, counters and timers."""

    execution_id: UUID
    route: Route
    policy: Policy
    priority: int
    created_at: datetime
    transitioned_at: datetime
    mutated_at: datetime

    phase: str = Phase.RUNNABLE
    ownership: str = Ownership.UNOWNED
    eligibility: str = Eligibility.ELIGIBLE_NOW
    blocking_reason: str = BlockingReason.WAITING_FOR_WORKER
    outcome: str = Outcome.NONE
    attempt_state: str = AttemptState.PENDING_FIRST_ATTEMPT
    cause: str = "submit"
    version: int = 1
    epoch: int = 0

    total_attempt_count: int = 0
    retry_count: int = 0
    replay_count: int = 0
    reclaim_count: int = 0
    company_count: int = 0
    crash_count: int = 0
    lone_crash_count: int = 0
    lease_start: str = "unreported"
    generation: int = 0

    delayed_until: datetime | None = None
    reclaim_at: datetime | None = None
    deadline_at: datetime | None = None
    started_at: datetime | None = None
    terminal_at: datetime | None = None
    blocked_at: datetime | None = None
    trim_at: datetime | None = None

    lease_id: UUID | None = None
    lease_expires_at: datetime | None = None
    worker_id: str | None = None
    worker_instance_id: str | None = None
    last_lease_id: UUID | None = None
    last_lease_end: str | None = None
    last_lease_retry_at: datetime | None = None

    attempt_id: UUID | None = None
    attempt_type: str | None = None
    attempt_started_at: datetime | None = None
    attempt_paused_at: datetime | None = None
    attempt_pause_cause: str | None = None
    attempt_deadline_at: datetime | None = None
    attempt_time_left: timedelta | None = None
    attempt_ended_at: datetime | None = None
    attempt_ended_as: str | None = None
    previous_attempt_index: int | None = None
    attempt_reason: str | None = None
    failure_class: str | None = None
    failure_category: str | None = None
    failure_reason: str | None = None
    failure_detail: bytes | None = None

    result: bytes | None = None
    blocking_detail: str | None = None
    cancellation_reason: str | None = None
    cancelled_by: str | None = None
    progress_percent: int | None = None
    progress_message: str | None = None
    progressed_at: datetime | None = None
    parent_id: UUID | None = None
    flow_id: UUID | None = None
    ends_with_parent: bool = False
    is_awaited: bool = False
    wakes_pending: bool = False
    wait_no: int = 0
    wait_left: int | None = None
    # Quotas and budgets (support/gate_model.py).
    quota_ids: list[int] | None = None
    budget_ids: list[int] | None = None
    line_id: int | None = None
    refusal_count: int | None = None
    # The epoch of the last lease with older code, and the start of the series of such leases.
    passed_on: tuple[int, datetime] | None = None
    tags: dict[str, str] = field(default_factory=dict)
    history: list[PastAttempt] = field(default_factory=list)
    journal: dict[tuple[str, int], Recorded] = field(default_factory=dict)
    # Signals and suspensions (support/suspension_model.py).
    mailbox: list[Any] = field(default_factory=list)
    suspensions: list[Any] = field(default_factory=list)
    stream: Streamed | None = None

    @property
    def has_stream(self) -> bool:
        return self.stream is not None

    @property
    def attempt_index(self) -> int:
        return max(self.total_attempt_count - 1, 0)

    @property
    def is_leased(self) -> bool:
        return self.ownership == Ownership.LEASED

    @property
    def is_claimable(self) -> bool:
        """Whether it waits for a worker, or can be reclaimed now from a lost worker."""
        if self.phase == Phase.RUNNABLE:
            return self.eligibility == Eligibility.ELIGIBLE_NOW or self.line_id is not None
        return self.ownership in RECLAIMABLE and self.reclaim_at is None

    @property
    def is_over_the_cap(self) -> bool:
        """Whether it was reclaimed too often, or crashed too often while it ran alone."""
        counted = self.reclaim_count - self.company_count
        return self.phase == Phase.ACTIVE and (
            counted >= self.policy.max_reclaims or self.lone_crash_count >= LONE_CRASHES
        )

    @property
    def public_state(self) -> str:
        if self.phase == Phase.TERMINAL:
            return PublicState.COMPLETED if self.outcome == Outcome.SUCCESS else self.outcome
        if self.phase in (Phase.ACTIVE, Phase.SUSPENDED):
            return self.phase
        return {
            Eligibility.NOT_ELIGIBLE_UNTIL_TIME: PublicState.DELAYED,
            Eligibility.BLOCKED_BY_DEPENDENCIES: PublicState.WAITING_CHILDREN,
            Eligibility.BLOCKED_BY_BUDGET: PublicState.RATE_LIMITED,
            Eligibility.BLOCKED_BY_QUOTA: PublicState.RATE_LIMITED,
        }.get(Eligibility(self.eligibility), PublicState.WAITING)

    @property
    def fence(self) -> Fence:
        return Fence(self.execution_id, self.lease_id, self.epoch, self.attempt_id)


class Refusal(Exception):
    """The whole call is refused, and nothing was changed."""

    def __init__(self, word: str, **facts: Any) -> None:
        super().__init__(word)
        self.answer = Answer(word, facts, is_raised=True)


def invalid(name: str) -> Refusal:
    return Refusal("invalid_input", field=name)


class Model(Flows):
    def __init__(self, now: datetime) -> None:
        super().__init__()
        self.now = now
        self.executions: dict[UUID, Execution] = {}
        self.lanes: dict[tuple[str, str], Lane] = {}  # by namespace and name
        self.keys: dict[tuple[str, str], Key] = {}
        self.grants: dict[UUID, Grant] = {}
        self.slots: dict[str, tuple[UUID, list[UUID]]] = {}
        # Waits by (waiter, target).
        self.waits: dict[tuple[UUID, UUID], Wait] = {}
        # Rows that another session has locked. An operation skips them.
        self.locked: set[UUID] = set()
        self._ended: list[Execution] = []
        # Trimmed executions with events that are still kept, and the time when the events go.
        self.event_trims: dict[UUID, datetime] = {}
        self._trimmed_from: dict[UUID, str] = {}
        # How often each transition was taken, and what the last operation wrote and touched.
        self.taken: Counter[str] = Counter()
        self.events: list[Event] = []
        self.touched: set[UUID] = set()
        self.buried: list[tuple[UUID, PastAttempt]] = []

    def begin(self) -> None:
        """Forget the events and changes of the last operation."""
        self.events = []
        self.touched = set()
        self.buried = []

    # The parts of a transition

    def _at(self, e: Execution) -> datetime:
        """Return the time for an execution. It never goes back, even if the clock does."""
        return max(self.now, e.transitioned_at)

    def _move(
        self,
        number: str,
        e: Execution,
        cause: str,
        kind: EventKind | None,
        *,
        lease_id: UUID | None = None,
        instance: str | None = None,
        with_attempt: bool = True,
        actor: str | None = None,
    ) -> None:
        """Record a transition. Without a kind, it writes no event and keeps the version."""
        at = self._at(e)
        e.cause = cause
        e.transitioned_at = e.mutated_at = at
        self.touched.add(e.execution_id)
        self.taken[number] += 1
        if kind is None:
            return
        e.version += 1
        self.events.append(
            Event(
                execution_id=e.execution_id,
                version=e.version,
                kind=kind,
                occurred_at=at,
                attempt_index=e.attempt_index if with_attempt and e.total_attempt_count else None,
                lease_id=lease_id,
                epoch=e.epoch if with_attempt else None,
                worker_instance_id=instance,
                outcome=None if e.outcome == Outcome.NONE else e.outcome,
                actor=actor,
            )
        )

    def _drop_lease(self, e: Execution, end: str, retry_at: datetime | None = None) -> None:
        """End the lease. The row keeps its id, how it ended, and the answer to its holder."""
        e.last_lease_id = e.lease_id
        e.last_lease_end = end
        e.last_lease_retry_at = retry_at
        e.lease_id = e.lease_expires_at = e.worker_id = e.worker_instance_id = None
        e.ownership = Ownership.UNOWNED

    def _wait(self, e: Execution, until: datetime | None, why_delayed: BlockingReason) -> None:
        """Make an execution runnable, now or at a time."""
        e.phase = Phase.RUNNABLE
        e.line_id = None
        e.delayed_until = until
        if until is None:
            e.eligibility = Eligibility.ELIGIBLE_NOW
            e.blocking_reason = BlockingReason.WAITING_FOR_WORKER
        else:
            e.eligibility = Eligibility.NOT_ELIGIBLE_UNTIL_TIME
            e.blocking_reason = why_delayed

    def _end(
        self,
        number: str,
        e: Execution,
        outcome: Outcome,
        cause: str,
        kind: EventKind,
        *,
        lease_end: str,
        attempt_as: AttemptLifecycle,
        takes_lease: bool,
        failure: tuple[str, str | None, str | None, bytes | None] | None = None,
        actor: str | None = None,
    ) -> None:
        """End an execution in any state. Taking away a lease raises the epoch."""
        at = self._at(e)
        lease_id, instance = e.lease_id, e.worker_instance_id
        was_leased = e.is_leased
        if e.lease_id is not None:
            self._drop_lease(e, lease_end if was_leased else "expire_lease")
        if was_leased and takes_lease:
            e.epoch += 1
        e.phase = Phase.TERMINAL
        e.ownership = Ownership.UNOWNED
        e.eligibility = Eligibility.NOT_APPLICABLE
        e.blocking_reason = BlockingReason.NONE
        e.blocking_detail = None
        e.outcome = outcome
        if e.attempt_state != AttemptState.PENDING_FIRST_ATTEMPT:
            e.attempt_state = AttemptState.ATTEMPT_TERMINAL
        # An attempt that ended earlier keeps its end and its failure.
        if failure is not None and e.attempt_ended_as is None:
            e.failure_class, e.failure_category, e.failure_reason, e.failure_detail = failure
        if e.total_attempt_count and e.attempt_ended_at is None:
            e.attempt_ended_at, e.attempt_ended_as = at, attempt_as
        e.delayed_until = e.reclaim_at = e.blocked_at = e.line_id = e.refusal_count = None
        e.attempt_deadline_at = e.attempt_time_left = None
        e.wait_left = None
        self._forget_waits(e)
        if e.is_awaited:
            self._ended.append(e)
        e.terminal_at = at
        e.trim_at = at + e.policy.retention if e.policy.retention is not None else None
        self.grants.pop(e.execution_id, None)
        # The event names an expired lease only if the loss of this lease is the cause.
        named = was_leased or cause == "exceed_reclaims"
        self._move(
            number, e, cause, kind, lease_id=lease_id if named else None, instance=instance,
            actor=actor,
        )  # fmt: skip

    def _forget_waits(self, e: Execution) -> None:
        for waiter, target in list(self.waits):
            if waiter == e.execution_id:
                del self.waits[waiter, target]

    def _tell(self, now: datetime | None = None) -> int:
        """Propagate the new ends, and return how many executions were affected.

        Executions that wait for enough of these ends become eligible (T4). Children that end with
        their parent are cancelled (T23). The same follows for the ends that this causes. Locked
        executions are skipped, and are handled later.
        """
        clock, self.now = self.now, now or self.now
        self.has_siblings = False
        first = list(self._ended)
        told = 0
        ended: list[Execution] = []
        while self._ended:
            level, self._ended = self._ended, []
            ended += level
            ids = {e.execution_id for e in level}
            told += self._wake(ids)
            for e in list(self.executions.values()):
                if e.parent_id in ids and self._is_heir(e) and e.execution_id not in self.locked:
                    self._end(
                        "T23",
                        e,
                        Outcome.CANCELLED,
                        "cancel",
                        EventKind.CANCELLED,
                        lease_end="cancel",
                        attempt_as=AttemptLifecycle.ENDED_CANCELLED,
                        takes_lease=True,
                    )
                    e.cancellation_reason, e.cancelled_by = "its parent ended", "parent"
                    told += 1
            told += self._resolve(level)
        told += self._renew(ended)
        for e in ended:
            e.wakes_pending = self._concerns_somebody(e)
            self.touched.add(e.execution_id)
        self.has_more = self.has_siblings or any(e.wakes_pending for e in ended[len(first) :])
        self.now = clock
        return told

    def _wake(self, ended: set[UUID]) -> int:
        """Count down the waits for these executions. Return how many executions waited."""
        met: dict[UUID, list[Wait]] = {}
        for (waiter, target), wait in self.waits.items():
            if target in ended and wait.ended_at is None and waiter not in self.locked:
                met.setdefault(waiter, []).append(wait)
        for waiter, waits in met.items():
            e = self.executions[waiter]
            assert e.wait_left is not None
            for wait in waits:
                wait.ended_at = self.now
            mutated_at = max(self._at(e), e.mutated_at)
            if e.wait_left > len(waits):
                e.wait_left -= len(waits)
                self.touched.add(waiter)
            else:
                e.wait_left = None
                self._forget_waits(e)
                self._runs_have_ended(e)
            e.mutated_at = mutated_at
        return len(met)

    def _runs_have_ended(self, e: Execution) -> None:
        """Continue an execution that waited for runs (T4)."""
        self._wait(e, None, BlockingReason.NONE)
        self._move("T4", e, "satisfy_dependencies", None)

    @staticmethod
    def _is_heir(e: Execution) -> bool:
        return e.ends_with_parent and e.phase != Phase.TERMINAL

    def _concerns_somebody(self, e: Execution) -> bool:
        return (
            any(
                target == e.execution_id and wait.ended_at is None
                for (_, target), wait in self.waits.items()
            )
            or any(
                child.parent_id == e.execution_id and self._is_heir(child)
                for child in self.executions.values()
            )
            or bool(self._open_edges(e))
            or bool(self._stale_edges(e))
        )

    def resolve_wakes(self) -> int:
        """Finish the propagation that was left because rows were locked."""
        self._ended = [e for e in self.executions.values() if e.wakes_pending]
        return self._tell()

    def _find(self, namespace: str | None, execution_id: UUID | None) -> Execution | None:
        """Return an execution, or None. A namespace sees only its own; None sees all."""
        e = self.executions.get(execution_id) if execution_id is not None else None
        return e if e is not None and namespace in (None, e.route.namespace) else None

    def _get(self, namespace: str | None, execution_id: UUID | None) -> Execution:
        e = self._find(namespace, execution_id)
        if e is None:
            raise Refusal("not_found")
        return e

    # Submit: T1, T2

    def submit(self, namespace: str, items: Sequence[Item]) -> list[Answer]:
        # An item cannot be the parent of another item of the same call.
        there = set(self.executions)
        return [self._submit(namespace, item, there) for item in items]

    def _submit(self, namespace: str, item: Item, there: set[UUID]) -> Answer:
        if item.id is None:
            return Answer("invalid", {"field": "execution_id"})
        if item.key is not None and item.key == "":
            return Answer("invalid", {"field": "key"})
        if item.key is not None and item.fingerprint is None:
            return Answer("invalid", {"field": "key_fingerprint"})
        if item.with_parent and item.parent_id in (None, item.id):
            return Answer("invalid", {"field": "parent_id"})
        if item.route is None or item.route.namespace != namespace:
            return Answer("unknown_route")
        if item.id in self.event_trims:
            # The execution existed and was trimmed, but its events still exist.
            if self._trimmed_from[item.id] != namespace:
                return Answer("invalid", {"field": "execution_id"})
            return Answer("duplicate", {"id": item.id})
        taken = self.executions.get(item.id)
        is_repeat = taken is not None and taken.route.namespace == namespace
        # A repeated submission succeeds, even if the lane has been closed since.
        if not self.lanes[item.route.place].is_open:
            if is_repeat:
                return Answer("duplicate", {"id": item.id})
            return Answer("lane_closed", {"field": "lane"})
        is_known = item.key is not None and (namespace, item.key) in self.keys
        if self._is_refused(item) and not is_known:
            return Answer("duplicate", {"id": item.id}) if is_repeat else Answer("limit_reached")
        if item.with_parent:
            parent = self._find(namespace, item.parent_id) if item.parent_id in there else None
            if parent is None or parent.phase == Phase.TERMINAL:
                if is_repeat:
                    return Answer("duplicate", {"id": item.id})
                return Answer("parent_ended")
            parent.is_awaited = True
            self.touched.add(parent.execution_id)
        elif item.parent_id is not None and (
            item.parent_id not in there or self._find(namespace, item.parent_id) is None
        ):
            return Answer("duplicate", {"id": item.id}) if is_repeat else Answer("parent_ended")
        key = self.keys.get((namespace, item.key)) if item.key is not None else None
        if key is not None and self._holds(key):
            if key.fingerprint != item.fingerprint:
                return Answer("key_reused", {"field": "key"})
            return Answer("duplicate", {"id": key.execution_id})
        # A window of zero means that the key is not kept.
        is_kept = item.window > NOTHING or item.scope == KeyScope.UNFINISHED
        if item.key is not None and taken is None and is_kept:
            assert item.fingerprint is not None
            self.keys[namespace, item.key] = Key(
                execution_id=item.id,
                scope=item.scope,
                fingerprint=item.fingerprint,
                expires_at=self.now + item.window,
            )
        if taken is not None:
            if taken.route.namespace != namespace:
                return Answer("invalid", {"field": "execution_id"})
            return Answer("duplicate", {"id": item.id})
        e = Execution(
            execution_id=item.id,
            route=item.route,
            policy=item.policy,
            priority=min(max(item.priority, 0), 9000),
            created_at=self.now,
            transitioned_at=self.now,
            mutated_at=self.now,
            version=0,
            parent_id=item.parent_id,
            ends_with_parent=bool(item.with_parent),
            quota_ids=sorted(item.quotas) or None,
            budget_ids=sorted(item.budgets) or None,
        )
        if item.deadline is not None:
            e.deadline_at = self.now + item.deadline
        if item.delay is not None and item.delay > NOTHING:
            self._wait(e, self.now + item.delay, BlockingReason.WAITING_FOR_DELAY)
        self.executions[item.id] = e
        number = "T1" if e.delayed_until is None else "T2"
        self._move(number, e, "submit", EventKind.SUBMITTED, with_attempt=False)
        return Answer("created")

    def _holds(self, key: Key) -> bool:
        """Return whether a key still holds: within its window, or until its execution ends."""
        if key.scope == KeyScope.WINDOW:
            return key.expires_at > self.now
        e = self.executions.get(key.execution_id)
        return e is not None and e.phase != Phase.TERMINAL

    # Claim: T9, T10, T21, T22, T24

    def claim(
        self,
        namespace: str | None,
        worker: Worker,
        claim_id: UUID,
        lanes: Sequence[str] | None,
        limit: int,
        ttl: timedelta,
        reports_starts: bool = False,
    ) -> list[Answer]:
        if not 1 <= limit <= 1000:
            raise invalid("limit")
        if not timedelta(seconds=1) <= ttl <= timedelta(days=1):
            raise invalid("lease_ttl")
        slot = self.slots.get(worker.instance)
        if slot is not None and slot[0] == claim_id:
            held = [self.executions.get(id_) for id_ in slot[1]]
            return [
                self._leased(e) for e in held if e and e.is_leased and e.lease_id == claim_id
            ]  # fmt: skip
        candidates = [
            e
            for e in self.executions.values()
            if e.is_claimable
            and self._is_within_reach(e)
            and namespace in (None, e.route.namespace)
            and (lanes is None or e.route.lane in lanes)
            and e.route.capabilities <= worker.capabilities
            and self.lanes[e.route.place].is_worked(self.now)
            and not self._granted_to_another(e, worker)
            and not self._is_dead(e)
        ]
        candidates.sort(key=lambda e: (-e.priority, e.created_at, e.execution_id))
        leases: list[Execution] = []
        hopeless: list[Execution] = []
        for e in candidates:
            # A call locks at most twice as many rows as it may return.
            if len(leases) == limit or len(leases) + len(hopeless) >= 2 * limit:
                break
            if e.is_over_the_cap or self.is_over(e):
                hopeless.append(e)
            elif self._admit(e):
                leases.append(e)
        self._time_out_all([e for e in hopeless if self.is_over(e)], [])
        for e in hopeless:
            # It may have ended as the child of an execution before it.
            if e.phase != Phase.TERMINAL:
                self._fail_over_reclaim_limit(e)
                self._tell()
        leases = [e for e in leases if e.phase != Phase.TERMINAL]
        for e in leases:
            self.grants.pop(e.execution_id, None)
            self._lease(e, worker, claim_id, ttl)
            e.lease_start = "waiting" if reports_starts else "unreported"
            if reports_starts and e.crash_count and e.attempt_deadline_at is not None:
                # The timeout of the attempt counts from its start.
                e.attempt_time_left = e.attempt_deadline_at - self._at(e)
                e.attempt_deadline_at = None
        if candidates:
            self.slots[worker.instance] = (claim_id, [e.execution_id for e in leases])
        return [self._leased(e) for e in leases]

    # Quotas and budgets: without them, everything has room (support/gate_model.py).

    def _is_refused(self, item: Item) -> bool:
        return False

    def _is_within_reach(self, e: Execution) -> bool:
        return True

    def _admit(self, e: Execution) -> bool:
        return True

    def _admit_alone(self, e: Execution) -> None:
        """Take slots for a claim with a grant, or refuse the call."""

    def _granted_to_another(self, e: Execution, worker: Worker) -> bool:
        grant = self.grants.get(e.execution_id)
        return grant is not None and grant.expires_at > self.now and grant.worker_id != worker.id

    def _lease(self, e: Execution, worker: Worker, claim_id: UUID, ttl: timedelta) -> None:
        at = self._at(e)
        is_reclaim = e.phase == Phase.ACTIVE
        if not is_reclaim and e.attempt_state == AttemptState.ATTEMPT_INTERRUPTED:
            number, cause, kind = "T10", "resume", EventKind.RESUMED
            if e.attempt_time_left is not None:
                e.attempt_deadline_at = at + e.attempt_time_left
        else:
            number, cause, kind = "T9", "claim", EventKind.CLAIMED
            if is_reclaim:
                number, cause, kind = "T21", "reclaim", EventKind.RECLAIMED
            self._start_attempt(e, claim_id, is_reclaim, at)
        e.attempt_time_left = e.attempt_paused_at = e.attempt_pause_cause = None
        e.phase = Phase.ACTIVE
        e.ownership = Ownership.LEASED
        e.eligibility = Eligibility.NOT_APPLICABLE
        e.blocking_reason = BlockingReason.NONE
        e.attempt_state = AttemptState.RUNNING_ATTEMPT
        e.blocking_detail = e.blocked_at = e.reclaim_at = None
        e.line_id = e.refusal_count = None
        e.epoch += 1
        e.lease_id = claim_id
        e.lease_start = "unreported"
        e.lease_expires_at = at + ttl
        e.worker_id, e.worker_instance_id = worker.id, worker.instance
        e.started_at = e.started_at or at
        self._move(number, e, cause, kind, lease_id=claim_id, instance=worker.instance)

    def _start_attempt(self, e: Execution, id_: UUID, is_reclaim: bool, at: datetime) -> None:
        previous = e.attempt_index if e.total_attempt_count else None
        type_: AttemptType
        reason: str | None
        if is_reclaim:
            type_, reason = AttemptType.RECLAIM, str(e.ownership)
            e.reclaim_count += 1
            # A crash does not count for an execution that only waited or ran beside others. It
            # does count for a suspect that ran beside others.
            was_crash = e.ownership == Ownership.LEASE_EXPIRED_RECLAIMABLE
            was_suspect = e.crash_count > 2
            if was_crash and (
                e.lease_start == "waiting" or (e.lease_start == "beside" and not was_suspect)
            ):
                e.company_count += 1
            e.attempt_ended_at, e.attempt_ended_as = at, AttemptLifecycle.INTERRUPTED_RECLAIMED
            if e.lease_id is not None:
                self._drop_lease(e, "expire_lease")
        else:
            type_, reason = {
                AttemptState.PENDING_FIRST_ATTEMPT: (AttemptType.INITIAL, None),
                AttemptState.PENDING_RETRY_ATTEMPT: (
                    AttemptType.RETRY,
                    e.failure_category or e.failure_class,
                ),
                AttemptState.PENDING_REPLAY_ATTEMPT: (AttemptType.REPLAY, None),
            }[AttemptState(e.attempt_state)]
        if previous is not None:
            self._bury_attempt(e)
        e.total_attempt_count += 1
        e.attempt_id = id_
        e.attempt_type = type_
        e.attempt_started_at = at
        e.attempt_reason = reason
        e.previous_attempt_index = previous
        timeout = e.policy.attempt_timeout
        e.attempt_deadline_at = at + timeout if timeout is not None else None
        # A new attempt keeps nothing of the previous attempt.
        e.attempt_ended_at = e.attempt_ended_as = None
        e.failure_class = e.failure_category = e.failure_reason = e.failure_detail = None
        e.last_lease_id = e.last_lease_end = e.last_lease_retry_at = None
        e.progress_percent = e.progress_message = e.progressed_at = None

    def _bury_attempt(self, e: Execution) -> None:
        """Move the latest attempt to the history."""
        assert e.attempt_id is not None
        assert e.attempt_type is not None
        assert e.attempt_started_at is not None
        assert e.attempt_ended_at is not None
        assert e.attempt_ended_as is not None
        past = PastAttempt(
            attempt_index=e.attempt_index,
            attempt_id=e.attempt_id,
            attempt_type=e.attempt_type,
            epoch=e.epoch,
            started_at=e.attempt_started_at,
            ended_at=e.attempt_ended_at,
            ended_as=e.attempt_ended_as,
            previous_attempt_index=e.previous_attempt_index,
            attempt_reason=e.attempt_reason,
            failure_class=e.failure_class,
            failure_category=e.failure_category,
            failure_reason=e.failure_reason,
            failure_detail=e.failure_detail,
            last_lease_id=e.last_lease_id,
            last_lease_end=e.last_lease_end,
            last_lease_retry_at=e.last_lease_retry_at,
        )
        e.history.append(past)
        self.buried.append((e.execution_id, past))

    def _leased(self, e: Execution, word: str = "leased") -> Answer:
        return Answer(
            word,
            {
                "execution_id": e.execution_id,
                "claim_kind": {"claim": "fresh", "resume": "resumed", "reclaim": "reclaimed"}[
                    e.cause
                ],
                "epoch": e.epoch,
                "attempt_index": e.attempt_index,
                "attempt_id": e.attempt_id,
                "attempt_type": e.attempt_type,
                "lease_expires_at": e.lease_expires_at,
                "attempt_deadline_at": e.attempt_deadline_at,
                "deadline_at": e.deadline_at,
                "retry_count": e.retry_count,
                "replay_count": e.replay_count,
                "crash_count": e.crash_count,
                "generation": e.generation,
            },
        )

    def _fail_over_reclaim_limit(self, e: Execution) -> None:
        """Fail an execution that was reclaimed or crashed too often (T22)."""
        category = "reclaim_cap_exceeded"
        reason = (
            f"its workers vanished {e.reclaim_count + 1} times; "
            f"the limit is {e.policy.max_reclaims} reclaims"
        )
        if e.lone_crash_count >= LONE_CRASHES:
            category = "crashed_alone"
            reason = f"its worker vanished {LONE_CRASHES} times while it ran alone in its process"
        self._end(
            "T22",
            e,
            Outcome.FAILED,
            "exceed_reclaims",
            EventKind.FAILED,
            lease_end="expire_lease",
            attempt_as=AttemptLifecycle.INTERRUPTED_RECLAIMED,
            takes_lease=False,
            failure=(FailureClass.INFRA_CRASH, category, reason, None),
        )

    # The fence

    def _judge(
        self, namespace: str | None, fence: Fence, end: str | None
    ) -> tuple[Execution | None, Answer | None]:
        """Return the execution if the fence is valid, or else the answer.

        The answer `repeat` means that the call was made before and gets its first answer again.
        """
        if None in (fence.execution_id, fence.lease_id, fence.epoch, fence.attempt_id):
            return None, Answer("invalid", {"field": "fence"})
        self._settle_overdue(namespace, [fence])
        e = self._find(namespace, fence.execution_id)
        if e is None:
            return None, Answer("not_found")
        if fence.lease_id == e.lease_id:
            assert e.lease_expires_at is not None
            if not e.is_leased or e.lease_expires_at <= self._at(e):
                if e.is_leased:
                    self._expire_lease(e)
                return None, Answer("lease_expired")
            if (fence.epoch, fence.attempt_id) != (e.epoch, e.attempt_id):
                return None, Answer("stale_lease")
            return e, None
        ends = [(e.last_lease_id, e.last_lease_end, e.last_lease_retry_at, e.attempt_index)]
        ends += [
            (a.last_lease_id, a.last_lease_end, a.last_lease_retry_at, a.attempt_index)
            for a in e.history
        ]
        for lease_id, how, retry_at, index in ends:
            if fence.lease_id == lease_id and end is not None and how == end:
                return None, Answer("repeat", {"retry_at": retry_at, "next": index + 1})
        if e.phase != Phase.ACTIVE:
            return None, Answer("not_active")
        if fence.lease_id == e.last_lease_id and e.ownership == Ownership.LEASE_REVOKED:
            return None, Answer("lease_revoked")
        return None, Answer("stale_lease")

    def _is_good(self, e: Execution, fence: Fence) -> bool:
        return (
            e.is_leased
            and fence == e.fence
            and e.lease_expires_at is not None
            and e.lease_expires_at > self._at(e)
        )

    def is_over(self, e: Execution) -> bool:
        return e.deadline_at is not None and e.deadline_at <= self.now

    def is_late(self, e: Execution) -> bool:
        return (
            e.is_leased and e.attempt_deadline_at is not None and e.attempt_deadline_at <= self.now
        )

    def _settle_overdue(self, namespace: str | None, fences: Sequence[Fence]) -> None:
        """Time out executions that are past their deadline, as the reconciler would.

        Only executions with a valid fence are settled.
        """
        over, late = [], []
        for fence, is_second in self._each(fences):
            e = self._find(namespace, fence.execution_id)
            if e is not None and not is_second and self._is_good(e, fence):
                if self.is_over(e):
                    over.append(e)
                elif self.is_late(e):
                    late.append(e)
        if over or late:
            self._time_out_all(over, late)

    def _each(self, fences: Sequence[Fence]) -> Iterable[tuple[Fence, bool]]:
        """Yield the items of a batch, and whether an earlier item has the same execution."""
        seen: set[UUID | None] = set()
        for fence in fences:
            yield fence, fence.execution_id in seen
            seen.add(fence.execution_id)

    def _expire_lease(self, e: Execution) -> None:
        """Expire a lease (T19).

        A crash counts for an execution that had started. The first crash in a row counts for all.
        From the third crash on, the row waits before the next reclaim, longer each time, with
        jitter.
        """
        at = self._at(e)
        e.ownership = Ownership.LEASE_EXPIRED_RECLAIMABLE
        e.blocking_reason = BlockingReason.WAITING_FOR_WORKER
        e.attempt_state = AttemptState.ATTEMPT_INTERRUPTED
        e.attempt_paused_at, e.attempt_pause_cause = at, "lease_expired"
        if e.lease_start != "waiting" or e.crash_count == 0:
            e.crash_count += 1
        if e.lease_start == "alone":
            e.lone_crash_count += 1
        if e.crash_count >= 3 and e.lone_crash_count < LONE_CRASHES:
            wait = min(timedelta(seconds=2 ** min(e.crash_count - 3, 8)), timedelta(minutes=4))
            chance = (int.from_bytes(e.execution_id.bytes[14:]) + e.epoch * 40503) % 65536
            e.reclaim_at = self.now + wait * (1 - chance / 131072)
        self._move(
            "T19", e, "expire_lease", EventKind.LEASE_EXPIRED, lease_id=e.lease_id,
            instance=e.worker_instance_id,
        )  # fmt: skip

    # Calls of a holder

    def start(
        self, namespace: str | None, fences: Sequence[Fence], alone: bool | None
    ) -> list[Answer]:
        if alone is None:
            raise invalid("are_alone")
        self._settle_overdue(namespace, fences)
        answers = []
        for fence, is_second in self._each(fences):
            e, answer = self._judge_item(namespace, fence, None, is_second)
            if e is not None:
                e.lease_start = "alone" if alone else "beside"
                if e.attempt_time_left is not None:
                    e.attempt_deadline_at = self._at(e) + e.attempt_time_left
                    e.attempt_time_left = None
                e.mutated_at = max(self.now, e.mutated_at)
                self.touched.add(e.execution_id)
                answer = Answer("started")
            assert answer is not None
            answers.append(answer)
        return answers

    def renew(self, namespace: str | None, fences: Sequence[Fence], ttl: timedelta) -> list[Answer]:
        if not timedelta(seconds=1) <= ttl <= timedelta(days=1):
            raise invalid("lease_ttl")
        self._settle_overdue(namespace, fences)
        answers = []
        for fence, is_second in self._each(fences):
            e, answer = self._judge_item(namespace, fence, None, is_second)
            if e is not None:
                at = self._at(e)
                e.lease_expires_at = at + ttl
                e.mutated_at = max(at, e.mutated_at)
                self.touched.add(e.execution_id)
                answer = Answer("renewed")
            assert answer is not None
            answers.append(answer)
        return answers

    def _judge_item(
        self, namespace: str | None, fence: Fence, end: str | None, is_second: bool
    ) -> tuple[Execution | None, Answer | None]:
        if is_second and None not in (fence.lease_id, fence.epoch, fence.attempt_id):
            return None, Answer("duplicate")
        return self._judge(namespace, fence, end)

    def complete(
        self, namespace: str | None, fences: Sequence[Fence], results: Sequence[bytes | None]
    ) -> list[Answer]:
        answers: list[Answer | None] = [None] * len(fences)
        ended: dict[int, Execution] = {}
        # A second item for an execution is a repeat if the first item completed it. Otherwise it
        # is a duplicate.
        for n, (fence, is_second) in enumerate(self._each(fences)):
            e = self._find(namespace, fence.execution_id)
            is_late = e is not None and (self.is_over(e) or self.is_late(e))
            if e is not None and not is_second and not is_late and self._is_good(e, fence):
                e.result = results[n]
                e.crash_count = e.lone_crash_count = 0
                self._finish(
                    "T12", e, Outcome.SUCCESS, "complete", EventKind.COMPLETED, "complete",
                    AttemptLifecycle.ENDED_SUCCESS,
                )  # fmt: skip
                ended[n] = e
        self._tell()
        told_of = self._first_awaited(ended.values())
        for n, e in ended.items():
            answers[n] = Answer("completed", self._owing(e, told_of))
        rest = [n for n, answer in enumerate(answers) if answer is None]
        self._settle_overdue(namespace, [fences[n] for n in rest])
        for n, (fence, is_second) in zip(rest, self._each([fences[n] for n in rest]), strict=True):
            _, answer = self._judge_item(namespace, fence, "complete", is_second)
            assert answer is not None
            answers[n] = answer if answer.word != "repeat" else Answer("completed")
        return [answer for answer in answers if answer is not None]

    @staticmethod
    def _owing(e: Execution, told_of: Execution | None = None) -> dict[str, Any]:
        """Return the part of an answer that says that propagation is left."""
        return {"wakes_pending": True} if e.wakes_pending or e is told_of else {}

    def _first_awaited(self, ended: Iterable[Execution]) -> Execution | None:
        """Return the execution whose answer says that more propagation is left, or None."""
        return next((e for e in ended if e.is_awaited), None) if self.has_more else None

    def _finish(
        self,
        number: str,
        e: Execution,
        outcome: Outcome,
        cause: str,
        kind: EventKind,
        lease_end: str,
        attempt_as: AttemptLifecycle,
        failure: tuple[str, str | None, str | None, bytes | None] | None = None,
    ) -> None:
        """End an execution by its lease holder. The epoch stays."""
        self._end(
            number, e, outcome, cause, kind, lease_end=lease_end, attempt_as=attempt_as,
            takes_lease=False, failure=failure,
        )  # fmt: skip

    def fail(
        self,
        namespace: str | None,
        fences: Sequence[Fence],
        class_: str | None,
        reason: str | None,
        category: str | None,
        detail: bytes | None,
    ) -> list[Answer]:
        self._settle_overdue(namespace, fences)
        answers = []
        ended: dict[int, Execution] = {}
        for n, (fence, is_second) in enumerate(self._each(fences)):
            e, answer = self._judge_item(namespace, fence, "fail", is_second)
            if e is not None:
                if class_ not in CLASSES:
                    answer = Answer("invalid", {"field": "class"})
                elif reason is None or len(reason.encode()) > 256:
                    answer = Answer("invalid", {"field": "reason"})
                else:
                    answer = self._fail(e, (str(class_), category, reason, detail))
                    ended[n] = e
            assert answer is not None
            if answer.word == "repeat":
                answer = self._failed(answer["retry_at"], answer["next"])
            answers.append(answer)
        self._tell()
        told_of = self._first_awaited(e for n, e in ended.items() if answers[n].word == "failed")
        for n, e in ended.items():
            if answers[n].word == "failed":
                answers[n] = Answer("failed", {**answers[n].facts, **self._owing(e, told_of)})
        return answers

    def _failed(self, until: datetime | None, following: int) -> Answer:
        if until is None:
            return Answer("failed", {"delayed_until": None, "next_attempt_index": None})
        return Answer(
            "retry_scheduled", {"delayed_until": until, "next_attempt_index": following}
        )  # fmt: skip

    def _fail(self, e: Execution, failure: tuple[str, str | None, str, bytes | None]) -> Answer:
        retry = e.policy.retry
        wait = retry.wait(e.retry_count, failure[0], failure[1]) if retry else None
        e.crash_count = e.lone_crash_count = 0
        if wait is not None and self._is_dead(e):
            self._finish(
                "T23", e, Outcome.CANCELLED, "cancel", EventKind.CANCELLED, "fail",
                AttemptLifecycle.ENDED_FAILURE, failure,
            )  # fmt: skip
            self._blame(e)
            return self._failed(None, 0)
        if wait is None:
            self._finish(
                "T14", e, Outcome.FAILED, "fail", EventKind.FAILED, "fail",
                AttemptLifecycle.ENDED_FAILURE, failure,
            )  # fmt: skip
            return self._failed(None, 0)
        self._schedule_retry("T13", e, "schedule_retry", "fail", wait, failure)
        return self._failed(e.delayed_until, e.total_attempt_count)

    def _schedule_retry(
        self,
        number: str,
        e: Execution,
        cause: str,
        lease_end: str,
        wait: timedelta,
        failure: tuple[str, str | None, str, bytes | None],
    ) -> None:
        at = self._at(e)
        lease_id, instance = e.lease_id, e.worker_instance_id
        self._drop_lease(e, lease_end, at + wait)
        self._wait(e, at + wait, BlockingReason.WAITING_FOR_RETRY_BACKOFF)
        e.attempt_state = AttemptState.PENDING_RETRY_ATTEMPT
        e.retry_count += 1
        e.attempt_ended_at, e.attempt_ended_as = at, AttemptLifecycle.ENDED_FAILURE
        e.attempt_deadline_at = e.attempt_time_left = None
        e.failure_class, e.failure_category, e.failure_reason, e.failure_detail = failure
        self._move(
            number, e, cause, EventKind.RETRY_SCHEDULED, lease_id=lease_id, instance=instance
        )  # fmt: skip

    def _interrupt(
        self,
        number: str,
        e: Execution,
        end: str,
        kind: EventKind,
        pause_cause: str,
        until: datetime | None = None,
    ) -> None:
        """Interrupt an attempt. It continues later, with the time that it had left."""
        at = self._at(e)
        lease_id, instance = e.lease_id, e.worker_instance_id
        self._drop_lease(e, end, until)
        self._wait(e, until, BlockingReason.WAITING_FOR_DELAY)
        e.attempt_state = AttemptState.ATTEMPT_INTERRUPTED
        e.attempt_paused_at, e.attempt_pause_cause = at, pause_cause
        if e.attempt_deadline_at is not None:
            e.attempt_time_left = max(e.attempt_deadline_at - at, NOTHING)
        e.attempt_deadline_at = None
        if end == "hold":
            e.eligibility = Eligibility.BLOCKED_BY_OPERATOR
            e.blocking_reason = BlockingReason.PAUSED_BY_POLICY
            e.blocked_at = at
        self._move(number, e, end, kind, lease_id=lease_id, instance=instance)

    def release(
        self, namespace: str | None, fences: Sequence[Fence], cause: str
    ) -> list[Answer]:  # T15
        self._settle_overdue(namespace, fences)
        answers = []
        for fence, is_second in self._each(fences):
            e, answer = self._judge_item(namespace, fence, "release", is_second)
            if e is not None:
                self._interrupt("T15", e, "release", EventKind.RELEASED, cause)
                answer = Answer("released")
            assert answer is not None
            answers.append(answer if answer.word != "repeat" else Answer("released"))
        return answers

    def delay(
        self,
        namespace: str | None,
        fence: Fence,
        delay: timedelta | None,
        newer_step: str | None = None,
    ) -> Answer:  # T15
        """Delay an execution (T15), or leave it to newer code.

        The model has no registered worker, so older code passes it on for at most 10 minutes.
        """
        if (delay is None) == (newer_step is None):
            raise invalid("delay")
        if delay is not None and abs(delay) > timedelta(days=36525):
            raise invalid("delay")
        e, answer = self._judge(namespace, fence, "delay")
        if e is not None and newer_step is not None:
            epoch, since = e.passed_on or (0, self.now)
            since = since if epoch == e.epoch - 1 else self.now
            if since + timedelta(minutes=10) <= self.now:
                return Answer("no_newer_code", {"delayed_until": None})
            e.passed_on = (e.epoch, since)
            least, most = timedelta(seconds=1), timedelta(seconds=10)
            until = self.now + max(least, min(most, (self.now - since) / 4))
            self._interrupt("T15", e, "delay", EventKind.DELAYED, "older_code", until)
            return Answer("delayed", {"delayed_until": until})
        if e is not None and delay is not None:
            wanted = self.now + delay if delay > NOTHING else None
            self._interrupt("T15", e, "delay", EventKind.DELAYED, "worker_delay", wanted)
            return Answer("delayed", {"delayed_until": wanted})
        assert answer is not None
        if answer.word == "repeat":
            return Answer("delayed", {"delayed_until": answer["retry_at"]})
        return answer

    def wait_children(self, namespace: str | None, fence: Fence) -> Answer:  # T16
        """Suspend an execution with an open dependency (T16). Without one, do nothing."""
        e, answer = self._judge(namespace, fence, "wait_children")
        if e is not None:
            is_open = self._is_held_back(e)
            self._interrupt("T16", e, "wait_children", EventKind.WAITING, "waiting_children")
            if is_open:
                e.eligibility = Eligibility.BLOCKED_BY_DEPENDENCIES
                e.blocking_reason = BlockingReason.WAITING_FOR_CHILDREN
            return Answer("waiting")
        assert answer is not None
        return answer if answer.word != "repeat" else Answer("waiting")

    def wait_for_runs(
        self,
        namespace: str | None,
        fence: Fence,
        targets: Sequence[UUID | None] | None,
        k: int | None,
    ) -> Answer:  # T16
        """Suspend an execution until k of the targets have ended (T16).

        Every kind of end counts, and targets that have already ended count too.
        """
        if not targets or None in targets or fence.execution_id in targets:
            raise invalid("targets")
        wanted = set(targets)
        needed = len(wanted) if k is None else k
        if not 1 <= needed <= len(wanted):
            raise invalid("k")
        e, answer = self._judge(namespace, fence, "wait_for_runs")
        if e is None:
            assert answer is not None
            if answer.word == "repeat":
                waits = [w for (waiter, _), w in self.waits.items() if waiter == fence.execution_id]
                return Answer("waiting", {"open": sum(w.ended_at is None for w in waits)})
            return answer
        found = [self._find(namespace, id_) for id_ in wanted]
        if None in found:
            return Answer("not_found", {"field": "targets"})
        open_ = [t for t in found if t is not None and t.phase != Phase.TERMINAL]
        left = needed - (len(found) - len(open_))
        e.wait_no += 1
        if left > 0:
            for target in found:
                assert target is not None
                is_open = target.phase != Phase.TERMINAL
                target.is_awaited |= is_open
                self.touched.add(target.execution_id)
                self.waits[e.execution_id, target.execution_id] = Wait(
                    wait_no=e.wait_no, ended_at=None if is_open else self.now
                )
        self._interrupt("T16", e, "wait_for_runs", EventKind.WAITING, "waiting_for_runs")
        if left > 0:
            e.eligibility = Eligibility.BLOCKED_BY_DEPENDENCIES
            e.blocking_reason = BlockingReason.WAITING_FOR_CHILDREN
            e.wait_left = left
        return Answer("waiting", {"open": len(open_)})

    def record_steps(
        self, namespace: str | None, items: Sequence[tuple[Fence, Step]]
    ) -> list[Answer]:
        """Record steps. The fence of the first item of an execution decides for all its items.

        An item with another fence is answered `busy`: the caller must send it alone.
        """
        verdicts: dict[UUID | None, tuple[Fence, Execution | None, Answer | None]] = {}
        self._settle_overdue(namespace, [fence for fence, _ in items])
        answers = []
        for fence, step in items:
            if fence.execution_id not in verdicts:
                verdicts[fence.execution_id] = (fence, *self._judge(namespace, fence, None))
            first, e, answer = verdicts[fence.execution_id]
            if fence != first and not (answer and answer.word == "not_found"):
                answer = Answer("busy")
            elif e is not None:
                answer = self._record(e, step)
            assert answer is not None
            answers.append(answer)
        return answers

    def _record(self, e: Execution, step: Step) -> Answer:
        """Record a step. If it is recorded already, answer with the existing record."""
        if step.bad_field is not None:
            return Answer("invalid", {"field": step.bad_field})
        assert step.name is not None
        assert step.occurrence is not None
        assert step.position is not None
        assert step.is_sequential is not None
        assert step.kind is not None
        there = e.journal.get((step.name, step.occurrence))
        if there is not None:
            return self._recorded("exists", there, there.value, there.encoding)
        at = self._at(e)
        new = Recorded(
            name=step.name,
            occurrence=step.occurrence,
            position=step.position,
            is_sequential=step.is_sequential,
            kind=step.kind,
            attempt_index=e.attempt_index,
            epoch=e.epoch,
            recorded_at=at,
            until_at=at + step.delay if step.delay is not None else step.until,
            encoding=step.encoding,
            value=step.value,
        )
        e.journal[step.name, step.occurrence] = new
        self.touched.add(e.execution_id)
        return self._recorded("recorded", new, None, None)

    def append_frames(
        self, namespace: str | None, fence: Fence, first_no: int, count: int
    ) -> Answer:
        """Append frames that were sent at the beginning of the journal.

        The first append of a lease is judged as other calls are, and rewinds what the leases before
        it have appended in the same generation. Later ones only look at the lease.
        """
        e = self._find(namespace, fence.execution_id)
        wrong = Answer("invalid", {"field": "first_no"}) if first_no < 0 else None
        stream = e.stream if e is not None else None
        if e is None or stream is None or stream.lease_id != e.lease_id or fence != e.fence:
            e, answer = self._judge(namespace, fence, None)
            if e is None:
                assert answer is not None
                return answer
            if wrong is not None:
                return wrong
            if e.stream is None:
                e.stream = Streamed()
            stream = e.stream
            stream.generation = e.generation
            if stream.lease_id != e.lease_id and stream.last_generation == e.generation:
                stream.rewind_count += 1
            stream.lease_id, stream.last_no = e.lease_id, -1
            self.touched.add(e.execution_id)
        elif wrong is not None:
            return wrong
        assert e.lease_expires_at is not None
        if e.lease_expires_at <= self._at(e):
            return Answer("lease_expired")
        if first_no > stream.last_no + 1:
            return Answer("gap")
        if (new := first_no + count - 1 - stream.last_no) > 0:
            stream.last_no += new
            stream.frame_count += new
            stream.last_generation = stream.generation
        facts = {"last_no": stream.last_no, "frame_count": stream.frame_count}
        return Answer("appended", facts)

    @staticmethod
    def _recorded(word: str, step: Recorded, value: bytes | None, encoding: str | None) -> Answer:
        facts = {name: getattr(step, name) for name in ("recorded_at", "until_at", "attempt_index")}
        return Answer(word, {**facts, "value": value, "encoding": encoding})

    def list_steps(self, namespace: str | None, execution_id: UUID | None) -> list[Recorded]:
        """Return the steps in the order they started; empty for an unknown execution."""
        e = self._find(namespace, execution_id)
        steps = e.journal.values() if e is not None else []
        return sorted(steps, key=lambda s: (s.position, s.name, s.occurrence))

    def hold(self, namespace: str | None, fence: Fence, reason: str | None) -> Answer:  # T30
        if not reason or len(reason.encode()) > 256:
            raise invalid("reason")
        e, answer = self._judge(namespace, fence, "hold")
        if e is not None:
            self._interrupt("T30", e, "hold", EventKind.HELD, "held")
            e.blocking_detail = reason
            return Answer("held")
        assert answer is not None
        return answer if answer.word != "repeat" else Answer("held")

    def continue_as(self, namespace: str | None, fence: Fence) -> Answer:  # T31
        """Continue the attempt with a new generation: no steps, no crashes, full time (T31)."""
        e, answer = self._judge(namespace, fence, "continue")
        if e is not None:
            self._interrupt("T31", e, "continue", EventKind.CONTINUED, "continued")
            self._forget_steps(e, list(e.journal), False)
            e.generation += 1
            e.retry_count = e.reclaim_count = e.company_count = 0
            e.crash_count = e.lone_crash_count = 0
            e.attempt_time_left = e.policy.attempt_timeout
            return Answer("continued", {"generation": e.generation})
        assert answer is not None
        if answer.word != "repeat":
            return answer
        assert fence.execution_id is not None
        generation = self.executions[fence.execution_id].generation
        return Answer("continued", {"generation": generation})

    def report_progress(
        self, namespace: str | None, fence: Fence, percent: int | None, message: str | None
    ) -> Answer:
        if (percent is None and message is None) or not 0 <= (percent or 0) <= 100:
            raise invalid("percent")
        e, answer = self._judge(namespace, fence, None)
        if e is not None:
            if percent is not None:
                e.progress_percent = percent
            if message is not None:
                e.progress_message = message
            e.progressed_at = e.mutated_at = max(self.now, e.mutated_at)
            self.touched.add(e.execution_id)
            return Answer("reported")
        assert answer is not None
        return answer

    # Calls of an operator

    def cancel(
        self,
        namespace: str | None,
        execution_id: UUID | None,
        source: str | None,
        reason: str | None,
        actor: str | None,
        fence: Fence | None,
    ) -> Answer:  # T23
        if not source:
            raise invalid("source")
        e = self._get(namespace, execution_id)
        if e.phase == Phase.TERMINAL:
            if e.outcome != Outcome.CANCELLED:
                raise Refusal("already_terminal")
            return self._shown("cancelled", e)
        if source == "lease_holder" or (
            source != "operator_override" and e.phase == Phase.ACTIVE
        ):  # fmt: skip
            if fence is None or None in (fence.lease_id, fence.epoch, fence.attempt_id):
                raise invalid("fence")
            held, answer = self._judge(
                namespace, replace(fence, execution_id=execution_id), "cancel"
            )
            if held is None:
                assert answer is not None
                # An earlier try of this call ended the lease, and the execution was replayed later.
                word = "cancelled" if answer.word == "repeat" else answer.word
                return self._shown(word, e)
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
        e.cancellation_reason, e.cancelled_by = reason, source
        self._tell()
        return self._shown("cancelled", e, **self._owing(e, self._first_awaited([e])))

    def _shown(self, word: str, e: Execution, **facts: Any) -> Answer:
        return Answer(word, {"public_state": e.public_state, "version": e.version, **facts})

    def revoke(
        self,
        namespace: str | None,
        execution_id: UUID | None,
        expected: UUID | None,
        instance: str | None,
        actor: str | None,
        if_version: int | None,
    ) -> Answer:  # T20
        e = self._get(namespace, execution_id)
        at = self._at(e)
        if if_version not in (None, e.version):
            return self._shown("already_applied", e)
        if not e.is_leased or e.lease_expires_at is None or e.lease_expires_at <= at:
            return self._shown("already_satisfied", e, reason="no_active_lease")
        if expected not in (None, e.lease_id):
            return self._shown("already_satisfied", e, reason="lease_id_mismatch")
        if instance not in (None, "", e.worker_instance_id):
            return self._shown("already_satisfied", e, reason="different_worker_instance_id")
        lease_id, holder = e.lease_id, e.worker_instance_id
        self._drop_lease(e, "revoke_lease")
        e.ownership = Ownership.LEASE_REVOKED
        e.blocking_reason = BlockingReason.WAITING_FOR_WORKER
        e.attempt_state = AttemptState.ATTEMPT_INTERRUPTED
        e.attempt_paused_at, e.attempt_pause_cause = at, "lease_revoked"
        e.attempt_deadline_at = e.attempt_time_left = None
        e.epoch += 1
        self._move(
            "T20", e, "revoke_lease", EventKind.LEASE_REVOKED, lease_id=lease_id, instance=holder,
            actor=actor,
        )  # fmt: skip
        return self._shown("revoked", e)

    def change_priority(
        self,
        namespace: str | None,
        execution_id: UUID | None,
        priority: int | None,
        actor: str | None,
        if_version: int | None,
    ) -> Answer:  # T11
        if priority is None:
            raise invalid("priority")
        e = self._get(namespace, execution_id)
        if if_version not in (None, e.version):
            return self._shown("already_applied", e)
        if e.phase != Phase.RUNNABLE:
            raise Refusal("not_eligible")
        e.priority = min(max(priority, 0), 9000)
        # This is not a change of state, so `transitioned_at` stays.
        transitioned_at, e.transitioned_at = e.transitioned_at, max(self.now, e.mutated_at)
        self._move(
            "T11", e, "change_priority", EventKind.PRIORITY_CHANGED, with_attempt=False, actor=actor
        )  # fmt: skip
        e.transitioned_at = transitioned_at
        return self._shown("changed", e)

    def replay(
        self,
        namespace: str | None,
        execution_id: UUID | None,
        actor: str | None,
        if_version: int | None,
        from_step: tuple[str, int] | None = None,
        fresh: bool | None = False,
    ) -> Answer:  # T28, T7
        """Run an ended execution again (T28).

        With `from_step` or `fresh`, delete the recorded steps from there on. This also releases an
        execution that is held (T7).
        """
        if fresh is None or (fresh and from_step is not None):
            raise invalid("fresh")
        e = self._get(namespace, execution_id)
        if if_version not in (None, e.version):
            return self._shown("already_applied", e)
        is_held = e.blocking_reason == BlockingReason.PAUSED_BY_POLICY and (
            fresh or from_step is not None
        )
        if e.phase != Phase.TERMINAL and not is_held:
            raise Refusal("not_terminal")
        forgotten = list(e.journal) if fresh else []
        if from_step is not None:
            if from_step not in e.journal:
                raise invalid("from_step")
            position = e.journal[from_step].position
            forgotten = [name for name, step in e.journal.items() if step.position >= position]
        if is_held:
            self._make_eligible("T7", e, "unblock", EventKind.UNBLOCKED, actor)
            answer = self._shown("unblocked", e)
        else:
            answer = self._replay(e, actor)
        self._forget_steps(e, forgotten, fresh)
        return answer

    def _forget_steps(self, e: Execution, names: Sequence[tuple[str, int]], fresh: bool) -> None:
        for name in names:
            del e.journal[name]

    def _replay(self, e: Execution, actor: str | None) -> Answer:
        if e.replay_count >= e.policy.max_replays:
            raise Refusal("max_replays_exhausted")
        flow = self._flow_of(e)
        if flow is not None and (flow.cancelled_at or flow.trimmed_at):
            raise Refusal("flow_already_terminal")
        clock, self.now = self.now, self._at(e)
        if flow is not None:
            again = self._reopen(e)
            self._keep(e)
            for other in again:
                self._run_again(other, actor, is_counted=False)
        elif e.wakes_pending:
            # Propagate the end before the replay undoes it.
            self._ended.append(e)
            self._tell()
        self._run_again(e, actor, is_counted=True)
        self.now = clock
        return self._shown("replayed", e)

    def _run_again(self, e: Execution, actor: str | None, *, is_counted: bool) -> None:  # T28, T29
        is_open = any(
            self.groups[edge.downstream_id, edge.group_no].state != "satisfied"
            for edge in self.edges.values()
            if edge.downstream_id == e.execution_id and edge.applied_at is not None
        )
        e.ends_with_parent = False
        self._wait(e, None, BlockingReason.NONE)
        if is_open:
            e.eligibility = Eligibility.BLOCKED_BY_DEPENDENCIES
            e.blocking_reason = BlockingReason.WAITING_FOR_CHILDREN
        e.outcome = Outcome.NONE
        e.attempt_state = AttemptState.PENDING_REPLAY_ATTEMPT
        e.replay_count += is_counted
        e.retry_count = e.reclaim_count = e.company_count = 0
        e.crash_count = e.lone_crash_count = 0
        e.wakes_pending = False
        if e.deadline_at is not None and e.deadline_at <= self._at(e):
            e.deadline_at = None
        e.terminal_at = e.trim_at = e.result = e.cancellation_reason = e.cancelled_by = None
        if not e.total_attempt_count:
            # The failure belonged to the execution. A failure of an attempt would stay.
            e.failure_class = e.failure_category = e.failure_reason = e.failure_detail = None
        number = "T29" if is_open else "T28"
        self._move(number, e, "replay", EventKind.REPLAYED, with_attempt=False, actor=actor)

    def retry(
        self,
        namespace: str | None,
        execution_id: UUID | None,
        actor: str | None,
        if_version: int | None,
    ) -> Answer:  # T28, T8, T7
        """Replay an ended execution, make a delayed one due, unblock a blocked one."""
        e = self._get(namespace, execution_id)
        if if_version not in (None, e.version):
            return self._shown("already_applied", e)
        if e.phase == Phase.TERMINAL:
            return self._replay(e, actor)
        if e.eligibility == Eligibility.NOT_ELIGIBLE_UNTIL_TIME:
            if e.attempt_state == AttemptState.ATTEMPT_INTERRUPTED:
                # End its sleeps too. Otherwise its next run would continue to sleep.
                for step in e.journal.values():
                    is_asleep = step.kind == StepKind.SLEEP
                    if is_asleep and step.until_at is not None and step.until_at > self.now:
                        step.until_at = max(self.now, step.recorded_at)
            self._make_eligible("T8", e, "promote", EventKind.PROMOTED, actor)
            return self._shown("promoted", e)
        if (
            e.eligibility in BLOCKS.values()
            and e.blocking_reason != BlockingReason.PAUSED_BY_FLOW_CANCEL
        ):
            self._make_eligible("T7", e, "unblock", EventKind.UNBLOCKED, actor)
            return self._shown("unblocked", e)
        raise Refusal("not_eligible")

    def _make_eligible(
        self, number: str, e: Execution, cause: str, kind: EventKind | None, actor: str | None
    ) -> None:
        self._wait(e, None, BlockingReason.NONE)
        e.blocking_detail = e.blocked_at = None
        self._move(number, e, cause, kind, with_attempt=False, actor=actor)

    def block(
        self,
        namespace: str | None,
        execution_id: UUID | None,
        reason: str | None,
        detail: str | None,
        actor: str | None,
    ) -> Answer:  # T6
        if reason not in BLOCKS:
            raise invalid("blocking_reason")
        e = self._get(namespace, execution_id)
        if e.phase == Phase.TERMINAL:
            raise Refusal("not_active")
        if e.eligibility == BLOCKS[reason] and e.blocking_reason == reason:
            return self._shown("blocked", e)
        # Only an execution that is claimable now, or held back by admission, can be blocked (0024).
        if e.eligibility not in (
            Eligibility.ELIGIBLE_NOW,
            Eligibility.BLOCKED_BY_BUDGET,
            Eligibility.BLOCKED_BY_QUOTA,
            Eligibility.BLOCKED_BY_ROUTE,
        ):
            raise Refusal("not_eligible")
        e.eligibility = BLOCKS[reason]
        e.line_id = None
        e.blocking_reason = reason
        e.blocking_detail = detail
        e.blocked_at = self._at(e)
        kind = EventKind.BLOCKED if actor is not None else None
        self._move("T6", e, "block", kind, with_attempt=False, actor=actor)
        return self._shown("blocked", e)

    def unblock(
        self,
        namespace: str | None,
        execution_id: UUID | None,
        expected: str | None,
        actor: str | None,
        if_version: int | None,
    ) -> Answer:  # T7
        e = self._get(namespace, execution_id)
        if if_version not in (None, e.version):
            return self._shown("already_applied", e)
        if e.eligibility == Eligibility.ELIGIBLE_NOW and e.cause == "unblock":
            return self._shown("unblocked", e)
        if (
            e.eligibility not in BLOCKS.values()
            or e.blocking_reason == BlockingReason.PAUSED_BY_FLOW_CANCEL
            or expected not in (None, "", e.blocking_reason)
        ):
            raise Refusal("not_eligible")
        kind = EventKind.UNBLOCKED if actor is not None else None
        self._make_eligible("T7", e, "unblock", kind, actor)
        return self._shown("unblocked", e)

    def set_tags(
        self, namespace: str | None, ids: Sequence[UUID], tags: Mapping[str, str] | None
    ) -> list[Answer]:
        if not tags or not all("." in key and key.islower() for key in tags):
            raise invalid("tags")
        answers = []
        for id_ in ids:
            e = self._find(namespace, id_)
            if e is None:
                answers.append(Answer("not_found"))
                continue
            if not tags.items() <= e.tags.items():
                e.tags |= tags
                e.mutated_at = max(self._at(e), e.mutated_at)
                self.touched.add(e.execution_id)
            answers.append(Answer("tagged"))
        return answers

    def set_lane(
        self,
        namespace: str,
        name: str,
        state: str | None,
        resumes_in: timedelta | None,
        actor: str | None,
    ) -> Answer:
        if state is not None and state not in frozenset(LaneState):
            raise invalid("state")
        if resumes_in is not None and state != LaneState.PAUSED:
            raise invalid("resumes_at")
        if state is None:
            raise invalid("state")
        resumes_at = self.now + resumes_in if resumes_in is not None else None
        lane = self.lanes.get((namespace, name))
        if (
            resumes_at is not None
            and resumes_at <= self.now
            and not (lane and (lane.state, lane.resumes_at) == (state, resumes_at))
        ):
            raise invalid("resumes_at")
        if lane is None:
            raise Refusal("lane_not_found")
        wanted = Lane(state=state, resumes_at=resumes_at, changed_by=actor)
        if lane == wanted:
            return Answer("unchanged", {"state": state, "resumes_at": resumes_at})
        self.lanes[namespace, name] = wanted
        return Answer("changed", {"state": state, "resumes_at": resumes_at})

    # Grants

    def _check_grant_call(self, key: bytes | None, ttl: timedelta | None) -> None:
        if key is None or len(key) != 32:
            raise invalid("key")
        if ttl is not None and not timedelta(milliseconds=1) <= ttl <= timedelta(minutes=1):
            raise invalid("grant_ttl")

    def _live_grant(self, e: Execution) -> Grant | None:
        grant = self.grants.get(e.execution_id)
        return grant if grant is not None and grant.expires_at > self._at(e) else None

    def _write_grant(
        self, e: Execution, kind: str, key: bytes, worker: Worker, ttl: timedelta
    ) -> Answer:
        at = self._at(e)
        self.grants[e.execution_id] = Grant(
            kind=kind,
            key=key,
            worker_id=worker.id,
            worker_instance_id=worker.instance,
            issued_at=at,
            expires_at=at + ttl,
        )
        return Answer("granted", {"kind": kind, "expires_at": at + ttl})

    def issue_claim_grant(
        self,
        namespace: str | None,
        execution_id: UUID,
        key: bytes | None,
        worker: Worker,
        ttl: timedelta,
    ) -> Answer:
        self._check_grant_call(key, ttl)
        assert key is not None
        e = self._get(namespace, execution_id)
        grant = self._live_grant(e)
        if (
            grant is not None
            and (grant.key, grant.worker_id) == (key, worker.id)
            and grant.kind != GrantKind.RECLAIM
        ):
            return Answer("granted", {"kind": grant.kind, "expires_at": grant.expires_at})
        if e.phase != Phase.RUNNABLE or e.eligibility != Eligibility.ELIGIBLE_NOW:
            raise Refusal("not_eligible")
        if grant is not None:
            raise Refusal("grant_exists")
        self._check_lane_open(e)
        self._check_flow_not_cancelled(e)
        if not e.route.capabilities <= worker.capabilities:
            raise Refusal("capability_mismatch", field="capabilities")
        is_open = e.attempt_state == AttemptState.ATTEMPT_INTERRUPTED
        kind = GrantKind.RESUME if is_open else GrantKind.CLAIM
        return self._write_grant(e, kind, key, worker, ttl)

    def claim_granted(
        self,
        kind: str,
        namespace: str | None,
        execution_id: UUID,
        key: bytes | None,
        worker: Worker,
        claim_id: UUID,
        ttl: timedelta,
        expected_index: int | None,
    ) -> Answer:
        """Claim with a grant: claim_execution (T9) or claim_resumed_execution (T10)."""
        self._check_grant_call(key, None)
        e = self._get(namespace, execution_id)
        if e.is_leased and e.lease_id == claim_id:
            return self._leased(e)
        if e.is_leased:
            raise Refusal("lease_conflict")
        if e.phase != Phase.RUNNABLE or e.eligibility != Eligibility.ELIGIBLE_NOW:
            raise Refusal("not_leaseable")
        is_open = e.attempt_state == AttemptState.ATTEMPT_INTERRUPTED
        if is_open and kind == GrantKind.CLAIM:
            raise Refusal("use_claim_resumed")
        if not is_open and kind == GrantKind.RESUME:
            raise Refusal("not_resumed")
        index = e.attempt_index if is_open else e.total_attempt_count
        if expected_index not in (None, index):
            raise Refusal("not_leaseable")
        self._check_lane_open(e)
        self._check_flow_not_cancelled(e)
        self._check_new_lease(e, claim_id)
        grant = self.grants.get(execution_id)
        word = self._consume_grant(e, kind, key, worker)
        if word is not None:
            raise Refusal("invalid_grant" if word == "other_worker" else word)
        self._admit_granted(e, grant)
        self._lease(e, worker, claim_id, ttl)
        return self._leased(e)

    def _check_lane_open(self, e: Execution) -> None:
        """Refuse if the lane is paused or disabled. A grant does not change that."""
        if not self.lanes[e.route.place].is_worked(self._at(e)):
            raise Refusal("not_leaseable")

    def _check_flow_not_cancelled(self, e: Execution) -> None:
        """Refuse a new lease for a member of a cancelled flow."""
        if self._is_dead(e):
            raise Refusal("not_leaseable")

    def _check_new_lease(self, e: Execution, claim_id: UUID) -> None:
        """Refuse a claim id that was used before for this execution."""
        used = {e.lease_id, e.last_lease_id, e.attempt_id}
        used |= {past.last_lease_id for past in e.history}
        used |= {past.attempt_id for past in e.history}
        if claim_id in used:
            raise invalid("claim_id")

    def _consume_grant(
        self, e: Execution, kind: str, key: bytes | None, worker: Worker
    ) -> str | None:
        """Consume a grant and return None, or return the problem with it."""
        grant = self.grants.get(e.execution_id)
        if grant is None or grant.kind != kind or grant.key != key:
            return "invalid_grant"
        if grant.worker_id != worker.id:
            return "other_worker"
        if grant.expires_at <= self._at(e):
            return "grant_expired"
        del self.grants[e.execution_id]
        return None

    def issue_grant_and_claim(
        self, namespace: str | None, execution_id: UUID, claim_id: UUID, ttl: timedelta
    ) -> Answer:  # T9, T10
        e = self._get(namespace, execution_id)
        if e.is_leased and e.lease_id == claim_id:
            return self._leased(e)
        if e.is_leased:
            raise Refusal("lease_conflict")
        if e.phase != Phase.RUNNABLE or e.eligibility != Eligibility.ELIGIBLE_NOW:
            raise Refusal("not_eligible")
        self._check_flow_not_cancelled(e)
        self._check_new_lease(e, claim_id)
        if self._live_grant(e) is not None:
            raise Refusal("grant_exists")
        self._admit_granted(e, self.grants.pop(execution_id, None))
        self._lease(e, Worker("operator", "operator"), claim_id, ttl)
        return self._leased(e)

    def _admit_granted(self, e: Execution, grant: Grant | None) -> None:
        """Take slots, or give the grant back and refuse the call."""
        try:
            self._admit_alone(e)
        except Refusal:
            if grant is not None:
                self.grants[e.execution_id] = grant
            raise

    def _reclaimability(self, e: Execution) -> str | None:
        """Return None if the execution can be reclaimed, or the reason why not."""
        if e.phase == Phase.TERMINAL and e.cause == "exceed_reclaims":
            return "reclaim_cap_exceeded"
        if e.phase != Phase.ACTIVE:
            return "not_reclaimable"
        if e.is_leased and e.lease_expires_at is not None and e.lease_expires_at > self._at(e):
            return "not_reclaimable"
        if self._is_dead(e):
            return "not_reclaimable"
        return "reclaim_cap_exceeded" if e.is_over_the_cap else None

    def _mark_lost(self, e: Execution) -> None:
        """Mark an expired lease (T19), and end an execution with too many crashes (T22)."""
        if e.phase != Phase.ACTIVE:
            return
        if e.is_leased:
            assert e.lease_expires_at is not None
            if e.lease_expires_at > self._at(e):
                return
            self._expire_lease(e)
        if e.is_over_the_cap and not self._is_dead(e):
            self._fail_over_reclaim_limit(e)
            self._tell(self._at(e))

    def issue_reclaim_grant(
        self,
        namespace: str | None,
        execution_id: UUID,
        key: bytes | None,
        worker: Worker,
        ttl: timedelta,
    ) -> Answer:
        self._check_grant_call(key, ttl)
        assert key is not None
        e = self._get(namespace, execution_id)
        grant = self._live_grant(e)
        if (
            grant is not None
            and (grant.key, grant.worker_id) == (key, worker.id)
            and grant.kind == GrantKind.RECLAIM
        ):
            return Answer("granted", {"kind": grant.kind, "expires_at": grant.expires_at})
        word = self._reclaimability(e)
        if word is None and grant is not None:
            raise Refusal("grant_exists")
        if word is None:
            self._check_lane_open(e)
        self._mark_lost(e)
        if word is not None:
            return Answer(word, {"kind": None, "expires_at": None})
        if not e.route.capabilities <= worker.capabilities:
            return Answer("not_reclaimable", {"kind": None, "expires_at": None})
        return self._write_grant(e, GrantKind.RECLAIM, key, worker, ttl)

    def reclaim_execution(
        self,
        namespace: str | None,
        execution_id: UUID,
        key: bytes | None,
        worker: Worker,
        claim_id: UUID,
        ttl: timedelta,
    ) -> Answer:  # T21, T22
        self._check_grant_call(key, None)
        e = self._get(namespace, execution_id)
        if e.is_leased and e.lease_id == claim_id:
            return self._leased(e, "reclaimed")
        word = self._reclaimability(e)
        if word is None:
            self._check_lane_open(e)
            self._check_new_lease(e, claim_id)
            grant = self.grants.get(execution_id)
            word = self._consume_grant(e, GrantKind.RECLAIM, key, worker)
            if word == "other_worker":
                raise invalid("worker_id")
            if word is None:
                self._admit_granted(e, grant)
        self._mark_lost(e)
        if word is not None:
            return Answer(word)
        self._lease(e, worker, claim_id, ttl)
        return self._leased(e, "reclaimed")

    # Time

    def promote_delayed(self) -> int:
        """Make delayed executions eligible (T8), and end waits before a reclaim.

        The end of such a wait is not a transition.
        """
        handled = 0
        for e in list(self.executions.values()):
            if e.delayed_until is not None and e.delayed_until <= self.now:
                self._make_eligible("T8", e, "promote", None, None)
            elif e.reclaim_at is not None and e.reclaim_at <= self.now:
                e.reclaim_at = None
                e.mutated_at = self._at(e)
                self.touched.add(e.execution_id)
            else:
                continue
            handled += 1
        return handled

    def expire_leases(self) -> int:
        """Expire all leases that are over (T19)."""
        due = [
            e
            for e in self.executions.values()
            if e.is_leased and e.lease_expires_at and e.lease_expires_at <= self._at(e)
        ]
        for e in due:
            self._expire_lease(e)
        return len(due)

    def expire_executions(self) -> int:
        """Expire executions that are past their deadline, in any state (T24).

        An attempt past its timeout fails, unless it has just ended with its parent.
        """
        there = [e for e in self.executions.values() if e.phase != Phase.TERMINAL]
        over = [e for e in there if self.is_over(e)]
        late = [e for e in there if not self.is_over(e) and self.is_late(e)]
        return self._time_out_all(over, late)

    def _time_out_all(self, over: Sequence[Execution], late: Sequence[Execution]) -> int:
        for e in over:
            self._time_out(e, "expire", "execution_deadline", "its deadline has passed")
        self._tell()
        late = [e for e in late if e.is_leased]
        why = "the attempt ran out of time"
        for e in late:
            retry = e.policy.retry
            wait = retry.wait(e.retry_count, FailureClass.TIMEOUT, None) if retry else None
            if e.phase == Phase.TERMINAL:
                continue
            if wait is not None and self._is_dead(e):
                self._cancel_flow_members(e)
                self._tell()
            elif wait is None:
                self._time_out(e, "time_out", "attempt_timeout", why)
            else:
                e.epoch += 1
                failure = (FailureClass.TIMEOUT, "attempt_timeout", why, None)
                self._schedule_retry("T24", e, "time_out", "time_out", wait, failure)
        self._tell()
        return len(over) + len(late)

    def _time_out(self, e: Execution, cause: str, category: str, why: str) -> None:
        self._end(
            "T24",
            e,
            Outcome.EXPIRED,
            cause,
            EventKind.EXPIRED,
            lease_end=cause,
            attempt_as=AttemptLifecycle.ENDED_FAILURE,
            takes_lease=True,
            failure=(FailureClass.TIMEOUT, category, why, None),
        )

    def reap_grants(self) -> int:
        over = [id_ for id_, grant in self.grants.items() if grant.expires_at <= self.now]
        for id_ in over:
            del self.grants[id_]
        return len(over)

    def trim_retention(self, retention: timedelta, event_floor: timedelta) -> int:
        """Delete old ended executions with all that they own. Their events stay for the floor.

        A child stays until its parent has ended, because the parent would submit it again. An
        execution also stays until its end is propagated.
        """
        over = [
            e
            for e in self.executions.values()
            if e.terminal_at is not None
            and not e.wakes_pending
            and not self._has_unfinished_parent(e)
            and not self._is_in_unfinished_flow(e)
            and e.terminal_at + (retention if e.policy.retention is None else e.policy.retention)
            <= self.now
        ]
        for e in over:
            assert e.terminal_at is not None
            del self.executions[e.execution_id]
            self.grants.pop(e.execution_id, None)
            if e.terminal_at + event_floor > self.now:
                self.event_trims[e.execution_id] = e.terminal_at + event_floor
                self._trimmed_from[e.execution_id] = e.route.namespace
        self._trim_members(over, event_floor)
        return len(over)

    def _has_unfinished_parent(self, e: Execution) -> bool:
        parent = self.executions.get(e.parent_id) if e.parent_id is not None else None
        return parent is not None and parent.phase != Phase.TERMINAL

    def trim_events(self) -> int:
        over = [id_ for id_, due_at in self.event_trims.items() if due_at <= self.now]
        for id_ in over:
            del self.event_trims[id_]
        return len(over)

    def trim_keys(self) -> int:
        """Delete expired keys. A key of unfinished work is checked again later."""
        over = [name for name, key in self.keys.items() if key.expires_at <= self.now]
        for name in over:
            if self._holds(self.keys[name]):
                self.keys[name].expires_at = self.now + timedelta(hours=1)
            else:
                del self.keys[name]
        return len(over)
