"""The engine's surface, as the client calls it: every public function and every read of a view.

A contract test compares this list with the catalogue of a migrated database, so that neither can
change without the other. Calls name their arguments and columns, so that the library may grow an
optional argument or a column while older processes go on calling it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Function:
    """One function of the engine: its name, the arguments we pass and the columns we read."""

    name: str
    arguments: tuple[str, ...]
    columns: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Read:
    """One read of a view: its name for telemetry, the view, and the whole statement."""

    name: str
    view: str
    text: str


Statement = Function | Read


def _function(name: str, arguments: str, columns: str) -> Function:
    names, outputs = tuple(arguments.split()), tuple(columns.split())
    given = ", ".join(f"p_{argument} => ${i}" for i, argument in enumerate(names, 1))
    return Function(name, names, outputs, f"select {', '.join(outputs)} from ff.{name}({given})")


REGISTER_ROUTES = _function(
    "register_routes",
    "namespaces lanes tasks capabilities registered_by",
    "item route_id outcome detail",
)
SUBMIT_EXECUTIONS = _function(
    "submit_executions",
    "partition_key namespace execution_ids route_ids payloads priorities payload_encodings delays "
    "delayed_untils deadlines deadline_ats policies max_reclaims tags creators keys "
    "key_fingerprints key_scopes key_windows hint",
    "item outcome execution_id detail",
)
CLAIM_EXECUTIONS = _function(
    "claim_executions",
    "partition_key namespace worker_id worker_instance_id claim_id lanes tasks capabilities limit "
    "lease_ttl first_lane floor_rank floor_at floor_id",
    "execution_id namespace lane task claim_kind rank created_at epoch attempt_index attempt_id "
    "attempt_type lease_expires_at attempt_deadline_at deadline_at retry_count payload_encoding "
    "payload",
)
COMPLETE_EXECUTIONS = _function(
    "complete_executions",
    "partition_key namespace execution_ids lease_ids epochs attempt_ids results result_encodings "
    "wait hint",
    "item outcome detail",
)
FAIL_EXECUTIONS = _function(
    "fail_executions",
    "partition_key namespace execution_ids lease_ids epochs attempt_ids classes reasons categories "
    "details wait hint",
    "item outcome delayed_until next_attempt_index detail",
)
PROMOTE_DELAYED = _function("promote_delayed", "partition_key limit", "handled due_in")
READ_RESULTS = _function(
    "read_results",
    "partition_key namespace execution_ids",
    "execution_id public_state terminal_at attempt_index result_encoding result failure_class "
    "failure_category failure_reason failure_detail",
)
RENEW_LEASES = _function(
    "renew_leases",
    "partition_key namespace execution_ids lease_ids epochs attempt_ids lease_ttl",
    "item outcome detail",
)
RELEASE_LEASES = _function(
    "release_leases",
    "partition_key namespace execution_ids lease_ids epochs attempt_ids cause wait",
    "item outcome detail",
)
EXPIRE_LEASES = _function("expire_leases", "partition_key limit", "handled due_in")

OPEN_CURSOR = _function("open_cursor", "partition_key since", "open_cursor")
READ_EVENTS = _function(
    "read_events",
    "partition_key namespace cursor limit kinds lanes tasks execution_ids instance_tags",
    "event_id execution_id version kind occurred_at attempt_index lease_id epoch "
    "worker_instance_id outcome flow_id namespace lane task instance_tag actor detail next_cursor "
    "has_more",
)

FUNCTIONS: tuple[Function, ...] = (
    REGISTER_ROUTES,
    SUBMIT_EXECUTIONS,
    CLAIM_EXECUTIONS,
    COMPLETE_EXECUTIONS,
    FAIL_EXECUTIONS,
    PROMOTE_DELAYED,
    READ_RESULTS,
    RENEW_LEASES,
    RELEASE_LEASES,
    EXPIRE_LEASES,
    OPEN_CURSOR,
    READ_EVENTS,
)

DESCRIBE_EXECUTION = Read(
    "describe_execution",
    "execution_view",
    """
    select execution_id, namespace, lane, task, capabilities, priority, public_state, phase,
           ownership, eligibility, blocking_reason, blocking_detail, outcome, attempt_state,
           version, epoch, attempt_index, attempt_id, attempt_type, total_attempt_count,
           retry_count, replay_count, reclaim_count, max_reclaims, lease_id, worker_id,
           worker_instance_id, lease_expires_at, created_at, started_at, terminal_at,
           transitioned_at, mutated_at, delayed_until, deadline_at, failure_class,
           failure_category, failure_reason, payload_encoding, payload, result_encoding, result,
           tags, creator
    from ff.execution_view
    where partition_key = $1 and execution_id = $2 and ($3::text is null or namespace = $3)
    """,
)
READ_STATE = Read(
    "read_state",
    "execution_list",
    """
    select public_state
    from ff.execution_list
    where partition_key = $1 and execution_id = $2 and ($3::text is null or namespace = $3)
    """,
)
LIST_EXECUTIONS = Read(
    "list_executions",
    "execution_list",
    """
    select partition_key, execution_id, namespace, lane, task, priority, public_state,
           blocking_reason, attempt_index, total_attempt_count, retry_count, reclaim_count,
           worker_instance_id, created_at, started_at, terminal_at, delayed_until, failure_reason
    from ff.execution_list
    where partition_key = $1 and ($2::text is null or namespace = $2)
      and ($3::uuid is null or execution_id < $3)
    order by execution_id desc
    limit $4
    """,
)
LIST_ATTEMPTS = Read(
    "list_attempts",
    "attempt_view",
    """
    select attempt_index, attempt_id, attempt_type, lifecycle, epoch, started_at, ended_at,
           worker_id, worker_instance_id, attempt_reason, pause_cause, failure_class,
           failure_category, failure_reason
    from ff.attempt_view
    where partition_key = $1 and execution_id = $2
    order by attempt_index
    """,
)
LIST_EVENTS = Read(
    "list_events",
    "event_view",
    """
    select event_id, execution_id, version, kind, occurred_at, attempt_index, lease_id, epoch,
           worker_instance_id, outcome, flow_id, namespace, lane, task, instance_tag, actor, detail
    from ff.event_view
    where partition_key = $1 and execution_id = $2 and ($3::text is null or namespace = $3)
    order by version
    """,
)
LIST_LANES = Read(
    "list_lanes",
    "lane_depth",
    'select lane, state, resumes_at, waiting from ff.lane_depth order by lane collate "C"',
)
# Nothing of ours: Postgres's own way to say "look again".
HINT = Read("hint", "", "select pg_notify($1, $2)")

READS: tuple[Read, ...] = (
    DESCRIBE_EXECUTION,
    READ_STATE,
    LIST_EXECUTIONS,
    LIST_ATTEMPTS,
    LIST_EVENTS,
    LIST_LANES,
)
