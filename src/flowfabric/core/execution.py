"""Executions: the records that a caller submits, a worker claims and a reader gets."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, overload
from uuid import UUID

from flowfabric.core.errors import InvalidInput
from flowfabric.core.ids import AnyId, ExecutionId, FlowId, as_uuid
from flowfabric.core.limit import Gate
from flowfabric.core.states import (
    AttemptLifecycle,
    AttemptState,
    AttemptType,
    BlockingReason,
    Eligibility,
    EventKind,
    FailureClass,
    KeyScope,
    Outcome,
    Ownership,
    Phase,
    PublicState,
)
from flowfabric.core.trace import trace_of

MAX_PAYLOAD_BYTES = 1_048_576
MAX_LANE_BYTES = 64
MAX_NAME_BYTES = 256
MAX_KEY_BYTES = 512
MAX_TRACE_BYTES = 4096
DEFAULT_LANE = "default"
DEFAULT_NAMESPACE = "default"
DEFAULT_KEY_WINDOW = timedelta(days=1)

_TAG_KEY = re.compile(r"[a-z][a-z0-9_]*\.[a-z0-9_][a-z0-9_.]*")


@dataclass(frozen=True, slots=True)
class Route:
    """The route of an execution: its namespace, lane, task, needed capabilities and code version.

    Only an execution with recorded steps has a code version.
    """

    namespace: str
    lane: str
    task: str
    capabilities: frozenset[str] = frozenset()
    code_version: str | None = None
    # How many times `ctx.continue_as` has continued the execution.
    generation: int = 0

    def __hash__(self) -> int:
        try:
            return hash(
                (self.namespace, self.lane, self.task, self.capabilities, self.code_version)
            )
        except TypeError:
            # A dictionary hashes a route before anyone calls `check()`. Call it here, so that the
            # error names the unhashable field.
            self.check()
            raise InvalidInput(
                field="capabilities",
                problem=f"must be a frozenset of text, not {type(self.capabilities).__name__}",
            ) from None

    def check(self) -> None:
        """Refuse invalid names, as the engine would. The error names the field."""
        check_name("namespace", self.namespace)
        check_lane(self.lane)
        check_name("task", self.task)


class OnConflict(StrEnum):
    """How a submit handles a key that the same task used before with other arguments."""

    RAISE = "raise"
    EXISTING = "existing"


@dataclass(slots=True, kw_only=True, eq=False)
class Submission:
    """One execution to store. Like `Claimed`, it is not frozen, because freezing costs time."""

    id: ExecutionId
    route: Route
    payload: bytes = field(repr=False)
    priority: int = 0
    payload_encoding: str | None = None
    delay: timedelta | None = None
    delayed_until: datetime | None = None
    deadline: timedelta | None = None
    deadline_at: datetime | None = None
    policy: str | None = None
    max_reclaims: int | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    creator: str | None = None
    key: str | None = None
    key_fingerprint: bytes | None = None
    key_scope: KeyScope = KeyScope.WINDOW
    key_window: timedelta = DEFAULT_KEY_WINDOW
    # How many partitions there were when the partition of `id` was computed from the key.
    key_partitions: int | None = None
    # Not sent to the engine: the client decides, when it reads the engine's answer.
    on_conflict: OnConflict = OnConflict.RAISE
    # The parent: the execution whose handler submits this one. With `with_parent`, the end of the
    # parent cancels this execution.
    parent_id: ExecutionId | None = None
    with_parent: bool = False
    # W3C traceparent and tracestate, as JSON.
    trace_context: str | None = None
    task_version: str | None = None
    # The gates of the limits and budgets that apply to the execution.
    quotas: tuple[Gate, ...] = ()
    budgets: tuple[Gate, ...] = ()
    # In a lane, executions with different fair keys take turns.
    fair_key: str | None = None

    def check(self) -> None:
        """Refuse invalid fields, as the engine would. The error names the field.

        The route is not checked here: it is checked once, when it is registered.
        """
        check_priority(self.priority)
        if not self.id.uuid.int:
            raise InvalidInput(field="id", problem="is the nil UUID; mint() makes an id")
        check_payload(self.payload)
        if (
            self.delay is not None
            or self.deadline is not None
            or self.delayed_until is not None
            or self.deadline_at is not None
        ):
            self._check_times()
        if self.max_reclaims is not None:
            check_max_reclaims(self.max_reclaims)
        if self.tags:
            check_tags(self.tags)
        if self.key is not None:
            check_text("key", self.key, MAX_KEY_BYTES)
        if self.creator is not None:
            check_text("creator", self.creator, MAX_NAME_BYTES)
        if self.parent_id is not None or self.with_parent:
            self._check_parent()
        if self.trace_context is not None:
            check_text("trace_context", self.trace_context, MAX_TRACE_BYTES)
        if self.task_version is not None:
            check_text("task_version", self.task_version, MAX_NAME_BYTES)
        if self.fair_key is not None:
            check_text("fair_key", self.fair_key, MAX_NAME_BYTES)

    def _check_parent(self) -> None:
        if self.parent_id is None:
            raise InvalidInput(
                field="parent_id", problem="is needed for a child that ends with its parent"
            )
        if self.parent_id.partition_key != self.id.partition_key:
            raise InvalidInput(field="parent_id", problem="must be in the partition of the child")
        if self.parent_id.uuid == self.id.uuid:
            raise InvalidInput(field="parent_id", problem="must be another execution")

    def _check_times(self) -> None:
        if self.delay is not None and self.delayed_until is not None:
            raise InvalidInput(
                field="delayed_until", problem="cannot be combined with a delay; give one of them"
            )
        for name in ("delay", "deadline"):
            if (value := getattr(self, name)) is not None and not isinstance(value, timedelta):
                raise InvalidInput(
                    field=name, problem=f"must be a timedelta, not {type(value).__name__}"
                )
        for name in ("delayed_until", "deadline_at"):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, datetime) or value.tzinfo is None:
                raise InvalidInput(field=name, problem="must be a datetime with a time zone")


@dataclass(slots=True, eq=False)
class Alike(Sequence[Submission]):
    """Submissions that have no key and differ only in id and payload.

    Ids and payloads are kept in two lists, because making one object per submission costs time.
    `shared` contains all other fields, including the partition. An item of `uuids` may be text.
    """

    shared: Submission
    uuids: list[UUID | str]
    payloads: list[bytes] = field(repr=False)

    def check(self) -> None:
        """Refuse invalid fields, as `Submission.check` does for a single submission."""
        self.shared.check()
        for payload in self.payloads:
            if len(payload) > MAX_PAYLOAD_BYTES:
                check_payload(payload)

    def __len__(self) -> int:
        return len(self.uuids)

    @overload
    def __getitem__(self, index: int) -> Submission: ...
    @overload
    def __getitem__(self, index: slice) -> Alike: ...

    def __getitem__(self, index: int | slice) -> Submission | Alike:
        if isinstance(index, slice):
            return Alike(self.shared, self.uuids[index], self.payloads[index])
        id = ExecutionId.of(self.shared.id.partition_key, as_uuid(self.uuids[index]))
        return replace(self.shared, id=id, payload=self.payloads[index])


@dataclass(slots=True)
class Submitted:
    """The answer to a submission: the id of its execution.

    Not frozen, because freezing costs time.
    """

    id: ExecutionId
    is_duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Fence:
    """The identity of a lease.

    The engine accepts a call of the holder only with the fence of the current lease.
    """

    execution_id: UUID
    lease_id: UUID
    epoch: int
    attempt_id: UUID


@dataclass(slots=True, eq=False)
class Claimed:
    """An execution that this process has leased, with everything needed to run it.

    Not frozen: a worker builds one object per execution, and freezing would double the cost.
    """

    execution_id: UUID
    namespace: str
    lane: str
    task: str
    claim_kind: str
    rank: int
    order_at: datetime
    epoch: int
    attempt: int
    attempt_id: UUID
    attempt_type: str
    lease_expires_at: datetime
    attempt_deadline_at: datetime | None
    deadline_at: datetime | None
    retry_count: int
    payload_encoding: str | None
    payload: bytes | None = field(repr=False)
    replay_count: int
    trace_context: str | None
    # How many workers in a row vanished while they had leased the execution.
    crash_count: int
    # How many times `ctx.continue_as` or a restart has continued the execution.
    generation: int
    partition_key: int
    lease_id: UUID

    @property
    def id(self) -> ExecutionId:
        return ExecutionId.of(self.partition_key, self.execution_id)

    @property
    def fence(self) -> Fence:
        return Fence(self.execution_id, self.lease_id, self.epoch, self.attempt_id)

    @property
    def is_suspect(self) -> bool:
        """Whether the execution is a suspect: it has possibly crashed its workers.

        A suspect must run alone in its process.
        """
        return self.crash_count >= 2


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt failed. `reason` is short; `detail` helps to debug.

    A retry waits for `retry_delay` or until `retry_at`. If neither is set, the policy decides how
    long it waits.
    """

    kind: FailureClass
    reason: str
    category: str | None = None
    detail: bytes | None = None
    retry_delay: timedelta | None = None
    retry_at: datetime | None = None
    # The innermost function of user code that the error came through.
    place: str | None = None


