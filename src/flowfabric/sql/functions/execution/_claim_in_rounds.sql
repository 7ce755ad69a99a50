-- Claim in rounds: the general claim. It takes first attempts, retries, replays, resumed and
-- reclaimed executions, observes grants, and ends what is over its limits.
--
-- 1. A repeated claim returns what it leased and still holds.
-- 2. Read once whether anything is to be reclaimed and whether there are grants.
-- 3. Each round reads the next window of candidates in order, without locks, then locks them in
--    that order and skips locked rows. The next round starts after the window.
-- 4. Under the lock each row is looked at again: taken by others meanwhile (in vain), over a limit
--    (capped), or picked. Picked rows that another worker holds a grant for are left alone.
-- 5. Rows locked in vain stay locked: once there could be more of them than the limit, candidates
--    are locked one by one.
-- 6. Picked rows under quotas or budgets are admitted, or put into line (_admit_candidates). With
--    p_has_lines, candidates come from open lines, too. A gate known to be closed keeps its rows out
--    of later rounds, and up to 1 000 of them are put into line. p_held are gates that the caller has
--    locked: null if it has locked none.
-- 7. Capped rows end: past their deadline (T24), or over the limit of reclaims or crashes (T22).
-- 8. Picked rows are leased with their events, and lose their grants.
-- 9. The slot of the worker instance is written, so that a repeat finds the answer.
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
  p_vain               integer,
  p_has_lines          boolean,
  p_held               bigint[],
  p_is_fair            boolean
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
  v_window     integer := p_limit;
  v_from_rank  smallint := coalesce(p_floor_rank, -1::smallint);
  v_from_turn  smallint := 0;
  v_from_at    timestamptz := coalesce(p_floor_at, '-infinity');
  v_from_id    uuid := coalesce(p_floor_id, '00000000-0000-0000-0000-000000000000');
  v_seen       bigint := 0;
  v_need       integer;
  v_vain       integer := p_vain;
  v_picked     uuid[] := '{}';
  v_capped     uuid[] := '{}';
  v_has_past   boolean := false;
  v_gates      bigint[] := p_held;
  v_admission  record;
  v_closed     bigint[];
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
    -- The floor is one of ready rows: rows in line may come before it.
    v_from_rank := -1::smallint;
    v_from_at := '-infinity';
    v_from_id := '00000000-0000-0000-0000-000000000000';
  end if;

  loop
    v_need := p_limit - cardinality(v_picked);
    if v_vain + v_need <= p_limit then
      select r.picked, r.capped, r.has_past, r.is_gated, r.vain, r.seen, r.is_cut, r.rank, r.turn,
             r.order_at, r.execution_id
        into v_round
      from ff._pick_candidates(
        p_partition_key, p_routes, p_turns, v_reclaiming, v_from_rank, v_from_turn, v_from_at,
        v_from_id, v_window, v_need, case when v_granted then p_worker_id end, v_now, p_has_lines,
        v_closed) r;
    else
      select r.picked, r.capped, r.has_past, r.is_gated, r.vain, r.seen, r.is_cut, r.rank, r.turn,
             r.order_at, r.execution_id
        into v_round
      from ff._pick_one_by_one(
        p_partition_key, p_routes, p_turns, v_reclaiming, v_from_rank, v_from_turn, v_from_at,
        v_from_id, v_window, v_need, p_limit - v_vain,
        case when v_granted then p_worker_id end, v_now, p_has_lines, v_closed) r;
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
    if v_round.is_gated and v_round.picked <> '{}' then
      v_admission := ff._admit_candidates(p_partition_key, v_round.picked, v_gates, v_now);
      v_gates := v_admission.held;
      v_round.picked := v_admission.admitted;
      if v_admission.closed <> '{}' and v_closed is null then
        perform ff._park_more(p_partition_key, p_routes, v_admission.closed, v_now);
      end if;
      v_closed := nullif(v_closed || v_admission.closed, '{}');
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
    v_left := array(
      select u.id from unnest(v_capped) u(id)
      cross join lateral (
        select e.deadline_at from ff.execution e
        where e.partition_key = p_partition_key and e.execution_id = u.id
        offset 0) x
      where x.deadline_at <= v_now);
    perform ff._settle_overdue(p_partition_key, v_left, null, v_now);
    perform ff._fail_over_reclaim_limit(p_partition_key, v_capped, v_now);
    -- Children of the ended ones may be among the picked, and have ended with them.
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
    -- No candidates, unless the original of this repeat has claimed since the slot was read.
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
  -- Written even if every candidate is locked, because the original of a repeat may hold them.
  perform ff._write_claim_slot(
    p_partition_key, v_namespace, p_worker_instance_id, p_claim_id, v_now, v_picked, p_slot_claim);
end;
$$;
