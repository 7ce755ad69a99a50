-- Hold a running execution until an operator decides what follows. The lease holder calls this. If
-- the operator calls ff.retry_execution, the same attempt resumes.
--
-- Moves:    active -> runnable blocked (blocked_by_operator), attempt interrupted (T30); an expired
--           lease is marked (T19); an overdue execution is settled as by ff.expire_executions (T24,
--           T23, T5, T4, T18)
-- Refuses:  WF001 invalid_input · as outcome: not_found · not_active · lease_revoked
--           · lease_expired · stale_lease · invalid
-- Locks:    the execution, waiting up to 2 s
-- Repeat:   with the lease that the first call ended, the answer is `held` again
-- Rights:   app
drop function if exists ff.hold_execution;
create function ff.hold_execution(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_id  uuid,
  p_lease_id      uuid,
  p_epoch         bigint,
  p_attempt_id    uuid,
  p_reason        text,
  p_step          text default null
)
returns table (outcome text, detail jsonb)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_verdict ff.verdict;
  v_now     timestamptz;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_actor_and_reason(null, p_reason);
  if p_reason is null or p_reason = '' then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'reason', 'problem', 'say why, in 1 to 256 bytes'));
  end if;
  if p_step = '' or octet_length(p_step) > 256 or p_step ~ E'[\x01-\x1f\x7f]' then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'step', 'problem', 'must be 1 to 256 bytes without control characters'));
  end if;
  v_verdict := (ff._enforce_leases(
    p_partition_key, p_namespace, 'hold', array[p_execution_id], array[p_lease_id], array[p_epoch],
    array[p_attempt_id], true))[1];
  if v_verdict.word <> 'leased' then
    return query
    select case v_verdict.word when 'repeat' then 'held' else v_verdict.word end, v_verdict.detail;
    return;
  end if;
  v_now := ff.now();
  perform ff._interrupt_executions(
    p_partition_key, array[p_execution_id], 'hold', 'blocked_by_operator', 'paused_by_policy',
    'hold', 'held', 'held', v_now,
    p_blocking_detail => concat_ws(': ', p_step, p_reason),
    p_detail => jsonb_strip_nulls(jsonb_build_object('step', p_step, 'reason', p_reason)));
  return query select 'held', null::jsonb;
end;
$$;
