-- Lease executions: start a new attempt (T9), resume an attempt (T10) or reclaim (T21). The caller
-- has locked the executions and found them claimable.
--
-- A pending or reclaimed execution starts a new attempt, whose id is the claim id. The previous
-- attempt moves to the history. An interrupted execution resumes its attempt. p_reports_starts says
-- that the holder will call ff.start_executions.
--
-- A reclaim counts towards the limit of reclaims, except in two cases. It does not count if the
-- worker crashed before it started the execution. Nor does it count if the execution ran beside
-- others and had crashed at most once before.
drop function if exists ff._lease_executions;
create function ff._lease_executions(
  p_partition_key      smallint,
  p_execution_ids      uuid[],
  p_has_past           boolean,
  p_claim_id           uuid,
  p_worker_id          text,
  p_worker_instance_id text,
  p_lease_ttl          interval,
  p_now                timestamptz,
  p_reports_starts     boolean default false
)
returns table (
  execution_id        uuid,
  namespace           text,
  lane                text,
  task                text,
  claim_kind          text,
  rank                smallint,
  order_at            timestamptz,
  epoch               bigint,
  attempt_index       integer,
  attempt_id          uuid,
  attempt_type        text,
  lease_expires_at    timestamptz,
  attempt_deadline_at timestamptz,
  deadline_at         timestamptz,
  retry_count         integer,
  payload_encoding    text,
  payload             bytea,
  replay_count        integer,
  trace_context       text,
  crash_count         integer,
  generation          integer
)
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_xid        constant xid8 := pg_current_xact_id();
  v_generation constant integer := ff._enter_generation(p_partition_key);
  v_start      constant ff.lease_start :=
    case when p_reports_starts then 'waiting' else 'unreported' end;
