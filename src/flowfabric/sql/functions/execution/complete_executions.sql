-- Complete running executions with their results.
--
-- The end of each execution is propagated. Executions that wait for it are woken, and children
-- bound to it are cancelled. Downstream members of its flow become eligible or are skipped. If this
-- call could not finish the propagation, the answer has `wakes_pending`. In that case call
-- ff.resolve_wakes and ff.cancel_siblings.
--
-- p_lease_id, p_epoch, p_attempt_id and p_result apply to every item. Each of them replaces an
-- array, which must then be null.
--
-- Returns a row for every item that was not completed, that was completed before, or that has
-- `wakes_pending`. No row means that all items were completed.
--
-- Moves:    active -> terminal success (T12); an expired lease is marked (T19); propagation:
--           runnable blocked or suspended -> eligible (T4, T18), unfinished -> terminal cancelled
--           (T23) or skipped (T5); an overdue execution is settled as by ff.expire_executions (T24)
-- Refuses:  WF001 invalid_input · per item: busy · not_found · duplicate · not_active
--           · lease_revoked · lease_expired · stale_lease · invalid
-- Locks:    executions in id order, without waiting (if p_wait is true, waits up to 2 s for the
--           only item); then the executions that these ends affect, skipping locked ones
-- Repeat:   with the lease that completed the execution, the answer is `completed` again
-- Rights:   app
drop function if exists ff.complete_executions;
create function ff.complete_executions(
  p_partition_key    smallint,
  p_namespace        text,
  p_execution_ids    uuid[],
  p_lease_ids        uuid[],
  p_epochs           bigint[],
  p_attempt_ids      uuid[],
  p_results          bytea[],
  p_result_encodings text[] default null,
  p_wait             boolean default false,
  p_hint             boolean default true,
  p_lease_id         uuid default null,
  p_epoch            bigint default null,
  p_attempt_id       uuid default null,
  p_result           bytea default null
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
  v_now        timestamptz;
  v_xid        xid8;
  v_generation integer;
  v_seconds    bigint[];
  v_done       bigint[];
  v_routes     bigint[];
  v_awaited    uuid[];
  v_gates      bigint[];
  v_gated      uuid[];
  v_streaming  uuid[];
  v_has_hooks  boolean;
  v_wakes      record;
  v_rest       bigint[];
  v_judged     ff.verdict[];
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_batch(cardinality(p_execution_ids), array[
    array_upper(p_execution_ids, 1), cardinality(p_lease_ids), cardinality(p_epochs),
    cardinality(p_attempt_ids),
    cardinality(p_results), cardinality(p_result_encodings)], p_wait,
    array[
      array_lower(p_execution_ids, 1), array_ndims(p_execution_ids),
      array_lower(p_lease_ids, 1), array_ndims(p_lease_ids),
      array_lower(p_epochs, 1), array_ndims(p_epochs),
      array_lower(p_attempt_ids, 1), array_ndims(p_attempt_ids),
      array_lower(p_results, 1), array_ndims(p_results),
      array_lower(p_result_encodings, 1), array_ndims(p_result_encodings)]);
  if 1 < any (array[
       num_nonnulls(p_lease_ids, p_lease_id), num_nonnulls(p_epochs, p_epoch),
       num_nonnulls(p_attempt_ids, p_attempt_id), num_nonnulls(p_results, p_result)]) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'lease_id', 'problem',
      'lease_id, epoch, attempt_id and result must be null if there is an array of them'));
  end if;
  if p_wait then
    perform 1 from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id = p_execution_ids[1]
      and case when p_namespace is null then true else e.namespace = p_namespace end
    for no key update;
  end if;
  v_now := ff.now();
  v_xid := pg_current_xact_id();
  v_generation := ff._enter_generation(p_partition_key);
  if (select count(distinct u.id) from unnest(p_execution_ids) u(id))
     < cardinality(p_execution_ids) then
    -- If two items are for the same execution, only the first counts, even if it is refused.
    v_seconds := array(
      select i.n
      from (select u.n, row_number() over (partition by u.id order by u.n) as nth
            from unnest(p_execution_ids) with ordinality u(id, n)) i
      where i.nth > 1);
  end if;

  -- Items that fail the fence here are judged below, one by one. A row that changed after this
  -- statement began is locked but not updated, because this statement does not see its new version.
  -- Such an item is judged below too, and the caller repeats it.
  with asked as materialized (
    select u.id, coalesce(u.lease_id, p_lease_id) as lease_id,
           coalesce(u.epoch, p_epoch) as epoch, coalesce(u.attempt_id, p_attempt_id) as attempt_id,
           coalesce(u.result, p_result) as result, u.encoding, u.n
    from unnest(p_execution_ids, p_lease_ids, p_epochs, p_attempt_ids, p_results,
                p_result_encodings)
      with ordinality u(id, lease_id, epoch, attempt_id, result, encoding, n)
    where v_seconds is null or u.n <> all (v_seconds)
    order by u.id
    offset 0
  ),
  leased as materialized (
    select e.tid, a.result, a.encoding, a.n
    from asked a
    cross join lateral (
      select x.ctid as tid
      from ff.execution x
      where x.partition_key = p_partition_key and x.execution_id = a.id
        and case when x.ownership = 'leased'
                  and x.lease_id = a.lease_id and x.epoch = a.epoch and x.attempt_id = a.attempt_id
                  and x.lease_expires_at > greatest(v_now, x.transitioned_at)
                  and coalesce(least(x.deadline_at, x.attempt_deadline_at) > v_now, true)
                  and coalesce(octet_length(a.result), 0) <= 1048576
                  and coalesce(octet_length(a.encoding), 0) <= 64
                  and (p_namespace is null or x.namespace = p_namespace)
              then true else false end
      for no key update skip locked
    ) e
  ),
  done as (
    update ff.execution e set
      phase = 'terminal',
      ownership = 'unowned',
      eligibility = 'not_applicable',
      blocking_reason = 'none',
      outcome = 'success',
      attempt_state = 'attempt_terminal',
      cause = 'complete',
      version = e.version + 1,
      result = h.result,
      result_encoding = h.encoding,
      crash_count = 0,
      lone_crash_count = 0,
      last_lease_id = e.lease_id,
      last_lease_end = 'complete',
      last_lease_retry_at = null,
      last_worker_id = e.worker_id,
      last_worker_instance_id = e.worker_instance_id,
      lease_id = null,
      lease_expires_at = null,
      worker_id = null,
      worker_instance_id = null,
      due_at = null,
      trim_at = greatest(v_now, e.transitioned_at) + e.retention,
      attempt_deadline_at = null,
      attempt_time_left = null,
      attempt_ended_at = greatest(v_now, e.transitioned_at),
      attempt_ended_as = 'ended_success',
      terminal_at = greatest(v_now, e.transitioned_at),
      transitioned_at = greatest(v_now, e.transitioned_at),
      mutated_at = greatest(v_now, e.transitioned_at)
    from leased h
    where e.ctid = h.tid
      and case when e.partition_key = p_partition_key then true else false end
    returning h.n, e.execution_id, e.version, e.attempt_index, e.last_lease_id, e.epoch, e.route_id,
              e.last_worker_instance_id, e.flow_id, e.namespace, e.instance_tag, e.transitioned_at,
              e.is_awaited, e.quota_ids, e.has_stream
  ),
  logged as (
    insert into ff.event (
      partition_key, generation, xid, execution_id, version, kind, outcome, attempt_index, lease_id,
      epoch, worker_instance_id, route_id, flow_id, namespace, instance_tag, occurred_at)
    select p_partition_key, v_generation, v_xid, d.execution_id, d.version, 'completed', 'success',
           d.attempt_index, d.last_lease_id, d.epoch, d.last_worker_instance_id, d.route_id,
           d.flow_id, d.namespace, d.instance_tag, d.transitioned_at
    from done d
  )
  select array_agg(d.n), array_agg(d.route_id), array_agg(d.execution_id) filter (where d.is_awaited),
         array_agg(d.quota_ids[1]) filter (where cardinality(d.quota_ids) = 1),
         array_agg(d.execution_id) filter (where cardinality(d.quota_ids) > 1),
         array_agg(d.execution_id) filter (where d.has_stream),
         -- Looking for hooks here costs less than in a separate statement.
         exists (select from ff.hook h
                 where h.removed_at is null and h.kind in ('success', 'end'))
    into v_done, v_routes, v_awaited, v_gates, v_gated, v_streaming, v_has_hooks
  from done d;

  if v_gates is not null then
    perform ff._release_slots(p_partition_key, v_gates);
  end if;
  if v_gated is not null then
    perform ff._release_gates(p_partition_key, v_gated);
  end if;
  if v_streaming is not null then
    perform ff._close_streams(p_partition_key, v_streaming, 'complete', v_now);
  end if;
  if p_hint and v_done is not null then
    perform pg_notify('ff_ended', p_partition_key::text);
  end if;
  if v_has_hooks and v_done is not null then
    perform ff._submit_hooks(p_partition_key, array(
      select p_execution_ids[u.n]
      from unnest(v_done, v_routes) u(n, route_id)
      -- Look only at the routes of this call, so that other namespaces cost nothing.
      where u.route_id = any (array(
        select i.id
        from (select distinct x.id from unnest(v_routes) x(id)) i
        cross join lateral (
          select y.namespace, y.task from ff.route y where y.route_id = i.id offset 0) r
        where exists (
          select from ff.hook h
          where h.namespace = r.namespace and h.task = r.task
            and h.removed_at is null and h.kind in ('success', 'end')
          offset 0)))));
  end if;
  if v_awaited is not null then
    v_wakes := ff._propagate_end(p_partition_key, v_awaited, v_now);
    return query
    select u.n::integer, 'completed', jsonb_build_object('wakes_pending', true)
    from unnest(p_execution_ids) with ordinality u(id, n)
    where u.n = any (v_done)
      and (u.id = any (v_wakes.pending_ids)
           or v_wakes.has_more and u.id = v_awaited[1]);
  end if;
  if cardinality(v_done) = cardinality(p_execution_ids) then
    return;
  end if;

  v_rest := array(
    select n from generate_subscripts(p_execution_ids, 1) n where n <> all (coalesce(v_done, '{}')));
  v_judged := ff._enforce_leases(
    p_partition_key, p_namespace, 'complete',
    array(select p_execution_ids[n] from unnest(v_rest) with ordinality r(n, o) order by o),
    array(select coalesce(p_lease_ids[n], p_lease_id)
          from unnest(v_rest) with ordinality r(n, o) order by o),
    array(select coalesce(p_epochs[n], p_epoch)
          from unnest(v_rest) with ordinality r(n, o) order by o),
    array(select coalesce(p_attempt_ids[n], p_attempt_id)
          from unnest(v_rest) with ordinality r(n, o) order by o),
    false);
  return query
  select v_rest[j.item]::integer,
         case when j.word = 'repeat' then 'completed'
              when j.word = 'leased' and b.field is not null then 'invalid'
              -- The row was locked a moment ago and is free now: the caller must repeat.
              when j.word = 'leased' then 'busy'
              else j.word end,
         case when j.word = 'leased' and b.field is not null
                then jsonb_build_object('field', b.field, 'problem', b.problem)
              else j.detail end
  from unnest(v_judged) j
  cross join lateral (
    select w.words[1] as field, w.words[2] as problem
    from (select case
              when octet_length(coalesce(p_results[v_rest[j.item]], p_result)) > 1048576
                then array['result', 'is larger than 1 MiB (1048576 bytes)']
              when octet_length(p_result_encodings[v_rest[j.item]]) > 64
                then array['result_encoding', 'must be at most 64 bytes']
            end as words) w) b;
