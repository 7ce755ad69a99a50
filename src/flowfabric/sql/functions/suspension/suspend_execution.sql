-- Suspend a running execution. The lease holder calls this. The suspension ends when one of its
-- waits has an answer, or when p_k of the executions in p_targets have ended (null means all of
-- them). The same attempt then continues. If neither happens before the timeout, p_on_timeout
-- applies.
--
-- The holder has opened the waits with ff.ask_waits. If the suspension would end immediately, the
-- answer is `already_satisfied`, and the holder keeps its lease. A suspension would end immediately
-- if enough executions have ended, if p_until_at has come, or if a wait has an answer or has timed
-- out.
--
-- The timeout of the suspension is the earliest of p_until_at and the timeouts of its waits.
-- p_on_timeout says what happens at the timeout: auto_resume (wake the execution), fail,
-- cancel, expire, or escalate (the execution stays suspended for an operator). If signals end the
-- suspension, the execution is delayed by p_resume_delay. ff.list_suspended shows p_continuation, a
-- text of at most 4096 bytes.
--
-- Moves:    active -> suspended, attempt interrupted (T17) · only if the caller is late: an overdue
--           execution is settled as by ff.expire_executions (T24, T23, T5, T4, T18); an expired
--           lease is marked as expired (T19)
-- Refuses:  WF001 invalid_input · as outcome: not_found (also if an execution in p_targets does not
--           exist) · not_active · lease_revoked · lease_expired · stale_lease · invalid (field,
--           problem)
-- Locks:    the execution and the executions in p_targets, in id order, waiting up to 2 s for each
-- Repeat:   `suspended` again, even after the execution was woken; after `already_satisfied`, the
--           call is judged again
-- Rights:   app
drop function if exists ff.suspend_execution;
create function ff.suspend_execution(
  p_partition_key    smallint,
  p_namespace        text,
  p_execution_id     uuid,
  p_lease_id         uuid,
  p_epoch            bigint,
  p_attempt_id       uuid,
  p_suspension_id    uuid,
  p_wait_names       text[] default '{}',
  p_wait_occurrences integer[] default '{}',
  p_targets          uuid[] default '{}',
  p_k                integer default null,
  p_until_at         timestamptz default null,
  p_reason_code      text default 'waiting_for_signal',
  p_on_timeout       text default 'auto_resume',
  p_resume_delay     interval default null,
  p_continuation     text default null
)
returns table (outcome text, timeout_at timestamptz, detail jsonb)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
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
  v_reason  constant ff.blocking_reason := case
    when p_reason_code in ('waiting_for_signal', 'waiting_for_approval', 'waiting_for_callback',
                           'waiting_for_tool_result', 'paused_by_policy')
      then p_reason_code::ff.blocking_reason
    when p_reason_code in ('waiting_for_operator_review', 'manual_pause')
      then 'paused_by_operator'::ff.blocking_reason
    when p_reason_code = 'paused_by_budget' then 'waiting_for_budget'::ff.blocking_reason
    when p_reason_code = 'step_boundary' then 'waiting_for_signal'::ff.blocking_reason end;
  v_targets uuid[];
  v_missing uuid;
  v_is_used boolean;
  v_open    uuid[];
  v_ready   bigint[];
  v_left    integer;
  v_timeout timestamptz;
  v_opened  integer;
  v_because jsonb;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_suspension(
    p_execution_id, p_suspension_id, p_wait_names, p_wait_occurrences, p_targets, p_k, p_until_at,
    v_reason, p_on_timeout, p_resume_delay, p_continuation);
  v_targets := array(select distinct u.id from unnest(p_targets) u(id) order by u.id);
  if cardinality(v_targets) > 0 then
    perform ff._lock_executions(
      p_partition_key, p_namespace, array_append(v_targets, p_execution_id));
  end if;
  v_verdict := (ff._enforce_leases(
    p_partition_key, p_namespace, 'suspend', array[p_execution_id], array[p_lease_id],
    array[p_epoch], array[p_attempt_id], cardinality(v_targets) = 0))[1];
  if v_verdict.word <> 'leased' then
    -- If the holder repeats the call with the lease that it gave up, it gets the same answer, even
    -- after the execution was woken.
    select s.timeout_at into v_timeout from ff.suspension s
    where s.partition_key = p_partition_key and s.execution_id = p_execution_id
      and case when s.lease_id = p_lease_id then true else false end
    order by s.suspended_at desc
    limit 1;
    if found and v_verdict.word <> 'not_found' then
      return query select 'suspended', v_timeout, null::jsonb;
    else
      return query select v_verdict.word, null::timestamptz, v_verdict.detail;
    end if;
    return;
  end if;
  v_now := ff.now();

  if cardinality(v_targets) > 0 then
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
    if v_missing is not null then
      return query select 'not_found', null::timestamptz, jsonb_build_object(
        'field', 'targets', 'id', format('{fp:%s}:%s', p_partition_key, v_missing));
      return;
    end if;
    v_left := coalesce(p_k, cardinality(v_targets))
      - (cardinality(v_targets) - coalesce(cardinality(v_open), 0));
  end if;

  perform ff._notice_signals(p_partition_key, array[p_execution_id], v_now);
  select least(p_until_at, min(s.until_at)), count(s.name) into v_timeout, v_opened
  from unnest(p_wait_names, p_wait_occurrences) u(name, occurrence)
  cross join lateral (
    select x.name, x.until_at from ff.step x
    where x.partition_key = p_partition_key and x.execution_id = p_execution_id
      and x.name = u.name and x.occurrence = u.occurrence
      and case when x.kind = 'wait' and x.opened_at is not null then true else false end
    offset 0) s;
  if v_opened < cardinality(p_wait_names) then
    return query select 'invalid', null::timestamptz, jsonb_build_object(
      'field', 'wait_names', 'problem', 'must be waits that ff.ask_waits has opened');
    return;
  end if;
  v_because := case
    when v_left <= 0 then '{"by": "runs"}'::jsonb
    when p_until_at <= v_now then '{"by": "timeout"}'
    else ff._read_ready(
      p_partition_key, p_execution_id, p_wait_names, p_wait_occurrences, v_now) end;
  if v_because is not null then
    return query select 'already_satisfied', null::timestamptz, v_because;
    return;
  end if;

  -- Look the id up first, because Citus reports a row as inserted even if `on conflict` skipped it.
  v_is_used := exists (
    select from ff.suspension s
    where s.partition_key = p_partition_key and s.suspension_id = p_suspension_id);
  if not v_is_used then
    insert into ff.suspension (
      partition_key, suspension_id, execution_id, attempt_index, lease_id, wait_names,
      wait_occurrences, reason_code, suspended_at, timeout_at, on_timeout, resume_delay,
      continuation)
    select p_partition_key, p_suspension_id, p_execution_id, v_verdict.attempt_index, p_lease_id,
           p_wait_names, p_wait_occurrences, p_reason_code, greatest(v_now, e.transitioned_at),
           v_timeout, p_on_timeout, p_resume_delay, p_continuation
    from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id = p_execution_id
    on conflict (partition_key, suspension_id) do nothing;
    v_is_used := not found;
  end if;
  if v_is_used then
    return query select 'invalid', null::timestamptz, jsonb_build_object(
      'field', 'suspension_id', 'problem', 'is in use: mint an id for each suspension');
    return;
  end if;
  if cardinality(v_open) > 0 then
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
  end if;
  perform ff._interrupt_executions(
    p_partition_key, array[p_execution_id], 'suspend', 'not_applicable', v_reason, 'suspend',
    'suspended', 'suspended', v_now,
    p_detail => jsonb_strip_nulls(jsonb_build_object(
      'suspension_id', p_suspension_id, 'reason', p_reason_code, 'timeout_at', v_timeout,
      'waits', nullif(cardinality(p_wait_names), 0), 'runs', nullif(cardinality(v_targets), 0))),
    p_wait_left => v_left,
    p_suspension_id => p_suspension_id);
  return query select 'suspended', v_timeout, null::jsonb;
end;
$$;
