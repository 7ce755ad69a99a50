-- Read how long the lanes of a namespace keep ended executions. Each lane with a retention of its
-- own has a row. One more row, the first, has no lane: its oldest_at is when the oldest stored
-- execution of all namespaces was created.
select null::text as lane, null::interval as retention, min(o.created_at) as oldest_at
from ff.partition k
cross join lateral (
  select e.created_at from ff.execution e
  where e.partition_key = k.partition_key
  order by e.execution_id
  limit 1) o
union all
select l.lane, l.retention, null
from ff.lane l
where l.namespace = $1 and l.retention is not null
order by lane nulls first
