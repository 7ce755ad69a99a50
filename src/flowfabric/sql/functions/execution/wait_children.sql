-- Make a running execution wait for its dependencies. The lease holder calls this. After the wait,
-- the same attempt resumes.
--
-- The execution waits while one of its edge groups is undecided and has an unresolved edge. If
-- there is no such group, the execution becomes eligible immediately.
--
-- Moves:    active -> runnable blocked or eligible, attempt interrupted (T16); an expired lease is
--           marked as expired (T19); an overdue execution is settled as by ff.expire_executions
--           (T24, T23, T5, T4, T18)
-- Refuses:  as outcome: not_found · not_active · lease_revoked · lease_expired · stale_lease
--           · invalid
-- Locks:    the execution, waiting up to 2 s
-- Repeat:   with the lease that was given up, the answer is `waiting` again
-- Rights:   app
drop function if exists ff.wait_children;
create function ff.wait_children(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_id  uuid,
  p_lease_id      uuid,
  p_epoch         bigint,
  p_attempt_id    uuid
)
returns table (outcome text, detail jsonb)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_verdict ff.verdict;
  v_now     timestamptz;
  v_open    integer;
begin
  perform ff._check_namespace(p_namespace);
  v_verdict := (ff._enforce_leases(
    p_partition_key, p_namespace, 'wait_children', array[p_execution_id], array[p_lease_id], array[p_epoch],
    array[p_attempt_id], true))[1];
  if v_verdict.word <> 'leased' then
    return query
    select case v_verdict.word when 'repeat' then 'waiting' else v_verdict.word end,
           v_verdict.detail;
    return;
  end if;
  v_now := ff.now();
  select count(*) into v_open
  from ff.edge_group y
  join ff.edge g
    on g.partition_key = p_partition_key and g.downstream_id = y.downstream_id
      and g.group_no = y.group_no
  where y.partition_key = p_partition_key and y.downstream_id = p_execution_id
    and case when y.state = 'pending' and g.resolution = 'unsatisfied' then true else false end;
  if v_open > 0 then
    perform ff._interrupt_executions(
      p_partition_key, array[p_execution_id], 'wait_children', 'blocked_by_dependencies',
      'waiting_for_children', 'wait_children', 'waiting', 'waiting_children', v_now,
      p_detail => jsonb_build_object('open', v_open));
  else
    perform ff._interrupt_executions(
      p_partition_key, array[p_execution_id], 'wait_children', 'eligible_now',
      'waiting_for_worker', 'wait_children', 'waiting', 'waiting_children', v_now,
      p_detail => jsonb_build_object('open', 0));
  end if;
  return query select 'waiting', null::jsonb;
end;
$$;
