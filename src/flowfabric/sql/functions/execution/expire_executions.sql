-- Expire executions at or past their deadline, and settle attempts at or past their timeout. In
-- both cases, a live lease ends.
--
-- A deadline ends an execution in any unfinished state. An attempt timeout is settled like a
-- failure of class timeout. If the stored policy allows no retry, the execution expires. If the
-- policy allows a retry, the execution is retried; but if its flow is cancelled, the execution is
-- cancelled instead. If both times have passed, the deadline counts.
--
-- If the holder of an overdue execution makes a call first, that call settles the execution in the
-- same way (_enforce_leases). So a late result never counts. due_in is the time until the next
-- timer of any execution is due.
--
-- Moves:    any unfinished state -> terminal expired (T24) · active -> runnable delayed (T24) ·
--           active -> terminal cancelled (T23); propagation: runnable blocked or suspended ->
--           eligible (T4, T18), unfinished -> terminal cancelled (T23) or skipped (T5)
-- Refuses:  WF001 invalid_input
-- Locks:    executions in due order, then the executions that their ends affect; skips locked ones
-- Repeat:   a second call does what p_limit or a lock has left undone
-- Rights:   app
drop function if exists ff.expire_executions;
create function ff.expire_executions(p_partition_key smallint, p_limit integer default 500)
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
  v_late  uuid[];
  v_count integer;
begin
  perform ff._check_pass(p_limit);
  select array_agg(d.execution_id) filter (where d.is_ended),
         array_agg(d.execution_id) filter (where not d.is_ended)
    into v_ended, v_late
  from (
    select e.execution_id, coalesce(e.deadline_at <= v_now, false) as is_ended
    from ff.execution e
    where e.partition_key = p_partition_key and e.due_at <= v_now
      and case when e.phase <> 'terminal'
                and (e.deadline_at <= v_now
                     or (e.ownership = 'leased' and e.attempt_deadline_at <= v_now))
            then true else false end
    order by e.due_at
    limit p_limit
    for no key update skip locked
  ) d;

  v_count := ff._settle_overdue_executions(p_partition_key, v_ended, v_late, v_now);
  return query
  select v_count,
         (select e.due_at - v_now from ff.execution e
          where e.partition_key = p_partition_key and e.due_at > v_now
          order by e.due_at limit 1);
end;
$$;
