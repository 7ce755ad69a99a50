"""List every public function of the engine, as the client calls it.

A contract test compares this list with the functions of a migrated database, so that they cannot
differ. Calls name their arguments and columns, so that the library can add an optional argument or
a column while older processes still run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement: its name, its arguments and the columns of its result, in order."""

    name: str
    arguments: tuple[str, ...]
    columns: tuple[str, ...]
    text: str

    def bind(self, given: Mapping[str, Any]) -> list[Any]:
        """Return the arguments in the order of the statement; raise TypeError if one is missing or
        unknown.

        A call must pass every argument of the statement, even if the engine has a default for it.
        """
        if len(given) == len(self.arguments):
            try:
                return [given[name] for name in self.arguments]
            except KeyError:
                pass
        missing = [name for name in self.arguments if name not in given]
        unknown = [name for name in given if name not in self.arguments]
        raise TypeError(f"{self.name}: arguments missing {missing}, unknown {unknown}")


@dataclass(frozen=True, slots=True)
class Function(Statement):
    """One public function of the engine."""


@dataclass(frozen=True, slots=True)
class Read(Statement):
    """A statement that calls a function and reads only some of its columns.

    In telemetry, the statement has a name of its own.
    """

    function: str


def _function(name: str, arguments: str, columns: str) -> Function:
    names, outputs = tuple(arguments.split()), tuple(columns.split())
    given = ", ".join(f"p_{argument} => ${i}" for i, argument in enumerate(names, 1))
    return Function(name, names, outputs, f"select {', '.join(outputs)} from ff.{name}({given})")


def _part(name: str, function: Function, columns: str) -> Read:
    outputs = tuple(columns.split())
    _, source, call = function.text.partition(" from ")
    text = f"select {', '.join(outputs)}{source}{call}"
    return Read(name, function.arguments, outputs, text, function.name)


REGISTER_ROUTES = _function(
    "register_routes",
    "namespaces lanes tasks capabilities registered_by code_versions",
    "item route_id outcome detail",
)
SUBMIT_EXECUTIONS = _function(
    "submit_executions",
    "partition_key namespace execution_ids route_ids payloads payload_encodings priorities delays "
    "options hint",
    "item outcome execution_id detail",
)
# Cast every argument, because drivers send numbers and text with different types.
SUBMIT_JSON = Function(
    "submit_json",
    ("partition_key", "namespace", "items", "database"),
    ("submit_json",),
    "select cast(submit_json as text) as submit_json from ff.submit_json("
    "p_partition_key => cast($1 as smallint), p_namespace => cast($2 as text), "
    "p_items => cast(cast($3 as text) as jsonb), p_database => cast($4 as text))",
)
SUBMIT_FLOW = Function(
    "submit_flow",
    ("partition_key", "namespace", "flow", "database"),
    ("submit_flow",),
    "select cast(submit_flow as text) as submit_flow from ff.submit_flow("
    "p_partition_key => cast($1 as smallint), p_namespace => cast($2 as text), "
    "p_flow => cast(cast($3 as text) as jsonb), p_database => cast($4 as text))",
)
CLAIM_EXECUTIONS = _function(
    "claim_executions",
    "partition_key namespace worker_id worker_instance_id claim_id lanes tasks capabilities limit "
    "lease_ttl first_lane floor_rank floor_at floor_id reports_starts code_versions unserved "
    "finish_only gives_way",
    "execution_ids route_nos namespaces lanes tasks claim_kinds ranks order_ats epochs "
    "attempt_indexes attempt_ids attempt_types lease_expires_ats attempt_deadline_ats deadline_ats "
    "retry_counts payload_encodings payloads replay_counts trace_contexts crash_counts generations",
)
RAISE_PARTITIONS = _function(
    "raise_partitions",
    "partitions keys grace",
    "outcome partitions minted_partitions keyed_partitions grace_left",
)
FIND_WORK = _function(
    "find_work",
    "namespace lanes tasks capabilities code_versions unserved finish_only",
    "partition_key rank",
)
FIND_CLAIM = _function("find_claim", "namespace worker_instance_id claim_id", "partition_key")
FIND_DUE = _function("find_due", "kinds", "kind partition_key due_in")
COMPLETE_EXECUTIONS = _function(
    "complete_executions",
    "partition_key namespace execution_ids lease_ids epochs attempt_ids results result_encodings "
    "wait hint lease_id epoch attempt_id result",
    "item outcome detail",
)
FAIL_EXECUTIONS = _function(
    "fail_executions",
    "partition_key namespace execution_ids lease_ids epochs attempt_ids classes reasons categories "
    "details retry_delays retry_ats wait hint places",
    "item outcome delayed_until next_attempt_index detail",
)

