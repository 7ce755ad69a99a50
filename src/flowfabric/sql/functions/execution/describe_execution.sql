-- Read everything about one execution. Returns no row if the execution does not exist in the
-- namespace.
--
-- The failure belongs to the latest attempt. `limits` is a JSON array with the quotas and budgets
-- of the execution, each with kind, name and key; it is null if there are none.
--
-- Moves:    nothing
-- Refuses:  WF501 forbidden
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.describe_execution;
create function ff.describe_execution(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_id  uuid
)
returns table (
  execution_id        uuid,
  namespace           text,
  lane                text,
  task                text,
  capabilities        text[],
  priority            integer,
  public_state        text,
  phase               text,
  ownership           text,
  eligibility         text,
  blocking_reason     text,
  blocking_detail     text,
  outcome             text,
  attempt_state       text,
  version             integer,
  epoch               bigint,
  attempt_index       integer,
  attempt_id          uuid,
  attempt_type        text,
  total_attempt_count integer,
  retry_count         integer,
  replay_count        integer,
  reclaim_count       integer,
  max_reclaims        integer,
  lease_id            uuid,
  worker_id           text,
  worker_instance_id  text,
  lease_expires_at    timestamptz,
  created_at          timestamptz,
  started_at          timestamptz,
  terminal_at         timestamptz,
  transitioned_at     timestamptz,
  mutated_at          timestamptz,
  delayed_until       timestamptz,
  deadline_at         timestamptz,
  failure_class       text,
  failure_category    text,
  failure_reason      text,
  payload_encoding    text,
  payload             bytea,
  result_encoding     text,
  result              bytea,
  tags                text,
  creator             text,
  flow_id             uuid,
  is_crash_loop       boolean,
  reclaim_at          timestamptz,
  attempt_deadline_at timestamptz,
  attempt_started_at  timestamptz,
  attempt_paused_at   timestamptz,
  attempt_pause_cause text,
  due_at              timestamptz,
  blocked_at          timestamptz,
  cancellation_reason text,
  cancelled_by        text,
  progress_percent    smallint,
  progress_message    text,
  progressed_at       timestamptz,
  retention           interval,
  trim_at             timestamptz,
  instance_tag        text,
  policy              text,
  task_version        text,
  parent_id           uuid,
  ends_with_parent    boolean,
  wait_left           integer,
  child_count         bigint,
  step_count          bigint,
  key                 text,
  code_version        text,
  generation          integer,
  limits              text
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform ff._check_namespace(p_namespace);
  return query
  select v.execution_id, v.namespace, v.lane, v.task, v.capabilities, v.priority, v.public_state,
         v.phase, v.ownership, v.eligibility, v.blocking_reason, v.blocking_detail, v.outcome,
         v.attempt_state, v.version, v.epoch, v.attempt_index, v.attempt_id, v.attempt_type,
         v.total_attempt_count, v.retry_count, v.replay_count, v.reclaim_count, v.max_reclaims,
         v.lease_id, v.worker_id, v.worker_instance_id, v.lease_expires_at, v.created_at,
         v.started_at, v.terminal_at, v.transitioned_at, v.mutated_at, v.delayed_until,
         v.deadline_at, v.failure_class, v.failure_category, v.failure_reason, v.payload_encoding,
         v.payload, v.result_encoding, v.result, v.tags, v.creator, v.flow_id, v.is_crash_loop,
         v.reclaim_at, v.attempt_deadline_at, v.attempt_started_at, v.attempt_paused_at,
         v.attempt_pause_cause, v.due_at, v.blocked_at, v.cancellation_reason, v.cancelled_by,
         v.progress_percent, v.progress_message, v.progressed_at, v.retention, v.trim_at,
         v.instance_tag, v.policy, v.task_version, v.parent_id, v.ends_with_parent, v.wait_left,
         v.child_count, v.step_count, v.key, v.code_version,
         v.generation, v.limits
  from ff.execution_view v
  where v.partition_key = p_partition_key and v.execution_id = p_execution_id
    and (p_namespace is null or v.namespace = p_namespace);
end;
$$;
