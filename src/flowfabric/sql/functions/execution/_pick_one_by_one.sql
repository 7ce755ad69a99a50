-- Run one round of a claim: lock the candidates one by one, and check each under its lock.
--
-- A row is locked in vain if the claim cannot use it, usually because another worker has just taken
-- the row. Each row is read again just before it is locked, so that few rows are locked in vain.
-- Once p_most_vain rows are locked in vain, the round unlocks every later row that it cannot use.
--
-- This round costs more than a round of _pick_candidates. A claim calls this function when
-- _pick_candidates could leave too many rows locked in vain.
drop function if exists ff._pick_one_by_one;
create function ff._pick_one_by_one(
  p_partition_key smallint,
  p_routes        bigint[],
  p_turns         smallint[],
  p_reclaiming    boolean,
  p_from_rank     smallint,
  p_from_turn     smallint,
  p_from_at       timestamptz,
  p_from_id       uuid,
  p_size          integer,
  p_need          integer,
  p_most_vain     integer,
  p_worker_id     text,
  p_now           timestamptz,
  p_with_lines    boolean default false,
  p_closed        bigint[] default null,
  p_full          bigint[] default null
)
returns table (
  picked       uuid[],
  capped       uuid[],
  has_past     boolean,
  is_gated     boolean,
  vain         integer,
  seen         integer,
  is_cut       boolean,
  rank         smallint,
  turn         smallint,
  order_at     timestamptz,
  execution_id uuid
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
  v_candidate record;
  v_row       ff.candidate;
begin
  picked := '{}'; capped := '{}'; has_past := false; is_gated := false;
  vain := 0; seen := 0; is_cut := false;
  for v_candidate in
    select c.rank, c.turn, c.order_at, c.execution_id
    from ff._read_candidates(
      p_partition_key, p_routes, p_turns, p_reclaiming, p_from_rank, p_from_turn, p_from_at,
      p_from_id, p_size, p_worker_id, p_now, p_with_lines, p_closed,
      p_full) c
  loop
    if cardinality(picked) + cardinality(capped) = p_need then
      is_cut := true;
      exit;
    end if;
    seen := seen + 1;
    rank := v_candidate.rank;
    turn := v_candidate.turn;
    order_at := v_candidate.order_at;
    execution_id := v_candidate.execution_id;
    -- Skip rows that other workers have taken and committed meanwhile, without locking them.
    continue when not exists (
      select from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = v_candidate.execution_id
        and case when (e.phase = 'runnable'
                       and (e.eligibility = 'eligible_now' or e.line_id is not null))
                   or (e.ownership in ('lease_expired_reclaimable', 'lease_revoked')
                       and e.reclaim_at is null)
              then true else false end);
    if vain < p_most_vain then
      v_row := ff._lock_candidate(p_partition_key, v_candidate.execution_id, p_now);
    else
      begin
        v_row := ff._lock_candidate(p_partition_key, v_candidate.execution_id, p_now);
        if not v_row.is_open then
          raise no_data_found;
        end if;
      exception when no_data_found then
        v_row := null;
      end;
    end if;
    if v_row.is_open and v_row.is_over then
      capped := capped || v_candidate.execution_id;
    elsif v_row.is_open then
      picked := picked || v_candidate.execution_id;
      has_past := has_past or v_row.has_past;
      is_gated := is_gated or v_row.is_gated;
    elsif v_row.is_open is not null then
      vain := vain + 1;
    end if;
  end loop;
  return next;
end;
$$;
