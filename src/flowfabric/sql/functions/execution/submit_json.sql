-- Store new executions that are given as JSON. This works like ff.submit_executions, for drivers
-- without arrays and for calls that join the caller's transaction. Problems of an item are returned
-- and not raised, so that the caller's transaction can continue.
--
-- An item is an object with execution_id and route_id (from register_routes). Optional fields are
-- payload (any JSON) or payload_base64, payload_encoding, priority, delay_ms, and the options of
-- submit_executions. If an item has `key` but no `key_fingerprint`, its key_fingerprint is a hash
-- of its task and payload.
--
-- Returns {"database": …, "items": […]}. Each item of the answer has item (its number), outcome,
-- execution_id and detail. p_database is the name of the intended database, from an earlier answer;
-- in any other database, every item is refused as invalid. A call without items only returns the
-- name of this database.
--
-- Moves:    as submit_executions
-- Refuses:  WF001 invalid_input · per item: invalid (field, problem) · unknown_route · lane_closed
--           · key_reused · parent_ended · busy · unknown_gate (gate_ids)
--           · limit_reached (gate_id, quota, key)
-- Locks:    as submit_executions
-- Repeat:   `duplicate`, with the id of the first execution
-- Rights:   app
drop function if exists ff.submit_json;
create function ff.submit_json(
  p_partition_key smallint,
  p_namespace     text,
  p_items         jsonb,
  p_database      text default null
)
returns jsonb
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
set plan_cache_mode = force_generic_plan
set jit = off
as $$
declare
  v_database text;
  v_answers  jsonb;
  v_sound    integer[];
begin
  perform ff._check_namespace(p_namespace);
  if p_namespace is null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'namespace', 'problem', 'must not be null'));
  end if;
  if jsonb_typeof(p_items) is distinct from 'array' then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'items', 'problem', 'must be a list of objects'));
  end if;
  if jsonb_array_length(p_items) > 1000 then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'items', 'problem', 'must hold at most 1000 items'));
  end if;
  v_database := ff._identify_database();

  select jsonb_agg(jsonb_build_object(
           'item', j.n, 'outcome', 'invalid', 'execution_id', null,
           'detail', jsonb_build_object('field', j.words[1], 'problem', j.words[2])))
           filter (where j.words is not null),
         array_agg(j.n order by j.n) filter (where j.words is null)
    into v_answers, v_sound
  from (
    select i.n::integer as n,
           case when p_database <> v_database
                  then array['database', format('this is %s, not the intended database',
                                                current_database())]
                else ff._item_problem(i.value) end as words
    from jsonb_array_elements(p_items) with ordinality i(value, n)) j;

  if v_sound is not null then
    with told as (
      select s.item, s.outcome, s.execution_id, s.detail
      from ff._read_items(p_items, v_sound, '{}') g
      cross join lateral ff.submit_executions(
        p_partition_key => p_partition_key,
        p_namespace => p_namespace,
        p_execution_ids => g.ids,
        p_route_ids => g.route_ids,
        p_payloads => g.payloads,
        p_payload_encodings => g.encodings,
        p_priorities => g.priorities,
        p_delays => g.delays,
        p_options => g.options,
        p_hint => ff._sends_hints()) s
    )
    select coalesce(v_answers, '[]') || jsonb_agg(jsonb_build_object(
             'item', v_sound[u.k], 'outcome', coalesce(t.outcome, 'created'),
             'execution_id', coalesce(t.execution_id, (p_items -> (v_sound[u.k] - 1)
                                                       ->> 'execution_id')::uuid),
             'detail', t.detail))
      into v_answers
    from generate_subscripts(v_sound, 1) u(k)
    left join told t on t.item = u.k;
  end if;

  return jsonb_build_object('database', v_database, 'items', coalesce((
    select jsonb_agg(a.value order by (a.value ->> 'item')::integer)
    from jsonb_array_elements(v_answers) a(value)), '[]'));
end;
$$;
