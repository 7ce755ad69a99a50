-- Record the position in the claim order that a claim has reached, for each fair lane and each
-- priority. If another claim has locked the row of a lane and priority, this row is skipped, and a
-- later claim writes it.
drop function if exists ff._note_served;
create function ff._note_served(p_partition_key smallint, p_execution_ids uuid[])
returns void
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
begin
  update ff.fair_lane l set served_at = greatest(l.served_at, t.served_at)
  from (
    select k.namespace, k.lane, k.rank, s.served_at
    from (
      select r.namespace, r.lane, e.rank, max(e.order_at) as served_at
      from unnest(p_execution_ids) u(id)
      cross join lateral (
        select x.route_id, x.rank, x.order_at from ff.execution x
        where x.partition_key = p_partition_key and x.execution_id = u.id offset 0) e
      cross join lateral (
        select y.namespace, y.lane from ff.route y where y.route_id = e.route_id offset 0) r
      group by r.namespace, r.lane, e.rank
      order by r.namespace, r.lane, e.rank) s
    cross join lateral (
      select x.namespace, x.lane, x.rank from ff.fair_lane x
      where x.partition_key = p_partition_key and x.namespace = s.namespace and x.lane = s.lane
        and x.rank = s.rank
      for no key update skip locked) k) t
  where l.partition_key = p_partition_key and l.namespace = t.namespace and l.lane = t.lane
    and l.rank = t.rank and l.served_at < t.served_at;
end;
$$;
