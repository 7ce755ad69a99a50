-- Tell those whom the end of executions concerns: who waits for them is counted down and, at the last
-- one, eligible (T4, quiet); children that end with them are cancelled (T23), and so on through what
-- these end in turn. The caller holds the row locks of the ended.
--
-- Nothing is waited for, and p_limit bounds how many rows are touched. What is left over is marked
-- wakes_pending; what has nobody left to tell is not any more. Returns how many were told, and which
-- of the ended are still pending.
drop function if exists ff._wake_runs;
create function ff._wake_runs(
  p_partition_key smallint,
  p_ended_ids     uuid[],
  p_now           timestamptz,
  p_limit         integer default 100,
  out told        integer,
  out pending_ids uuid[]
)
returns record
language plpgsql
set search_path = ''
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_ended   uuid[] := p_ended_ids;
  v_all     uuid[] := p_ended_ids;
  v_waiters uuid[];
  v_woken   uuid[];
  v_routes  bigint[];
  v_heirs   uuid[];
begin
  told := 0;
  while cardinality(v_ended) > 0 loop
    -- Waiters. Whatever changes about a wait changes under the waiter's lock.
    v_waiters := array(
      select l.execution_id
      from (
        select distinct w.waiter_id
        from unnest(v_ended) u(id)
        cross join lateral (
          select x.waiter_id from ff.run_wait x
          where x.partition_key = p_partition_key and x.target_id = u.id and x.ended_at is null
          order by x.waiter_id limit p_limit) w
        order by w.waiter_id
      ) a
      cross join lateral (
        select e.execution_id from ff.execution e
        where e.partition_key = p_partition_key and e.execution_id = a.waiter_id
        for no key update skip locked
      ) l
      limit greatest(p_limit - told, 0));
    if cardinality(v_waiters) > 0 then
      with item as materialized (
        select p_partition_key as pk, w.waiter_id, u.id as target_id
        from unnest(v_ended) u(id)
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
          eligibility = case when e.wait_left > c.number then e.eligibility
                             else 'eligible_now' end,
          blocking_reason = case when e.wait_left > c.number then e.blocking_reason
                                 else 'waiting_for_worker' end,
          cause = case when e.wait_left > c.number then e.cause else 'satisfy_dependencies' end,
          transitioned_at = case when e.wait_left > c.number then e.transitioned_at
                                 else greatest(p_now, e.transitioned_at) end,
          mutated_at = greatest(p_now, e.transitioned_at, e.mutated_at)
        from counted c
        where e.partition_key = c.pk and e.execution_id = c.waiter_id
        returning e.execution_id, e.route_id, e.wait_left
      )
      select array_agg(d.execution_id) filter (where d.wait_left is null),
             array_agg(distinct d.route_id) filter (where d.wait_left is null)
        into v_woken, v_routes
      from counted_down d;
      delete from ff.run_wait w
      using (select p_partition_key as pk, u.id from unnest(v_woken) u(id) offset 0) i
      where w.partition_key = i.pk and w.waiter_id = i.id;
      perform ff._hint_ready(p_partition_key, v_routes);
      told := told + cardinality(v_waiters);
    end if;

    -- Children that end with them.
    v_heirs := array(
      select l.execution_id
      from unnest(v_ended) u(id)
      cross join lateral (
        select e.execution_id from ff.execution e
        where e.partition_key = p_partition_key and e.parent_id = u.id
          and case when e.ends_with_parent and e.phase <> 'terminal' then true else false end
        for no key update skip locked
      ) l
      limit greatest(p_limit - told, 0));
    v_ended := '{}';
    if cardinality(v_heirs) > 0 then
      perform ff._end_executions(
        p_partition_key, v_heirs, 'cancelled', 'cancel', 'cancelled', 'cancel', 'ended_cancelled',
        p_now,
        p_reason => 'its parent ended',
        p_cancelled_by => 'parent',
        p_detail => jsonb_build_object('source', 'parent', 'reason', 'its parent ended'),
        p_wake => false);
      told := told + cardinality(v_heirs);
      v_ended := array(
        select u.id from unnest(v_heirs) u(id)
        cross join lateral (
          select e.is_awaited from ff.execution e
          where e.partition_key = p_partition_key and e.execution_id = u.id
          offset 0) x
        where x.is_awaited);
      v_all := v_all || v_ended;
    end if;
  end loop;

  with item as materialized (
    select p_partition_key as pk, u.id,
           exists (
             select from ff.run_wait w
             where w.partition_key = p_partition_key and w.target_id = u.id and w.ended_at is null)
           or exists (
             select from ff.execution c
             where c.partition_key = p_partition_key and c.parent_id = u.id
               and case when c.ends_with_parent and c.phase <> 'terminal'
                     then true else false end) as is_pending
    from unnest(v_all) u(id)
    offset 0
  ),
  marked as (
    update ff.execution e set wakes_pending = i.is_pending
    from item i
    where e.partition_key = i.pk and e.execution_id = i.id
      and case when e.wakes_pending <> i.is_pending then true else false end
  )
  select array_agg(i.id) filter (where i.is_pending) into pending_ids from item i;
end;
$$;