end;
$$;

-- When distributed

-- The outermost statement inserts the events, and returns only columns of events. Another statement
-- reads the other values.
drop function if exists ff.complete_executions;
create function ff.complete_executions(
  p_partition_key    smallint,
  p_namespace        text,
  p_execution_ids    uuid[],
  p_lease_ids        uuid[],
  p_epochs           bigint[],
  p_attempt_ids      uuid[],
  p_results          bytea[],
  p_result_encodings text[] default null,
  p_wait             boolean default false,
  p_hint             boolean default true,
  p_lease_id         uuid default null,
  p_epoch            bigint default null,
  p_attempt_id       uuid default null,
  p_result           bytea default null
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
  v_now        timestamptz;
  v_xid        xid8;
  v_generation integer;
  v_seconds    bigint[];
  v_row        record;
  v_done       bigint[];
  v_routes     bigint[];
  v_awaited    uuid[];
  v_gated      uuid[];
  v_streaming  uuid[];
  v_has_hooks  boolean;
  v_wakes      record;
  v_rest       bigint[];
  v_judged     ff.verdict[];
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_batch(cardinality(p_execution_ids), array[
    array_upper(p_execution_ids, 1), cardinality(p_lease_ids), cardinality(p_epochs),
    cardinality(p_attempt_ids),
    cardinality(p_results), cardinality(p_result_encodings)], p_wait,
    array[
      array_lower(p_execution_ids, 1), array_ndims(p_execution_ids),
      array_lower(p_lease_ids, 1), array_ndims(p_lease_ids),
      array_lower(p_epochs, 1), array_ndims(p_epochs),
      array_lower(p_attempt_ids, 1), array_ndims(p_attempt_ids),
      array_lower(p_results, 1), array_ndims(p_results),
      array_lower(p_result_encodings, 1), array_ndims(p_result_encodings)]);
  if 1 < any (array[
       num_nonnulls(p_lease_ids, p_lease_id), num_nonnulls(p_epochs, p_epoch),
       num_nonnulls(p_attempt_ids, p_attempt_id), num_nonnulls(p_results, p_result)]) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'lease_id', 'problem',
      'lease_id, epoch, attempt_id and result must be null if there is an array of them'));
  end if;
  if p_wait then
    perform 1 from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id = p_execution_ids[1]
      and case when p_namespace is null then true else e.namespace = p_namespace end
    for no key update;
  end if;
  v_now := ff.now();
  v_xid := pg_current_xact_id();
  v_generation := ff._enter_generation(p_partition_key);
  if (select count(distinct u.id) from unnest(p_execution_ids) u(id))
     < cardinality(p_execution_ids) then
    -- If two items are for the same execution, only the first counts, even if it is refused.
    v_seconds := array(
      select i.n
      from (select u.n, row_number() over (partition by u.id order by u.n) as nth
            from unnest(p_execution_ids) with ordinality u(id, n)) i
      where i.nth > 1);
  end if;

  -- Items that fail the fence here are judged below, one by one.
  for v_row in
    with asked as materialized (
      select u.id, coalesce(u.lease_id, p_lease_id) as lease_id,
             coalesce(u.epoch, p_epoch) as epoch, coalesce(u.attempt_id, p_attempt_id) as attempt_id,
             coalesce(u.result, p_result) as result, u.encoding, u.n
      from unnest(p_execution_ids, p_lease_ids, p_epochs, p_attempt_ids, p_results,
                  p_result_encodings)
        with ordinality u(id, lease_id, epoch, attempt_id, result, encoding, n)
      where v_seconds is null or u.n <> all (v_seconds)
      order by u.id
      offset 0
    ),
    leased as materialized (
      select e.execution_id, a.result, a.encoding
      from asked a
      cross join lateral (
        select x.execution_id
        from ff.execution x
        where x.partition_key = p_partition_key and x.execution_id = a.id
          and case when x.ownership = 'leased'
                    and x.lease_id = a.lease_id and x.epoch = a.epoch and x.attempt_id = a.attempt_id
                    and x.lease_expires_at > greatest(v_now, x.transitioned_at)
                    and coalesce(least(x.deadline_at, x.attempt_deadline_at) > v_now, true)
                    and coalesce(octet_length(a.result), 0) <= 1048576
                    and coalesce(octet_length(a.encoding), 0) <= 64
                    and (p_namespace is null or x.namespace = p_namespace)
                then true else false end
        for no key update skip locked
      ) e
    ),
    done as (
      update ff.execution e set
        phase = 'terminal',
        ownership = 'unowned',
        eligibility = 'not_applicable',
        blocking_reason = 'none',
        outcome = 'success',
        attempt_state = 'attempt_terminal',
        cause = 'complete',
        version = e.version + 1,
        result = h.result,
        result_encoding = h.encoding,
        crash_count = 0,
        lone_crash_count = 0,
        last_lease_id = e.lease_id,
        last_lease_end = 'complete',
        last_lease_retry_at = null,
        last_worker_id = e.worker_id,
        last_worker_instance_id = e.worker_instance_id,
        lease_id = null,
        lease_expires_at = null,
        worker_id = null,
        worker_instance_id = null,
        due_at = null,
        trim_at = (greatest(v_now, e.transitioned_at) at time zone 'UTC' + e.retention)
                  at time zone 'UTC',
        attempt_deadline_at = null,
        attempt_time_left = null,
        attempt_ended_at = greatest(v_now, e.transitioned_at),
        attempt_ended_as = 'ended_success',
        terminal_at = greatest(v_now, e.transitioned_at),
        transitioned_at = greatest(v_now, e.transitioned_at),
        mutated_at = greatest(v_now, e.transitioned_at)
      from leased h
      where e.partition_key = p_partition_key and e.execution_id = h.execution_id
      returning e.execution_id, e.version, e.attempt_index, e.last_lease_id, e.epoch, e.route_id,
                e.last_worker_instance_id, e.flow_id, e.namespace, e.instance_tag, e.transitioned_at
    )
    insert into ff.event as v (
      partition_key, generation, xid, execution_id, version, kind, outcome, attempt_index, lease_id,
      epoch, worker_instance_id, route_id, flow_id, namespace, instance_tag, occurred_at)
    select p_partition_key, v_generation, v_xid, d.execution_id, d.version, 'completed', 'success',
           d.attempt_index, d.last_lease_id, d.epoch, d.last_worker_instance_id, d.route_id,
           d.flow_id, d.namespace, d.instance_tag, d.transitioned_at
    from done d
    returning v.execution_id, v.route_id
  loop
    v_done := v_done || array_position(p_execution_ids, v_row.execution_id)::bigint;
    v_routes := v_routes || v_row.route_id;
  end loop;
  if v_done is not null then
    v_awaited := nullif(array(
      select e.execution_id
      from unnest(v_done) i(n)
      cross join lateral (
        select x.execution_id, x.is_awaited from ff.execution x
        where x.partition_key = p_partition_key and x.execution_id = p_execution_ids[i.n]
        offset 0) e
      where e.is_awaited), '{}');
    v_gated := array(select p_execution_ids[i.n] from unnest(v_done) i(n));
    v_streaming := v_gated;
    v_has_hooks := exists (
      select from ff.hook h where h.removed_at is null and h.kind in ('success', 'end'));
  end if;

  if v_gated is not null then
    perform ff._release_gates(p_partition_key, v_gated);
  end if;
  if v_streaming is not null then
    perform ff._close_streams(p_partition_key, v_streaming, 'complete', v_now);
  end if;
  if p_hint and v_done is not null then
    perform pg_notify('ff_ended', p_partition_key::text);
  end if;
  if v_has_hooks and v_done is not null then
    perform ff._submit_hooks(p_partition_key, array(
      select p_execution_ids[u.n]
      from unnest(v_done, v_routes) u(n, route_id)
      -- Look only at the routes of this call, so that other namespaces cost nothing.
      where u.route_id = any (array(
        select i.id
        from (select distinct x.id from unnest(v_routes) x(id)) i
        cross join lateral (
          select y.namespace, y.task from ff.route y where y.route_id = i.id offset 0) r
        where exists (
          select from ff.hook h
          where h.namespace = r.namespace and h.task = r.task
            and h.removed_at is null and h.kind in ('success', 'end')
          offset 0)))));
  end if;
  if v_awaited is not null then
    v_wakes := ff._propagate_end(p_partition_key, v_awaited, v_now);
    return query
    select u.n::integer, 'completed', jsonb_build_object('wakes_pending', true)
    from unnest(p_execution_ids) with ordinality u(id, n)
    where u.n = any (v_done)
      and (u.id = any (v_wakes.pending_ids)
           or v_wakes.has_more and u.id = v_awaited[1]);
  end if;
  if cardinality(v_done) = cardinality(p_execution_ids) then
    return;
  end if;

  v_rest := array(
    select n from generate_subscripts(p_execution_ids, 1) n where n <> all (coalesce(v_done, '{}')));
  v_judged := ff._enforce_leases(
    p_partition_key, p_namespace, 'complete',
    array(select p_execution_ids[n] from unnest(v_rest) with ordinality r(n, o) order by o),
    array(select coalesce(p_lease_ids[n], p_lease_id)
          from unnest(v_rest) with ordinality r(n, o) order by o),
    array(select coalesce(p_epochs[n], p_epoch)
          from unnest(v_rest) with ordinality r(n, o) order by o),
    array(select coalesce(p_attempt_ids[n], p_attempt_id)
          from unnest(v_rest) with ordinality r(n, o) order by o),
    false);
  return query
  select v_rest[j.item]::integer,
         case when j.word = 'repeat' then 'completed'
              when j.word = 'leased' and b.field is not null then 'invalid'
              -- The row was locked a moment ago and is free now: the caller must repeat.
              when j.word = 'leased' then 'busy'
              else j.word end,
         case when j.word = 'leased' and b.field is not null
                then jsonb_build_object('field', b.field, 'problem', b.problem)
              else j.detail end
  from unnest(v_judged) j
  cross join lateral (
    select w.words[1] as field, w.words[2] as problem
    from (select case
              when octet_length(coalesce(p_results[v_rest[j.item]], p_result)) > 1048576
                then array['result', 'is larger than 1 MiB (1048576 bytes)']
              when octet_length(p_result_encodings[v_rest[j.item]]) > 64
                then array['result_encoding', 'must be at most 64 bytes']
            end as words) w) b;
end;
$$;
