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
--           A worker may say when it starts an execution (ff.start_executions), and whether it
--           runs it alone: a crash is blamed only on what had started.
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

create table ff.execution (
  partition_key        smallint           not null,
  rank                 smallint           not null,  -- 9000 - priority: claim order ascends
  attempt_index        integer            not null default 0,
  execution_id         uuid               not null,
  route_id             bigint             not null,
  epoch                bigint             not null default 0,
  created_at           timestamptz        not null,
  -- the place among equal priorities: created_at, unless the lane is shared fairly
  order_at             timestamptz        not null,
  transitioned_at      timestamptz        not null,
  mutated_at           timestamptz        not null,
  version              integer            not null,
  total_attempt_count  integer            not null default 0,
  retry_count          integer            not null default 0,
  replay_count         integer            not null default 0,
  reclaim_count        integer            not null default 0,
  max_reclaims         integer            not null default 100,
  -- reclaims after a crash beside others, which do not count towards max_reclaims
  company_count        integer            not null default 0,
  -- how many waits for runs there were
  wait_no              integer            not null default 0,
  ends_with_parent     boolean            not null default false,
  -- it was given a payload, here or in its body; and it has a body
  has_payload          boolean            not null default false,
  has_body             boolean            not null default false,
  -- its end concerns another execution: one that waits for it, or a child that ends with it
  is_awaited           boolean            not null default false,
  -- it has ended, and an execution that waits for it has not been told yet
  wakes_pending        boolean            not null default false,
  phase                ff.phase           not null,
  ownership            ff.ownership       not null,
  eligibility          ff.eligibility     not null,
  blocking_reason      ff.blocking_reason not null,
  outcome              ff.outcome         not null,
  attempt_state        ff.attempt_state   not null,
  cause                ff.cause           not null,
  lease_start          ff.lease_start     not null default 'unreported',
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
  -- how long it stays after its end, if it says so itself, and until when
  retention            interval,
  trim_at              timestamptz,

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
  -- the execution whose handler submitted this one
  parent_id            uuid,
  -- how many runs have yet to end in the present wait
  wait_left            integer,
  suspension_id        uuid,
  -- the limits it is subject to, sorted; and the one in whose line it stands
  quota_ids            bigint[],
  budget_ids           bigint[],
  line_id              bigint,
  instance_tag         text,
  blocking_detail      text,
  blocked_at           timestamptz,
  cancellation_reason  text,
  cancelled_by         text,
  -- crashes since an attempt last came to its end; from two on it is a suspect and runs alone
  crash_count          integer            not null default 0,
  -- how many of them it had alone in its process
  lone_crash_count     integer            not null default 0,
  progress_percent     smallint,
  progress_message     text,
  progressed_at        timestamptz,
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
  constraint cancelled_iff_by_somebody check (
    (cancelled_by is not null) = (outcome = 'cancelled')),
  constraint trimmed_only_when_ended check (trim_at is null or phase = 'terminal'),
  constraint follows_only_a_parent check (not ends_with_parent or parent_id is not null),
  constraint wakes_only_when_ended check (not wakes_pending or phase = 'terminal'),
  constraint waits_only_while_blocked check (
    wait_left is null or (eligibility = 'blocked_by_dependencies' and wait_left > 0)),
  constraint company_is_part_of_the_reclaims check (company_count between 0 and reclaim_count),
  constraint lone_crashes_are_crashes check (lone_crash_count between 0 and crash_count),
  constraint progress_is_a_percentage check (progress_percent between 0 and 100),
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
  (partition_key, route_id, rank, order_at, execution_id)
  where phase = 'runnable' and eligibility = 'eligible_now';

create index execution_reclaim on ff.execution
  (partition_key, route_id, rank, order_at, execution_id)
  where ownership in ('lease_expired_reclaimable', 'lease_revoked') and reclaim_at is null
    and line_id is null;

-- One index for every timer: whoever reads a due row looks at its columns to see which one fired.
create index execution_due on ff.execution (partition_key, due_at) where due_at is not null;

-- What an operator looks for; a row on the happy path never enters it.
create index execution_attention on ff.execution (partition_key, public_state, execution_id)
  where public_state in (
    'delayed', 'rate_limited', 'waiting_children', 'suspended', 'resumable', 'failed', 'cancelled',
    'expired', 'skipped');

-- What waits for a capable worker, by what that worker has to be able to do.
create index execution_unrouted on ff.execution (partition_key, route_id, execution_id)
  where eligibility = 'blocked_by_route';

-- Only what has a retention of its own enters; the rest is found by age, oldest first.
create index execution_trim on ff.execution (partition_key, trim_at) where trim_at is not null;

create index execution_parent on ff.execution (partition_key, parent_id, execution_id)
  where parent_id is not null;

create index execution_wakes on ff.execution (partition_key, execution_id) where wakes_pending;

create index execution_flow on ff.execution (partition_key, flow_id, execution_id)
  where flow_id is not null;

-- Whether a flow has a member that has not ended, without looking at all that have.
create index execution_unfinished on ff.execution (partition_key, flow_id)
  where flow_id is not null and phase <> 'terminal';


create table ff.execution_body (
  partition_key smallint not null,
  execution_id  uuid     not null,
  payload       bytea,
  policy        jsonb,
  tags          jsonb,
  creator       text,
  -- W3C traceparent and tracestate of the caller that submitted, as JSON
  trace_context text,
  task_version  text,
  -- what its flow calls it
  node_name     text,
  primary key (partition_key, execution_id),
  constraint body_limits check (octet_length(payload) <= 1048576)
) with (
  autovacuum_vacuum_insert_scale_factor = 0.1
);
