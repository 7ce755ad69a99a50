-- Ask a worker instance to claim no more, finish the executions that it runs, and end.
--
-- The instance learns of the request with its next heartbeat. The request stays until the instance
-- has ended. A process that starts again is a new instance, to which the request does not apply. If
-- p_worker_instance_id names no live instance, the answer is `not_registered`.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    the row of the worker instance, waiting up to 2 s
-- Repeat:   `already_asked`; no second event is written
-- Rights:   app
drop function if exists ff.drain_worker;
create function ff.drain_worker(
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
  with asked as (
    update ff.worker w set drain_asked_at = v_now
    where w.namespace = p_namespace and w.worker_instance_id = p_worker_instance_id
      and w.drain_asked_at is null
      and (w.heartbeat_at at time zone 'UTC' + w.liveness_ttl) at time zone 'UTC' > v_now
    returning w.worker_id
  )
  insert into ff.worker_event (
    namespace, worker_instance_id, worker_id, kind, occurred_at, actor, reason)
  select p_namespace, p_worker_instance_id, a.worker_id, 'drain_asked', v_now, p_actor, p_reason
  from asked a;
  outcome := case
    when found then 'asked'
    when exists (
      select from ff.worker w
      where w.namespace = p_namespace and w.worker_instance_id = p_worker_instance_id
        and w.heartbeat_at + w.liveness_ttl > v_now) then 'already_asked'
    else 'not_registered' end;
  if outcome = 'asked' then
    perform ff._write_audit(p_namespace, p_actor, 'drain_worker', p_worker_instance_id, p_reason);
  end if;
  return next;
end;
$$;
