-- Return how long an execution waits for its next attempt after an attempt timeout. Return null if
-- there is no retry.
drop function if exists ff._timeout_retry_delay;
create function ff._timeout_retry_delay(p_partition_key smallint, p_execution_id uuid)
returns interval
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_wait interval;
begin
  -- A policy may name the category or only the class.
  select coalesce(
           ff._retry_delay(b.policy, e.retry_count, 'timeout', 'attempt_timeout', random()),
           ff._retry_delay(b.policy, e.retry_count, 'timeout', null, random()))
    into v_wait
  from ff.execution e
  left join ff.execution_body b
    on b.partition_key = p_partition_key and b.execution_id = e.execution_id
  where e.partition_key = p_partition_key and e.execution_id = p_execution_id;
  return v_wait;
end;
$$;
