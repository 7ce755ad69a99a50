-- Unblock executions that were blocked because no capable worker was alive, if a capable worker is
-- alive now.
--
-- A worker unblocks these executions when it registers. This call finds the executions that the
-- worker left blocked, because they were locked or because there were too many. It also finds
-- executions that were blocked although a worker could run them.
--
-- Moves:    runnable blocked by route -> runnable eligible (T7), without an event
-- Refuses:  WF001 invalid_input
-- Locks:    executions, skipping locked ones
-- Repeat:   a second call does what p_limit or a lock has left undone
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
  perform ff._check_pass(p_limit);
  handled := ff._unblock_covered_routes(p_partition_key, p_limit, v_now);
  return next;
end;
$$;
