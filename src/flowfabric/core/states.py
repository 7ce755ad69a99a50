"""States, kinds and policies. Each class has the values of an enum of the database."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    SUBMITTED = "submitted"
    RUNNABLE = "runnable"
    ACTIVE = "active"
    SUSPENDED = "suspended"
    TERMINAL = "terminal"


class Ownership(StrEnum):
    UNOWNED = "unowned"
    LEASED = "leased"
    LEASE_EXPIRED_RECLAIMABLE = "lease_expired_reclaimable"
    LEASE_REVOKED = "lease_revoked"


class Eligibility(StrEnum):
    ELIGIBLE_NOW = "eligible_now"
    NOT_ELIGIBLE_UNTIL_TIME = "not_eligible_until_time"
    BLOCKED_BY_DEPENDENCIES = "blocked_by_dependencies"
    BLOCKED_BY_BUDGET = "blocked_by_budget"
    BLOCKED_BY_QUOTA = "blocked_by_quota"
    BLOCKED_BY_ROUTE = "blocked_by_route"
    BLOCKED_BY_LANE_STATE = "blocked_by_lane_state"
    BLOCKED_BY_OPERATOR = "blocked_by_operator"
    NOT_APPLICABLE = "not_applicable"


class StepKind(StrEnum):
    STEP = "step"
    FAILURE = "failure"
    SLEEP = "sleep"
    NOW = "now"
    WAIT = "wait"


class BlockingReason(StrEnum):
    NONE = "none"
    WAITING_FOR_WORKER = "waiting_for_worker"
    WAITING_FOR_RETRY_BACKOFF = "waiting_for_retry_backoff"
    WAITING_FOR_RESUME_DELAY = "waiting_for_resume_delay"
    WAITING_FOR_DELAY = "waiting_for_delay"
    WAITING_FOR_SIGNAL = "waiting_for_signal"
    WAITING_FOR_APPROVAL = "waiting_for_approval"
    WAITING_FOR_CALLBACK = "waiting_for_callback"
    WAITING_FOR_TOOL_RESULT = "waiting_for_tool_result"
    WAITING_FOR_CHILDREN = "waiting_for_children"
    WAITING_FOR_BUDGET = "waiting_for_budget"
    WAITING_FOR_QUOTA = "waiting_for_quota"
    WAITING_FOR_CAPABLE_WORKER = "waiting_for_capable_worker"
    WAITING_FOR_LOCALITY_MATCH = "waiting_for_locality_match"
    PAUSED_BY_OPERATOR = "paused_by_operator"
    PAUSED_BY_POLICY = "paused_by_policy"
    PAUSED_BY_FLOW_CANCEL = "paused_by_flow_cancel"


class Outcome(StrEnum):
    """How an execution ended; `none` while it has not ended."""

    NONE = "none"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    SKIPPED = "skipped"


class AttemptState(StrEnum):
    NONE = "none"
    PENDING_FIRST_ATTEMPT = "pending_first_attempt"
    RUNNING_ATTEMPT = "running_attempt"
    ATTEMPT_INTERRUPTED = "attempt_interrupted"
    PENDING_RETRY_ATTEMPT = "pending_retry_attempt"
    PENDING_REPLAY_ATTEMPT = "pending_replay_attempt"
    ATTEMPT_TERMINAL = "attempt_terminal"


class PublicState(StrEnum):
    """The state of an execution in one word.

    The database computes it from the phase, the outcome and the eligibility.
    """

    WAITING = "waiting"
    DELAYED = "delayed"
    RATE_LIMITED = "rate_limited"
    WAITING_CHILDREN = "waiting_children"
    ACTIVE = "active"
    SUSPENDED = "suspended"
    RESUMABLE = "resumable"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    SKIPPED = "skipped"

    @property
    def is_terminal(self) -> bool:
        return self in _TERMINAL


_TERMINAL = frozenset(
    {
        PublicState.COMPLETED,
        PublicState.FAILED,
        PublicState.CANCELLED,
        PublicState.EXPIRED,
        PublicState.SKIPPED,
    }
)


class AttemptType(StrEnum):
    INITIAL = "initial"
    RETRY = "retry"
    RECLAIM = "reclaim"
    REPLAY = "replay"
    FALLBACK = "fallback"


class AttemptLifecycle(StrEnum):
    CREATED = "created"
    STARTED = "started"
    SUSPENDED = "suspended"
    ENDED_SUCCESS = "ended_success"
    ENDED_FAILURE = "ended_failure"
    ENDED_CANCELLED = "ended_cancelled"
    INTERRUPTED_RECLAIMED = "interrupted_reclaimed"


class FailureClass(StrEnum):
    """The class of a failure. A permanent or cancelled failure is not retried."""

    TRANSIENT = "transient"
    PERMANENT = "permanent"
    INFRA_CRASH = "infra_crash"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"


class LaneState(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"
    DRAINING = "draining"
    DISABLED = "disabled"


class KeyScope(StrEnum):
    """How long an idempotency key is valid: for a fixed time, or until its execution ends."""

    WINDOW = "window"
    UNFINISHED = "unfinished"


class EventKind(StrEnum):
    SUBMITTED = "submitted"
    CLAIMED = "claimed"
    RESUMED = "resumed"
    RECLAIMED = "reclaimed"
    RELEASED = "released"
    LEASE_EXPIRED = "lease_expired"
    LEASE_REVOKED = "lease_revoked"
    COMPLETED = "completed"
    FAILED = "failed"
    RETRY_SCHEDULED = "retry_scheduled"
    DELAYED = "delayed"
    WAITING = "waiting"
    SUSPENDED = "suspended"
    WOKEN = "woken"
    ESCALATED = "escalated"
    HELD = "held"
    CONTINUED = "continued"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    SKIPPED = "skipped"
    PRIORITY_CHANGED = "priority_changed"
    REPLAYED = "replayed"
    FLOW_CANCEL_REQUESTED = "flow_cancel_requested"
    BLOCKED = "blocked"
    UNBLOCKED = "unblocked"
    PROMOTED = "promoted"
    BUDGET_EXCEEDED = "budget_exceeded"
    WEBHOOK_DISABLED = "webhook_disabled"


class Misfire(StrEnum):
    """What a schedule does about firing times that passed while no worker was running."""

    ONCE = "once"
    SKIP = "skip"
    ALL = "all"


class HookKind(StrEnum):
    """The outcomes after which a hook runs.

    `failure` stands for the outcomes failed, expired and skipped. `end` stands for every outcome.
    """

    SUCCESS = "success"
    FAILURE = "failure"
    CANCEL = "cancel"
    END = "end"


class ScheduleState(StrEnum):
    """Whether a schedule fires. `orphaned`: the newest version of its app no longer declares it."""

    ACTIVE = "active"
    PAUSED = "paused"
    ORPHANED = "orphaned"


class FlowCancelPolicy(StrEnum):
    """Which members are cancelled with their flow: all, only members that do not run, or none."""

    CANCEL_ALL = "cancel_all"
    CANCEL_PENDING = "cancel_pending"
    FLOW_ONLY = "flow_only"


class DependencyKind(StrEnum):
    """The outcome that an edge requires of its upstream member."""

    SUCCESS_ONLY = "success_only"


class Resolution(StrEnum):
    """Whether an edge is satisfied, cannot be satisfied any more, or is not decided yet."""

    UNSATISFIED = "unsatisfied"
    SATISFIED = "satisfied"
    IMPOSSIBLE = "impossible"


class GroupPolicy(StrEnum):
    """How many edges of a group must be satisfied."""

    ALL_OF = "all_of"
    ANY_OF = "any_of"
    QUORUM = "quorum"


class OnSatisfied(StrEnum):
    """What happens to the remaining upstream members of an edge group that is satisfied."""

    CANCEL_REMAINING = "cancel_remaining"
    LET_RUN = "let_run"


class GroupState(StrEnum):
    PENDING = "pending"
    SATISFIED = "satisfied"
    IMPOSSIBLE = "impossible"


class GrantKind(StrEnum):
    CLAIM = "claim"
    RESUME = "resume"
    RECLAIM = "reclaim"


class WorkerEventKind(StrEnum):
    REGISTERED = "registered"
    DRAIN_ASKED = "drain_asked"
    MARKED_DEAD = "marked_dead"
    TTL_SWEPT = "ttl_swept"


class Overflow(StrEnum):
    """What happens to a submission if its quota has no room."""

    QUEUE = "queue"
    REFUSE = "refuse"


class OnExceed(StrEnum):
    """What happens when a report of usage would exceed a hard limit of a budget."""

    FAIL = "fail"
    SUSPEND = "suspend"
    WARN = "warn"


class BudgetPeriod(StrEnum):
    """How often a budget is reset. `interval`: at a fixed interval from the budget's creation."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    INTERVAL = "interval"


class StreamMode(StrEnum):
    """The mode of a frame. A `rewind` is not a frame: it says that frames are sent again."""

    DURABLE = "durable"
    SUMMARY = "summary"
    BEST_EFFORT = "best_effort"
    REWIND = "rewind"
