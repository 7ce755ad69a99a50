-- Lease the next executions of the routes that a worker covers.
--
-- A worker covers a route if the route is of its namespace and has one of its lanes and tasks (null
-- means any), the worker offers all of the route's capabilities, and the lane is open to claims.
-- Of the routes with a code version it covers those of p_code_versions, and of p_unserved (from
-- ff.list_unserved_routes) those whose version still has no live worker. With p_finish_only it
-- covers no route without a code version: it begins nothing new.
--
-- The claim order is exactly priority, order_at, id. Among equal priorities the lane p_first_lane
-- goes first, so a worker of several lanes can rotate them. The floor lets a worker that drains a
-- backlog start where its last full batch ended, instead of scanning dead index entries.
--
-- Executions granted to another worker are skipped; a claimed execution loses its grant. An
-- execution past its deadline is ended as by ff.expire_executions, and not leased.
-- crash_count is the number of workers in a row that vanished with the execution; from 2 on, the
-- worker must run it alone. If p_reports_starts is set, the worker calls ff.start_executions before
-- it runs a handler, and a crash counts only against executions it has started.
--
-- Moves:    runnable -> active (T9 new attempt, T10 resumed), active -> active (T21 reclaimed),
--           active -> terminal failed (T22 over the limit of reclaims, or three crashes alone),
--           unfinished -> terminal expired (T24 past its deadline);
--           propagation: runnable blocked -> eligible (T4), unfinished -> terminal cancelled (T23)
--           or skipped (T5)
-- Refuses:  WF001 invalid_input
-- Locks:    executions in claim order, skipping locked ones; then their grants
-- Replay:   the same p_claim_id returns the executions that it leased and still holds
-- Rights:   app
drop function if exists ff.claim_executions;
create function ff.claim_executions(
  p_partition_key      smallint,
  p_namespace          text,
  p_worker_id          text,
  p_worker_instance_id text,
  p_claim_id           uuid,
  p_lanes              text[],
  p_tasks              text[],
  p_capabilities       text[],
  p_limit              integer,
  p_lease_ttl          interval,
  p_first_lane         text default null,
  p_floor_rank         smallint default null,
  p_floor_at           timestamptz default null,
  p_floor_id           uuid default null,
  p_reports_starts     boolean default false,
  p_code_versions      text[] default null,
  p_unserved           bigint[] default null,
  p_finish_only        boolean default false
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
security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
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
  v_namespace  constant text := coalesce(p_namespace, '');
  v_now        timestamptz;
  v_slot_claim uuid;
  v_slot_ids   uuid[];
  v_routes     bigint[];
  v_turns      smallint[];
  v_unserved   bigint[];
  v_reclaiming boolean;
  v_granted    boolean;
  v_left       uuid[];
  v_round      record;
  v_window     integer := p_limit;
  v_from_rank  smallint := coalesce(p_floor_rank, -1::smallint);
  v_from_turn  smallint := 0;
  v_from_at    timestamptz := coalesce(p_floor_at, '-infinity');
  v_from_id    uuid := coalesce(p_floor_id, '00000000-0000-0000-0000-000000000000');
  v_seen       bigint := 0;
  v_need       integer;
  v_vain       integer := 0;
  v_picked     uuid[] := '{}';
  v_capped     uuid[] := '{}';
  v_has_past   boolean := false;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_claim(p_worker_id, p_worker_instance_id, p_claim_id, p_capabilities, p_limit,
                          p_lease_ttl);

  select s.claim_id, s.execution_ids into v_slot_claim, v_slot_ids
  from ff.claim_slot s
  where s.partition_key = p_partition_key and s.namespace = v_namespace
    and s.worker_instance_id = p_worker_instance_id;
  if v_slot_claim = p_claim_id then
    return query select * from ff._read_claimed(
      p_partition_key, p_namespace, v_slot_ids, p_claim_id);
    return;
  end if;

  v_now := ff.now();
  if p_finish_only is not true then
    select array_agg(r.route_id order by r.route_id),
           array_agg((r.lane <> coalesce(p_first_lane, r.lane))::integer::smallint
                     order by r.route_id)
      into v_routes, v_turns
    from (
      -- By the index if the caller names its tasks, else all routes.
      select k.route_id, k.lane, k.namespace, k.capabilities
      from (select distinct u.task from unnest(p_tasks) u(task)) t
      cross join lateral (
        -- Two branches, so that the index finds the namespace, too.
        select x.route_id, x.lane, x.namespace, x.capabilities
        from ff.route x
        where x.task = t.task and x.namespace = p_namespace and x.code_version is null
        union all
        select x.route_id, x.lane, x.namespace, x.capabilities
        from ff.route x
        where p_namespace is null and x.task = t.task and x.code_version is null) k
      union all
      select x.route_id, x.lane, x.namespace, x.capabilities
      from ff.route x
      where p_tasks is null and x.namespace = p_namespace and x.code_version is null
      union all
      select x.route_id, x.lane, x.namespace, x.capabilities
      from ff.route x where num_nonnulls(p_tasks, p_namespace) = 0 and x.code_version is null
    ) r
    join ff.lane l on l.namespace = r.namespace and l.lane = r.lane
    where (p_lanes is null or r.lane = any (p_lanes))
      and (p_namespace is null or r.namespace = p_namespace)
      and r.capabilities <@ p_capabilities
      and (l.state in ('active', 'draining') or l.resumes_at <= v_now);
  end if;
  if cardinality(p_unserved) > 0 then
    v_unserved := ff._read_unserved(p_unserved, v_now);
  end if;
  -- A statement of its own, so that a worker without code versions does not pay for it.
  if cardinality(p_code_versions) > 0 or cardinality(v_unserved) > 0 then
    select v_routes || array_agg(r.route_id order by r.route_id),
           v_turns || array_agg((r.lane <> coalesce(p_first_lane, r.lane))::integer::smallint
                                order by r.route_id)
      into v_routes, v_turns
    from (
      select k.route_id, k.lane, k.namespace, k.capabilities
      from (select distinct v.version, u.task from unnest(p_code_versions) v(version)
            cross join unnest(p_tasks) u(task)) t
      cross join lateral (
        select x.route_id, x.lane, x.namespace, x.capabilities
        from ff.route x
        where x.task = t.task and x.code_version = t.version and x.namespace = p_namespace
        union all
        select x.route_id, x.lane, x.namespace, x.capabilities
        from ff.route x
        where p_namespace is null and x.task = t.task and x.code_version = t.version) k
      union all
      select x.route_id, x.lane, x.namespace, x.capabilities
      from ff.route x
      where p_tasks is null and x.namespace = p_namespace
        and x.code_version = any (p_code_versions)
      union all
      select x.route_id, x.lane, x.namespace, x.capabilities
      from ff.route x
      where num_nonnulls(p_tasks, p_namespace) = 0 and x.code_version = any (p_code_versions)
      union all
      select k.route_id, k.lane, k.namespace, k.capabilities
      from unnest(v_unserved) u(id)
      cross join lateral (
        select x.route_id, x.lane, x.namespace, x.capabilities, x.task, x.code_version
        from ff.route x where x.route_id = u.id offset 0) k
      where (p_tasks is null or k.task = any (p_tasks))
        and (p_code_versions is null or k.code_version <> all (p_code_versions))
    ) r
    join ff.lane l on l.namespace = r.namespace and l.lane = r.lane
    where (p_lanes is null or r.lane = any (p_lanes))
      and (p_namespace is null or r.namespace = p_namespace)
      and r.capabilities <@ p_capabilities
      and (l.state in ('active', 'draining') or l.resumes_at <= v_now);
  end if;
  if v_routes is null then
    return;
  end if;
  select exists (
           select from ff.execution e
           where e.partition_key = p_partition_key
             and e.ownership in ('lease_expired_reclaimable', 'lease_revoked')
             and e.reclaim_at is null and e.line_id is null),
         exists (
           select from ff.grant g
           where g.partition_key = p_partition_key and g.expires_at > '-infinity'
             and g.expires_at > v_now)
    into v_reclaiming, v_granted;

  -- Each round reads the next window of candidates in order, without locks, then locks them in that
  -- order and skips locked rows. The next round starts after the window. Rows locked in vain stay
  -- locked: once there could be more of them than the limit, candidates are locked one by one.
  loop
    v_need := p_limit - cardinality(v_picked);
    if v_vain + v_need <= p_limit then
      select r.picked, r.capped, r.has_past, r.vain, r.seen, r.is_cut, r.rank, r.turn,
             r.order_at, r.execution_id
        into v_round
      from ff._pick_candidates(
        p_partition_key, v_routes, v_turns, v_reclaiming, v_from_rank, v_from_turn, v_from_at,
        v_from_id, v_window, v_need, case when v_granted then p_worker_id end, v_now) r;
    else
      select r.picked, r.capped, r.has_past, r.vain, r.seen, r.is_cut, r.rank, r.turn,
             r.order_at, r.execution_id
        into v_round
      from ff._pick_one_by_one(
        p_partition_key, v_routes, v_turns, v_reclaiming, v_from_rank, v_from_turn, v_from_at,
        v_from_id, v_window, v_need, p_limit - v_vain,
        case when v_granted then p_worker_id end, v_now) r;
    end if;
    -- A grant may have been issued between reading a row and locking it; from here on none can.
    if v_round.picked <> '{}' or v_round.capped <> '{}' then
      v_granted := exists (select from ff.grant g where g.partition_key = p_partition_key);
      if v_granted then
        v_left := ff._not_granted_elsewhere(p_partition_key, v_round.picked, p_worker_id, v_now);
        v_vain := v_vain + cardinality(v_round.picked) - cardinality(v_left);
        v_round.picked := v_left;
        v_round.capped := ff._not_granted_elsewhere(
          p_partition_key, v_round.capped, p_worker_id, v_now);
      end if;
    end if;
    v_picked := v_picked || v_round.picked;
    v_capped := v_capped || v_round.capped;
    v_has_past := v_has_past or v_round.has_past;
    v_seen := v_seen + v_round.seen;
    v_vain := v_vain + v_round.vain;
    exit when cardinality(v_picked) = p_limit
           or cardinality(v_picked) + cardinality(v_capped) >= 2 * p_limit
           or (v_round.seen < v_window and not v_round.is_cut);
    -- If others hold a whole window, they probably hold more: widen it.
    v_window := case when v_round.picked = '{}' and v_round.vain = 0 and v_round.capped = '{}'
                       then least(v_window * 2, 8000)
                     else greatest(p_limit - cardinality(v_picked), 20) end;
    v_from_rank := v_round.rank;
    v_from_turn := v_round.turn;
    v_from_at := v_round.order_at;
    v_from_id := v_round.execution_id;
  end loop;

  if cardinality(v_capped) > 0 then
    perform ff._settle_overdue(p_partition_key, array(
      select u.id from unnest(v_capped) u(id)
      cross join lateral (
        select e.deadline_at from ff.execution e
        where e.partition_key = p_partition_key and e.execution_id = u.id
        offset 0) x
      where x.deadline_at <= v_now), null, v_now);
    perform ff._fail_over_reclaim_limit(p_partition_key, v_capped, v_now);
    -- Children of the ended ones may be among the picked, and have ended with them.
    v_picked := array(
      select u.id from unnest(v_picked) with ordinality u(id, n)
      cross join lateral (
        select e.phase from ff.execution e
        where e.partition_key = p_partition_key and e.execution_id = u.id
        offset 0) x
      where x.phase <> 'terminal'
      order by u.n);
  end if;
  if v_seen = 0 then
    -- No candidates, unless the original of this repeat has claimed since the slot was read.
    return query
    select c.* from ff.claim_slot s
    cross join lateral ff._read_claimed(
      p_partition_key, p_namespace, s.execution_ids, p_claim_id) c
    where s.partition_key = p_partition_key and s.namespace = v_namespace
      and s.worker_instance_id = p_worker_instance_id and s.claim_id = p_claim_id;
    return;
  end if;
  if cardinality(v_picked) > 0 then
    if v_granted then
      delete from ff.grant g
      using (select p_partition_key as pk, u.id from unnest(v_picked) u(id) offset 0) i
      where g.partition_key = i.pk and g.execution_id = i.id;
    end if;
    return query select * from ff._lease_executions(
      p_partition_key, v_picked, v_has_past, p_claim_id, p_worker_id, p_worker_instance_id,
      p_lease_ttl, v_now, coalesce(p_reports_starts, false));
  end if;

  -- Written last, and only if the slot is still as it was read first: a repeat that overlaps its
  -- original waits here, fails, and reads the original's answer when it is called again. The slot
  -- is written even if every candidate is locked, because the original may hold them: only one
  -- counts.
  insert into ff.claim_slot as s (
    partition_key, namespace, worker_instance_id, claim_id, claimed_at, execution_ids)
  values (p_partition_key, v_namespace, p_worker_instance_id, p_claim_id, v_now, v_picked)
  on conflict (partition_key, namespace, worker_instance_id) do update
    set claim_id = excluded.claim_id,
        claimed_at = excluded.claimed_at,
        execution_ids = excluded.execution_ids
    where s.claim_id is not distinct from v_slot_claim;
  if not found then
    raise exception using errcode = '40001',
      message = 'another claim of this worker instance was faster';
  end if;
end;
$$;
