-- Cancel the members on the backlogs of cancelled flows. A reconciler calls this. Only backlogs
-- that are due are read. A new backlog is due when the p_grace of ff.cancel_flow_header is over.
--
-- Locked members stay on the backlog. If the cancel policy is cancel_pending, members with a live
-- lease are allowed to finish, and stay on the backlog, too. If no member could be removed, the
-- backlog is due again 15 seconds after this call. A backlog without a flow or without members is
-- deleted. due_in is the time until the next backlog is due.
--
-- Moves:    any unfinished state -> terminal cancelled (T23); propagation: runnable blocked or
--           suspended -> eligible (T4, T18), unfinished -> terminal cancelled (T23) or skipped (T5)
-- Refuses:  WF001 invalid_input
-- Locks:    at most 50 backlogs, earliest due first, then their members; locked rows are skipped
-- Repeat:   a second call does what p_limit or a lock has left undone
-- Rights:   app
drop function if exists ff.cancel_backlog;
create function ff.cancel_backlog(p_partition_key smallint, p_limit integer default 500)
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
  v_now     timestamptz := ff.now();
  v_backlog ff.cancel_backlog;
  v_done    record;
begin
  perform ff._check_pass(p_limit);
  handled := 0;
  for v_backlog in
    select b.* from ff.cancel_backlog b
    where b.partition_key = p_partition_key and b.due_at <= v_now
    order by b.due_at
    limit 50
    for update skip locked
  loop
    exit when handled >= p_limit;
    if not exists (
      select from ff.flow f
      where f.partition_key = p_partition_key and f.flow_id = v_backlog.flow_id) then
      delete from ff.cancel_backlog_member m
      where m.partition_key = p_partition_key and m.flow_id = v_backlog.flow_id;
      perform ff._delete_empty_backlog(p_partition_key, v_backlog.flow_id);
      handled := handled + 1;
      continue;
    end if;
    v_done := ff._cancel_backlog_members(p_partition_key, v_backlog, p_limit - handled, v_now);
    handled := handled + v_done.handled;
    if v_done.handled = 0 then
      update ff.cancel_backlog b set due_at = v_now + interval '15 seconds'
      where b.partition_key = p_partition_key and b.flow_id = v_backlog.flow_id;
    end if;
  end loop;
  due_in := (
    select greatest(b.due_at - v_now, interval '0') from ff.cancel_backlog b
    where b.partition_key = p_partition_key
    order by b.due_at limit 1);
  return next;
end;
$$;
