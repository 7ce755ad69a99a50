"""All errors that flowfabric raises. Catch a group, such as Conflict, to decide what to do.

FlowFabricError
├── InvalidInput             fix the call; `field` and `problem` say what is wrong
│   ├── InvalidId            not an id of an execution or a flow
│   │   ├── MissingTag · InvalidPartitionIndex · InvalidUuid
│   ├── CapabilityMismatch   the worker lacks capabilities of the execution
│   ├── PayloadTooLarge
│   ├── InvalidToken · TokenExpired   not a token of a waitpoint, or signed by a retired key
│   └── InvalidDependency
├── NotFound                 it does not exist, or not in this namespace
│   ├── ExecutionNotFound
│   ├── UnknownRoute
│   ├── LaneNotFound
│   ├── TaskNotFound
│   ├── ScheduleNotFound
│   ├── FlowNotFound
│   ├── WaitpointNotFound · ApprovalNotFound
│   ├── QuotaNotFound · BudgetNotFound
│   ├── ApiTokenNotFound
│   ├── SubscriptionNotFound · WebhookNotFound
│   └── UnknownGate
├── Conflict                 read the current state, then decide
│   ├── KeyReused
│   ├── RouteCollision
│   ├── CursorExpired
│   ├── LeaseConflict
│   ├── GrantAlreadyExists · InvalidClaimGrant · ClaimGrantExpired
│   ├── ExecutionAlreadyInFlow · DependencyAlreadyExists · StaleGraphRevision
│   ├── SelfReferencingEdge · CycleDetected
│   ├── WebhookAlreadyExists
│   ├── StreamGap
│   └── WaitpointAlreadyExists · RotationConflict
├── Refused                  the current state does not allow the call
│   ├── ExecutionNotActive · ExecutionNotEligible · ExecutionNotLeaseable
│   ├── ExecutionTerminal · ExecutionNotTerminal
│   ├── UseClaimResumedExecution · NotAResumedExecution · ExecutionNotReclaimable
│   ├── MaxReplaysExhausted · ReclaimCapExceeded
│   ├── ParentEnded
│   ├── ScheduleOrphaned
│   ├── TooManySteps
│   ├── FlowAlreadyTerminal · ExecutionNotInFlow
│   ├── NotRunnable · NotBlockedByDeps · DepsNotSatisfied
│   ├── StreamFull · StreamStalled
│   ├── ExecutionNotSuspended · TargetNotSignalable · SignalLimitExceeded · WaitpointClosed
│   ├── AlreadyAnswered · SchemaRequired · NoSigningKey
│   ├── LaneClosed
│   ├── LimitReached · BudgetExceeded
│   ├── SubscriptionLost · SubscriptionBusy · TooManySubscriptions · IsWebhook
│   └── ReadOnlyServer
├── Forbidden                this login may not do this, or not in this namespace
│   └── MissingRole
├── NotOverHttp              the server does not offer this; connect to the database
├── LeaseLost                stop working: another worker may already have the execution
│   ├── StaleLease · LeaseExpired · LeaseRevoked
├── Unavailable              the call is correct; try again later
│   ├── RetryExhausted
│   └── ConnectionLost
├── SchemaError              the database and this release do not match
│   ├── SchemaMismatch
│   │   ├── SchemaMissing · StepEdited
│   ├── UnsupportedServer
│   ├── MigrationFailed
│   └── NotDistributable
├── ExecutionEnded           the execution ended without a result
│   ├── ExecutionFailed · ExecutionCancelled · ExecutionExpired · ExecutionSkipped
├── StepFailed               a step failed in an earlier run; the class of its error is unknown
├── SlotsLost                the worker stopped; restart the process
├── ResultTimeout            the wait timed out; the execution continues
├── WaitTimeout              no signal came in time, or an operator ended the wait
└── FlowCancelTimeout        the wait timed out; the flow is cancelled

A class with a `code` stands for an error of the engine: SQL raises the code, or returns the `name`
of the class as the outcome of an item. The docstring of a class is its default message.
"""

from __future__ import annotations

import re
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar, Self

if TYPE_CHECKING:
    from flowfabric.core.ids import ExecutionId

