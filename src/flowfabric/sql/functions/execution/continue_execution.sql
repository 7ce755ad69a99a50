-- Begin the next generation of a running execution with a new payload. The lease holder calls this.
-- The execution and the attempt stay the same, and the journal is empty. The lease ends. Returns the
-- number of the new generation.
--
-- A later replay uses the new payload, too. The recorded steps are deleted. Retries,
-- reclaims and crashes are counted from 0 again, and the attempt timeout starts again. The deadline
-- of the execution does not move. Events, attempts and children stay.
--
-- Moves:    active -> runnable eligible, attempt interrupted (T31); an expired lease is marked
--           (T19); an overdue execution is settled as by ff.expire_executions (T24, T23, T5, T4,
--           T18)
-- Refuses:  WF001 invalid_input · as outcome: not_found · not_active · lease_revoked
--           · lease_expired · stale_lease · invalid
-- Locks:    the execution, waiting up to 2 s
-- Repeat:   `continued` again, with the generation that the execution has now; the lease must be
--           the one that the first call ended
-- Rights:   app
drop function if exists ff.continue_execution;
create function ff.continue_execution(
  p_partition_key    smallint,
  p_namespace        text,
  p_execution_id     uuid,
  p_lease_id         uuid,
  p_epoch            bigint,
  p_attempt_id       uuid,
  p_payload          bytea,
  p_payload_encoding text default null
)
returns table (outcome text, generation integer, detail jsonb)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_verdict    ff.verdict;
  v_now        timestamptz;
  v_detail     jsonb;
  v_generation integer;
begin
  perform ff._check_namespace(p_namespace);
  if octet_length(p_payload) > 1048576 then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'payload', 'problem', 'is larger than 1 MiB (1048576 bytes)'));
  end if;
  if octet_length(p_payload_encoding) > 64 then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'payload_encoding', 'problem', 'must be at most 64 bytes'));
  end if;
  v_verdict := (ff._enforce_leases(
    p_partition_key, p_namespace, 'continue', array[p_execution_id], array[p_lease_id],
    array[p_epoch], array[p_attempt_id], true))[1];
  if v_verdict.word = 'repeat' then
    return query
    select 'continued', b.generation, null::jsonb
    from ff.execution_body b
    where b.partition_key = p_partition_key and b.execution_id = p_execution_id;
    return;
  elsif v_verdict.word <> 'leased' then
    return query select v_verdict.word, null::integer, v_verdict.detail;
    return;
  end if;

  v_now := ff.now();
  v_detail := ff._delete_steps(p_partition_key, p_execution_id, null, null, true);
  -- Even a small payload is stored in the body, because a claim reads the generation there.
  insert into ff.execution_body as b (partition_key, execution_id, payload, generation)
  values (p_partition_key, p_execution_id, p_payload, 1)
  on conflict (partition_key, execution_id) do update
    set payload = excluded.payload, generation = b.generation + 1
  returning b.generation into v_generation;
  update ff.execution e set
    payload = null,
    payload_encoding = p_payload_encoding,
    has_payload = p_payload is not null,
    has_body = true,
    retry_count = 0,
    reclaim_count = 0,
    company_count = 0,
    crash_count = 0,
    lone_crash_count = 0,
    attempt_time_left = e.attempt_timeout,
    attempt_deadline_at = null
  where e.partition_key = p_partition_key and e.execution_id = p_execution_id;
  perform ff._interrupt_executions(
    p_partition_key, array[p_execution_id], 'continue', 'eligible_now', 'waiting_for_worker',
    'continue', 'continued', 'continued', v_now,
    p_detail => jsonb_build_object('generation', v_generation) || (v_detail - 'fresh'));
  return query select 'continued', v_generation, null::jsonb;
end;
$$;
