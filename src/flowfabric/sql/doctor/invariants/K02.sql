-- Rows past their retention are soon trimmed.
--
-- This covers executions whose policy sets a retention, events that outlived their execution, and
-- expired idempotency keys. Each of the three has a reconciler, which runs every minute. A child
-- is kept until its parent has ended, and a member until its flow has ended.
--
-- Holds:   soon, within 5 min. A finding is a warning. It is an error after 1 h, but only if
--          a worker is alive
-- Reads:   the database
-- Remedy:  Start a worker, or read the logs of the running workers for retention_trimmer,
--          event_trimmer and key_trimmer.
select 'K02' as name, d.partition_key, d.execution_id,
       format('%s should have been trimmed at %s', d.what, d.due_at) as problem,
       d.due_at < t.now - interval '1 h' and t.is_worked as is_stuck
from (
  select n.now, exists (
    select from ff.worker w where w.heartbeat_at + w.liveness_ttl > n.now) as is_worked
  from (select ff.now() as now offset 0) n
) t
cross join lateral (
  -- A child stays while its parent is unfinished, and a member while its flow is unfinished.
  select e.partition_key, e.execution_id, 'an execution' as what,
         greatest(e.trim_at, p.terminal_at, f.ended_at) as due_at
  from ff.execution e
  left join ff.execution p on p.partition_key = e.partition_key and p.execution_id = e.parent_id
  left join (
    select m.partition_key, m.flow_id, max(coalesce(m.terminal_at, 'infinity')) as ended_at
    from ff.execution m
    where m.flow_id is not null
      and (m.partition_key, m.flow_id) in (
        select x.partition_key, x.flow_id from ff.execution x
        where x.trim_at < (select ff.now()) - interval '5 min' and x.flow_id is not null)
    group by m.partition_key, m.flow_id
  ) f on f.partition_key = e.partition_key and f.flow_id = e.flow_id
  where e.trim_at < t.now - interval '5 min'
    and (p.execution_id is null or p.terminal_at < t.now - interval '5 min')
    and (f.flow_id is null or f.ended_at < t.now - interval '5 min')
  union all
  select x.partition_key, x.execution_id, 'events', x.due_at
  from ff.event_trim x
  where x.due_at < t.now - interval '5 min'
  union all
  select k.partition_key, k.execution_id, 'a key', k.expires_at
  from ff.idempotency_key k
  where k.expires_at > '-infinity' and k.expires_at < t.now - interval '5 min'
) d