begin
  if not p_has_past then
    -- All executions start their first attempt, which is the usual case. There is no history to
    -- move, and all attempt columns are empty.
    return query
    with item as materialized (
      select p_partition_key as pk, u.execution_id, u.n
      from unnest(p_execution_ids) with ordinality u(execution_id, n)
      offset 0
    ),
    leased as (
      update ff.execution e set
        phase = 'active',
        ownership = 'leased',
        eligibility = 'not_applicable',
        blocking_reason = 'none',
        blocked_at = null,
        line_id = null,
        refusal_count = null,
        attempt_state = 'running_attempt',
        cause = 'claim',
        version = e.version + 1,
        epoch = e.epoch + 1,
        lease_id = p_claim_id,
        lease_expires_at = greatest(p_now, e.transitioned_at) + p_lease_ttl,
        due_at = least(greatest(p_now, e.transitioned_at) + least(p_lease_ttl, e.attempt_timeout),
                       e.deadline_at),
        worker_id = p_worker_id,
        worker_instance_id = p_worker_instance_id,
        lease_start = v_start,
        started_at = greatest(p_now, e.transitioned_at),
        transitioned_at = greatest(p_now, e.transitioned_at),
        mutated_at = greatest(p_now, e.transitioned_at),
        total_attempt_count = 1,
        attempt_id = p_claim_id,
        attempt_type = case e.attempt_state when 'pending_replay_attempt'
                         then 'replay'::ff.attempt_type else 'initial' end,
        attempt_started_at = greatest(p_now, e.transitioned_at),
        attempt_deadline_at = greatest(p_now, e.transitioned_at) + e.attempt_timeout
      from item i
      where e.partition_key = i.pk and e.execution_id = i.execution_id
      returning e.execution_id, e.version, e.attempt_type, e.epoch, e.route_id, e.rank,
                e.order_at, e.lease_expires_at, e.attempt_deadline_at, e.deadline_at,
                e.retry_count, e.replay_count, e.payload_encoding, e.payload, e.namespace, e.flow_id,
                e.instance_tag, e.transitioned_at, i.n
    ),
    logged as (
      insert into ff.event (
        partition_key, generation, xid, execution_id, version, kind, attempt_index, lease_id, epoch,
        worker_instance_id, route_id, flow_id, namespace, instance_tag, occurred_at)
      select p_partition_key, v_generation, v_xid, l.execution_id, l.version, 'claimed', 0,
             p_claim_id, l.epoch,
             p_worker_instance_id, l.route_id, l.flow_id, l.namespace, l.instance_tag,
             l.transitioned_at
      from leased l
    )
    select l.execution_id, l.namespace, r.lane, r.task, 'fresh', l.rank, l.order_at, l.epoch, 0,
           p_claim_id, l.attempt_type::text, l.lease_expires_at, l.attempt_deadline_at,
           l.deadline_at, l.retry_count, l.payload_encoding, coalesce(l.payload, b.payload),
           l.replay_count, b.trace_context, 0, 0
    from leased l
    cross join lateral (
      select x.lane, x.task from ff.route x where x.route_id = l.route_id offset 0) r
    left join lateral (
      select x.payload, x.trace_context from ff.execution_body x
      where l.payload is null
        and x.partition_key = p_partition_key and x.execution_id = l.execution_id
      offset 0) b on true
    order by l.n;
    return;
  end if;

  return query
  with item as materialized (
    select p_partition_key as pk, u.execution_id, u.n, x.is_new, x.attempt_type, x.attempt_reason
    from unnest(p_execution_ids) with ordinality u(execution_id, n)
    cross join lateral (
      select e.phase = 'active' or e.attempt_state <> 'attempt_interrupted' as is_new,
             case when e.phase = 'active' then 'reclaim'::ff.attempt_type
                  when e.attempt_state = 'pending_retry_attempt' then 'retry'
                  when e.attempt_state = 'pending_replay_attempt' then 'replay'
                  else 'initial' end as attempt_type,
             case when e.phase = 'active' then e.ownership::text
                  when e.attempt_state = 'pending_retry_attempt'
                    then coalesce(e.failure_category, e.failure_class::text) end as attempt_reason
      from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = u.execution_id
      offset 0
    ) x
    offset 0
  ),
  past as (
    insert into ff.attempt (
      partition_key, execution_id, attempt_index, attempt_id, attempt_type, epoch, started_at,
      ended_at, ended_as, previous_attempt_index, attempt_reason, failure_class, failure_category,
      failure_reason, failure_detail, failure_place, last_lease_id, last_lease_end, last_lease_retry_at,
      last_worker_id, last_worker_instance_id)
    select e.partition_key, e.execution_id, e.attempt_index, e.attempt_id, e.attempt_type, e.epoch,
           e.attempt_started_at,
           coalesce(e.attempt_ended_at, greatest(p_now, e.transitioned_at)),
           coalesce(e.attempt_ended_as, 'interrupted_reclaimed'),
           e.previous_attempt_index, e.attempt_reason, e.failure_class, e.failure_category,
           e.failure_reason, e.failure_detail,
           -- A claim does not clear failure_place, so the value may be old: copy it only with a
           -- failure.
           case when e.failure_class is not null then e.failure_place end,
           coalesce(e.lease_id, e.last_lease_id),
           case when e.lease_id is null then e.last_lease_end else 'expire_lease' end,
           case when e.lease_id is null then e.last_lease_retry_at end,
           coalesce(e.worker_id, e.last_worker_id),
           coalesce(e.worker_instance_id, e.last_worker_instance_id)
    from item i
    cross join lateral (
      select x.*
      from ff.execution x
      where x.partition_key = i.pk and x.execution_id = i.execution_id
      offset 0
    ) e
    where p_has_past and i.is_new and e.total_attempt_count > 0
  ),
  leased as (
    update ff.execution e set
      phase = 'active',
      ownership = 'leased',
      eligibility = 'not_applicable',
      blocking_reason = 'none',
      line_id = null,
      refusal_count = null,
      attempt_state = 'running_attempt',
      cause = case when e.phase = 'active' then 'reclaim'::ff.cause
                   when i.is_new then 'claim' else 'resume' end,
      version = e.version + 1,
      epoch = e.epoch + 1,
      lease_id = p_claim_id,
      lease_expires_at = greatest(p_now, e.transitioned_at) + p_lease_ttl,
      due_at = least(
        greatest(p_now, e.transitioned_at) + least(
          p_lease_ttl, case when i.is_new then e.attempt_timeout else e.attempt_time_left end),
        e.deadline_at),
      worker_id = p_worker_id,
      worker_instance_id = p_worker_instance_id,
      reclaim_at = null,
      blocking_detail = null,
      blocked_at = null,
      progress_percent = case when not i.is_new then e.progress_percent end,
      progress_message = case when not i.is_new then e.progress_message end,
      progressed_at = case when not i.is_new then e.progressed_at end,
      lease_start = v_start,
      reclaim_count = e.reclaim_count + (e.phase = 'active')::integer,
      company_count = e.company_count + case
        when e.ownership <> 'lease_expired_reclaimable' then 0
        when e.lease_start = 'waiting' then 1
        -- An execution with two earlier crashes is a suspect, so this crash counts against it.
        when e.lease_start = 'beside' and e.crash_count <= 2 then 1
        else 0 end,
      started_at = coalesce(e.started_at, greatest(p_now, e.transitioned_at)),
      transitioned_at = greatest(p_now, e.transitioned_at),
      mutated_at = greatest(p_now, e.transitioned_at),
      total_attempt_count = case when i.is_new then e.total_attempt_count + 1 else e.total_attempt_count end,
      attempt_index = case when i.is_new then e.total_attempt_count else e.attempt_index end,
      attempt_id = case when i.is_new then p_claim_id else e.attempt_id end,
      attempt_type = case when i.is_new then i.attempt_type else e.attempt_type end,
      attempt_started_at = case when i.is_new then greatest(p_now, e.transitioned_at) else e.attempt_started_at end,
      attempt_reason = case when i.is_new then i.attempt_reason else e.attempt_reason end,
      previous_attempt_index = case when not i.is_new then e.previous_attempt_index
                                    when e.total_attempt_count > 0 then e.attempt_index end,
      -- An execution that crashed before may wait in its worker to run alone, so its timeout starts
      -- with ff.start_executions.
      attempt_deadline_at = case when v_start <> 'waiting' or e.crash_count = 0 then
        greatest(p_now, e.transitioned_at)
        + case when i.is_new then e.attempt_timeout else e.attempt_time_left end end,
      attempt_time_left = case when v_start = 'waiting' and e.crash_count > 0 then
        case when i.is_new then e.attempt_timeout else e.attempt_time_left end end,
      attempt_paused_at = null,
      attempt_pause_cause = null,
      attempt_ended_at = null,
      attempt_ended_as = null,
      failure_class = case when not i.is_new then e.failure_class end,
      failure_category = case when not i.is_new then e.failure_category end,
      failure_reason = case when not i.is_new then e.failure_reason end,
      failure_detail = case when not i.is_new then e.failure_detail end,
      last_lease_id = case when not i.is_new then e.last_lease_id end,
      last_lease_end = case when not i.is_new then e.last_lease_end end,
      last_lease_retry_at = case when not i.is_new then e.last_lease_retry_at end,
      last_worker_id = case when not i.is_new then e.last_worker_id end,
      last_worker_instance_id = case when not i.is_new then e.last_worker_instance_id end
    from item i
    where e.partition_key = i.pk and e.execution_id = i.execution_id
    returning e.execution_id, e.version, e.attempt_index, e.attempt_id, e.attempt_type, e.epoch,
              e.route_id, e.rank, e.order_at, e.lease_expires_at, e.attempt_deadline_at,
              e.deadline_at, e.retry_count, e.replay_count, e.payload_encoding, e.payload, e.cause, e.namespace,
              e.crash_count, e.flow_id, e.instance_tag, e.transitioned_at, i.n
  ),
  logged as (
    insert into ff.event (
      partition_key, generation, xid, execution_id, version, kind, attempt_index, lease_id, epoch,
      worker_instance_id, route_id, flow_id, namespace, instance_tag, occurred_at)
    select p_partition_key, v_generation, v_xid, l.execution_id, l.version,
           case l.cause when 'claim' then 'claimed'::ff.event_kind
                        when 'resume' then 'resumed' else 'reclaimed' end,
           l.attempt_index, p_claim_id, l.epoch, p_worker_instance_id, l.route_id, l.flow_id,
           l.namespace, l.instance_tag, l.transitioned_at
    from leased l
  )
  select l.execution_id, l.namespace, r.lane, r.task,
         case l.cause when 'claim' then 'fresh' when 'resume' then 'resumed' else 'reclaimed' end,
         l.rank, l.order_at, l.epoch, l.attempt_index, l.attempt_id, l.attempt_type::text,
         l.lease_expires_at, l.attempt_deadline_at, l.deadline_at, l.retry_count,
         l.payload_encoding, coalesce(l.payload, b.payload), l.replay_count, b.trace_context,
         l.crash_count, coalesce(b.generation, 0)
  from leased l
  cross join lateral (
    select x.lane, x.task from ff.route x where x.route_id = l.route_id offset 0) r
  left join lateral (
    select x.payload, x.trace_context, x.generation from ff.execution_body x
    where l.payload is null
      and x.partition_key = p_partition_key and x.execution_id = l.execution_id
    offset 0) b on true
  order by l.n;
