-- Lease the next executions, if all of them start their first attempt (T9). This is the usual
-- claim. The answer has the columns of ff.claim_executions, and these:
--
-- has_turn  false if another call with the same first route, p_routes[1], is under way; then
--           this call has locked nothing
-- is_empty  true if nothing is ready
-- locked    the executions that this call has locked, in claim order
-- locked_gates  null if every execution got its slots; otherwise the gates that this call has
--           locked
--
-- If execution_ids is null, nothing was leased, and the rows in `locked` stay locked. The caller
-- can then call ff._claim_in_rounds, which begins with these rows and continues after them in claim
-- order.
--
-- For each first route, only one call of this function runs at a time, because several calls would
-- lock and skip the same rows. A call that finds another call under way does not wait: it returns
-- has_turn false.
--
-- One statement locks the rows and reads most fields of the answer. A separate statement reads rare
-- fields, so that claims without these fields stay fast. The last statement leases the rows and
-- writes their events.
--
-- The caller has found nothing to reclaim in these routes. p_lane_gate is the gate of the lane, if
-- there is only one route and its lane has a limit. Otherwise p_lane_gate is null.
--
-- Locks: executions in claim order, skipping locked ones; then gates in id order, waiting for each
drop function if exists ff._claim_fresh;
create function ff._claim_fresh(
  p_partition_key      smallint,
  p_worker_id          text,
  p_worker_instance_id text,
  p_claim_id           uuid,
  p_limit              integer,
  p_lease_ttl          interval,
  p_routes             bigint[],
  p_turns              smallint[],
  p_floor_rank         smallint,
  p_floor_at           timestamptz,
  p_floor_id           uuid,
  p_reports_starts     boolean,
  p_generation         integer,
  p_lane_gate          bigint,
  out has_turn             boolean,
  out is_empty             boolean,
  out locked               uuid[],
  out locked_gates         bigint[],
  out execution_ids        uuid[],
  out route_nos            integer[],
  out ranks                smallint[],
  out order_ats            timestamptz[],
  out epochs               bigint[],
  out lease_expires_ats    timestamptz[],
  out attempt_deadline_ats timestamptz[],
  out deadline_ats         timestamptz[],
  out payload_encodings    text[],
  out payloads             bytea[],
  out trace_contexts       text[]
)
returns record
language plpgsql
as $$
#variable_conflict use_column
declare
  v_start    constant ff.lease_start :=
    case when p_reports_starts then 'waiting' else 'unreported' end;
  v_rank     constant smallint := coalesce(p_floor_rank, -1::smallint);
  v_at       constant timestamptz := coalesce(p_floor_at, '-infinity');
  v_id       constant uuid := coalesce(p_floor_id, '00000000-0000-0000-0000-000000000000');
  v_is_one   constant boolean := p_routes[2] is null;
  v_now      timestamptz;
  v_xid      xid8;
  v_ids      uuid[];
  v_tids     tid[];
  v_flows    uuid[];
  v_is_fresh boolean;
  v_is_gated boolean;
  v_gates    bigint[];
  v_asked    integer[];
  v_has_more boolean;
  v_seen     integer;
