-- Cancel an unfinished execution.
--
-- p_source says who cancels. If p_source is `operator_override`, no fence is needed. If p_source is
-- `lease_holder`, the caller must give the fence. For any other source, the caller must give the
-- fence if the execution is active. If the fence is wrong, the call returns an outcome and raises
-- no error, because an error would undo the mark of an expired lease.
--
-- If p_if_version is given and differs from the version of the execution, nothing happens, and the
-- outcome is `already_applied`. If the execution has ended, p_if_version is ignored.
--
-- Cancelling deletes grants, stops timers, and sends the holder's process a hint to stop. The end
-- is propagated as in ff.complete_executions.
--
-- Moves:    any unfinished state -> terminal cancelled (T23); an expired lease is marked (T19);
--           propagation: runnable blocked or suspended -> eligible (T4, T18), unfinished ->
--           terminal cancelled (T23) or skipped (T5); an overdue execution is settled as by
--           ff.expire_executions (T24)
-- Refuses:  WF001 invalid_input · WF204 already_terminal · WF301 not_found · as outcome: not_active
--           · lease_revoked · lease_expired · stale_lease
-- Locks:    the execution, waiting up to 2 s; then the executions that its end affects, skipping
--           locked ones
-- Repeat:   while the execution is cancelled: `cancelled`, and nothing changes. After a replay:
--           `already_applied` if p_if_version is given; otherwise the call can cancel the replayed
--           execution
-- Rights:   app
drop function if exists ff.cancel_execution;
create function ff.cancel_execution(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_id  uuid,
  p_reason        text default null,
  p_source        text default 'operator_override',
  p_actor         text default null,
  p_lease_id      uuid default null,
  p_epoch         bigint default null,
  p_attempt_id    uuid default null,
  p_if_version    integer default null
)
returns table (outcome text, public_state text, version integer, detail jsonb)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_row        ff.execution;
  v_now        timestamptz;
  v_verdict    ff.verdict;
  v_is_pending boolean;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_actor_and_reason(p_actor, p_reason);
  if p_source is null or p_source = '' or octet_length(p_source) > 256
     or p_source ~ E'[\x01-\x1f\x7f]' then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'source', 'problem', 'must be 1 to 256 bytes without control characters'));
  end if;
  v_row := ff._lock_execution(p_partition_key, p_namespace, p_execution_id);
  if v_row.phase = 'terminal' then
    if v_row.outcome <> 'cancelled' then
      perform ff._refuse('WF204', 'already_terminal', jsonb_build_object(
        'id', format('{fp:%s}:%s', p_partition_key, p_execution_id), 'outcome', v_row.outcome));
    end if;
    return query select 'cancelled', 'cancelled', v_row.version, null::jsonb;
    return;
  end if;
  if v_row.version <> p_if_version then
    return query select 'already_applied', v_row.public_state::text, v_row.version, null::jsonb;
    return;
  end if;
  if p_source = 'lease_holder' or (p_source <> 'operator_override' and v_row.phase = 'active') then
    if num_nulls(p_lease_id, p_epoch, p_attempt_id) > 0 then
      perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
        'field', 'fence',
        'problem', case num_nulls(p_lease_id, p_epoch, p_attempt_id)
                     when 3 then 'fence_required' else 'partial_fence_triple' end,
        'hint', 'give lease_id, epoch and attempt_id, or cancel as operator_override'));
    end if;
    v_verdict := (ff._enforce_leases(
      p_partition_key, p_namespace, 'cancel', array[p_execution_id], array[p_lease_id],
      array[p_epoch], array[p_attempt_id], false))[1];
    if v_verdict.word <> 'leased' then
      -- Read the row again: the lease may have been marked expired. If the holder of a cancelled
      -- lease calls again after a replay, it gets `cancelled` again.
      return query
      select case v_verdict.word when 'repeat' then 'cancelled' else v_verdict.word end,
             e.public_state::text, e.version, v_verdict.detail
      from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = p_execution_id;
      return;
    end if;
  end if;

  v_now := ff.now();
  v_is_pending := ff._end_executions(
    p_partition_key, array[p_execution_id], 'cancelled', 'cancel', 'cancelled', 'cancel',
    'ended_cancelled', v_now,
    p_reason => p_reason,
    p_cancelled_by => p_source,
    p_actor => p_actor,
    p_detail => jsonb_strip_nulls(jsonb_build_object('source', p_source, 'reason', p_reason)));
  if p_source = 'operator_override' then
    perform ff._write_execution_audit(
      p_partition_key, v_row, p_actor, 'cancel_execution', p_reason,
      jsonb_build_object('state', 'cancelled'));
  end if;
  return query
  select 'cancelled', 'cancelled', v_row.version + 1,
         case when v_is_pending then jsonb_build_object('wakes_pending', true) end;
end;
$$;