from flowfabric.core.attempts import with_attempt_numbers

# Facts that belong to the holder of a lease. No message shows them, because messages go to logs and
# to callers over HTTP.
LEASE_FACTS = frozenset({"lease_id", "attempt_id"})


class FlowFabricError(Exception):
    """Something went wrong in flowfabric."""

    code: ClassVar[str | None] = None
    name: ClassVar[str | None] = None

    _by_code: ClassVar[dict[str, type[FlowFabricError]]] = {}
    _by_name: ClassVar[dict[str, type[FlowFabricError]]] = {}

    def __init_subclass__(cls, *, code: str | None = None, name: str | None = None) -> None:
        super().__init_subclass__()
        cls.code, cls.name = code, name
        for key, registry in ((code, cls._by_code), (name, cls._by_name)):
            if key is not None:
                if key in registry:
                    raise TypeError(f"{cls.__name__} and {registry[key].__name__} share {key}")
                registry[key] = cls

    def __init__(self, text: str | None = None, /, **facts: Any) -> None:
        super().__init__(text or " ".join((type(self).__doc__ or "").split()))
        self.facts = facts

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.args[0], self.facts))

    @classmethod
    def from_engine(cls, name_or_code: str, facts: dict[str, Any]) -> FlowFabricError:
        """Return the error for an outcome or an SQLSTATE that the engine returned."""
        facts = with_attempt_numbers(facts)
        kind = cls._by_code.get(name_or_code) or cls._by_name.get(name_or_code)
        if kind is None:
            return FlowFabricError(f"The engine answered {name_or_code}: {facts}", **facts)
        return kind.explained(facts)

    @classmethod
    def explained(cls, facts: dict[str, Any]) -> Self:
        """Return this error with its default message, followed by the facts from the engine."""
        words = " ".join((cls.__doc__ or "").split())
        details = ", ".join(
            f"{key}={value}"
            for key, value in facts.items()
            if value is not None and key not in LEASE_FACTS
        )
        return cls(f"{words} ({details})" if details else words, **facts)


_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def name_of(kind: type[FlowFabricError]) -> str:
    """Return the name that an error has in answers over HTTP, such as `execution_not_found` for
    ExecutionNotFound."""
    return _WORD.sub("_", kind.__name__).lower()


def class_of(name: str) -> type[FlowFabricError] | None:
    """Return the error class that has this name in answers over HTTP; None if there is none."""
    kinds: list[type[FlowFabricError]] = [FlowFabricError]
    for kind in kinds:
        if name_of(kind) == name:
            return kind
        kinds += kind.__subclasses__()
    return None


def _rebuild(kind: type[FlowFabricError], text: str, facts: dict[str, Any]) -> FlowFabricError:
    return kind(text, **facts)


class InvalidInput(FlowFabricError, code="WF001", name="invalid"):
    """The call is invalid; nothing was changed."""

    def __init__(
        self, text: str | None = None, /, *, field: str = "", problem: str = "", **facts: Any
    ) -> None:
        if text is None and field:
            text = f"{field}: {problem}"
        super().__init__(text, field=field, problem=problem, **facts)
        self.field, self.problem = field, problem

    @classmethod
    def explained(cls, facts: dict[str, Any]) -> Self:
        return cls(**facts)


class InvalidId(InvalidInput):
    """Not an id; an id looks like {fp:0}:0190b5c2-7a3e-7c11-9d2e-3f5a6b7c8d9e."""


class MissingTag(InvalidId):
    """The id does not begin with its partition in braces, as in {fp:0}:uuid."""


class InvalidPartitionIndex(InvalidId):
    """The partition of the id is not a whole number from 0 to 65535."""


class InvalidUuid(InvalidId):
    """The part of the id after its partition is not a UUID."""


class CapabilityMismatch(InvalidInput, code="WF002", name="capability_mismatch"):
    """The worker lacks capabilities that the execution needs."""


class InvalidDependency(InvalidInput, code="WF003", name="invalid_dependency"):
    """The flow has no such dependency, or the kind of the dependency is unknown."""


class PayloadTooLarge(InvalidInput, name="payload_too_large"):
    """The value of a signal is larger than 64 KiB. Store it elsewhere and send a reference."""


