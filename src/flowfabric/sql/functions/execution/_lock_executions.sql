-- Lock several executions, waiting up to 2 s for each, in ascending id order. Every function that
-- waits for more than one execution uses this order. Executions that do not exist, or are of
-- another namespace, are skipped.
drop function if exists ff._lock_executions;
create function ff._lock_executions(
  p_partition_key smallint, p_namespace text, p_execution_ids uuid[])
returns void
language plpgsql
set lock_timeout = '2s'
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
begin
  perform 1
  from (select distinct u.id from unnest(p_execution_ids) u(id) order by u.id offset 0) a
  cross join lateral (
    select e.execution_id from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id = a.id
      and case when p_namespace is null then true else e.namespace = p_namespace end
    for no key update
  ) l;
end;
$$;
