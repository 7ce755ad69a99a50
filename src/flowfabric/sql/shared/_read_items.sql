-- The items of submit_json as the arrays that a submit takes, in their order; an array that no item
-- needs is null. Their form is judged already. p_sound names those to read, from 1 on; null is all.
drop function if exists ff._read_items;
create function ff._read_items(
  p_items            jsonb,
  p_sound            integer[],
  out ids            uuid[],
  out route_ids      bigint[],
  out payloads       bytea[],
  out priorities     integer[],
  out encodings      text[],
  out delays         interval[],
  out delayed_untils timestamptz[],
  out deadlines      interval[],
  out deadline_ats   timestamptz[],
  out policies       text[],
  out max_reclaims   integer[],
  out tags           text[],
  out creators       text[],
  out keys           text[],
  out fingerprints   bytea[],
  out scopes         text[],
  out windows        interval[],
  out parent_ids     uuid[],
  out with_parents   boolean[],
  out trace_contexts text[],
  out task_versions  text[]
)
returns record
language plpgsql
stable
set plan_cache_mode = force_generic_plan
set jit = off
as $$
#variable_conflict use_column
begin
  select array_agg(i.id),
         array_agg(i.route_id),
         array_agg(i.payload),
         case when count(i.priority) > 0 then array_agg(i.priority) end,
         case when count(i.encoding) > 0 then array_agg(i.encoding) end,
         case when count(i.delay) > 0 then array_agg(i.delay) end,
         case when count(i.delayed_until) > 0 then array_agg(i.delayed_until) end,
         case when count(i.deadline) > 0 then array_agg(i.deadline) end,
         case when count(i.deadline_at) > 0 then array_agg(i.deadline_at) end,
         case when count(i.policy) > 0 then array_agg(i.policy) end,
         case when count(i.max_reclaims) > 0 then array_agg(i.max_reclaims) end,
         case when count(i.tags) > 0 then array_agg(i.tags) end,
         case when count(i.creator) > 0 then array_agg(i.creator) end,
         case when count(i.key) > 0 then array_agg(i.key) end,
         case when count(i.fingerprint) > 0 then array_agg(i.fingerprint) end,
         case when count(i.scope) > 0 then array_agg(i.scope) end,
         case when count(i.wnd) > 0 then array_agg(i.wnd) end,
         case when count(i.parent_id) > 0 then array_agg(i.parent_id) end,
         case when count(i.with_parent) > 0 then array_agg(i.with_parent) end,
         case when count(i.trace_context) > 0 then array_agg(i.trace_context) end,
         case when count(i.task_version) > 0 then array_agg(i.task_version) end
    into ids, route_ids, payloads, priorities, encodings, delays, delayed_untils, deadlines,
         deadline_ats, policies, max_reclaims, tags, creators, keys, fingerprints, scopes, windows,
         parent_ids, with_parents, trace_contexts, task_versions
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
               ''), 'utf8') || decode('00', 'hex') || coalesce(b.payload, ''))) end as fingerprint,
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
    where p_sound is null or i.n = any (p_sound)
    order by i.n) i;
end;
$$;
