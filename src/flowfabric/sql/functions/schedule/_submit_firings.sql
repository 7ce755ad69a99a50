-- Submit one execution of a schedule for each time in p_fire_ats, with the id at the same index of
-- p_execution_ids. Tags of the execution name the schedule and the time.
--
-- An execution that exists already stays unchanged. If one execution cannot be stored, the whole
-- call is refused.
drop function if exists ff._submit_firings;
create function ff._submit_firings(
  p_partition_key smallint,
  p_schedule      ff.schedule,
  p_fire_ats      timestamptz[],
  p_execution_ids uuid[],
  p_creator       text
)
returns void
language plpgsql
as $$
declare
  v_refused record;
  v_detail  jsonb;
begin
  if cardinality(p_fire_ats) = 0 then
    return;
  end if;
  select r.outcome, r.detail into v_refused
  from ff.submit_executions(
    p_partition_key     => p_partition_key,
    p_namespace         => p_schedule.namespace,
    p_execution_ids     => p_execution_ids,
    p_route_ids         => array[p_schedule.route_id],
    p_payloads          => array[p_schedule.payload],
    p_payload_encodings => array[p_schedule.payload_encoding],
    p_priorities        => array[p_schedule.priority],
    p_options           => array(
      select coalesce(p_schedule.options, '{}') || jsonb_build_object(
               'creator', coalesce(p_creator, 'schedule:' || p_schedule.name),
               'tags', coalesce((p_schedule.options ->> 'tags')::jsonb, '{}') || jsonb_build_object(
                 'schedule.name', p_schedule.name,
                 'schedule.at', regexp_replace(
                   to_char(u.at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'), '[.]0+$', '')
                   || 'Z'))
      from unnest(p_fire_ats) with ordinality u(at, n)
      order by u.n)) r
  where r.outcome <> 'duplicate'
  order by r.item
  limit 1;
  if not found then
    return;
  end if;
  v_detail := coalesce(v_refused.detail, '{}') || jsonb_build_object('schedule', p_schedule.name);
  if v_refused.outcome = 'lane_closed' then
    perform ff._refuse('WF202', 'lane_closed', v_detail);
  elsif v_refused.outcome = 'unknown_route' then
    perform ff._refuse('WF302', 'unknown_route', v_detail);
  elsif v_refused.outcome = 'unknown_gate' then
    perform ff._refuse('WF308', 'unknown_gate', v_detail);
  elsif v_refused.outcome = 'limit_reached' then
    perform ff._refuse('WF220', 'limit_reached', v_detail);
  end if;
  perform ff._refuse('WF001', 'invalid_input', v_detail);
end;
$$;
