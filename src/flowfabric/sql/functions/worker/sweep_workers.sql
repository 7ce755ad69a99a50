-- Delete workers whose last heartbeat is at least their liveness_ttl ago, and write a worker event
-- for each. Also delete worker events that are at least 30 days old.
--
-- `handled` is the number of deleted workers or of deleted events, whichever is larger. due_in is
-- the time until the next worker counts as dead if it sends no more heartbeats.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    workers in order of namespace and instance, then worker events; skipping locked rows
-- Repeat:   a second call does what p_limit or a lock has left undone
-- Rights:   app
drop function if exists ff.sweep_workers;
create function ff.sweep_workers(p_limit integer default 500)
returns table (handled integer, due_in interval)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
as $$
#variable_conflict use_column
declare
  v_now    timestamptz := ff.now();
  v_worker record;
  v_swept  integer := 0;
  v_old    bigint[];
begin
  perform ff._check_pass(p_limit);
  for v_worker in
    delete from ff.worker w
    using (
      select x.namespace, x.worker_instance_id
      from ff.worker x
      where x.heartbeat_at + x.liveness_ttl <= v_now
      order by x.namespace, x.worker_instance_id
      limit p_limit
      for update skip locked) s
    where w.namespace = s.namespace and w.worker_instance_id = s.worker_instance_id
    returning w.namespace, w.worker_instance_id, w.worker_id, w.heartbeat_at, w.code_version,
              w.reads
  loop
    insert into ff.worker_event (
      namespace, worker_instance_id, worker_id, kind, occurred_at, heartbeat_at, code_versions)
    values (v_worker.namespace, v_worker.worker_instance_id, v_worker.worker_id, 'ttl_swept',
            v_now, v_worker.heartbeat_at,
            case when v_worker.code_version is not null
                 then v_worker.code_version || v_worker.reads end);
    v_swept := v_swept + 1;
  end loop;

  -- Delete the oldest events first: ids rise with time.
  v_old := array(
    select v.worker_event_id
    from (
      select x.worker_event_id, x.occurred_at from ff.worker_event x
      order by x.worker_event_id limit p_limit
    ) o
    join ff.worker_event v on v.worker_event_id = o.worker_event_id
    where o.occurred_at <= v_now - interval '30 days'
    for update of v skip locked);
  if cardinality(v_old) > 0 then
    delete from ff.worker_event v where v.worker_event_id = any (v_old);
  end if;

  return query
  select greatest(v_swept, cardinality(v_old)),
         (select min(w.heartbeat_at + w.liveness_ttl) - v_now from ff.worker w
          where w.heartbeat_at + w.liveness_ttl > v_now);
end;
$$;