class InvalidToken(InvalidInput, name="invalid_token"):
    """This is not the token of a waitpoint."""


class TokenExpired(InvalidInput, name="token_expired"):
    """The key that signed the token was retired. Ask for a new token."""


class NotFound(FlowFabricError):
    """The requested object does not exist."""


class ExecutionNotFound(NotFound, code="WF301", name="not_found"):
    """There is no such execution in this namespace; it may have been trimmed."""


class UnknownRoute(NotFound, code="WF302", name="unknown_route"):
    """The route was never registered in this database; register it, then submit again."""


class LaneNotFound(NotFound, code="WF303", name="lane_not_found"):
    """There is no such lane; it appears with its first submission."""


class ScheduleNotFound(NotFound, code="WF304", name="schedule_not_found"):
    """There is no such schedule; it appears when a worker of its app starts."""


class TaskNotFound(NotFound):
    """No app has registered such a task; a worker registers its tasks when it starts."""


class FlowNotFound(NotFound, code="WF305", name="flow_not_found"):
    """There is no such flow in this namespace; it may have been trimmed."""


class ApprovalNotFound(NotFound, code="WF325", name="approval_not_found"):
    """No open approval of the execution asks this approver."""

    @classmethod
    def explained(cls, facts: dict[str, Any]) -> Self:
        if "approver" not in facts:
            return super().explained(facts)
        asked = ", ".join(facts.get("open") or ())
        return cls(
            f"No open approval of the execution asks {facts['approver']!r}. "
            + (f"It asks {asked}." if asked else "It has no open approval."),
            **facts,
        )


class WaitpointNotFound(NotFound, code="WF309", name="waitpoint_not_found"):
    """The execution has no such waitpoint."""


class QuotaNotFound(NotFound, code="WF306", name="quota_not_found"):
    """There is no such quota in this namespace; declare its limits or create it."""


class BudgetNotFound(NotFound, code="WF307", name="budget_not_found"):
    """There is no such budget in this namespace; declare its limits or create it."""


class UnknownGate(NotFound, code="WF308", name="unknown_gate"):
    """A quota or budget of the submission is not registered; register it, then submit again."""


class ApiTokenNotFound(NotFound, code="WF315", name="api_token_not_found"):
    """There is no such token in this namespace; `flowfabric token ls --all-namespaces` shows the
    namespace of every token."""


class SubscriptionNotFound(NotFound, code="WF312", name="subscription_not_found"):
    """There is no such subscription in this namespace; it appears with its first consumer."""


class WebhookNotFound(NotFound, code="WF313", name="webhook_not_found"):
    """There is no such webhook in this namespace; `flowfabric webhook add` makes one."""


class Conflict(FlowFabricError):
    """The call conflicts with existing data."""


class KeyReused(Conflict, code="WF401", name="key_reused"):
    """The idempotency key was used before with other arguments; use another key."""

    @classmethod
    def explained(cls, facts: dict[str, Any]) -> Self:
        id, task = facts.get("execution_id"), facts.get("task")
        return cls(
            f"The key {facts.get('key')!r} was used before with other arguments: it belongs to "
            f"{getattr(id, 'uuid', id)}, "
            f"{f'an execution of {task}' if task else 'which was trimmed'}. Use another key. (A "
            "submit of the same task with on_conflict='existing' gets that run; on the command "
            "line: --on-conflict existing.)",
            **facts,
        )

    @property
    def execution_id(self) -> ExecutionId | None:
        """The id of the execution that has the key."""
        return self.facts.get("execution_id")


class RouteCollision(Conflict, code="WF402", name="route_collision"):
    """Two routes hash to the same id; rename the task."""


class CursorExpired(Conflict, code="WF403", name="cursor_expired"):
    """The events after this cursor are gone; open a new cursor at `resume_from`."""

    @property
    def resume_from(self) -> datetime | None:
        """The time at which to open a new cursor.

        A reader that starts there gets every event that is still stored, and some events twice.
        """
        text = self.facts.get("resume_from")
        return datetime.fromisoformat(text) if text else None


class LeaseConflict(Conflict, code="WF404", name="lease_conflict"):
    """A worker has a lease on the execution."""


