-- The life of an execution.
--
-- An execution is one durable call of a task. Its row in ff.execution is the whole truth about
-- now: six independent facts (phase, ownership, eligibility, blocking reason, outcome, attempt
-- state), the current lease, and the latest attempt. Whoever changes an execution locks that one
-- row first, checks again under the lock, and writes the change together with its event in one
-- statement. Nothing else has to be locked to be safe.
--
-- submit    A row appears, runnable and eligible, or delayed until its time. It carries a route:
--           the number of its (namespace, lane, task, capabilities), registered once in ff.route.
-- claim     A worker asks for the next rows of the routes it covers. Each row it gets turns active
--           and leased: a lease id, an expiry, and an epoch one higher than any before. A pending
--           row starts a new attempt; an interrupted one goes on with the attempt it had; a row
--           whose lease ran out is reclaimed, with a new attempt, up to its limit of reclaims.
-- renew     The worker proves every few seconds that it lives. No event: nothing changed.
-- complete  The holder hands in the result; the row is terminal. Or it fails: the stored policy
--           decides whether the row waits for another attempt or ends. Or it lets go (release).
-- expire    A holder that fell silent loses its lease: the row stays active, marked reclaimable,
--           and the next claim picks it up. The old holder can change nothing any more, because
--           every call it makes carries the lease id, epoch and attempt it was given.
--
-- The latest attempt lives on the row until the next one starts; only then does it move to
-- ff.attempt, the append-only history. The happy path never writes that table. Every transition
-- that is not marked quiet in ff.transition raises `version` by one and appends one row to
-- ff.event that carries it, so the events of an execution are numbered 1, 2, 3 without a gap.
--
-- Sizes: payload and result are opaque bytes with an encoding. A small payload rides on the hot
-- row; a large one, and everything rarely read (policy, tags, creator), sits in execution_body.

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

-- Why a row is in its present state: the operation that moved it there last.
create type ff.cause as enum (
  'submit', 'apply_dependency', 'satisfy_dependencies', 'skip', 'block', 'unblock', 'promote',
  'claim', 'resume', 'change_priority', 'complete', 'schedule_retry', 'fail', 'delay', 'release',
  'wait_children', 'wait_for_runs', 'suspend', 'wake', 'expire_lease', 'revoke_lease', 'reclaim',
  'exceed_reclaims', 'cancel', 'expire', 'time_out', 'time_out_suspension', 'escalate', 'replay',
  'hold');

-- How a lease ended, kept beside its id so that a repeated call gets the first answer.
create type ff.lease_end as enum (
  'complete', 'fail', 'release', 'delay', 'wait_children', 'wait_for_runs', 'suspend', 'hold',
  'cancel', 'skip', 'expire', 'time_out', 'expire_lease', 'revoke_lease');

create type ff.event_kind as enum (
  'submitted', 'claimed', 'resumed', 'reclaimed', 'released', 'lease_expired', 'lease_revoked',
  'completed', 'failed', 'retry_scheduled', 'delayed', 'waiting', 'suspended', 'woken',
  'escalated', 'held', 'cancelled', 'expired', 'skipped', 'priority_changed', 'replayed',
  'flow_cancel_requested', 'blocked', 'unblocked', 'promoted');

create type ff.lane_state as enum ('active', 'paused', 'draining', 'disabled');

create type ff.key_scope as enum ('window', 'unfinished');

-- What ff._judge_leases says of one item of a fenced batch.
create type ff.verdict as (
  item          integer,
  execution_id  uuid,
  word          text,
  until_at      timestamptz,
  attempt_index integer,
  detail        jsonb
);

-- What a claim learns about an execution when it locks it.
create type ff.candidate as (is_open boolean, is_over boolean, has_past boolean);

create table ff.lane (
  lane          text          primary key,
  state         ff.lane_state not null default 'active',
  resumes_at  timestamptz,
  registered_at timestamptz   not null,
  registered_by text          not null,
  constraint lane_is_short_printable_ascii check (lane ~ '^[ -~]{1,64}$'),
  constraint resumes_only_when_paused check (state = 'paused' or resumes_at is null)
);

create table ff.route (
  route_id      bigint      primary key,
  namespace     text        not null,
  lane          text        not null,
  task          text        not null,
  capabilities  text[]      not null,
  registered_at timestamptz not null,
  constraint route_id_is_63_bits check (route_id >= 0)
);

-- A worker knows its tasks; a claim finds its routes through them.
create index route_task on ff.route (task, lane);
create index route_lane on ff.route (lane);

