-- Read the items of submit_json or the nodes of submit_flow as the arrays and options that a submit
-- takes, in the same order. An array that no item needs is null. If an item has a key but no
-- key_fingerprint, its key_fingerprint is a digest of its task and payload.
--
-- p_sound lists the items to read, counted from 1; null means all. A field that has no array of its
-- own becomes an option, unless p_ignored lists it. The caller has checked the form of the items.
drop function if exists ff._read_items;
create function ff._read_items(
  p_items        jsonb,
  p_sound        integer[],
  p_ignored      text[],
  out ids        uuid[],
  out route_ids  bigint[],
  out payloads   bytea[],
  out encodings  text[],
  out priorities integer[],
  out delays     interval[],
  out options    jsonb[]
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
         case when count(i.encoding) > 0 then array_agg(i.encoding) end,
         case when count(i.priority) > 0 then array_agg(i.priority) end,
         case when count(i.delay) > 0 then array_agg(i.delay) end,
         case when count(i.options) > 0 then array_agg(i.options) end
    into ids, route_ids, payloads, encodings, priorities, delays, options
  from (
    select (i.v ->> 'execution_id')::uuid as id,
           (i.v ->> 'route_id')::bigint as route_id,
           b.payload,
           i.v ->> 'payload_encoding' as encoding,
           (i.v ->> 'priority')::integer as priority,
           interval '1 millisecond' * (i.v ->> 'delay_ms')::double precision as delay,
           nullif(o.options, '{}') || case
             when o.options ->> 'key' is not null and o.options ->> 'key_fingerprint' is null
             then jsonb_build_object('key_fingerprint', encode(sha256(
               convert_to(coalesce((
                 select r.task from ff.route r where r.route_id = (i.v ->> 'route_id')::bigint),
                 ''), 'utf8') || decode('00', 'hex') || coalesce(b.payload, '')), 'hex'))
             else '{}' end as options
    from jsonb_array_elements(p_items) with ordinality i(v, n)
    cross join lateral (
      select i.v - array['execution_id', 'route_id', 'payload', 'payload_base64',
                         'payload_encoding', 'priority', 'delay_ms'] - p_ignored as options) o
    cross join lateral (
      select coalesce(decode(i.v ->> 'payload_base64', 'base64'),
                      convert_to((i.v -> 'payload')::text, 'utf8')) as payload) b
    where p_sound is null or i.n = any (p_sound)
    order by i.n) i;
end;
$$;
