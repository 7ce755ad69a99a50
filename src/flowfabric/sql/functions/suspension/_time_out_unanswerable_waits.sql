-- Time out the open waits that no signal can satisfy any more, because waitpoints of the execution
-- were closed. Only waits that name one of p_waitpoint_ids are checked. The caller has locked the
-- execution.
--
-- A timed-out wait makes its suspension due. ff.expire_suspensions then applies the timeout
-- behaviour of the suspension. If a signal was sent before the timeout, it still counts, even if it
-- is noticed later.
drop function if exists ff._time_out_unanswerable_waits;
create function ff._time_out_unanswerable_waits(
  p_partition_key smallint,
  p_execution_id  uuid,
  p_waitpoint_ids uuid[],
  p_now           timestamptz
)
returns void
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_wait    record;
  v_closed  uuid[];
  v_keys    text[];
  v_names   text[];
  v_ids     uuid[];
  v_sources text[];
begin
  for v_wait in
    select s.name, s.occurrence, s.condition, ff._waitpoints_in(s.condition) as points
    from ff.step s
    where s.partition_key = p_partition_key and s.execution_id = p_execution_id
      and s.kind = 'wait' and s.taken_as is null and s.opened_at is not null
      and (s.until_at is null or s.until_at > p_now)
  loop
    continue when v_wait.points is null or not v_wait.points && p_waitpoint_ids;
    v_closed := array(
      select w.waitpoint_id from ff.waitpoint w
      where w.partition_key = p_partition_key and w.execution_id = p_execution_id
        and w.waitpoint_id = any (v_wait.points) and w.closed_at is not null);
    select coalesce(array_agg('w ' || g.waitpoint_id order by g.noticed_at, g.signal_id), '{}'),
           coalesce(array_agg(g.name order by g.noticed_at, g.signal_id), '{}'),
           coalesce(array_agg(g.signal_id order by g.noticed_at, g.signal_id), '{}'),
           coalesce(array_agg(concat_ws(' ', g.source_type, g.source_identity)
                              order by g.noticed_at, g.signal_id), '{}')
      into v_keys, v_names, v_ids, v_sources
    from ff.signal g
    where g.partition_key = p_partition_key and g.execution_id = p_execution_id
      and g.waitpoint_id = any (v_wait.points) and g.taken_at is null
      and g.noticed_at is not null;
    continue when ff._is_answerable(
      v_wait.condition, v_closed, v_keys, v_names, v_ids, v_sources);
    update ff.step s set until_at = p_now
    where s.partition_key = p_partition_key and s.execution_id = p_execution_id
      and s.name = v_wait.name and s.occurrence = v_wait.occurrence;
    update ff.suspension p set timeout_at = greatest(p_now, p.suspended_at)
    where p.partition_key = p_partition_key and p.execution_id = p_execution_id
      and p.closed_at is null and (p.timeout_at is null or p.timeout_at > p_now)
      and exists (
        select from unnest(p.wait_names, p.wait_occurrences) u(name, occurrence)
        where u.name = v_wait.name and u.occurrence = v_wait.occurrence);
  end loop;
end;
$$;