class GrantAlreadyExists(Conflict, code="WF405", name="grant_exists"):
    """The execution is already granted to a worker; wait until the grant is used or expires."""


class InvalidClaimGrant(Conflict, code="WF406", name="invalid_grant"):
    """The grant was used before, is for another worker or purpose, or does not exist."""


class ClaimGrantExpired(Conflict, code="WF407", name="grant_expired"):
    """The grant has expired; request a new one."""


class ExecutionAlreadyInFlow(Conflict, code="WF408", name="already_in_flow"):
    """The execution is a member of another flow; it can be a member of one flow only."""


class SelfReferencingEdge(Conflict, code="WF409", name="self_referencing_edge"):
    """An execution cannot wait for itself."""


class CycleDetected(Conflict, code="WF410", name="cycle_detected"):
    """The executions would wait for each other in a cycle, and none could ever start."""

    @property
    def path(self) -> list[str]:
        """The cycle as a list of names or ids. The last entry repeats the first."""
        return list(self.facts.get("path") or [])


class DependencyAlreadyExists(Conflict, code="WF411", name="dependency_exists"):
    """The flow already has an edge with this id; `facts["edge"]` contains that edge."""


class StaleGraphRevision(Conflict, code="WF412", name="stale_graph_revision"):
    """The flow has changed since its graph was read; read the graph again, then decide."""


class RotationConflict(Conflict, code="WF413", name="rotation_conflict"):
    """The key cannot be installed: its name was used before, or another key is in use."""


class WebhookAlreadyExists(Conflict, code="WF416", name="webhook_exists"):
    """A webhook or a subscription has this name; choose another."""


class WaitpointAlreadyExists(Conflict, name="waitpoint_exists"):
    """The execution already has a waitpoint with this id, but with another key."""


class Refused(FlowFabricError):
    """The current state does not allow the call."""


class ExecutionNotActive(Refused, code="WF201", name="not_active"):
    """The execution is not running; the call had no effect."""

    @property
    def is_late(self) -> bool:
        """Whether the call came too late: after the deadline, or after the attempt timed out."""
        return self.facts.get("reason") in ("deadline_passed", "attempt_timed_out")

    @property
    def delayed_until(self) -> datetime | None:
        """The time of the retry, if the attempt timed out and will be retried; otherwise None."""
        text = self.facts.get("delayed_until")
        return datetime.fromisoformat(text) if text else None


class LaneClosed(Refused, code="WF202", name="lane_closed"):
    """The lane does not accept new executions: it is draining or disabled."""


class ReadOnlyServer(Refused, code="WF203", name="read_only_server"):
    """This database server is a standby; connect to the primary."""


class ExecutionTerminal(Refused, code="WF204", name="already_terminal"):
    """The execution has already ended; its outcome does not change."""


class ExecutionNotEligible(Refused, code="WF205", name="not_eligible"):
    """The execution is not in a state that allows this call."""


class ExecutionNotTerminal(Refused, code="WF206", name="not_terminal"):
    """The execution has not ended yet."""


class ExecutionNotLeaseable(Refused, code="WF207", name="not_leaseable"):
    """The execution cannot be leased: it is not waiting for a worker."""


class UseClaimResumedExecution(Refused, code="WF208", name="use_claim_resumed"):
    """The execution has an interrupted attempt; claim the execution with a resume grant."""


class NotAResumedExecution(Refused, code="WF209", name="not_resumed"):
    """The execution has no interrupted attempt; claim the execution with a claim grant."""


class ExecutionNotReclaimable(Refused, code="WF210", name="not_reclaimable"):
    """The execution has no expired or revoked lease to reclaim."""


class ReclaimCapExceeded(Refused, code="WF211", name="reclaim_cap_exceeded"):
    """The execution lost its lease too often and has failed."""


class MaxReplaysExhausted(Refused, code="WF212", name="max_replays_exhausted"):
    """The execution has used all replays that its policy allows; submit a new execution."""


class ParentEnded(Refused, code="WF213", name="parent_ended"):
    """The parent has ended; a child that ends with its parent can no longer be submitted."""


class ScheduleOrphaned(Refused, code="WF214", name="schedule_orphaned"):
    """The newest version of the app no longer declares this schedule; it does not fire."""