end;
$$;

-- When distributed

-- An insert must be the outermost statement. So one statement writes the history, one writes leases
-- and events, and a third reads the answer.
drop function if exists ff._lease_executions;
create function ff._lease_executions(
  p_partition_key      smallint,
  p_execution_ids      uuid[],
  p_has_past           boolean,
  p_claim_id           uuid,
  p_worker_id          text,
  p_worker_instance_id text,
  p_lease_ttl          interval,
  p_now                timestamptz,
  p_reports_starts     boolean default false
)
returns table (
  execution_id        uuid,
  namespace           text,
  lane                text,
  task                text,
  claim_kind          text,
  rank                smallint,
  order_at            timestamptz,
  epoch               bigint,
  attempt_index       integer,
  attempt_id          uuid,
  attempt_type        text,
  lease_expires_at    timestamptz,
  attempt_deadline_at timestamptz,
  deadline_at         timestamptz,
  retry_count         integer,
  payload_encoding    text,
  payload             bytea,
  replay_count        integer,
  trace_context       text,
  crash_count         integer,
  generation          integer
)
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_xid        constant xid8 := pg_current_xact_id();
  v_generation constant integer := ff._enter_generation(p_partition_key);
  v_start      constant ff.lease_start :=
    case when p_reports_starts then 'waiting' else 'unreported' end;
