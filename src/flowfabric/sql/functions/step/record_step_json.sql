-- Record one completed step given as JSON, like record_steps: for drivers without arrays, and for a
-- step whose own writes are in the caller's transaction. Both are stored when it commits, or neither.
-- Call it last: from here to the end of the transaction the execution is locked.
--
-- The step is an object with execution_id, lease_id, epoch, attempt_id, name, occurrence, position,
-- is_sequential, follows, value_base64 and encoding. Returns {"database": …, "outcome": …} with
-- recorded_at, attempt_index, value_base64 and encoding (of a step that existed) and detail. p_database
-- is the intended database, as an earlier answer named it; a call without a step only returns the
-- name.
--
-- Moves:    as record_steps
-- Refuses:  WF001 invalid_input · as outcome: busy · not_found · not_active · lease_revoked
--           · lease_expired · stale_lease · invalid (field, problem)
-- Locks:    the execution, never waiting
-- Replay:   `exists`, with what the first call stored
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
  v_field    text;
  v_ids      uuid[];
  v_numbers  bigint[];
  v_is_row   boolean;
  v_value    bytea;
  v_answer   record;
begin
  perform ff._check_namespace(p_namespace);
  select format('%s/%s', to_hex(s.system_identifier), d.oid) into v_database
  from pg_control_system() s, pg_database d
  where d.datname = current_database();
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
          'this is %s, another database than that of the execution', current_database())));
  end if;
  begin
    foreach v_field in array array['execution_id', 'lease_id', 'attempt_id'] loop
      v_ids := v_ids || (p_step ->> v_field)::uuid;
    end loop;
    foreach v_field in array array['epoch', 'occurrence', 'position', 'follows'] loop
      v_numbers := v_numbers || (p_step ->> v_field)::bigint;
    end loop;
    v_field := 'occurrence';
    perform v_numbers[2]::integer;
    v_field := 'position';
    perform v_numbers[3]::integer;
    v_field := 'follows';
    perform v_numbers[4]::integer;
    v_field := 'is_sequential';
    v_is_row := (p_step ->> v_field)::boolean;
    v_field := 'value_base64';
    v_value := decode(p_step ->> v_field, 'base64');
  exception when data_exception then
    return jsonb_build_object(
      'database', v_database, 'outcome', 'invalid', 'detail', jsonb_build_object(
        'field', v_field, 'problem', 'has a value of another type'));
  end;

  select r.outcome, r.recorded_at, r.value, r.encoding, r.attempt_index, r.detail into v_answer
  from ff.record_steps(
    p_partition_key => p_partition_key,
    p_namespace => p_namespace,
    p_execution_ids => array[v_ids[1]],
    p_lease_ids => array[v_ids[2]],
    p_epochs => array[v_numbers[1]],
    p_attempt_ids => array[v_ids[3]],
    p_names => array[p_step ->> 'name'],
    p_occurrences => array[v_numbers[2]::integer],
    p_positions => array[v_numbers[3]::integer],
    p_sequentials => array[v_is_row],
    p_kinds => array['step'],
    p_values => array[v_value],
    p_encodings => array[p_step ->> 'encoding'],
    p_follows => array[v_numbers[4]::integer]) r;
  return jsonb_build_object(
    'database', v_database, 'outcome', v_answer.outcome, 'recorded_at', v_answer.recorded_at,
    'attempt_index', v_answer.attempt_index, 'encoding', v_answer.encoding,
    'value_base64', encode(v_answer.value, 'base64'), 'detail', v_answer.detail);
end;
$$;
