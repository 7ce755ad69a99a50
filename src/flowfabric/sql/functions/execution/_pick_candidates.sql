-- Run one round of a claim: read the candidates after a position, and lock at most p_need
-- of them in claim order (see ff._read_candidates). Rows locked by other transactions are skipped.
-- Each row that the round locks is one of these:
--
-- picked  The claim can lease it.
-- capped  The claim must end it, because its deadline has passed, it was reclaimed too often, or it
--         crashed three times while it ran alone.
-- vain    The claim cannot use it, because it changed between the read and the lock, or because its
--         flow is cancelled. These rows are only counted.
--
-- Returns the position of the last row that the round tried to lock. If p_locked is given, the
-- round uses these executions instead of new candidates. The caller has locked them.
drop function if exists ff._pick_candidates;
create function ff._pick_candidates(
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
  p_worker_id     text,
  p_now           timestamptz,
  p_with_lines    boolean default false,
  p_closed        bigint[] default null,
  p_full          bigint[] default null,
  p_locked        uuid[] default null
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
  v_read record;
begin
  -- Read the candidates first: a query on partitioned tables must not call a function that reads
  -- them.
  if p_locked is null then
    select array_agg(c.rank) as ranks, array_agg(c.turn) as turns,
           array_agg(c.order_at) as order_ats, array_agg(c.execution_id) as ids
      into v_read
    from ff._read_candidates(
      p_partition_key, p_routes, p_turns, p_reclaiming, p_from_rank, p_from_turn, p_from_at,
      p_from_id, p_size, p_worker_id, p_now, p_with_lines, p_closed,
      p_full) c;
  else
    select array_agg(x.rank order by u.n) as ranks,
           array_agg(p_turns[array_position(p_routes, x.route_id)] order by u.n) as turns,
           array_agg(x.order_at order by u.n) as order_ats, array_agg(u.id order by u.n) as ids
      into v_read
    from unnest(p_locked) with ordinality u(id, n)
    cross join lateral (
      select e.rank, e.route_id, e.order_at from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = u.id offset 0) x;
  end if;
  return query
  with candidate as materialized (
    select c.rank, c.turn, c.order_at, c.execution_id
    from unnest(v_read.ranks, v_read.turns, v_read.order_ats, v_read.ids)
      with ordinality c(rank, turn, order_at, execution_id, n)
    order by c.n
  ),
  taken as materialized (
    select l.execution_id, l.is_open, l.is_over, l.has_past, l.is_gated, c.rank, c.turn, c.order_at
    from candidate c
    cross join lateral (
      select e.execution_id,
             ((e.phase = 'runnable' and (e.eligibility = 'eligible_now' or e.line_id is not null))
               or (e.ownership in ('lease_expired_reclaimable', 'lease_revoked')
                   and e.reclaim_at is null))
             -- Use a scalar subquery, so that the planner cannot read all flows.
             and case when e.flow_id is null then true else coalesce((
                   select f.cancel_policy = 'flow_only' from ff.flow f
                   where f.partition_key = p_partition_key and f.flow_id = e.flow_id), true) end as is_open,
             e.phase = 'active' and (e.reclaim_count - e.company_count >= e.max_reclaims
                                     or e.lone_crash_count >= 3)
             or coalesce(e.deadline_at <= p_now, false) as is_over,
             e.total_attempt_count > 0 as has_past,
             num_nonnulls(e.quota_ids, e.budget_ids) > 0 as is_gated
      from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = c.execution_id
      for no key update skip locked
    ) l
    limit p_need
  )
  select coalesce(t.picked, '{}'), coalesce(t.capped, '{}'), coalesce(t.has_past, false),
         coalesce(t.is_gated, false),
         t.vain, z.seen, t.tried = p_need, y.rank, y.turn, y.order_at, y.execution_id
  from (select array_agg(x.execution_id) filter (where x.is_open and not x.is_over) as picked,
               array_agg(x.execution_id) filter (where x.is_open and x.is_over) as capped,
               bool_or(x.has_past) as has_past,
               bool_or(x.is_gated) as is_gated,
               count(*)::integer as tried,
               (count(*) filter (where not x.is_open))::integer as vain
        from taken x) t
  cross join (select count(*)::integer as seen from candidate) z
  -- If the claim has locked enough rows, the last row tried is the last of them. Otherwise it is
  -- the last row of the round.
  left join lateral (
    select w.rank, w.turn, w.order_at, w.execution_id
    from (select x.rank, x.turn, x.order_at, x.execution_id from taken x
          where t.tried = p_need
          union all
          select c.rank, c.turn, c.order_at, c.execution_id from candidate c
          where t.tried < p_need) w
    order by w.rank desc, w.turn desc, w.order_at desc, w.execution_id desc
    limit 1) y on true;
end;
$$;
