-- Put more waiting executions into the lines of closed gates, so that later claims need not read
-- these executions. The caller has locked the gates; budgets are not locked.
--
-- The call reads at most 1 000 executions of each route, in claim order, and skips locked ones. It
-- also skips overdue executions, and executions that resume their attempt. A resumed attempt does
-- not count as a start, so a gate that is closed only by its rate may still admit it. Executions that
-- were refused four times are skipped, too: the claim judges them, and they may make a reservation.
drop function if exists ff._park_more;
create function ff._park_more(
  p_partition_key smallint,
  p_routes        bigint[],
  p_closed        bigint[],
  p_now           timestamptz
)
returns void
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_ids  uuid[];
  v_whys bigint[];
begin
  select array_agg(l.execution_id), array_agg(l.why) into v_ids, v_whys
  from (
    select k.execution_id, k.why
    from unnest(p_routes) r(id)
    cross join lateral (
      select e.execution_id, e.quota_ids, e.budget_ids from ff.execution e
      where e.partition_key = p_partition_key and e.route_id = r.id
        and e.phase = 'runnable' and e.eligibility = 'eligible_now'
      order by e.rank, e.order_at, e.execution_id
      limit 1000) c
    cross join lateral (
      select e.execution_id,
             (select min(g.id) from unnest(e.quota_ids || e.budget_ids) g(id)
              where g.id = any (p_closed)) as why
      from ff.execution e
      where coalesce(c.quota_ids || c.budget_ids, c.quota_ids, c.budget_ids) && p_closed
        and e.partition_key = p_partition_key and e.execution_id = c.execution_id
        and case when e.phase = 'runnable' and e.eligibility = 'eligible_now'
                  and e.attempt_state <> 'attempt_interrupted'
                  and coalesce(e.refusal_count, 0) < 4
                  and coalesce(e.deadline_at > p_now, true)
              then true else false end
      for no key update skip locked) k
    limit 1000) l;
  perform ff._park_refused(p_partition_key, coalesce(v_ids, '{}'), v_whys, p_now);
end;
$$;
