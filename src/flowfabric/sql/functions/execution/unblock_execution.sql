-- Make a blocked execution eligible again, if it is still blocked for the expected reason. An empty
-- or null p_expected_reason means any reason.
--
-- If the execution is paused because its flow is being cancelled, the call is refused. An event is
-- written only if an actor is given.
--
-- Moves:    runnable blocked -> runnable eligible (T7)
-- Refuses:  WF001 invalid_input · WF205 not_eligible · WF301 not_found
-- Locks:    the execution, waiting up to 2 s
-- Repeat:   `already_applied` if p_if_version is given and the version has changed. Otherwise
--           `unblocked`, and nothing changes, until the execution makes another transition; then
--           WF205
-- Rights:   app
drop function if exists ff.unblock_execution;
create function ff.unblock_execution(
  p_partition_key   smallint,
  p_namespace       text,
  p_execution_id    uuid,
  p_expected_reason text default null,
  p_reason          text default null,
  p_actor           text default null,
  p_if_version      integer default null
)
returns table (outcome text, public_state text, version integer, detail jsonb)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_row ff.execution;
  v_now timestamptz;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_actor_and_reason(p_actor, p_reason);
  v_row := ff._lock_execution(p_partition_key, p_namespace, p_execution_id);
  if v_row.version <> p_if_version then
    return query select 'already_applied', v_row.public_state::text, v_row.version, null::jsonb;
    return;
  end if;
  if v_row.eligibility = 'eligible_now' and v_row.cause = 'unblock' then
    return query select 'unblocked', 'waiting', v_row.version, null::jsonb;
    return;
  end if;
  if v_row.eligibility not in ('blocked_by_budget', 'blocked_by_quota', 'blocked_by_route',
                               'blocked_by_operator')
     or v_row.blocking_reason = 'paused_by_flow_cancel'
     or v_row.blocking_reason::text <> nullif(p_expected_reason, '') then
    perform ff._refuse('WF205', 'not_eligible', jsonb_build_object(
      'id', format('{fp:%s}:%s', p_partition_key, p_execution_id), 'state', v_row.public_state,
      'blocking_reason', v_row.blocking_reason,
      'hint', 'it is not blocked, is blocked for another reason, or its flow is being cancelled'));
  end if;
  v_now := ff.now();
  perform ff._make_eligible(
    p_partition_key, p_execution_id, 'unblock',
    case when p_actor is not null then 'unblocked'::ff.event_kind end, v_now, p_actor,
    jsonb_strip_nulls(jsonb_build_object(
      'blocking_reason', v_row.blocking_reason, 'reason', p_reason)));
  return query
  select 'unblocked', 'waiting', v_row.version + (p_actor is not null)::integer, null::jsonb;
end;
$$;
