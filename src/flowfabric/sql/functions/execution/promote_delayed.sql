-- Make delayed executions eligible when their time has come. After several crashes, an execution
-- cannot be reclaimed before its reclaim_at. At that time this call makes it reclaimable.
--
-- due_in is the time until the next row is due; a caller can sleep that long.
--
-- Moves:    runnable delayed -> runnable eligible (T8, quiet, attempt state kept)
-- Refuses:  WF001 invalid_input
-- Locks:    executions in due order, skipping locked ones
-- Repeat:   a second call does what p_limit or a lock has left undone
-- Rights:   app
drop function if exists ff.promote_delayed;
create function ff.promote_delayed(p_partition_key smallint, p_limit integer default 500)
returns table (handled integer, due_in interval)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_now    timestamptz := ff.now();
  v_routes bigint[];
  v_count  integer;
begin
  perform ff._check_pass(p_limit);
  with due as materialized (
    select p_partition_key as pk, e.execution_id
    from ff.execution e
    where e.partition_key = p_partition_key and e.due_at <= v_now
      and case when e.delayed_until <= v_now or e.reclaim_at <= v_now then true else false end
    order by e.due_at
    limit p_limit
    for no key update skip locked
  ),
  promoted as (
    update ff.execution e set
      eligibility = case when e.delayed_until is null then e.eligibility else 'eligible_now' end,
      blocking_reason = 'waiting_for_worker',
      cause = case when e.delayed_until is null then e.cause else 'promote' end,
      delayed_until = null,
      reclaim_at = null,
      due_at = e.deadline_at,
      transitioned_at = case when e.delayed_until is null then e.transitioned_at
                             else greatest(v_now, e.transitioned_at) end,
      mutated_at = greatest(v_now, e.transitioned_at)
    from due d
    where e.partition_key = d.pk and e.execution_id = d.execution_id
    returning e.route_id
  )
  select count(*), array_agg(distinct p.route_id) into v_count, v_routes from promoted p;

  perform ff._hint_ready(p_partition_key, v_routes);
  return query
  select v_count,
         (select e.due_at - v_now from ff.execution e
          where e.partition_key = p_partition_key and e.due_at > v_now
          order by e.due_at limit 1);
end;
$$;
