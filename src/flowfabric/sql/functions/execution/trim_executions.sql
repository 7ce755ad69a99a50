-- Delete executions whose retention is over, with all their rows. This is a reconciler.
--
-- The retention comes from the policy of the execution, else from its lane, else it is 30 days.
-- Events stay for 24 hours after the end of their execution, and longer if a subscription needs
-- them.
--
-- A child stays while its parent is unfinished, because a later run of the parent would submit the
-- child again. Members of a flow stay until all members have ended. An execution stays until its
-- end is fully propagated. The edges and groups of a member are deleted with the member. A flow is
-- deleted with its last member.
--
-- An index finds executions whose policy sets a retention. A scan over the ids finds the others.
-- Each call scans at most 2 000 ids. The scan continues where the last call stopped, and only one
-- caller scans at a time. due_in is the time after which the next call is worthwhile; null at the
-- end of a scan.
--
-- Moves:    a terminal execution is deleted
-- Refuses:  WF001 invalid_input
-- Locks:    executions, the position of the scan, and flows, skipping locked ones; then the row of
--           the partition in ff.trim_mark, waiting up to 2 s
-- Repeat:   a second call does what p_limit or a lock has left undone
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
  perform ff._check_pass(p_limit);
  return query
  select t.handled, t.due_in
  from ff._trim_batch(p_partition_key, p_limit, interval '30 days', interval '24 hours') t;
end;
$$;