begin
  has_turn := pg_try_advisory_xact_lock(
    hashtextextended('ff.claim ' || p_partition_key, p_routes[1]));
  if not has_turn then
    return;
  end if;
  v_now := ff.now();

  if v_is_one then
    select array_agg(e.tid), array_agg(e.execution_id), array_agg(e.rank), array_agg(e.order_at),
           array_agg(e.payload), array_agg(e.flow_id) filter (where e.flow_id is not null),
           bool_and(e.is_open and e.is_fresh), bool_or(e.is_gated), bool_or(e.has_more)
      into v_tids, v_ids, ranks, order_ats, payloads, v_flows, v_is_fresh, v_is_gated, v_has_more
    -- The limit counts every locked row, even a row that another claim has just taken. So this
    -- statement locks at most p_limit rows.
    from (
      select e.tid, e.execution_id, e.rank, e.order_at, e.payload, e.flow_id, e.is_open, e.is_fresh,
             e.is_gated, e.has_more
      from (
        select x.ctid as tid
        from ff.execution x
        where x.partition_key = p_partition_key and x.route_id = p_routes[1]
          and x.phase = 'runnable' and x.eligibility = 'eligible_now'
          and (x.rank, x.order_at, x.execution_id) > (v_rank, v_at, v_id)
        order by x.rank, x.order_at, x.execution_id
        limit 2 * p_limit) c
      cross join lateral (
        select x.ctid as tid, x.execution_id, x.rank, x.order_at, x.payload, x.flow_id,
               x.phase = 'runnable' and x.eligibility = 'eligible_now' as is_open,
               x.attempt_state = 'pending_first_attempt' and x.total_attempt_count = 0
               and x.transitioned_at <= v_now and coalesce(x.deadline_at > v_now, true) as is_fresh,
               num_nonnulls(x.quota_ids, x.budget_ids) > 0 as is_gated,
               x.epoch > 0 or x.has_body
               or num_nonnulls(x.deadline_at, x.attempt_timeout, x.payload_encoding) > 0 as has_more
        from ff.execution x
        where x.ctid = c.tid
          and case when x.partition_key = p_partition_key then true else false end
        for no key update skip locked) e
      limit p_limit) e;
    locked := v_ids;
    if cardinality(v_ids) = p_limit then
      null;
    else
      -- If this query finds 2 * p_limit rows, other claims have locked some of them, and more rows
      -- may follow. ff._claim_in_rounds then makes the claim.
      select count(*) into v_seen
      from (
        select from ff.execution x
        where x.partition_key = p_partition_key and x.route_id = p_routes[1]
          and x.phase = 'runnable' and x.eligibility = 'eligible_now'
          and (x.rank, x.order_at, x.execution_id) > (v_rank, v_at, v_id)
        limit 2 * p_limit) w;
      is_empty := v_seen = 0;
      if v_seen = 2 * p_limit then
        return;
      end if;
    end if;
  else
    -- Lock the first rows of all routes. If another claim has locked one of these rows, lease
    -- nothing.
    select array_agg(e.tid), array_agg(e.execution_id) filter (where e.execution_id is not null),
           array_agg(e.rank), array_agg(e.order_at), array_agg(e.payload),
           array_agg(e.flow_id) filter (where e.flow_id is not null),
           bool_and(coalesce(e.is_open and e.is_fresh, false)), bool_or(e.is_gated),
           bool_or(e.has_more), array_agg(array_position(p_routes, e.route_id)), count(*) = 0
      into v_tids, v_ids, ranks, order_ats, payloads, v_flows, v_is_fresh, v_is_gated, v_has_more,
           route_nos, is_empty
    from ff._read_candidates(
      p_partition_key, p_routes, p_turns, false, v_rank, 0::smallint, v_at, v_id, p_limit, null,
      v_now) c
    left join lateral (
      select x.ctid as tid, x.execution_id, x.rank, x.order_at, x.payload, x.flow_id, x.route_id,
             x.phase = 'runnable' and x.eligibility = 'eligible_now' as is_open,
             x.attempt_state = 'pending_first_attempt' and x.total_attempt_count = 0
             and x.transitioned_at <= v_now and coalesce(x.deadline_at > v_now, true) as is_fresh,
             num_nonnulls(x.quota_ids, x.budget_ids) > 0 as is_gated,
             x.epoch > 0 or x.has_body
             or num_nonnulls(x.deadline_at, x.attempt_timeout, x.payload_encoding) > 0 as has_more
      from ff.execution x
      where x.partition_key = p_partition_key and x.execution_id = c.execution_id
      for no key update skip locked) e on true;
    locked := v_ids;
  end if;
  if v_is_fresh is not true then
    return;
  end if;
  if v_flows is not null and exists (
       select from unnest(v_flows) u(id)
       cross join lateral (
         select f.cancel_policy from ff.flow f
         where f.partition_key = p_partition_key and f.flow_id = u.id offset 0) f
       where f.cancel_policy <> 'flow_only') then
    return;
  end if;
  -- An execution that has not joined the gate of its lane is claimed by ff._claim_in_rounds.
  if p_lane_gate is not null and not v_is_gated then
    return;
  end if;
  if v_is_gated then
    -- All rows are locked, so no grant can be issued for them any more. Look for grants first:
    -- slots may be taken only for executions that will be leased.
    if exists (select from ff.grant g
               where g.partition_key = p_partition_key and g.execution_id = any (v_ids)) then
      return;
    end if;
    select array_agg(s.id), array_agg(s.asked) into v_gates, v_asked
    from (
      select g.id, count(*)::integer as asked
      from (
        -- This costs half as much as `unnest` in a lateral join.
        select unnest(x.quota_ids || x.budget_ids) as id
        from ff.execution x
        where x.ctid = any (v_tids)
          and case when x.partition_key = p_partition_key then true else false end) g
      group by g.id
      order by g.id) s;
    if p_lane_gate is not null
       and v_asked[array_position(v_gates, p_lane_gate)] is distinct from cardinality(v_ids) then
      return;
    end if;
    if v_gates is not null then
      locked_gates := ff._take_slots(p_partition_key, v_gates, v_asked, v_now);
      if locked_gates is not null then
        return;
      end if;
    end if;
  end if;
  if v_has_more then
    select array_agg(e.epoch + 1 order by u.n), array_agg(v_now + e.attempt_timeout order by u.n),
           array_agg(e.deadline_at order by u.n), array_agg(e.payload_encoding order by u.n),
           array_agg(coalesce(u.payload, b.payload) order by u.n),
           array_agg(b.trace_context order by u.n)
      into epochs, attempt_deadline_ats, deadline_ats, payload_encodings, payloads, trace_contexts
    from unnest(v_ids, payloads) with ordinality u(id, payload, n)
    cross join lateral (
      select x.epoch, x.attempt_timeout, x.deadline_at, x.payload_encoding, x.has_body
      from ff.execution x
      where x.partition_key = p_partition_key and x.execution_id = u.id offset 0) e
    left join lateral (
      select x.payload, x.trace_context from ff.execution_body x
      where e.has_body and x.partition_key = p_partition_key and x.execution_id = u.id
      offset 0) b on true;
    -- Usual values are left out, so that the caller need not decode them.
    if 1 = all (epochs) then
      epochs := null;
    end if;
  end if;

  v_xid := pg_current_xact_id();
  with leased as (
    update ff.execution e set
      phase = 'active',
      ownership = 'leased',
      eligibility = 'not_applicable',
      blocking_reason = 'none',
      refusal_count = null,
      attempt_state = 'running_attempt',
      cause = 'claim',
      version = e.version + 1,
      epoch = e.epoch + 1,
      lease_id = p_claim_id,
      lease_expires_at = v_now + p_lease_ttl,
      due_at = least(v_now + least(p_lease_ttl, e.attempt_timeout), e.deadline_at),
      worker_id = p_worker_id,
      worker_instance_id = p_worker_instance_id,
      lease_start = v_start,
      started_at = v_now,
      transitioned_at = v_now,
      mutated_at = v_now,
      total_attempt_count = 1,
      attempt_id = p_claim_id,
      attempt_type = 'initial',
      attempt_started_at = v_now,
      attempt_deadline_at = v_now + e.attempt_timeout
    where e.ctid = any (v_tids)
      and case when e.partition_key = p_partition_key then true else false end
      -- All rows are locked, so no grant can be issued for them any more.
      and not (exists (select from ff.grant g where g.partition_key = p_partition_key)
               and exists (
                 select from ff.grant g
                 where g.partition_key = p_partition_key and g.execution_id = any (v_ids)))
    returning e.execution_id, e.version, e.epoch, e.route_id, e.namespace, e.flow_id, e.instance_tag
  )
  insert into ff.event (
    partition_key, generation, xid, execution_id, version, kind, attempt_index, lease_id, epoch,
    worker_instance_id, route_id, flow_id, namespace, instance_tag, occurred_at)
  select p_partition_key, p_generation, v_xid, l.execution_id, l.version, 'claimed', 0, p_claim_id,
         l.epoch, p_worker_instance_id, l.route_id, l.flow_id, l.namespace, l.instance_tag, v_now
  from leased l;
  if found then
    execution_ids := v_ids;
    lease_expires_ats := array[v_now + p_lease_ttl];
  end if;
