-- Record that workers are alive; one call serves all workers of a process.
--
-- Returns the workers that are not registered; they must register again. A heartbeat writes no
-- event.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    the workers' rows in order of their names, skipping locked ones
-- Replay:   idempotent
-- Rights:   app
drop function if exists ff.heartbeat_workers;
create function ff.heartbeat_workers(p_namespaces text[], p_worker_instance_ids text[])
returns table (namespace text, worker_instance_id text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_now timestamptz;
begin
  if p_worker_instance_ids is null or cardinality(p_worker_instance_ids) not between 1 and 10000
     or exists (select from unnest(p_worker_instance_ids) u(name) where u.name is null) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'worker_instance_ids', 'problem', 'must be 1 to 10000 names'));
  end if;
  if p_namespaces is null or cardinality(p_namespaces) <> cardinality(p_worker_instance_ids)
     or exists (select from unnest(p_namespaces) u(name) where u.name is null) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'namespaces', 'problem', 'must be as many as there are workers, none of them null'));
  end if;
  perform ff._check_namespace(nullif(u.namespace, ''))
  from (select distinct x.namespace from unnest(p_namespaces) x(namespace)) u;
  v_now := ff.now();
  with beating as materialized (
    select w.namespace, w.worker_instance_id
    from (
      select distinct u.namespace, u.instance
      from unnest(p_namespaces, p_worker_instance_ids) u(namespace, instance)
      order by u.namespace, u.instance
    ) a
    cross join lateral (
      select x.namespace, x.worker_instance_id
      from ff.worker x
      where x.namespace = a.namespace and x.worker_instance_id = a.instance
        and x.heartbeat_at + x.liveness_ttl > v_now
      for no key update skip locked
    ) w
  )
  update ff.worker w
  set heartbeat_at = greatest(v_now, w.heartbeat_at)
  from beating b
  where w.namespace = b.namespace and w.worker_instance_id = b.worker_instance_id;

  return query
  select distinct u.namespace, u.instance
  from unnest(p_namespaces, p_worker_instance_ids) u(namespace, instance)
  where not exists (
    select from ff.worker w
    where w.namespace = u.namespace and w.worker_instance_id = u.instance
      and w.heartbeat_at + w.liveness_ttl > v_now);
end;
$$;
