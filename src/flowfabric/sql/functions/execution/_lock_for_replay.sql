-- Lock an execution before a replay, waiting up to 2 s for each row. If the execution is an ended
-- member of a flow, the call first locks the flow, so that nobody cancels the flow meanwhile. Then
-- the call locks every member that the replay can reach, in id order.
--
-- The replay may reach more members by the time _reopen_edges runs. _reopen_edges locks these
-- members without waiting. If another transaction has locked one of them, the replay fails with
-- SQLSTATE 40001 and can be repeated.
drop function if exists ff._lock_for_replay;
create function ff._lock_for_replay(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_id  uuid
)
returns ff.execution
language plpgsql
set lock_timeout = '2s'
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
  v_flow_id uuid;
  v_row     ff.execution;
begin
  select e.flow_id into v_flow_id
  from ff.execution e
  where e.partition_key = p_partition_key and e.execution_id = p_execution_id
    and case when e.phase <> 'terminal' then false
             when p_namespace is null then true
             else e.namespace = p_namespace end;
  if v_flow_id is not null then
    perform 1 from ff.flow f
    where f.partition_key = p_partition_key and f.flow_id = v_flow_id
    for share;
    perform ff._lock_executions(
      p_partition_key, p_namespace, ff._read_reopened_members(p_partition_key, p_execution_id));
  end if;
  v_row := ff._lock_execution(p_partition_key, p_namespace, p_execution_id);
  if v_row.phase = 'terminal' and v_row.flow_id is distinct from v_flow_id then
    raise exception using errcode = '40001',
      message = 'the execution has ended or joined a flow meanwhile';
  end if;
  return v_row;
end;
$$;