@dataclass(frozen=True, slots=True)
class FailAnswer:
    """The answer to a failed attempt: a retry at `delayed_until`, or the end of the execution."""

    delayed_until: datetime | None = None
    next_attempt: int | None = None

    @property
    def will_retry(self) -> bool:
        return self.delayed_until is not None


@dataclass(frozen=True, slots=True)
class Ending:
    """How an execution ended."""

    execution_id: UUID
    public_state: PublicState
    terminal_at: datetime
    attempt: int
    result_encoding: str | None
    result: bytes | None = field(repr=False)
    failure_class: FailureClass | None
    failure_category: str | None
    failure_reason: str | None
    failure_detail: bytes | None


class CancelSource(StrEnum):
    """Who cancelled an execution. The engine accepts any other text as well."""

    OPERATOR_OVERRIDE = "operator_override"
    LEASE_HOLDER = "lease_holder"
    FLOW_CASCADE = "flow_cascade"
    SYSTEM_TIMEOUT = "system_timeout"


CANCEL_SOURCES = {
    CancelSource.OPERATOR_OVERRIDE: "an operator",
    CancelSource.LEASE_HOLDER: "its own handler",
    CancelSource.FLOW_CASCADE: "its flow",
    "parent": "the end of its parent",
}
"""The words that a sentence uses for the source of a cancellation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationAnswer:
    """The answer to an operation on one execution, with the state in which the execution is now.

    `outcome` says what was done. Two outcomes mean that this call did nothing:

    - `already_applied`: the execution no longer has the expected version. Perhaps an earlier send
      of the same operation has changed the version.
    - `already_satisfied`: there was nothing to do; `detail` says why.
    """

    id: ExecutionId
    outcome: str
    public_state: PublicState
    version: int
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LimitOf:
    """A quota or a budget of an execution. `kind` is `quota` or `budget`; `key` is empty if the
    limit has no keys."""

    kind: str
    name: str
    key: str


@dataclass(frozen=True, slots=True)
class ExecutionInfo:
    """Everything about one execution."""

    id: ExecutionId
    namespace: str
    lane: str
    task: str
    capabilities: frozenset[str]
    priority: int
    public_state: PublicState
    phase: Phase
    ownership: Ownership
    eligibility: Eligibility
    blocking_reason: BlockingReason
    blocking_detail: str | None
    outcome: Outcome
    attempt_state: AttemptState
    version: int
    epoch: int
    attempt: int
    attempt_id: UUID | None
    attempt_type: AttemptType | None
    total_attempt_count: int
    retry_count: int
    replay_count: int
    reclaim_count: int
    max_reclaims: int
    lease_id: UUID | None
    worker_id: str | None
    worker_instance_id: str | None
    lease_expires_at: datetime | None
    created_at: datetime
    started_at: datetime | None
    terminal_at: datetime | None
    transitioned_at: datetime
    mutated_at: datetime
    delayed_until: datetime | None
    deadline_at: datetime | None
    failure_class: FailureClass | None
    failure_category: str | None
    failure_reason: str | None
    payload_encoding: str | None
    payload: bytes | None = field(repr=False)
    result_encoding: str | None
    result: bytes | None = field(repr=False)
    tags: Mapping[str, str]
    creator: str | None
    flow_id: FlowId | None = None
    # Whether two or more workers in a row vanished while they had leased it, and it has not ended.
    is_crash_loop: bool = False
    reclaim_at: datetime | None = None
    attempt_deadline_at: datetime | None = None
    attempt_started_at: datetime | None = None
    attempt_paused_at: datetime | None = None
    attempt_pause_cause: str | None = None
    due_at: datetime | None = None
    blocked_at: datetime | None = None
    cancellation_reason: str | None = None
    cancelled_by: str | None = None
    progress_percent: int | None = None
    progress_message: str | None = None
    progressed_at: datetime | None = None
    retention: timedelta | None = None
    trim_at: datetime | None = None
    instance_tag: str | None = None
    policy: Mapping[str, object] | None = None
    task_version: str | None = None
    parent_id: ExecutionId | None = None
    ends_with_parent: bool = False
    # How many runs must still end before it continues.
    wait_left: int | None = None
    child_count: int = 0
    step_count: int = 0
    # The idempotency key that now belongs to it.
    key: str | None = None
    # The code version that recorded its steps.
    code_version: str | None = None
    # How many times `ctx.continue_as` has continued the execution.
    generation: int = 0
    # The quotas and budgets that limit it.
    limits: Sequence[LimitOf] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress that a handler reported. A field is None if it was not reported."""

    percent: int | None
    message: str | None
    at: datetime | None


