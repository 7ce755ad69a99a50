-- Resume a suspended execution for an operator. The execution continues even if none of its waits
-- has an answer.
--
-- The waits of the suspension end with the answer `operator`. The handler gets the default value of
-- each wait, or an error if a wait has no default. If p_delay is given, the execution becomes
-- eligible after that time.
--
-- If p_if_version is given and differs from the version of the execution, nothing happens, and the
-- outcome is `already_applied`. This is checked before the state of the execution.
--
-- Moves:    suspended -> runnable eligible or delayed (T18)
-- Refuses:  WF001 invalid_input · WF222 not_suspended · WF301 not_found
-- Locks:    the execution, waiting up to 2 s
-- Repeat:   if p_if_version is given, `already_applied`; otherwise WF222 not_suspended, or a second
--           resume if the execution is suspended again
-- Rights:   app
drop function if exists ff.resume_execution;
create function ff.resume_execution(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_id  uuid,
  p_reason        text default null,
  p_actor         text default null,
  p_delay         interval default null,
  p_if_version    integer default null
)
returns table (outcome text, public_state text, version integer, detail jsonb)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_row  ff.execution;
  v_now  timestamptz;
  v_wait record;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_actor_and_reason(p_actor, p_reason);
  if not ff._is_within(p_delay, interval '0', interval '36525 days') then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'delay',
      'problem', 'must be between 0 and a hundred years, in days or smaller units'));
  end if;
  v_row := ff._lock_execution(p_partition_key, p_namespace, p_execution_id);
  if v_row.version <> p_if_version then
    return query select 'already_applied', v_row.public_state::text, v_row.version, null::jsonb;
    return;
  end if;
  if v_row.phase <> 'suspended' then
    perform ff._refuse('WF222', 'not_suspended', jsonb_build_object(
      'id', format('{fp:%s}:%s', p_partition_key, p_execution_id), 'state', v_row.public_state));
  end if;
  v_now := ff.now();
  update ff.step s set
    ready_at = greatest(v_now, v_row.transitioned_at),
    taken_at = greatest(v_now, v_row.transitioned_at),
    taken_as = 'operator'
  from ff.suspension p
  where p.partition_key = p_partition_key and p.suspension_id = v_row.suspension_id
    and s.partition_key = p_partition_key and s.execution_id = p_execution_id
    and s.kind = 'wait' and s.taken_as is null and exists (
      select from unnest(p.wait_names, p.wait_occurrences) u(name, occurrence)
      where u.name = s.name and u.occurrence = s.occurrence);
  for v_wait in
    select s.condition from ff.step s
    where s.partition_key = p_partition_key and s.execution_id = p_execution_id
      and s.kind = 'wait' and s.taken_as = 'operator'
  loop
    perform ff._close_waitpoints(
      p_partition_key, p_execution_id, ff._waitpoints_in(v_wait.condition), 'resumed', v_now);
  end loop;
  perform ff._wake_suspended(
    p_partition_key, array[p_execution_id], 'wake', 'resumed', v_now,
    jsonb_strip_nulls(jsonb_build_object('by', 'operator', 'reason', p_reason)),
    p_delay, p_actor);
  perform ff._write_execution_audit(
    p_partition_key, v_row, p_actor, 'resume_execution', p_reason,
    jsonb_build_object('outcome', 'resumed'));
  return query
  select 'resumed', e.public_state::text, e.version, null::jsonb from ff.execution e
  where e.partition_key = p_partition_key and e.execution_id = p_execution_id;
end;
$$;
