-- Close a waitpoint. Its token is then no longer accepted. Signals that were sent to it earlier
-- stay.
--
-- Closing a waitpoint does not wake the execution. If nobody can answer an open wait of the
-- execution any more, this wait times out now. A handler that asks for the wait then gets the
-- timeout. If the execution is suspended, ff.expire_suspensions applies the timeout.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF301 not_found · WF309 waitpoint_not_found
-- Locks:    the execution, waiting up to 2 s
-- Repeat:   `already_closed`
-- Rights:   app
drop function if exists ff.close_waitpoint;
create function ff.close_waitpoint(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_id  uuid,
  p_waitpoint_id  uuid,
  p_reason        text default 'proactive_close'
)
returns table (outcome text, detail jsonb)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_now       timestamptz;
  v_is_closed boolean;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_actor_and_reason(null, p_reason);
  perform ff._lock_execution(p_partition_key, p_namespace, p_execution_id);
  if not exists (
       select from ff.waitpoint w
       where w.partition_key = p_partition_key and w.execution_id = p_execution_id
         and w.waitpoint_id = p_waitpoint_id) then
    perform ff._refuse('WF309', 'waitpoint_not_found', jsonb_build_object('id', p_waitpoint_id));
  end if;
  v_now := ff.now();
  v_is_closed := ff._close_waitpoints(
    p_partition_key, p_execution_id, array[p_waitpoint_id],
    coalesce(p_reason, 'proactive_close'), v_now);
  return query select case when v_is_closed then 'closed' else 'already_closed' end, null::jsonb;
end;
$$;
