-- Let go what is blocked for want of a capable worker, once there is one.
--
-- A worker that registers lets such executions go itself. What is left is done here: more of them than
-- one call takes, rows that were locked, and what was blocked although a worker could run it.
--
-- Moves:    runnable blocked by route -> runnable eligible (T7), without an event
-- Refuses:  WF001 invalid_input
-- Locks:    executions, skipping those that are locked
-- Replay:   nothing left to do the second time
-- Rights:   app
drop function if exists ff.unblock_executions;
create function ff.unblock_executions(p_partition_key smallint, p_limit integer default 500)
returns table (handled integer, due_in interval)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_now constant timestamptz := ff.now();
begin
  perform ff._check_limit(p_limit);
  handled := ff._unblock_covered_routes(p_partition_key, p_limit, v_now);
  return next;
end;
$$;
