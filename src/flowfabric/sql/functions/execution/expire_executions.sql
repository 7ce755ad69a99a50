-- End executions whose deadline has passed, and attempts that ran out of time.
--
-- A deadline ends an execution in any state. An attempt that exceeds its own time is settled like a
-- failure of class timeout: tried again if the stored policy allows, else expired; a member of a
-- cancelled flow that would be tried again is cancelled. All take a live lease away. due_in is the
-- time to the next due row.
--
-- Moves:    any unfinished state -> terminal expired (T24) · active -> runnable delayed (T24)
--           · active -> terminal cancelled (T23); those an end concerns: runnable blocked ->
--           eligible (T4), unfinished -> terminal cancelled (T23) or skipped (T5)
-- Refuses:  WF001 invalid_input
-- Locks:    executions in due order, skipping those that are locked
-- Replay:   nothing left to do the second time
-- Rights:   app
drop function if exists ff.expire_executions;
create function ff.expire_executions(p_partition_key smallint, p_limit integer default 500)
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
  v_now      timestamptz := ff.now();
  v_xid      xid8;
  v_ended    uuid[];
  v_late     uuid[];
  v_hopeless uuid[];
  v_count    integer;
  v_retried  uuid[];
  v_row      record;
begin
  perform ff._check_limit(p_limit);
  select array_agg(d.execution_id) filter (where d.is_ended),
         array_agg(d.execution_id) filter (where not d.is_ended)
    into v_ended, v_late
  from (
    select e.execution_id, coalesce(e.deadline_at <= v_now, false) as is_ended
    from ff.execution e
    where e.partition_key = p_partition_key and e.due_at <= v_now
      and case when e.phase <> 'terminal'
                and (e.deadline_at <= v_now
                     or (e.ownership = 'leased' and e.attempt_deadline_at <= v_now))
            then true else false end
    order by e.due_at
    limit p_limit
    for no key update skip locked
  ) d;

  if v_ended is not null then
    perform ff._end_executions(
      p_partition_key, v_ended, 'expired', 'expire', 'expired', 'expire', 'ended_failure', v_now,
      p_class => 'timeout', p_category => 'execution_deadline',
      p_reason => 'its deadline has passed',
      p_detail => jsonb_build_object('category', 'execution_deadline'));
  end if;
  -- One by one: it is rare, and each has the reason of its flow.
  for v_row in
    select u.id, x.flow_id
    from unnest(v_late) u(id)
    cross join lateral (
      select e.flow_id from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = u.id
        and case when e.flow_id is null or e.phase <> 'active' then false
                 when not ff._is_flow_cancelled(p_partition_key, e.flow_id) then false
                 else ff._timeout_wait(p_partition_key, u.id) is not null end
      offset 0) x
  loop
    continue when not exists (
      select from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = v_row.id
        and case when e.phase = 'active' then true else false end);
    perform ff._cancel_with_flow(p_partition_key, v_row.flow_id, array[v_row.id], v_now);
    v_ended := v_ended || v_row.id;
  end loop;
  if v_ended is not null then
    -- What has ended just now, with its parent or its flow, has no attempt any more.
    v_late := array(
      select u.id from unnest(v_late) u(id)
      cross join lateral (
        select e.phase from ff.execution e
        where e.partition_key = p_partition_key and e.execution_id = u.id
        offset 0) x
      where x.phase = 'active');
  end if;
  v_count := coalesce(cardinality(v_ended), 0) + coalesce(cardinality(v_late), 0);

  if cardinality(v_late) > 0 then
    v_xid := pg_current_xact_id();
    with item as materialized (
      select p_partition_key as pk, x.execution_id, x.lease_id, x.worker_instance_id, x.wait
      from unnest(v_late) u(execution_id)
      cross join lateral (
        select e.execution_id, e.lease_id, e.worker_instance_id,
               ff._timeout_wait(e.partition_key, e.execution_id) as wait
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
        delayed_until = greatest(v_now, e.transitioned_at) + i.wait,
        due_at = least(greatest(v_now, e.transitioned_at) + i.wait, e.deadline_at),
        last_lease_id = e.lease_id,
        last_lease_end = 'time_out',
        last_lease_retry_at = greatest(v_now, e.transitioned_at) + i.wait,
        last_worker_id = e.worker_id,
        last_worker_instance_id = e.worker_instance_id,
        lease_id = null,
        lease_expires_at = null,
        worker_id = null,
        worker_instance_id = null,
        attempt_deadline_at = null,
        attempt_ended_at = greatest(v_now, e.transitioned_at),
        attempt_ended_as = 'ended_failure',
        failure_class = 'timeout',
        failure_category = 'attempt_timeout',
        failure_reason = 'the attempt ran out of time',
        failure_detail = null,
        transitioned_at = greatest(v_now, e.transitioned_at),
        mutated_at = greatest(v_now, e.transitioned_at)
      from item i
      where e.partition_key = i.pk and e.execution_id = i.execution_id and i.wait is not null
      returning e.execution_id, e.version, e.attempt_index, e.epoch, e.route_id, e.flow_id,
                e.namespace, e.instance_tag, e.transitioned_at, e.delayed_until, i.lease_id,
                i.worker_instance_id
    ),
    logged as (
      insert into ff.event (
        partition_key, xid, execution_id, version, kind, attempt_index, lease_id, epoch,
        worker_instance_id, route_id, flow_id, namespace, instance_tag, occurred_at, detail)
      select p_partition_key, v_xid, r.execution_id, r.version, 'retry_scheduled', r.attempt_index,
             r.lease_id, r.epoch, r.worker_instance_id, r.route_id, r.flow_id, r.namespace,
             r.instance_tag, r.transitioned_at,
             jsonb_build_object('class', 'timeout', 'category', 'attempt_timeout',
                                'delayed_until', r.delayed_until)
      from retried r
    )
    select array_agg(r.execution_id) into v_retried from retried r;
    perform ff._hint_lost(p_partition_key, v_retried);

    v_hopeless := array(
      select u.id from unnest(v_late) u(id) where u.id <> all (coalesce(v_retried, '{}')));
    if cardinality(v_hopeless) > 0 then
      perform ff._end_executions(
        p_partition_key, v_hopeless, 'expired', 'time_out', 'expired', 'time_out', 'ended_failure',
        v_now, p_class => 'timeout', p_category => 'attempt_timeout',
        p_reason => 'the attempt ran out of time',
        p_detail => jsonb_build_object('category', 'attempt_timeout'));
    end if;
  end if;

  return query
  select v_count,
         (select e.due_at - v_now from ff.execution e
          where e.partition_key = p_partition_key and e.due_at > v_now
          order by e.due_at limit 1);
end;
$$;
