-- Make a running execution wait until p_k of the executions in p_targets have ended. If p_k is
-- null, the execution waits for all of them. The lease holder calls this. After the wait, the same
-- attempt resumes.
--
-- Every outcome counts as an end. Executions that ended before this call count, too. If enough
-- executions have ended, the waiting execution becomes eligible immediately. `open` is the number
-- of executions in p_targets that have not ended. Executions of another partition are not found.
--
-- The call locks the executions in p_targets, so a claim at the same moment skips them. The workers
-- of their routes therefore get a hint to claim again.
--
-- Moves:    active -> runnable blocked or eligible, attempt interrupted (T16); an expired lease is
--           marked as expired (T19); an overdue execution is settled as by ff.expire_executions
--           (T24, T23, T5, T4, T18)
-- Refuses:  WF001 invalid_input · as outcome: not_found (also if an execution to wait for does
--           not exist) · not_active · lease_revoked · lease_expired · stale_lease · invalid
-- Locks:    the execution and the executions it waits for, in id order, waiting up to 2 s for each
-- Repeat:   with the lease that was given up, the answer is `waiting` again
-- Rights:   app
drop function if exists ff.wait_for_runs;
create function ff.wait_for_runs(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_id  uuid,
  p_lease_id      uuid,
  p_epoch         bigint,
  p_attempt_id    uuid,
  p_targets       uuid[],
  p_k             integer default null
)
returns table (outcome text, open integer, detail jsonb)
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
  v_now     timestamptz;
  v_verdict ff.verdict;
  v_targets uuid[];
  v_missing uuid;
  v_open    uuid[];
  v_ready   bigint[];
  v_k       integer;
  v_left    integer;
begin
  perform ff._check_namespace(p_namespace);
  if cardinality(p_targets) is null or cardinality(p_targets) not between 1 and 1000
     or array_ndims(p_targets) > 1 or array_position(p_targets, null) is not null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'targets', 'problem', 'must be 1 to 1000 executions'));
  end if;
  if p_execution_id = any (p_targets) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'targets', 'problem', 'an execution cannot wait for itself'));
  end if;
  v_targets := array(select distinct u.id from unnest(p_targets) u(id) order by u.id);
  v_k := coalesce(p_k, cardinality(v_targets));
  if v_k not between 1 and cardinality(v_targets) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'k', 'problem', 'must be from 1 to the number of different executions'));
  end if;

  perform ff._lock_executions(
    p_partition_key, p_namespace, array_append(v_targets, p_execution_id));
  v_now := ff.now();
  select (array_agg(u.id order by u.id) filter (where e.execution_id is null))[1],
         array_agg(u.id order by u.id) filter (where e.phase <> 'terminal'),
         array_agg(distinct e.route_id)
           filter (where e.phase = 'runnable' and e.eligibility = 'eligible_now')
    into v_missing, v_open, v_ready
  from unnest(v_targets) u(id)
  left join lateral (
    select x.execution_id, x.phase, x.eligibility, x.route_id from ff.execution x
    where x.partition_key = p_partition_key and x.execution_id = u.id
      and case when p_namespace is null then true else x.namespace = p_namespace end
    offset 0) e on true;
  perform ff._hint_ready(p_partition_key, v_ready);

  v_verdict := (ff._enforce_leases(
    p_partition_key, p_namespace, 'wait_for_runs', array[p_execution_id], array[p_lease_id],
    array[p_epoch], array[p_attempt_id], false))[1];
  if v_verdict.word = 'repeat' then
    return query
    select 'waiting', (select count(*)::integer from ff.run_wait w
                       where w.partition_key = p_partition_key and w.waiter_id = p_execution_id
                         and w.ended_at is null), null::jsonb;
    return;
  elsif v_verdict.word <> 'leased' then
    return query select v_verdict.word, null::integer, v_verdict.detail;
    return;
  end if;

  if v_missing is not null then
    return query select 'not_found', null::integer, jsonb_build_object(
      'field', 'targets', 'id', format('{fp:%s}:%s', p_partition_key, v_missing));
    return;
  end if;

  v_left := v_k - (cardinality(v_targets) - coalesce(cardinality(v_open), 0));
  if v_left > 0 then
    update ff.execution e set is_awaited = true
    from (select p_partition_key as pk, u.id from unnest(v_open) u(id) offset 0) i
    where e.partition_key = i.pk and e.execution_id = i.id
      and case when e.is_awaited then false else true end;
    insert into ff.run_wait (partition_key, waiter_id, target_id, wait_no, ended_at)
    select p_partition_key, p_execution_id, u.id, w.wait_no + 1,
           case when u.id <> all (v_open) then v_now end
    from unnest(v_targets) u(id)
    cross join lateral (
      select x.wait_no from ff.execution x
      where x.partition_key = p_partition_key and x.execution_id = p_execution_id
      offset 0) w;
    perform ff._interrupt_executions(
      p_partition_key, array[p_execution_id], 'wait_for_runs', 'blocked_by_dependencies',
      'waiting_for_children', 'wait_for_runs', 'waiting', 'waiting_for_runs', v_now,
      p_detail => jsonb_build_object('open', cardinality(v_open), 'needed', v_left),
      p_wait_left => v_left);
  else
    perform ff._interrupt_executions(
      p_partition_key, array[p_execution_id], 'wait_for_runs', 'eligible_now',
      'waiting_for_worker', 'wait_for_runs', 'waiting', 'waiting_for_runs', v_now,
      p_detail => jsonb_build_object('open', coalesce(cardinality(v_open), 0), 'needed', 0));
  end if;
  return query select 'waiting', coalesce(cardinality(v_open), 0), null::jsonb;
end;
$$;
