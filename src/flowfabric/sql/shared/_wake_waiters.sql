-- Wake the executions that wait for ended executions. Each end lowers the count of ends that a
-- waiter still needs. At 0, a blocked waiter becomes eligible (T4, quiet), and a suspended waiter
-- is woken (T18).
--
-- At most p_limit waiters are handled, and locked waiters are skipped. Returns how many waiters
-- were handled. The caller has locked the ended executions.
drop function if exists ff._wake_waiters;
create function ff._wake_waiters(
  p_partition_key smallint,
  p_ended_ids     uuid[],
  p_now           timestamptz,
  p_limit         integer
)
returns integer
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_waiters uuid[];
  v_woken   uuid[];
  v_routes  bigint[];
  v_asleep  uuid[];
begin
  -- Waits change only under the lock of the waiter.
  v_waiters := array(
    select l.execution_id
    from (
      select distinct w.waiter_id
      from unnest(p_ended_ids) u(id)
      cross join lateral (
        -- Without `offset 0` the plan for a small table would scan all waits in this order.
        select x.waiter_id
        from (
          select y.waiter_id from ff.run_wait y
          where y.partition_key = p_partition_key and y.target_id = u.id and y.ended_at is null
          offset 0) x
        order by x.waiter_id limit p_limit) w
      order by w.waiter_id
    ) a
    cross join lateral (
      select e.execution_id from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = a.waiter_id
      for no key update skip locked
    ) l
    limit p_limit);
  if cardinality(v_waiters) = 0 then
    return 0;
  end if;
  with item as materialized (
    select p_partition_key as pk, w.waiter_id, u.id as target_id
    from unnest(p_ended_ids) u(id)
    cross join lateral (
      select x.waiter_id from ff.run_wait x
      where x.partition_key = p_partition_key and x.target_id = u.id and x.ended_at is null
      offset 0) w
    where w.waiter_id = any (v_waiters)
    offset 0
  ),
  ended as (
    update ff.run_wait w set ended_at = p_now
    from item i
    where w.partition_key = i.pk and w.waiter_id = i.waiter_id and w.target_id = i.target_id
    returning w.waiter_id
  ),
  counted as materialized (
    select p_partition_key as pk, d.waiter_id, count(*)::integer as number
    from ended d group by d.waiter_id
    offset 0
  ),
  counted_down as (
    update ff.execution e set
      wait_left = case when e.wait_left > c.number then e.wait_left - c.number end,
      eligibility = case when e.phase = 'suspended' then e.eligibility
                         when e.wait_left > c.number then e.eligibility
                         else 'eligible_now' end,
      blocking_reason = case when e.phase = 'suspended' then e.blocking_reason
                             when e.wait_left > c.number then e.blocking_reason
                             else 'waiting_for_worker' end,
      cause = case when e.phase = 'suspended' then e.cause
                   when e.wait_left > c.number then e.cause else 'satisfy_dependencies' end,
      transitioned_at = case when e.phase = 'suspended' then e.transitioned_at
                             when e.wait_left > c.number then e.transitioned_at
                             else greatest(p_now, e.transitioned_at) end,
      mutated_at = greatest(p_now, e.transitioned_at, e.mutated_at)
    from counted c
    where e.partition_key = c.pk and e.execution_id = c.waiter_id
    returning e.execution_id, e.route_id, e.wait_left, e.phase
  )
  select array_agg(d.execution_id) filter (where d.wait_left is null),
         array_agg(distinct d.route_id) filter (where d.wait_left is null),
         array_agg(d.execution_id) filter (where d.wait_left is null and d.phase = 'suspended')
    into v_woken, v_routes, v_asleep
  from counted_down d;
  if v_asleep is not null then
    perform ff._wake_suspended(
      p_partition_key, v_asleep, 'wake', 'resumed', p_now, '{"by": "runs"}');
  end if;
  delete from ff.run_wait w
  using (select p_partition_key as pk, u.id from unnest(v_woken) u(id) offset 0) i
  where w.partition_key = i.pk and w.waiter_id = i.id;
  perform ff._hint_ready(p_partition_key, v_routes);
  return cardinality(v_waiters);
end;
$$;
