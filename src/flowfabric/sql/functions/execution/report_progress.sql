-- Report the progress of a running execution: a percentage, a message, or both. The lease holder
-- calls this. A null leaves the stored value unchanged.
--
-- Progress is not a transition: it writes no event and changes no indexed column.
--
-- Moves:    only if the holder is late: its expired lease is marked (T19), or its overdue execution
--           is settled as by ff.expire_executions (T24, T23, T5, T4, T18)
-- Refuses:  WF001 invalid_input · as outcome: not_found · not_active · lease_revoked
--           · lease_expired · stale_lease · invalid
-- Locks:    the execution, waiting up to 2 s
-- Repeat:   stores the same values again
-- Rights:   app
drop function if exists ff.report_progress;
create function ff.report_progress(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_id  uuid,
  p_lease_id      uuid,
  p_epoch         bigint,
  p_attempt_id    uuid,
  p_percent       integer default null,
  p_message       text default null
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
begin
  perform ff._check_namespace(p_namespace);
  if num_nonnulls(p_percent, p_message) = 0 then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'percent', 'problem', 'give a percentage, a message or both'));
  end if;
  if p_percent not between 0 and 100 then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'percent', 'problem', 'must be from 0 to 100'));
  end if;
  if octet_length(p_message) > 1024 then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'message', 'problem', 'must be at most 1024 bytes'));
  end if;
  v_verdict := (ff._enforce_leases(
    p_partition_key, p_namespace, null, array[p_execution_id], array[p_lease_id], array[p_epoch],
    array[p_attempt_id], true))[1];
  if v_verdict.word <> 'leased' then
    return query select v_verdict.word, v_verdict.detail;
    return;
  end if;
  v_now := ff.now();
  update ff.execution e set
    progress_percent = coalesce(p_percent, e.progress_percent),
    progress_message = coalesce(p_message, e.progress_message),
    progressed_at = greatest(v_now, e.mutated_at),
    mutated_at = greatest(v_now, e.mutated_at)
  where e.partition_key = p_partition_key and e.execution_id = p_execution_id;
  return query select 'reported', null::jsonb;
end;
$$;
