-- Lease the next executions in one statement, if all of them start their first attempt (T9): the
-- usual claim. Returns them as ff.claim_executions does. If it returns no ids, nothing has changed; then
-- ff._claim_in_rounds must claim, unless is_empty says that nothing is ready; `vain` rows stay locked
-- that others had just taken, and the gates `held`. With p_is_gated it looks for limits, too.
--
-- The caller has found no grant and nothing to reclaim in these routes. Claims of the same routes
-- take turns, because claims at the same time would all lock and skip the same rows. A claim
-- never waits: without its turn it leaves the work to _claim_in_rounds.
--
-- Locks: executions in claim order, skipping locked ones
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
  p_is_gated           boolean,
  out is_empty             boolean,
  out vain                 integer,
  out held                 bigint[],
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
  v_has_turn constant boolean := pg_try_advisory_xact_lock(
    hashtextextended('ff.claim ' || p_partition_key, p_routes[1]));
  v_now      timestamptz;
  v_start    constant ff.lease_start :=
    case when p_reports_starts then 'waiting' else 'unreported' end;
  v_rank     constant smallint := coalesce(p_floor_rank, -1::smallint);
  v_at       constant timestamptz := coalesce(p_floor_at, '-infinity');
  v_id       constant uuid := coalesce(p_floor_id, '00000000-0000-0000-0000-000000000000');
  v_is_one   constant boolean := p_routes[2] is null and not p_is_gated;
  v_places   tid[];
  v_is_fresh boolean;
  v_gates    record;
  v_has_more boolean;
