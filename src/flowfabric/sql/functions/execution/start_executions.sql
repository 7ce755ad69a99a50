-- Report that the lease holder starts executions now, and whether each runs alone in its process.
-- Returns a row for every execution that was not marked as started. No row means that all were
-- marked.
--
-- A worker that claimed with p_reports_starts must make this call before it runs an execution whose
-- crash_count is not 0. A lease that expires counts as a crash. The first of several crashes in a
-- row counts for every execution that the worker had leased. A later crash counts only for the
-- executions whose start the worker has reported.
--
-- If the worker later starts other work beside an execution that ran alone, the worker calls again
-- and reports that the execution no longer runs alone.
--
-- If an execution crashed before and was claimed with p_reports_starts, its attempt timeout starts
-- only with the first call of this function for its lease.
--
-- Moves:    only if the holder is late: its expired lease is marked (T19), or its overdue execution
--           is settled as by ff.expire_executions (T24, T23, T5, T4, T18)
-- Refuses:  WF001 invalid_input · per item: busy · not_found · duplicate · not_active
--           · lease_revoked · lease_expired · stale_lease · invalid
-- Locks:    executions in id order, without waiting; if p_wait is true, waits up to 2 s for the
--           only item
-- Repeat:   marks the same executions again; the attempt timeout does not start again
-- Rights:   app
drop function if exists ff.start_executions;
create function ff.start_executions(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_ids uuid[],
  p_lease_ids     uuid[],
  p_epochs        bigint[],
  p_attempt_ids   uuid[],
  p_are_alone     boolean[],
  p_wait          boolean default false
)
returns table (item integer, outcome text, detail jsonb)
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
  v_now    timestamptz;
  v_judged ff.verdict[];
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_batch(cardinality(p_execution_ids), array[
    array_upper(p_execution_ids, 1), cardinality(p_lease_ids), cardinality(p_epochs),
    cardinality(p_attempt_ids),
    cardinality(p_are_alone)], p_wait,
    array[
      array_lower(p_execution_ids, 1), array_ndims(p_execution_ids),
      array_lower(p_lease_ids, 1), array_ndims(p_lease_ids),
      array_lower(p_epochs, 1), array_ndims(p_epochs),
      array_lower(p_attempt_ids, 1), array_ndims(p_attempt_ids),
      array_lower(p_are_alone, 1), array_ndims(p_are_alone)]);
  if array_position(p_are_alone, null) is not null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'are_alone', 'problem', 'say true or false for every execution'));
  end if;
  v_judged := ff._enforce_leases(p_partition_key, p_namespace, null, p_execution_ids, p_lease_ids,
                                 p_epochs, p_attempt_ids, p_wait);
  v_now := ff.now();

  update ff.execution e set
    lease_start = case when i.is_alone then 'alone'::ff.lease_start else 'beside' end,
    attempt_deadline_at = coalesce(
      (greatest(v_now, e.transitioned_at) at time zone 'UTC' + e.attempt_time_left)
        at time zone 'UTC', e.attempt_deadline_at),
    attempt_time_left = null,
    due_at = least(e.due_at,
                   (greatest(v_now, e.transitioned_at) at time zone 'UTC' + e.attempt_time_left)
                     at time zone 'UTC'),
    mutated_at = greatest(v_now, e.mutated_at)
  from (
    select p_partition_key as pk, j.execution_id, p_are_alone[j.item] as is_alone
    from unnest(v_judged) j
    where j.word = 'leased'
    offset 0
  ) i
  where e.partition_key = i.pk and e.execution_id = i.execution_id;

  return query
  select j.item, j.word, j.detail from unnest(v_judged) j where j.word <> 'leased';
end;
$$;