create table ff.execution (
  partition_key        smallint           not null,
  rank                 smallint           not null,  -- 9000 - priority: claim order ascends
  attempt_index        integer            not null default 0,
  execution_id         uuid               not null,
  route_id             bigint             not null,
  epoch                bigint             not null default 0,
  created_at           timestamptz        not null,
  transitioned_at      timestamptz        not null,
  mutated_at           timestamptz        not null,
  version              integer            not null,
  total_attempt_count  integer            not null default 0,
  retry_count          integer            not null default 0,
  replay_count         integer            not null default 0,
  reclaim_count        integer            not null default 0,
  max_reclaims         integer            not null default 100,
  phase                ff.phase           not null,
  ownership            ff.ownership       not null,
  eligibility          ff.eligibility     not null,
  blocking_reason      ff.blocking_reason not null,
  outcome              ff.outcome         not null,
  attempt_state        ff.attempt_state   not null,
  cause                ff.cause           not null,
  public_state         ff.public_state    not null generated always as (
    case phase
      when 'terminal' then
        case outcome
          when 'success'   then 'completed'::ff.public_state
          when 'cancelled' then 'cancelled'::ff.public_state
          when 'expired'   then 'expired'::ff.public_state
          when 'skipped'   then 'skipped'::ff.public_state
          else 'failed'::ff.public_state
        end
      when 'suspended' then 'suspended'::ff.public_state
      when 'active'    then 'active'::ff.public_state
      when 'runnable'  then
        case eligibility
          when 'not_eligible_until_time' then 'delayed'::ff.public_state
          when 'blocked_by_dependencies' then 'waiting_children'::ff.public_state
          when 'blocked_by_budget'       then 'rate_limited'::ff.public_state
          when 'blocked_by_quota'        then 'rate_limited'::ff.public_state
          else 'waiting'::ff.public_state
        end
      else 'waiting'::ff.public_state
    end) stored,
  namespace            text               not null,

  -- timers; due_at is a lower bound of those that are armed, so that a renewal need not move it
  due_at               timestamptz,
  delayed_until        timestamptz,
  reclaim_at           timestamptz,
  deadline_at          timestamptz,
  started_at           timestamptz,
  terminal_at          timestamptz,
  attempt_timeout      interval,

  -- the current lease
  lease_id             uuid,
  lease_expires_at     timestamptz,
  worker_id            text,
  worker_instance_id   text,

  -- the last lease that ended in the latest attempt, and what its holder was told
  last_lease_id             uuid,
  last_lease_end            ff.lease_end,
  last_lease_retry_at          timestamptz,
  last_worker_id            text,
  last_worker_instance_id   text,

  -- the latest attempt
  attempt_id              uuid,
  attempt_type            ff.attempt_type,
  attempt_started_at      timestamptz,
  attempt_paused_at       timestamptz,
  attempt_pause_cause     text,
  attempt_deadline_at     timestamptz,
  attempt_time_left       interval,
  attempt_ended_at        timestamptz,
  attempt_ended_as        ff.attempt_lifecycle,
  previous_attempt_index  integer,
  attempt_reason          text,
  failure_class           ff.failure_class,
  failure_category        text,
  failure_reason          text,
  failure_detail          bytea,

  flow_id              uuid,
  instance_tag         text,
  blocking_detail      text,
  payload_encoding     text,
  payload              bytea,
  result_encoding      text,
  result               bytea,

  primary key (partition_key, execution_id),

  constraint submitted_is_never_stored check (phase <> 'submitted'),
  constraint terminal_iff_outcome check ((phase = 'terminal') = (outcome <> 'none')),
  constraint terminal_iff_ended check ((phase = 'terminal') = (terminal_at is not null)),
  constraint owned_iff_active check ((phase = 'active') = (ownership <> 'unowned')),
  constraint eligible_iff_runnable check ((phase = 'runnable') = (eligibility <> 'not_applicable')),
  constraint lease_iff_held check (
    num_nonnulls(lease_id, lease_expires_at, worker_id, worker_instance_id)
      = case when ownership in ('leased', 'lease_expired_reclaimable') then 4 else 0 end),
  constraint delayed_iff_until check (
    (eligibility = 'not_eligible_until_time') = (delayed_until is not null)),
  constraint running_iff_leased check ((attempt_state = 'running_attempt') = (ownership = 'leased')),
  constraint attempt_iff_counted check (
    (attempt_id is not null) = (total_attempt_count > 0)
    and attempt_index = greatest(total_attempt_count - 1, 0)),
  constraint blocked_only_while_waiting check (
    blocking_reason = 'none'
    or (phase <> 'terminal' and attempt_state <> 'running_attempt')),
  constraint policy_pause_is_an_operator_block check (
    blocking_reason <> 'paused_by_policy' or eligibility = 'blocked_by_operator'
    or phase = 'suspended'),
  constraint reclaim_wait_only_when_reclaimable check (
    reclaim_at is null or ownership in ('lease_expired_reclaimable', 'lease_revoked')),
  constraint limits check (
    rank between 0 and 9000 and epoch >= 0 and version >= 1 and max_reclaims >= 0
    and octet_length(payload) <= 256 and octet_length(result) <= 1048576)
) with (
  fillfactor = 90,
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_cost_delay = 0,
  autovacuum_analyze_scale_factor = 0.05,
  autovacuum_vacuum_insert_scale_factor = 0.1
);

