-- Deliver one signal, given as JSON, in the caller's transaction. The signal is sent if and only if
-- the transaction commits. The call works like ff.deliver_signals with p_is_transactional true, and
-- locks no execution. Database drivers that cannot pass arrays can use this function, too.
--
-- The signal is an object with execution_id, signal_id, name, payload_base64, payload_encoding,
-- dedup_key, source_type, source_identity and schema_id. The answer is an object with database,
-- outcome, signal_id, effect and detail. p_database is the name of the intended database, from an
-- earlier answer; if this is another database, the outcome is `invalid`. A call without a signal
-- only returns the name of this database.
--
-- Moves:    nothing; ff.notice_signals wakes the execution after the commit
-- Refuses:  WF001 invalid_input · as outcome: busy · duplicate · not_found · not_signalable
--           · signal_limit_exceeded · payload_too_large · invalid (field, problem)
--           · schema_required (schema_id, document)
-- Locks:    as ff.deliver_signals with p_is_transactional true
-- Repeat:   `duplicate`, with the id of the stored signal
-- Rights:   app
drop function if exists ff.deliver_signal_json;
create function ff.deliver_signal_json(
  p_partition_key smallint,
  p_namespace     text,
  p_signal        jsonb,
  p_database      text default null
)
returns jsonb
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
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
  if p_signal is null then
    return jsonb_build_object('database', v_database);
  end if;
  if jsonb_typeof(p_signal) <> 'object' then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'signal', 'problem', 'must be an object'));
  end if;
  v_words := case
    when p_database <> v_database then array['database', format(
      'this is %s, not the database of the execution', current_database())]
    else ff._json_signal_problem(p_signal) end;
  if v_words is not null then
    return jsonb_build_object(
      'database', v_database, 'outcome', 'invalid', 'detail', jsonb_build_object(
        'field', v_words[1], 'problem', v_words[2]));
  end if;

  select r.outcome, r.signal_id, r.effect, r.detail into v_answer
  from ff.deliver_signals(
    p_partition_key => p_partition_key,
    p_namespace => p_namespace,
    p_execution_ids => array[(p_signal ->> 'execution_id')::uuid],
    p_signal_ids => array[(p_signal ->> 'signal_id')::uuid],
    p_names => array[p_signal ->> 'name'],
    p_payloads => array[decode(p_signal ->> 'payload_base64', 'base64')],
    p_payload_encodings => array[p_signal ->> 'payload_encoding'],
    p_dedup_keys => case when p_signal ->> 'dedup_key' is not null
                      then array[p_signal ->> 'dedup_key'] end,
    p_source_types => array[p_signal ->> 'source_type'],
    p_source_identities => array[p_signal ->> 'source_identity'],
    p_schema_ids => array[(p_signal ->> 'schema_id')::bigint],
    p_is_transactional => true) r;
  return jsonb_build_object(
    'database', v_database, 'outcome', v_answer.outcome, 'signal_id', v_answer.signal_id,
    'effect', v_answer.effect, 'detail', v_answer.detail);
end;
$$;