@dataclass(frozen=True, slots=True)
class StateInfo:
    """The state of one execution, without payload, result or tags."""

    id: ExecutionId
    namespace: str
    lane: str
    task: str
    priority: int
    phase: Phase
    ownership: Ownership
    eligibility: Eligibility
    blocking_reason: BlockingReason
    blocking_detail: str | None
    outcome: Outcome
    attempt_state: AttemptState
    public_state: PublicState
    version: int
    attempt: int
    total_attempt_count: int
    flow_id: FlowId | None
    created_at: datetime
    started_at: datetime | None
    terminal_at: datetime | None


@dataclass(frozen=True, slots=True)
class ExecutionContext:
    """The task, payload and tags of an execution."""

    task: str
    payload_encoding: str | None
    payload: bytes = field(repr=False)
    tags: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ExecutionSummary:
    """One execution in a list."""

    id: ExecutionId
    namespace: str
    lane: str
    task: str
    priority: int
    public_state: PublicState
    blocking_reason: BlockingReason
    attempt: int
    total_attempt_count: int
    retry_count: int
    replay_count: int
    reclaim_count: int
    is_crash_loop: bool
    # The step at which its worker put it on hold for an operator.
    is_held: bool
    held_step: str | None
    worker_instance_id: str | None
    created_at: datetime
    started_at: datetime | None
    terminal_at: datetime | None
    delayed_until: datetime | None
    deadline_at: datetime | None
    failure_reason: str | None
    version: int
    # The progress that the handler reported last.
    progress_percent: int | None = None
    progress_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionFilter:
    """The executions to list or to count. A field that is None does not filter.

    `worker_instance_id` is the worker that has the lease. An execution must have all `tags`. In
    `tasks`, * matches any text and ? matches one character. `key` is an idempotency key. `error` is
    the type of the latest failure, with or without its module.
    """

    states: Collection[PublicState] | None = None
    lanes: Collection[str] | None = None
    tasks: Collection[str] | None = None
    tags: Mapping[str, str] | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    ended_after: datetime | None = None
    ended_before: datetime | None = None
    worker_instance_id: str | None = None
    key: str | None = None
    parent: AnyId | None = None
    error: str | None = None
    is_held: bool | None = None
    is_crash_loop: bool | None = None

    def check(self) -> None:
        """Refuse invalid fields, as the engine would. The error names the field."""
        for name in ("states", "lanes", "tasks"):
            values = getattr(self, name)
            if values is None:
                continue
            if isinstance(values, str) or not isinstance(values, Collection):
                raise InvalidInput(field=name, problem="must be a list of texts, not one text")
            for value in values:
                check_text(name, value, MAX_NAME_BYTES)
        unknown = sorted(set(self.states or ()) - set(PublicState))
        if unknown:
            raise InvalidInput(
                field="states",
                problem=f"{unknown[0]!r} is not a state; use one of {', '.join(PublicState)}",
            )
        if self.tags is not None:
            check_tags(self.tags)
        for name, most in (
            ("worker_instance_id", MAX_NAME_BYTES),
            ("key", MAX_KEY_BYTES),
            ("error", MAX_NAME_BYTES),
        ):
            value = getattr(self, name)
            if value is not None:
                check_text(name, value, most)
        for name in ("created_after", "created_before", "ended_after", "ended_before"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, datetime) or value.tzinfo is None):
                raise InvalidInput(field=name, problem="must be a datetime with a time zone")


