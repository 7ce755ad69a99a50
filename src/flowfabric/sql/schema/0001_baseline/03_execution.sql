-- The life of an execution.
--
-- An execution is one durable call of a task. Its row in ff.execution has its whole current state:
-- six independent facts (phase, ownership, eligibility, blocking reason, outcome, attempt state),
-- the current lease, and the latest attempt. A function that changes an execution locks this row
-- first, checks the state again under the lock, and writes the change and its event in one
-- statement. The lock of this row is enough to protect the execution.
--
-- submit    A row appears, runnable and eligible, or delayed until its time. It has the id of a
--           route: a combination of namespace, lane, task and capabilities in ff.route. When code
--           with a version records its first step, the row moves to the route of that version.
-- claim     A worker asks for the next rows of the routes it covers. Each claimed row becomes
--           active and leased: it gets a lease id, an expiry, and an epoch higher than any before.
--           An interrupted attempt continues; otherwise a new attempt starts. A row whose lease
--           expired is reclaimed with a new attempt, up to its limit of reclaims.
-- start     The worker can report that it starts an execution (ff.start_executions), and whether
--           the execution runs alone in its process. A first crash is blamed on every execution
--           that the worker had leased. A further crash is blamed only on executions that had
--           started.
-- renew     The worker proves every few seconds that it is alive. This writes no event.
-- complete  The holder reports the result, and the row becomes terminal. Or the holder fails the
--           attempt: the stored policy decides whether the row waits for another attempt or ends.
--           Or the holder releases the row.
-- expire    A silent holder loses its lease. The row stays active, marked as reclaimable, and the
--           next claim takes it. The old holder can no longer change the row, because each of its
--           calls carries the lease id, epoch and attempt of the lost lease.
--
-- The latest attempt is stored on the row until the next attempt starts. Then it moves to
-- ff.attempt, the append-only history. An execution that succeeds in its first attempt never writes
-- that table.
--
-- Every transition raises `version` by one, and appends one row with that version to ff.event.
-- Only the transitions without an event_kind in ff.transition do neither. So the events of an
-- execution are numbered 1, 2, 3 without a gap.
--
-- Payload and result are opaque bytes with an encoding. A small payload is stored on the row. A
-- large payload, and rarely read data (policy, tags, creator), are stored in ff.execution_body.

-- The verdict on one item of a batch.
create type ff.verdict as (
  item          integer,
  execution_id  uuid,
  word          text,
  until_at      timestamptz,
  attempt_index integer,
  detail        jsonb
);

-- The facts that a claim reads about an execution when it locks the row.
create type ff.candidate as (
  is_open boolean, is_over boolean, has_past boolean, is_gated boolean);

create table ff.execution (
  partition_key        smallint           not null,
  rank                 smallint           not null,  -- 9000 - priority: claim order ascends
  attempt_index        integer            not null default 0,
  execution_id         uuid               not null,
  route_id             bigint             not null,
  epoch                bigint             not null default 0,
  created_at           timestamptz        not null,
  -- the order among equal priorities: created_at, unless executions of the lane take turns by fair
  -- key
  order_at             timestamptz        not null,
  transitioned_at      timestamptz        not null,
  mutated_at           timestamptz        not null,
  version              integer            not null,
  total_attempt_count  integer            not null default 0,
  retry_count          integer            not null default 0,
  replay_count         integer            not null default 0,
  reclaim_count        integer            not null default 0,
  max_reclaims         integer            not null default 100,
  -- how many reclaims followed a crash while it ran beside others; they do not count towards
  -- max_reclaims
  company_count        integer            not null default 0,
  -- number of waits for runs so far
  wait_no              integer            not null default 0,
  ends_with_parent     boolean            not null default false,
  -- whether it has a payload (here or in its body), and whether it has a body
  has_payload          boolean            not null default false,
  has_body             boolean            not null default false,
  -- whether its end must be propagated: another execution waits for it, or is bound to it
  is_awaited           boolean            not null default false,
  -- whether it has ended and its end is not fully propagated yet
  wakes_pending        boolean            not null default false,
  -- whether it has a stream, which every end of a lease must close
  has_stream           boolean            not null default false,
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

  -- the timers. due_at is the time of the next timer, or an earlier time: renewing a lease moves
  -- its timer, and leaves due_at as it is
  due_at               timestamptz,
  delayed_until        timestamptz,
  reclaim_at           timestamptz,
  deadline_at          timestamptz,
  started_at           timestamptz,
  terminal_at          timestamptz,
  attempt_timeout      interval,
  -- the retention, if the policy of the execution sets one, and the time of its deletion
  retention            interval,
  trim_at              timestamptz,

  -- the current lease
  lease_id             uuid,
  lease_expires_at     timestamptz,
  worker_id            text,
  worker_instance_id   text,

  -- the last lease that ended in the latest attempt, and the answer to its holder
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
  -- where the last failure was raised: the innermost function of user code in its traceback
  failure_place           text,

  flow_id              uuid,
  -- the execution whose handler submitted this one
  parent_id            uuid,
  -- how many runs the current wait still needs
  wait_left            integer,
  suspension_id        uuid,
  -- the quotas and budgets that apply to it, each list sorted, and the gate in whose line it waits
  quota_ids            bigint[],
  budget_ids           bigint[],
  line_id              bigint,
  -- how often it changed its line since it last ran; null for most executions, and always null with
  -- fewer than two quotas
  refusal_count        smallint,
  instance_tag         text,
  blocking_detail      text,
  blocked_at           timestamptz,
  cancellation_reason  text,
  cancelled_by         text,
  -- crashes in a row; with two or more, the execution is a suspect and runs alone
  crash_count          integer            not null default 0,
  -- how many of these crashes happened while it ran alone
  lone_crash_count     integer            not null default 0,
  progress_percent     smallint,
  progress_message     text,
  progressed_at        timestamptz,
  payload_encoding     text,
  payload              bytea,
  result_encoding      text,
  result               bytea,

  primary key (partition_key, execution_id),

  -- There are only three CHECKs, and they are short: every statement that writes a row parses their
  -- text again and evaluates all of them. Doctor's S12 lists the rules that they enforce, by name.
  constraint execution_state check (
    phase <> 'submitted'
    and (phase = 'active') = (ownership <> 'unowned')
    and (phase = 'runnable') = (eligibility <> 'not_applicable')
    and (phase = 'terminal') = (outcome <> 'none')
    and (phase = 'terminal') = (terminal_at is not null)
    and (phase = 'terminal' or (trim_at is null and not wakes_pending))
    and (ownership = 'leased') = (attempt_state = 'running_attempt')
    and num_nonnulls(lease_id, lease_expires_at, worker_id, worker_instance_id)
        = case when ownership in ('leased', 'lease_expired_reclaimable') then 4 else 0 end
    and (reclaim_at is null or ownership in ('lease_expired_reclaimable', 'lease_revoked'))
    and (eligibility = 'not_eligible_until_time') = (delayed_until is not null)
    and (outcome = 'cancelled') = (cancelled_by is not null)
    and (wait_left is null or (wait_left > 0
           and (eligibility = 'blocked_by_dependencies' or phase = 'suspended')))
    and (line_id is null or eligibility in ('blocked_by_quota', 'blocked_by_budget')
         or ownership in ('lease_expired_reclaimable', 'lease_revoked'))
    and case blocking_reason
          when 'none' then true
          when 'paused_by_policy' then eligibility = 'blocked_by_operator' or phase = 'suspended'
          else ownership <> 'leased' and phase <> 'terminal'
        end),
  constraint execution_counts check (
    (attempt_id is not null) = (total_attempt_count > 0)
    and attempt_index = greatest(total_attempt_count - 1, 0)
    and company_count between 0 and reclaim_count
    and lone_crash_count between 0 and crash_count
    and (not ends_with_parent or parent_id is not null)),
  constraint execution_limits check (
    rank between 0 and 9000 and epoch >= 0 and version >= 1 and max_reclaims >= 0
    and octet_length(payload) <= 256 and octet_length(result) <= 1048576
    and progress_percent between 0 and 100)
) with (
  fillfactor = 90,
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_cost_delay = 0,
  autovacuum_analyze_scale_factor = 0.05,
  autovacuum_vacuum_insert_scale_factor = 0.1
);

