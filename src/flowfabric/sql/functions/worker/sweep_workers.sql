-- Delete workers without a recent heartbeat, and worker events older than 30 days.
--
-- due_in is the time until the next worker is overdue.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    the rows it deletes, skipping locked ones
-- Replay:   a second call finds nothing left to do
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
  v_now   timestamptz := ff.now();
  v_swept integer;
  v_old   integer;
begin
  perform ff._check_pass(p_limit);
  with silent as materialized (
    select w.namespace, w.worker_instance_id
    from ff.worker w
    where w.heartbeat_at + w.liveness_ttl <= v_now
    order by w.namespace, w.worker_instance_id
    limit p_limit
    for update skip locked
  ),
  swept as (
    delete from ff.worker w
    using silent s
    where w.namespace = s.namespace and w.worker_instance_id = s.worker_instance_id
    returning w.namespace, w.worker_instance_id, w.worker_id, w.heartbeat_at, w.code_version,
              w.reads
  ),
  logged as (
    insert into ff.worker_event (
      namespace, worker_instance_id, worker_id, kind, occurred_at, heartbeat_at, code_versions)
    select s.namespace, s.worker_instance_id, s.worker_id, 'ttl_swept', v_now, s.heartbeat_at,
           case when s.code_version is not null then s.code_version || s.reads end
    from swept s
  )
  select count(*) into v_swept from swept;

  -- Delete the oldest events first: ids rise with time.
  with old as materialized (
    select v.worker_event_id
    from (
      select x.worker_event_id, x.occurred_at from ff.worker_event x
      order by x.worker_event_id limit p_limit
    ) o
    join ff.worker_event v on v.worker_event_id = o.worker_event_id
    where o.occurred_at <= v_now - interval '30 days'
    for update of v skip locked
  ),
  gone as (
    delete from ff.worker_event v
    using old o
    where v.worker_event_id = o.worker_event_id
    returning v.worker_event_id
  )
  select count(*) into v_old from gone;

  return query
  select greatest(v_swept, v_old),
         (select min(w.heartbeat_at + w.liveness_ttl) - v_now from ff.worker w
          where w.heartbeat_at + w.liveness_ttl > v_now);
end;
$$;