class TooManySteps(Refused):
    """The execution has reached the limit of steps; end the handler with ctx.continue_as."""


class FlowAlreadyTerminal(Refused, code="WF215", name="flow_already_terminal"):
    """The flow is cancelled or some of its members were trimmed; it can no longer change."""


class ExecutionNotInFlow(Refused, code="WF216", name="not_in_flow"):
    """The execution is not a member of this flow; add it first."""


class NotRunnable(Refused, code="WF217", name="not_runnable"):
    """The execution is not runnable: it is running or suspended, or it has ended."""


class NotBlockedByDeps(Refused, code="WF218", name="not_blocked_by_deps"):
    """The execution is not waiting for dependencies."""


class DepsNotSatisfied(Refused, code="WF219", name="deps_not_satisfied"):
    """The execution is still waiting for dependencies."""


class ExecutionNotSuspended(Refused, code="WF222", name="not_suspended"):
    """The execution is not suspended: there is nothing to resume."""


class NoSigningKey(Refused, code="WF246", name="no_signing_key"):
    """There is no key to sign tokens. Make one: flowfabric key rotate NAME."""


class TargetNotSignalable(Refused, name="not_signalable"):
    """The execution has ended: nobody will take the signal."""


class WaitpointClosed(Refused, name="waitpoint_closed"):
    """The waitpoint is closed: its answer was taken, or its time is over."""


class SchemaRequired(Refused, name="schema_required"):
    """The sender must check the value with the declared type of the signal; nothing was stored."""

    @classmethod
    def explained(cls, facts: dict[str, Any]) -> Self:
        return cls(" ".join((cls.__doc__ or "").split()), **facts)


class AlreadyAnswered(Refused, code="WF245", name="already_answered"):
    """The approver has answered, or the same person has answered for another approver."""

    @classmethod
    def explained(cls, facts: dict[str, Any]) -> Self:
        decision = "denied" if facts.get("decision") == "rejected" else "approved"
        if facts.get("actor") is not None:
            return cls(
                f"{facts['actor']} has {decision} it for another approver. One person answers for "
                "one approver.",
                **facts,
            )
        return cls(f"This approver has {decision} it before. An approver answers once.", **facts)


class SignalLimitExceeded(Refused, name="signal_limit_exceeded"):
    """The execution has 10 000 signals that no wait has taken. Send again when some are taken."""


class StreamFull(Refused, name="stream_full"):
    """The stream of the execution has as many bytes as its stream policy allows. Send less, or
    allow more with `stream_policy=StreamPolicy(max_bytes=...)`."""


class StreamStalled(Refused):
    """The database does not store the frames of this stream as fast as the handler sends them."""


class StreamGap(Conflict, code="WF414", name="gap"):
    """Frames are missing between the last stored frame of this lease and the frames to append."""


class LimitReached(Refused, code="WF220", name="limit_reached"):
    """The quota has no room, and its overflow is `refuse`; nothing was stored."""

    @classmethod
    def explained(cls, facts: dict[str, Any]) -> Self:
        if "quota" not in facts:
            return super().explained(facts)
        key = f" for {facts['key']}" if facts.get("key") else ""
        return cls(f"The limit {facts['quota']} has no room{key}; nothing was stored.", **facts)


class BudgetExceeded(Refused, code="WF221", name="hard_breach"):
    """The usage would exceed a hard limit of the budget; nothing was counted."""

    @classmethod
    def explained(cls, facts: dict[str, Any]) -> Self:
        if not {"budget", "dimension", "usage", "limit", "amount"} <= facts.keys():
            return super().explained(facts)

        def shown(amount: int) -> str:
            # Money is counted in millionths.
            return str(Decimal(amount) / 1_000_000) if facts["dimension"] == "usd" else str(amount)

        key = f" of {facts['key']}" if facts.get("key") else ""
        return cls(
            f"The budget {facts['budget']}{key} has no room: {facts['dimension']} is at "
            f"{shown(facts['usage'])} of {shown(facts['limit'])}, and {shown(facts['amount'])} "
            "more were reported. Nothing was counted.",
            **facts,
        )


