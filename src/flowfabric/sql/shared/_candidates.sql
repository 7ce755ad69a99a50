-- The next executions behind a position that a claim could take, in claim order, not locked.
--
-- A route's turn stands between priority and age: the routes of the lane that goes first have the
-- lower one. The position is the last one seen, not included.
drop function if exists ff._candidates;
create function ff._candidates(
  p_partition_key smallint,
  p_routes        bigint[],
  p_turns         smallint[],
  p_reclaiming    boolean,
  p_from_rank     smallint,
  p_from_turn     smallint,
  p_from_at       timestamptz,
  p_from_id       uuid,
  p_window        integer
)
returns table (rank smallint, turn smallint, created_at timestamptz, execution_id uuid)
language plpgsql
set search_path = ''
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
begin
  return query
  with route as materialized (
    select p_partition_key as pk, u.route_id, u.turn, p_from_rank as from_rank,
           case when u.turn = p_from_turn then p_from_at
                when u.turn > p_from_turn then '-infinity'::timestamptz
                else 'infinity'::timestamptz end as from_at,
           p_from_id as from_id
    from unnest(p_routes, p_turns) u(route_id, turn)
    offset 0
  ),
  -- A few heads of every route give a position the window cannot reach beyond.
  head as (
    select h.rank, r.turn, h.created_at, h.execution_id
    from route r
    cross join lateral (
      select e.rank, e.created_at, e.execution_id
      from ff.execution e
      where e.partition_key = r.pk and e.route_id = r.route_id
        and e.phase = 'runnable' and e.eligibility = 'eligible_now'
        and (e.rank, e.created_at, e.execution_id) > (r.from_rank, r.from_at, r.from_id)
      order by e.rank, e.created_at, e.execution_id
      limit 2 * ((p_window - 1) / cardinality(p_routes) + 1) + 1
    ) h
    where cardinality(p_routes) > 1
  ),
  bound as materialized (
    select h.rank, h.turn, h.created_at, h.execution_id
    from head h
    order by h.rank, h.turn, h.created_at, h.execution_id
    offset p_window - 1 limit 1
  ),
  span as materialized (
    select r.pk, r.route_id, r.turn, r.from_rank, r.from_at, r.from_id,
           coalesce(b.rank, 9001::smallint) as to_rank,
           case when b.turn is null or r.turn < b.turn then 'infinity'::timestamptz
                when r.turn > b.turn then '-infinity'::timestamptz
                else b.created_at end as to_at,
           coalesce(b.execution_id, 'ffffffff-ffff-ffff-ffff-ffffffffffff') as to_id
    from route r left join bound b on true
    offset 0
  )
  select c.rank, s.turn, c.created_at, c.execution_id
  from span s
  cross join lateral (
    (select e.rank, e.created_at, e.execution_id
     from ff.execution e
     where e.partition_key = s.pk and e.route_id = s.route_id
       and e.phase = 'runnable' and e.eligibility = 'eligible_now'
       and (e.rank, e.created_at, e.execution_id) > (s.from_rank, s.from_at, s.from_id)
       and (e.rank, e.created_at, e.execution_id) <= (s.to_rank, s.to_at, s.to_id)
     order by e.rank, e.created_at, e.execution_id
     limit p_window)
    union all
    (select e.rank, e.created_at, e.execution_id
     from ff.execution e
     where p_reclaiming
       and e.partition_key = s.pk and e.route_id = s.route_id
       and e.ownership in ('lease_expired_reclaimable', 'lease_revoked')
       and e.reclaim_at is null
       and (e.rank, e.created_at, e.execution_id) > (s.from_rank, s.from_at, s.from_id)
       and (e.rank, e.created_at, e.execution_id) <= (s.to_rank, s.to_at, s.to_id)
     order by e.rank, e.created_at, e.execution_id
     limit p_window)
  ) c
  order by c.rank, s.turn, c.created_at, c.execution_id
  limit p_window
;
end;
$$;
