-- Remove a worker from the registry, because the worker stops or is known to be gone.
--
-- The leases of the worker stay until their time is over. To expire these leases now, call
-- ff.expire_worker_leases.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    the worker's own row, waiting up to 2 s
-- Repeat:   `not_registered`; no second event is written
-- Rights:   app
drop function if exists ff.mark_worker_dead;
create function ff.mark_worker_dead(
  p_namespace          text,
  p_worker_instance_id text,
  p_reason             text,
  p_actor              text default null
)
returns table (outcome text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_now timestamptz;
begin
  perform ff._check_namespace(nullif(p_namespace, ''));
  perform ff._check_worker_change(p_namespace, p_worker_instance_id, p_reason, p_actor);
  v_now := ff.now();
  with marked as (
    delete from ff.worker w
    where w.namespace = p_namespace and w.worker_instance_id = p_worker_instance_id
    returning w.worker_id, w.heartbeat_at, w.code_version, w.reads
  ),
  logged as (
    insert into ff.worker_event (
      namespace, worker_instance_id, worker_id, kind, occurred_at, actor, reason, heartbeat_at,
      code_versions)
    select p_namespace, p_worker_instance_id, m.worker_id, 'marked_dead',
           greatest(v_now, m.heartbeat_at), p_actor, p_reason, greatest(v_now, m.heartbeat_at),
           case when m.code_version is not null then m.code_version || m.reads end
    from marked m
  )
  select case when count(*) > 0 then 'marked' else 'not_registered' end into outcome from marked;
  if outcome = 'marked' and p_actor is not null then
    perform ff._write_audit(p_namespace, p_actor, 'mark_worker_dead', p_worker_instance_id, p_reason);
  end if;
  return next;
end;
$$;
