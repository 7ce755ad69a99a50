-- Apply the due timeouts of suspensions. A reconciler calls this. due_in is the time until the next
-- timeout.
--
-- The timeout behaviour of each suspension decides what happens. auto_resume wakes the execution;
-- its handler then finds that its wait has timed out. fail, cancel and expire end the execution.
-- escalate leaves the execution suspended, without a timeout, for an operator. If signals satisfy a
-- wait of the suspension before this call applies the timeout, the signals wake the execution, and
-- the timeout is not applied.
--
-- Moves:    suspended -> runnable eligible (T26) · suspended -> runnable eligible or delayed (T18)
--           · suspended -> terminal failed, cancelled or expired (T25) · suspended -> suspended,
--           paused by operator (T27) · where an end propagates: runnable blocked or suspended ->
--           runnable eligible (T4, T18), unfinished -> terminal cancelled (T23) or skipped (T5)
-- Refuses:  WF001 invalid_input
-- Locks:    executions in the order of their timeouts, skipping locked ones
-- Repeat:   a second call does what p_limit or a lock has left undone
-- Rights:   app
drop function if exists ff.expire_suspensions;
create function ff.expire_suspensions(p_partition_key smallint, p_limit integer default 500)
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
  v_now        timestamptz := ff.now();
  v_asked      uuid[];
  v_locked     uuid[];
  v_on_timeout text;
  v_ids        uuid[];
begin
  perform ff._check_pass(p_limit);
  v_asked := array(
    select s.execution_id from ff.suspension s
    where s.partition_key = p_partition_key and s.closed_at is null and s.timeout_at <= v_now
    order by s.timeout_at
    limit p_limit);
  v_locked := array(
    select l.execution_id
    from unnest(v_asked) with ordinality a(id, n)
    cross join lateral (
      select e.execution_id from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = a.id
        and case when e.phase = 'suspended' then true else false end
      for no key update skip locked
    ) l
    order by a.n);
  perform ff._notice_signals(p_partition_key, v_locked, v_now);
  perform ff._wake_ready_suspensions(p_partition_key, v_locked, v_now);
  -- Check the suspensions again before each timeout behaviour: the end of one execution may have
  -- woken or ended another.
  foreach v_on_timeout in array array['auto_resume', 'escalate', 'fail', 'cancel', 'expire'] loop
    exit when cardinality(v_locked) = 0;
    v_ids := array(
      select s.execution_id from ff.suspension s
      where s.partition_key = p_partition_key and s.execution_id = any (v_locked)
        and s.closed_at is null and s.timeout_at <= v_now
        and case when s.on_timeout = v_on_timeout then true else false end
      order by s.timeout_at);
    continue when cardinality(v_ids) = 0;
    if v_on_timeout = 'auto_resume' then
      perform ff._wake_suspended(
        p_partition_key, v_ids, 'time_out_suspension', 'timed_out_auto_resume', v_now,
        '{"by": "timeout"}');
    elsif v_on_timeout = 'escalate' then
      perform ff._escalate_suspensions(p_partition_key, v_ids, v_now);
    elsif v_on_timeout = 'fail' then
      perform ff._end_executions(
        p_partition_key, v_ids, 'failed', 'time_out_suspension', 'failed', 'expire',
        'ended_failure', v_now, p_class => 'timeout', p_category => 'suspension_timeout',
        p_reason => 'suspension_timeout:fail',
        p_detail => '{"category": "suspension_timeout", "on_timeout": "fail"}');
    elsif v_on_timeout = 'cancel' then
      perform ff._end_executions(
        p_partition_key, v_ids, 'cancelled', 'time_out_suspension', 'cancelled', 'expire',
        'ended_cancelled', v_now, p_class => 'cancelled', p_category => 'suspension_timeout',
        p_reason => 'suspension_timeout:cancel',
        p_cancelled_by => 'suspension_timeout',
        p_detail => '{"category": "suspension_timeout", "on_timeout": "cancel"}');
    elsif v_on_timeout = 'expire' then
      perform ff._end_executions(
        p_partition_key, v_ids, 'expired', 'time_out_suspension', 'expired', 'expire',
        'ended_failure', v_now, p_class => 'timeout', p_category => 'suspension_timeout',
        p_reason => 'suspension_timeout:expire',
        p_detail => '{"category": "suspension_timeout", "on_timeout": "expire"}');
    end if;
  end loop;
  return query
  select cardinality(v_locked),
         (select s.timeout_at - v_now from ff.suspension s
          where s.partition_key = p_partition_key and s.closed_at is null
            and s.timeout_at > v_now
          order by s.timeout_at limit 1);
end;
$$;
