-- Finish propagation that earlier calls could not finish, or that a dead process left behind.
--
-- For each ended execution with `wakes_pending`, the call wakes the executions that wait for it,
-- cancels the children bound to it, and resolves the edges out of it. due_in is the time after
-- which the next call is worthwhile; null means that nothing is left.
--
-- Moves:    runnable blocked -> runnable eligible (T4, quiet) · suspended -> runnable eligible
--           (T18) · unfinished -> terminal cancelled (T23) or skipped (T5)
-- Refuses:  WF001 invalid_input
-- Locks:    ended executions, then the executions that their ends affect, skipping locked ones
-- Repeat:   a second call does what p_limit or a lock has left undone
-- Rights:   app
drop function if exists ff.resolve_wakes;
create function ff.resolve_wakes(p_partition_key smallint, p_limit integer default 100)
returns table (handled integer, due_in interval)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_now   timestamptz := ff.now();
  v_ended uuid[];
  v_wakes record;
begin
  perform ff._check_pass(p_limit);
  handled := 0;
  v_ended := array(
    select e.execution_id
    from ff.execution e
    where e.partition_key = p_partition_key and e.wakes_pending
    order by e.execution_id
    limit p_limit
    for no key update skip locked);
  if cardinality(v_ended) > 0 then
    v_wakes := ff._propagate_end(p_partition_key, v_ended, v_now, p_limit);
    handled := v_wakes.handled;
  end if;
  due_in := case
    when not exists (
      select from ff.execution e where e.partition_key = p_partition_key and e.wakes_pending)
      then null
    when handled > 0 then interval '0'
    else interval '100 milliseconds' end;
  return next;
end;
$$;
