-- Judge the items of a submit. An item that must be refused gets a verdict: `invalid` (with the
-- field and the problem), `unknown_route` or `lane_closed`. The function reads no executions and
-- locks nothing.
--
-- p_closed_routes lists the routes that are unknown or whose lane is closed. The other arrays and
-- the options are the same as in submit_executions. An array of one value applies to all items.
drop function if exists ff._judge_submits;
create function ff._judge_submits(
  p_namespace         text,
  p_execution_ids     uuid[],
  p_route_ids         bigint[],
  p_closed_routes     bigint[],
  p_payloads          bytea[],
  p_payload_encodings text[],
  p_delays            interval[],
  p_options           jsonb[]
)
returns ff.verdict[]
language plpgsql
stable
set plan_cache_mode = force_generic_plan
as $$
declare
  v_route_id constant bigint := case when cardinality(p_route_ids) = 1 then p_route_ids[1] end;
  v_payload  constant bytea := case when cardinality(p_payloads) = 1 then p_payloads[1] end;
  v_encoding constant text := case when cardinality(p_payload_encodings) = 1
                                then p_payload_encodings[1] end;
  v_delay    constant interval := case when cardinality(p_delays) = 1 then p_delays[1] end;
  v_options  constant jsonb := case when cardinality(p_options) = 1 then p_options[1] end;
  v_problem  constant text[] := ff._options_problem(v_options);
begin
  return coalesce((
    select array_agg(row(j.n, j.id, j.word, null, null, j.detail)::ff.verdict)
    from (
      select u.n, u.id,
             case when p.field is not null then 'invalid'
                  when r.route_id is null then 'unknown_route' else 'lane_closed' end as word,
             case when p.field is not null
                    then jsonb_build_object('field', p.field, 'problem', p.problem)
                  when r.route_id is null then jsonb_build_object('route_id', i.route_id)
                  else jsonb_build_object('field', 'lane', 'lane', r.lane, 'state', l.state) end
               as detail
      from unnest(p_execution_ids, p_route_ids, p_payloads, p_payload_encodings, p_delays, p_options)
        with ordinality u(id, route_id, payload, encoding, delay, options, n)
      cross join lateral (
        select coalesce(u.route_id, v_route_id) as route_id,
               coalesce(u.payload, v_payload) as payload,
               coalesce(u.encoding, v_encoding) as encoding,
               coalesce(u.delay, v_delay) as delay,
               coalesce(u.options, v_options) as options,
               case when v_options is not null then v_problem
                    when u.options is not null then ff._options_problem(u.options) end as problem
        offset 0) i
      cross join lateral (
        select case
            when ff._is_nil_id(u.id)
              then array['execution_id', 'must be a uuid other than the nil uuid']
            when octet_length(i.payload) > 1048576
              then array['payload', 'is larger than 1 MiB (1048576 bytes)']
            when octet_length(i.encoding) > 64
              then array['payload_encoding', 'must be at most 64 bytes']
            -- Adding a duration to a time outside the calendar would fail later.
            when not ff._is_within(i.delay, interval '-36525 days', interval '36525 days')
              then array['delay', 'must be at most a hundred years, in days or smaller units']
            when i.problem is not null then i.problem
            when (i.options ->> 'with_parent')::boolean and (i.options ->> 'parent_id')::uuid = u.id
              then array['parent_id', 'must be another execution']
          end as words) w
      cross join lateral (select w.words[1] as field, w.words[2] as problem) p
      left join ff.route r on r.route_id = i.route_id and r.namespace = p_namespace
        and r.code_version is null and p_closed_routes is not null
      left join ff.lane l on l.namespace = r.namespace and l.lane = r.lane
      where p.field is not null or i.route_id = any (p_closed_routes) or i.route_id is null
    ) j), '{}');
end;
$$;
