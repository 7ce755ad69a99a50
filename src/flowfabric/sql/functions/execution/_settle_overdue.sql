-- Settle overdue executions (T24, T23). p_over are past their deadline and end. p_late are past
-- their attempt timeout and are retried if the stored policy allows; a member of a cancelled flow
-- is cancelled instead. All lose a live lease. The caller holds the row locks. Returns how many
-- were settled.
drop function if exists ff._settle_overdue;
create function ff._settle_overdue(
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
  v_retried    uuid[];
  v_row        record;
begin
  if cardinality(v_ended) > 0 then
    perform ff._end_executions(
      p_partition_key, p_over, 'expired', 'expire', 'expired', 'expire', 'ended_failure', p_now,
      p_class => 'timeout', p_category => 'execution_deadline',
      p_reason => 'its deadline has passed',
      p_detail => jsonb_build_object('category', 'execution_deadline'));
  end if;
  -- One by one: this is rare, and each takes the reason of its flow.
  for v_row in
    select u.id, x.flow_id
    from unnest(v_late) u(id)
    cross join lateral (
      select e.flow_id from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = u.id
        and case when e.flow_id is null or e.phase <> 'active' then false
                 when not ff._is_flow_cancelled(p_partition_key, e.flow_id) then false
                 else ff._timeout_retry_delay(p_partition_key, u.id) is not null end
      offset 0) x
  loop
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
    v_generation := ff._lock_generation(p_partition_key);
    with item as materialized (
      select p_partition_key as pk, x.execution_id, x.lease_id, x.worker_instance_id, x.wait
      from unnest(v_late) u(execution_id)
      cross join lateral (
        select e.execution_id, e.lease_id, e.worker_instance_id,
               ff._timeout_retry_delay(e.partition_key, e.execution_id) as wait
        from ff.execution e
        where e.partition_key = p_partition_key and e.execution_id = u.execution_id
        offset 0
      ) x
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
        delayed_until = greatest(p_now, e.transitioned_at) + i.wait,
        due_at = least(greatest(p_now, e.transitioned_at) + i.wait, e.deadline_at),
        last_lease_id = e.lease_id,
        last_lease_end = 'time_out',
        last_lease_retry_at = greatest(p_now, e.transitioned_at) + i.wait,
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
        transitioned_at = greatest(p_now, e.transitioned_at),
        mutated_at = greatest(p_now, e.transitioned_at)
      from item i
      where e.partition_key = i.pk and e.execution_id = i.execution_id and i.wait is not null
      returning e.execution_id, e.version, e.attempt_index, e.epoch, e.route_id, e.flow_id,
                e.namespace, e.instance_tag, e.transitioned_at, e.delayed_until, i.lease_id,
                i.worker_instance_id
    ),
    logged as (
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
    )
    select array_agg(r.execution_id) into v_retried from retried r;
    perform ff._hint_lease_lost(p_partition_key, v_retried);

    v_hopeless := array(
      select u.id from unnest(v_late) u(id) where u.id <> all (coalesce(v_retried, '{}')));
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