_FLOW = "partition_key namespace flow_id"
_EDGE = (
    "edge_id upstream_id downstream_id group_no kind data_passing_ref created_at created_by "
    "applied_at resolution outcome resolved_at"
)
CREATE_FLOW = _function("create_flow", f"{_FLOW} flow_kind tags creator", "outcome graph_revision")
ADD_EXECUTION_TO_FLOW = _function(
    "add_execution_to_flow",
    f"{_FLOW} execution_id node_name",
    "outcome node_count graph_revision",
)
STAGE_DEPENDENCY_EDGE = _function(
    "stage_dependency_edge",
    f"{_FLOW} edge_id upstream_id downstream_id expected_graph_revision kind data_passing_ref "
    "group_no created_by",
    "outcome edge_id graph_revision",
)
APPLY_DEPENDENCY_TO_CHILD = _function(
    "apply_dependency_to_child",
    f"{_FLOW} edge_id upstream_id downstream_id lease_id epoch attempt_id",
    "outcome unsatisfied public_state detail",
)
SET_EDGE_GROUP_POLICY = _function(
    "set_edge_group_policy", f"{_FLOW} downstream_id policy k on_satisfied group_no", "outcome"
)
SET_FLOW_TAGS = _function("set_flow_tags", f"{_FLOW} tags", "tags")
DESCRIBE_FLOW = _function(
    "describe_flow",
    _FLOW,
    "flow_id namespace flow_kind state graph_revision node_count edge_count created_at mutated_at "
    "cancelled_at cancel_policy cancel_reason cancelled_by trimmed_at tags creator edge_groups",
)
SUMMARISE_FLOW = _function("summarise_flow", _FLOW, "state total counts")
LIST_FLOWS = _function(
    "list_flows",
    "partition_key namespace after limit newest",
    "flow_id namespace flow_kind state node_count edge_count counts created_at mutated_at "
    "cancelled_at next_after",
)
LIST_EDGES = _function("list_edges", f"{_FLOW} upstream_id downstream_id after limit", _EDGE)
DESCRIBE_EDGE = _function("describe_edge", f"{_FLOW} edge_id", _EDGE)
LIST_FLOW_MEMBERS = _function(
    "list_flow_members",
    f"{_FLOW} after limit states",
    "execution_id node_name task lane public_state version attempt_index created_at started_at "
    "terminal_at delayed_until failure_reason",
)
EVALUATE_FLOW_ELIGIBILITY = _function(
    "evaluate_flow_eligibility", "partition_key namespace execution_id", "eligibility"
)
READ_INPUTS = _function(
    "read_inputs",
    "partition_key namespace execution_ids",
    "execution_id upstream_id node_name group_no edge_id is_counted resolved_at result_encoding "
    "result",
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
START_EXECUTIONS = _function(
    "start_executions",
    "partition_key namespace execution_ids lease_ids epochs attempt_ids are_alone wait",
    "item outcome detail",
)
RELEASE_LEASES = _function(
    "release_leases",
    "partition_key namespace execution_ids lease_ids epochs attempt_ids cause wait",
    "item outcome detail",
)
EXPIRE_LEASES = _function("expire_leases", "partition_key limit", "handled due_in")

CANCEL_EXECUTION = _function(
    "cancel_execution",
    "partition_key namespace execution_id reason source actor lease_id epoch attempt_id if_version",
    "outcome public_state version detail",
)
CHANGE_PRIORITY = _function(
    "change_priority",
    "partition_key namespace execution_id priority reason actor if_version",
    "outcome public_state version detail",
)
REPLAY_EXECUTION = _function(
    "replay_execution",
    "partition_key namespace execution_id reason actor from_step from_occurrence fresh if_version "
    "payload",
    "outcome public_state version detail",
)
RETRY_EXECUTION = _function(
    "retry_execution",
    "partition_key namespace execution_id reason actor if_version",
    "outcome public_state version detail",
)
BLOCK_EXECUTION_FOR_ADMISSION = _function(
    "block_execution_for_admission",
    "partition_key namespace execution_id blocking_reason detail actor",
    "outcome public_state version detail",
)
UNBLOCK_EXECUTION = _function(
    "unblock_execution",
    "partition_key namespace execution_id expected_reason reason actor if_version",
    "outcome public_state version detail",
)
RESOLVE_WAKES = _function("resolve_wakes", "partition_key limit", "handled due_in")
CANCEL_SIBLINGS = _function(
    "cancel_siblings",
    "partition_key limit",
    "handled due_in cancelled already_terminal not_found retained",
)
RECONCILE_SIBLINGS = _function("reconcile_siblings", "partition_key limit", "handled due_in")
PROMOTE_BLOCKED_TO_ELIGIBLE = _function(
    "promote_blocked_to_eligible",
    "partition_key namespace execution_id",
    "outcome public_state version detail",
)
EXPIRE_EXECUTIONS = _function("expire_executions", "partition_key limit", "handled due_in")

_FENCE = "partition_key namespace execution_id lease_id epoch attempt_id"
REPORT_PROGRESS = _function("report_progress", f"{_FENCE} percent message", "outcome detail")
DELAY_EXECUTION = _function(
    "delay_execution",
    f"{_FENCE} delay delayed_until newer_step",
    "outcome delayed_until detail",
)
WAIT_CHILDREN = _function("wait_children", _FENCE, "outcome detail")
WAIT_FOR_RUNS = _function("wait_for_runs", f"{_FENCE} targets k", "outcome open detail")
HOLD_EXECUTION = _function("hold_execution", f"{_FENCE} reason step", "outcome detail")
CONTINUE_EXECUTION = _function(
    "continue_execution", f"{_FENCE} payload payload_encoding", "outcome generation detail"
)
REVOKE_LEASE = _function(
    "revoke_lease",
    "partition_key namespace execution_id expected_lease_id worker_instance_id reason actor "
    "if_version",
    "outcome public_state version detail",
)
RECORD_STEPS = _function(
    "record_steps",
    "partition_key namespace execution_ids lease_ids epochs attempt_ids names occurrences "
    "positions are_sequential kinds values encodings delays untils wait follows code_versions",
    "item outcome recorded_at until_at value encoding attempt_index detail",
)
RECORD_STEP_JSON = Function(
    "record_step_json",
    ("partition_key", "namespace", "step", "database"),
    ("record_step_json",),
    "select cast(record_step_json as text) as record_step_json from ff.record_step_json("
    "p_partition_key => cast($1 as smallint), p_namespace => cast($2 as text), "
    "p_step => cast(cast($3 as text) as jsonb), p_database => cast($4 as text))",
)
LIST_STEPS = _function(
    "list_steps",
    "partition_key namespace execution_ids",
    "execution_id name occurrence position is_sequential kind value encoding recorded_at until_at "
    "attempt_index ready_at taken_as",
)

APPEND_FRAMES = _function(
    "append_frames",
    "partition_key namespace execution_ids lease_ids epochs attempt_ids bases positions modes "
    "first_nos counts payloads kinds encodings correlation_ids ttls",
    "item outcome last_no last_ms last_seq frame_count summary_version detail",
)
READ_STREAMS = _function(
    "read_streams",
    "partition_key namespace execution_ids after_ms after_seqs limit with_best_effort changed",
    "item outcome is_ended closed_at close_reason last_ms last_seq floor_ms floor_seq frame_count "
    "ms seq mode mode_no attempt_index epoch appended_at to_ms to_seq payloads kinds encodings "
    "correlation_ids",
)
READ_SUMMARY = _function(
    "read_summary",
    "partition_key namespace execution_id",
    "document version patch_kind first_applied_at updated_at",
)
EXPIRE_STREAMS = _function("expire_streams", "partition_key limit", "handled due_in")

ASK_WAITS = _function(
    "ask_waits",
    "partition_key namespace execution_ids lease_ids epochs attempt_ids names occurrences "
    "positions are_sequential conditions timeouts takes wait follows code_versions",
    "item outcome recorded_at until_at ready_at taken_as signal_ids value encoding attempt_index "
    "detail",
)
SUSPEND_EXECUTION = _function(
    "suspend_execution",
    f"{_FENCE} suspension_id wait_names wait_occurrences targets k until_at reason_code "
    "on_timeout resume_delay continuation",
    "outcome timeout_at detail",
)
DELIVER_SIGNALS = _function(
    "deliver_signals",
    "partition_key namespace execution_ids signal_ids names payloads payload_encodings dedup_keys "
    "source_types source_identities categories correlation_ids is_transactional wait tokens "
    "schema_ids",
    "item outcome signal_id effect detail",
)
REGISTER_SIGNAL_SCHEMAS = _function("register_signal_schemas", "documents", "item schema_id")
DELIVER_SIGNAL_JSON = Function(
    "deliver_signal_json",
    ("partition_key", "namespace", "signal", "database"),
    ("deliver_signal_json",),
    "select cast(deliver_signal_json as text) as deliver_signal_json from ff.deliver_signal_json("
    "p_partition_key => cast($1 as smallint), p_namespace => cast($2 as text), "
    "p_signal => cast(cast($3 as text) as jsonb), p_database => cast($4 as text))",
)
CREATE_WAITPOINT = _function(
    "create_waitpoint",
    f"{_FENCE} waitpoint_id key expires_in step_name step_occurrence",
    "outcome token detail",
)
CREATE_APPROVAL = _function(
    "create_approval",
    f"{_FENCE} approval_id waitpoint_ids approvers question details details_encoding need deny "
    "step_name step_occurrence",
    "outcome tokens detail",
)
DELIVER_APPROVAL_SIGNAL = _function(
    "deliver_approval_signal",
    "partition_key namespace execution_id decision actor signal_id approver approval_id payload "
    "payload_encoding",
    "outcome signal_id effect approver",
)
LIST_APPROVALS = _function(
    "list_approvals",
    "partition_key namespace execution_id after_at after_id limit",
    "execution_id approval_id question details details_encoding need_count deny_count created_at "
    "is_open approvers waitpoint_ids decisions deciders decided_at comments",
)
CLOSE_WAITPOINT = _function(
    "close_waitpoint",
    "partition_key namespace execution_id waitpoint_id reason",
    "outcome detail",
)
EXPIRE_WAITPOINTS = _function("expire_waitpoints", "partition_key limit", "handled due_in")
LIST_PENDING_WAITPOINTS = _function(
    "list_pending_waitpoints",
    "partition_key namespace execution_id after limit",
    "waitpoint_id key state kid created_at activated_at expires_at signal_count "
    "required_signal_names token_fingerprint",
)
READ_WAITPOINT = _function(
    "read_waitpoint",
    "partition_key namespace execution_id token",
    "outcome key is_approval question details decision answered_at expires_at schema",
)
READ_WAITPOINT_TOKEN = _function(
    "read_waitpoint_token", "partition_key namespace execution_id waitpoint_id", "token"
)
SEED_HMAC_KEY = _function("seed_hmac_key", "kid secret", "outcome kid same_secret")
ROTATE_HMAC_KEY = _function(
    "rotate_hmac_key", "kid grace secret", "outcome kid previous_kid deleted"
)
LIST_HMAC_KEYS = _function("list_hmac_keys", "", "kid is_active created_at expires_at")
COUNT_WAITPOINTS = _function("count_waitpoints", "partition_key namespace", "kid number")
NOTICE_SIGNALS = _function("notice_signals", "partition_key limit", "handled due_in")
EXPIRE_SUSPENSIONS = _function("expire_suspensions", "partition_key limit", "handled due_in")
RESUME_EXECUTION = _function(
    "resume_execution",
    "partition_key namespace execution_id reason actor delay if_version",
    "outcome public_state version detail",
)
_SIGNAL = (
    "signal_id name category source_type source_identity correlation_id payload payload_encoding "
    "accepted_at"
)
LIST_SIGNALS = _function(
    "list_signals",
    "partition_key namespace execution_id after limit signal_ids",
    f"{_SIGNAL} noticed_at effect taken_at wait_name wait_occurrence waitpoint_id",
)
READ_SIGNALS = _function(
    "read_signals",
    "partition_key namespace cursor limit",
    "signal_id execution_id name waitpoint_id category source_type source_identity accepted_at "
    "effect namespace instance_tag next_cursor",
)
OBSERVE_SIGNALS = _function("observe_signals", _FENCE, _SIGNAL)
LIST_SUSPENDED = _function(
    "list_suspended",
    "partition_key namespace after_at after_id limit",
    "execution_id suspended_at reason_code timeout_at on_timeout conditions continuation",
)

EXPIRE_WORKER_LEASES = _function(
    "expire_worker_leases", "partition_key namespace worker_instance_id limit", "handled"
)

REGISTER_WORKER = _function(
    "register_worker",
    "namespace worker_id worker_instance_id lanes tasks capabilities liveness_ttl code_version "
    "reads version_grace finish_only host slots",
    "outcome expires_at",
)
HEARTBEAT_WORKERS = _function(
    "heartbeat_workers",
    "namespaces worker_instance_ids running loop_lags",
    "namespace worker_instance_id asked",
)
DRAIN_WORKER = _function("drain_worker", "namespace worker_instance_id reason actor", "outcome")
MARK_WORKER_DEAD = _function(
    "mark_worker_dead", "namespace worker_instance_id reason actor", "outcome"
)
LIST_WORKERS = _function(
    "list_workers",
    "namespace after_namespace after_instance_id limit with_dead",
    "namespace worker_instance_id worker_id lanes tasks capabilities liveness_ttl registered_at "
    "heartbeat_at expires_at is_alive is_silent code_version reads finish_only host slots running "
    "loop_lag drain_asked_at",
)
LIST_UNSERVED_ROUTES = _function(
    "list_unserved_routes",
    "partition_key namespace worker_instance_ids",
    "worker_instance_id route_id",
)
LIST_VERSIONS = _function(
    "list_versions",
    "partition_key namespace task",
    "namespace task code_version in_flight workers beginners readers",
)
READ_TRAFFIC = _function(
    "read_traffic",
    "partition_key namespace window limit",
    "namespace lane state resumes_at waiting is_more_waiting waiting_since delayed active "
    "is_more_timed submitted completed retried failed seconds workers running in_line "
    "is_more_in_line",
)
SWEEP_WORKERS = _function("sweep_workers", "limit", "handled due_in")

SET_LANE = _function(
    "set_lane",
    "namespace lane state resumes_at retention clear_retention reason actor",
    "outcome namespace lane state resumes_at retention reason changed_by changed_at",
)

SET_LANE_OPTIONS = _function(
    "set_lane_options",
    "namespace lane options is_declared reason actor",
    "outcome lane options is_set",
)

DECLARE_SCHEDULES = _function(
    "declare_schedules",
    "namespace app version generation names schedule_ids route_ids crons everys time_zones "
    "anchor_ats are_anchored misfires next_ats payloads payload_encodings priorities options",
    "outcome generation version orphaned",
)
DECLARE_HOOKS = _function(
    "declare_hooks",
    "namespace version known tasks names kinds route_ids priorities options",
    "removed",
)
DUE_SCHEDULES = _function(
    "due_schedules",
    "namespace app names limit",
    "name schedule_id rule_no cron every time_zone anchor_at misfire next_at read_at due_in",
)
FIRE_SCHEDULE = _function(
    "fire_schedule",
    "partition_key namespace app name call_id rule_no expected_next_at fire_ats next_at "
    "execution_ids",
    "outcome fired next_at",
)
SET_SCHEDULE = _function(
    "set_schedule",
    "namespace app name is_paused next_at rule_no reason actor",
    "outcome state next_at",
)
RUN_SCHEDULE = _function(
    "run_schedule",
    "partition_key namespace app name execution_id actor",
    "outcome execution_id",
)
FORGET_SCHEDULE = _function("forget_schedule", "namespace app name", "outcome")

UNBLOCK_EXECUTIONS = _function("unblock_executions", "partition_key limit", "handled due_in")

TRIM_RETENTION = _function(
    "trim_retention",
    "partition_key limit retention event_floor namespace lane tags after",
    "handled due_in next_after",
)
TRIM_EXECUTIONS = _function("trim_executions", "partition_key limit", "handled due_in")
TRIM_EVENTS = _function("trim_events", "partition_key limit", "handled due_in")
TRIM_KEYS = _function("trim_keys", "partition_key limit", "handled due_in")

ROLL_UP_EVENTS = _function("roll_up_events", "partition_key limit", "handled due_in")
READ_MINUTES = _function(
    "read_minutes",
    "partition_key namespace since until step task lane is_total",
    "starts_at lane task kind event_count buckets counts",
)

_SUBSCRIPTION = "namespace name"
LEASE_SUBSCRIPTION = _function(
    "lease_subscription",
    f"{_SUBSCRIPTION} holder_id holder_name ttl kinds tasks lanes instance_tags on_expiry keep "
    "cursor",
    "outcome epoch cursor_text holder_name lease_expires_at is_new",
)
ACK_SUBSCRIPTION = _function(
    "ack_subscription",
    f"{_SUBSCRIPTION} holder_id epoch ttl ack_no cursor count",
    "outcome lease_expires_at",
)
RELEASE_SUBSCRIPTION = _function(
    "release_subscription", f"{_SUBSCRIPTION} holder_id epoch", "outcome"
)
RESET_SUBSCRIPTION = _function(
    "reset_subscription", f"{_SUBSCRIPTION} cursor reason actor", "outcome epoch"
)
REMOVE_SUBSCRIPTION = _function("remove_subscription", _SUBSCRIPTION, "outcome")
LIST_SUBSCRIPTIONS = _function(
    "list_subscriptions",
    _SUBSCRIPTION,
    "namespace name kinds tasks lanes instance_tags on_expiry keep holder_name lease_expires_at "
    "epoch acked_count acked_at created_at changed_at changed_by reason cursor_text",
)
ADD_WEBHOOK = _function(
    "add_webhook",
    f"{_SUBSCRIPTION} webhook_id url host cursor kinds tasks has_detail actor",
    "outcome secret",
)
LIST_WEBHOOKS = _function(
    "list_webhooks",
    _SUBSCRIPTION,
    "namespace name url host kinds tasks has_detail holder_name acked_count acked_at failure_count "
    "retry_at answer answered_at disabled_at created_at changed_by cursor_text",
)
DUE_WEBHOOKS = _function("due_webhooks", "namespace", "name host")
LEASE_WEBHOOK = _function(
    "lease_webhook",
    f"{_SUBSCRIPTION} holder_id holder_name ttl",
    "outcome epoch cursor_text url kinds tasks has_detail failure_count",
)
SIGN_WEBHOOK = _function(
    "sign_webhook",
    f"{_SUBSCRIPTION} holder_id epoch ids bodies",
    "item outcome signed_at signature",
)
FAIL_WEBHOOK = _function(
    "fail_webhook",
    f"partition_key {_SUBSCRIPTION} holder_id epoch ack_no answer",
    "outcome failure_count retry_at",
)
ENABLE_WEBHOOK = _function("enable_webhook", f"{_SUBSCRIPTION} reason actor", "outcome")
READ_LAGS = _function(
    "read_lags",
    "partition_key namespace name",
    "namespace name behind_at waiting is_expired",
)

SET_TAGS = _function(
    "set_tags", "partition_key namespace execution_ids tags wait", "item outcome detail"
)
_FILTER = (
    "partition_key namespace states lanes tasks tags created_after created_before ended_after "
    "ended_before worker_instance_id key parent_id error is_held is_crash_loop cursor"
)
LIST_EXECUTIONS = _function(
    "list_executions",
    f"{_FILTER} limit",
    "execution_id namespace lane task priority public_state blocking_reason attempt_index "
    "total_attempt_count retry_count replay_count reclaim_count is_crash_loop is_held held_step "
    "worker_instance_id created_at started_at terminal_at delayed_until deadline_at failure_reason "
    "version progress_percent progress_message next_cursor",
)
COUNT_EXECUTIONS = _function("count_executions", _FILTER, "counted next_cursor")
LIST_EXECUTION_IDS = _function(
    "list_execution_ids", "partition_key namespace after limit", "execution_id next_after"
)
FIND_IDS = _function(
    "find_ids", "partition_key namespace text", "kind id name state created_at partition_count"
)
LIST_EXPIRED_LEASES = _function(
    "list_expired_leases",
    "partition_key namespace as_of after_at after_id limit",
    "execution_id namespace lease_id epoch worker_id worker_instance_id lease_expires_at "
    "attempt_index is_marked",
)
EXPLAIN_EXECUTION = _function(
    "explain_execution",
    "partition_key namespace execution_id",
    "dimension code evidence changes_at",
)
SERVER_TIME = _function("server_time", "", "server_time")

_CLAIM = (
    "execution_id namespace lane task claim_kind rank order_at epoch attempt_index attempt_id "
    "attempt_type lease_expires_at attempt_deadline_at deadline_at retry_count payload_encoding "
    "payload replay_count trace_context crash_count generation"
)
_GRANT = "partition_key namespace execution_id key worker_id worker_instance_id"
ISSUE_CLAIM_GRANT = _function(
    "issue_claim_grant", f"{_GRANT} capabilities grant_ttl", "outcome kind expires_at detail"
)
CLAIM_EXECUTION = _function(
    "claim_execution", f"{_GRANT} claim_id lease_ttl expected_attempt_index", _CLAIM
)
CLAIM_RESUMED_EXECUTION = _function(
    "claim_resumed_execution", f"{_GRANT} claim_id lease_ttl expected_attempt_index", _CLAIM
)
ISSUE_RECLAIM_GRANT = _function(
    "issue_reclaim_grant", f"{_GRANT} capabilities grant_ttl", "outcome kind expires_at detail"
)
RECLAIM_EXECUTION = _function(
    "reclaim_execution", f"{_GRANT} claim_id lease_ttl", f"{_CLAIM} outcome detail"
)
ISSUE_GRANT_AND_CLAIM = _function(
    "issue_grant_and_claim",
    "partition_key namespace execution_id claim_id lease_ttl worker_id worker_instance_id",
    _CLAIM,
)
REAP_GRANTS = _function("reap_grants", "partition_key limit", "handled due_in")

CANCEL_FLOW_HEADER = _function(
    "cancel_flow_header",
    "partition_key namespace flow_id policy reason actor grace call_id",
    "outcome policy reason member_count open_count members",
)
CANCEL_MEMBERS = _function(
    "cancel_members",
    "partition_key namespace flow_id limit",
    "handled remaining draining wakes_pending remaining_ids",
)
ACK_CANCEL_MEMBER = _function(
    "ack_cancel_member", "partition_key namespace flow_id execution_id", "outcome remaining"
)
CANCEL_BACKLOG = _function("cancel_backlog", "partition_key limit", "handled due_in")

OPEN_CURSOR = _function("open_cursor", "partition_key since grace", "open_cursor")
READ_EVENTS = _function(
    "read_events",
    "partition_key namespace cursor limit kinds lanes tasks execution_ids instance_tags",
    "event_id execution_id version kind occurred_at attempt_index lease_id epoch "
    "worker_instance_id outcome flow_id namespace lane task instance_tag actor detail next_cursor "
    "has_more",
)

DESCRIBE_EXECUTION = _function(
    "describe_execution",
    "partition_key namespace execution_id",
    "execution_id namespace lane task capabilities priority public_state phase ownership "
    "eligibility blocking_reason blocking_detail outcome attempt_state version epoch "
    "attempt_index attempt_id attempt_type total_attempt_count retry_count replay_count "
    "reclaim_count max_reclaims lease_id worker_id worker_instance_id lease_expires_at "
    "created_at started_at terminal_at transitioned_at mutated_at delayed_until deadline_at "
    "failure_class failure_category failure_reason payload_encoding payload result_encoding "
    "result tags creator flow_id is_crash_loop reclaim_at attempt_deadline_at "
    "attempt_started_at attempt_paused_at attempt_pause_cause due_at blocked_at "
    "cancellation_reason cancelled_by progress_percent progress_message progressed_at "
    "retention trim_at instance_tag policy task_version parent_id ends_with_parent wait_left "
    "child_count step_count key code_version generation limits",
)
READ_EXECUTION_INFO = _function(
    "read_execution_info",
    "partition_key namespace execution_id",
    "execution_id namespace lane task priority phase ownership eligibility blocking_reason "
    "blocking_detail outcome attempt_state public_state version attempt_index "
    "total_attempt_count flow_id created_at started_at terminal_at",
)
READ_KEY = _function(
    "read_key",
    "partition_key namespace key",
    "execution_id task",
)
LIST_ATTEMPTS = _function(
    "list_attempts",
    "partition_key namespace execution_id",
    "attempt_index attempt_id attempt_type lifecycle epoch started_at ended_at worker_id "
    "worker_instance_id attempt_reason pause_cause failure_class failure_category "
    "failure_reason failure_detail failure_place",
)
LIST_FAILURES = _function(
    "list_failures",
    "partition_key namespace task limit",
    "task category place number first_at last_at last_id reason seen is_more",
)
LIST_EVENTS = _function(
    "list_events",
    "partition_key namespace execution_id version",
    "event_id execution_id version kind occurred_at attempt_index lease_id epoch "
    "worker_instance_id outcome flow_id namespace lane task instance_tag actor detail",
)
LIST_LANES = _function(
    "list_lanes",
    "namespace lane after after_namespace limit",
    "namespace lane state resumes_at waiting retention reason changed_by changed_at in_line "
    "concurrency rate rate_window fair_by weights is_set",
)
REGISTER_TASKS = _function(
    "register_tasks",
    "namespace version tasks versions arguments results limits signals",
    "task outcome",
)
LIST_TASKS = _function("list_tasks", "namespace limit after", "task is_registered is_limited")
DESCRIBE_TASK = _function(
    "describe_task",
    "namespace task",
    "namespace task version arguments result limits lanes app_version registered_at changed_at "
    "signals",
)

_NUMBERS = "concurrency rate rate_window"
REGISTER_GATES = _function(
    "register_gates",
    "partition_key namespace gates registered_by",
    "item gate_id outcome detail",
)
CREATE_QUOTA = _function(
    "create_quota",
    f"namespace quota is_keyed {_NUMBERS} overflow actor",
    f"outcome is_keyed {_NUMBERS} overflow",
)
SET_QUOTA = _function(
    "set_quota",
    f"namespace quota key {_NUMBERS} clear reason actor",
    f"outcome key {_NUMBERS}",
)
LIFT_QUOTA = _function("lift_quota", "namespace quota key reason actor", f"outcome key {_NUMBERS}")
DELETE_QUOTA = _function("delete_quota", "namespace quota reason actor", "outcome")
LIST_QUOTAS = _function(
    "list_quotas",
    "namespace quota after after_namespace limit",
    f"namespace quota is_keyed overflow {_NUMBERS} declared_concurrency declared_rate "
    "declared_rate_window declared_at is_set keys_set reason changed_by changed_at",
)
LIST_GATES = _function(
    "list_gates",
    "partition_key namespace quota key after limit",
    f"gate_id key {_NUMBERS} is_set running tickets started in_line opens_at "
    "whole_concurrency whole_rate reason changed_by changed_at",
)
CHECK_ADMISSION = _function(
    "check_admission",
    "partition_key namespace quota key ticket_id ttl",
    "outcome expires_at retry_at",
)
RELEASE_ADMISSION = _function(
    "release_admission", "partition_key namespace quota key ticket_id is_unused", "outcome"
)
SWEEP_GATES = _function("sweep_gates", "partition_key limit", "handled due_in")
BALANCE_GATES = _function("balance_gates", "limit", "handled due_in")

_BUDGET = "namespace budget key"
_BUDGET_STATUS = (
    "budget_id namespace budget key on_exceed period period_zone period_length period_started_at "
    "next_reset_at is_shut usage refused hard_limits soft_limits raised in_line breach_count "
    "soft_breach_count last_breach_at last_breach_dimension created_at changed_by changed_at reason"
)
CREATE_BUDGET = _function(
    "create_budget",
    f"{_BUDGET} dimensions hard_limits soft_limits period period_zone period_length on_exceed "
    "actor",
    "outcome budget_id next_reset_at",
)
GET_BUDGET_STATUS = _function("get_budget_status", f"partition_key {_BUDGET}", _BUDGET_STATUS)
LIST_BUDGETS = _function(
    "list_budgets",
    f"partition_key {_BUDGET} after_namespace after_budget after_key limit",
    _BUDGET_STATUS,
)
RAISE_BUDGET = _function(
    "raise_budget", f"{_BUDGET} dimensions hard_limits reason actor", "outcome"
)
LIFT_BUDGET = _function("lift_budget", f"{_BUDGET} reason actor", "outcome")
RESET_BUDGET = _function("reset_budget", f"{_BUDGET} reason actor", "outcome next_reset_at")
RESET_DUE_BUDGETS = _function("reset_due_budgets", "limit", "handled due_in")
REPORT_USAGE = _function(
    "report_usage",
    "partition_key namespace execution_ids lease_ids epochs attempt_ids usages dedup_keys wait",
    "item outcome detail",
)
REPORT_USAGE_ADMIN = _function(
    "report_usage_admin", f"{_BUDGET} dimensions amounts dedup_key", "outcome detail"
)
RECORD_SPEND = _function(
    "record_spend", f"{_BUDGET} execution_id dimensions amounts dedup_key", "outcome detail"
)
RELEASE_BUDGET = _function("release_budget", f"{_BUDGET} execution_id", "outcome released")
LIST_SCHEDULES = _function(
    "list_schedules",
    "namespace app name",
    "namespace app name schedule_id state version task lane cron every time_zone anchor_at "
    "rule_no misfire priority is_paused orphaned_at next_at last_at last_id fired_count "
    "declared_at changed_at changed_by reason last_partition",
)
GRANT_NAMESPACE = _function("grant_namespace", "login namespace actor", "outcome login namespace")
REVOKE_NAMESPACE = _function("revoke_namespace", "login", "outcome login namespace")
LIST_NAMESPACE_GRANTS = _function(
    "list_namespace_grants", "", "login namespace granted_at granted_by"
)

_TOKEN = "token_id prefix name scopes namespace"
CREATE_API_TOKEN = _function(
    "create_api_token",
    "namespace token_id token_hash prefix name scopes ttl actor",
    "outcome token_id created_at expires_at",
)
REVOKE_API_TOKEN = _function(
    "revoke_api_token", "namespace token_id reason actor", "outcome token_id revoked_at"
)
LIST_API_TOKENS = _function(
    "list_api_tokens",
    "namespace after limit",
    f"{_TOKEN} created_at created_by expires_at last_used_at revoked_at revoked_by revoked_reason",
)
USE_API_TOKEN = _function(
    "use_api_token", "token_hash", "token_id name prefix scopes namespace expires_in"
)
READ_SERVER_KEY = _function("read_server_key", "namespace", "read_server_key")
LIST_AUDIT = _function(
    "list_audit",
    "namespace before limit",
    "audit_id occurred_at namespace actor act subject reason before after",
)

FUNCTIONS: tuple[Function, ...] = (
    REGISTER_ROUTES,
    SUBMIT_EXECUTIONS,
    SUBMIT_JSON,
    SUBMIT_FLOW,
    CREATE_FLOW,
    ADD_EXECUTION_TO_FLOW,
    STAGE_DEPENDENCY_EDGE,
    APPLY_DEPENDENCY_TO_CHILD,
    SET_EDGE_GROUP_POLICY,
    SET_FLOW_TAGS,
    DESCRIBE_FLOW,
    SUMMARISE_FLOW,
    LIST_FLOWS,
    LIST_EDGES,
    DESCRIBE_EDGE,
    LIST_FLOW_MEMBERS,
    EVALUATE_FLOW_ELIGIBILITY,
    READ_INPUTS,
    CLAIM_EXECUTIONS,
    RAISE_PARTITIONS,
    FIND_WORK,
    FIND_CLAIM,
    FIND_DUE,
    COMPLETE_EXECUTIONS,
    FAIL_EXECUTIONS,
    PROMOTE_DELAYED,
    READ_RESULTS,
    RENEW_LEASES,
    START_EXECUTIONS,
    RELEASE_LEASES,
    EXPIRE_LEASES,
    CANCEL_EXECUTION,
    CHANGE_PRIORITY,
    REPLAY_EXECUTION,
    RETRY_EXECUTION,
    BLOCK_EXECUTION_FOR_ADMISSION,
    UNBLOCK_EXECUTION,
    UNBLOCK_EXECUTIONS,
    EXPIRE_EXECUTIONS,
    RESOLVE_WAKES,
    CANCEL_SIBLINGS,
    RECONCILE_SIBLINGS,
    PROMOTE_BLOCKED_TO_ELIGIBLE,
    REPORT_PROGRESS,
    DELAY_EXECUTION,
    WAIT_CHILDREN,
    WAIT_FOR_RUNS,
    RECORD_STEPS,
    APPEND_FRAMES,
    READ_STREAMS,
    READ_SUMMARY,
    EXPIRE_STREAMS,
    RECORD_STEP_JSON,
    LIST_STEPS,
    ASK_WAITS,
    SUSPEND_EXECUTION,
    DELIVER_SIGNALS,
    DELIVER_SIGNAL_JSON,
    REGISTER_SIGNAL_SCHEMAS,
    CREATE_WAITPOINT,
    CREATE_APPROVAL,
    DELIVER_APPROVAL_SIGNAL,
    LIST_APPROVALS,
    CLOSE_WAITPOINT,
    EXPIRE_WAITPOINTS,
    LIST_PENDING_WAITPOINTS,
    READ_WAITPOINT,
    READ_WAITPOINT_TOKEN,
    SEED_HMAC_KEY,
    ROTATE_HMAC_KEY,
    LIST_HMAC_KEYS,
    COUNT_WAITPOINTS,
    NOTICE_SIGNALS,
    EXPIRE_SUSPENSIONS,
    RESUME_EXECUTION,
    LIST_SIGNALS,
    READ_SIGNALS,
    OBSERVE_SIGNALS,
    LIST_SUSPENDED,
    HOLD_EXECUTION,
    CONTINUE_EXECUTION,
    REVOKE_LEASE,
    SET_TAGS,
    LIST_EXECUTIONS,
    COUNT_EXECUTIONS,
    LIST_EXECUTION_IDS,
    FIND_IDS,
    LIST_EXPIRED_LEASES,
    EXPLAIN_EXECUTION,
    SERVER_TIME,
    ISSUE_CLAIM_GRANT,
    CLAIM_EXECUTION,
    CLAIM_RESUMED_EXECUTION,
    ISSUE_RECLAIM_GRANT,
    RECLAIM_EXECUTION,
    ISSUE_GRANT_AND_CLAIM,
    REAP_GRANTS,
    CANCEL_FLOW_HEADER,
    CANCEL_MEMBERS,
    ACK_CANCEL_MEMBER,
    CANCEL_BACKLOG,
    OPEN_CURSOR,
    READ_EVENTS,
    EXPIRE_WORKER_LEASES,
    REGISTER_WORKER,
    HEARTBEAT_WORKERS,
    DRAIN_WORKER,
    MARK_WORKER_DEAD,
    LIST_WORKERS,
    LIST_UNSERVED_ROUTES,
    LIST_VERSIONS,
    READ_TRAFFIC,
    SWEEP_WORKERS,
    SET_LANE,
    SET_LANE_OPTIONS,
    DECLARE_SCHEDULES,
    DECLARE_HOOKS,
    DUE_SCHEDULES,
    FIRE_SCHEDULE,
    SET_SCHEDULE,
    RUN_SCHEDULE,
    FORGET_SCHEDULE,
    TRIM_RETENTION,
    TRIM_EXECUTIONS,
    TRIM_EVENTS,
    TRIM_KEYS,
    ROLL_UP_EVENTS,
    READ_MINUTES,
    LEASE_SUBSCRIPTION,
    ACK_SUBSCRIPTION,
    RELEASE_SUBSCRIPTION,
    RESET_SUBSCRIPTION,
    REMOVE_SUBSCRIPTION,
    LIST_SUBSCRIPTIONS,
    READ_LAGS,
    ADD_WEBHOOK,
    LIST_WEBHOOKS,
    DUE_WEBHOOKS,
    LEASE_WEBHOOK,
    SIGN_WEBHOOK,
    FAIL_WEBHOOK,
    ENABLE_WEBHOOK,
    DESCRIBE_EXECUTION,
    READ_EXECUTION_INFO,
    READ_KEY,
    LIST_ATTEMPTS,
    LIST_EVENTS,
    LIST_FAILURES,
    LIST_LANES,
    REGISTER_TASKS,
    LIST_TASKS,
    DESCRIBE_TASK,
    REGISTER_GATES,
    CREATE_QUOTA,
    SET_QUOTA,
    LIFT_QUOTA,
    DELETE_QUOTA,
    LIST_QUOTAS,
    LIST_GATES,
    CHECK_ADMISSION,
    RELEASE_ADMISSION,
    CREATE_BUDGET,
    GET_BUDGET_STATUS,
    LIST_BUDGETS,
    RAISE_BUDGET,
    LIFT_BUDGET,
    RESET_BUDGET,
    RESET_DUE_BUDGETS,
    SWEEP_GATES,
    BALANCE_GATES,
    REPORT_USAGE,
    REPORT_USAGE_ADMIN,
    RECORD_SPEND,
    RELEASE_BUDGET,
    LIST_SCHEDULES,
    GRANT_NAMESPACE,
    REVOKE_NAMESPACE,
    LIST_NAMESPACE_GRANTS,
    CREATE_API_TOKEN,
    REVOKE_API_TOKEN,
    LIST_API_TOKENS,
    USE_API_TOKEN,
    READ_SERVER_KEY,
    LIST_AUDIT,
)

# Reads that need only some columns of a function.
READ_STATE = _part(
    "read_state",
    READ_EXECUTION_INFO,
    "public_state namespace attempt_index total_attempt_count flow_id",
)
READ_VERSION = _part(
    "read_version",
    READ_EXECUTION_INFO,
    "version",
)
READ_CONTEXT = _part(
    "read_context",
    DESCRIBE_EXECUTION,
    "task payload_encoding payload tags",
)
READ_PROGRESS = _part(
    "read_progress",
    DESCRIBE_EXECUTION,
    "progress_percent progress_message progressed_at",
)
READ_EVENT = _part(
    "read_event",
    LIST_EVENTS,
    "kind actor detail",
)
# pg_notify belongs to Postgres, not to the engine.
HINT = Read("hint", ("channel", "payload"), ("pg_notify",), "select pg_notify($1, $2)", "")
# This is a view, which all our roles may read.
READ_PARTITIONS = Read(
    "read_partitions",
    (),
    ("partitions", "minted_partitions", "keyed_partitions"),
    "select partitions, minted_partitions, keyed_partitions from ff.installation limit 1",
    "",
)

READS: tuple[Read, ...] = (
    READ_STATE,
    READ_VERSION,
    READ_CONTEXT,
    READ_PROGRESS,
    READ_EVENT,
)
