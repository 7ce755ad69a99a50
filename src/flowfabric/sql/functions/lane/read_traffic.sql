-- Read how busy the lanes are: how many executions wait, are delayed or run, and how many were
-- submitted, completed, retried or failed in the last p_window.
--
-- The call reads a bounded number of rows, so it can be made every second. A flag is_more_… is true
-- if a count may be too low for this reason. `waiting` adds up the counts of the routes of the
-- lane, and `in_line` adds up the counts of its lines. The count of a route or of a line stops at
-- 10 * p_limit / (number of all routes), or at 100 if that is more.
--
-- `delayed` and `active` are counted among the p_limit executions with the earliest due_at. Up to
-- p_limit executions that can be reclaimed count as active, too.
--
-- `submitted`, `completed`, `retried` and `failed` are counted among the newest p_limit events. If
-- these events do not cover p_window, the counts are for a shorter time. `seconds` is the length
-- of the counted time.
--
-- waiting_since is the time since which the execution that has waited longest waits. The call
-- considers only the executions that are next to be claimed: one for each route and priority, for
-- at most 10 priorities of a route. `workers` lists the instances that run executions of the lane.
-- `running` says how many executions each instance runs, in the same order.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.read_traffic;
create function ff.read_traffic(
  p_partition_key smallint,
  p_namespace     text default null,
  p_window        interval default '10 seconds',
  p_limit         integer default 1000
)
returns table (
  namespace       text,
  lane            text,
  state           text,
  resumes_at      timestamptz,
  waiting         integer,
  is_more_waiting boolean,
  waiting_since   timestamptz,
  delayed         integer,
  active          integer,
  is_more_timed   boolean,
  submitted       integer,
  completed       integer,
  retried         integer,
  failed          integer,
  seconds         double precision,
  workers         text[],
  running         integer[],
  in_line         integer,
  is_more_in_line boolean
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_now   timestamptz := ff.now();
  v_share integer;
  v_routes bigint[];
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_limit(p_limit);
  if ff._is_within(p_window, interval '1 microsecond', interval '1 hour') is not true then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'window', 'problem', 'must be more than 0 and at most one hour'));
  end if;
  -- Routes of past code versions without unfinished executions are not read.
  v_routes := ff._read_versioned_routes(p_partition_key, p_namespace) || array(
    select r.route_id from ff.route r
    where r.code_version is null and (p_namespace is null or r.namespace = p_namespace));
  v_share := greatest(100, 10 * p_limit / greatest(1, cardinality(v_routes)));
  return query
  with recursive route as materialized (
    select r.route_id, r.namespace, r.lane
    from unnest(v_routes) u(id)
    cross join lateral (
      select x.route_id, x.namespace, x.lane from ff.route x where x.route_id = u.id offset 0) r
    where p_namespace is null or r.namespace = p_namespace
  ),
  line as materialized (
    select r.namespace, r.lane, sum(least(w.number, v_share))::integer as waiting,
           bool_or(w.number > v_share) as is_more
    from route r
    cross join lateral (
      select count(*) as number
      from (
        select from ff.execution e
        where e.partition_key = p_partition_key and e.route_id = r.route_id
          and e.phase = 'runnable' and e.eligibility = 'eligible_now'
        limit v_share + 1) c) w
    group by r.namespace, r.lane
  ),
  parked as (
    select r.namespace, r.lane, sum(least(w.number, v_share))::integer as number,
           bool_or(w.number > v_share) as is_more
    from route r
    cross join lateral (
      select y.gate_id from ff.line y
      where y.partition_key = p_partition_key and y.route_id = r.route_id offset 0) g
    cross join lateral (
      select count(*) as number
      from (
        select from ff.execution e
        where e.partition_key = p_partition_key and e.line_id = g.gate_id
          and e.route_id = r.route_id
        limit v_share + 1) c) w
    group by r.namespace, r.lane
  ),
  first as (
    select r.namespace, r.lane, r.route_id, h.rank, h.transitioned_at, 1 as depth
    from route r
    cross join lateral (
      select e.rank, e.transitioned_at
      from ff.execution e
      where e.partition_key = p_partition_key and e.route_id = r.route_id
        and e.phase = 'runnable' and e.eligibility = 'eligible_now'
      order by e.rank, e.order_at, e.execution_id
      limit 1) h
    union all
    select f.namespace, f.lane, f.route_id, h.rank, h.transitioned_at, f.depth + 1
    from first f
    cross join lateral (
      select e.rank, e.transitioned_at
      from ff.execution e
      where e.partition_key = p_partition_key and e.route_id = f.route_id
        and e.phase = 'runnable' and e.eligibility = 'eligible_now' and e.rank > f.rank
      order by e.rank, e.order_at, e.execution_id
      limit 1) h
    where f.depth < 10
  ),
  oldest as (
    select f.namespace, f.lane, min(f.transitioned_at) as since from first f
    group by f.namespace, f.lane
  ),
  due as materialized (
    select e.execution_id, e.route_id, e.phase, e.eligibility,
           case when e.ownership = 'leased' then e.worker_instance_id end as worker_instance_id
    from ff.execution e
    where e.partition_key = p_partition_key and e.due_at is not null
    order by e.due_at
    limit p_limit
  ),
  timed as materialized (
    select d.execution_id, d.route_id, d.phase, d.eligibility, d.worker_instance_id from due d
    union
    select c.execution_id, c.route_id, c.phase, c.eligibility, null
    from (
      select e.execution_id, e.route_id, e.phase, e.eligibility
      from ff.execution e
      where e.partition_key = p_partition_key
        and e.ownership in ('lease_expired_reclaimable', 'lease_revoked') and e.reclaim_at is null
        and e.line_id is null
      limit p_limit) c
    where not exists (select from due d where d.execution_id = c.execution_id)
  ),
  by_worker as (
    select r.namespace, r.lane, t.worker_instance_id as worker, count(*)::integer as number
    from timed t
    join route r on r.route_id = t.route_id
    where t.phase = 'active'
    group by r.namespace, r.lane, t.worker_instance_id
  ),
  activity as (
    select h.namespace, h.lane, sum(h.number)::integer as active,
           array_agg(h.worker order by h.worker) filter (where h.worker is not null) as workers,
           array_agg(h.number order by h.worker) filter (where h.worker is not null) as running
    from by_worker h
    group by h.namespace, h.lane
  ),
  later as (
    select r.namespace, r.lane, count(*)::integer as delayed
    from timed t
    join route r on r.route_id = t.route_id
    where t.eligibility = 'not_eligible_until_time'
    group by r.namespace, r.lane
  ),
  tail as materialized (
    select v.route_id, v.kind, v.occurred_at
    from ff.event v
    where v.partition_key = p_partition_key
    order by v.generation desc, v.xid desc, v.event_id desc
    limit p_limit
  ),
  span as materialized (
    select case when count(*) >= p_limit and min(t.occurred_at) > v_now - p_window
             then greatest(v_now - min(t.occurred_at), interval '1 ms') else p_window end as length
    from tail t
  ),
  traffic as (
    select r.namespace, r.lane,
           (count(*) filter (where t.kind = 'submitted'))::integer as submitted,
           (count(*) filter (where t.kind = 'completed'))::integer as completed,
           (count(*) filter (where t.kind = 'retry_scheduled'))::integer as retried,
           (count(*) filter (where t.kind in ('failed', 'expired')))::integer as failed
    from tail t
    -- Look up the route itself, because the code version of the route may have no unfinished
    -- executions any more.
    join ff.route r on r.route_id = t.route_id
      and (p_namespace is null or r.namespace = p_namespace)
    where t.occurred_at > v_now - p_window
    group by r.namespace, r.lane
  )
  select l.namespace, l.lane, l.state::text, l.resumes_at, coalesce(n.waiting, 0),
         coalesce(n.is_more, false), o.since, coalesce(d.delayed, 0), coalesce(a.active, 0),
         (select count(*) from due) >= p_limit,
         coalesce(t.submitted, 0), coalesce(t.completed, 0), coalesce(t.retried, 0),
         coalesce(t.failed, 0), extract(epoch from s.length)::double precision,
         coalesce(a.workers, '{}'), coalesce(a.running, '{}'), coalesce(p.number, 0),
         coalesce(p.is_more, false)
  from ff.lane l
  cross join span s
  left join line n on n.namespace = l.namespace and n.lane = l.lane
  left join parked p on p.namespace = l.namespace and p.lane = l.lane
  left join oldest o on o.namespace = l.namespace and o.lane = l.lane
  left join activity a on a.namespace = l.namespace and a.lane = l.lane
  left join later d on d.namespace = l.namespace and d.lane = l.lane
  left join traffic t on t.namespace = l.namespace and t.lane = l.lane
  where p_namespace is null or l.namespace = p_namespace
  order by l.lane collate "C", l.namespace collate "C";
end;
$$;
