-- Submit the executions of a due schedule, and set the next time of the schedule.
--
-- p_fire_ats are the times that the caller computed from the rule, ascending. The list is empty if
-- all missed times are skipped. p_execution_ids are the ids of the executions for these times. An
-- execution that exists already counts as submitted.
--
-- p_rule_no and p_expected_next_at are the values that the caller read. If one of them has changed
-- since, nothing is submitted. The outcome is then `gone` (the schedule does not exist),
-- `inactive` (it is paused or orphaned), or otherwise `already_fired`.
--
-- Moves:    (new) -> runnable eligible, through submit_executions
-- Refuses:  WF001 invalid_input · WF202 lane_closed · WF302 unknown_route
--           · WF308 unknown_gate · WF220 limit_reached
-- Locks:    the row of the schedule, waiting up to 2 s; then as submit_executions
-- Repeat:   with the same p_call_id, the same answer until another call fires the schedule; after
--           that `already_fired`, `inactive` or `gone`
-- Rights:   app
drop function if exists ff.fire_schedule;
create function ff.fire_schedule(
  p_partition_key    smallint,
  p_namespace        text,
  p_app              text,
  p_name             text,
  p_call_id          uuid,
  p_rule_no          integer,
  p_expected_next_at timestamptz,
  p_fire_ats         timestamptz[],
  p_next_at          timestamptz,
  p_execution_ids    uuid[]
)
returns table (outcome text, fired integer, next_at timestamptz)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  -- The time is read before the lock. This is safe: an earlier time makes fewer schedules due.
  v_now      constant timestamptz := ff.now();
  v_size     constant integer := cardinality(p_fire_ats);
  v_field    text;
  v_problem  text;
  v_schedule ff.schedule;
begin
  perform ff._check_namespace(p_namespace);
  if ff._is_nil_id(p_call_id) then
    v_field := 'call_id'; v_problem := 'must be a uuid other than the nil uuid';
  elsif v_size is null or v_size > 1000 or array_ndims(p_fire_ats) > 1
     or array_lower(p_fire_ats, 1) <> 1 or array_position(p_fire_ats, null) is not null then
    v_field := 'fire_ats'; v_problem := 'must be a list of at most 1000 times';
  elsif cardinality(p_execution_ids) is distinct from v_size or array_ndims(p_execution_ids) > 1
     or array_lower(p_execution_ids, 1) <> 1
     or exists (select from unnest(p_execution_ids) u(id) where ff._is_nil_id(u.id)) then
    v_field := 'execution_ids';
    v_problem := 'must be one for each time, and not the nil uuid';
  elsif p_expected_next_at is null or p_expected_next_at > v_now then
    v_field := 'expected_next_at'; v_problem := 'is not due yet';
  elsif exists (
      select from (select u.at, lag(u.at) over (order by u.n) as previous
                   from unnest(p_fire_ats) with ordinality u(at, n)) f
      where f.at <= f.previous or f.at < p_expected_next_at or f.at > v_now) then
    v_field := 'fire_ats'; v_problem := 'must ascend from the expected time up to now';
  elsif p_next_at is null or p_next_at >= timestamptz '9999-01-01 00:00:00+00'
     or p_next_at <= coalesce(p_fire_ats[v_size], p_expected_next_at) then
    v_field := 'next_at'; v_problem := 'must be after the times that fire and before the year 9999';
  end if;
  if v_field is not null then
    perform ff._refuse('WF001', 'invalid_input',
                       jsonb_build_object('field', v_field, 'problem', v_problem));
  end if;

  update ff.schedule s set
    next_at = p_next_at,
    last_at = coalesce(p_fire_ats[v_size], s.last_at),
    last_id = coalesce(p_execution_ids[v_size], s.last_id),
    last_partition = case when v_size > 0 then p_partition_key else s.last_partition end,
    fired_count = s.fired_count + v_size,
    last_call_id = p_call_id,
    last_call_count = v_size
  where s.namespace = p_namespace and s.app = p_app and s.name = p_name
    and s.next_at = p_expected_next_at and s.rule_no = p_rule_no
  returning s.* into v_schedule;
  if found then
    perform ff._submit_firings(p_partition_key, v_schedule, p_fire_ats, p_execution_ids, null);
    return query select 'fired', v_size, p_next_at;
    return;
  end if;
  return query
  select case when s.last_call_id = p_call_id then 'fired' when s.next_at is null then 'inactive'
              else 'already_fired' end,
         case when s.last_call_id = p_call_id then s.last_call_count else 0 end,
         case when s.last_call_id = p_call_id then p_next_at else s.next_at end
  from ff.schedule s
  where s.namespace = p_namespace and s.app = p_app and s.name = p_name;
  if not found then
    return query select 'gone', 0, null::timestamptz;
  end if;
end;
$$;
