-- Delete steps of an execution. If p_fresh is true, all steps are deleted. If p_from_step is given,
-- that step and every step started after it are deleted. Otherwise nothing is deleted. The call is
-- refused if p_from_step does not exist. Returns a description of the deletion for the detail of an
-- event. The caller has locked the execution.
--
-- A signal that a deleted wait had taken is spent: no wait gets it again.
--
-- A waitpoint is closed if the step that made it is deleted. If that step stays, but a deleted wait
-- had closed the waitpoint, the waitpoint is opened again.
--
-- If no step is left, the execution belongs to no code version.
drop function if exists ff._delete_steps;
create function ff._delete_steps(
  p_partition_key   smallint,
  p_execution_id    uuid,
  p_from_step       text,
  p_from_occurrence integer,
  p_fresh           boolean
)
returns jsonb
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
  v_position integer := 0;
  v_dropped  integer;
  v_answered uuid[];
  v_kept     uuid[];
begin
  if not p_fresh and p_from_step is null then
    return '{}';
  end if;
  if p_from_step is not null then
    select s.position into v_position
    from ff.step s
    where s.partition_key = p_partition_key and s.execution_id = p_execution_id
      and s.name = p_from_step and s.occurrence = p_from_occurrence;
    if not found then
      perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
        'field', 'from_step',
        'problem', format(
          'there is no step %s#%s; %s', p_from_step, p_from_occurrence, coalesce((
            select 'recorded are ' || string_agg(format('%s#%s', s.name, s.occurrence), ', '
                                                order by s.position, s.name, s.occurrence)
            from (
              select x.name, x.occurrence, x.position from ff.step x
              where x.partition_key = p_partition_key and x.execution_id = p_execution_id
              order by x.position, x.name, x.occurrence
              limit 50) s), 'none is recorded'))));
    end if;
  end if;
  v_answered := array(
    select unnest(ff._waitpoints_in(s.condition)) from ff.step s
    where s.partition_key = p_partition_key and s.execution_id = p_execution_id
      and s.position >= v_position and s.kind = 'wait');
  with dropped as (
    delete from ff.step s
    where s.partition_key = p_partition_key and s.execution_id = p_execution_id
      and s.position >= v_position
    returning s.name
  )
  select count(*) into v_dropped from dropped;
  -- An approver may answer again, because the spent answer no longer belongs to the approval.
  update ff.signal g set
    wait_name = null,
    wait_occurrence = null,
    category = case when g.category = 'approval' then 'spent_approval' else g.category end
  where g.partition_key = p_partition_key and g.execution_id = p_execution_id
    and g.wait_name is not null and not exists (
      select from ff.step s
      where s.partition_key = p_partition_key and s.execution_id = p_execution_id
        and s.name = g.wait_name and s.occurrence = g.wait_occurrence
      offset 0);
  update ff.waitpoint w set
    closed_at = coalesce(w.closed_at, w.created_at),
    close_reason = 'forgotten'
  where w.partition_key = p_partition_key and w.execution_id = p_execution_id
    and (w.closed_at is null or w.close_reason = 'ended') and not exists (
      select from ff.step s
      where s.partition_key = p_partition_key and s.execution_id = p_execution_id
        and s.name = w.step_name and s.occurrence = w.step_occurrence
      offset 0);
  -- A waitpoint stays closed if a wait that was not deleted has taken its answer.
  v_kept := array(
    select unnest(ff._waitpoints_in(s.condition)) from ff.step s
    where s.partition_key = p_partition_key and s.execution_id = p_execution_id
      and s.kind = 'wait' and s.taken_as is not null);
  update ff.waitpoint w set closed_at = null, close_reason = null
  where w.partition_key = p_partition_key and w.execution_id = p_execution_id
    and w.waitpoint_id = any (v_answered) and w.waitpoint_id <> all (v_kept) and w.close_reason in ('resumed', 'timed_out')
    and exists (
      select from ff.step s
      where s.partition_key = p_partition_key and s.execution_id = p_execution_id
        and s.name = w.step_name and s.occurrence = w.step_occurrence
      offset 0);
  perform ff._move_to_versions(p_partition_key, array[p_execution_id], array[null::text]);
  return jsonb_strip_nulls(jsonb_build_object(
    'from_step', p_from_step,
    'from_occurrence', case when p_from_step is not null then p_from_occurrence end,
    'fresh', case when p_fresh then true end,
    'dropped_steps', v_dropped));
end;
$$;
