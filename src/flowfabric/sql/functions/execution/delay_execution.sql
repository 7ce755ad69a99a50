-- Delay a running execution. The lease holder calls this. The same attempt resumes later.
--
-- Give p_delayed_until, or p_delay, which counts from now by the database's clock. If the instant
-- has passed, the execution becomes eligible immediately. The deadline of the execution does not
-- move.
--
-- A holder whose code is older than the journal gives p_newer_step instead: the name of a recorded
-- step that its code does not know. The execution is delayed by 1 to 10 seconds, so that a worker
-- with newer code can claim it. The answer is `no_newer_code`, and the holder keeps its lease, if
-- both of these are true. For at least 10 minutes, every lease of the execution has ended with such
-- a delay. And every other live worker that could take the execution has delayed it in this way
-- during that time.
--
-- Moves:    active -> runnable delayed or eligible, attempt interrupted (T15); an expired lease is
--           marked (T19); an overdue execution is settled as by ff.expire_executions (T24, T23, T5,
--           T4, T18)
-- Refuses:  WF001 invalid_input · as outcome: not_found · not_active · lease_revoked
--           · lease_expired · stale_lease · invalid
-- Locks:    the execution, waiting up to 2 s
-- Repeat:   with the lease that the first call ended, the first answer again
-- Rights:   app
drop function if exists ff.delay_execution;
create function ff.delay_execution(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_id  uuid,
  p_lease_id      uuid,
  p_epoch         bigint,
  p_attempt_id    uuid,
  p_delay         interval default null,
  p_delayed_until timestamptz default null,
  p_newer_step    text default null
)
returns table (outcome text, delayed_until timestamptz, detail jsonb)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_verdict ff.verdict;
  v_now     timestamptz;
  v_until   timestamptz;
  v_detail  jsonb := '{}';
begin
  perform ff._check_namespace(p_namespace);
  if num_nonnulls(p_delay, p_delayed_until, p_newer_step) <> 1 then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'delay', 'problem', 'give a delay, a time to wait until, or a step of newer code'));
  end if;
  if p_newer_step = '' or octet_length(p_newer_step) > 256 or p_newer_step ~ E'[\x01-\x1f\x7f]' then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'newer_step', 'problem', 'must be 1 to 256 bytes without control characters'));
  end if;
  if not ff._is_within(p_delay, interval '-36525 days', interval '36525 days') then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'delay', 'problem', 'must be at most a hundred years, in days or smaller units'));
  end if;
  if p_delayed_until >= timestamptz '9999-01-01 00:00:00+00' then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'delayed_until', 'problem', 'must be before the year 9999'));
  end if;
  v_verdict := (ff._enforce_leases(
    p_partition_key, p_namespace, 'delay', array[p_execution_id], array[p_lease_id], array[p_epoch],
    array[p_attempt_id], true))[1];
  if v_verdict.word <> 'leased' then
    return query
    select case v_verdict.word when 'repeat' then 'delayed' else v_verdict.word end,
           v_verdict.until_at, v_verdict.detail;
    return;
  end if;
  v_now := ff.now();
  if p_newer_step is not null then
    v_detail := ff._read_passed_on(p_partition_key, p_execution_id, v_now);
    if v_detail is null then
      return query select 'no_newer_code', null::timestamptz, null::jsonb;
      return;
    end if;
    v_detail := v_detail || jsonb_build_object('newer_step', p_newer_step);
    p_delay := greatest('1 s', least('10 s', (v_now - (v_detail ->> 'since')::timestamptz) / 4));
  end if;
  v_until := coalesce(p_delayed_until, v_now + p_delay);
  v_until := case when v_until > v_now then v_until end;
  if v_until is null then
    perform ff._interrupt_executions(
      p_partition_key, array[p_execution_id], 'delay', 'eligible_now', 'waiting_for_worker',
      'delay', 'delayed', 'worker_delay', v_now);
  else
    perform ff._interrupt_executions(
      p_partition_key, array[p_execution_id], 'delay', 'not_eligible_until_time',
      'waiting_for_delay', 'delay', 'delayed',
      case when p_newer_step is null then 'worker_delay' else 'older_code' end, v_now,
      p_until_at => v_until,
      p_detail => v_detail || jsonb_build_object('delayed_until', v_until));
  end if;
  return query select 'delayed', v_until, null::jsonb;
end;
$$;
