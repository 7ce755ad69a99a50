-- Read the next executions that a claim could take, after a position and in claim order, without
-- locks.
--
-- The order is priority, then the turn of the route (0 for the first lane), then order_at, then id.
-- The position is the last row seen; that row is not returned again.
--
-- If p_worker_id is given, executions that are granted to another worker are skipped. Pass null
-- only if there are no grants. If p_with_lines is true, executions in the open lines of the routes
-- are read too.
--
-- An execution is skipped if it would start an attempt under a gate in p_closed, or resume its
-- attempt under a gate in p_full. There are two exceptions. An execution that gates have refused at
-- least four times is read, because its next refusal can make a reservation. An execution past its
-- deadline, or over its limit of reclaims or crashes, is read, because the claim ends it.
--
-- p_closed and p_full do not apply to executions in lines. If the rate of a gate has no room, only
-- executions that resume their attempt are read from the lines of this gate.
drop function if exists ff._read_candidates;
create function ff._read_candidates(
  p_partition_key smallint,
  p_routes        bigint[],
  p_turns         smallint[],
  p_reclaiming    boolean,
  p_from_rank     smallint,
  p_from_turn     smallint,
  p_from_at       timestamptz,
  p_from_id       uuid,
  p_size          integer,
  p_worker_id     text,
  p_now           timestamptz,
  p_with_lines    boolean default false,
  p_closed        bigint[] default null,
  p_full          bigint[] default null
)
returns table (rank smallint, turn smallint, order_at timestamptz, execution_id uuid)
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
  -- For each route, read twice its fair share of the round. Most routes then need no second read.
  v_share constant integer := case cardinality(p_routes)
    when 1 then p_size
    else 2 * ((p_size - 1) / cardinality(p_routes) + 1) + 1 end;