end;
$$;

-- When distributed

-- This form leases nothing, so ff._claim_in_rounds makes every claim. On distributed tables, the
-- statement that inserts the events cannot return the leased rows.
drop function if exists ff._claim_fresh;
create function ff._claim_fresh(
  p_partition_key      smallint,
  p_worker_id          text,
  p_worker_instance_id text,
  p_claim_id           uuid,
  p_limit              integer,
  p_lease_ttl          interval,
  p_routes             bigint[],
  p_turns              smallint[],
  p_floor_rank         smallint,
  p_floor_at           timestamptz,
  p_floor_id           uuid,
  p_reports_starts     boolean,
  p_generation         integer,
  p_lane_gate          bigint,
  out has_turn             boolean,
  out is_empty             boolean,
  out locked               uuid[],
  out locked_gates         bigint[],
  out execution_ids        uuid[],
  out route_nos            integer[],
  out ranks                smallint[],
  out order_ats            timestamptz[],
  out epochs               bigint[],
  out lease_expires_ats    timestamptz[],
  out attempt_deadline_ats timestamptz[],
  out deadline_ats         timestamptz[],
  out payload_encodings    text[],
  out payloads             bytea[],
  out trace_contexts       text[]
)
returns record
language plpgsql
as $$
begin
  is_empty := false;
end;
$$;
