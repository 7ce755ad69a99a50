-- List the routes that workers should take over from other code versions. p_worker_instance_ids
-- names the workers.
--
-- A worker should take over a route if all of this is true: the route has unfinished executions,
-- the worker covers the route, and the route's code version has been unserved for the worker's
-- version_grace. A version is unserved on a route while no live worker both covers the route and
-- serves the version. A new route is not listed before version_grace has passed since its
-- registration.
--
-- A worker that is not registered gets no rows. Any other worker gets at most 1 000 routes.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.list_unserved_routes;
create function ff.list_unserved_routes(
  p_partition_key       smallint,
  p_namespace           text,
  p_worker_instance_ids text[]
)
returns table (worker_instance_id text, route_id bigint)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_now    constant timestamptz := ff.now();
  v_routes bigint[];
begin
  perform ff._check_namespace(p_namespace);
  if p_worker_instance_ids is null or cardinality(p_worker_instance_ids) > 10000 then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'worker_instance_ids', 'problem', 'must be at most 10000 names'));
  end if;
  v_routes := ff._read_versioned_routes(p_partition_key, p_namespace);
  if v_routes = '{}' then
    return;
  end if;
  return query
  select w.worker_instance_id, k.route_id
  from (select distinct u.name from unnest(p_worker_instance_ids) u(name)) i
  cross join lateral (
    select x.* from ff.worker x
    where x.namespace = coalesce(p_namespace, '') and x.worker_instance_id = i.name
    offset 0) w
  cross join lateral (
    select r.route_id
    from unnest(v_routes) v(id)
    cross join lateral (select y.* from ff.route y where y.route_id = v.id offset 0) r
    where w.namespace in ('', r.namespace) and (w.lanes is null or r.lane = any (w.lanes))
      and (w.tasks is null or r.task = any (w.tasks)) and r.capabilities <@ w.capabilities
      and r.code_version is distinct from w.code_version and r.code_version <> all (w.reads)
      and r.registered_at + w.version_grace <= v_now
      and not exists (
        select from ff.worker x
        where r.code_version = any (x.code_version || x.reads)
          and greatest(x.liveness_ttl, w.version_grace) + x.heartbeat_at > v_now
          and x.namespace in ('', r.namespace) and (x.lanes is null or r.lane = any (x.lanes))
          and (x.tasks is null or r.task = any (x.tasks)) and r.capabilities <@ x.capabilities
        offset 0)
      and not exists (
        select from ff.worker_event g
        where g.code_versions is not null and g.heartbeat_at > v_now - w.version_grace
          and r.code_version = any (g.code_versions) and g.namespace in ('', r.namespace)
        offset 0)
    limit 1000) k;
end;
$$;
