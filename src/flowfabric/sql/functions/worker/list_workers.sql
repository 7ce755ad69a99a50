-- List live workers in order of namespace and instance. If p_with_dead is true, also list dead
-- workers that ff.sweep_workers has not deleted yet.
--
-- If p_namespace is null, the workers of every namespace are listed. If p_namespace is empty, only
-- workers that serve all namespaces are listed. p_after_namespace and p_after_instance_id name the
-- last worker of the previous page.
--
-- A worker should send six heartbeats within its liveness_ttl. is_silent is true if the last
-- heartbeat is at least a third of the liveness_ttl ago.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.list_workers;
create function ff.list_workers(
  p_namespace          text default null,
  p_after_namespace    text default null,
  p_after_instance_id  text default null,
  p_limit              integer default 1000,
  p_with_dead          boolean default false
)
returns table (
  namespace          text,
  worker_instance_id text,
  worker_id          text,
  lanes              text[],
  tasks              text[],
  capabilities       text[],
  liveness_ttl       interval,
  registered_at      timestamptz,
  heartbeat_at       timestamptz,
  expires_at         timestamptz,
  is_alive           boolean,
  is_silent          boolean,
  code_version       text,
  reads              text[],
  finish_only        boolean,
  host               text,
  slots              integer,
  running            integer,
  loop_lag           interval,
  drain_asked_at     timestamptz
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_now timestamptz;
begin
  perform ff._check_namespace(nullif(p_namespace, ''));
  perform ff._check_limit(p_limit);
  if (p_after_namespace is null) <> (p_after_instance_id is null) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'after', 'problem', 'must name both the namespace and the instance, or neither'));
  end if;
  v_now := ff.now();
  return query
  select w.namespace, w.worker_instance_id, w.worker_id, w.lanes, w.tasks, w.capabilities,
         w.liveness_ttl, w.registered_at, w.heartbeat_at, w.heartbeat_at + w.liveness_ttl,
         w.heartbeat_at + w.liveness_ttl > v_now,
         w.heartbeat_at + w.liveness_ttl / 3 <= v_now, w.code_version, w.reads, w.finish_only,
         w.host, w.slots, w.running, w.loop_lag, w.drain_asked_at
  from ff.worker w
  where (p_namespace is null or w.namespace = p_namespace)
    and (p_with_dead or w.heartbeat_at + w.liveness_ttl > v_now)
    and (p_after_namespace is null
         or (w.namespace, w.worker_instance_id) > (p_after_namespace, p_after_instance_id))
  order by w.namespace, w.worker_instance_id
  limit p_limit;
end;
$$;
