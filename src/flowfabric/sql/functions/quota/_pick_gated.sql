-- Lock the next candidates of a claim, some of which are under limits, and return their places and how
-- many slots they ask of each gate. With p_with_budgets the budgets are among the gates.
--
-- is_fresh is true if all candidates could be locked and wait for their first attempt; else the caller
-- leaves the claim to ff._claim_in_rounds. `vain` rows stay locked that others had just taken.
--
-- Locks: executions in claim order, skipping locked ones
drop function if exists ff._pick_gated;
create function ff._pick_gated(
  p_partition_key smallint,
  p_routes        bigint[],
  p_turns         smallint[],
  p_from_rank     smallint,
  p_from_at       timestamptz,
  p_from_id       uuid,
  p_limit         integer,
  p_with_budgets  boolean,
  p_now           timestamptz,
  out places      tid[],
  out is_fresh    boolean,
  out vain        integer,
  out gate_ids    bigint[],
  out asked       integer[]
)
returns record
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_ids uuid[];
begin
  if p_routes[2] is not null then
    select array_agg(c.execution_id) into v_ids
    from ff._read_candidates(
      p_partition_key, p_routes, p_turns, false, p_from_rank, 0::smallint, p_from_at, p_from_id,
      p_limit, null, p_now) c;
  end if;
  with picked as materialized (
    select e.place, e.is_open, e.is_fresh, e.gate_ids
    from (
      (select x.ctid as place from ff.execution x
       where p_routes[2] is null and x.partition_key = p_partition_key and x.route_id = p_routes[1]
         and x.phase = 'runnable' and x.eligibility = 'eligible_now'
         and (x.rank, x.order_at, x.execution_id) > (p_from_rank, p_from_at, p_from_id)
       order by x.rank, x.order_at, x.execution_id
       limit p_limit)
      union all
      select k.place from unnest(v_ids) u(id)
      cross join lateral (
        select x.ctid as place from ff.execution x
        where x.partition_key = p_partition_key and x.execution_id = u.id offset 0) k) c
    left join lateral (
      select x.ctid as place,
             x.phase = 'runnable' and x.eligibility = 'eligible_now' as is_open,
             -- A row that has changed since it was read is not visible at its new place.
             x.ctid = c.place
             and x.attempt_state = 'pending_first_attempt' and x.total_attempt_count = 0
             and coalesce(x.deadline_at > p_now, true)
             -- A scalar subquery, so that the planner cannot read all flows.
             and case when x.flow_id is null then true else coalesce((
                   select f.cancel_policy = 'flow_only' from ff.flow f
                   where f.partition_key = p_partition_key and f.flow_id = x.flow_id), true) end
               as is_fresh,
             case when p_with_budgets and x.budget_ids is not null
               then x.quota_ids || x.budget_ids else x.quota_ids end as gate_ids
      from ff.execution x
      where x.ctid = c.place
        and case when x.partition_key = p_partition_key then true else false end
      for no key update skip locked) e on true
  )
  select (select array_agg(p.place) from picked p),
         (select bool_and(coalesce(p.is_open and p.is_fresh, false)) from picked p),
         (select count(*) from picked p where not p.is_open),
         array_agg(s.id), array_agg(s.asked)
    into places, is_fresh, vain, gate_ids, asked
  from (
    select g.id, count(*)::integer as asked
    from picked p cross join lateral unnest(p.gate_ids) g(id)
    group by g.id
    order by g.id) s;
end;
$$;
