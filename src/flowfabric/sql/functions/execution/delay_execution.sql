-- Delay a running execution for its lease holder; the same attempt resumes later.
--
-- Give an instant, or a delay from now by the database's clock. An instant in the past makes the
-- execution eligible at once. The deadline of the execution does not move.
--
-- Moves:    active -> runnable delayed or eligible, attempt interrupted (T15); an expired lease is
--           marked (T19); an overdue execution is settled as by ff.expire_executions (T24, T23, T5,
--           T4)
-- Refuses:  WF001 invalid_input · as outcome: not_found · not_active · lease_revoked · lease_expired
--           · stale_lease · invalid
-- Locks:    the execution, waiting up to 2 s
-- Replay:   the lease that was delayed gets its first answer again
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
  p_delayed_until timestamptz default null
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
begin
  perform ff._check_namespace(p_namespace);
  if num_nonnulls(p_delay, p_delayed_until) <> 1 then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'delay', 'problem', 'give either a delay or a time to wait until'));
  end if;
  if p_delay not between interval '-36525 days' and interval '36525 days' then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'delay', 'problem', 'must be at most a hundred years'));
  end if;
  if p_delayed_until >= timestamptz '9999-01-01 00:00:00+00' then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'delayed_until', 'problem', 'must be before the year 9999'));
  end if;
  v_verdict := (ff._judge_leases(
    p_partition_key, p_namespace, 'delay', array[p_execution_id], array[p_lease_id], array[p_epoch],
    array[p_attempt_id], true))[1];
  if v_verdict.word <> 'held' then
    return query
    select case v_verdict.word when 'repeat' then 'delayed' else v_verdict.word end,
           v_verdict.until_at, v_verdict.detail;
    return;
  end if;
  v_now := ff.now();
  v_until := coalesce(p_delayed_until, v_now + p_delay);
  v_until := case when v_until > v_now then v_until end;
  if v_until is null then
    perform ff._interrupt_executions(
      p_partition_key, array[p_execution_id], 'delay', 'eligible_now', 'waiting_for_worker',
      'delay', 'delayed', 'worker_delay', v_now);
  else
    perform ff._interrupt_executions(
      p_partition_key, array[p_execution_id], 'delay', 'not_eligible_until_time',
      'waiting_for_delay', 'delay', 'delayed', 'worker_delay', v_now,
      p_until_at => v_until,
      p_detail => jsonb_build_object('delayed_until', v_until));
  end if;
  return query select 'delayed', v_until, null::jsonb;
end;
$$;
