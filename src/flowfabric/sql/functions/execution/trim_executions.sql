-- Delete executions whose retention is over, with all their rows. The reconciler calls this.
--
-- The policy of the execution sets the retention, else its lane, else it is 30 days; the caller
-- cannot change it. An index finds executions with a retention of their own. A scan over the ids
-- finds the others, 2 000 ids per call. The scan continues where the last call stopped, and only
-- one caller scans at a time. Ids start with their creation time. When the scan comes to ids that
-- are too young, it jumps to the ids that carry no time, and then starts again. due_in is how soon
-- the next call is worthwhile; null at the end of a scan.
--
-- Events stay for 24 hours after the end of their execution. A child stays while its parent is
-- unfinished, because a later run of the parent would submit it again. Members of a flow stay until
-- all members have ended; their edges and groups are deleted with them, and the flow with its last
-- member.
--
-- Moves:    a terminal execution is deleted
-- Refuses:  WF001 invalid_input
-- Locks:    executions and their flows, skipping locked ones; the position of the scan, if it is
--           free
-- Replay:   a second call finds nothing left to do
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
