-- Wake each of the given executions if it is suspended and at least one of its waits has an answer
-- (T18). Return the ids of the woken executions. If a wait has only timed out, this call does not
-- wake the execution; ff.expire_suspensions applies the timeout. The caller has locked the
-- executions, and has noticed their signals in an earlier statement.
drop function if exists ff._wake_ready_suspensions;
create function ff._wake_ready_suspensions(
  p_partition_key smallint,
  p_execution_ids uuid[],
  p_now           timestamptz
)
returns uuid[]
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_row   record;
  v_ready jsonb;
  v_woken uuid[] := '{}';
begin
  for v_row in
    select s.execution_id, s.wait_names, s.wait_occurrences, s.resume_delay
    from ff.suspension s
    where s.partition_key = p_partition_key and s.execution_id = any (p_execution_ids)
      and s.closed_at is null
  loop
    -- With -infinity, a wait that has timed out does not wake the execution. The timeout behaviour
    -- of the suspension decides what happens.
    v_ready := ff._read_ready(
      p_partition_key, v_row.execution_id, v_row.wait_names, v_row.wait_occurrences, '-infinity');
    if v_ready is not null then
      perform ff._wake_suspended(
        p_partition_key, array[v_row.execution_id], 'wake', 'resumed', p_now, v_ready,
        v_row.resume_delay);
      v_woken := v_woken || v_row.execution_id;
    end if;
  end loop;
  return v_woken;
end;
$$;
