-- Lanes with two numbers. `waiting` counts the eligible executions, and `in_line` counts the
-- executions in the lines of quotas and budgets. Both cover all partitions. Both are exact up to
-- 10 000; 10 001 means more than 10 000.
create or replace view ff.lane_depth as
select l.namespace, l.lane, l.state::text, l.resumes_at, l.registered_at,
       coalesce(least(sum(d.waiting), 10001), 0)::integer as waiting,
       l.retention, l.reason, l.changed_by, l.changed_at,
       least(coalesce(sum(k.in_line), 0), 10001)::integer as in_line,
       (coalesce(l.options, l.declared) ->> 'concurrency')::integer as concurrency,
       (coalesce(l.options, l.declared) ->> 'rate')::integer as rate,
       interval '1 millisecond'
         * (coalesce(l.options, l.declared) ->> 'rate_window_ms')::double precision as rate_window,
       l.declared ->> 'fair_by' as fair_by,
       coalesce(l.options, l.declared) -> 'weights' as weights,
       l.options is not null as is_set
from ff.lane l
left join ff.route r on r.namespace = l.namespace and r.lane = l.lane
left join lateral (
  select count(*) as waiting
  from (
    select from ff.partition p
    cross join lateral (
      select from ff.execution e
      where e.partition_key = p.partition_key and e.route_id = r.route_id
        and e.phase = 'runnable' and e.eligibility = 'eligible_now'
      limit 10001) e
    limit 10001
  ) w
) d on true
left join lateral (
  select count(*) as in_line
  from (
    select from ff.partition p
    join ff.line y on y.partition_key = p.partition_key and y.route_id = r.route_id
    cross join lateral (
      select from ff.execution e
      where e.partition_key = p.partition_key and e.line_id = y.gate_id
        and e.route_id = r.route_id
      limit 10001) e
    limit 10001
  ) w
) k on true
group by l.namespace, l.lane, l.state, l.resumes_at, l.registered_at, l.retention, l.reason, l.changed_by,
         l.changed_at, l.options, l.declared;

-- When distributed
create or replace view ff.lane_depth as
select l.namespace, l.lane, l.state::text, l.resumes_at, l.registered_at,
       coalesce(least(sum(d.waiting), 10001), 0)::integer as waiting,
       l.retention, l.reason, l.changed_by, l.changed_at,
       least(coalesce(sum(k.in_line), 0), 10001)::integer as in_line,
       (coalesce(l.options, l.declared) ->> 'concurrency')::integer as concurrency,
       (coalesce(l.options, l.declared) ->> 'rate')::integer as rate,
       interval '1 millisecond'
         * (coalesce(l.options, l.declared) ->> 'rate_window_ms')::double precision as rate_window,
       l.declared ->> 'fair_by' as fair_by,
       coalesce(l.options, l.declared) -> 'weights' as weights,
       l.options is not null as is_set
from ff.lane l
left join ff.route r on r.namespace = l.namespace and r.lane = l.lane
left join (
  select e.route_id, count(*) as waiting from ff.execution e
  where e.phase = 'runnable' and e.eligibility = 'eligible_now'
  group by e.route_id
) d on d.route_id = r.route_id
left join (
  select e.route_id, count(*) as in_line from ff.execution e
  where e.line_id is not null
  group by e.route_id
) k on k.route_id = r.route_id
group by l.namespace, l.lane, l.state, l.resumes_at, l.registered_at, l.retention, l.reason, l.changed_by,
         l.changed_at, l.options, l.declared;
