-- What cannot be stored, item by item: the field and what is wrong with it. Reads nothing, locks
-- nothing; the expensive checks run only for arrays that were given.
drop function if exists ff._judge_submits;
create function ff._judge_submits(
  p_namespace         text,
  p_execution_ids     uuid[],
  p_route_ids         bigint[],
  p_closed_routes     bigint[],
  p_payloads          bytea[],
  p_payload_encodings text[],
  p_delays            interval[],
  p_delayed_untils    timestamptz[],
  p_deadlines         interval[],
  p_deadline_ats      timestamptz[],
  p_policies          text[],
  p_max_reclaims      integer[],
  p_tags              text[],
  p_creators          text[],
  p_keys              text[],
  p_key_fingerprints  bytea[],
  p_key_scopes        text[],
  p_key_windows       interval[],
  p_parent_ids        uuid[],
  p_with_parents      boolean[],
  p_trace_contexts    text[],
  p_task_versions     text[]
)
returns ff.verdict[]
language plpgsql
stable
set plan_cache_mode = force_generic_plan
as $$
begin
  return coalesce((
    select array_agg(row(j.n, j.id, j.word, null, null, j.detail)::ff.verdict)
    from (
      select u.n, u.id,
             case when p.field is not null then 'invalid'
                  when r.route_id is null then 'unknown_route' else 'lane_closed' end as word,
             case when p.field is not null
                    then jsonb_build_object('field', p.field, 'problem', p.problem)
                  when r.route_id is null then jsonb_build_object('route_id', u.route_id)
                  else jsonb_build_object('field', 'lane', 'lane', r.lane, 'state', l.state) end
               as detail
      from unnest(p_execution_ids, p_route_ids, p_payloads, p_payload_encodings, p_delays,
                  p_delayed_untils, p_deadlines, p_deadline_ats, p_policies, p_max_reclaims, p_tags,
                  p_creators, p_keys, p_key_fingerprints, p_key_scopes, p_key_windows, p_parent_ids,
                  p_with_parents, p_trace_contexts, p_task_versions)
        with ordinality u(id, route_id, payload, encoding, delay, delayed_until, deadline,
                          deadline_at, policy, max_reclaims, tags, creator, key, fingerprint, scope,
                          wnd, parent_id, with_parent, trace_context, task_version, n)
      cross join lateral (
        select case
            when ff._is_nil_id(u.id) then array['execution_id', 'must be a uuid other than the nil uuid']
            when u.parent_id is not null and ff._is_nil_id(u.parent_id)
              then array['parent_id', 'must be a uuid other than the nil uuid']
            when octet_length(u.payload) > 1048576
              then array['payload', 'is larger than 1 MiB (1048576 bytes)']
            when octet_length(u.encoding) > 64
              then array['payload_encoding', 'must be at most 64 bytes']
            -- what is infinite or leaves the calendar would break every sum it gets into
            when u.delay not between interval '-36525 days' and interval '36525 days'
              then array['delay', 'must be at most a hundred years']
            when u.delayed_until >= timestamptz '9999-01-01 00:00:00+00'
              then array['delayed_until', 'must be before the year 9999']
            when u.deadline not between interval '-36525 days' and interval '36525 days'
              then array['deadline', 'must be at most a hundred years']
            when u.deadline_at < timestamptz '0001-01-02 00:00:00+00'
              or u.deadline_at >= timestamptz '9999-01-01 00:00:00+00'
              then array['deadline_at', 'must be between the years 1 and 9999']
            when u.max_reclaims not between 0 and 1000000
              then array['max_reclaims', 'must be from 0 to 1000000']
            when octet_length(u.creator) > 256
              then array['creator', 'must be at most 256 bytes']
            when p_policies is not null and ff._policy_problem(u.policy) is not null
              then array['policy', ff._policy_problem(u.policy)]
            when p_tags is not null and ff._tags_problem(u.tags) is not null
              then array['tags', ff._tags_problem(u.tags)]
            when u.key is not null and (u.key = '' or octet_length(u.key) > 512)
              then array['key', 'must be 1 to 512 bytes']
            when u.key is not null and u.fingerprint is null
              then array['key_fingerprint', 'is needed with a key']
            when u.key is not null and coalesce(u.scope, 'window') not in ('window', 'unfinished')
              then array['key_scope', 'must be window or unfinished']
            when u.key is not null
              and coalesce(u.wnd, interval '0') not between interval '0' and interval '10 years'
              then array['key_window', 'must be between nothing and ten years']
            when u.with_parent and u.parent_id is null
              then array['parent_id', 'is needed for a child that ends with its parent']
            when u.with_parent and u.parent_id = u.id
              then array['parent_id', 'must be another execution']
            when octet_length(u.trace_context) > 4096
              then array['trace_context', 'must be at most 4096 bytes']
            when u.task_version = '' or octet_length(u.task_version) > 256
              then array['task_version', 'must be 1 to 256 bytes']
          end as words) w
      cross join lateral (select w.words[1] as field, w.words[2] as problem) p
      left join ff.route r on r.route_id = u.route_id and r.namespace = p_namespace
        and p_closed_routes is not null
      left join ff.lane l on l.namespace = r.namespace and l.lane = r.lane
      where p.field is not null or u.route_id = any (p_closed_routes)
         or u.route_id is null
    ) j), '{}');
end;
$$;
