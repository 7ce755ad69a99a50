-- Register routes and their lanes, so that submits can name them.
--
-- A route is a distinct combination of namespace, lane, task, capabilities and code version. Its id
-- is a 63-bit hash of these values, so a repeat changes nothing. Submits name a route without a
-- code version. If ff.record_steps gets a code version, it moves the execution to the route that
-- has this version and is otherwise the same.
--
-- Capabilities are text joined by commas. A malformed list is refused. It is not read as an empty
-- list, because an empty list means "any worker".
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF402 route_collision · per item: invalid (field, problem)
-- Locks:    a shared advisory lock for each task, so that ff.register_tasks cannot change the
--           limits of the task meanwhile; inserts with `on conflict do nothing`
-- Repeat:   the same item gives the same id
-- Rights:   app
drop function if exists ff.register_routes;
create function ff.register_routes(
  p_namespaces    text[],
  p_lanes         text[],
  p_tasks         text[],
  p_capabilities  text[],
  p_registered_by text default 'submit_executions',
  p_code_versions text[] default null
)
returns table (item integer, route_id bigint, outcome text, detail jsonb)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_now        constant timestamptz := ff.now();
  v_asked      record;
  v_tokens     text[];
  v_problem    text;
  v_field      text;
  v_id         bigint;
  v_known      record;
  v_is_limited boolean;
begin
  -- An item without a namespace is refused below.
  perform ff._check_namespace(u.namespace)
  from (select distinct x.namespace from unnest(p_namespaces) x(namespace)) u
  where u.namespace is not null;
  if p_registered_by is null or p_registered_by = '' or octet_length(p_registered_by) > 256
     or p_registered_by ~ E'[\x01-\x1f\x7f]' then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'registered_by', 'problem', 'must be 1 to 256 bytes without control characters'));
  end if;
  -- Lock the limits of the task against ff.register_tasks. Without the lock, a new route and a
  -- change of the limits at the same time might not see each other.
  perform pg_advisory_xact_lock_shared(u.number)
  from (select distinct ff._hash_limits(x.namespace, x.task) as number
        from unnest(p_namespaces, p_tasks) x(namespace, task)
        where x.namespace is not null and x.task is not null
        order by 1 offset 0) u;
  for v_asked in
    select u.namespace, u.lane, u.task, u.capabilities, u.code_version, u.n::integer as n
    from unnest(p_namespaces, p_lanes, p_tasks, p_capabilities, p_code_versions)
      with ordinality u(namespace, lane, task, capabilities, code_version, n)
    order by u.namespace, u.lane, u.task, u.capabilities, u.code_version
  loop
    v_tokens := case when coalesce(v_asked.capabilities, '') = '' then '{}'::text[]
                     else string_to_array(v_asked.capabilities, ',') end;
    v_tokens := array(select distinct t collate "C" from unnest(v_tokens) t order by 1);
    v_field := null;
    if v_asked.namespace is null or v_asked.namespace = ''
       or octet_length(v_asked.namespace) > 256 or v_asked.namespace ~ E'[\x01-\x20\x7f]' then
      v_field := 'namespace';
      v_problem := 'must be 1 to 256 bytes without whitespace or control characters';
    elsif v_asked.lane is null or v_asked.lane = '' then
      v_field := 'lane'; v_problem := 'must not be empty';
    elsif octet_length(v_asked.lane) > 64 then
      v_field := 'lane'; v_problem := format('is %s bytes long; at most 64 are allowed',
                                             octet_length(v_asked.lane));
    elsif v_asked.lane !~ '^[ -~]+$' then
      v_field := 'lane'; v_problem := 'must be printable ASCII';
    elsif v_asked.task is null or v_asked.task = '' or octet_length(v_asked.task) > 256
       or v_asked.task ~ E'[\x01-\x20\x7f]' then
      v_field := 'task';
      v_problem := 'must be 1 to 256 bytes without whitespace or control characters';
    elsif octet_length(v_asked.capabilities) > 4096 then
      v_field := 'capabilities'; v_problem := 'required:too_many_bytes';
    elsif cardinality(v_tokens) > 256 then
      v_field := 'capabilities'; v_problem := 'required:too_many_tokens';
    elsif exists (select from unnest(v_tokens) t where t = '') then
      v_field := 'capabilities'; v_problem := 'required:empty_token';
    elsif exists (select from unnest(v_tokens) t where t ~ E'[\x01-\x20\x7f]') then
      v_field := 'capabilities'; v_problem := 'required:control_or_whitespace';
    elsif not ff._is_code_version(v_asked.code_version) then
      v_field := 'code_version';
      v_problem := 'must be 1 to 64 bytes without whitespace or control characters';
    end if;

    item := v_asked.n;
    if v_field is not null then
      route_id := null;
      outcome := 'invalid';
      detail := jsonb_build_object('field', v_field, 'problem', v_problem);
      return next;
      continue;
    end if;

    v_id := ff._hash_route(v_asked.namespace, v_asked.lane, v_asked.task, v_tokens,
                           v_asked.code_version);
    insert into ff.lane (namespace, lane, registered_at, registered_by)
    values (v_asked.namespace, v_asked.lane, v_now, p_registered_by)
    on conflict do nothing;
    v_is_limited := v_asked.code_version is null and exists (
      select from ff.task t
      where t.namespace = v_asked.namespace and t.task = v_asked.task and t.limits <> '[]');
    insert into ff.route (
      route_id, namespace, lane, task, capabilities, code_version, is_limited, registered_at)
    values (v_id, v_asked.namespace, v_asked.lane, v_asked.task, v_tokens, v_asked.code_version,
            v_is_limited, v_now)
    on conflict do nothing;

    select r.namespace, r.lane, r.task, r.capabilities, r.code_version into v_known
    from ff.route r where r.route_id = v_id;
    if (v_known.namespace, v_known.lane, v_known.task, v_known.capabilities, v_known.code_version)
       is distinct from (v_asked.namespace, v_asked.lane, v_asked.task, v_tokens,
                         v_asked.code_version) then
      perform ff._refuse('WF402', 'route_collision', jsonb_build_object(
        'route_id', v_id, 'task', v_asked.task, 'taken_by', v_known.task,
        'hint', 'rename the task: two routes hash to the same id'));
    end if;
    route_id := v_id;
    outcome := 'registered';
    detail := null;
    return next;
  end loop;
end;
$$;
