-- Claim executions of any kind: first attempts, retries, replays, resumed and reclaimed executions.
-- The claim respects grants. It ends executions that are past their deadline, or over the limit of
-- reclaims or crashes.
--
-- 1. If the claim is a repeat, return the executions that the first call leased and that still have
--    that lease.
-- 2. Check once whether any execution can be reclaimed, and whether there are grants.
-- 3. Read the next candidates in claim order, without locks (ff._read_candidates). Lock them in
--    this order, and skip locked rows. Check each row again under its lock. A row is picked (the
--    claim can lease it), capped (the claim must end it), or locked in vain (the claim cannot use
--    it, for example because it is granted to another worker).
-- 4. Rows locked in vain stay locked until the transaction ends. If a round could raise their
--    number above p_limit, it locks its candidates one by one (ff._pick_one_by_one). So the call
--    locks at most twice p_limit rows, not counting the rows that it puts into line.
-- 5. Picked rows of lanes with a limit (p_limited, p_lane_gates) join the gate of their lane. Then
--    picked rows under quotas or budgets are admitted, or put into line (ff._admit_to_gates).
-- 6. If a gate has refused a row, put up to 1 000 more rows into line (ff._park_more). Later rounds
--    skip rows that this gate would refuse. If this gate is the gate of a lane, later rounds skip
--    all routes of the lane.
-- 7. Repeat 3 to 6 until p_limit rows are picked, twice p_limit rows are locked, or no
--    candidate is left. Each round starts after the last row of the round before.
-- 8. End the capped rows. A row past its deadline expires (T24). A row over the limit of reclaims
--    or crashes fails (T22).
-- 9. Lease the picked rows, write their events, and delete their grants.
-- 10. Write the claim slot of the worker instance, so that a repeat finds the answer.
--
-- If p_has_lines is true, candidates also come from open lines. p_locked_gates lists the gates that
-- the caller has locked, or is null. p_locked lists the executions that the caller has locked, or
-- is null. These executions are the first round, and the second round starts after them.
drop function if exists ff._claim_in_rounds;
create function ff._claim_in_rounds(
  p_partition_key      smallint,
  p_namespace          text,
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
  p_slot_claim         uuid,
  p_slot_ids           uuid[],
  p_locked             uuid[],
  p_has_lines          boolean,
  p_locked_gates       bigint[],
  p_is_fair            boolean,
  p_limited            bigint[],
  p_lane_gates         bigint[]
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
as $$
#variable_conflict use_column
declare
  v_namespace  constant text := coalesce(p_namespace, '');
  v_now        timestamptz;
  v_reclaiming boolean;
  v_granted    boolean;
  v_left       uuid[];
  v_round      record;
  v_size       integer := p_limit;
  v_from_rank  smallint := coalesce(p_floor_rank, -1::smallint);
  v_from_turn  smallint := 0;
  v_from_at    timestamptz := coalesce(p_floor_at, '-infinity');
  v_from_id    uuid := coalesce(p_floor_id, '00000000-0000-0000-0000-000000000000');
  v_seen       bigint := 0;
  v_need       integer;
  v_vain       integer := 0;
  v_locked     uuid[] := p_locked;
  v_picked     uuid[] := '{}';
  v_capped     uuid[] := '{}';
  v_has_past   boolean := false;
  v_gates      bigint[] := p_locked_gates;
  v_admission  record;
  v_more       record;
  v_closed     bigint[];
  v_full       bigint[];
  v_routes     bigint[] := p_routes;
  v_turns      smallint[] := p_turns;
begin
  if p_slot_claim = p_claim_id then
    return query select * from ff._read_claimed(
      p_partition_key, p_namespace, p_slot_ids, p_claim_id);
    return;
  end if;
  v_now := ff.now();
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

  if p_has_lines then
    -- The floor is a position among ready rows. Rows in line may come before it.
    v_from_rank := -1::smallint;
    v_from_at := '-infinity';
    v_from_id := '00000000-0000-0000-0000-000000000000';
  end if;

  loop
    v_need := least(p_limit - cardinality(v_picked),
                    2 * p_limit - cardinality(v_picked) - cardinality(v_capped) - v_vain);
    if v_vain + v_need <= p_limit then
      select r.picked, r.capped, r.has_past, r.is_gated, r.vain, r.seen, r.is_cut, r.rank, r.turn,
             r.order_at, r.execution_id
        into v_round
      from ff._pick_candidates(
        p_partition_key, v_routes, v_turns, v_reclaiming, v_from_rank, v_from_turn, v_from_at,
        v_from_id, v_size, v_need, case when v_granted then p_worker_id end, v_now, p_has_lines,
        v_closed, v_full, v_locked) r;
    else
      select r.picked, r.capped, r.has_past, r.is_gated, r.vain, r.seen, r.is_cut, r.rank, r.turn,
             r.order_at, r.execution_id
        into v_round
      from ff._pick_one_by_one(
        p_partition_key, v_routes, v_turns, v_reclaiming, v_from_rank, v_from_turn, v_from_at,
        v_from_id, v_size, v_need, greatest(p_limit - cardinality(v_capped) - v_vain, 0),
        case when v_granted then p_worker_id end, v_now, p_has_lines, v_closed,
        v_full) r;
    end if;
    -- A grant may have been issued between reading a row and locking it. From here on no grant can
    -- be issued.
    if v_round.picked <> '{}' or v_round.capped <> '{}' then
      v_granted := exists (select from ff.grant g where g.partition_key = p_partition_key);
      if v_granted then
        v_left := ff._not_granted_elsewhere(p_partition_key, v_round.picked, p_worker_id, v_now);
        v_vain := v_vain + cardinality(v_round.picked) - cardinality(v_left);
        v_round.picked := v_left;
        v_left := ff._not_granted_elsewhere(p_partition_key, v_round.capped, p_worker_id, v_now);
        v_vain := v_vain + cardinality(v_round.capped) - cardinality(v_left);
        v_round.capped := v_left;
      end if;
    end if;
    if p_limited is not null and v_round.picked <> '{}' then
      v_round.is_gated := ff._join_lane_gates(
        p_partition_key, v_round.picked, p_limited, p_lane_gates) or v_round.is_gated;
    end if;
    if v_round.is_gated and v_round.picked <> '{}' then
      v_admission := ff._admit_to_gates(
        p_partition_key, v_round.picked, v_picked, v_gates, v_now);
      v_gates := v_admission.locked;
      v_round.picked := v_admission.admitted;
      if v_admission.closed <> '{}' then
        v_more := ff._park_more(
          p_partition_key, v_routes, v_picked || v_round.picked, v_admission.closed,
          v_admission.filled, v_gates, v_now);
        v_closed := v_closed || v_more.closed;
        v_full := v_full || v_more.filled;
        v_gates := v_more.locked;
      end if;
      if p_lane_gates && v_closed then
        select array_agg(u.route_id), array_agg(u.turn) into v_routes, v_turns
        from unnest(v_routes, v_turns) u(route_id, turn)
        where not exists (
          select from unnest(p_limited, p_lane_gates) g(route_id, gate_id)
          where g.route_id = u.route_id and g.gate_id = any (v_closed));
      end if;
    end if;
    v_picked := v_picked || v_round.picked;
    v_capped := v_capped || v_round.capped;
    v_has_past := v_has_past or v_round.has_past;
    v_seen := v_seen + v_round.seen;
    v_vain := v_vain + v_round.vain;
    exit when cardinality(v_picked) = p_limit
           or cardinality(v_picked) + cardinality(v_capped) + v_vain >= 2 * p_limit
           or v_routes is null
           or (v_locked is null and v_round.seen < v_size and not v_round.is_cut);
    v_locked := null;
    -- If other claims have locked a whole round, they have probably locked more: read more rows.
    v_size := case when v_round.picked = '{}' and v_round.vain = 0 and v_round.capped = '{}'
                     then least(v_size * 2, 8000)
                   else greatest(p_limit - cardinality(v_picked), 20) end;
    v_from_rank := v_round.rank;
    v_from_turn := v_round.turn;
    v_from_at := v_round.order_at;
    v_from_id := v_round.execution_id;
  end loop;

  if cardinality(v_capped) > 0 then
    v_left := array(
      select u.id from unnest(v_capped) u(id)
      cross join lateral (
        select e.deadline_at from ff.execution e
        where e.partition_key = p_partition_key and e.execution_id = u.id
        offset 0) x
      where x.deadline_at <= v_now);
    perform ff._settle_overdue_executions(p_partition_key, v_left, null, v_now);
    perform ff._fail_over_reclaim_limit(p_partition_key, v_capped, v_now);
    -- Picked rows may be children of the ended executions, and may have ended with them.
    v_left := v_picked;
    v_picked := array(
      select u.id from unnest(v_picked) with ordinality u(id, n)
      cross join lateral (
        select e.phase from ff.execution e
        where e.partition_key = p_partition_key and e.execution_id = u.id
        offset 0) x
      where x.phase <> 'terminal'
      order by u.n);
    if v_gates is not null and cardinality(v_picked) < cardinality(v_left) then
      perform ff._release_gates(p_partition_key, array(
        select u.id from unnest(v_left) u(id) where u.id <> all (v_picked)));
    end if;
  end if;
  if v_seen = 0 then
    -- There were no candidates. If this call repeats an earlier call, that call may have claimed
    -- after this one read the slot: then return its executions.
    select s.execution_ids into v_left
    from ff.claim_slot s
    where s.partition_key = p_partition_key and s.namespace = v_namespace
      and s.worker_instance_id = p_worker_instance_id and s.claim_id = p_claim_id;
    return query select * from ff._read_claimed(p_partition_key, p_namespace, v_left, p_claim_id);
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

  if p_is_fair then
    perform ff._note_served(p_partition_key, v_picked);
  end if;
  -- Write the slot even if every candidate is locked: if this call repeats an earlier call, that
  -- call may hold the locks.
  perform ff._write_claim_slot(
    p_partition_key, v_namespace, p_worker_instance_id, p_claim_id, v_now, v_picked, p_slot_claim);
end;
$$;
