-- Run an ended execution again (T28). The caller holds the row lock and has it read.
--
-- The latest attempt stays as it ended until the next claim moves it to the history. Retries and
-- reclaims are counted anew; a deadline that has passed is lifted, else the execution would end at
-- once. A child that ended with its parent has a life of its own from here on. Whom the end concerned
-- is told before it is undone.
drop function if exists ff._replay_execution;
create function ff._replay_execution(
  p_partition_key smallint,
  p_row           ff.execution,
  p_reason        text,
  p_actor         text,
  p_detail        jsonb default '{}'
)
returns void
language plpgsql
set search_path = ''
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_now   timestamptz;
  v_xid   xid8;
  v_most  integer;
  v_wakes record;
begin
  select coalesce((b.policy ->> 'max_replay_count')::numeric, 10) into v_most
  from ff.execution_body b
  where b.partition_key = p_partition_key and b.execution_id = p_row.execution_id;
  if p_row.replay_count >= coalesce(v_most, 10) then
    perform ff._refuse('WF212', 'max_replays_exhausted', jsonb_build_object(
      'id', format('{fp:%s}:%s', p_partition_key, p_row.execution_id),
      'replays', p_row.replay_count, 'limit', coalesce(v_most, 10)));
  end if;

  v_now := ff.now();
  v_now := greatest(v_now, p_row.transitioned_at);
  v_xid := pg_current_xact_id();
  if p_row.wakes_pending then
    v_wakes := ff._wake_runs(p_partition_key, array[p_row.execution_id], v_now, 10000);
    if v_wakes.pending_ids is not null then
      raise exception using errcode = '40001',
        message = 'somebody who waits for this execution is busy';
    end if;
  end if;
  with replayed as (
    update ff.execution e set
      phase = 'runnable',
      eligibility = 'eligible_now',
      blocking_reason = 'waiting_for_worker',
      outcome = 'none',
      attempt_state = 'pending_replay_attempt',
      cause = 'replay',
      version = e.version + 1,
      replay_count = e.replay_count + 1,
      retry_count = 0,
      reclaim_count = 0,
      deadline_at = case when e.deadline_at > v_now then e.deadline_at end,
      due_at = case when e.deadline_at > v_now then e.deadline_at end,
      terminal_at = null,
      trim_at = null,
      result = null,
      result_encoding = null,
      cancellation_reason = null,
      cancelled_by = null,
      ends_with_parent = false,
      -- the failure of an attempt stays with it; that of a deadline before any is over
      failure_class = case when e.total_attempt_count > 0 then e.failure_class end,
      failure_category = case when e.total_attempt_count > 0 then e.failure_category end,
      failure_reason = case when e.total_attempt_count > 0 then e.failure_reason end,
      transitioned_at = v_now,
      mutated_at = v_now
    where e.partition_key = p_partition_key and e.execution_id = p_row.execution_id
    returning e.version
  )
  insert into ff.event (
    partition_key, xid, execution_id, version, kind, route_id, flow_id, namespace, instance_tag,
    occurred_at, actor, detail)
  select p_partition_key, v_xid, p_row.execution_id, r.version, 'replayed', p_row.route_id,
         p_row.flow_id, p_row.namespace, p_row.instance_tag, v_now, p_actor,
         jsonb_strip_nulls(jsonb_build_object('branch', 'normal', 'reason', p_reason)) || p_detail
  from replayed r;
  perform ff._hint_ready(p_partition_key, array[p_row.route_id]);
end;
$$;
