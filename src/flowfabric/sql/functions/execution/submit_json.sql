-- Store new executions given as JSON: the form of submit_executions for drivers that know no arrays,
-- and for calls that join a transaction of the caller's. Whatever is wrong with an item is answered,
-- not raised, so that this transaction can go on.
--
-- An item is an object with execution_id and route_id (from register_routes) and, if need be: payload
-- (any JSON) or payload_base64, payload_encoding, priority, delay_ms, delayed_until, deadline_ms,
-- deadline_at, policy, max_reclaims, tags, creator, key, key_fingerprint (hexadecimal; by default a
-- hash of task and payload), key_scope, key_window_ms, parent_id, with_parent, trace_context,
-- task_version. Answers {"database": …, "items": […]} with item, outcome, execution_id and detail for
-- each. p_database is the database the call is meant for, as an earlier answer named it; without
-- items it is only asked for.
--
-- Moves:    as submit_executions
-- Refuses:  WF001 invalid_input · per item: invalid (field, problem) · unknown_route · lane_closed
--           · key_reused · parent_ended · busy
-- Locks:    as submit_executions
-- Replay:   duplicate, with the id of the first
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
set search_path = ''
set lock_timeout = '2s'
set plan_cache_mode = force_generic_plan
set jit = off
as $$
declare
  v_database text;
  v_answers  jsonb;
  v_sound    integer[];
begin
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
  select format('%s/%s', to_hex(s.system_identifier), d.oid) into v_database
  from pg_control_system() s, pg_database d
  where d.datname = current_database();

  select jsonb_agg(jsonb_build_object(
           'item', j.n, 'outcome', 'invalid', 'execution_id', null,
           'detail', jsonb_build_object('field', j.words[1], 'problem', j.words[2])))
           filter (where j.words is not null),
         array_agg(j.n order by j.n) filter (where j.words is null)
    into v_answers, v_sound
  from (
    select i.n::integer as n,
           case when p_database <> v_database
                  then array['database', format('this is %s, another database than the one it was '
                                                'meant for', current_database())]
                else ff._item_problem(i.value) end as words
    from jsonb_array_elements(p_items) with ordinality i(value, n)) j;

  if v_sound is not null then
    -- in the order of the items; an array that no item needs is null
    with given as (
      select array_agg(i.id) as ids,
             array_agg(i.route_id) as route_ids,
             array_agg(i.payload) as payloads,
             case when count(i.priority) > 0 then array_agg(i.priority) end as priorities,
             case when count(i.encoding) > 0 then array_agg(i.encoding) end as encodings,
             case when count(i.delay) > 0 then array_agg(i.delay) end as delays,
             case when count(i.delayed_until) > 0 then array_agg(i.delayed_until) end as delayed_untils,
             case when count(i.deadline) > 0 then array_agg(i.deadline) end as deadlines,
             case when count(i.deadline_at) > 0 then array_agg(i.deadline_at) end as deadline_ats,
             case when count(i.policy) > 0 then array_agg(i.policy) end as policies,
             case when count(i.max_reclaims) > 0 then array_agg(i.max_reclaims) end as max_reclaims,
             case when count(i.tags) > 0 then array_agg(i.tags) end as tags,
             case when count(i.creator) > 0 then array_agg(i.creator) end as creators,
             case when count(i.key) > 0 then array_agg(i.key) end as keys,
             case when count(i.fingerprint) > 0 then array_agg(i.fingerprint) end as fingerprints,
             case when count(i.scope) > 0 then array_agg(i.scope) end as scopes,
             case when count(i.wnd) > 0 then array_agg(i.wnd) end as windows,
             case when count(i.parent_id) > 0 then array_agg(i.parent_id) end as parent_ids,
             case when count(i.with_parent) > 0 then array_agg(i.with_parent) end as with_parents,
             case when count(i.trace_context) > 0 then array_agg(i.trace_context) end as trace_contexts,
             case when count(i.task_version) > 0 then array_agg(i.task_version) end as task_versions
      from (
        select (i.v ->> 'execution_id')::uuid as id,
               (i.v ->> 'route_id')::bigint as route_id,
               b.payload,
               (i.v ->> 'priority')::integer as priority,
               i.v ->> 'payload_encoding' as encoding,
               interval '1 millisecond' * (i.v ->> 'delay_ms')::double precision as delay,
               (i.v ->> 'delayed_until')::timestamptz as delayed_until,
               interval '1 millisecond' * (i.v ->> 'deadline_ms')::double precision as deadline,
               (i.v ->> 'deadline_at')::timestamptz as deadline_at,
               i.v ->> 'policy' as policy,
               (i.v ->> 'max_reclaims')::integer as max_reclaims,
               i.v ->> 'tags' as tags,
               i.v ->> 'creator' as creator,
               i.v ->> 'key' as key,
               case when i.v ->> 'key' is not null then coalesce(
                 decode(i.v ->> 'key_fingerprint', 'hex'),
                 sha256(convert_to(coalesce((
                   select r.task from ff.route r where r.route_id = (i.v ->> 'route_id')::bigint),
                   ''), 'utf8') || '\x00'::bytea || coalesce(b.payload, ''))) end as fingerprint,
               i.v ->> 'key_scope' as scope,
               interval '1 millisecond' * (i.v ->> 'key_window_ms')::double precision as wnd,
               (i.v ->> 'parent_id')::uuid as parent_id,
               (i.v ->> 'with_parent')::boolean as with_parent,
               i.v ->> 'trace_context' as trace_context,
               i.v ->> 'task_version' as task_version
        from jsonb_array_elements(p_items) with ordinality i(v, n)
        cross join lateral (
          select coalesce(decode(i.v ->> 'payload_base64', 'base64'),
                          convert_to((i.v -> 'payload')::text, 'utf8')) as payload) b
        where i.n = any (v_sound)
        order by i.n) i
    ),
    told as (
      select s.item, s.outcome, s.execution_id, s.detail
      from given g
      cross join lateral ff.submit_executions(
        p_partition_key => p_partition_key,
        p_namespace => p_namespace,
        p_execution_ids => g.ids,
        p_route_ids => g.route_ids,
        p_payloads => g.payloads,
        p_priorities => g.priorities,
        p_payload_encodings => g.encodings,
        p_delays => g.delays,
        p_delayed_untils => g.delayed_untils,
        p_deadlines => g.deadlines,
        p_deadline_ats => g.deadline_ats,
        p_policies => g.policies,
        p_max_reclaims => g.max_reclaims,
        p_tags => g.tags,
        p_creators => g.creators,
        p_keys => g.keys,
        p_key_fingerprints => g.fingerprints,
        p_key_scopes => g.scopes,
        p_key_windows => g.windows,
        p_parent_ids => g.parent_ids,
        p_with_parents => g.with_parents,
        p_trace_contexts => g.trace_contexts,
        p_task_versions => g.task_versions) s
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