begin
  return query
  with route as materialized (
    select u.route_id, u.turn, p_from_rank as from_rank,
           case when u.turn = p_from_turn then p_from_at
                when u.turn > p_from_turn then '-infinity'::timestamptz
                else 'infinity'::timestamptz end as from_at,
           p_from_id as from_id
    from unnest(p_routes, p_turns) u(route_id, turn)
    offset 0
  ),
  head as materialized (
    select r.route_id, r.turn, h.rank, h.order_at, h.execution_id, h.nth
    from route r
    cross join lateral (
      select e.rank, e.order_at, e.execution_id, row_number() over () as nth
      from (
        select x.rank, x.order_at, x.execution_id
        from ff.execution x
        where x.partition_key = p_partition_key and x.route_id = r.route_id
          and x.phase = 'runnable' and x.eligibility = 'eligible_now'
          and (x.rank, x.order_at, x.execution_id) > (r.from_rank, r.from_at, r.from_id)
          and case when p_closed is null then true
                   when x.deadline_at <= p_now or x.refusal_count >= 4 then true
                   when x.attempt_state = 'attempt_interrupted'
                     then (x.quota_ids && p_full) is not true
                          and (x.budget_ids && p_full) is not true
                   else (x.quota_ids && p_closed) is not true
                        and (x.budget_ids && p_closed) is not true end
          and case when p_worker_id is null then true else not exists (
                select from ff.grant g
                where g.partition_key = p_partition_key and g.execution_id = x.execution_id
                  and case when g.expires_at > p_now and g.worker_id <> p_worker_id
                        then true else false end
                offset 0) end
        order by x.rank, x.order_at, x.execution_id
        limit v_share
      ) e
    ) h
  ),
  -- Find the position at which the round ends, if the first rows of all routes fill it.
  bound as materialized (
    select h.rank, h.turn, h.order_at, h.execution_id
    from head h
    order by h.rank, h.turn, h.order_at, h.execution_id
    offset p_size - 1 limit 1
  )
  select c.rank, c.turn, c.order_at, c.execution_id
  from (
    select h.rank, h.turn, h.order_at, h.execution_id from head h
    union all
    -- If all rows read from a route come before the end of the round, the route may have more rows
    -- in the round.
    select m.rank, h.turn, m.order_at, m.execution_id
    from head h
    left join bound b on true
    cross join lateral (
      select e.rank, e.order_at, e.execution_id
      from ff.execution e
      where e.partition_key = p_partition_key and e.route_id = h.route_id
        and e.phase = 'runnable' and e.eligibility = 'eligible_now'
        and (e.rank, e.order_at, e.execution_id) > (h.rank, h.order_at, h.execution_id)
        and (e.rank, e.order_at, e.execution_id) <= (
              coalesce(b.rank, 9001::smallint),
              case when b.turn is null or h.turn < b.turn then 'infinity'::timestamptz
                   when h.turn > b.turn then '-infinity'::timestamptz
                   else b.order_at end,
              coalesce(b.execution_id, 'ffffffff-ffff-ffff-ffff-ffffffffffff'))
        and case when p_closed is null then true
                 when e.deadline_at <= p_now or e.refusal_count >= 4 then true
                 when e.attempt_state = 'attempt_interrupted'
                   then (e.quota_ids && p_full) is not true
                        and (e.budget_ids && p_full) is not true
                 else (e.quota_ids && p_closed) is not true
                      and (e.budget_ids && p_closed) is not true end
        and case when p_worker_id is null then true else not exists (
              select from ff.grant g
              where g.partition_key = p_partition_key and g.execution_id = e.execution_id
                and case when g.expires_at > p_now and g.worker_id <> p_worker_id
                      then true else false end
              offset 0) end
      order by e.rank, e.order_at, e.execution_id
      limit p_size
    ) m
    where h.nth = v_share and cardinality(p_routes) > 1
      and (b.rank is null or (h.rank, h.turn, h.order_at, h.execution_id)
                             < (b.rank, b.turn, b.order_at, b.execution_id))
    union all
    select m.rank, r.turn, m.order_at, m.execution_id
    from route r
    cross join lateral (
      select e.rank, e.order_at, e.execution_id
      from ff.execution e
      where e.partition_key = p_partition_key and e.route_id = r.route_id
        and e.ownership in ('lease_expired_reclaimable', 'lease_revoked')
        and e.reclaim_at is null and e.line_id is null
        and (e.rank, e.order_at, e.execution_id) > (r.from_rank, r.from_at, r.from_id)
        and case when p_closed is null or e.deadline_at <= p_now or e.refusal_count >= 4
                   or e.reclaim_count - e.company_count >= e.max_reclaims
                   or e.lone_crash_count >= 3 then true
                 else (e.quota_ids && p_closed) is not true
                      and (e.budget_ids && p_closed) is not true end
        and case when p_worker_id is null then true else not exists (
              select from ff.grant g
              where g.partition_key = p_partition_key and g.execution_id = e.execution_id
                and case when g.expires_at > p_now and g.worker_id <> p_worker_id
                      then true else false end
              offset 0) end
      order by e.rank, e.order_at, e.execution_id
      limit p_size
    ) m
    where p_reclaiming
    union all
    -- If there are many lines, begin with the lines that were served longest ago. If the rate of a
    -- gate has no room, read only executions that resume. This has a branch of its own: with one
    -- condition for all lines, the index could not filter by attempt_state.
    select m.rank, r.turn, m.order_at, m.execution_id
    from route r
    cross join lateral (
      select y.gate_id, exists (
               select from ff.gate g
               where g.partition_key = p_partition_key and g.gate_id = y.gate_id
                 and case when g.opens_at > p_now or g.rate <= (g.start_for is not null)::integer
                       then true else false end offset 0) as is_rated
      from ff.line y
      where y.partition_key = p_partition_key and y.route_id = r.route_id and y.is_open
      order by y.served_at
      limit 200
    ) l
    cross join lateral (
      (select e.rank, e.order_at, e.execution_id
       from ff.execution e
       where not l.is_rated and e.partition_key = p_partition_key and e.line_id = l.gate_id
         and e.route_id = r.route_id
         and (e.rank, e.order_at, e.execution_id) > (r.from_rank, r.from_at, r.from_id)
         and case when p_worker_id is null then true else not exists (
               select from ff.grant g
               where g.partition_key = p_partition_key and g.execution_id = e.execution_id
                 and case when g.expires_at > p_now and g.worker_id <> p_worker_id
                       then true else false end
               offset 0) end
       order by e.rank, e.order_at, e.execution_id
       limit p_size)
      union all
      (select e.rank, e.order_at, e.execution_id
       from ff.execution e
       where l.is_rated and e.partition_key = p_partition_key and e.line_id = l.gate_id
         and e.route_id = r.route_id
         and e.phase = 'runnable' and e.attempt_state = 'attempt_interrupted'
         and (e.rank, e.order_at, e.execution_id) > (r.from_rank, r.from_at, r.from_id)
         and case when p_worker_id is null then true else not exists (
               select from ff.grant g
               where g.partition_key = p_partition_key and g.execution_id = e.execution_id
                 and case when g.expires_at > p_now and g.worker_id <> p_worker_id
                       then true else false end
               offset 0) end
       order by e.rank, e.order_at, e.execution_id
       limit p_size)
    ) m
    where p_with_lines
  ) c
  order by c.rank, c.turn, c.order_at, c.execution_id
  limit p_size;
end;
$$;
