-- Create a waitpoint: an address with a token. The handler sends the token to somebody before it
-- waits for the answer. The lease holder calls this. Returns the token, which is not stored.
--
-- The caller makes the id. p_key is a name for the waitpoint. If a waitpoint with this id and this
-- key exists, the call returns its token and changes nothing. If a waitpoint with this id has
-- another key, the outcome is waitpoint_exists. If the execution has 1000 open waitpoints, every
-- call gets the outcome invalid, even a repeat.
--
-- Signals that are sent to the token are kept for the wait. If no wait for the waitpoint is opened
-- within p_expires_in, the waitpoint expires. If p_expires_in is null, the waitpoint does not
-- expire.
--
-- Moves:    only if the holder is late: its expired lease is marked (T19), or its overdue execution
--           is settled as by ff.expire_executions (T24, T23, T5, T4, T18)
-- Refuses:  WF001 invalid_input · WF246 no_signing_key · as outcome: not_found · not_active
--           · lease_revoked · lease_expired · stale_lease · waitpoint_exists · invalid
-- Locks:    the execution, waiting up to 2 s
-- Repeat:   the same token; `invalid` if the execution has 1000 open waitpoints
-- Rights:   app
drop function if exists ff.create_waitpoint;
create function ff.create_waitpoint(
  p_partition_key   smallint,
  p_namespace       text,
  p_execution_id    uuid,
  p_lease_id        uuid,
  p_epoch           bigint,
  p_attempt_id      uuid,
  p_waitpoint_id    uuid,
  p_key             text,
  p_expires_in      interval default null,
  p_step_name       text default null,
  p_step_occurrence integer default null
)
returns table (outcome text, token text, detail jsonb)
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
  v_kid     text;
  v_now     timestamptz;
  v_key     text;
begin
  perform ff._check_namespace(p_namespace);
  if ff._signal_name_problem(p_key) is not null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'key', 'problem', ff._signal_name_problem(p_key)));
  end if;
  if p_waitpoint_id is null or ff._is_nil_id(p_waitpoint_id) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'waitpoint_id', 'problem', 'must be an id that the caller has minted'));
  end if;
  if not ff._is_within(p_expires_in, interval '0', interval '36525 days') then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'expires_in',
      'problem', 'must be between 0 and a hundred years, in days or smaller units'));
  end if;
  v_verdict := (ff._enforce_leases(
    p_partition_key, p_namespace, null, array[p_execution_id], array[p_lease_id],
    array[p_epoch], array[p_attempt_id], true))[1];
  if v_verdict.word <> 'leased' then
    return query select v_verdict.word, null::text, v_verdict.detail;
    return;
  end if;
  if (select count(*) from ff.waitpoint w
      where w.partition_key = p_partition_key and w.execution_id = p_execution_id
        and w.closed_at is null) >= 1000 then
    return query select 'invalid', null::text, jsonb_build_object(
      'field', 'waitpoint_id',
      'problem', 'the execution has 1000 open waitpoints already, which is the limit');
    return;
  end if;
  v_now := ff.now();
  v_kid := ff._require_token_key();
  insert into ff.waitpoint (
    partition_key, execution_id, waitpoint_id, key, attempt_index, kid, created_at, expires_at,
    step_name, step_occurrence)
  values (
    p_partition_key, p_execution_id, p_waitpoint_id, p_key, v_verdict.attempt_index, v_kid,
    v_now, v_now + p_expires_in, p_step_name, p_step_occurrence)
  on conflict do nothing;
  select w.kid, w.key into v_kid, v_key from ff.waitpoint w
  where w.partition_key = p_partition_key and w.execution_id = p_execution_id
    and w.waitpoint_id = p_waitpoint_id;
  if v_key <> p_key then
    return query select 'waitpoint_exists', null::text, jsonb_build_object('key', v_key);
    return;
  end if;
  return query
  select 'created',
         ff._sign_waitpoint(v_kid, p_partition_key, p_execution_id, p_waitpoint_id), null::jsonb;
end;
$$;
