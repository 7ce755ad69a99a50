-- Submit an execution of a schedule now, independently of its rule. The next time of the schedule
-- does not change.
--
-- A paused schedule can be run. An orphaned schedule cannot.
--
-- Moves:    (new) -> runnable eligible, through submit_executions
-- Refuses:  WF001 invalid_input · WF202 lane_closed · WF214 schedule_orphaned · WF220 limit_reached
--           · WF302 unknown_route · WF304 schedule_not_found · WF308 unknown_gate
-- Locks:    as submit_executions
-- Repeat:   `submitted` again; an execution with this p_execution_id is stored only once
-- Rights:   app
drop function if exists ff.run_schedule;
create function ff.run_schedule(
  p_partition_key smallint,
  p_namespace     text,
  p_app           text,
  p_name          text,
  p_execution_id  uuid,
  p_actor         text default null
)
returns table (outcome text, execution_id uuid)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now      constant timestamptz := ff.now();
  v_schedule ff.schedule;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_actor_and_reason(p_actor, null);
  if ff._is_nil_id(p_execution_id) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'execution_id', 'problem', 'must be a uuid other than the nil uuid'));
  end if;
  select s.* into v_schedule
  from ff.schedule s
  where s.namespace = p_namespace and s.app = p_app and s.name = p_name;
  if not found then
    perform ff._refuse('WF304', 'schedule_not_found', jsonb_build_object(
      'schedule', p_name, 'app', p_app));
  end if;
  if v_schedule.state = 'orphaned' then
    perform ff._refuse('WF214', 'schedule_orphaned', jsonb_build_object(
      'schedule', p_name, 'app', p_app, 'orphaned_at', v_schedule.orphaned_at));
  end if;
  perform ff._submit_firings(
    p_partition_key, v_schedule, array[v_now], array[p_execution_id], p_actor);
  perform ff._write_audit(
    p_namespace, p_actor, 'run_schedule', concat_ws(' ', p_app, p_name), null, null,
    jsonb_build_object('execution', p_execution_id));
  return query select 'submitted', p_execution_id;
end;
$$;