@dataclass(frozen=True, slots=True)
class ExecutionPage:
    """One page of a list of executions, newest first.

    A page may be short or empty although more executions follow: only the last page has no cursor.
    `missing` names the partitions that could not be reached.
    """

    executions: list[ExecutionSummary]
    cursor: str | None
    missing: tuple[int, ...] = ()

    @property
    def is_last(self) -> bool:
        return self.cursor is None


@dataclass(frozen=True, slots=True)
class IdPage:
    """One page of ids, ascending.

    `cursor` is the id after which the next page begins; it is None on the last page. `missing`
    names the partitions that could not be reached.
    """

    ids: list[ExecutionId]
    cursor: ExecutionId | None
    missing: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ExecutionCount:
    """A number of executions. It is exact unless `is_more` or `missing` is set.

    `missing` names the partitions that could not be reached.
    """

    number: int
    is_more: bool = False
    missing: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.number}+" if self.is_more or self.missing else str(self.number)


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failed executions of one fingerprint: the same task, category and place.

    `last_id` and `reason` belong to the newest of these executions.
    """

    task: str
    category: str | None
    place: str | None
    number: int
    first_at: datetime
    last_at: datetime
    last_id: ExecutionId
    reason: str | None


@dataclass(frozen=True, slots=True)
class FailureGroups:
    """Groups of failures, the largest first.

    `seen` counts the failures of all groups, even of groups that are not listed. `is_more` means
    that there may be older failures that were not read. `missing` names the partitions that could
    not be reached.
    """

    groups: list[FailureGroup]
    seen: int = 0
    is_more: bool = False
    missing: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ExpiredLease:
    """A lease that has expired. `is_marked` tells whether the engine has recorded the expiry."""

    id: ExecutionId
    namespace: str
    lease_id: UUID
    epoch: int
    worker_id: str
    worker_instance_id: str
    lease_expires_at: datetime
    attempt: int
    is_marked: bool

    @property
    def cursor(self) -> tuple[datetime, ExecutionId]:
        """The cursor for the page that begins after this lease."""
        return self.lease_expires_at, self.id


@dataclass(frozen=True, slots=True)
class AttemptInfo:
    """One attempt of an execution."""

    attempt: int
    attempt_id: UUID
    attempt_type: AttemptType
    lifecycle: AttemptLifecycle
    epoch: int
    started_at: datetime
    ended_at: datetime | None
    worker_id: str | None
    worker_instance_id: str | None
    attempt_reason: str | None
    pause_cause: str | None
    failure_class: FailureClass | None
    failure_category: str | None
    failure_reason: str | None
    failure_detail: bytes | None = field(repr=False)
    # The innermost function of user code that the error came through. The task, the category and
    # this place are the fingerprint of the failure.
    failure_place: str | None = None

    def trace(self, *, is_whole: bool = True) -> str:
        """Return the traceback of the failure, or '' if there is none.

        If `is_whole` is false, flowfabric's own code is left out.
        """
        return trace_of(self.failure_detail, is_whole=is_whole)


@dataclass(frozen=True, slots=True)
class Event:
    """One event of an execution. The events of an execution have consecutive `version` numbers."""

    id: ExecutionId
    version: int
    kind: EventKind
    occurred_at: datetime
    attempt: int | None
    lease_id: UUID | None
    epoch: int | None
    worker_instance_id: str | None
    outcome: Outcome | None
    flow_id: FlowId | None
    namespace: str
    lane: str | None
    task: str | None
    instance_tag: str | None
    actor: str | None
    detail: Mapping[str, object] | None
    # The cursor to store once this event is processed. `follow` continues from it and may yield
    # some events again.
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class EventPage:
    """A page of events, with the cursor after them. `has_more` means that more events already
    exist.

    `missing` lists the partitions that could not be reached. Their events come on a later page.
    """

    events: list[Event]
    cursor: str
    has_more: bool
    missing: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LaneInfo:
    """A lane, with the number of executions that wait in it; 10001 means more than 10000."""

    namespace: str
    lane: str
    state: str
    resumes_at: datetime | None
    waiting: int
    # How long ended executions are kept; None means the default time.
    retention: timedelta | None = None
    # The last change of the lane's state: why, by whom and when.
    reason: str | None = None
    changed_by: str | None = None
    changed_at: datetime | None = None
    # How many executions wait in the lines of quotas and budgets; 10001 means more than 10000.
    in_line: int = 0
    # The options in force: how many executions run at once, and how many start in a window; the
    # argument by which executions take turns, and the keys that get more than one turn.
    concurrency: int | None = None
    rate: int | None = None
    rate_window: timedelta | None = None
    fair_by: str | None = None
    weights: Mapping[str, int] | None = None
    # Whether an operator set the options.
    is_set: bool = False


def check_priority(priority: int) -> None:
    if priority.__class__ is not int:
        raise InvalidInput(
            field="priority", problem=f"must be a whole number, not {type(priority).__name__}"
        )
    if not -(2**31) <= priority < 2**31:
        raise InvalidInput(field="priority", problem="must fit into 32 bits")


def check_max_reclaims(number: int) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= 1_000_000:
        raise InvalidInput(field="max_reclaims", problem="must be a whole number from 0 to 1000000")


def check_lane(lane: str) -> None:
    if not isinstance(lane, str):
        raise InvalidInput(field="lane", problem=f"must be text, not {type(lane).__name__}")
    if not lane:
        raise InvalidInput(field="lane", problem="must not be empty")
    # Let lone surrogates pass here. The loop below refuses them, because they are not ASCII.
    encoded = lane.encode("utf-8", "surrogatepass")
    if len(encoded) > MAX_LANE_BYTES:
        raise InvalidInput(
            field="lane",
            problem=f"is {len(encoded)} bytes long; at most {MAX_LANE_BYTES} are allowed",
        )
    for index, byte in enumerate(encoded):
        if not 0x20 <= byte <= 0x7E:
            raise InvalidInput(
                field="lane", problem=f"must be printable ASCII; byte {index} is 0x{byte:02x}"
            )


def check_name(name: str, value: str) -> None:
    check_text(name, value, MAX_NAME_BYTES)
    if any(ch <= " " or ch == "\x7f" for ch in value):
        raise InvalidInput(field=name, problem="must not contain whitespace or control characters")


def check_text(name: str, value: str, most: int) -> None:
    if not isinstance(value, str):
        raise InvalidInput(field=name, problem=f"must be text, not {type(value).__name__}")
    if not 1 <= len(value.encode("utf-8", "surrogatepass")) <= most:
        raise InvalidInput(field=name, problem=f"must be 1 to {most} bytes")
    if "\x00" in value:
        raise InvalidInput(field=name, problem="must not contain a NUL character")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(field=name, problem="is not valid Unicode") from error


def check_words(**words: str | None) -> None:
    """Refuse a reason or an actor that is too long or not valid text.

    Empty text passes here: the engine decides about it.
    """
    for name, value in words.items():
        if value is not None and value != "":
            check_text(name, value, MAX_NAME_BYTES)


def check_tags(tags: Mapping[str, str]) -> None:
    if not isinstance(tags, Mapping):
        raise InvalidInput(field="tags", problem="must be a mapping of text to text")
    if len(tags) > 64:
        raise InvalidInput(field="tags", problem=f"are {len(tags)}; at most 64 are allowed")
    for key, value in tags.items():
        if not isinstance(key, str) or not _TAG_KEY.fullmatch(key):
            raise InvalidInput(
                field="tags",
                problem=f"the key {key!r} is not of the form team.field "
                "(lower case letters, digits and _)",
            )
        if not isinstance(value, str) or len(value.encode("utf-8", "surrogatepass")) > 1024:
            raise InvalidInput(
                field="tags", problem=f"the value of {key!r} must be text of at most 1024 bytes"
            )
        if "\x00" in value or any("\ud800" <= ch <= "\udfff" for ch in value):
            raise InvalidInput(
                field="tags",
                problem=f"the value of {key!r} must be valid Unicode without NUL characters",
            )


def check_payload(payload: bytes) -> None:
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise InvalidInput(
            field="payload",
            problem=f"is {len(payload)} bytes; at most {MAX_PAYLOAD_BYTES} (1 MiB) are "
            "allowed. Store large data elsewhere and pass a reference",
        )
