-- Record one completed step, given as JSON. The call works like ff.record_steps.
--
-- This function is for database drivers that cannot pass arrays. It is also for transactional
-- steps: the record of the step and the writes of the step commit in one transaction. Call this
-- function at the end of the transaction, because it locks the execution until the transaction
-- ends.
--
-- The step is an object with execution_id, lease_id, epoch, attempt_id, name, occurrence, position,
-- is_sequential, follows, value_base64, encoding and code_version. The answer is an object with
-- database, outcome, recorded_at, attempt_index and detail. If the step existed, the answer also
-- has its value_base64 and encoding.
--
-- `database` identifies the database that has answered. p_database is the `database` of an earlier
-- answer. If the call reaches another database, the outcome is `invalid`. If p_step is null, the
-- answer has only `database`.
--
-- Moves:    as ff.record_steps
-- Refuses:  WF001 invalid_input · as outcome: busy · not_found · not_active · lease_revoked
--           · lease_expired · stale_lease · unknown_route (namespace, lane, task, capabilities)
--           · invalid (field, problem)
-- Locks:    the execution; `busy` if another transaction has locked it
-- Repeat:   `exists`, with what the first call stored, if the caller still has the lease
-- Rights:   app
drop function if exists ff.record_step_json;
create function ff.record_step_json(
  p_partition_key smallint,
  p_namespace     text,
  p_step          jsonb,
  p_database      text default null
)
returns jsonb
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set lock_timeout = '2s'
set plan_cache_mode = force_generic_plan
set jit = off
as $$
declare
  v_database text;
  v_words    text[];
  v_answer   record;
begin
  perform ff._check_namespace(p_namespace);
  v_database := ff._identify_database();
  if p_step is null then
    return jsonb_build_object('database', v_database);
  end if;
  if jsonb_typeof(p_step) <> 'object' then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'step', 'problem', 'must be an object'));
  end if;
  if p_database <> v_database then
    return jsonb_build_object(
      'database', v_database, 'outcome', 'invalid', 'detail', jsonb_build_object(
        'field', 'database', 'problem', format(
          'this is %s, not the database of the execution', current_database())));
  end if;
  v_words := ff._json_step_problem(p_step);
  if v_words is not null then
    return jsonb_build_object(
      'database', v_database, 'outcome', 'invalid', 'detail', jsonb_build_object(
        'field', v_words[1], 'problem', v_words[2]));
  end if;

  select r.outcome, r.recorded_at, r.value, r.encoding, r.attempt_index, r.detail into v_answer
  from ff.record_steps(
    p_partition_key => p_partition_key,
    p_namespace => p_namespace,
    p_execution_ids => array[(p_step ->> 'execution_id')::uuid],
    p_lease_ids => array[(p_step ->> 'lease_id')::uuid],
    p_epochs => array[(p_step ->> 'epoch')::bigint],
    p_attempt_ids => array[(p_step ->> 'attempt_id')::uuid],
    p_names => array[p_step ->> 'name'],
    p_occurrences => array[(p_step ->> 'occurrence')::integer],
    p_positions => array[(p_step ->> 'position')::integer],
    p_are_sequential => array[(p_step ->> 'is_sequential')::boolean],
    p_kinds => array['step'],
    p_values => array[decode(p_step ->> 'value_base64', 'base64')],
    p_encodings => array[p_step ->> 'encoding'],
    p_follows => array[(p_step ->> 'follows')::integer],
    p_code_versions => case when p_step ->> 'code_version' is not null
                         then array[p_step ->> 'code_version'] end) r;
  return jsonb_build_object(
    'database', v_database, 'outcome', v_answer.outcome, 'recorded_at', v_answer.recorded_at,
    'attempt_index', v_answer.attempt_index, 'encoding', v_answer.encoding,
    'value_base64', encode(v_answer.value, 'base64'), 'detail', v_answer.detail);
end;
$$;