-- Claimability is this predicate, not a column.
create index execution_ready on ff.execution
  (partition_key, route_id, rank, created_at, execution_id)
  where phase = 'runnable' and eligibility = 'eligible_now';

create index execution_reclaim on ff.execution
  (partition_key, route_id, rank, created_at, execution_id)
  where ownership in ('lease_expired_reclaimable', 'lease_revoked') and reclaim_at is null;

-- One index for every timer: whoever reads a due row looks at its columns to see which one fired.
create index execution_due on ff.execution (partition_key, due_at) where due_at is not null;

-- What an operator looks for; a row on the happy path never enters it.
create index execution_attention on ff.execution (partition_key, public_state, execution_id)
  where public_state in (
    'delayed', 'rate_limited', 'waiting_children', 'suspended', 'resumable', 'failed', 'cancelled',
    'expired', 'skipped');

create table ff.execution_body (
  partition_key smallint not null,
  execution_id  uuid     not null,
  payload       bytea,
  policy        jsonb,
  tags          jsonb,
  creator       text,
  primary key (partition_key, execution_id),
  constraint body_limits check (octet_length(payload) <= 1048576)
) with (
  autovacuum_vacuum_insert_scale_factor = 0.1
);

create table ff.attempt (
  partition_key           smallint             not null,
  attempt_index           integer              not null,
  execution_id            uuid                 not null,
  attempt_id              uuid                 not null,
  attempt_type            ff.attempt_type      not null,
  epoch                   bigint               not null,
  started_at              timestamptz          not null,
  ended_at                timestamptz          not null,
  ended_as                ff.attempt_lifecycle not null,
  previous_attempt_index  integer,
  attempt_reason          text,
  failure_class           ff.failure_class,
  failure_category        text,
  failure_reason          text,
  failure_detail          bytea,
  last_lease_id           uuid,
  last_lease_end          ff.lease_end,
  last_lease_retry_at        timestamptz,
  last_worker_id          text,
  last_worker_instance_id text,
  primary key (partition_key, execution_id, attempt_index),
  constraint ended_means_ended check (
    ended_as in ('ended_success', 'ended_failure', 'ended_cancelled', 'interrupted_reclaimed'))
);

create table ff.event (
  partition_key      smallint      not null,
  version            integer       not null,
  attempt_index      integer,
  event_id           bigint        not null generated always as identity,
  xid                xid8          not null,
  execution_id       uuid          not null,
  occurred_at        timestamptz   not null,
  route_id           bigint,
  epoch              bigint,
  kind               ff.event_kind not null,
  outcome            ff.outcome,
  lease_id           uuid,
  flow_id            uuid,
  namespace          text          not null,
  worker_instance_id text,
  instance_tag       text,
  actor              text,
  detail             jsonb,
  primary key (partition_key, xid, event_id)
) with (
  autovacuum_vacuum_insert_scale_factor = 0.1
);

create index event_history on ff.event (partition_key, execution_id, event_id);

-- The last claim of each worker process, so that a repeated claim returns the same executions.
create table ff.claim_slot (
  partition_key      smallint    not null,
  worker_instance_id text        not null,
  claim_id           uuid        not null,
  claimed_at         timestamptz not null,
  execution_ids      uuid[]      not null,
  primary key (partition_key, worker_instance_id)
) with (fillfactor = 50);

create table ff.idempotency_key (
  partition_key smallint     not null,
  namespace     text         not null,
  key           text         not null,
  execution_id  uuid         not null,
  scope         ff.key_scope not null,
  fingerprint   bytea        not null,
  expires_at    timestamptz  not null,
  primary key (partition_key, namespace, key)
);

-- Partial only so that the planner cannot mistake it for a way to look a key up while the table is
-- small; whoever trims says the predicate.
create index idempotency_key_expiry on ff.idempotency_key (partition_key, expires_at)
  where expires_at > '-infinity';

-- Every legal move, as data. A null event_kind marks a quiet move. Tests refuse any other.
create table ff.transition (
  number             text             not null,
  cause              ff.cause         not null,
  from_phase         ff.phase,
  from_ownership     ff.ownership,
  from_eligibility   ff.eligibility,
  from_attempt_state ff.attempt_state,
  to_phase           ff.phase         not null,
  to_ownership       ff.ownership     not null,
  to_eligibility     ff.eligibility   not null,
  to_attempt_state   ff.attempt_state not null,
  event_kind         ff.event_kind,
  constraint transition_once unique nulls not distinct (
    cause, from_phase, from_ownership, from_eligibility, from_attempt_state,
    to_phase, to_ownership, to_eligibility, to_attempt_state, event_kind)
);
