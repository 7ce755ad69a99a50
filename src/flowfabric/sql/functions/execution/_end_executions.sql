-- End executions: skip (T5), fail after too many reclaims (T22), cancel (T23), expire (T24), or end
-- by the timeout of a suspension (T25). The caller has locked the executions.
--
-- A live lease ends. The epoch of the execution rises, so that every later call of the holder is
-- refused, and the holder gets a hint. An open attempt ends as p_ended_as. An attempt that had
-- ended before keeps its end and its failure. If there was no attempt, the attempt state stays
-- pending_first_attempt.
--
-- The waits and grants of the execution are deleted. Its suspension, its waitpoints and its stream
-- are closed. Its hooks are submitted. If p_wake is true, its end is propagated, and the function
-- returns whether some of the propagation is pending. If p_wake is false, the caller must propagate
-- the end, and the function returns false.
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
  v_generation constant integer := ff._enter_generation(p_partition_key);
  v_ids        uuid[];
  v_leases     uuid[];
  v_workers    text[];
  v_owned      boolean[];
  v_failing    boolean[];
  v_losers     uuid[];
  v_idlers     uuid[];
  v_awaited    uuid[];
  v_asleep     uuid[];
  v_streaming  uuid[];
  v_wakes      record;
begin
  -- Read the lease before the update, because the event names it.
  select array_agg(u.id), array_agg(x.lease_id), array_agg(x.worker_instance_id),
         array_agg(x.ownership = 'leased'),
         array_agg(p_class is not null and x.attempt_ended_as is null),
         array_agg(u.id) filter (where x.ownership = 'leased'),
         array_agg(u.id) filter (where x.wait_left is not null),
         array_agg(u.id) filter (where x.is_awaited),
         array_agg(u.id) filter (where x.phase = 'suspended'),
         array_agg(u.id) filter (where x.has_stream)
    into v_ids, v_leases, v_workers, v_owned, v_failing, v_losers, v_idlers, v_awaited, v_asleep,
         v_streaming
  from unnest(p_execution_ids) u(id)
  cross join lateral (
    select e.lease_id, e.worker_instance_id, e.ownership, e.attempt_ended_as, e.wait_left,
           e.is_awaited, e.phase, e.has_stream
    from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id = u.id
    offset 0
  ) x;

  with item as materialized (
    select p_partition_key as pk, u.execution_id, u.lease_id, u.worker_instance_id, u.is_leased,
           u.is_failing
    from unnest(v_ids, v_leases, v_workers, v_owned, v_failing)
      u(execution_id, lease_id, worker_instance_id, is_leased, is_failing)
    offset 0
  ),
  ended as (
    update ff.execution e set
      phase = 'terminal',
      ownership = 'unowned',
      eligibility = 'not_applicable',
      line_id = null,
      refusal_count = null,
      blocking_reason = 'none',
      blocking_detail = null,
      blocked_at = null,
      outcome = p_outcome,
      attempt_state = case when e.attempt_state = 'pending_first_attempt' then e.attempt_state
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
      trim_at =
        (greatest(p_now, e.transitioned_at) at time zone 'UTC' + e.retention) at time zone 'UTC',
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
      failure_place = case when not i.is_failing then e.failure_place end,
      cancellation_reason = case when p_outcome = 'cancelled' then p_reason end,
      cancelled_by = p_cancelled_by,
      terminal_at = greatest(p_now, e.transitioned_at),
      transitioned_at = greatest(p_now, e.transitioned_at),
      mutated_at = greatest(p_now, e.transitioned_at)
    from item i
    where e.partition_key = i.pk and e.execution_id = i.execution_id
    returning e.execution_id, e.version, e.attempt_index, e.total_attempt_count, e.epoch,
              e.route_id, e.flow_id, e.namespace, e.instance_tag, e.transitioned_at,
              i.lease_id, i.worker_instance_id, i.is_leased
  )
  insert into ff.event (
    partition_key, generation, xid, execution_id, version, kind, outcome, attempt_index, lease_id,
    epoch, worker_instance_id, route_id, flow_id, namespace, instance_tag, occurred_at, actor,
    detail)
  select p_partition_key, v_generation, v_xid, d.execution_id, d.version, p_kind, p_outcome,
         case when d.total_attempt_count > 0 then d.attempt_index end,
         case when d.is_leased or p_cause = 'exceed_reclaims' then d.lease_id end,
         d.epoch, d.worker_instance_id, d.route_id, d.flow_id, d.namespace, d.instance_tag,
         d.transitioned_at, p_actor, p_detail
  from ended d;

  if v_idlers is not null then
    delete from ff.run_wait w
    using (select p_partition_key as pk, u.id from unnest(v_idlers) u(id) offset 0) i
    where w.partition_key = i.pk and w.waiter_id = i.id;
  end if;

  if v_asleep is not null then
    update ff.suspension s set
      closed_at = greatest(p_now, s.suspended_at),
      close_reason = case
        when p_cause = 'time_out_suspension' then 'timed_out_' || s.on_timeout
        when p_cause = 'expire' then 'expired:execution_deadline'
        when p_cause = 'skip' then 'skipped'
        else 'cancelled' end
    from (select p_partition_key as pk, u.id from unnest(v_asleep) u(id) offset 0) i
    where s.partition_key = i.pk and s.execution_id = i.id and s.closed_at is null;
  end if;

  update ff.waitpoint w set closed_at = greatest(p_now, w.created_at), close_reason = 'ended'
  from (select p_partition_key as pk, u.id from unnest(p_execution_ids) u(id) offset 0) i
  where w.partition_key = i.pk and w.execution_id = i.id and w.closed_at is null;

  delete from ff.grant g
  using (select p_partition_key as pk, u.id from unnest(p_execution_ids) u(id) offset 0) i
  where g.partition_key = i.pk and g.execution_id = i.id;
  if v_losers is not null then
    perform ff._release_gates(p_partition_key, v_losers);
  end if;
  if v_streaming is not null then
    perform ff._close_streams(p_partition_key, v_streaming, p_lease_end, p_now);
  end if;
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
