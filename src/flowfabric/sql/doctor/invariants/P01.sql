-- The fields of a schedule agree with one another, and its route and its app exist.
--
-- A schedule has one rule: a cron rule or an interval. It has a next time if and only if it is
-- neither paused nor orphaned. It has a last time if and only if it has fired. The next time is
-- before the year 9999. The route of the schedule is in the namespace of the schedule. The last
-- execution that the schedule submitted is in this namespace too, unless it was trimmed.
--
-- Holds:   always
-- Reads:   the database
-- Remedy:  Restart a worker of the app: the worker declares its schedules again. To set a next
--          time, run `flowfabric schedule pause`, then `flowfabric schedule resume`. To remove an
--          orphaned schedule: `flowfabric schedule forget`.
select 'P01' as name, null::smallint as partition_key, e.execution_id,
       format('schedule %s of %s is %s: next %s, last %s, fired %s times, rule %s, %s, %s, %s',
              s.name, s.app, s.state, coalesce(s.next_at::text, 'no time'),
              coalesce(s.last_at::text, 'no time'), s.fired_count,
              coalesce(s.cron, 'every ' || s.every, 'missing'),
              case when r.route_id is null then 'on no route' else 'on a route' end,
              case when a.app is null then 'of no app' else 'of a known app' end,
              case when e.execution_id is null then 'last in its namespace'
                   else 'last in another namespace' end) as problem
from ff.schedule s
left join ff.route r on r.route_id = s.route_id and r.namespace = s.namespace
left join ff.schedule_app a on a.namespace = s.namespace and a.app = s.app
left join lateral (
  select e.execution_id
  from ff.meta m
  cross join lateral generate_series(0, m.value::integer - 1) p(partition_key)
  join ff.execution e
    on e.partition_key = p.partition_key::smallint and e.execution_id = s.last_id
  where m.name = 'partitions' and e.namespace <> s.namespace
) e on true
where r.route_id is null or a.app is null or e.execution_id is not null
   or num_nonnulls(s.cron, s.every) <> 1
   or (s.every is null) <> (s.anchor_at is null)
   or (s.next_at is not null) <> (s.orphaned_at is null and not s.is_paused)
   or s.next_at >= timestamptz '9999-01-01 00:00:00+00'
   or num_nulls(s.last_at, s.last_id) = 1 or (s.last_at is null) <> (s.fired_count = 0)
