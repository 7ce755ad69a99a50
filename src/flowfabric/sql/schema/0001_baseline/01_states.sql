-- The types of the state model. Every part of an execution's state is an enum. All values of the
-- model exist from the start, because adding a value later takes an exclusive lock, and removing a
-- value means rewriting the tables.

create type ff.phase as enum ('submitted', 'runnable', 'active', 'suspended', 'terminal');

create type ff.ownership as enum (
  'unowned', 'leased', 'lease_expired_reclaimable', 'lease_revoked');

create type ff.eligibility as enum (
  'eligible_now', 'not_eligible_until_time', 'blocked_by_dependencies', 'blocked_by_budget',
  'blocked_by_quota', 'blocked_by_route', 'blocked_by_lane_state', 'blocked_by_operator',
  'not_applicable');

create type ff.blocking_reason as enum (
  'none', 'waiting_for_worker', 'waiting_for_retry_backoff', 'waiting_for_resume_delay',
  'waiting_for_delay', 'waiting_for_signal', 'waiting_for_approval', 'waiting_for_callback',
  'waiting_for_tool_result', 'waiting_for_children', 'waiting_for_budget', 'waiting_for_quota',
  'waiting_for_capable_worker', 'waiting_for_locality_match', 'paused_by_operator',
  'paused_by_policy', 'paused_by_flow_cancel');

create type ff.outcome as enum ('none', 'success', 'failed', 'cancelled', 'expired', 'skipped');

create type ff.attempt_state as enum (
  'none', 'pending_first_attempt', 'running_attempt', 'attempt_interrupted',
  'pending_retry_attempt', 'pending_replay_attempt', 'attempt_terminal');

create type ff.public_state as enum (
  'waiting', 'delayed', 'rate_limited', 'waiting_children', 'active', 'suspended', 'resumable',
  'completed', 'failed', 'cancelled', 'expired', 'skipped');

create type ff.attempt_type as enum ('initial', 'retry', 'reclaim', 'replay', 'fallback');

create type ff.attempt_lifecycle as enum (
  'created', 'started', 'suspended', 'ended_success', 'ended_failure', 'ended_cancelled',
  'interrupted_reclaimed');

create type ff.failure_class as enum (
  'transient', 'permanent', 'infra_crash', 'timeout', 'cancelled');

-- The operation that moved a row into its current state.
create type ff.cause as enum (
  'submit', 'apply_dependency', 'satisfy_dependencies', 'skip', 'block', 'unblock', 'promote',
  'claim', 'resume', 'change_priority', 'complete', 'schedule_retry', 'fail', 'delay', 'release',
  'wait_children', 'wait_for_runs', 'suspend', 'wake', 'expire_lease', 'revoke_lease', 'reclaim',
  'exceed_reclaims', 'cancel', 'expire', 'time_out', 'time_out_suspension', 'escalate', 'replay',
  'hold', 'continue', 'report_usage');

-- How a lease ended, stored beside its id so that a repeated call gets the first answer.
create type ff.lease_end as enum (
  'complete', 'fail', 'release', 'delay', 'wait_children', 'wait_for_runs', 'suspend', 'hold',
  'continue', 'cancel', 'skip', 'expire', 'time_out', 'expire_lease', 'revoke_lease');

-- Whether the run of a lease has started. `unreported`: the holder does not report starts, so the
-- run counts as started. `waiting`: the holder reports starts and has not reported this one.
-- `beside`: the run started beside others in its process. `alone`: the run started alone in its
-- process.
create type ff.lease_start as enum ('unreported', 'waiting', 'beside', 'alone');

create type ff.event_kind as enum (
  'submitted', 'claimed', 'resumed', 'reclaimed', 'released', 'lease_expired', 'lease_revoked',
  'completed', 'failed', 'retry_scheduled', 'delayed', 'waiting', 'suspended', 'woken',
  'escalated', 'held', 'continued', 'cancelled', 'expired', 'skipped', 'priority_changed', 'replayed',
  'flow_cancel_requested', 'blocked', 'unblocked', 'promoted', 'budget_exceeded',
  'webhook_disabled');