-- A row is claimable if it satisfies this predicate. No column stores this.
create index execution_ready on ff.execution
  (partition_key, route_id, rank, order_at, execution_id)
  where phase = 'runnable' and eligibility = 'eligible_now';

create index execution_reclaim on ff.execution
  (partition_key, route_id, rank, order_at, execution_id)
  where ownership in ('lease_expired_reclaimable', 'lease_revoked') and reclaim_at is null
    and line_id is null;

-- This index serves all timers. A reader of a due row looks at its columns to see which timer is
-- due.
create index execution_due on ff.execution (partition_key, due_at) where due_at is not null;

-- Executions in the states that an operator may look for. An execution that starts at once and
-- succeeds is never in this index.
create index execution_attention on ff.execution (partition_key, public_state, execution_id)
  where public_state in (
    'delayed', 'rate_limited', 'waiting_children', 'suspended', 'resumable', 'failed', 'cancelled',
    'expired', 'skipped');

-- Unfinished executions whose route has a code version. Other executions are never in this index.
create index execution_version on ff.execution (partition_key, namespace, route_id)
  where route_id >= 4611686018427387904 and phase <> 'terminal';

-- Executions that wait for a capable worker, by route.
create index execution_unrouted on ff.execution (partition_key, route_id, execution_id)
  where eligibility = 'blocked_by_route';

-- Only executions whose policy sets a retention are in this index. The others are found by age,
-- oldest first.
create index execution_trim on ff.execution (partition_key, trim_at) where trim_at is not null;

create index execution_parent on ff.execution (partition_key, parent_id, execution_id)
  where parent_id is not null;

create index execution_wakes on ff.execution (partition_key, execution_id) where wakes_pending;

create index execution_flow on ff.execution (partition_key, flow_id, execution_id)
  where flow_id is not null;

-- Finds an unfinished member of a flow without reading the ended members.
create index execution_unfinished on ff.execution (partition_key, flow_id)
  where flow_id is not null and phase <> 'terminal';


create table ff.execution_body (
  partition_key smallint not null,
  execution_id  uuid     not null,
  payload       bytea,
  policy        jsonb,
  tags          jsonb,
  creator       text,
  -- W3C traceparent and tracestate of the submitting caller, as JSON
  trace_context text,
  task_version  text,
  -- its name in its flow
  node_name     text,
  -- how often its handler continued it with new input and a fresh journal
  generation    integer  not null default 0,
  primary key (partition_key, execution_id),
  -- 4 MiB, because the payload of a hook holds the payload and the result of an execution
  constraint body_limits check (octet_length(payload) <= 4194304)
) with (
  autovacuum_vacuum_insert_scale_factor = 0.1
);
