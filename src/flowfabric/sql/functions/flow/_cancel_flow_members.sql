-- Cancel members of a cancelled flow, with the flow's reason (T23). Returns whether propagation is
-- pending. The caller has locked the members.
drop function if exists ff._cancel_flow_members;
create function ff._cancel_flow_members(
  p_partition_key smallint,
  p_flow_id       uuid,
  p_execution_ids uuid[],
  p_now           timestamptz
)
returns boolean
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
  v_reason text;
  v_actor  text;
begin
  select f.cancel_reason, f.cancelled_by into v_reason, v_actor
  from ff.flow f
  where f.partition_key = p_partition_key and f.flow_id = p_flow_id;
  v_reason := coalesce(v_reason, 'flow_cancelled');
  return ff._end_executions(
    p_partition_key, p_execution_ids, 'cancelled', 'cancel', 'cancelled', 'cancel',
    'ended_cancelled', p_now,
    p_reason => v_reason,
    p_cancelled_by => 'flow_cascade',
    p_actor => v_actor,
    p_detail => jsonb_build_object('source', 'flow_cascade', 'reason', v_reason));
end;
$$;
