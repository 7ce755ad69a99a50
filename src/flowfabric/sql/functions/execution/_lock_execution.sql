-- Lock one execution and return its row. Waits up to 2 s for the lock. Refuses with not_found if
-- the execution does not exist in p_namespace. If p_namespace is null, the execution can be in any
-- namespace.
drop function if exists ff._lock_execution;
create function ff._lock_execution(
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
  v_row ff.execution;
begin
  select e.* into v_row
  from ff.execution e
  where e.partition_key = p_partition_key and e.execution_id = p_execution_id
    and case when p_namespace is null then true else e.namespace = p_namespace end
  for no key update;
  if not found then
    perform ff._refuse('WF301', 'not_found', jsonb_build_object(
      'id', format('{fp:%s}:%s', p_partition_key, p_execution_id)));
  end if;
  return v_row;
end;
$$;
