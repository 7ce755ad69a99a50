-- Record that workers are alive, how many handlers each runs, and how long its event loop took to
-- answer. One call is enough for all workers of a process.
--
-- Returns a row for each worker that must do something. The row says `register` if the worker is
-- not registered, or if it counts as dead because its last heartbeat is too old. The row says
-- `drain` if ff.drain_worker has asked the worker to drain. A heartbeat writes no event. If the row
-- of a worker is locked, the heartbeat of this worker is not recorded.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    the rows of the workers in order of namespace and instance, skipping locked ones
-- Repeat:   records the time and the numbers again, and gives the same answer
-- Rights:   app
drop function if exists ff.heartbeat_workers;
create function ff.heartbeat_workers(
  p_namespaces          text[],
  p_worker_instance_ids text[],
  p_running             integer[] default null,
  p_loop_lags           interval[] default null
)
returns table (namespace text, worker_instance_id text, asked text)
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
  if cardinality(p_running) <> cardinality(p_worker_instance_ids)
     or exists (select from unnest(p_running) u(x) where u.x not between 0 and 1000000) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'running', 'problem', 'must be a number from 0 to 1000000 for each worker, or null'));
  end if;
  if cardinality(p_loop_lags) <> cardinality(p_worker_instance_ids)
     or exists (select from unnest(p_loop_lags) u(x)
                where not ff._is_within(u.x, interval '0', interval '7 days')) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'loop_lags', 'problem', 'must be 0 to seven days for each worker, or null'));
  end if;
  perform ff._check_namespace(nullif(u.namespace, ''))
  from (select distinct x.namespace from unnest(p_namespaces) x(namespace)) u;
  v_now := ff.now();
  with beating as materialized (
    select w.namespace, w.worker_instance_id, a.running, a.loop_lag
    from (
      select u.namespace, u.instance, max(u.running) as running, max(u.loop_lag) as loop_lag
      from unnest(p_namespaces, p_worker_instance_ids, p_running, p_loop_lags)
        u(namespace, instance, running, loop_lag)
      group by u.namespace, u.instance
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
  set heartbeat_at = greatest(v_now, w.heartbeat_at),
      running = coalesce(b.running, w.running),
      loop_lag = b.loop_lag
  from beating b
  where w.namespace = b.namespace and w.worker_instance_id = b.worker_instance_id;

  return query
  select u.namespace, u.instance,
         case when w.worker_instance_id is null then 'register' else 'drain' end
  from (
    select distinct x.namespace, x.instance
    from unnest(p_namespaces, p_worker_instance_ids) x(namespace, instance)
  ) u
  left join ff.worker w
    on w.namespace = u.namespace and w.worker_instance_id = u.instance
    and w.heartbeat_at + w.liveness_ttl > v_now
  where w.worker_instance_id is null or w.drain_asked_at is not null;
end;
$$;
