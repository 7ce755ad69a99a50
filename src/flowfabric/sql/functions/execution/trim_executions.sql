-- Delete executions whose retention is over, and all they own: what reconcilers do.
--
-- How long is said by the execution's policy, else by its lane, else it is 30 days; the caller has no
-- say in it. Those with a say of their own are found by their time. The rest is found by a walk over
-- all ids, 2 000 a call, that goes on where the last one stopped; only one caller walks at a time. Ids
-- begin with the time they were made, so where they get too young to have ended long ago the walk jumps
-- to the first that is no time at all, and at the end it starts again. due_in is how soon another call
-- is worth it: null once the walk has been around. Events of an execution stay 24 hours after its end. A
-- child stays while its parent goes on: a later run of that would submit it again. A member of a flow
-- stays until all of them have ended; its edges and groups go with it, and the flow with the last one.
--
-- Moves:    a terminal execution is gone
-- Refuses:  WF001 invalid_input
-- Locks:    executions and their flows, skipping those that are locked; the position of the walk, if
--           it is free
-- Replay:   nothing left to do the second time
-- Rights:   app
drop function if exists ff.trim_executions;
create function ff.trim_executions(p_partition_key smallint, p_limit integer default 500)
returns table (handled integer, due_in interval)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
#variable_conflict use_column
begin
  perform ff._check_partition(p_partition_key);
  perform ff._check_limit(p_limit);
  return query
  select t.handled, t.due_in
  from ff._trim_batch(p_partition_key, p_limit, interval '30 days', interval '24 hours') t;
end;
$$;
