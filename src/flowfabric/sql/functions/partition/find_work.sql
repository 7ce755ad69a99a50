-- Find the partitions with executions that a worker could claim, and the rank of the most urgent
-- execution in each. Other partitions have no row in the answer.
--
-- Every argument means the same as in ff.claim_executions. The answer is only a hint: another
-- worker may claim the executions first, or the executions may be granted to another worker.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF501 forbidden
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.find_work;
create function ff.find_work(
  p_namespace     text,
  p_lanes         text[],
  p_tasks         text[],
  p_capabilities  text[],
  p_code_versions text[] default null,
  p_unserved      bigint[] default null,
  p_finish_only   boolean default false
)
returns table (partition_key smallint, rank smallint)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_now     constant timestamptz := ff.now();
  v_routes  bigint[];
  v_covered record;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_claim('-', '-', 'ffffffff-ffff-ffff-ffff-ffffffffffff',
                          coalesce(p_capabilities, '{}'), 1, interval '1 second');
  perform ff._check_coverage(p_lanes, p_tasks, p_code_versions, p_unserved);
  v_covered := ff._read_covered_routes(
    p_namespace, p_lanes, p_tasks, coalesce(p_capabilities, '{}'), null, p_code_versions,
    p_unserved, p_finish_only, v_now);
  v_routes := v_covered.route_ids;
  return query
  select w.partition_key, min(w.rank)
  from (
    select p.partition_key, e.rank
    from ff.partition p
    -- For an idle worker most partitions are empty. An empty partition costs one read, however many
    -- routes there are.
    cross join lateral (
      select from ff.execution x
      where x.partition_key = p.partition_key and x.phase = 'runnable'
        and x.eligibility = 'eligible_now'
      limit 1) s
    cross join ff.route r
    cross join lateral (
      select x.rank from ff.execution x
      where x.partition_key = p.partition_key and x.route_id = r.route_id
        and x.phase = 'runnable' and x.eligibility = 'eligible_now'
      order by x.rank, x.order_at, x.execution_id
      limit 1) e
    where r.route_id = any (v_routes)
    union all
    select p.partition_key, e.rank
    from ff.partition p
    cross join lateral (
      select from ff.execution x
      where x.partition_key = p.partition_key
        and x.ownership in ('lease_expired_reclaimable', 'lease_revoked')
        and x.reclaim_at is null and x.line_id is null
      limit 1) s
    cross join ff.route r
    cross join lateral (
      select x.rank from ff.execution x
      where x.partition_key = p.partition_key and x.route_id = r.route_id
        and x.ownership in ('lease_expired_reclaimable', 'lease_revoked')
        and x.reclaim_at is null and x.line_id is null
      order by x.rank, x.order_at, x.execution_id
      limit 1) e
    where r.route_id = any (v_routes)
    union all
    -- Read open lines, and lines that a claim would open because their gate has room again. If
    -- there are many lines, only some are read; ff.sweep_gates opens the others.
    select p.partition_key, e.rank
    from ff.partition p
    cross join lateral (
      select from ff.line y where y.partition_key = p.partition_key limit 1) s
    cross join ff.route r
    cross join lateral (
      (select y.gate_id from ff.line y
       where y.partition_key = p.partition_key and y.route_id = r.route_id and y.is_open
       order by y.served_at
       limit 10)
      union all
      (select c.gate_id
       from (
         select y.gate_id from ff.line y
         where y.partition_key = p.partition_key and y.route_id = r.route_id
           and case when y.is_open then false else true end
         limit 101) c
       where exists (
           select from ff.gate_release x
           where x.partition_key = p.partition_key and x.gate_id = c.gate_id offset 0)
         or exists (
           select from ff.gate x
           where x.partition_key = p.partition_key and x.gate_id = c.gate_id
             and case when x.opens_at <= v_now then true else false end offset 0)
       limit 10)) l
    cross join lateral (
      select x.rank from ff.execution x
      where x.partition_key = p.partition_key and x.line_id = l.gate_id
        and x.route_id = r.route_id
      order by x.rank, x.order_at, x.execution_id
      limit 1) e
    where r.route_id = any (v_routes)
  ) w
  group by w.partition_key;
end;
$$;

-- When distributed
drop function if exists ff.find_work;
create function ff.find_work(
  p_namespace     text,
  p_lanes         text[],
  p_tasks         text[],
  p_capabilities  text[],
  p_code_versions text[] default null,
  p_unserved      bigint[] default null,
  p_finish_only   boolean default false
)
returns table (partition_key smallint, rank smallint)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_now     constant timestamptz := ff.now();
  v_routes  bigint[];
  v_covered record;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_claim('-', '-', 'ffffffff-ffff-ffff-ffff-ffffffffffff',
                          coalesce(p_capabilities, '{}'), 1, interval '1 second');
  perform ff._check_coverage(p_lanes, p_tasks, p_code_versions, p_unserved);
  v_covered := ff._read_covered_routes(
    p_namespace, p_lanes, p_tasks, coalesce(p_capabilities, '{}'), null, p_code_versions,
    p_unserved, p_finish_only, v_now);
  v_routes := v_covered.route_ids;
  -- This is one query over all nodes. In a lateral subquery that reads a route, Citus accepts no
  -- `limit`; in a selected subquery it does. A partition without work has no rank. Leave it out
  -- here: a condition in the query would compute every rank twice.
  for partition_key, rank in
    select p.partition_key, min(least(
      (select x.rank from ff.execution x
       where x.partition_key = p.partition_key and x.route_id = r.route_id
         and x.phase = 'runnable' and x.eligibility = 'eligible_now'
       order by x.rank, x.order_at, x.execution_id
       limit 1),
      (select x.rank from ff.execution x
       where x.partition_key = p.partition_key and x.route_id = r.route_id
         and x.ownership in ('lease_expired_reclaimable', 'lease_revoked')
         and x.reclaim_at is null and x.line_id is null
       order by x.rank, x.order_at, x.execution_id
       limit 1),
      (select min((
         select x.rank from ff.execution x
         where x.partition_key = l.partition_key and x.line_id = l.gate_id
           and x.route_id = l.route_id
         order by x.rank, x.order_at, x.execution_id
         limit 1))
       from (
         select y.partition_key, y.gate_id, y.route_id from ff.line y
         where y.partition_key = p.partition_key and y.route_id = r.route_id and y.is_open
         order by y.served_at
         limit 10) l),
      (select min((
         select x.rank from ff.execution x
         where x.partition_key = l.partition_key and x.line_id = l.gate_id
           and x.route_id = l.route_id
         order by x.rank, x.order_at, x.execution_id
         limit 1))
       from (
         select c.partition_key, c.gate_id, c.route_id
         from (
           select y.partition_key, y.gate_id, y.route_id from ff.line y
           where y.partition_key = p.partition_key and y.route_id = r.route_id
             and case when y.is_open then false else true end
           limit 101) c
         where exists (
             select 1 from ff.gate_release g
             where g.partition_key = c.partition_key and g.gate_id = c.gate_id offset 0)
           or exists (
             select 1 from ff.gate g
             where g.partition_key = c.partition_key and g.gate_id = c.gate_id
               and case when g.opens_at <= v_now then true else false end offset 0)
         limit 10) l)))
    from ff.partition p
    cross join ff.route r
    where r.route_id = any (v_routes)
    group by p.partition_key
  loop
    if rank is not null then
      return next;
    end if;
  end loop;
end;
$$;