begin
  if p_has_past then
    insert into ff.attempt (
      partition_key, execution_id, attempt_index, attempt_id, attempt_type, epoch, started_at,
      ended_at, ended_as, previous_attempt_index, attempt_reason, failure_class, failure_category,
      failure_reason, failure_detail, failure_place, last_lease_id, last_lease_end, last_lease_retry_at,
      last_worker_id, last_worker_instance_id)
    select p_partition_key, e.execution_id, e.attempt_index, e.attempt_id, e.attempt_type, e.epoch,
           e.attempt_started_at,
           coalesce(e.attempt_ended_at, greatest(p_now, e.transitioned_at)),
           coalesce(e.attempt_ended_as, 'interrupted_reclaimed'),
           e.previous_attempt_index, e.attempt_reason, e.failure_class, e.failure_category,
           e.failure_reason, e.failure_detail,
           -- A claim does not clear failure_place, so the value may be old: copy it only with a
           -- failure.
           case when e.failure_class is not null then e.failure_place end,
           coalesce(e.lease_id, e.last_lease_id),
           case when e.lease_id is null then e.last_lease_end else 'expire_lease' end,
           case when e.lease_id is null then e.last_lease_retry_at end,
           coalesce(e.worker_id, e.last_worker_id),
           coalesce(e.worker_instance_id, e.last_worker_instance_id)
    from unnest(p_execution_ids) u(execution_id)
    cross join lateral (
      select x.*
      from ff.execution x
      where x.partition_key = p_partition_key and x.execution_id = u.execution_id
      offset 0
    ) e
    where e.total_attempt_count > 0
      and (e.phase = 'active' or e.attempt_state <> 'attempt_interrupted');
  end if;

  with item as materialized (
    select u.execution_id, x.is_new, x.attempt_type, x.attempt_reason
    from unnest(p_execution_ids) u(execution_id)
    cross join lateral (
      select e.phase = 'active' or e.attempt_state <> 'attempt_interrupted' as is_new,
             case when e.phase = 'active' then 'reclaim'::ff.attempt_type
                  when e.attempt_state = 'pending_retry_attempt' then 'retry'
                  when e.attempt_state = 'pending_replay_attempt' then 'replay'
                  else 'initial' end as attempt_type,
             case when e.phase = 'active' then e.ownership::text
                  when e.attempt_state = 'pending_retry_attempt'
                    then coalesce(e.failure_category, e.failure_class::text) end as attempt_reason
      from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = u.execution_id
      offset 0
    ) x
    offset 0
  ),
  leased as (
    update ff.execution e set
      phase = 'active',
      ownership = 'leased',
      eligibility = 'not_applicable',
      blocking_reason = 'none',
      line_id = null,
      refusal_count = null,
      attempt_state = 'running_attempt',
      cause = case when e.phase = 'active' then 'reclaim'::ff.cause
                   when i.is_new then 'claim' else 'resume' end,
      version = e.version + 1,
      epoch = e.epoch + 1,
      lease_id = p_claim_id,
      lease_expires_at =
        (greatest(p_now, e.transitioned_at) at time zone 'UTC' + p_lease_ttl) at time zone 'UTC',
      due_at = least(
        (greatest(p_now, e.transitioned_at) at time zone 'UTC' + least(
           p_lease_ttl, case when i.is_new then e.attempt_timeout else e.attempt_time_left end))
          at time zone 'UTC',
        e.deadline_at),
      worker_id = p_worker_id,
      worker_instance_id = p_worker_instance_id,
      reclaim_at = null,
      blocking_detail = null,
      blocked_at = null,
      progress_percent = case when not i.is_new then e.progress_percent end,
      progress_message = case when not i.is_new then e.progress_message end,
      progressed_at = case when not i.is_new then e.progressed_at end,
      lease_start = v_start,
      reclaim_count = e.reclaim_count + (e.phase = 'active')::integer,
      company_count = e.company_count + case
        when e.ownership <> 'lease_expired_reclaimable' then 0
        when e.lease_start = 'waiting' then 1
        -- An execution with two earlier crashes is a suspect, so this crash counts against it.
        when e.lease_start = 'beside' and e.crash_count <= 2 then 1
        else 0 end,
      started_at = coalesce(e.started_at, greatest(p_now, e.transitioned_at)),
      transitioned_at = greatest(p_now, e.transitioned_at),
      mutated_at = greatest(p_now, e.transitioned_at),
      total_attempt_count = case when i.is_new then e.total_attempt_count + 1 else e.total_attempt_count end,
      attempt_index = case when i.is_new then e.total_attempt_count else e.attempt_index end,
      attempt_id = case when i.is_new then p_claim_id else e.attempt_id end,
      attempt_type = case when i.is_new then i.attempt_type else e.attempt_type end,
      attempt_started_at = case when i.is_new then greatest(p_now, e.transitioned_at) else e.attempt_started_at end,
      attempt_reason = case when i.is_new then i.attempt_reason else e.attempt_reason end,
      previous_attempt_index = case when not i.is_new then e.previous_attempt_index
                                    when e.total_attempt_count > 0 then e.attempt_index end,
      -- An execution that crashed before may wait in its worker to run alone, so its timeout starts
      -- with ff.start_executions.
      attempt_deadline_at = case when v_start <> 'waiting' or e.crash_count = 0 then
        (greatest(p_now, e.transitioned_at) at time zone 'UTC'
         + case when i.is_new then e.attempt_timeout else e.attempt_time_left end)
          at time zone 'UTC' end,
      attempt_time_left = case when v_start = 'waiting' and e.crash_count > 0 then
        case when i.is_new then e.attempt_timeout else e.attempt_time_left end end,
      attempt_paused_at = null,
      attempt_pause_cause = null,
      attempt_ended_at = null,
      attempt_ended_as = null,
      failure_class = case when not i.is_new then e.failure_class end,
      failure_category = case when not i.is_new then e.failure_category end,
      failure_reason = case when not i.is_new then e.failure_reason end,
      failure_detail = case when not i.is_new then e.failure_detail end,
      last_lease_id = case when not i.is_new then e.last_lease_id end,
      last_lease_end = case when not i.is_new then e.last_lease_end end,
      last_lease_retry_at = case when not i.is_new then e.last_lease_retry_at end,
      last_worker_id = case when not i.is_new then e.last_worker_id end,
      last_worker_instance_id = case when not i.is_new then e.last_worker_instance_id end
    from item i
    where e.partition_key = p_partition_key and e.execution_id = i.execution_id
    returning e.execution_id, e.version, e.attempt_index, e.epoch, e.route_id, e.cause, e.namespace,
              e.flow_id, e.instance_tag, e.transitioned_at
  )
  insert into ff.event (
    partition_key, generation, xid, execution_id, version, kind, attempt_index, lease_id, epoch,
    worker_instance_id, route_id, flow_id, namespace, instance_tag, occurred_at)
  select p_partition_key, v_generation, v_xid, l.execution_id, l.version,
         case when l.cause = 'claim' then 'claimed'::ff.event_kind
              when l.cause = 'resume' then 'resumed' else 'reclaimed' end,
         l.attempt_index, p_claim_id, l.epoch, p_worker_instance_id, l.route_id, l.flow_id,
         l.namespace, l.instance_tag, l.transitioned_at
  from leased l;

  return query select * from ff._read_claimed(
    p_partition_key, null, p_execution_ids, p_claim_id);
end;
$$;
