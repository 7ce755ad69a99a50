-- End executions from any state (T5, T22, T23, T24). The caller holds the row locks.
--
-- A live lease is taken away: the epoch rises, so every later call of the holder is refused, and
-- the holder gets a hint. An open attempt ends as p_ended_as; an attempt that had ended keeps its
-- end and its failure. Without an attempt the state stays pending_first_attempt. Waits of the
-- execution are deleted, its hooks are submitted, and its end is propagated. Returns whether propagation is pending.
drop function if exists ff._end_executions;
create function ff._end_executions(
  p_partition_key smallint,
  p_execution_ids uuid[],
  p_outcome       ff.outcome,
  p_cause         ff.cause,
  p_kind          ff.event_kind,
  p_lease_end     ff.lease_end,
  p_ended_as      ff.attempt_lifecycle,
  p_now           timestamptz,
  p_class         ff.failure_class default null,
  p_category      text default null,
  p_reason        text default null,
  p_cancelled_by  text default null,
  p_actor         text default null,
  p_detail        jsonb default null,
  p_wake          boolean default true
)
returns boolean
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_xid        constant xid8 := pg_current_xact_id();
  v_generation constant integer := ff._lock_generation(p_partition_key);
  v_losers     uuid[];
  v_idlers     uuid[];
  v_awaited    uuid[];
  v_wakes      record;
begin
  with item as materialized (
    select p_partition_key as pk, u.execution_id, x.lease_id, x.worker_instance_id, x.ownership,
           x.wait_left, p_class is not null and x.attempt_ended_as is null as is_failing
    from unnest(p_execution_ids) u(execution_id)
    cross join lateral (
      -- Read before the update: the event names the lease that ended.
      select e.lease_id, e.worker_instance_id, e.ownership, e.attempt_ended_as, e.wait_left
      from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = u.execution_id
      offset 0
    ) x
    offset 0
  ),
  ended as (
    update ff.execution e set
      phase = 'terminal',
      ownership = 'unowned',
      eligibility = 'not_applicable',
      blocking_reason = 'none',
      blocking_detail = null,
      blocked_at = null,
      outcome = p_outcome,
      attempt_state = case e.attempt_state when 'pending_first_attempt' then e.attempt_state
                                           else 'attempt_terminal' end,
      cause = p_cause,
      version = e.version + 1,
      epoch = e.epoch + (e.ownership = 'leased')::integer,
      last_lease_id = coalesce(e.lease_id, e.last_lease_id),
      last_lease_end = case when e.lease_id is null then e.last_lease_end
                            when e.ownership = 'leased' then p_lease_end
                            else 'expire_lease' end,
      last_lease_retry_at = case when e.lease_id is null then e.last_lease_retry_at end,
      last_worker_id = coalesce(e.worker_id, e.last_worker_id),
      last_worker_instance_id = coalesce(e.worker_instance_id, e.last_worker_instance_id),
      lease_id = null,
      lease_expires_at = null,
      worker_id = null,
      worker_instance_id = null,
      delayed_until = null,
      reclaim_at = null,
      due_at = null,
      trim_at = greatest(p_now, e.transitioned_at) + e.retention,
      attempt_deadline_at = null,
      attempt_time_left = null,
      wait_left = null,
      attempt_ended_at = case when e.total_attempt_count > 0
        then coalesce(e.attempt_ended_at, greatest(p_now, e.transitioned_at)) end,
      attempt_ended_as = case when e.total_attempt_count > 0
        then coalesce(e.attempt_ended_as, p_ended_as) end,
      failure_class = case when i.is_failing then p_class else e.failure_class end,
      failure_category = case when i.is_failing then p_category else e.failure_category end,
      failure_reason = case when i.is_failing then p_reason else e.failure_reason end,
      failure_detail = case when not i.is_failing then e.failure_detail end,
      cancellation_reason = case when p_outcome = 'cancelled' then p_reason end,
      cancelled_by = p_cancelled_by,
      terminal_at = greatest(p_now, e.transitioned_at),
      transitioned_at = greatest(p_now, e.transitioned_at),
      mutated_at = greatest(p_now, e.transitioned_at)
    from item i
    where e.partition_key = i.pk and e.execution_id = i.execution_id
    returning e.execution_id, e.version, e.attempt_index, e.total_attempt_count, e.epoch,
              e.route_id, e.flow_id, e.namespace, e.instance_tag, e.transitioned_at,
              e.is_awaited, i.lease_id, i.worker_instance_id, i.ownership, i.wait_left
  ),
  logged as (
    insert into ff.event (
      partition_key, generation, xid, execution_id, version, kind, outcome, attempt_index, lease_id,
      epoch, worker_instance_id, route_id, flow_id, namespace, instance_tag, occurred_at, actor,
      detail)
    select p_partition_key, v_generation, v_xid, d.execution_id, d.version, p_kind, p_outcome,
           case when d.total_attempt_count > 0 then d.attempt_index end,
           case when d.ownership = 'leased' or p_cause = 'exceed_reclaims' then d.lease_id end,
           d.epoch, d.worker_instance_id, d.route_id, d.flow_id, d.namespace, d.instance_tag,
           d.transitioned_at, p_actor, p_detail
    from ended d
  )
  select array_agg(d.execution_id) filter (where d.ownership = 'leased'),
         array_agg(d.execution_id) filter (where d.wait_left is not null),
         array_agg(d.execution_id) filter (where d.is_awaited)
    into v_losers, v_idlers, v_awaited
  from ended d;

  if v_idlers is not null then
    delete from ff.run_wait w
    using (select p_partition_key as pk, u.id from unnest(v_idlers) u(id) offset 0) i
    where w.partition_key = i.pk and w.waiter_id = i.id;
  end if;

  delete from ff.grant g
  using (select p_partition_key as pk, u.id from unnest(p_execution_ids) u(id) offset 0) i
  where g.partition_key = i.pk and g.execution_id = i.id;
  perform ff._hint_lease_lost(p_partition_key, v_losers);
  perform pg_notify('ff_ended', p_partition_key::text);
  perform ff._submit_hooks(p_partition_key, p_execution_ids);
  if not p_wake or v_awaited is null then
    return false;
  end if;
  v_wakes := ff._propagate_end(p_partition_key, v_awaited, p_now);
  return v_wakes.pending_ids is not null or v_wakes.has_more;
end;
$$;
