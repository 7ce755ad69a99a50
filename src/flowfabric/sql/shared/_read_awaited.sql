-- Return the given executions that are awaited. An execution is awaited if another execution waits
-- for it, is a child bound to it, or is downstream of it. The end of an awaited execution must be
-- propagated.
drop function if exists ff._read_awaited;
create function ff._read_awaited(p_partition_key smallint, p_execution_ids uuid[])
returns uuid[]
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
begin
  return array(
    select u.id from unnest(p_execution_ids) u(id)
    cross join lateral (
      select e.is_awaited from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = u.id
      offset 0) x
    where x.is_awaited);
end;
$$;
