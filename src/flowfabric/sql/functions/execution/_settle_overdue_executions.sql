-- Settle overdue executions, and return how many were settled. Their live leases end.
--
-- Executions in p_over are past their deadline, and expire (T24). Executions in p_late are past
-- their attempt timeout. If the stored policy of a late execution allows no retry, the execution
-- expires (T24). If the policy allows a retry, the execution is retried (T24); but if its flow is
-- cancelled, the execution is cancelled instead (T23). The caller has locked the executions.
drop function if exists ff._settle_overdue_executions;
create function ff._settle_overdue_executions(
  p_partition_key smallint,
  p_over          uuid[],
  p_late          uuid[],
  p_now           timestamptz
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
  v_xid        xid8;
  v_generation integer;
  v_ended      uuid[] := coalesce(p_over, '{}');
  v_late       uuid[] := coalesce(p_late, '{}');
  v_hopeless   uuid[];
  v_waits      interval[] := '{}';
  v_retried    uuid[] := '{}';
  v_leased     uuid[];
  v_streaming  uuid[];
  v_id         uuid;
  v_row        record;
begin
  if cardinality(v_ended) > 0 then
    perform ff._end_executions(
      p_partition_key, p_over, 'expired', 'expire', 'expired', 'expire', 'ended_failure', p_now,
      p_class => 'timeout', p_category => 'execution_deadline',
      p_reason => 'its deadline has passed',
      p_detail => jsonb_build_object('category', 'execution_deadline'));
  end if;
  -- Cancel these one by one, because each gets the reason of its flow. This is rare.
  for v_row in
    select u.id, x.flow_id
    from unnest(v_late) u(id)
    cross join lateral (
      select e.flow_id from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = u.id
        and case when e.flow_id is null or e.phase <> 'active' then false else true end
      offset 0) x
  loop
    continue when not ff._is_flow_cancelled(p_partition_key, v_row.flow_id)
      or ff._timeout_retry_delay(p_partition_key, v_row.id) is null;
    continue when not exists (
      select from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = v_row.id
        and case when e.phase = 'active' then true else false end);
    perform ff._cancel_flow_members(p_partition_key, v_row.flow_id, array[v_row.id], p_now);
    v_ended := v_ended || v_row.id;
  end loop;
  if cardinality(v_ended) > 0 then
    -- Drop the executions that have just ended with their parent or flow.
    v_late := array(
      select u.id from unnest(v_late) u(id)
      cross join lateral (
        select e.phase from ff.execution e
        where e.partition_key = p_partition_key and e.execution_id = u.id
        offset 0) x
      where x.phase = 'active');
  end if;

  if cardinality(v_late) > 0 then
    v_xid := pg_current_xact_id();
    v_generation := ff._enter_generation(p_partition_key);
    select coalesce(array_agg(u.id) filter (
             where x.ownership = 'leased' and x.quota_ids is not null), '{}'),
           array_agg(u.id) filter (where x.has_stream)
      into v_leased, v_streaming
    from unnest(v_late) u(id)
    cross join lateral (
      select e.ownership, e.quota_ids, e.has_stream from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = u.id offset 0) x;
    foreach v_id in array v_late loop
      v_waits := array_append(v_waits, ff._timeout_retry_delay(p_partition_key, v_id));
    end loop;
    for v_id in
      with item as materialized (
        select p_partition_key as pk, x.execution_id, x.lease_id, x.worker_instance_id, u.wait
        from unnest(v_late, v_waits) u(execution_id, wait)
        cross join lateral (
          select e.execution_id, e.lease_id, e.worker_instance_id
          from ff.execution e
          where e.partition_key = p_partition_key and e.execution_id = u.execution_id
          offset 0
        ) x
        where u.wait is not null
        offset 0
      ),
      retried as (
        update ff.execution e set
          phase = 'runnable',
          ownership = 'unowned',
          eligibility = 'not_eligible_until_time',
          blocking_reason = 'waiting_for_retry_backoff',
          attempt_state = 'pending_retry_attempt',
          cause = 'time_out',
          version = e.version + 1,
          epoch = e.epoch + 1,
          retry_count = e.retry_count + 1,
          delayed_until =
            (greatest(p_now, e.transitioned_at) at time zone 'UTC' + i.wait) at time zone 'UTC',
          due_at = least(
            (greatest(p_now, e.transitioned_at) at time zone 'UTC' + i.wait) at time zone 'UTC',
            e.deadline_at),
          last_lease_id = e.lease_id,
          last_lease_end = 'time_out',
          last_lease_retry_at =
            (greatest(p_now, e.transitioned_at) at time zone 'UTC' + i.wait) at time zone 'UTC',
          last_worker_id = e.worker_id,
          last_worker_instance_id = e.worker_instance_id,
          lease_id = null,
          lease_expires_at = null,
          worker_id = null,
          worker_instance_id = null,
          attempt_deadline_at = null,
          attempt_ended_at = greatest(p_now, e.transitioned_at),
          attempt_ended_as = 'ended_failure',
          failure_class = 'timeout',
          failure_category = 'attempt_timeout',
          failure_reason = 'the attempt ran out of time',
          failure_detail = null,
          failure_place = null,
          transitioned_at = greatest(p_now, e.transitioned_at),
          mutated_at = greatest(p_now, e.transitioned_at)
        from item i
        where e.partition_key = i.pk and e.execution_id = i.execution_id
        returning e.execution_id, e.version, e.attempt_index, e.epoch, e.route_id, e.flow_id,
                  e.namespace, e.instance_tag, e.transitioned_at, e.delayed_until, i.lease_id,
                  i.worker_instance_id
      )
      insert into ff.event (
        partition_key, generation, xid, execution_id, version, kind, attempt_index, lease_id, epoch,
        worker_instance_id, route_id, flow_id, namespace, instance_tag, occurred_at, detail)
      select p_partition_key, v_generation, v_xid, r.execution_id, r.version, 'retry_scheduled',
             r.attempt_index,
             r.lease_id, r.epoch, r.worker_instance_id, r.route_id, r.flow_id, r.namespace,
             r.instance_tag, r.transitioned_at,
             jsonb_build_object('class', 'timeout', 'category', 'attempt_timeout',
                                'delayed_until', r.delayed_until)
      from retried r
      returning execution_id
    loop
      v_retried := v_retried || v_id;
    end loop;
    if v_leased <> '{}' then
      -- An execution that is not retried ends below; its slots are given back there.
      perform ff._release_gates(p_partition_key, array(
        select u.id from unnest(v_leased) u(id) where u.id = any (v_retried)));
    end if;
    if v_streaming is not null then
      perform ff._close_streams(p_partition_key, array(
        select u.id from unnest(v_streaming) u(id) where u.id = any (v_retried)),
        'time_out', p_now);
    end if;
    perform ff._hint_lease_lost(p_partition_key, v_retried);
    perform ff._drop_unanswered(p_partition_key, v_retried);

    v_hopeless := array(
      select u.id from unnest(v_late) u(id) where u.id <> all (v_retried));
    if cardinality(v_hopeless) > 0 then
      perform ff._end_executions(
        p_partition_key, v_hopeless, 'expired', 'time_out', 'expired', 'time_out', 'ended_failure',
        p_now, p_class => 'timeout', p_category => 'attempt_timeout',
        p_reason => 'the attempt ran out of time',
        p_detail => jsonb_build_object('category', 'attempt_timeout'));
    end if;
  end if;
  return cardinality(v_ended) + cardinality(v_late);
end;
$$;
