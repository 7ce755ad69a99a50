-- Submit an execution of a schedule for each of some times; tags say which schedule and which time.
--
-- What is there already stays. Anything that cannot be stored refuses the whole call.
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
  v_size    constant integer[] := array[cardinality(p_fire_ats)];
  v_refused record;
  v_detail  jsonb;
begin
  if v_size = '{0}' then
    return;
  end if;
  select r.outcome, r.detail into v_refused
  from ff.submit_executions(
    p_partition_key     => p_partition_key,
    p_namespace         => p_schedule.namespace,
    p_execution_ids     => p_execution_ids,
    p_route_ids         => array_fill(p_schedule.route_id, v_size),
    p_payloads          => array_fill(p_schedule.payload, v_size),
    p_priorities        => array_fill(p_schedule.priority, v_size),
    p_payload_encodings => case when p_schedule.payload_encoding is not null
                             then array_fill(p_schedule.payload_encoding, v_size) end,
    p_deadlines         => case when p_schedule.deadline is not null
                             then array_fill(p_schedule.deadline, v_size) end,
    p_policies          => case when p_schedule.policy is not null
                             then array_fill(p_schedule.policy::text, v_size) end,
    p_max_reclaims      => array_fill(p_schedule.max_reclaims, v_size),
    p_tags              => array(
      select (coalesce(p_schedule.tags, '{}') || jsonb_build_object(
                'schedule.name', p_schedule.name,
                'schedule.at', regexp_replace(
                  to_char(u.at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'), '[.]0+$', '')
                  || 'Z'))::text
      from unnest(p_fire_ats) with ordinality u(at, n)
      order by u.n),
    p_creators          => array_fill(coalesce(p_creator, 'schedule:' || p_schedule.name), v_size),
    p_task_versions     => case when p_schedule.task_version is not null
                             then array_fill(p_schedule.task_version, v_size) end) r
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
  end if;
  perform ff._refuse('WF001', 'invalid_input', v_detail);
end;
$$;