class SubscriptionLost(Refused, name="subscription_lost"):
    """The subscription has another consumer now, or was reset; nothing was acknowledged."""


class SubscriptionBusy(Refused):
    """Another consumer has the subscription."""


class TooManySubscriptions(Refused, code="WF227", name="too_many_subscriptions"):
    """The namespace has the largest allowed number of subscriptions; remove one first."""


class IsWebhook(Refused, code="WF228", name="is_webhook"):
    """This is the name of a webhook, which only workers consume; choose another name."""


class Forbidden(FlowFabricError, code="WF501", name="forbidden"):
    """This login is not allowed to do this."""


class MissingRole(Forbidden):
    """The login of this process lacks the database role that this call needs (`role`)."""


class NotOverHttp(FlowFabricError):
    """The server does not offer this over HTTP; connect to the database."""


class LeaseLost(FlowFabricError):
    """The lease is lost. Stop working: another worker may already have the execution."""


class StaleLease(LeaseLost, code="WF101", name="stale_lease"):
    """This lease is not the current lease of the execution. Calls under it have no effect."""


class LeaseExpired(LeaseLost, code="WF102", name="lease_expired"):
    """The lease has expired. Stop working: another worker can reclaim the execution."""


class LeaseRevoked(LeaseLost, code="WF103", name="lease_revoked"):
    """An operator revoked the lease; stop working on the execution."""


class Unavailable(FlowFabricError):
    """The database is unreachable or busy; try again later."""


class RetryExhausted(Unavailable, name="busy"):
    """Other transactions kept the rows locked. Nothing was changed; try again later."""


class ConnectionLost(Unavailable):
    """The connection broke, and no new connection could be opened in time."""


class SchemaError(FlowFabricError):
    """The schema in the database does not match this release of flowfabric."""


class SchemaMismatch(SchemaError):
    """The database does not have the schema or the function library that this process needs."""


class SchemaMissing(SchemaMismatch):
    """The database has no flowfabric schema yet."""


class StepEdited(SchemaMismatch):
    """A schema step differs from the text that was released or applied."""


class UnsupportedServer(SchemaError):
    """This release does not support this PostgreSQL server."""


class MigrationFailed(SchemaError):
    """A schema step or the function library could not be applied; it was rolled back."""


class NotDistributable(SchemaError):
    """The database cannot be distributed over a cluster yet; the message says what is missing."""


class ExecutionEnded(FlowFabricError):
    """The execution has ended and has no result."""


class ExecutionFailed(ExecutionEnded):
    """The execution failed; `type`, `message` and `trace` describe its last attempt."""

    @property
    def type(self) -> str:
        return str(self.facts.get("type") or "")

    @property
    def message(self) -> str:
        return str(self.facts.get("message") or "")

    @property
    def trace(self) -> str:
        return str(self.facts.get("trace") or "")


class ExecutionCancelled(ExecutionEnded):
    """The execution was cancelled; `reason` and `actor` say why and by whom, if known."""

    @property
    def reason(self) -> str | None:
        return self.facts.get("reason")

    @property
    def actor(self) -> str | None:
        return self.facts.get("actor")


class ExecutionExpired(ExecutionEnded):
    """The execution expired: its deadline passed, or its last attempt timed out."""


class ExecutionSkipped(ExecutionEnded):
    """The execution was skipped: a dependency did not succeed."""


class StepFailed(FlowFabricError):
    """The step failed in an earlier run; this process does not know the error's class (`type`)."""

    @property
    def step(self) -> str:
        return str(self.facts.get("step") or "")

    @property
    def type(self) -> str:
        return str(self.facts.get("type") or "")

    @property
    def message(self) -> str:
        return str(self.facts.get("message") or "")


class SlotsLost(FlowFabricError):
    """Too many handlers do not stop: no slot is left. The worker released its executions."""


class ResultTimeout(FlowFabricError, TimeoutError):
    """No result in time. The execution continues; call result() again to keep waiting."""


class WaitTimeout(FlowFabricError, TimeoutError):
    """No signal came in time."""


class FlowCancelTimeout(FlowFabricError, TimeoutError):
    """Not all members ended in time. The flow is cancelled; the remaining members end later."""
