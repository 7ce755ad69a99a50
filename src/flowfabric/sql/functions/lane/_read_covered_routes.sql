-- Read the routes that a worker covers. ff.claim_executions explains the parameters. Returns arrays
-- with the id, the turn, the namespace, the lane and the task of each route, or nulls if the worker
-- covers none. The turn is 0 for routes of p_first_lane and 1 for other routes. If p_first_lane is
-- null, every turn is 0. `limited` lists the ids of the routes whose lane has a limit, and `gates`
-- lists the gates of these lanes in the same order.
drop function if exists ff._read_covered_routes;
create function ff._read_covered_routes(
  p_namespace     text,
  p_lanes         text[],
  p_tasks         text[],
  p_capabilities  text[],
  p_first_lane    text,
  p_code_versions text[],
  p_unserved      bigint[],
  p_finish_only   boolean,
  p_now           timestamptz,
  out route_ids   bigint[],
  out turns       smallint[],
  out namespaces  text[],
  out lanes       text[],
  out tasks       text[],
  out limited     bigint[],
  out gates       bigint[]
)
returns record
language plpgsql
as $$
#variable_conflict use_column
declare
  v_unserved bigint[];
  v_more     record;
begin
  if p_finish_only is true then
    null;
  elsif num_nulls(p_tasks, p_namespace) = 0 then
    -- The usual worker names its tasks, so the index of tasks finds its routes.
    select array_agg(r.route_id), array_agg(r.turn), array_agg(r.namespace), array_agg(r.lane),
           array_agg(r.task), array_agg(r.route_id) filter (where r.gate_id is not null),
           array_agg(r.gate_id) filter (where r.gate_id is not null)
      into route_ids, turns, namespaces, lanes, tasks, limited, gates
    from (
      select x.route_id, (x.lane <> coalesce(p_first_lane, x.lane))::integer::smallint as turn,
             x.namespace, x.lane, x.task, l.gate_id
      from ff.route x
      join ff.lane l on l.namespace = x.namespace and l.lane = x.lane
      where x.task = any (p_tasks) and x.namespace = p_namespace and x.code_version is null
        and (p_lanes is null or x.lane = any (p_lanes)) and x.capabilities <@ p_capabilities
        and (l.state in ('active', 'draining') or l.resumes_at <= p_now)
      order by x.route_id) r;
  else
    select array_agg(r.route_id), array_agg(r.turn), array_agg(r.namespace), array_agg(r.lane),
           array_agg(r.task), array_agg(r.route_id) filter (where r.gate_id is not null),
           array_agg(r.gate_id) filter (where r.gate_id is not null)
      into route_ids, turns, namespaces, lanes, tasks, limited, gates
    from (
      select x.route_id, (x.lane <> coalesce(p_first_lane, x.lane))::integer::smallint as turn,
             x.namespace, x.lane, x.task, l.gate_id
      from (
        select k.route_id, k.lane, k.namespace, k.capabilities, k.task
        from (select distinct u.task from unnest(p_tasks) u(task)) t
        cross join lateral (
          select y.route_id, y.lane, y.namespace, y.capabilities, y.task
          from ff.route y
          where p_namespace is null and y.task = t.task and y.code_version is null) k
        union all
        select y.route_id, y.lane, y.namespace, y.capabilities, y.task
        from ff.route y
        where p_tasks is null and y.namespace = p_namespace and y.code_version is null
        union all
        select y.route_id, y.lane, y.namespace, y.capabilities, y.task
        from ff.route y where num_nonnulls(p_tasks, p_namespace) = 0 and y.code_version is null
      ) x
      join ff.lane l on l.namespace = x.namespace and l.lane = x.lane
      where (p_lanes is null or x.lane = any (p_lanes)) and x.capabilities <@ p_capabilities
        and (l.state in ('active', 'draining') or l.resumes_at <= p_now)
      order by x.route_id) r;
  end if;
  if cardinality(p_unserved) > 0 then
    v_unserved := ff._read_unserved(p_unserved, p_now);
  end if;
  -- A worker without code versions skips this statement.
  if cardinality(p_code_versions) > 0 or cardinality(v_unserved) > 0 then
    select array_agg(r.route_id) as route_ids, array_agg(r.turn) as turns,
           array_agg(r.namespace) as namespaces, array_agg(r.lane) as lanes,
           array_agg(r.task) as tasks,
           array_agg(r.route_id) filter (where r.gate_id is not null) as limited,
           array_agg(r.gate_id) filter (where r.gate_id is not null) as gates
      into v_more
    from (
      select x.route_id, (x.lane <> coalesce(p_first_lane, x.lane))::integer::smallint as turn,
             x.namespace, x.lane, x.task, l.gate_id
      from (
        select k.route_id, k.lane, k.namespace, k.capabilities, k.task
        from (select distinct v.version, u.task from unnest(p_code_versions) v(version)
              cross join unnest(p_tasks) u(task)) t
        cross join lateral (
          select y.route_id, y.lane, y.namespace, y.capabilities, y.task
          from ff.route y
          where y.task = t.task and y.code_version = t.version and y.namespace = p_namespace
          union all
          select y.route_id, y.lane, y.namespace, y.capabilities, y.task
          from ff.route y
          where p_namespace is null and y.task = t.task and y.code_version = t.version) k
        union all
        select y.route_id, y.lane, y.namespace, y.capabilities, y.task
        from ff.route y
        where p_tasks is null and y.namespace = p_namespace
          and y.code_version = any (p_code_versions)
        union all
        select y.route_id, y.lane, y.namespace, y.capabilities, y.task
        from ff.route y
        where num_nonnulls(p_tasks, p_namespace) = 0 and y.code_version = any (p_code_versions)
        union all
        select k.route_id, k.lane, k.namespace, k.capabilities, k.task
        from unnest(v_unserved) u(id)
        cross join lateral (
          select y.route_id, y.lane, y.namespace, y.capabilities, y.task, y.code_version
          from ff.route y where y.route_id = u.id offset 0) k
        where (p_tasks is null or k.task = any (p_tasks))
          and (p_code_versions is null or k.code_version <> all (p_code_versions))
      ) x
      join ff.lane l on l.namespace = x.namespace and l.lane = x.lane
      where (p_lanes is null or x.lane = any (p_lanes))
        and (p_namespace is null or x.namespace = p_namespace)
        and x.capabilities <@ p_capabilities
        and (l.state in ('active', 'draining') or l.resumes_at <= p_now)
      order by x.route_id) r;
    route_ids := route_ids || v_more.route_ids;
    turns := turns || v_more.turns;
    namespaces := namespaces || v_more.namespaces;
    lanes := lanes || v_more.lanes;
    tasks := tasks || v_more.tasks;
    limited := limited || v_more.limited;
    gates := gates || v_more.gates;
  end if;
end;
$$;
