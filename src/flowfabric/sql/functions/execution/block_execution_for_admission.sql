-- Block a runnable execution, so that no worker claims it. p_blocking_reason names the reason: a
-- budget, a quota, a missing capable worker, or a pause by an operator or a policy.
--
-- The execution must be eligible, or already blocked by a budget, a quota or a missing worker.
-- Delayed executions and executions that wait for dependencies cannot be blocked, because a later
-- unblock would make them eligible immediately.
--
-- An event is written only if an actor is given.
--
-- Moves:    runnable eligible or blocked -> runnable blocked (T6)
-- Refuses:  WF001 invalid_input · WF201 not_active · WF205 not_eligible · WF301 not_found
-- Locks:    the execution, waiting up to 2 s
-- Repeat:   `blocked`, and nothing changes, while the execution is blocked for this reason
-- Rights:   app
drop function if exists ff.block_execution_for_admission;
create function ff.block_execution_for_admission(
  p_partition_key   smallint,
  p_namespace       text,
  p_execution_id    uuid,
  p_blocking_reason text,
  p_detail          text default null,
  p_actor           text default null
)
returns table (outcome text, public_state text, version integer, detail jsonb)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_row        ff.execution;
  v_now        timestamptz;
  v_xid        xid8;
  v_generation integer;
  v_to         constant ff.eligibility := case p_blocking_reason
         when 'waiting_for_budget' then 'blocked_by_budget'
         when 'waiting_for_quota' then 'blocked_by_quota'
         when 'waiting_for_capable_worker' then 'blocked_by_route'
         when 'paused_by_operator' then 'blocked_by_operator'
         when 'paused_by_policy' then 'blocked_by_operator' end;
  v_by         constant ff.blocking_reason := case when v_to is not null then p_blocking_reason end;
  v_event      constant integer := (p_actor is not null)::integer;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_actor_and_reason(p_actor, p_detail);
  if v_to is null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'blocking_reason', 'problem',
      'must be waiting_for_budget, waiting_for_quota, waiting_for_capable_worker, '
      'paused_by_operator or paused_by_policy'));
  end if;
  v_row := ff._lock_execution(p_partition_key, p_namespace, p_execution_id);
  if v_row.phase = 'terminal' then
    perform ff._refuse('WF201', 'not_active', jsonb_build_object(
      'id', format('{fp:%s}:%s', p_partition_key, p_execution_id), 'outcome', v_row.outcome));
  end if;
  if v_row.eligibility = v_to and v_row.blocking_reason = v_by then
    return query select 'blocked', v_row.public_state::text, v_row.version, null::jsonb;
    return;
  end if;
  if v_row.eligibility not in ('eligible_now', 'blocked_by_budget', 'blocked_by_quota',
                               'blocked_by_route') then
    perform ff._refuse('WF205', 'not_eligible', jsonb_build_object(
      'id', format('{fp:%s}:%s', p_partition_key, p_execution_id), 'state', v_row.public_state,
      'blocking_reason', v_row.blocking_reason,
      'hint', 'only an execution that is eligible, or blocked by a budget, a quota or a missing '
      'worker, can be blocked'));
  end if;
  v_now := ff.now();
  v_now := greatest(v_now, v_row.transitioned_at);
  v_xid := pg_current_xact_id();
  v_generation := ff._enter_generation(p_partition_key);
  with blocked as (
    update ff.execution e set
      eligibility = v_to,
      line_id = null,
      blocking_reason = v_by,
      blocking_detail = p_detail,
      blocked_at = v_now,
      cause = 'block',
      version = e.version + v_event,
      transitioned_at = v_now,
      mutated_at = v_now
    where e.partition_key = p_partition_key and e.execution_id = p_execution_id
    returning e.version
  )
  insert into ff.event (
    partition_key, generation, xid, execution_id, version, kind, route_id, flow_id, namespace,
    instance_tag, occurred_at, actor, detail)
  select p_partition_key, v_generation, v_xid, p_execution_id, b.version, 'blocked', v_row.route_id,
         v_row.flow_id, v_row.namespace, v_row.instance_tag, v_now, p_actor,
         jsonb_strip_nulls(jsonb_build_object('blocking_reason', v_by, 'reason', p_detail))
  from blocked b
  where v_event = 1;
  return query
  select 'blocked', e.public_state::text, e.version, null::jsonb
  from ff.execution e
  where e.partition_key = p_partition_key and e.execution_id = p_execution_id;
end;
$$;
