-- Notice the signals in the inbox, and wake the executions that can continue now. A reconciler
-- calls this. Signals of executions that no longer exist are deleted.
--
-- due_in is the time after which to call again; null if the inbox is empty.
--
-- Moves:    suspended -> runnable eligible or delayed (T18)
-- Refuses:  WF001 invalid_input
-- Locks:    executions in id order, skipping locked ones
-- Repeat:   a second call does what p_limit or a lock has left undone
-- Rights:   app
drop function if exists ff.notice_signals;
create function ff.notice_signals(p_partition_key smallint, p_limit integer default 500)
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
  v_now    timestamptz := ff.now();
  v_asked  uuid[];
  v_locked uuid[];
  v_gone   uuid[];
begin
  perform ff._check_pass(p_limit);
  v_asked := array(
    select distinct b.execution_id
    from (
      select x.execution_id from ff.signal_inbox x
      where x.partition_key = p_partition_key
      order by x.execution_id
      limit p_limit) b
    order by b.execution_id);
  v_locked := array(
    select l.execution_id
    from unnest(v_asked) with ordinality a(id, n)
    cross join lateral (
      select e.execution_id from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = a.id
      for no key update skip locked
    ) l
    order by a.n);
  -- This must be a new statement: it sees the signals that another call noticed before this call
  -- had the locks.
  v_locked := array(
    select u.id from unnest(v_locked) with ordinality u(id, n)
    where exists (
      select from ff.signal_inbox b
      where b.partition_key = p_partition_key and b.execution_id = u.id offset 0)
    order by u.n);
  perform ff._notice_signals(p_partition_key, v_locked, v_now);
  perform ff._wake_ready_suspensions(p_partition_key, v_locked, v_now);

  -- The execution was trimmed while a sender stored the signal.
  v_gone := array(
    select a.id from unnest(v_asked) a(id)
    where a.id <> all (v_locked) and not exists (
      select from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = a.id offset 0));
  if cardinality(v_gone) > 0 then
    delete from ff.signal_inbox b
    where b.partition_key = p_partition_key and b.execution_id = any (v_gone);
    delete from ff.signal g
    where g.partition_key = p_partition_key and g.execution_id = any (v_gone);
  end if;
  handled := cardinality(v_locked) + cardinality(v_gone);
  due_in := case
    when not exists (
      select from ff.signal_inbox b where b.partition_key = p_partition_key)
      then null
    when handled > 0 then interval '0'
    else interval '100 milliseconds' end;
  return next;
end;
$$;