begin
  if not v_has_turn then
    return;
  end if;
  v_now := ff.now();

  if p_is_gated then
    v_gates := ff._pick_gated(
      p_partition_key, p_routes, p_turns, v_rank, v_at, v_id, p_limit,
      exists (select from ff.budget b where b.is_shut), v_now);
    vain := v_gates.vain;
    -- Grants are looked for before slots are taken: once all are locked, no grant can come.
    if v_gates.is_fresh is not true or ff._has_grants(p_partition_key) then
      return;
    end if;
    held := ff._take_slots(p_partition_key, v_gates.gate_ids, v_gates.asked, v_now);
    if held is not null then
      return;
    end if;
    v_places := v_gates.places;
  elsif not v_is_one then
    -- The first window of all routes, if others hold nothing of it.
    select array_agg(e.place), bool_and(coalesce(e.is_open and e.is_fresh, false)),
           count(*) filter (where not e.is_open), count(*) = 0
      into v_places, v_is_fresh, vain, is_empty
    from ff._read_candidates(
      p_partition_key, p_routes, p_turns, false, v_rank, 0::smallint, v_at, v_id, p_limit, null,
      v_now) c
    left join lateral (
      select x.ctid as place,
             x.phase = 'runnable' and x.eligibility = 'eligible_now' as is_open,
             x.attempt_state = 'pending_first_attempt' and x.total_attempt_count = 0
             and x.quota_ids is null and x.budget_ids is null
             and coalesce(x.deadline_at > v_now, true)
             -- A scalar subquery, so that the planner cannot read all flows.
             and case when x.flow_id is null then true else coalesce((
                   select f.cancel_policy = 'flow_only' from ff.flow f
                   where f.partition_key = p_partition_key and f.flow_id = x.flow_id), true) end
               as is_fresh
      from ff.execution x
      where x.partition_key = p_partition_key and x.execution_id = c.execution_id
      for no key update skip locked) e on true;
    if v_is_fresh is not true then
      return;
    end if;
  end if;

  with picked as materialized (
    -- The limit is outside, so that it counts rows locked in vain, too.
    (select e.place, e.is_open, e.is_fresh
     from (
       select x.ctid as place
       from ff.execution x
       where v_is_one and x.partition_key = p_partition_key and x.route_id = p_routes[1]
         and x.phase = 'runnable' and x.eligibility = 'eligible_now'
         and (x.rank, x.order_at, x.execution_id) > (v_rank, v_at, v_id)
       order by x.rank, x.order_at, x.execution_id
       limit 2 * p_limit) c
     cross join lateral (
       select x.ctid as place,
              x.phase = 'runnable' and x.eligibility = 'eligible_now' as is_open,
              -- A row that has changed since it was read is not visible at its new place.
              x.ctid = c.place
              and x.attempt_state = 'pending_first_attempt' and x.total_attempt_count = 0
              and x.quota_ids is null and x.budget_ids is null
              and coalesce(x.deadline_at > v_now, true)
              and case when x.flow_id is null then true else coalesce((
                    select f.cancel_policy = 'flow_only' from ff.flow f
                    where f.partition_key = p_partition_key and f.flow_id = x.flow_id), true) end
                as is_fresh
       from ff.execution x
       where x.ctid = c.place
         and case when x.partition_key = p_partition_key then true else false end
       for no key update skip locked) e
     limit p_limit)
    union all
    select u.place, true, true from unnest(v_places) u(place)
  ),
  leased as (
    update ff.execution e set
      phase = 'active',
      ownership = 'leased',
      eligibility = 'not_applicable',
      blocking_reason = 'none',
      attempt_state = 'running_attempt',
      cause = 'claim',
      version = e.version + 1,
      epoch = e.epoch + 1,
      lease_id = p_claim_id,
      lease_expires_at = greatest(v_now, e.transitioned_at) + p_lease_ttl,
      due_at = least(greatest(v_now, e.transitioned_at) + least(p_lease_ttl, e.attempt_timeout),
                     e.deadline_at),
      worker_id = p_worker_id,
      worker_instance_id = p_worker_instance_id,
      lease_start = v_start,
      started_at = greatest(v_now, e.transitioned_at),
      transitioned_at = greatest(v_now, e.transitioned_at),
      mutated_at = greatest(v_now, e.transitioned_at),
      total_attempt_count = 1,
      attempt_id = p_claim_id,
      attempt_type = 'initial',
      attempt_started_at = greatest(v_now, e.transitioned_at),
      attempt_deadline_at = greatest(v_now, e.transitioned_at) + e.attempt_timeout
    from picked p
    where e.ctid = p.place
      and case when e.partition_key = p_partition_key then true else false end
      and (select bool_and(x.is_open and x.is_fresh)
                  -- Others hold the rest of the window: there may be more behind it.
                  and (count(*) >= p_limit or not v_is_one or (
                         select count(*)
                         from (select from ff.execution c
                               where c.partition_key = p_partition_key and c.route_id = p_routes[1]
                                 and c.phase = 'runnable' and c.eligibility = 'eligible_now'
                                 and (c.rank, c.order_at, c.execution_id) > (v_rank, v_at, v_id)
                               limit 2 * p_limit) w) < 2 * p_limit)
                  -- Once all are locked: none may have got a grant since the caller looked.
                  and (p_is_gated or not ff._has_grants(p_partition_key))
           from picked x)
    returning e.execution_id, e.version, e.epoch, e.route_id, e.rank, e.order_at,
              e.lease_expires_at, e.attempt_deadline_at, e.deadline_at, e.payload_encoding,
              e.payload, e.namespace, e.flow_id, e.instance_tag, e.transitioned_at
  ),
  logged as (
    insert into ff.event (
      partition_key, generation, xid, execution_id, version, kind, attempt_index, lease_id, epoch,
      worker_instance_id, route_id, flow_id, namespace, instance_tag, occurred_at)
    select p_partition_key, p_generation, pg_current_xact_id(), l.execution_id, l.version,
           'claimed', 0, p_claim_id, l.epoch, p_worker_instance_id, l.route_id, l.flow_id,
           l.namespace, l.instance_tag, l.transitioned_at
    from leased l
  )
  select v_is_one and not exists (select from picked) and not exists (
           select from ff.execution c
           where c.partition_key = p_partition_key and c.route_id = p_routes[1]
             and c.phase = 'runnable' and c.eligibility = 'eligible_now'
             and (c.rank, c.order_at, c.execution_id) > (v_rank, v_at, v_id)),
         (select count(*) from picked x where not x.is_open),
         array_agg(l.execution_id),
         case when not v_is_one then array_agg(array_position(p_routes, l.route_id)) end,
         array_agg(l.rank), array_agg(l.order_at), array_agg(l.epoch),
         array_agg(l.lease_expires_at), array_agg(l.attempt_deadline_at), array_agg(l.deadline_at),
         array_agg(l.payload_encoding), array_agg(coalesce(l.payload, b.payload)),
         array_agg(b.trace_context),
         bool_or(num_nonnulls(l.attempt_deadline_at, l.deadline_at, l.payload_encoding,
                              b.trace_context) > 0)
    into is_empty, vain, execution_ids, route_nos, ranks, order_ats, epochs, lease_expires_ats,
         attempt_deadline_ats, deadline_ats, payload_encodings, payloads, trace_contexts, v_has_more
  from (
    select x.execution_id, x.route_id, x.rank, x.order_at, x.epoch, x.lease_expires_at,
           x.attempt_deadline_at, x.deadline_at, x.payload_encoding, x.payload
    from leased x
    order by x.rank, p_turns[array_position(p_routes, x.route_id)], x.order_at, x.execution_id
    offset 0) l
  left join lateral (
    select x.payload, x.trace_context from ff.execution_body x
    where l.payload is null
      and x.partition_key = p_partition_key and x.execution_id = l.execution_id
    offset 0) b on true;
  -- What is usual is left out: the caller need not decode it.
  if 1 = all (epochs) then
    epochs := null;
  end if;
  if v_now + p_lease_ttl = all (lease_expires_ats) then
    lease_expires_ats := lease_expires_ats[:1];
  end if;
  if not v_has_more then
    attempt_deadline_ats := null;
    deadline_ats := null;
    payload_encodings := null;
    trace_contexts := null;
  end if;
end;
$$;

-- When distributed

-- The statement that inserts events cannot return the rows, so every claim goes in rounds.
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
  p_is_gated           boolean,
  out is_empty             boolean,
  out vain                 integer,
  out held                 bigint[],
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
